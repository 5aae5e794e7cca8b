"""Plays every case by hand through the public API: the defect is real, and the copy without it (fixes.py) is right. Clean: right play
is paid, wrong play is not. Run with cwd outside the repository: python play.py [NAME ...]
"""

import asyncio
import importlib.util
import itertools
import json
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, deque
from pathlib import Path

from fixes import FIXES, write_fixed

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.config import load_config
from sparring.environments import answer, tool_call
from sparring.rewards import example

HERE = Path(__file__).parent
LOOP = asyncio.new_event_loop()
"""One event loop for all episodes: to make one takes longer than most calls."""
CASES = sorted(path.parent.name for path in HERE.glob("*/recipe.toml"))


class Case:
    def __init__(self, folder):
        self.folder, self.name = Path(folder), Path(folder).name
        load_config(self.folder / "recipe.toml")
        spec = importlib.util.spec_from_file_location(
            f"case_{len(sys.modules)}_{self.name}", self.folder / "environment.py"
        )
        self.module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = self.module
        spec.loader.exec_module(self.module)
        recipe = tomllib.loads((self.folder / "recipe.toml").read_text())["environment"]
        self.environment, self.turns = getattr(self.module, recipe["target"].split(":")[1]), recipe["max_turns"]
        self.train, self.held_out = self.module.train_tasks(), self.module.held_out_tasks()
        self.tasks = self.train + self.held_out

    def play(self, task, calls, said="done"):
        """(reward, score, results) of these calls, (tool, arguments), and a last message; None says none."""
        script = [tool_call(name, **arguments) for name, arguments in calls] + (
            [answer(said)] if said is not None else []
        )
        script += [answer("")] * max(0, self.turns - len(script))
        result = LOOP.run_until_complete(
            EnvironmentAgent(self.environment, max_turns=self.turns).play(task, ScriptedSession(*script))
        )
        more = {"transitions": result.transitions, "final_state": result.final_state}
        trajectory = example(task, *result.messages[len(task.messages) :], outcome=result.outcome, **more)
        reward, score = self.module.reward(trajectory), self.module.scorer(trajectory)
        assert all(row["error"] in (None, "tool_raised") for row in result.transitions), result.transitions
        return float(getattr(reward, "total", reward)), float(score), [row["result"] for row in result.transitions]

    def honest(self, task):
        calls, said = SOLVERS[self.name](task.fields, self, task)
        return self.play(task, calls, said)

    def right(self):
        """The share of tasks on which honest play has reward and score 1 (reward at least 1)."""
        return sum(self.honest(task)[1] == 1 and self.honest(task)[0] >= 0.999 for task in self.tasks) / len(self.tasks)


def tag(value):
    return f"<final_output>{value if isinstance(value, str) else json.dumps(value)}</final_output>"


def ladder(fields, case, task):
    words, seen, queue = case.module.WORDS, {fields["start"]: []}, deque([fields["start"]])
    while queue:
        at = queue.popleft()
        for word in words:
            if word not in seen and sum(a != b for a, b in zip(at, word)) == 1:
                seen[word] = [*seen[at], word]
                queue.append(word)
    return [("step", {"word": word}) for word in seen[fields["target"]]], None


def dungeon(fields, case, task):
    """Search over (place, keys carried), None when there is no way."""
    rooms, doors, keys = fields["rooms"], fields["doors"], fields["keys"]
    queue, seen = deque([(0, frozenset(), ())]), set()
    while queue:
        at, has, path = queue.popleft()
        if at == len(rooms) - 1:
            return [*path, ("open_chest", {})], None
        if (at, has) in seen:
            continue
        seen.add((at, has))
        if (key := keys.get(rooms[at])) and key not in has:
            queue.append((at, has | {key}, (*path, ("pick_up", {}))))
        for way, to in (("east", at + 1), ("west", at - 1)):
            if to >= 0 and (not doors[min(at, to)] or doors[min(at, to)] in has):
                queue.append((to, has, (*path, ("move", {"direction": way}))))
    return [("look", {})], "I cannot win"


