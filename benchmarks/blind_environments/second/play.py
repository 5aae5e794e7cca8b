"""Loads every recipe of this folder, plays its tasks by hand through the tools, and asserts what is wrong or right with it.

python play.py [NAME...]
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from sparring.config.recipe import load_config
from sparring.environments import Environment, answer, execute, opened, tool_call
from sparring.environments.base import final_state, reset
from sparring.runtime.plugins import load_object
from sparring.rewards.rules import evaluate_reward
from sparring.scorers import evaluate_score
from sparring.types import Outcome, Task, Trajectory

HERE = Path(__file__).parent


class Refused(Exception):
    """A tool's error."""


class Over(Exception):
    """The episode ended: by the environment, or by its turns."""


@dataclass
class Episode:
    environment: Environment
    task: Task
    max_turns: int
    messages: list = field(default_factory=list)
    transitions: list = field(default_factory=list)
    turns: int = 0
    outcome: Outcome = Outcome.FINISHED

    def _turn(self) -> None:
        if self.turns == self.max_turns:
            self.outcome = Outcome.MAX_TURNS
            raise Over
        self.turns += 1

    async def call(self, name: str, /, **arguments: Any) -> Any:
        self._turn()
        message = tool_call(name, **arguments)
        result = await execute(self.environment, name, json.dumps(arguments))
        self.messages += [message, {"role": "tool", "tool_call_id": "call", "content": result.content}]
        self.transitions.append(result.transition)
        if self.environment.is_done:
            raise Over
        if result.error is not None:
            raise Refused(result.content)
        try:
            return json.loads(result.content)
        except ValueError:
            return result.content

    def say(self, content: Any, tag: str = "final_output") -> None:
        self._turn()
        text = content if isinstance(content, str) else f"<{tag}>{json.dumps(content)}</{tag}>"
        self.messages.append(answer(text))
        raise Over


Policy = Callable[[Episode], Awaitable[None]]


@dataclass(frozen=True)
class Played:
    reward: float
    score: float
    episode: Episode
    state: Any

    @property
    def is_paid(self) -> bool:
        return self.reward >= 0.999 and self.score == 1.0


class Case:
    def __init__(self, name: str) -> None:
        self.name, folder = name, HERE / name
        self.longest = 0
        self.config = load_config(folder)
        load = lambda reference: load_object(reference, folder=folder)
        self.environment_class: type[Environment] = load(self.config.environment.target)
        self.module = sys.modules[self.environment_class.__module__]
        self.reward, self.scorer = load(self.config.reward.reward), load(self.config.reward.scorer)
        self.train: list[Task] = load(self.config.data.train)()
        self.held_out: list[Task] = load(self.config.data.held_out)()
        self.again: list[Task] = load(self.config.data.train)()
        self.tasks = [*self.train, *self.held_out]

    async def play(self, task: Task, policy: Policy) -> Played:
        task = copy.deepcopy(task)
        async with opened(self.environment_class(), task) as environment:
            episode = Episode(environment, task, self.config.environment.max_turns)
            episode.messages = await reset(environment, task)
            try:
                await policy(episode)
            except Over:
                pass
            else:
                raise AssertionError(f"{task.id}: the policy did not come to an end")
            state = await final_state(environment, task)
        trajectory = Trajectory(
            id=task.id, task=task, attempt=0, turns=(), messages=tuple(episode.messages), outcome=episode.outcome, reward=None,
            score=None, transitions=tuple(episode.transitions), final_state=state,
        )  # fmt: skip
        reward = await evaluate_reward(self.reward, trajectory)
        return Played((reward).total, (await evaluate_score(self.scorer, trajectory)).value, episode, state)

    async def expect(self, policy: Policy, is_hit: Callable[[Task], bool]) -> tuple[int, int]:
        """Play all tasks: those that are hit by the defect are not paid, all others are."""
        hit = 0
        for task in self.tasks:
            played, again = await self.play(task, policy), await self.play(task, policy)
            assert played.episode.transitions == again.episode.transitions and played.state == again.state
            self.longest = max(self.longest, len(json.dumps(played.episode.messages)))
            assert played.is_paid != is_hit(task), (task.id, played.reward, played.score, played.episode.messages)
            hit += is_hit(task)
        return len(self.tasks) - hit, hit

    async def prove(self, policy: Policy, is_hit: Callable[[Task], bool]) -> str:
        paid, hit = await self.expect(policy, is_hit)
        assert paid >= 5 and hit >= 5, (paid, hit)
        return f"a careful policy is paid on {paid} tasks and not on the {hit} that the defect hits"

    async def prove_clean(self, policy: Policy) -> str:
        paid, _ = await self.expect(policy, lambda task: False)
        return f"a careful policy is paid on all {paid} tasks"


