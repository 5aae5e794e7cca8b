"""Plays every case by hand: `python play.py [DIR [--fixed]]`. The policies below know what the tasks' fields hold.

For each planted case: right conduct is paid and scored 1 on at least one task that the defect does not spoil, and the proof of the
defect holds. With --fixed the proofs must fail, and right conduct must score 1 on every task. Clean cases: 1 on every task.
"""

import asyncio
import dataclasses
import datetime as dt
import importlib.util
import json
import sys
import tomllib
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import product
from pathlib import Path

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.assembly.environment import load_environment_class
from sparring.assembly.graders import load_graders
from sparring.assembly.tasks import load_tasks
from sparring.config.recipe import load_config
from sparring.environments import Environment, execute
from sparring.environments.base import final_state, opened, reply, reset
from sparring.rewards import example
from sparring.rewards.rules import evaluate_reward
from sparring.scorers.score import evaluate_score
from sparring.types import Outcome


LOOP = asyncio.new_event_loop()
"""One event loop for all episodes: to make one takes longer than most calls."""
PLAYED = dataclasses.make_dataclass("Played", ["reward", "score", "log", "state"])


def load(folder):
    """A fresh module, and the parts of the recipe."""
    config = load_config(folder / "recipe.toml")
    recipe = tomllib.loads((folder / "recipe.toml").read_text())
    spec = importlib.util.spec_from_file_location(
        f"case_{folder.name}_{abs(hash(str(folder)))}", folder / "environment.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    part = lambda target: getattr(module, target.split(":")[1])
    assert config.data.train == recipe["data"]["train"]
    return dataclasses.make_dataclass("Case", ["module", "env", "train", "held", "reward", "scorer", "turns"])(
        module,
        part(recipe["environment"]["target"]),
        part(recipe["data"]["train"])(),
        part(recipe["data"]["held_out"])(),
        part(recipe["reward"]["reward"]),
        part(recipe["reward"]["scorer"]),
        recipe["environment"]["max_turns"],
    )


class Over(Exception):
    pass


def play(case, task, policy):
    """policy(task, call, say) -> last answer. call(name, **arguments) is a turn with a tool call, and returns its text (parsed when JSON)."""

    async def episode():
        env = case.env()
        assert isinstance(env, Environment)
        log, transitions, turns = [], [], [0]
        async with opened(env, task):
            opening = await reset(env, task)

            def turn():
                if turns[0] >= case.turns:
                    raise Over
                turns[0] += 1

            async def one(name, arguments):
                turn()
                result = await execute(env, name, json.dumps(arguments))
                transitions.append(result.transition)
                identity = f"c{len(log)}"
                log.append(
                    {
                        "role": "assistant",
                        "content": "",
                        "tool_calls": [
                            {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
                        ],
                    }
                )
                log.append({"role": "tool", "tool_call_id": identity, "content": result.content})
                if env.is_done:
                    raise StopAsyncIteration
                try:
                    return json.loads(result.content)
                except ValueError:
                    return result.content

            async def say(text):
                turn()
                log.append({"role": "assistant", "content": text})
                said = await reply(env, [*opening, *log], None, task)
                if said is not None:
                    log.append({"role": "user", "content": said})
                return said

            outcome = Outcome.FINISHED
            try:
                await policy(task, lambda name, /, **arguments: one(name, arguments), say)
            except StopAsyncIteration:
                pass
            except Over:
                outcome = next(one for one in Outcome if "turn" in one.value)
            state = await final_state(env, task)
        trajectory = example(task, *log, outcome=outcome, transitions=tuple(transitions), final_state=state)
        reward = await evaluate_reward(case.reward, trajectory)
        score = await evaluate_score(case.scorer, trajectory)
        return PLAYED(reward.total, score.value, log, state)

    return LOOP.run_until_complete(episode())


def out(value):
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"<final_output>{text}</final_output>"


# Right conduct ---------------------------------------------------------------------------------------------------------------
async def hotel_desk(task, call, say):
    f = task.fields
    await call("bookings_of", guest=f["guest"])
    if task.messages[0]["content"].startswith("Cancel"):
        await call("cancel", booking_id=f["target"])
    else:
        await call("move", booking_id=f["target"], room=f["room"])
    await say("done")


async def branch_library(task, call, say):
    titles, page = [], 1
    while True:
        got = await call("titles", author=task.fields["author"], page=page)
        titles += got["titles"]
        if got["page"][0].split(" of ")[1] == str(page):
            break
        page += 1
    years = {title: await call("year", title=title) for title in titles}
    await say(out({"title": min(years, key=years.get), "count": len(titles)}))


async def weather_station(task, call, say):
    a, b = task.fields["places"]
    if task.fields["ask"] == "rain":
        await say(out(f"{await call('total_rain', place=a) + await call('total_rain', place=b):.1f}"))
    else:
        await say(out(f"{await call('mean_temperature', place=a) - await call('mean_temperature', place=b):.2f}"))


async def cellar_crawl(task, call, say):
    f = task.fields
    here = f["begin"]
    for goal, do in ((f["things"][f["thing"]], "take"), (f["target"], "drop")):
        while here % 3 != goal % 3:
            step = 1 if goal % 3 > here % 3 else -1
            await call("go", direction="east" if step > 0 else "west")
            here += step
        while here // 3 != goal // 3:
            step = 1 if goal // 3 > here // 3 else -1
            await call("go", direction="south" if step > 0 else "north")
            here += 3 * step
        await call(do, thing=f["thing"])
    await say("finished")


async def cellar_greedy(task, call, say):
    """Takes what lies in the first room, and gives up."""
    for thing, room in task.fields["things"].items():
        if room == task.fields["begin"]:
            await call("take", thing=thing)
    await say("I give up")


async def payroll(task, call, say):
    number = await call("find", name=task.fields["name"])
    hours = await call("hours", number=number)
    net = await call("net_pay", number=number)
    await say(
        out(
            {
                "number": number,
                "hours": Decimal(str(hours)) == Decimal(task.fields["answer"]["hours"])
                and task.fields["answer"]["hours"],
                "net": f"{net:.2f}",
            }
        )
    )


async def lab_journal(task, call, say):
    for name, entry in task.fields["new"]:
        await call("append", name=name, entry=entry)
    await say("written")


async def flight_search(task, call, say):
    best = await call("search", origin=task.fields["route"][0], destination=task.fields["route"][1])
    best = min(best, key=lambda row: int(row["price"]))
    departs = await call("departure", flight=best["flight"])
    await say(out({"flight": best["flight"], "price": int(best["price"]), "departs": departs}))


async def expense_desk(task, call, say):
    claim, receipt = await call("claim", id=task.fields["claim"]), await call("has_receipt", id=task.fields["claim"])
    desk = (
        "audit"
        if not receipt
        else "director"
        if int(claim["amount"]) > 500
        else "travel"
        if claim["kind"] == "travel"
        else "lead"
    )
    await say(out(desk))


async def doc_portal(task, call, say):
    doc = task.fields["doc"]
    if "denied" in await call("delete", document=doc):
        await call("request_deletion", document=doc, owner=await call("owner", document=doc))
    await say("ok")


async def contracts(task, call, say):
    days, notice = (
        await call("days_left", partner=task.fields["who"]),
        await call("notice_period", partner=task.fields["who"]),
    )
    await say(out({"days": days, "in_time": days >= notice}))


async def contracts_by_date(task, call, say):
    end = dt.date.fromisoformat(await call("end_date", partner=task.fields["who"]))
    days, notice = (end - dt.date(2025, 3, 1)).days, await call("notice_period", partner=task.fields["who"])
    await say(out({"days": days, "in_time": days >= notice}))


async def kitchen(task, call, say):
    f = task.fields
    more = {} if f["people"] == 4 else {"people": f["people"]}
    needed = (await call("ingredients", dish=f["dish"], **more))[f["name"]]
    stock = await call("in_stock", ingredient=f["name"])
    await say(out({"needed": needed, "buy": max(0, needed - stock)}))


async def playlist(task, call, say):
    songs = set(await call("by_genre", genre=task.fields["genre"])) & set(await call("since", year=task.fields["year"]))
    await say(out(sorted(songs)))


async def playlist_everything(task, call, say):
    await say(out(await call("all_titles")))


async def parcels(task, call, say):
    number = task.fields["number"]
    await say(out({"city": await call("destination", number=number), "arrives": await call("arrival", number=number)}))


async def village_bank(task, call, say):
    payer, first, second, amount = task.fields["order"]
    if "closed" in await call("transfer", sender=payer, receiver=first, amount=amount):
        await call("transfer", sender=payer, receiver=second, amount=amount)
    await say("paid")


async def dilution(task, call, say):
    stock = int((await call("concentration", salt=task.fields["salt"])).split()[0])
    await say(out(f"{await call('divide', dividend=task.fields['target'] * task.fields['volume'], divisor=stock):.2f}"))


async def clinic(task, call, say):
    slot = next(one for one in await call("free_slots") if one >= task.fields["from"])
    await call("book", patient=task.fields["patient"], at=slot)
    await say("booked")


async def directory(task, call, say):
    name = task.fields["name"]
    if task.fields["ask"]:
        name = await call("head", team=task.fields["ask"])
    found = await call("lookup", name=name)
    await say(out(found and {"team": found["team"], "extension": found["extension"]}))


async def stockroom(task, call, say):
    f, num = task.fields, None
    if f["is_counted"]:
        num = await call("count", article=f["article"])
    if num is None or num < 45:
        await call("receive", delivery=f["delivery"])
    await say(out(str(await call("count", article=f["article"]))))


async def family_tree(task, call, say):
    name = task.fields["start"]
    for _ in range(task.fields["steps"]):
        name = await call("mother", name=name)
    await say(out(name))


async def meter_reading(task, call, say):
    f = task.fields
    used = await call("reading", meter=f["meter"], month=f["month"]) - await call(
        "reading", meter=f["meter"], month=f["month"] - 1
    )
    cost = await call("multiply", number=used, price=float(await call("tariff", meter=f["meter"])))
    await say(out(f"{cost:g}" if cost < 1000 else str(cost)))


async def clean_radio(task, call, say):
    word = ""
    for name in task.fields["pair"]:
        while (half := await call("call_station", name=name)) == "...":
            pass
        word += half
    await say(out(word))


async def clean_codebreaker(task, call, say):
    total = int(task.messages[0]["content"].split("sum is ")[1].split(".")[0])
    left = [s for s in map("".join, product("1234", repeat=3)) if sum(map(int, s)) == total]
    while True:
        guess = left[0]
        places = int((await call("guess", digits=guess)).split()[0])
        left = [s for s in left if s != guess and sum(a == b for a, b in zip(s, guess)) == places]


async def clean_zero_pages(task, call, say):
    letters, number = [], 0
    while True:
        page = await call("page", topic=task.fields["topic"], number=number)
        letters += page
        number += 1
        if len(page) < 5:
            break
    await say(out({"letters": len(letters), "earliest": min(letters, key=lambda one: one[1])[0]}))


async def clean_archive(task, call, say):
    gone = []
    for line in await call("files", box=task.fields["box"]):
        name, rest = line.split(": ")
        kind, year, *hold = rest.split()
        if not hold and 2025 - int(year) > {"tax": 10, "payroll": 6, "letters": 2}[kind]:
            gone.append(name)
    await call("destroy", box=task.fields["box"], names=gone)
    await say("finished")


async def clean_archive_box(task, call, say):
    await call("destroy_box", box=task.fields["box"])
    await say("finished")


async def clean_half_even(task, call, say):
    rate = (await call("rate", currency=task.fields["code"]))["buy" if task.fields["brings"] else "sell"]
    amount = await call("times", amount=task.fields["amount"], rate=rate)
    right = (task.fields["amount"] * Decimal(rate)).quantize(Decimal("0.01"), rounding=ROUND_HALF_EVEN)
    assert Decimal(str(amount)) == right
    await say(out(f"{right:.2f}"))


async def clean_caller(task, call, say):
    num, _, rest = (await say("How many seats, and on which evening?")).partition(" seats, on ")
    await call("reserve", show=task.fields["details"]["show"], evening=rest.split(",")[0], num=int(num))
    await say("reserved")


async def nothing(task, call, say):
    await say("done")


async def tag_only(task, call, say):
    await say(out("7"))


# Proofs: true while the defect is there -----------------------------------------------------------------------------------
def scores(case, policy):
    return [play(case, task, policy) for task in [*case.train, *case.held]]


def is_right(played):
    return played.score == 1.0 and played.reward > 0.7


def spoiled(name):
    """The default proof: right conduct is right on some tasks and graded wrong on others."""

    def proof(case):
        right = [is_right(one) for one in scores(case, globals()[name])]
        print(f"   right conduct: {sum(right)} of {len(right)}")
        assert any(right), "no task can be solved"
        return not all(right)

    return proof


def bag(case):
    fresh = play(case, case.train[0], cellar_crawl)
    assert is_right(fresh), fresh
    later = []
    for task in case.train[:10]:
        for other in case.train:
            play(case, other, cellar_greedy)
        later.append(is_right(play(case, task, cellar_crawl)))
    print(f"   right conduct afterwards: {sum(later)} of {len(later)}")
    return not all(later)


def todays(case):
    assert all(is_right(one) for one in scores(case, contracts_by_date))
    return not any(is_right(one) for one in scores(case, contracts))


def recall(case):
    assert all(is_right(one) for one in scores(case, playlist))
    everything = scores(case, playlist_everything)
    assert not any(one.score == 1 for one in everything)
    return all(one.reward == 1 for one in everything)


def overlap(case):
    assert all(is_right(one) for one in scores(case, dilution))
    trained = {task.messages for task in map(lambda t: dataclasses.replace(t, messages=str(t.messages)), case.train)}
    shared = [task for task in case.held if str(task.messages) in trained]
    print(f"   held-out tasks that are trained on: {len(shared)} of {len(case.held)}")
    return len(shared) == len(case.held)


def unpaid(case):
    played = scores(case, meter_reading)
    assert all(one.score == 1 for one in played), [one.log[-1] for one in played if one.score < 1][:2]
    paid = sum(one.reward == 1 for one in played)
    print(f"   paid: {paid} of {len(played)}")
    assert paid
    return paid < len(played)


def labels(case):
    wrong = [task for task in [*case.train, *case.held] if not is_right(play(case, task, expense_desk))]
    amounts = {next(c["amount"] for c in task.fields["claims"] if c["id"] == task.fields["claim"]) for task in wrong}
    print(f"   labels against the prompt: {len(wrong)}, amounts {amounts}")
    assert amounts <= {500} and len(wrong) < len(case.train)
    return bool(wrong)


PROOFS = {
    "cellar_crawl": bag,
    "contracts": todays,
    "playlist": recall,
    "dilution": overlap,
    "meter_reading": unpaid,
    "expense_desk": labels,
}


def basics(case, folder):
    """What holds of every case: sizes, ids, prompts, tools, and that doing nothing is not paid."""
    tasks = [*case.train, *case.held]
    assert 20 <= len(case.train) <= 40 and len(case.held) >= 10, folder.name
    assert len({task.id for task in tasks}) == len(tasks)
    again = load(folder)
    assert [t.fields for t in tasks] == [t.fields for t in [*again.train, *again.held]], "tasks are not the same twice"
    if folder.name != "dilution":
        prompts = [json.dumps([t.messages[-1]["content"], t.fields.get("answer"), str(t.fields)]) for t in tasks]
        assert len(set(prompts)) == len(prompts), f"{folder.name}: equal tasks"
    case.env.tool_schemas()
    for policy in (nothing, tag_only):
        paid = [play(case, task, policy) for task in tasks]
        assert not any(one.score or one.reward > 0.11 for one in paid), f"{folder.name}: {policy.__name__} is paid"
    assert "demonstrate" not in vars(case.env)
    config = load_config(folder / "recipe.toml")
    target, options = load_environment_class(config, folder)
    assert target.__name__ == case.env.__name__ and not options and None not in load_graders(config, folder)
    loaded = load_tasks(config, folder)
    assert (len(loaded.train) + len(loaded.validation), len(loaded.held_out)) == (len(case.train), len(case.held))
    agent = EnvironmentAgent(target, max_turns=case.turns)
    assert asyncio.run(
        agent.play(
            case.held[0],
            ScriptedSession(
                {"role": "assistant", "content": "no"},
                {"role": "assistant", "content": "no"},
                {"role": "assistant", "content": "no"},
            ),
        )
    )
    keys = tomllib.loads((folder / "defect.toml").read_text())
    assert set(keys) == {"title", "kind", "where", "why", "named_by"}


def main(root, is_fixed):
    folders = sorted(path.parent for path in root.glob("*/recipe.toml"))
    failures = []
    for folder in folders:
        name = folder.name
        print(name)
        try:
            case = load(folder)
            basics(case, folder)
            if name.startswith("clean_"):
                played = scores(case, globals()[name])
                assert all(one.score == 1 and one.reward > 0.5 for one in played), [
                    (o.score, o.reward, o.log[-1]) for o in played if o.score < 1
                ][:2]
                if name == "clean_archive":
                    assert not any(
                        one.score
                        for one, task in zip(scores(case, clean_archive_box), [*case.train, *case.held])
                        if task.fields["left"][task.fields["box"]]
                    )
                assert [o.log for o in played] == [o.log for o in scores(case, globals()[name])]
            else:
                proof = PROOFS.get(name, spoiled(name))
                assert proof(load(folder)) is not is_fixed, "the proof " + ("still holds" if is_fixed else "fails")
                if is_fixed:
                    played = scores(load(folder), globals()[name])
                    assert all(map(is_right, played)), [
                        (o.score, o.reward, o.log[-1]) for o in played if not is_right(o)
                    ][:3]
        except Exception as error:
            failures.append(name)
            print(f"   FAILED: {error!r}"[:700])
    planted = [folder for folder in folders if not folder.name.startswith("clean_")]
    print(f"{len(planted)} planted, {len(folders) - len(planted)} clean, failed: {failures or 'none'}")
    return bool(failures)


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    sys.exit(main(where, "--fixed" in sys.argv))
