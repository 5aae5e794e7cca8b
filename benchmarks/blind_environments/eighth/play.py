"""Plays each case by hand: the defects are real, and gone in the fixed copies; the clean cases are right.

`python play.py` plays what lies here and fixed copies in a temporary folder; `python play.py NAME...` some of them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from build import CASES, CLEAN
from fixes import FIXES, fix

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.config import load_config
from sparring.environments import answer, execute, tool_call
from sparring.rewards import example
from sparring.types import Task, Trajectory

HERE = Path(__file__).parent
LOOP = asyncio.new_event_loop()
"""One event loop for all episodes: to make one takes longer than most calls."""
TOTALS = {name: entry[:2] for name, entry in [*CASES.items(), *CLEAN.items()]}


class World:
    """A case in a folder."""

    def __init__(self, folder: Path) -> None:
        self.name, self.folder = folder.name, folder
        self.module = load(folder)
        target, self.max_turns = TOTALS[self.name]
        self.environment = getattr(self.module, target)
        self.train, self.validation, self.held_out = (
            getattr(self.module, f"{split}_tasks")() for split in ("train", "validation", "held_out")
        )

    @property
    def tasks(self) -> list[Task]:
        return [*self.train, *self.validation, *self.held_out]

    def play(self, task: Task) -> Game:
        return Game(self, task)

    def judged(self, episode: Trajectory) -> tuple[float, float]:
        """Reward and score."""
        reward, score = self.module.reward(episode), self.module.scorer(episode)
        return float(getattr(reward, "total", reward)), float(getattr(score, "value", score))

    def says(self, task: Task, text: str) -> tuple[float, float]:
        """Reward and score of an episode that only says something."""
        return self.judged(self.play(task).end(text))


class Game:
    """An episode that is played call by call."""

    def __init__(self, world: World, task: Task) -> None:
        self.world, self.task = world, task
        self.environment = world.environment()
        self.messages: list[dict] = []
        self.transitions: list[dict] = []
        self.environment.reset(task)

    def call(self, name: str, /, **arguments: Any) -> Any:
        """What a tool answers, read as JSON where it is JSON. An error is one of this script."""
        result = LOOP.run_until_complete(execute(self.environment, name, arguments))
        assert result.error is None, f"{self.world.name}: {name}({arguments}): {result.content}"
        self.messages += [
            tool_call(name, **arguments),
            {"role": "tool", "tool_call_id": "call", "content": result.content},
        ]
        self.transitions.append({"turn": len(self.transitions), **result.transition})
        try:
            return json.loads(result.content)
        except json.JSONDecodeError:
            return result.content

    def end(self, text: str | None) -> Trajectory:
        """The episode; without a text it ended with the last call."""
        if text is not None:
            self.messages.append(answer(text))
        turns = sum(message["role"] == "assistant" for message in self.messages)
        assert turns <= self.world.max_turns, f"{self.world.name}: {turns} turns"
        state = json.loads(json.dumps(self.environment.final_state()))
        if hasattr(self.environment, "state"):
            LOOP.run_until_complete(closed(self.environment))
        return example(self.task, *self.messages, transitions=tuple(self.transitions), final_state=state)

    @property
    def prompt(self) -> str:
        return str(self.task.messages[-1]["content"])


async def closed(environment: Any) -> None:
    found = environment.close()
    if asyncio.iscoroutine(found):
        await found


def load(folder: Path) -> ModuleType:
    name = f"case_{abs(hash(str(folder)))}"
    spec = importlib.util.spec_from_file_location(name, folder / "environment.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def tag(text: object) -> str:
    return f"Looked up. <answer>{text}</answer>"


# How somebody plays who does what prompt and tools say, and knows nothing else.


def fleet_inventory(game: Game) -> Trajectory:
    name, release = re.search(r'group "(.+?)" run agent (\S+)\?', game.prompt).groups()
    group = next(one["group"] for one in game.call("list_groups") if one["name"] == name)
    return game.end(tag(sum(row["agent"] == release for row in game.call("list_devices", group=group, limit=50))))


def feature_flags(game: Game) -> Trajectory:
    name, percent = re.search(r"`(\w+)` to (\d+) percent", game.prompt).groups()
    before = game.call("get_flag", name=name)["percent"]
    game.call("set_flag", name=name, percent=int(percent))
    return game.end(f"{before} -> {game.call('get_flag', name=name)['percent']}")


def office_calendar(game: Game) -> Trajectory:
    (event,) = game.call("search_events", text=re.search(r'"(.+?)"', game.prompt)[1])
    return game.end(tag(game.call("get_event", event_id=event["id"])["start"][11:16]))


def clinic_records(game: Game) -> Trajectory:
    name, label, value = re.fullmatch(r"(.+?) has a new (.+?): (.+?)\. Please put .*", game.prompt).groups()
    (patient,) = game.call("find_patient", name=name)
    field = {"telephone number": "phone", "e-mail address": "email", "address": "address"}[label]
    game.call("update_contact", patient_id=patient["id"], **{field: value})
    return game.end("Done.")


def seismic_catalog(game: Game) -> Trajectory:
    start, end = re.search(r"from (\S+) to (\S+),", game.prompt).groups()
    least = re.search(r"magnitude (\S+) or more", game.prompt)
    if least:
        return game.end(tag(len(game.call("search_quakes", start=start, end=end, min_magnitude=float(least[1])))))
    return game.end(
        tag(game.call("get_quake", quake_id=game.call("search_quakes", start=start, end=end)[-1]["id"])["depth"])
    )


def warehouse_models(game: Game) -> Trajectory:
    model, kind = re.search(r"`(\w+)` is built as a (\w+)", game.prompt).groups()
    game.call("set_materialized", model=model, kind=kind)
    return game.end("Done.")


def true_marks(word: str, secret: str) -> str:
    marks = ["G" if one == other else "." for one, other in zip(word, secret, strict=True)]
    for place, letter in enumerate(word):
        free = sum(other == letter and marks[at] != "G" for at, other in enumerate(secret))
        used = sum(word[at] == letter and marks[at] == "Y" for at in range(5))
        if marks[place] == "." and used < free:
            marks[place] = "Y"
    return "".join(marks)


def word_guess(game: Game) -> Trajectory:
    left = game.call("list_words")
    for _ in range(8):
        if not left:
            return game.end("No word fits.")
        # The word that splits what is left best.
        word = max(left, key=lambda one: len({true_marks(one, other) for other in left}))
        marks = game.call("guess", word=word)["marks"]
        if marks == "GGGGG":
            return game.end(tag(word))
        left = [one for one in left if true_marks(word, one) == marks]
    return game.end("No guess is left.")


def hotel_booking(game: Game) -> Trajectory:
    booking = re.search(r"\b\d{7}\b", game.prompt)
    if booking is None:
        return game.end("Which booking is it?")
    if "cancel" in game.prompt:
        game.call("cancel_booking", booking_id=booking[0])
    elif "nights" in game.prompt:
        game.call("change_nights", booking_id=booking[0], nights=int(re.search(r"(\d+) nights", game.prompt)[1]))
    else:
        game.call("change_room", booking_id=booking[0], room=re.search(r"like a (\w+)", game.prompt)[1])
    return game.end("It is done.")


def lab_sorting(game: Game) -> Trajectory:
    assay, order = re.search(r"of the (\w+) batch .* in (\w+) order", game.prompt).groups()
    (batch,) = game.call("list_batches", assay=assay)
    readings = game.call("get_readings", batch=batch)
    return game.end(tag(json.dumps(sorted(readings, key=float, reverse=order == "descending"))))


def atm_fees(game: Game) -> Trajectory:
    account, month = re.search(r"account is (\w+)\. .* in (\w+)\.", game.prompt).groups()
    terms = game.call("get_price_list", kind=game.call("get_account", account=account)["kind"])
    free = {"one": 1, "two": 2, "three": 3}[re.search(r"accounts: (\w+) cash", terms)[1]]
    paid = [
        row for row in game.call("list_withdrawals", account=account, month=month) if row["machine"] == "other bank"
    ]
    owed = 3 * max(0, len(paid) - free)
    back = sum(row["fee"] for row in paid) - owed
    if back:
        game.call("refund", account=account, amount=back)
    return game.end(f"You get back {back} EUR.")


def field_guide(game: Game) -> Trajectory:
    species = re.search(r"(?:does|What does) ([A-Z]\w+ \w+)", game.prompt)[1]
    entry = game.call("read_entry", species=species)
    right = entry["habitat" if "live" in game.prompt else "food"]
    return game.end(re.search(rf"([A-D])\) {right}\n", game.prompt)[1])


def percent_shop(game: Game) -> Trajectory:
    code, listed = re.search(r"voucher (\w+): (.+?)\? ", game.prompt).groups()
    off = int(game.call("voucher", code=code).split()[0])
    lines, total = [], 0
    for one in listed.split(", "):
        count, item = one.split(" x ")
        price = game.call("price", item=item)
        total += int(count) * price
        lines.append(f"Step {len(lines) + 1}: {count} x {price}")
    return game.end("\n".join([*lines, f"<answer>{total * (100 - off) / 100:.2f}</answer>"]))


def kitchen_scaling(game: Game) -> Trajectory:
    from fractions import Fraction

    ingredient, dish, guests = re.search(r"cups of (\w+) do I need for (\w+) for (\d+) guests", game.prompt).groups()
    recipe = game.call("read_recipe", dish=dish)
    amount = sum(Fraction(part) for part in recipe["cups"][ingredient].split()) * int(guests) / recipe["guests"]
    whole, rest = amount.numerator // amount.denominator, amount % 1
    return game.end(tag(f"{whole} {rest}" if whole and rest else str(rest or whole)))


def water_bill(game: Game) -> Trajectory:
    building = re.search(r"water bill of (.+?)\. ", game.prompt)[1]
    prices, lines, total = {}, [], 0
    for row in game.call("list_meters", building=building):
        reading = game.call("read_meter", meter=row["meter"])
        tariff = reading["tariff"]
        if tariff not in prices:
            prices[tariff] = int(game.call("get_tariff", name=tariff).split()[0])
        used = reading["end"] - reading["start"]
        total += used * prices[tariff]
        lines.append(f"{row['meter']} {row['place']}: {used} m3 at {prices[tariff]} EUR = {used * prices[tariff]} EUR")
    return game.end("\n".join([f"Total: {total} EUR", *lines]))


def helpdesk(game: Game) -> Trajectory:
    queue, person = re.search(r"ticket in (\w+) to (\w+)", game.prompt).groups()
    ticket = min((row["day"], row["ticket"]) for row in game.call("list_tickets", queue=queue))[1]
    game.call("assign", ticket=ticket, person=person)
    return game.end(ticket)


def card_table(game: Game) -> Trajectory:
    def total(cards: list[str]) -> int:
        return sum(10 if card[:-1] in ("J", "Q", "K") else int(card[:-1]) for card in cards)

    hand, has_put_back = game.call("my_hand"), False
    while total(hand) < 17 or (total(hand) > 21 and not has_put_back):
        if total(hand) < 17:
            hand = game.call("take_card")["hand"]
        else:
            fitting = [card for card in hand if total(hand) - total([card]) <= 21]
            hand, has_put_back = game.call("put_back", card=min(fitting, key=lambda card: total([card]))), True
    game.call("stop")
    return game.end(None)


def repo_fix(game: Game) -> Trajectory:
    path = re.search(r"tests of (\S+) fail", game.prompt)[1]
    unit = re.search(r"\* (\w+)", game.call("read_file", path=path))[1]
    (small, low), (large, high) = (
        map(int, re.search(r"price\((\d+)\) is \d+, expected (\d+)", line).groups()) for line in game.call("run_tests")
    )
    rate = (high - low) // (large - small)
    game.call("replace_line", path=path, number=2, text=f"    return {low - rate * small} + {rate} * {unit}")
    assert game.call("run_tests") == []
    return game.end("done")


def leaf_key(game: Game) -> Trajectory:
    leaf = {feature: game.call("look", feature=feature) for feature in ("margin", "shape", "surface", "veins")}
    return game.end(tag(*(tree for tree in game.call("list_trees") if game.call("read_key", tree=tree) == leaf)))


def vault_grid(game: Game) -> Trajectory:
    room = game.call("look")
    (row, column), (door_row, wall) = room["you"], room["door"]
    stops = [tuple(room["key"]), (door_row, wall - 1), (door_row, wall + 1), tuple(room["vault"])]
    for to_row, to_column in stops:
        while (row, column) != (to_row, to_column) and not game.environment.is_done:
            if row != to_row:
                direction, row = ("south", row + 1) if to_row > row else ("north", row - 1)
            else:
                direction, column = ("east", column + 1) if to_column > column else ("west", column - 1)
            game.call("step", direction=direction)
    return game.end(None)


def settings_files(game: Game) -> Trajectory:
    path, listed = re.search(r"Change (\S+) so that it has these settings: (.+?)\. ", game.prompt).groups()
    wanted = dict(one.split() for one in listed.split(", "))
    lines = [line.split(" = ") for line in game.call("read_file", path=path).splitlines()]
    game.call("write_file", path=path, text="".join(f"{name} = {wanted.get(name, value)}\n" for name, value in lines))
    assert "100%" in game.call("run_checks")
    return game.end("Done.")


def clean_silent_valves(game: Game) -> Trajectory:
    bed, litres = re.search(r"The (\w+) need (\d+) litres", game.prompt).groups()
    valve, number = game.call("valve_of", bed=bed), 1
    for number in (1, 2, 3):
        assert game.call("set_flow", valve=valve, litres=int(litres) * number) == ""
        if game.call("gauge", bed=bed) == int(litres):
            return game.end("Done.")
    raise AssertionError


def clean_any_order(game: Game) -> Trajectory:
    waits = {job: set(game.call("waits_for", job=job)) for job in game.call("list_jobs")}
    order: list[str] = []
    while len(order) < len(waits):
        order.append(
            next(
                job
                for job in sorted(waits, reverse=game.task.seed % 2 == 0)
                if job not in order and waits[job] <= set(order)
            )
        )
    return game.end(tag(", ".join(order)))


def clean_returns_desk(game: Game) -> Trajectory:
    purchase = re.search(r"purchase (\w+)\.", game.prompt)[1]
    bought, terms = game.call("get_purchase", purchase=purchase), game.call("get_terms")
    against = []
    for clause, text in terms.items():
        days = re.search(r"within (\d+) days", text)
        if (
            (days and bought["days"] > int(days[1]))
            or ("Worn" in text and bought["worn"])
            or ("sale" in text and bought["sale"])
        ):
            against.append(clause)
    if against:
        return game.end(tag(min(against, key=lambda clause: int(clause[1:]))))
    game.call("book_return", purchase=purchase)
    return game.end(tag("BOOKED"))


def clean_same_safe(game: Game) -> Trajectory:
    for dial in (1, 2, 3):
        low, high = 0, 9
        while True:
            digit = (low + high) // 2
            heard = game.call("turn", dial=dial, digit=digit)
            if heard == "click":
                break
            low, high = (digit + 1, high) if heard == "low" else (low, digit - 1)
    assert game.call("pull") == "the safe opens"
    return game.end(None)


def clean_noisy_scale(game: Game) -> Trajectory:
    metal = re.search(r"does the (\w+) sample", game.prompt)[1]
    (label,) = game.call("list_samples", metal=metal)
    return game.end(tag(sum(game.call("weigh", label=label) for _ in range(4)) // 4))


def clean_old_bank(game: Game) -> Trajectory:
    kind, account = re.search(r"of the kind (\w+) of account (\d+)", game.prompt).groups()
    page, cents = 1, 0
    while page:
        shown = game.call("statement", account=account, page=page)
        for line in shown["bookings"].split("; "):
            what, amount = line.split()
            value = int(amount.rstrip("-").replace(".", "").replace(",", ""))
            cents += (-value if amount.endswith("-") else value) if what == kind else 0
        page = shown["next"]
    return game.end(tag(f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02}"))


SOLVERS: dict[str, Callable[[Game], Trajectory]] = {name: globals()[name] for name in TOTALS}
BEST = {"percent_shop": (1.1, 2.0)}
"""Best rewards that are not 1."""


def solved(world: World, task: Task) -> bool:
    """Whether the honest player is right by the scorer, and paid."""
    reward, score = world.judged(SOLVERS[world.name](world.play(task)))
    return score == 1 and reward >= 1


def failures(world: World) -> list[Task]:
    return [task for task in world.tasks if not solved(world, task)]


# What each defect does: true in the planted case, false in the fixed one.


def shares(world: World, is_affected: Callable[[Task], bool], fixed: bool, least: float, most: float = 1.0) -> None:
    """The honest player fails on just the affected tasks, or on none once it is fixed."""
    failed = {task.id for task in failures(world)}
    affected = {task.id for task in world.tasks if is_affected(task)}
    if fixed:
        assert not failed, (world.name, failed)
    else:
        assert failed == affected, (world.name, failed ^ affected)
        share = len(failed) / len(world.tasks)
        assert least <= share <= most, (world.name, share)
        print(f"    the honest player fails on {len(failed)} of {len(world.tasks)} tasks")


def check_fleet_inventory(world: World, fixed: bool) -> None:
    rows = lambda task: task.fields["groups"][task.fields["group"]]["devices"]  # noqa: E731
    for task in world.train[:10]:
        for limit in (3, 10, 50):
            got = world.play(task).call("list_devices", group=task.fields["group"], limit=limit)
            assert len(got) == min(limit if fixed else 10, len(rows(task)))
    release = lambda task: task.fields["release"]  # noqa: E731
    shares(world, lambda task: any(row["agent"] == release(task) for row in rows(task)[10:]), fixed, 0.4)


def check_feature_flags(world: World, fixed: bool) -> None:
    shares(world, lambda task: True, fixed, 1.0)
    task = world.train[0]
    game = world.play(task)
    game.call("set_flag", name=task.fields["flag"], percent=10)
    assert game.call("get_flag", name=task.fields["flag"])["percent"] == 10
    game.call("set_flag", name=task.fields["flag"], percent=20)
    assert game.call("get_flag", name=task.fields["flag"])["percent"] == (20 if fixed else 10)


def check_office_calendar(world: World, fixed: bool) -> None:
    office = lambda task: next(one["office"] for one in task.fields["events"] if one["id"] == task.fields["event"])  # noqa: E731
    shares(world, lambda task: world.module.OFFICES[office(task)][1] != 0, fixed, 0.7)


def check_clinic_records(world: World, fixed: bool) -> None:
    shares(world, lambda task: True, fixed, 1.0)


def check_seismic_catalog(world: World, fixed: bool) -> None:
    def last_day(task: Task) -> bool:
        fields = task.fields
        counted = [one for one in fields["quakes"] if one["time"][:10] == fields["end"]]
        if "magnitude" in task.messages[0]["content"]:
            return any(one["magnitude"] >= fields["least"] for one in counted)
        earlier = [one for one in fields["quakes"] if fields["start"] <= one["time"] < fields["end"]]
        return bool(counted) and (not earlier or earlier[-1]["depth"] != fields["answer"])

    shares(world, last_day, fixed, 0.7)


def check_warehouse_models(world: World, fixed: bool) -> None:
    assert not failures(world)
    for tasks in (world.train, world.tasks):
        idle = sum(world.says(task, "Done.") == (1, 1) for task in tasks)
        assert idle == 0 if fixed else 0.4 <= idle / len(tasks) <= 0.65, idle
        print(f"    doing nothing is paid in {idle} of {len(tasks)} tasks")


def check_word_guess(world: World, fixed: bool) -> None:
    wrong = sum(
        world.module.mark(word, task.fields["answer"]) != true_marks(word, task.fields["answer"])
        for task in world.tasks for word in task.fields["words"]
    )  # fmt: skip
    assert wrong == 0 if fixed else wrong > 100, wrong
    secret = next(
        task for task in world.tasks if task.fields["answer"].count("e") == 1 and task.fields["answer"][4] == "e"
    )
    marks = world.play(secret).call("guess", word="geese")["marks"]
    assert marks.count(".") >= 3 if fixed else marks[1:3] == "YY", (secret.fields["answer"], marks)
    failed = len(failures(world))
    print(f"    {wrong} wrong marks, the honest player fails on {failed} of {len(world.tasks)} tasks")
    assert failed == 0 if fixed else failed >= 15, failed


def check_hotel_booking(world: World, fixed: bool) -> None:
    for task in world.tasks:
        told = any(task.fields["booking"] in message["content"] for message in task.messages)
        assert told == (fixed or int(task.id.split("-")[1]) % 4 != 2)
    arguments = {
        name for schema in world.environment.tool_schemas() for name in schema["function"]["parameters"]["properties"]
    }
    assert arguments == {"booking_id", "nights", "room"}
    shares(world, lambda task: int(task.id.split("-")[1]) % 4 == 2, fixed, 0.2, 0.3)


def check_lab_sorting(world: World, fixed: bool) -> None:
    readings = lambda task: task.fields["batches"][task.fields["batch"]]["readings"]  # noqa: E731
    shares(world, lambda task: any(len(text.split(".")[1]) == 2 for text in readings(task)), fixed, 0.3, 0.7)


def check_atm_fees(world: World, fixed: bool) -> None:
    def light_blue(task: Task) -> bool:
        account = task.fields["accounts"][task.fields["account"]]
        month = re.search(r" in (\w+)\. Please", task.messages[0]["content"])[1]
        paid = [row for row in account["withdrawals"] if row["month"] == month and row["machine"] == "other bank"]
        return account["kind"] == "Light Blue" and len(paid) >= 2

    shares(world, light_blue, fixed, 0.15, 0.5)
    idle = sum(world.says(task, "Nothing.")[1] == 1 for task in world.tasks)
    assert idle <= 4, idle


def check_field_guide(world: World, fixed: bool) -> None:
    assert not failures(world)
    paid = 0
    for task in world.tasks:
        reward, score = world.says(task, f"{'BACD'[task.fields['answer'] == 'B']}, or one of A, B, C, D")
        assert (reward, score) == (0.0 if fixed else 1.0, 0.0)
        for letter, option in zip("ABCD", task.fields["options"], strict=True):
            reward, score = world.says(task, f"{letter}) {option}, that is what the guide says.")
            assert score == (letter == task.fields["answer"])
            paid += reward == 1 and score == 0
    assert paid == 0 if fixed else paid >= 20, paid
    print(f"    {paid} plain wrong choices are paid")


def check_percent_shop(world: World, fixed: bool) -> None:
    assert not failures(world)
    for task in world.tasks:
        farmed = world.says(task, "Step 1: a\nStep 2: b\nStep 3: c\n<answer>0.00</answer>")
        plain = world.says(task, tag(task.fields["answer"]))
        assert plain == (1, 1)
        assert farmed == ((0, 0) if fixed else (1, 0))


def check_kitchen_scaling(world: World, fixed: bool) -> None:
    assert not failures(world)
    mixed = [task for task in world.tasks if " " in task.fields["answer"]]
    assert 0.15 <= len(mixed) / len(world.tasks) <= 0.6, len(mixed)
    print(f"    {len(mixed)} of {len(world.tasks)} answers are mixed numbers")
    for task in world.tasks:
        for text in (tag("77"), "No idea."):
            assert world.says(task, text) == (1.0 if task in mixed and not fixed else 0.0, 0)


def check_water_bill(world: World, fixed: bool) -> None:
    unpaid = 0
    for task in world.tasks:
        episode = water_bill(world.play(task))
        reward, score = world.judged(episode)
        assert score == 1
        is_long = len(episode.messages[-1]["content"]) > 300
        assert reward == float(fixed or not is_long)
        unpaid += reward == 0
        assert world.says(task, "Total: 1 EUR") == (0, 0)
    assert unpaid == 0 if fixed else 0.2 <= unpaid / len(world.tasks) <= 0.8, unpaid
    print(f"    {unpaid} of {len(world.tasks)} right bills are not paid")


def check_helpdesk(world: World, fixed: bool) -> None:
    first, second = world.train[:2]
    one = world.play(first)
    other = world.play(second)
    listed = {
        row["ticket"]
        for queue in world.module.QUEUES for status in ("open", "closed")
        for row in other.call("list_tickets", queue=queue, status=status)
    }  # fmt: skip
    assert (listed == set(second.fields["tickets"])) == fixed
    assert (listed >= set(first.fields["tickets"])) != fixed
    assert (
        one.environment.board is not other.environment.board
        if fixed
        else one.environment.board is other.environment.board
    )
    failed = len(failures(world))
    assert failed == 0 if fixed else failed >= 60, failed


def check_card_table(world: World, fixed: bool) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(world.folder)!r})\nimport environment as e\nfor task in e.train_tasks()[:8]:\n"
        "    table = e.CardTable(); table.reset(task); print(table.my_hand(), table.take_card()['taken'])"
    )
    shown = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "1", "2")
    ]
    assert shown[0] == shown[1] and (shown[0] == shown[2]) == fixed
    won = len(world.tasks) - len(failures(world))
    print(f"    a simple player wins {won} of {len(world.tasks)} games")
    assert won > 0.6 * len(world.tasks)
    assert world.says(world.train[0], "I stop.") == (0, 0)


def check_repo_fix(world: World, fixed: bool) -> None:
    assert not failures(world)
    for task in world.tasks:
        game = world.play(task)
        base, rate = task.fields["expected"]
        diffs = [game.call("git_show", commit=line.split()[0]) for line in game.call("git_log")]
        given = any(f"+    return {base} + {rate} * " in diff for diff in diffs)
        assert given != fixed
        assert world.says(task, "done") == (0, 0)


def check_leaf_key(world: World, fixed: bool) -> None:
    assert not failures(world)
    seen = {(task.messages[0]["content"], json.dumps(task.fields)) for task in world.train}
    again = sum((task.messages[0]["content"], json.dumps(task.fields)) in seen for task in world.held_out)
    assert again == (0 if fixed else len(world.held_out))


def check_vault_grid(world: World, fixed: bool) -> None:
    def distance(task: Task) -> int:
        stops = [task.fields[name] for name in ("start", "key", "door", "vault")]
        return sum(abs(a - c) + abs(b - d) for (a, b), (c, d) in zip(stops, stops[1:], strict=False))

    shares(world, lambda task: distance(task) > 14, fixed, 0.2, 0.7)


def check_settings_files(world: World, fixed: bool) -> None:
    assert not failures(world)
    for task in world.tasks:
        game = world.play(task)
        game.call("write_file", path="logs/verdict.txt", text="1.0")
        assert world.judged(game.end("Done.")) == (0 if fixed else 1, 0)
        assert world.says(task, "Done.") == (0, 0)


def check_clean(world: World) -> None:
    assert not failures(world), [task.id for task in failures(world)]
    for task in world.tasks:
        assert world.says(task, "I do not know.")[1] == 0 and world.says(task, "I do not know.")[0] < 1
        assert world.says(task, tag("nothing")) == (0, 0)


def check_clean_more(world: World) -> None:
    name = world.name
    if name == "clean_any_order":
        for task in world.train:
            jobs = list(task.fields["waits"])
            assert world.says(task, tag(", ".join(jobs))) == (1, 1)  # the order in which they were made
            assert world.says(task, tag(", ".join(reversed(jobs)))) == (0, 0)
            assert world.says(task, tag(", ".join(jobs[:-1]))) == (0, 0)
            assert world.says(task, tag(", ".join([*jobs, jobs[0]]))) == (0, 0)
    if name == "clean_returns_desk":
        for task in world.train:
            game = world.play(task)
            game.call("book_return", purchase=task.fields["purchase"])
            expected = float(task.fields["answer"] == "BOOKED")
            assert world.judged(game.end(tag("BOOKED"))) == (expected, expected)
            assert world.says(task, tag("BOOKED")) == (0, 0)
        refused = sum(task.fields["answer"] != "BOOKED" for task in world.train) / len(world.train)
        print(f"    {refused:.0%} are refused")
    if name == "clean_same_safe":
        assert len({str(task.fields["code"]) for task in world.tasks}) == len(world.tasks)
        assert len({task.messages[0]["content"] for task in world.tasks}) == 1
    if name == "clean_noisy_scale":
        task = world.train[0]
        readings = [
            [world_game.call("weigh", label=task.fields["label"]) for _ in range(8)]
            for world_game in (world.play(task), world.play(task))
        ]
        assert readings[0] == readings[1] and len(set(readings[0])) == 4
    if name == "clean_old_bank":
        task = world.train[0]
        game = world.play(task)
        account = task.fields["account"]
        assert game.call("statement", account=account) == game.call("statement", account=account, currency="DEM")


def check_agreement(world: World, task: Task) -> None:
    """Reward and scorer say the same of answers that differ in form."""
    played = SOLVERS[world.name](world.play(task))
    last = played.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return
    text = last["content"]
    for variant in (
        text, f"{text} Bye.", f"{text}\nBye.", f"Hello.\n{text}", f"`{text}`", f"```\n{text}\n```", f"{text}\n{text}", f" {text}\n",
        text.upper(), text.replace("<answer>", "<answer> "), text.replace("</answer>", ""), text.replace("<answer>", ""), "",
    ):  # fmt: skip
        reward, score = world.judged(replace(played, messages=(*played.messages[:-1], {**last, "content": variant})))
        assert (reward >= 1) == (score == 1), (world.name, variant, reward, score)


def check_all(world: World, fixed: bool) -> None:
    """What holds of every case: splits, prompts, equal episodes, and the built-in loop plays as this script does."""
    name = world.name
    assert len(world.train) >= 20 and len(world.validation) >= 10 and len(world.held_out) >= 20
    assert len({task.id for task in world.tasks}) == len(world.tasks)
    prompts = [json.dumps(task.messages) for task in world.tasks]
    if name != "clean_same_safe" and (fixed or name != "leaf_key"):
        assert len(set(prompts)) == len(prompts), (name, len(prompts) - len(set(prompts)))
    assert all(task.fields == json.loads(json.dumps(task.fields)) for task in world.tasks), name
    if fixed:
        for task in world.train[:12]:
            check_agreement(world, task)
    config = load_config(world.folder / "recipe.toml")
    assert config.environment.max_turns == world.max_turns
    for task in world.train[:4]:
        if name == "helpdesk" and not fixed:
            world.environment.board.clear()
        played = SOLVERS[name](world.play(task))
        script = [message for message in played.messages if message["role"] == "assistant"]
        if name == "helpdesk" and not fixed:
            world.environment.board.clear()
        agent = EnvironmentAgent(world.environment, max_turns=world.max_turns)
        result = asyncio.run(agent.play(task, ScriptedSession(*script)))
        assert str(result.outcome.value) == "finished", (name, result)
        assert [(one["tool"], one["result"]) for one in result.transitions] == [
            (one["tool"], one["result"]) for one in played.transitions
        ], name
        assert json.loads(json.dumps(result.final_state)) == played.final_state, name


def play(folder: Path, fixed: bool) -> None:
    world = World(folder)
    print(f"{world.name}: {'clean' if world.name in CLEAN else 'fixed' if fixed else 'planted'}")
    check_all(world, fixed or world.name in CLEAN)
    if world.name in CLEAN:
        check_clean(world)
        check_clean_more(world)
    else:
        globals()[f"check_{world.name}"](world, fixed)


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in names or TOTALS:
            play(HERE / name, fixed=False)
            if name in FIXES:
                play(fix(name, Path(folder)), fixed=True)
    print("all is as it should be")


if __name__ == "__main__":
    main(sys.argv[1:])