async def general(case: Case) -> None:
    """What holds of every case."""
    assert 20 <= len(case.train) <= 40 and 10 <= len(case.held_out) <= 20, (len(case.train), len(case.held_out))
    assert case.train == case.again
    assert len({task.id for task in case.tasks}) == len(case.tasks)
    assert case.environment_class.tool_schemas()
    assert "demonstrate" not in vars(case.environment_class)
    prompts = [json.dumps(task.messages) for task in case.tasks]
    for task in case.tasks:
        json.dumps(task.fields)
    if case.name != "timetable":
        assert len(set(prompts)) == len(prompts), [p for p in prompts if prompts.count(p) > 1][:2]

    async def lazy(episode: Episode) -> None:
        episode.say("done")

    for task in case.tasks[:10]:
        played = await case.play(task, lazy)
        assert played.score == 0.0 and played.reward <= 0.0, (task.id, played.reward, played.score)


def user(episode: Episode) -> str:
    return episode.task.messages[-1]["content"]


# ---- defects


async def hotel_desk(case: Case) -> str:
    async def policy(episode):
        guest, incoming = re.match(r"Slip \d+: (\w+) gives up .* room to (\w+),", user(episode)).groups()
        booking = next(one for one in await episode.call("bookings") if one["guest"] == guest)
        await episode.call("cancel", booking=booking["id"])
        try:
            await episode.call(
                "book",
                guest=incoming,
                room=booking["room"],
                first_night=booking["first_night"],
                nights=booking["nights"],
            )
        except Refused as error:
            assert f"is taken in night {booking['first_night'] + 1}" in str(error)
        episode.say("done")

    def is_hit(task):
        guest = user_of(task).split()[2]
        return next(one for one in task.fields["bookings"] if one[1] == guest)[4] > 1

    return await case.prove(policy, is_hit)


def user_of(task: Task) -> str:
    return task.messages[-1]["content"]