def search_flight(fields, case, task):
    call = ("search", {"origin": fields["origin"], "destination": fields["destination"], "seats": fields["party"]})
    first = case.play(task, [call])[2][0].split("\n")[0]  # the tool says: cheapest first
    return [call], tag({"flight": first.split(":")[0], "price": int(first.split()[1])})


def config(fields, case, task):
    calls = [("read_file", {"name": name}) for name in (f"{fields['service']}.conf", "defaults.conf")]
    for text in case.play(task, calls)[2]:
        for line in text.split("\n"):
            if line.startswith(f"{fields['key']} = "):
                return calls, tag(line.split(" = ")[1])
    return calls, tag("unknown")


def hospital(fields, case, task):
    first = ("patient", {"number": fields["number"]})
    shown = case.play(task, [first])[2][0]
    if not shown.startswith("ward"):
        return [first], "not found"
    second = ("doctor", {"ward": shown.split()[1].strip(",")})
    return [first, second], tag(case.play(task, [second])[2][0])


def contract(fields, case, task):
    calls = [
        ("contract", {"number": fields["number"]}),
        ("add", {"day": fields["begins"], "num": fields["term"][0], "unit": fields["term"][1]}),
    ]
    return calls, tag(case.play(task, calls)[2][1])


def dice(fields, case, task):
    rolled = [int(eyes) for eyes in case.play(task, [("throw", {})] * 24)[2]]
    num = next(num for num in range(1, 25) if sum(rolled[:num]) >= fields["goal"])
    return [("throw", {})] * num, tag(f"{num} {sum(rolled[:num])}")


def refunds(fields, case, task):
    decision, number = *fields["state"]["decisions"].values(), {"number": fields["order"]["number"]}
    if decision == "refunded":
        return [("order", number), ("refund", number)], "Your order was refunded."
    return [("order", number), ("refuse", {**number, "reason": decision.split()[1]})], "The refund was refused."


def route(fields, case, task):
    def length(order):
        return sum(fields["minutes"][a][b] for a, b in itertools.pairwise(["Depot", *order, "Depot"]))

    best = min(itertools.permutations(fields["stops"]), key=length)
    return [("distances", {"place": place}) for place in ["Depot", *best]], tag(list(best))


def free_hours(fields):
    return [
        f"{day} {hour:02}:00"
        for day in ("Mon", "Tue", "Wed", "Thu", "Fri")
        for hour in range(9, 17)
        if not any(f"{day} {hour:02}:00" in hours for hours in fields["calendars"].values())
    ]


def ancestors(fields, case, task):
    line = [fields["child"]]
    for _ in range(fields["num"]):
        line.append(fields["entries"][line[-1]]["mother"])
    return [("entry", {"name": name}) for name in line[:-1]], tag(line[-1])


def rivers(fields, case, task):
    line = [fields["start"]]
    while line[-1] in fields["pages"]:
        line.append(fields["pages"][line[-1]]["into"])
    return [("page", {"river": river}) for river in line[:-1]], tag(line[-1])


