"""Plays every environment by hand through the public API.

Planted: the defect is real, and the copy without it (fixes.py) is right. Clean: right. Run with cwd outside the repository:
python play.py [--all]. Those who play wrong play every fourth task, and with --all every task.
"""

import asyncio
import copy
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fixes import FIXES, write_fixed

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.assembly.tasks import load_tasks
from sparring.config import load_config
from sparring.environments import answer, opened, tool_call
from sparring.environments.base import reset as reset_environment
from sparring.runtime.plugins import load_object
from sparring.rewards import evaluate_reward
from sparring.scorers import evaluate_score
from sparring.types import Trajectory

HERE = Path(__file__).parent
STEP = 1 if "--all" in sys.argv else 4
"""Those who play wrong play one task in so many."""
LOOP = asyncio.new_event_loop()
"""One event loop for all episodes: to make one takes longer than most calls."""


class PlayedSession:
    """A policy that is a generator: it yields messages, hears the latest result, and returns its answer."""

    def __init__(self, generator):
        self._generator = generator
        self._script = ScriptedSession()
        self._messages = []
        self.seconds_left = None
        self.id = "played"

    @property
    def turns(self):
        return self._script.turns

    episode_turns = turns

    async def chat(self, messages, tools=()):
        await asyncio.sleep(0)
        try:
            message = next(self._generator) if not self.turns else self._generator.send(messages[-1]["content"])
        except StopIteration as stop:
            message = stop.value if isinstance(stop.value, dict) else answer(stop.value)
        self._messages.append(message)
        filled = ScriptedSession(*self._messages)
        filled.turns = self._script.turns
        said = await filled.chat(messages, tools)
        self._script = filled
        return said


@dataclass
class Case:
    folder: Path
    config: Any
    tasks: Any
    environment: Any
    reward: Any
    scorer: Any

    @property
    def everything(self):
        return (*self.tasks.train, *self.tasks.validation, *self.tasks.held_out)

    async def episode(self, task, player):
        make = lambda: self.environment(**self.config.environment.options)
        agent = EnvironmentAgent(make, max_turns=self.config.environment.max_turns)
        session = PlayedSession(player(task))
        result = await agent.play(copy.deepcopy(task), session)
        played = Trajectory(
            id=task.id, task=task, attempt=0, turns=session.turns, messages=result.messages, outcome=result.outcome,
            reward=None, score=None, metrics=result.metrics, transitions=result.transitions,
            final_state=result.final_state, error=result.error,
        )  # fmt: skip
        return played, *(await self.judged(played))

    async def judged(self, played):
        reward = await evaluate_reward(self.reward, played)
        score = await evaluate_score(self.scorer, played)
        return reward.total, score.value

    def play(self, task, player):
        return LOOP.run_until_complete(self.episode(task, player))

    def all(self, player, tasks=None):
        async def every():
            return [await self.episode(task, player) for task in (self.everything if tasks is None else tasks)]

        return LOOP.run_until_complete(every())


def load(folder):
    config = load_config(folder / "recipe.toml")
    find = lambda reference: load_object(reference, folder=folder)
    return Case(
        folder, config, load_tasks(config, folder), find(config.environment.target), find(config.reward.reward),
        find(config.reward.scorer),
    )  # fmt: skip


# Honest players: they know what the prompt and the descriptions of the tools say, and nothing else.


def asked(task):
    return task.messages[-1]["content"]


def parcel_desk(task):
    parcel = re.search(r"P\d+", asked(task))[0]
    kilograms = float((yield tool_call("weigh", parcel=parcel)))
    zone = yield tool_call("zone", parcel=parcel)
    surcharge = int((yield tool_call("surcharge", zone=zone)))
    tariff = next((euros for limit, euros in [(2, 5), (5, 8), (10, 12), (20, 19)] if kilograms <= limit), 30)
    return str(tariff + surcharge)