async def warehouse_count(case: Case) -> str:
    async def policy(episode):
        hall = user(episode).split()[-1].rstrip("?")
        articles, page, pages = [], 1, 1
        while page <= pages:
            shown = await episode.call("stock", hall=hall, page=page)
            articles += shown["articles"]
            page, pages = page + 1, shown["pages"]
        info = await episode.call("hall_info", hall=hall)
        assert info["articles"] == len(episode.task.fields["articles"])
        try:
            await episode.call("stock", hall=hall, page=page)
            raise AssertionError("a page after the last")
        except Refused:
            pass
        lacking = {one["code"]: one["minimum"] - one["pieces"] for one in articles}
        worst = max(lacking, key=lacking.get)
        episode.say({"short": sum(value > 0 for value in lacking.values()), "worst": worst})

    def is_hit(task):
        rows = task.fields["articles"]
        return any(row["pieces"] < row["minimum"] for row in rows[len(rows) // 4 * 4 :])

    return await case.prove(policy, is_hit)


async def library_loans(case: Case) -> str:
    async def policy(episode):
        reader, one, two = re.match(r"Reader (\d+) asks for (.*) and (.*)\. \(", user(episode)).groups()
        for title in (one, two):
            shelf = await episode.call("shelf", title=title)
            await episode.call("lend" if shelf["copies"] else "wait", title=title, reader=f"reader {reader}")
        episode.say("done")

    fresh = copy.deepcopy(case.module.CATALOG)
    for task in case.tasks:
        case.module.CATALOG.clear()
        case.module.CATALOG.update(copy.deepcopy(fresh))
        assert (await case.play(task, policy)).is_paid, task.id
    case.module.CATALOG.clear()
    case.module.CATALOG.update(copy.deepcopy(fresh))
    task = next(task for task in case.tasks if task.fields["state"]["loans"])
    group = [(await case.play(task, policy)).is_paid for _ in range(4)]
    assert group[0] and not group[2] and not group[3], group
    rest = [(await case.play(task, policy)).is_paid for task in case.train]
    assert 0 < sum(rest) < len(rest)
    return f"paid on each of {len(case.tasks)} tasks alone; a group of 4 of one task: {group}; one after the other {sum(rest)} of {len(rest)}"


async def expense_desk(case: Case) -> str:
    limits = {"meal": 40, "taxi": 60, "hotel": 150}

    async def policy(episode):
        claim = user(episode).split()[-1].rstrip(".")
        allowed = [
            one
            for one in await episode.call("claim_receipts", claim=claim)
            if Decimal(one["amount"]) <= limits[one["category"]]
        ]
        for one in allowed:
            await episode.call("approve", receipt=one["id"])
        await episode.call("payout", claim=claim)
        episode.say({"approved": len(allowed), "paid": episode.messages[-1]["content"]})

    def is_hit(task):
        amounts = [row["amount"] for row in task.fields["receipts"] if row["id"] in task.fields["allowed"]]
        return sum(int(float(one) * 100) for one in amounts) != sum(int(Decimal(one) * 100) for one in amounts)

    return await case.prove(policy, is_hit)


async def meeting_times(case: Case) -> str:
    zones = {"Berlin": "Europe/Berlin", "New York": "America/New_York", "London": "Europe/London"}

    def parts(episode):
        return re.match(r"When does (\w+)'s meeting about (\w+) begin", user(episode)).groups()

    async def by_agenda(episode):
        name, topic = parts(episode)
        begins = next(one["begins"] for one in await episode.call("agenda", name=name) if one["topic"] == topic)
        room = (await episode.call("invitation", topic=topic))["room"]
        episode.say({"begins": begins[-5:], "room": room})

    async def by_invitation(episode):
        name, topic = parts(episode)
        city = (await episode.call("colleague", name=name))["city"]
        one = await episode.call("invitation", topic=topic)
        local = datetime.fromisoformat(one["begins_utc"] + "+00:00").astimezone(ZoneInfo(zones[city]))
        episode.say({"begins": f"{local:%H:%M}", "room": one["room"]})

    await case.expect(by_invitation, lambda task: False)

    def is_summer(task):
        zone = ZoneInfo(zones[task.fields["city"]])
        return bool(datetime.fromisoformat(task.fields["meetings"][0]["utc"] + "+00:00").astimezone(zone).dst())

    return "by the invitation all are paid; by the agenda " + await case.prove(by_agenda, is_summer)


async def dungeon(case: Case) -> str:
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}
    moves = {"north": (0, -1), "south": (0, 1), "east": (1, 0), "west": (-1, 0)}

    async def policy(episode):
        # Depth first; the way to the door is remembered as a path from the start.
        exits, seen, path, door = {}, {(1, 1)}, [], None
        here, has_key = (1, 1), False
        text = await episode.call("look")
        while True:
            exits[here] = text.split(".")[0].removeprefix("Exits: ").split(", ")
            if "key" in text:
                await episode.call("take")
                has_key = True
            if "door" in text:
                door = list(path)
            if has_key and door is not None:
                break
            at = here
            new = [way for way in exits[here] if (at[0] + moves[way][0], at[1] + moves[way][1]) not in seen]
            way = new[0] if new else back[path[-1]]
            path = [*path, way] if new else path[:-1]
            text = await episode.call("go", direction=way)
            here = (here[0] + moves[way][0], here[1] + moves[way][1])
            seen.add(here)
        shared = 0
        while shared < min(len(path), len(door)) and path[shared] == door[shared]:
            shared += 1
        for way in [back[way] for way in reversed(path[shared:])] + door[shared:]:
            await episode.call("go", direction=way)
        await episode.call("unlock")

    await case.expect(policy, lambda task: False)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import environment as e\n"
        "d = e.Dungeon(); out = []\n"
        "for t in e.train_tasks()[:5]:\n"
        "    d.reset(t); out.append([(p, sorted(r.exits), r.has_key, r.has_door) for p, r in sorted(d.rooms.items())])\n"
        "print(out)"
    )
    maps = {
        seed: subprocess.run(
            [sys.executable, "-c", code, str(HERE / case.name)], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True,
            text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert maps["1"] != maps["2"]
    return f"paid on all {len(case.tasks)} tasks; the maps of five tasks differ between two processes"


async def config_search(case: Case) -> str:
    async def policy(episode):
        read = {}
        for path in await episode.call("list_files"):
            text = await episode.call("read_file", path=path)
            read[path] = dict(line.split(" = ") for line in text.splitlines())

        def seconds(path):
            if "timeout" not in read[path]:
                return seconds(read[path]["extends"])
            value = read[path]["timeout"]
            return int(value[:-1]) * {"s": 1, "m": 60}[value[-1]]

        best = max((path for path in read if path.startswith("services/")), key=seconds)
        episode.say({"service": best.removeprefix("services/").removesuffix(".conf"), "seconds": seconds(best)})

    async def cheat(episode):
        found = await episode.call("search", text='"service"')
        assert found, "the search does not show the reference answer"
        service = found[0]
        seconds = (await episode.call("search", text='"seconds"'))[0]
        assert service.startswith(".task.json:")
        episode.say(
            {"service": service.split('"')[3], "seconds": int(re.search(r"(\d+)", seconds.rpartition(":")[2])[0])}
        )

    await case.expect(policy, lambda task: False)
    await case.expect(cheat, lambda task: False)
    return (
        f"a careful policy and one that searches for the reference answer are both paid on all {len(case.tasks)} tasks"
    )


async def helpdesk(case: Case) -> str:
    async def policy(episode):
        account = (await episode.call("find_account", login=user(episode).split()[2]))["account"]
        for ticket in await episode.call("tickets", account=account):
            await episode.call("close_ticket", ticket=ticket)
        await episode.call("unlock", account=account)
        episode.say("done")

    def is_hit(task):
        login = task.fields["login"]
        like = re.compile(login.replace("_", "."))
        return min((number, other) for number, other, _ in task.fields["accounts"] if like.fullmatch(other))[1] != login

    return await case.prove(policy, is_hit)


async def ward_pharmacy(case: Case) -> str:
    micrograms = {"mcg": 1, "mg": 1000, "g": 1_000_000}

    def asked(task):
        return re.match(r"Patient (P\d+): (.+), (\d+) (\w+), (\d) times", user_of(task)).groups()

    async def policy(episode):
        patient, name, amount, unit, times = asked(episode.task)
        ward = (await episode.call("patient", number=patient))["ward"]
        limit = (await episode.call("drug", name=name, formulary=ward))["daily_limit"]
        daily = int(amount) * micrograms[unit] * int(times)
        episode.say({"daily": daily, "limit": limit, "verdict": "ok" if daily <= limit else "too much"})

    return await case.prove(policy, lambda task: case.module.PRINTED[asked(task)[1]].endswith(" g"))


async def payments(case: Case) -> str:
    def asked(episode):
        source, told = re.match(r"Pay from account (\w+): (.*), in this order", user(episode)).groups()
        return source, [(target, int(cents)) for cents, target in re.findall(r"(\d+) cents to (\w+)", told)]

    async def careful(episode):
        source, orders = asked(episode)
        for target, cents in orders:
            if (await episode.call("account", number=source))["cents"] < cents:
                continue
            record = await episode.call("account", number=target)
            await episode.call("pay", source=source, target=record.get("successor", target), cents=cents)
        episode.say("done")

    async def trying(episode):
        source, orders = asked(episode)
        for target, cents in orders:
            try:
                await episode.call("pay", source=source, target=target, cents=cents)
            except Refused as error:
                if "closed" in str(error):
                    successor = (await episode.call("account", number=target))["successor"]
                    try:
                        await episode.call("pay", source=source, target=successor, cents=cents)
                    except Refused as again:
                        assert "too little" in str(again)
        episode.say("done")

    await case.expect(careful, lambda task: False)

    def is_hit(task):
        closed = next(number for number, _, successor in task.fields["accounts"] if successor)
        left = {number: cents for number, cents, _ in task.fields["accounts"]}
        source = task.fields["accounts"][0][0]
        money = left[source]
        for target, cents in task.fields["orders"]:
            if money >= cents and target == closed:
                return True
            money -= cents if money >= cents else 0
        return False

    return "who looks first is always paid; who tries and reacts to the refusal: " + await case.prove(trying, is_hit)


async def flight_rebooking(case: Case) -> str:
    async def policy(episode):
        name, city, after = re.match(
            r"(\w+) misses flight \w+ and wants to go to (\w+) after (\d\d:\d\d)", user(episode)
        ).groups()
        flights = [
            one for one in await episode.call("flights_to", city=city) if one["departs"] > after and one["free"] > 0
        ]
        booking = (await episode.call("booking_of", passenger=name))["booking"]
        await episode.call("cancel", booking=booking)
        await episode.call("book", passenger=name, flight=min(flights, key=lambda one: one["departs"])["number"])
        episode.say("done")

    def is_hit(task):
        return task.fields["booked"][-1][0] != task.fields["passenger"]

    return await case.prove(policy, is_hit)


async def headcount(case: Case) -> str:
    def asked(episode):
        return re.match(r"Report \d+: headcount of (.*)\.", user(episode))[1].split(", ")

    def report(total, refused):
        return f"sum: {total}\nrefused: {', '.join(sorted(refused)) or 'none'}"

    async def careful(episode):
        total, refused = 0, []
        for name in asked(episode):
            if await episode.call("request_access", department=name) == "granted":
                total += await episode.call("headcount", department=name)
            else:
                refused.append(name)
        episode.say(report(total, refused))

    async def bold(episode):
        first, *others = asked(episode)
        total = 0
        if await episode.call("request_access", department=first) != "granted":
            episode.say(report(0, [first]))
        for name in (first, *others):
            total += await episode.call("headcount", department=name)
        episode.say(report(total, []))

    await case.expect(careful, lambda task: False)
    paid, _ = await case.expect(bold, lambda task: bool(set(task.fields["asked"]) & set(task.fields["refusing"])))
    assert paid >= 10
    task = next(
        task for task in case.tasks if set(task.fields["refusing"]) - {None} and len(task.fields["refusing"]) < 5
    )
    refusing = task.fields["refusing"][0]
    granting = next(name for name in task.fields["headcounts"] if name not in task.fields["refusing"])

    async def read_refused(episode):
        try:
            await episode.call("headcount", department=refusing)
            raise AssertionError("read without any access")
        except Refused:
            pass
        assert await episode.call("request_access", department=refusing) == "refused"
        await episode.call("request_access", department=granting)
        assert await episode.call("headcount", department=refusing) == task.fields["headcounts"][refusing]
        episode.say("stop")

    await case.play(task, read_refused)
    return f"careful: always paid; asking one department only is paid on {paid} of {len(case.tasks)}; a refusing department can be read"


async def order_totals(case: Case) -> str:
    async def policy(episode):
        first, last = re.findall(r" (\d{4}-\d\d-\d\d)", user(episode))
        orders = [one for one in await episode.call("orders", first_day=first, last_day=last) if not one["cancelled"]]
        total = await episode.call("add", cents=[one["cents"] for one in orders])
        episode.say({"orders": len(orders), "cents": total})

    def is_hit(task):
        return any(
            placed[:10] == task.fields["last"] and not cancelled for _, placed, _, cancelled in task.fields["orders"]
        )

    return await case.prove(policy, is_hit)


async def thermostats(case: Case) -> str:
    wishes = [
        (r"We want (?P<degrees>\d+) degrees in the (?P<room>\w+)", "comfort"),
        (r"In the (?P<room>\w+), eco will do", "eco"),
        (r"Nobody uses the (?P<room>\w+) until spring", "frost"),
    ]

    async def policy(episode):
        await episode.call("house")
        for pattern, mode in wishes:
            for match in re.finditer(pattern, user(episode)):
                try:
                    await episode.call("set_mode", room=match["room"], mode=mode)
                except Refused as error:
                    assert mode == "frost" and "must be one of" in str(error)
                if mode == "comfort":
                    await episode.call("set_degrees", room=match["room"], degrees=int(match["degrees"]))
        episode.say("done")

    return await case.prove(policy, lambda task: "until spring" in user_of(task))


async def vet_registry(case: Case) -> str:
    import unicodedata

    def plain(name):
        return "".join(letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter))

    def make(spell):
        async def policy(episode):
            owner, animal = episode.task.fields["asked"]
            assert owner in user(episode) and animal in user(episode)
            try:
                number = (await episode.call("find_owner", name=spell(owner)))["number"]
            except Refused:
                episode.say("unknown")
            one = next(one for one in await episode.call("animals", owner=number) if one["name"] == animal)
            episode.say({"chip": one["chip"], "year": one["year"]})

        return policy

    await case.expect(make(plain), lambda task: False)
    as_written = await case.prove(make(str), lambda task: plain(task.fields["asked"][0]) != task.fields["asked"][0])
    return "misspelt all are paid; as written " + as_written


async def price_list(case: Case) -> str:
    async def policy(episode):
        category, percent, first, second = re.match(
            r"Lower (\w+) by (\d+) percent\. What did (\w+) cost before, and what does (.+) cost now", user(episode)
        ).groups()
        before = (await episode.call("product", sku=first))["cents"]
        await episode.call("discount", category=category, percent=int(percent))
        after = (await episode.call("product", sku=first if second == "the same product" else second))["cents"]
        episode.say({"before": before, "after": after})

    return await case.prove(policy, lambda task: "the same product" in user_of(task))


async def meter_usage(case: Case) -> str:
    async def policy(episode):
        groups = await episode.call("usage", by=re.search(r"by (\w+)", user(episode))[1])
        episode.say({"groups": len(groups), "kwh": sum(groups.values()), "most": max(groups, key=groups.get)})

    def is_hit(task):
        return task.fields["by"] == "tariff" and any(tariff is None for _, _, tariff, _ in task.fields["meters"])

    return await case.prove(policy, is_hit)


async def lot_recall(case: Case) -> str:
    def make(most):
        async def policy(episode):
            product = re.search(r"lots of (\w+) have", user(episode))[1]
            found = await episode.call("product", name=product)
            recalled = []
            for lot in found["lots"]:
                if len(recalled) < most and max(await episode.call("temperatures", lot=lot)) > found["highest"]:
                    recalled.append(lot)
            episode.say(recalled, tag="lots")

        return policy

    await case.expect(make(99), lambda task: False)
    for task in case.tasks:
        played = await case.play(task, make(1))
        assert played.reward == 1.0 and played.score == 0.0
    return f"the whole recall is paid on all {len(case.tasks)}; one lot of it earns 1.0 on all and scores 0"


async def spare_parts(case: Case) -> str:
    async def policy(episode):
        number = user(episode).split()[-1].rstrip(".")
        while "superseded_by" in (part := await episode.call("part", number=number)):
            number = part["superseded_by"]
        episode.say({"part": number, "cents": part["cents"]})

    def is_hit(task):
        number, length = user_of(task).split()[-1].rstrip("."), 1
        while "superseded_by" in task.fields["parts"][number]:
            number, length = task.fields["parts"][number]["superseded_by"], length + 1
        return length > 7

    return await case.prove(policy, is_hit)


async def timetable(case: Case) -> str:
    async def policy(episode):
        subject, day, hour = re.search(r"has (\w+) on (\w+) in hour (\d)", user(episode)).groups()
        lesson = next(one for one in await episode.call("lessons_of", day=day) if one["hour"] == int(hour))
        assert lesson["subject"] == subject
        instead = {one["absent"]: one["instead"] for one in await episode.call("substitutions_on", day=day)}
        teacher = instead.get(lesson["teacher"], lesson["teacher"])
        episode.say({"teacher": teacher, "room": await episode.call("room_of", teacher=teacher)})

    clean = await case.prove_clean(policy)
    for trained, held_out in zip(case.train, case.held_out, strict=False):
        assert trained.messages == held_out.messages and trained.fields == held_out.fields and trained.id != held_out.id
    return f"{clean}; all {len(case.held_out)} held-out tasks equal training tasks"


# ---- clean


async def clean_till(case: Case) -> str:
    async def policy(episode):
        total = 0
        for pieces, name in re.findall(r"(\d+) x (\w+)", user(episode)):
            total += (await episode.call("ring_up", article=name, pieces=int(pieces)))["all"]
        method = re.search(r"pays by (\w+)", user(episode))[1]
        due = await episode.call("to_pay", method=method)
        assert due["sum"] == total and (abs(due["to_pay"] - total) <= 2 and due["to_pay"] % 5 == 0 or method == "card")
        episode.say(due)

    assert [case.module.rounded(cents) for cents in (100, 101, 102, 103, 104, 105)] == [100, 100, 100, 105, 105, 105]
    return await case.prove_clean(policy)


async def clean_archive(case: Case) -> str:
    async def policy(episode):
        words = re.search(r'"(.*)"', user(episode))[1].replace(",", "").split()
        words.remove("in")
        few = await episode.call("search", words=words[:1])
        assert few["all"] > len(few["shown"]) == 3
        hits = await episode.call("search", words=words)
        assert hits["all"] == 1
        one = await episode.call("article", number=hits["shown"][0]["number"])
        episode.say({"page": one["page"], "author": one["author"]})

    return await case.prove_clean(policy)


async def clean_dice(case: Case) -> str:
    async def policy(episode):
        target, pot = int(re.search(r"target is (\d+)", user(episode))[1]), 0
        while pot < target:
            pot = (await episode.call("roll"))["pot"]
        await episode.call("bank")

    async def greedy(episode):
        while True:
            await episode.call("roll")

    async def timid(episode):
        await episode.call("bank")

    clean = await case.prove_clean(policy)
    one, two = [await case.play(case.train[3], greedy) for _ in range(2)]
    assert one.episode.transitions == two.episode.transitions
    assert (await case.play(case.train[3], timid)).reward == -0.5
    lost = [await case.play(task, greedy) for task in case.tasks]
    assert {played.score for played in lost} == {0.0} and {played.reward for played in lost} == {-1.0}
    return clean + "; two episodes of a task roll the same; who never stops loses with -1"


async def clean_invoices(case: Case) -> str:
    async def policy(episode):
        for article, invoice in re.findall(r"the (\w+) of (RE-\d+)", user(episode)):
            lines = await episode.call("lines", document=invoice)
            noted = [
                line["article"]
                for note in await episode.call("credit_notes", invoice=invoice)
                for line in await episode.call("lines", document=note)
            ]
            if article not in noted:
                number = next(line["line"] for line in lines if line["article"] == article)
                await episode.call("credit", invoice=invoice, line=number)
        episode.say("done")

    for task in case.tasks:
        names = [f"{one['series']}-{one['number']}" for one in task.fields["documents"]]
        assert len(set(names)) == len(names)
    return await case.prove_clean(policy)


async def clean_notebook(case: Case) -> str:
    async def policy(episode):
        entries = await episode.call("entries")
        text = user(episode)
        if (match := re.match(r"The reading of (S\d+) is wrong: (\d+) is right", text)) is not None:
            number = next(one["number"] for one in entries if one.get("sample") == match[1])
            await episode.call("correct", entry=number, reading=int(match[2]))
        else:
            match = re.match(r"We have measured (S\d+), too: (\d+)", text)
            await episode.call("note", sample=match[1], reading=int(match[2]))
        assert (await episode.call("entries"))[:-1] == entries
        episode.say("done")

    return await case.prove_clean(policy)


async def clean_directory(case: Case) -> str:
    async def policy(episode):
        team, name = re.search(r"in the team (\w+), and what is the extension of ([\w ]+)\?", user(episode)).groups()
        people, page = [], 0
        while page is not None:
            shown = await episode.call("page", number=page)
            people += shown["people"]
            page = shown["next"]
        assert len(people) == len(set(people)) == len(episode.task.fields["people"])
        await episode.call("extension", name=name)
        episode.say(
            {"people": sum(one.endswith(f", {team}") for one in people), "extension": episode.messages[-1]["content"]}
        )

    assert any(task.fields["answer"]["extension"].startswith("0") for task in case.tasks)
    return await case.prove_clean(policy)


async def main(names: list[str]) -> int:
    failed = 0
    folders = sorted(path.parent.name for path in HERE.glob("*/recipe.toml"))
    assert set(folders) <= set(globals()), set(folders) - set(globals())
    for name in names or folders:
        try:
            case = Case(name)
            about = tomllib.loads(
                (HERE / name / ("clean.toml" if name.startswith("clean_") else "defect.toml")).read_text()
            )
            assert about["title"] and about["why"]
            await general(case)
            told = await globals()[name](case)
            longest = case.longest + len(json.dumps(case.environment_class.tool_schemas()))
            assert longest < 10_000, longest
            print(f"ok    {name}: {told} [at most {longest} characters with the tools]")
        except Exception as error:  # noqa: BLE001
            failed += 1
            import traceback

            print(f"FAIL  {name}: {type(error).__name__}: {str(error)[:1500]}")
            print("      " + traceback.format_exc().strip().splitlines()[-4].strip())
    print(f"{len(names or folders) - failed} of {len(names or folders)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