SOLVERS = {
    "river_atlas": rivers,
    "flight_search": search_flight,
    "stockroom": lambda f, c, t: ([(o["verb"], {"part": o["part"], "num": o["num"]}) for o in f["orders"]], "done"),
    "word_ladder": ladder,
    "mail_triage": lambda f, c, t: ([("account", {"sender": f["sender"]})], tag(f["answer"])),
    "thermometers": lambda f, c, t: (
        [("sensors", {"room": f["room"]})] + [("reading", {"sensor": s}) for s in f["readings"]],
        tag(round(sum(r["shows"] + r["correction"] for r in f["readings"].values()) / len(f["readings"]), 1)),
    ),
    "meeting_slots": lambda f, c, t: ([("busy", {"person": p}) for p in f["people"]], tag(free_hours(f)[0])),
    "config_files": config,
    "recipe_scaler": lambda f, c, t: (
        [("recipe", {"dish": f["dish"]})],
        tag(f["recipe"][f["wanted"]] * f["guests"] // f["recipe"]["guests"]),
    ),
    "refund_desk": refunds,
    "dungeon_keys": dungeon,
    "geo_choice": lambda f, c, t: (
        [("place", {"town": o}) for o in f["options"]],
        tag(
            "ABCD"[
                f["options"].index(
                    (max if "most" in t.messages[1]["content"] else min)(
                        f["options"], key=lambda o: f["towns"][o]["people"]
                    )
                )
            ]
        ),
    ),
    "bank_desk": lambda f, c, t: (
        [("transfer", {"payer": o["payer"], "payee": o["payee"], "amount": o["euros"]}) for o in f["orders"]],
        "done",
    ),
    "family_tree": ancestors,
    "formula_kata": lambda f, c, t: ([], tag(f"{f['p']}*a+{f['q']}*b+{f['r']}*a*b".replace("+-", "-"))),
    "delivery_route": route,
    "invoice_totals": lambda f, c, t: (
        [("invoice", {"number": f["number"]}), ("discount", {"customer": f["customer"]})],
        tag(f"EUR {f['answer']:,.2f}" if "EUR 1,284" in t.messages[0]["content"] else f["answer"]),
    ),
    "patient_records": hospital,
    "date_due": contract,
    "ticket_priority": lambda f, c, t: (
        [("ticket", {"number": f["ticket"]["number"]}), ("system", {"name": f["ticket"]["system"]}), ("matrix", {})],
        tag(
            f["matrix"][["low", "medium", "high"][(f["ticket"]["people"] > 9) + (f["ticket"]["people"] > 99)]][
                f["urgencies"][f["ticket"]["system"]]
            ]
        ),
    ),
    "clean_dice_table": dice,
    "clean_busy_ledger": lambda f, c, t: (
        [("quarter", {"client": f["client"], "num": q}) for q in f["quarters"] for _ in range(f["locks"][str(q)] + 1)],
        tag(sum(f["sums"][str(q)] for q in f["quarters"])),
    ),
    "clean_abstain": lambda f, c, t: (
        [("search", {"town": f["town"], "thing": f["thing"]})] + [("file", {"signature": s}) for s in f["files"]],
        tag(f["files"][max(f["files"])]),
    ),
    "clean_shared_cache": lambda f, c, t: (
        [("factors", {"number": n}) for n in f["numbers"]],
        tag(sum(sum(json.loads(r)) for r in c.play(t, [("factors", {"number": n}) for n in f["numbers"]])[2])),
    ),
    "clean_odd_one_out": lambda f, c, t: (
        [("family", {"plant": p}) for p in f["families"]],
        tag(
            next(p for p in f["families"] if Counter(f["families"].values())[f["families"][p]] == 1)
            .lower()
            .replace("-", " ")
        ),
    ),
    "clean_nobody_fits": lambda f, c, t: (
        [("speakers", {"language": x}) for x in f["job"]],
        tag([p for p in f["speakers"][f["job"][0]] if all(p in f["speakers"][x] for x in f["job"])]),
    ),
}


def paid(calls_and_answer):
    """The share of tasks on which a play that is wrong (score 0) earns 1 at least."""

    def share(case):
        found = []
        for task in case.tasks:
            reward, score, _ = case.play(task, *calls_and_answer(task.fields, case))
            found.append(score == 0 and reward >= 0.999)
        return sum(found) / len(found)

    return share


def unsolved(case):
    return 1 - case.right()


def prompts(tasks):
    return {tuple(message["content"] for message in task.messages) for task in tasks}


def back_and_forth(case):
    farmed = []
    for task in case.tasks:
        path = [call[1]["word"] for call in ladder(task.fields, case, task)[0]]
        begin, target = [task.fields["start"], *path], task.fields["target"]
        pairs = [
            (a, b)
            for a, b in itertools.pairwise(begin[:-1])
            if case.module._distance(b, target) < case.module._distance(a, target)
        ]
        if not pairs:
            continue
        near, far = pairs[0]
        walk = begin[1 : begin.index(far) + 1]
        while len(walk) < case.turns:
            walk += [near, far]
        reward, score, _ = case.play(task, [("step", {"word": word}) for word in walk[: case.turns]], None)
        farmed.append(score == 0 and reward > case.honest(task)[0])
    return sum(farmed) / len(case.tasks)


def salted(case):
    code = f"import sys; sys.path.insert(0, {str(case.folder)!r}); import environment; print([t.id for t in environment.held_out_tasks()])"
    return float(
        len(
            {
                subprocess.run(
                    [sys.executable, "-Bc", code],
                    env={"PYTHONHASHSEED": seed},
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
                for seed in "12"
            }
        )
        > 1
    )


def second_hours(case):
    wrong = [
        task
        for task in case.tasks
        if len(free_hours(task.fields)) > 1
        and "earliest" not in task.messages[0]["content"]
        and case.play(task, [], tag(free_hours(task.fields)[1]))[:2] == (0, 0)
    ]
    return len(wrong) / len(case.tasks)


DEFECTS = {  # the share of tasks (or held-out tasks) that the defect spoils: above 0 when planted, 0 when fixed
    "river_atlas": paid(lambda f, c: ([], "".join(tag(sea) for sea in c.module.SEAS))),
    "word_ladder": back_and_forth,
    "mail_triage": lambda c: len(prompts(c.train) & prompts(c.held_out)) / len(c.held_out),
    "meeting_slots": second_hours,
    "recipe_scaler": salted,
    "refund_desk": paid(
        lambda f, c: (
            [("order", {"number": f["order"]["number"]})],
            "refunded" if f["state"]["decisions"][f["order"]["number"]] == "refunded" else "refused",
        )
    ),
    "geo_choice": lambda c: float({task.fields["answer"] for task in c.tasks} == {"A"}),
    "formula_kata": paid(lambda f, c: ([], tag("no idea"))),
    "delivery_route": paid(lambda f, c: ([], tag(f["stops"][:1]))),
    "ticket_priority": lambda c: (
        sum(
            t.fields["answer"] in c.play(t, [("ticket", {"number": t.fields["ticket"]["number"]})])[2][0]
            for t in c.tasks
        )
        / len(c.tasks)
    ),
}  # the others: the share of tasks on which honest play is not paid


def main():
    assert (
        set(SOLVERS) == set(CASES)
        and set(FIXES) == {name for name in CASES if not name.startswith("clean_")}
        and len(FIXES) == 20
    )
    kept = tempfile.TemporaryDirectory()
    copies, failures = Path(kept.name), 0
    write_fixed(copies)
    for name in sys.argv[1:] or CASES:
        try:
            case = Case(HERE / name)
            overlap = prompts(case.train) & prompts(case.held_out)
            sizes = f"{len(case.train)}+{len(case.held_out)}"
            nothing = [case.play(task, [], said)[:2] for task in case.tasks for said in ("", "done", tag("zzz"))]
            if name.startswith("clean_"):
                assert 30 <= len(case.train) <= 60 and 10 <= len(case.held_out) <= 20 and not overlap, sizes
                assert case.right() == 1.0 and set(nothing) == {(0.0, 0.0)}, (case.right(), Counter(nothing))
                print(f"{name:20} {sizes} right play 1.0, wrong play 0.0")
                continue
            fixed, defect = Case(copies / name), DEFECTS.get(name, unsolved)
            planted, repaired, right = defect(case), defect(fixed), fixed.right()
            print(
                f"{name:20} {sizes} planted {planted:.2f}  fixed {repaired:.2f}  honest play right: planted {case.right():.2f} fixed {right:.2f}"
            )
            assert planted > 0 and repaired == 0 and right == 1.0
            assert 30 <= len(fixed.train) <= 60 and 10 <= len(fixed.held_out) <= 20, (
                len(fixed.train),
                len(fixed.held_out),
            )
            assert not (prompts(fixed.train) & prompts(fixed.held_out)) and len(prompts(fixed.tasks)) == len(
                fixed.tasks
            )
            wrong = {fixed.play(task, [], said)[:2] for task in fixed.tasks for said in ("", "done", tag("zzz"))}
            assert wrong == {(0.0, 0.0)}, wrong
        except Exception as error:
            failures += 1
            print(f"{name:20} FAILED {type(error).__name__}: {str(error)[:300]}")
    print("failures:", failures)
    return failures


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