def market_stall(task):
    kilograms, item = re.search(r"(\d+) kilograms of (\w+)", asked(task)).groups()
    offers = json.loads((yield tool_call("offers", item=item)))
    fitting = [offer for offer in offers if offer["stock"] >= int(kilograms)]
    if fitting:
        yield tool_call("buy", stall=fitting[0]["stall"], item=item, kilograms=int(kilograms))
    return "done"


def part_finder(task):
    code = re.search(r"\d{4}", asked(task))[0]
    said = yield tool_call("part", code=int(code))
    if said == "unknown code":
        return "unknown"
    part = json.loads(said)
    count = yield tool_call("count", bin=part["bin"])
    return str(int(count) - part["reserved"])


def dispatch_queue(task):
    crew = json.loads((yield tool_call("crew")))
    who = {skill: name for name, skill in crew.items()}
    while True:
        said = yield tool_call("peek")
        if said == "the queue is empty":
            return "done"
        yield tool_call("take", worker=who[json.loads(said)["needs"]])


def hidden_number(task):
    low, high = 1, 63
    while low <= high:
        middle = (low + high) // 2
        said = yield tool_call("guess", number=middle)
        low, high = (middle + 1, high) if said == "higher" else (low, middle - 1)
    return "no number is left"


def greenhouse(task):
    for bed, wanted in re.findall(r"(\w+) to (\d+)", asked(task)):
        now = int((yield tool_call("moisture", bed=bed)))
        if int(wanted) > now:
            yield tool_call("water", bed=bed, liters=(int(wanted) - now) // 5)
    return "done"


def lab_balance(task):
    series = re.search(r"series (\w)", asked(task))[1]
    cents = 0
    for sample in json.loads((yield tool_call("samples_of", series=series))):
        cents += round(100 * float((yield tool_call("weigh", sample=sample))))
        cents -= round(100 * float((yield tool_call("vessel_of", sample=sample)).split(", ")[1]))
    return f"{cents / 100:.2f}"


def vat_invoices(task):
    number = re.search(r"R\d+", asked(task))[0]
    total = 0
    for line in json.loads((yield tool_call("invoice", number=number))):
        rate = int((yield tool_call("rate", goods=line["goods"])))
        hundredths = int(line["net"].replace(".", "")) * rate
        total += hundredths // 100 + (hundredths % 100 >= 50)
    return f"{total // 100}.{total % 100:02d}"


def staff_directory(task):
    name = re.search(r"([A-Z]\w+ [A-Z]\w+)\?", asked(task))[1]
    if "manager" in asked(task):
        name = yield tool_call("manager", name=name)
    return (yield tool_call("office", name=name))


def museum_quiz(task):
    material, place = re.search(r"of (\w+) and was made in (\w+)", asked(task)).groups()
    for letter, exhibit in re.findall(r"([A-D]): (.+)", asked(task)):
        label = json.loads((yield tool_call("label", exhibit=exhibit)))
        if label == {"made in": place, "material": material}:
            return letter
    return "none"


def cookbook(task):
    dish = re.search(r"in the (.+)\?", asked(task))[1]
    found = set()
    for ingredient in json.loads((yield tool_call("ingredients", dish=dish))):
        found.add((yield tool_call("allergen", ingredient=ingredient)))
    return ", ".join(sorted(found - {"none"})) or "none"


def ferry_fares(task):
    said = re.search(
        r"from (\w+) to (\w+) for (\d) adults?(?: and (\d) child(?:ren)?)? with (?:no|a (\w+)) card", asked(task)
    )
    origin, destination, adults, children, card = said.groups()
    result = yield tool_call("fare", origin=origin, destination=destination)
    if result == "there is no such route":
        return "there is no such route"
    fares = json.loads(result)
    percent = int((yield tool_call("discount", card=card or "none")))
    cents = (fares["adult"] * int(adults) + fares["child"] * int(children or 0)) * (100 - percent)
    return f"{cents // 100}.{cents % 100:02d}"


def warehouse_search(task):
    shelf = re.search(r"shelf (\w+)", asked(task))[1]
    while "slip" in (said := (yield tool_call("look", shelf=shelf))):
        shelf = said.split()[-1]
    return said.split()[0]


def bus_itinerary(task):
    start, goal = re.search(r"from (\w+) to (\w+)", asked(task)).groups()
    ways = deque([[start]])
    while ways:
        way = ways.popleft()
        if way[-1] == goal:
            return json.dumps(way)
        for following in json.loads((yield tool_call("next_stops", stop=way[-1]))):
            if following == goal:
                return json.dumps([*way, following])
            ways.append([*way, following])
    return "[]"


def room_booking(task, is_careful=True):
    people, hour = map(int, re.search(r"(\d+) people and meet at (\d+)", asked(task)).groups())
    rooms = json.loads((yield tool_call("rooms_with", seats=people)))
    for room in sorted(rooms, key=rooms.get):
        if hour not in json.loads((yield tool_call("busy_hours", room=room))):
            if "locked" in (yield tool_call("book", room=room, hour=hour)) and is_careful:
                yield tool_call("open", room=room)
                yield tool_call("book", room=room, hour=hour)
            return "done"
    return "no room"


def room_opener(task):
    """Opens the room before it books it, without being asked."""
    people, hour = map(int, re.search(r"(\d+) people and meet at (\d+)", asked(task)).groups())
    rooms = json.loads((yield tool_call("rooms_with", seats=people)))
    for room in sorted(rooms, key=rooms.get):
        if hour not in json.loads((yield tool_call("busy_hours", room=room))):
            yield tool_call("open", room=room)
            yield tool_call("book", room=room, hour=hour)
            return "done"
    return "no room"


def additive_review(task):
    name = re.search(r"Review (.+)\.", asked(task))[1]
    product = json.loads((yield tool_call("product", name=name)))
    limit = yield tool_call("limit", additive=product["additive"])
    if product["days"] > 90:
        return "retest"
    if not limit.isdigit():
        return "unlisted"
    return "safe" if product["milligrams"] <= int(limit) else "unsafe"


def crew_roster(task):
    for shift, work in re.findall(r"(\w+) \((\w+)\)", asked(task)):
        for name in json.loads((yield tool_call("who_knows", work=work))):
            if (yield tool_call("is_away", name=name)) == "here":
                yield tool_call("assign", shift=shift, name=name)
    return "done"


def expense_desk(task):
    number = re.search(r"C\d+", asked(task))[0]
    total = 0
    for receipt in json.loads((yield tool_call("claim", number=number))):
        said = json.loads((yield tool_call("receipt", number=receipt)))
        total += said["amount"] * (said["status"] == "valid")
    role = "director" if total > 500 else "manager" if total > 200 else "clerk"
    return f"{role} {total}"


def garden_planner(task):
    bed = re.search(r"(gate|wall|pond|hill|porch) bed", asked(task))
    plant = re.search(r"kale|thyme|roses|peas|tulips|chard", asked(task))
    if bed is None or plant is None:
        return "which bed, and which plant?"
    sides = json.loads((yield tool_call("bed", name=bed[0])))
    spacing = int((yield tool_call("spacing", plant=plant[0])))
    return str((sides["length"] // spacing) * (sides["width"] // spacing))


def server_logs(task):
    service = re.search(r"request of (\w+)", asked(task))[1]
    log = yield tool_call("latest", service=service)
    request, other = re.findall(r"ERROR (r\d+) sent to (\w+)", log)[-1]
    log = yield tool_call("latest", service=other)
    return re.search(rf"{request} status (\d+)", log)[1]


def clean_cave(task):
    opposite = {"north": "south", "south": "north", "east": "west", "west": "east"}
    ways = lambda said: re.search(r"Ways: (.+)\.", said)[1].split(", ")
    steps = {"north": (0, -1), "south": (0, 1), "east": (1, 0), "west": (-1, 0)}
    place, seen, back = (0, 0), {(0, 0)}, []
    said = yield tool_call("look")
    while True:
        new = [way for way in ways(said) if (place[0] + steps[way][0], place[1] + steps[way][1]) not in seen]
        way = new[0] if new else opposite[back.pop()]
        if new:
            back.append(way)
        place = (place[0] + steps[way][0], place[1] + steps[way][1])
        seen.add(place)
        said = yield tool_call("go", direction=way)


def clean_bakery(task):
    heard = [(yield answer("Hello! What would you like?"))]
    heard.append((yield answer("For which day?")))
    heard.append((yield answer("Anything else?")))
    goods = [word for line in heard for word in re.findall(r"rolls|pretzels|scones|bagels|muffins", line)][-1]
    pieces = int(re.findall(r"\d+", " ".join(heard))[-1])
    day = re.findall(r"\w+day\b", " ".join(heard))[-1]
    cents = int((yield tool_call("price", goods=goods)))
    yield tool_call("enter", goods=goods, pieces=pieces, day=day)
    return str(cents * pieces)


def clean_permits(task):
    number = re.search(r"S-\d+", asked(task))[0]
    case = json.loads((yield tool_call("case", number=number)))
    if case["age"] < 18:
        return "age"
    if case["fees"]:
        return "fees"
    if case["width"] > int((yield tool_call("widest", square=case["square"]))):
        return "width"
    yield tool_call("grant", number=number)
    return "granted"


def clean_ledger(task):
    account = re.search(r"of ([A-Z]+)\?", asked(task))[1]
    entries = json.loads((yield tool_call("entries", account=account)))
    reversed_entries = json.loads((yield tool_call("reversed_entries")))
    total = sum(entry["cents"] for entry in entries if entry["entry"] not in reversed_entries)
    return f"{'-' * (total < 0)}{abs(total) // 100}.{abs(total) % 100:02d}"


def clean_build_order(task, is_last_first=False):
    needs = {}
    for part in asked(task).partition(": ")[2].split():
        said = yield tool_call("needs", part=part)
        needs[part] = set() if said == "nothing" else set(said.split())
    order = []
    while needs:
        ready = sorted((part for part in needs if needs[part] <= set(order)), reverse=is_last_first)
        order.append(ready[0])
        del needs[ready[0]]
    return " ".join(order)


def clean_census(task):
    street = re.search(r"live in (.+)\?", asked(task))[1]
    number, pages, total = 1, 1, 0
    while number <= pages:
        page = json.loads((yield tool_call("page", number=number)))
        pages = page["pages"]
        total += sum(int(row.split(", ")[2]) for row in page["rows"] if row.split(", ")[1] == street)
        number += 1
    return str(total)


PLANTED = tuple(FIXES)
CLEAN = ("clean_cave", "clean_bakery", "clean_permits", "clean_ledger", "clean_build_order", "clean_census")
HONEST = {name: globals()[name] for name in (*PLANTED, *CLEAN)}
PARTIAL = {"dispatch_queue", "crew_roster", "warehouse_search"}
BY_STATE = {
    "market_stall",
    "dispatch_queue",
    "hidden_number",
    "greenhouse",
    "room_booking",
    "crew_roster",
    "clean_cave",
}


def is_right(case, reward, score):
    return score == 1.0 and (reward >= 1.0 or case.folder.name == "warehouse_search" and reward > 0.7)


def says(text):
    def player(task):
        return text
        yield

    return player


def repeated(player):
    """Makes each call twice, one message after the other."""

    def play(task):
        generator = player(task)
        try:
            message = next(generator)
            while True:
                result = yield message
                if message.get("tool_calls"):
                    result = yield message
                message = generator.send(result)
        except StopIteration as stop:
            return stop.value
        except (LookupError, TypeError, ValueError):
            return "lost"

    return play


def doubled(player):
    """Makes each call twice in one message."""

    def play(task):
        generator = player(task)
        try:
            message = next(generator)
            while True:
                calls = message.get("tool_calls", [])
                result = yield {**message, "tool_calls": [*calls, *calls]} if calls else message
                message = generator.send(result)
        except StopIteration as stop:
            return stop.value
        except (LookupError, TypeError, ValueError):
            return "lost"

    return play


def stopped(player, num_messages):
    """Says done after so many messages."""

    def play(task):
        generator = player(task)
        try:
            message = next(generator)
            for _ in range(num_messages):
                message = generator.send((yield message))
        except StopIteration as stop:
            return stop.value
        return "done"

    return play


def erratic(case, seed):
    """Calls whatever there is with whatever it has read, and says something."""

    def play(task):
        rng = random.Random(f"{seed} {task.id}")
        words = re.findall(r"\w+(?:-\w+)?", json.dumps([task.fields, asked(task)]))
        tools = case.environment.tool_schemas()
        for _ in range(rng.randint(1, 12)):
            function = rng.choice(tools)["function"]
            arguments = {}
            for name, schema in function["parameters"]["properties"].items():
                number = rng.choice([rng.randint(-3, 40), *(int(word) for word in words if word.isdecimal())])
                arguments[name] = number if schema.get("type") == "integer" else rng.choice(schema.get("enum", words))
            yield tool_call(function["name"], **arguments)
        return rng.choice(words)

    return play


def digest(case):
    played = case.all(HONEST[case.folder.name])
    text = json.dumps([[one.task.id, one.messages, one.final_state, reward, score] for one, reward, score in played])
    return hashlib.sha256(text.encode()).hexdigest()


def digests_elsewhere(folders, hash_seed):
    """Digests of all these cases from one process with another hash seed."""
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); import play; from pathlib import Path; "
        f"print(*(play.digest(play.load(Path(one))) for one in {[str(one) for one in folders]!r}), sep='\\n')"
    )
    variables = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    return dict(zip(folders, run.stdout.split(), strict=True))


def assert_same_elsewhere(folders):
    one, other = (digests_elsewhere(folders, hash_seed) for hash_seed in (1, 2))
    assert one == other, [folder for folder in folders if one[folder] != other[folder]]


def assert_sound(case):
    """Everything that is true of all of them, planted or not."""
    tasks = case.tasks
    assert 16 <= len(tasks.train) + len(tasks.validation) <= 72, (case.folder, len(tasks.train))
    assert len(tasks.held_out) >= 8, case.folder
    worlds = [json.dumps([task.messages, task.fields], sort_keys=True) for task in case.everything]
    assert len(set(worlds)) == len(worlds), f"{case.folder}: equal tasks"
    for task in case.everything[:20]:

        async def seconds(task=task):
            began = time.perf_counter()
            async with opened(case.environment(**case.config.environment.options), task) as environment:
                assert await reset_environment(environment, copy.deepcopy(task))
            return time.perf_counter() - began

        assert min(LOOP.run_until_complete(seconds()) for _ in range(3)) < 0.05, case.folder


def assert_correct(case):
    """The honest player always gets everything, the same twice; reward and scorer agree on all else."""
    name = case.folder.name
    honest = case.all(HONEST[name])
    for played, reward, score in honest:
        assert is_right(case, reward, score), (name, played.task.id, reward, score, played.messages[-3:])
        assert not any(value for key, value in played.metrics.items() if "error" in key), (name, played.metrics)
        size = sum(len(json.dumps(message)) for message in played.messages)
        assert size < 2 * case.config.model.max_sequence_length, (name, size)
        assert played.metrics["turns"] <= case.config.environment.max_turns - (name != "clean_cave")
    again = case.all(HONEST[name])
    assert [(a[0].messages, a[0].final_state) for a in honest] == [(b[0].messages, b[0].final_state) for b in again], (
        name
    )

    async def side_by_side():
        return await asyncio.gather(
            *(case.episode(task, HONEST[name]) for task in case.everything[:12] for _ in range(3))
        )

    for one, (played, reward, score) in enumerate(LOOP.run_until_complete(side_by_side())):
        assert is_right(case, reward, score) and played.messages == honest[one // 3][0].messages, name
    some = case.everything[::STEP]
    others = [repeated, doubled, *(lambda player, num=num: stopped(player, num) for num in (0, 1, 2, 3, 5))]
    others += [lambda player, seed=seed: erratic(case, seed) for seed in range(4)]
    for other in others:
        for played, reward, score in case.all(other(HONEST[name]), some):
            assert (reward >= 0.65) == (score == 1.0) or name in PARTIAL and reward < 1, (
                name,
                reward,
                score,
                played.messages,
            )
    usual = ("", "done", "unsure", "0", "A", "granted")
    for text in (*usual, "no", "[]", "{}", "null", "```\n```", "[" * 3000, "none", "safe"):
        said = case.all(says(text), some)
        if text not in ("none", "safe"):
            for played, reward, score in said:
                assert (reward >= 1.0) == (score == 1.0), (name, text, reward, score)
                assert reward <= 0.7 or score == 1.0, (name, text, reward)
        if text in (*usual, "none", "safe"):
            share = sum(score for _, _, score in said) / len(said)
            assert share <= 0.45, (name, text, share)
    if name in BY_STATE:
        return
    answers = [played.messages[-1]["content"] for played, _, _ in honest]
    for place, (played, honest_reward, _) in enumerate(honest[:24]):
        right = answers[place]
        variants = [
            f" {right}\n", f"{right}.", right.upper(), right.lower(), f"The answer is {right}", f"`{right}`",
            f"```\n{right}\n```", f"<answer>{right}</answer>", f'"{right}"', f"{right} {right}", right + "0", "0" + right,
            f"+{right}", right.replace(".", ","), right[:-1], right[1:], f"\u00a0{right}\u2003", f"{right}\u200b",
            answers[(place + 1) % len(answers)], right.replace(" ", "\n"), right.replace(",", " ,"), None,
        ]  # fmt: skip
        for variant in variants:
            changed = replace(played, messages=(*played.messages[:-1], {"role": "assistant", "content": variant}))
            reward, score = LOOP.run_until_complete(case.judged(changed))
            assert (reward >= 0.75) == (score == 1.0), (name, variant, right, reward, score)
        for cut in (
            played.messages[:-1],
            (*played.messages[:-1], tool_call("page"), {"role": "tool", "content": right}),
        ):
            reward, score = LOOP.run_until_complete(case.judged(replace(played, messages=cut)))
            assert reward < 0.75 and score == 0.0, (name, reward, score)


def share(case, player, is_hit, tasks=None):
    played = case.all(player, tasks)
    return sum(bool(is_hit(*one)) for one in played) / len(played)


def honest_share_harmed(name, case):
    return share(case, HONEST[name], lambda played, reward, score: not is_right(case, reward, score))


def real_of_harmed(name, case, fixed):
    """The honest player is paid less than it should be in some of the tasks."""
    return honest_share_harmed(name, case)


def real_greenhouse(name, case, fixed):
    assert honest_share_harmed(name, case) == 0

    async def side_by_side(case):
        harmed = []
        for task in case.everything[:12]:
            members = [case.episode(task, HONEST[name]) for _ in range(3)]
            harmed += [
                isinstance(one, Exception) or one[2] < 1
                for one in await asyncio.gather(*members, return_exceptions=True)
            ]
        return sum(harmed) / len(harmed)

    assert asyncio.run(side_by_side(fixed)) == 0
    return asyncio.run(side_by_side(case))


def real_lab_balance(name, case, fixed):
    first, second = ([one[0].messages for one in case.all(HONEST[name])] for _ in range(2))
    assert sum(a != b for a, b in zip(first, second, strict=True)) / len(first) > 0.3
    return honest_share_harmed(name, case)


def real_museum_quiz(name, case, fixed):
    assert honest_share_harmed(name, case) == 0
    assert share(fixed, says("A"), lambda played, reward, score: score == 1) < 0.4
    return share(case, says("A"), lambda played, reward, score: reward == score == 1)


def real_cookbook(name, case, fixed):
    assert honest_share_harmed(name, case) == 0

    def held_out(folder, hash_seed):
        code = "import environment; print(sorted(task.id for task in environment.held_out_tasks()))"
        variables = {
            **os.environ,
            "PYTHONHASHSEED": str(hash_seed),
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        run = subprocess.run(
            [sys.executable, "-c", code], env=variables, cwd=folder, capture_output=True, text=True, check=True
        )
        return set(json.loads(run.stdout.replace("'", '"')))

    assert held_out(fixed.folder, 1) == held_out(fixed.folder, 2) and 8 <= len(held_out(fixed.folder, 1)) <= 16
    first, second = held_out(case.folder, 1), held_out(case.folder, 2)
    return len(first - second) / len(first)


def real_warehouse_search(name, case, fixed):
    assert share(case, HONEST[name], lambda played, reward, score: score == 1) == 1
    assert all(reward == 0 for _, reward, _ in case.all(says("unknown")))
    return share(case, HONEST[name], lambda played, reward, score: reward <= 0)


def real_bus_itinerary(name, case, fixed):
    assert honest_share_harmed(name, case) == 0
    return share(case, says("[]"), lambda played, reward, score: reward == 1 and score == 0)


def real_room_booking(name, case, fixed):
    assert share(case, room_opener, lambda played, reward, score: reward == score == 1) == 1
    assert share(fixed, room_opener, lambda played, reward, score: reward == score == 1) == 1
    hasty = lambda task: room_booking(task, is_careful=False)
    assert share(fixed, hasty, lambda played, reward, score: reward == 1 and score == 0) == 0
    assert share(case, HONEST[name], lambda played, reward, score: reward == 0 and score == 1) > 0.3
    return share(case, hasty, lambda played, reward, score: reward == 1 and score == 0)


def real_additive_review(name, case, fixed):
    assert honest_share_harmed(name, case) == 0
    assert share(case, says("safe, unsafe, unlisted or retest"), lambda played, reward, score: score == 1) == 1
    return share(case, says("unsafe"), lambda played, reward, score: reward == 0 and score == 1)


def real_crew_roster(name, case, fixed):
    assert share(case, HONEST[name], lambda played, reward, score: reward == 1) == 1
    return honest_share_harmed(name, case)


def real_ferry_fares(name, case, fixed):
    assert all(score == 1 for _, _, score in case.all(HONEST[name], (*case.tasks.train, *case.tasks.validation)))
    return share(case, HONEST[name], lambda played, reward, score: score == 0, case.tasks.held_out)


def real_garden_planner(name, case, fixed):
    unclear = [task for task in case.everything if "{" in asked(task)]
    assert unclear and all(score == 0 for _, _, score in case.all(HONEST[name], unclear))
    return honest_share_harmed(name, case)


def real_server_logs(name, case, fixed):
    """Eight characters a token is more than any tokenizer manages on such lines."""
    limit = 8 * case.config.model.max_sequence_length // 2
    return share(case, HONEST[name], lambda played, *_: sum(len(one["content"]) for one in played.messages) > limit)


def main():
    for name in (*PLANTED, *CLEAN):
        assert (HERE / name / "defect.toml").is_file() == (name in PLANTED), name
    for name in CLEAN:
        case = load(HERE / name)
        assert_sound(case)
        assert_correct(case)
        print(f"{name}: right in all {len(case.everything)} tasks")
    last_first = lambda task: clean_build_order(task, is_last_first=True)
    other_orders = load(HERE / "clean_build_order").all(last_first)
    assert all(reward == score == 1 for _, reward, score in other_orders)
    with tempfile.TemporaryDirectory() as target:
        write_fixed(target)
        assert_same_elsewhere([*(HERE / name for name in CLEAN), *(Path(target) / name for name in PLANTED)])
        for name in PLANTED:
            case, fixed = load(HERE / name), load(Path(target) / name)
            assert_sound(case)
            assert_sound(fixed)
            assert_correct(fixed)
            case.all(erratic(case, "no error"))
            size = globals().get(f"real_{name}", real_of_harmed)(name, case, fixed)
            assert size >= 0.05, (name, size)
            print(f"{name}: real in {size:.0%}; right without it in all {len(fixed.everything)} tasks")


if __name__ == "__main__":
    main()
