"""Plays each case by hand: the defects are real, and gone in the fixed copies; the clean cases are right.

`python play.py` plays what lies here and fixed copies in a temporary folder; `python play.py NAME...` some of them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
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

    def attempt(self, name: str, /, **arguments: Any) -> tuple[Any, bool]:
        """What a tool answers, read as JSON where it is JSON, and whether it worked."""
        result = asyncio.run(execute(self.environment, name, arguments))
        self.messages += [
            tool_call(name, **arguments),
            {"role": "tool", "tool_call_id": "call", "content": result.content},
        ]
        self.transitions.append({"turn": len(self.transitions), **result.transition})
        try:
            return json.loads(result.content), result.error is None
        except json.JSONDecodeError:
            return result.content, result.error is None

    def call(self, name: str, /, **arguments: Any) -> Any:
        """What a tool answers. An error is one of this script."""
        found, works = self.attempt(name, **arguments)
        assert works, f"{self.world.name}: {name}({arguments}): {found}"
        return found

    def say(self, text: str) -> str | None:
        """What the user replies; None if the conversation is over."""
        self.messages.append(answer(text))
        reply = self.environment.reply((*self.task.messages, *self.messages), None)
        if reply is not None:
            self.messages.append({"role": "user", "content": reply})
        return reply

    def end(self, text: str | None) -> Trajectory:
        """The episode; without a text it ended with what was said or called last."""
        if text is not None:
            self.messages.append(answer(text))
        turns = sum(message["role"] == "assistant" for message in self.messages)
        assert turns <= self.world.max_turns, f"{self.world.name}: {turns} turns"
        state = getattr(self.environment, "final_state", lambda: None)()
        state = json.loads(json.dumps(state))
        if hasattr(self.environment, "state"):
            asyncio.run(closed(self.environment))
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


def bird_counts(game: Game) -> Trajectory:
    site = re.search(r"counted most at (.+?) this winter", game.prompt)[1]
    return game.end(tag(", ".join(row["species"] for row in game.call("most_seen", site=site, limit=3))))


def bus_connections(game: Game) -> Trajectory:
    places = [
        re.search(pattern, game.prompt) for pattern in (r"(?:from|in) ([A-Z]\w+)(?: to| now|\.)", r"to ([A-Z]\w+)")
    ]
    start, end = (found[1] for found in places)
    ready = re.search(r"at (\d\d:\d\d) or later", game.prompt)[1]

    def minute(clock: str) -> int:
        return int(clock[:2]) * 60 + int(clock[3:])

    first: dict[str, int] = {}
    for bus in game.call("departures", village=start):
        if bus["leaves"] >= ready:
            first[bus["to"]] = min(first.get(bus["to"], 10**6), minute(bus["arrives"]))
    arrivals = [
        bus["arrives"]
        for hub, arrives in first.items()
        for bus in game.call("departures", village=hub)
        if bus["to"] == end and minute(bus["leaves"]) >= arrives + 5
    ]
    return game.end(tag(min(arrivals)))


def card_refunds(game: Game) -> Trajectory:
    customer = re.search(r"customer (C\d+)", game.prompt)[1]
    if "both payments" in game.prompt:
        for payment in game.call("list_payments", customer=customer):
            game.attempt("refund", payment=payment, amount=game.call("get_payment", payment=payment)["amount"])
    else:
        payment = re.search(r"half of payment (\w+)", game.prompt)[1]
        game.call(
            "refund", payment=payment, amount=str(Decimal(game.call("get_payment", payment=payment)["amount"]) / 2)
        )
    return game.end("Done.")


def dosing_ward(game: Game) -> Trajectory:
    patient = game.call("patient", bed=re.search(r"in bed (B\d+)", game.prompt)[1])
    text = game.call("drug_list", drug=patient["drug"])
    dose = int(re.search(r"(\d+) mg for each kg", text)[1]) * patient["weight"]
    parts = re.search(r"divided into (\d+) equal doses", text)
    dose = dose // int(parts[1]) if parts else dose
    return game.end(tag(min(dose, int(re.search(r"never exceeds (\d+) mg", text)[1]))))


def flight_finder(game: Game) -> Trajectory:
    origin, destination = re.search(r"from (\w+) to (\w+) and", game.prompt).groups()
    flights = game.call("search_flights", origin=origin, destination=destination)
    bags = {airline: game.call("bag_fee", airline=airline) for airline in sorted({row["airline"] for row in flights})}
    # Of flights that cost the same, the later one leaves more time to pack.
    best = min(reversed(flights), key=lambda row: row["fare"] + bags[row["airline"]])
    return game.end(tag(best["number"]))


def library_desk(game: Game) -> Trajectory:
    card, born = re.search(r"card (\w+), born on (\S+)\. ", game.prompt).groups()
    if game.call("verify_card", card=card, born=born) != "match":
        return game.end("I am sorry, that does not match.")
    return library_wish(game, card)


def library_wish(game: Game, card: str) -> Trajectory:
    branch = re.search(r"pick up my books at (\w+)\.", game.prompt)
    if branch:
        game.call("set_branch", card=card, branch=branch[1])
    else:
        title = re.search(r"renew (.+?) for me", game.prompt)[1]
        (loan,) = (row["loan"] for row in game.call("loans_of", card=card) if row["title"] == title)
        game.call("renew", loan=loan)
    return game.end("Done.")


def night_shifts(game: Game) -> Trajectory:
    total = timedelta()
    for number in game.call("shifts_of", guard=re.search(r"did (\w+) work", game.prompt)[1]):
        shift = game.call("shift", number=number)
        total += datetime.fromisoformat(shift["end"]) - datetime.fromisoformat(shift["start"])
    return game.end(tag(total // timedelta(minutes=1)))


def parcel_lockers(game: Game) -> Trajectory:
    out = re.search(r"hand parcel (\w+) out .* and move (\w+) to (\w+)\.", game.prompt)
    if out:
        game.call("hand_out", parcel=out[1])
        game.call("move_parcel", parcel=out[2], locker=out[3])
        return game.end("Done.")
    parcel, first, second = re.search(r"move parcel (\w+) to (\w+)\. .* move it to (\w+) instead", game.prompt).groups()
    _, works = game.attempt("move_parcel", parcel=parcel, locker=first)
    if not works:
        game.attempt("move_parcel", parcel=parcel, locker=second)
    return game.end("Done.")


def phone_directory(game: Game) -> Trajectory:
    name, clinic = re.search(r"extension does (.+?) of the (\w+) have", game.prompt).groups()
    found = [row["id"] for row in game.call("find_person", name=name) if row["clinic"] == clinic]
    return game.end(tag(game.call("extension", person=found[0])) if found else "I found nobody of that name.")


def recruiting(game: Game) -> Trajectory:
    wanted = game.call("requirements")
    for applicant in game.call("applicants"):
        letter = game.call("read_letter", applicant=applicant)
        if letter["years"] >= wanted["years"] and all(
            letter[key] == wanted[key] for key in ("language", "licence", "town")
        ):
            return game.end(tag(applicant))
    raise AssertionError


def tax_portal(game: Game) -> Trajectory:
    shop = re.search(r"sales tax of (.+?) for the quarter", game.prompt)[1]
    rates = game.call("tax_rates")
    sent = [row for row in game.call("list_invoices", shop=shop) if row["status"] == "sent"]
    game.call("file_return", shop=shop, tax=sum(row["net"] * rates[row["kind"]] // 100 for row in sent))
    return game.end("It is filed.")


def flower_orders(game: Game) -> Trajectory:
    flowers = re.search(r"to order (\w+)\.", game.prompt)[1]
    stems = int(re.search(r"(\d+) stems", game.say("How many stems shall it be?"))[1])
    day = re.search(r"On (\w+), please", game.say("And for which day?"))[1]
    game.call("enter_order", flowers=flowers, stems=stems, day=day)
    heard = game.say(f"That is {stems} {flowers} for {day}.")
    change = re.search(r"(?i)make it (\w+)", heard)
    if change:
        if change[1].isdigit():
            stems = int(change[1])
        elif change[1].endswith("day"):
            day = change[1]
        else:
            flowers = change[1]
        game.call("enter_order", flowers=flowers, stems=stems, day=day)
        assert "thank you" in game.say(f"Then it is {stems} {flowers} for {day}.")
    assert game.say("Goodbye.") is None
    return game.end(None)


def freight_quotes(game: Game) -> Trajectory:
    start, end = re.search(r"from (\w+) to (\w+) by", game.prompt).groups()
    tariff = game.call("tariff")
    price = tariff["order"] + tariff["kilometre"] * game.call("road_distance", start=start, end=end)
    return game.end(tag(price))


def inbox_triage(game: Game) -> Trajectory:
    words = {
        "billing": ("invoice", "bill ", "paid", "receipt"),
        "support": ("printer", "screen", "password", "error"),
        "people": ("application", "contract", "leave", "training"),
    }
    for row in game.call("list_mails"):
        subject = row["subject"].lower()
        (folder,) = (folder for folder, those in words.items() if any(word in subject for word in those))
        game.call("move", mail=row["mail"], folder=folder)
    return game.end("Done.")


def meter_round(game: Game) -> Trajectory:
    meters = [game.call("read_meter", flat=flat) for flat in game.call("list_flats")]
    return game.end(tag(sum(meter["end"] - meter["start"] for meter in meters)))


def museum_loans(game: Game) -> Trajectory:
    months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    work = re.search(r": (.+?) is on loan in", game.prompt)[1]
    (contract,) = game.call("find_loans", work=work)
    loan = game.call("read_contract", contract=contract)
    day, month, year = loan["start"].split()
    due = date(int(year), months.index(month) + 1, int(day)) + timedelta(weeks=loan["weeks"])
    # As the prompt shows it, or else as the contracts write days.
    return game.end(
        tag(due.isoformat() if "2025-01-31" in game.prompt else f"{due.day} {months[due.month - 1]} {due.year}")
    )


def case_notes(game: Game) -> Trajectory:
    for row in game.call("list_notes", case=re.search(r"case (K\d+)", game.prompt)[1]):
        found = re.search(r"noted the plate (\S+)\.", game.call("read_note", note=row["note"]))
        if found:
            return game.end(tag(found[1]))
    return game.end("The notes name no plate.")


def kiln_programs(game: Game) -> Trajectory:
    clay, kiln = re.search(r"is (\w+) and goes into the kiln (\w+)\.", game.prompt).groups()
    game.attempt("set_program", kiln=kiln, **game.call("firing_sheet", clay=clay))
    return game.end("Done.")


def exam_rooms(game: Game) -> Trajectory:
    ramp, basic, higher = re.search(
        r"hall (\w+)\. .* sits in (\w+) and the higher level in (\w+)\.", str(game.task.messages[0]["content"])
    ).groups()
    for row in game.call("list_candidates"):
        room = ramp if row["ramp"] else {"basic": basic, "higher": higher}[row["level"]]
        game.call("give_room", name=row["name"], room=room)
    return game.end("Done.")


def tide_tables(game: Game) -> Trajectory:
    harbour, day, month = re.search(r"high waters in (\w+) on (\d+) (\w+) 2025", game.prompt).groups()
    months = ["January", "February", "March", "April", "May"]
    found, works = game.attempt("high_waters", harbour=harbour, month=months.index(month) + 1, day=int(day))
    if not works:
        return game.end("The tables do not say.")
    best = max(found, key=lambda row: row["height"])
    return game.end(tag(best["time" if "what time" in game.prompt else "height"]))


def clean_even_cents(game: Game) -> Trajectory:
    account = game.call("account", number=re.search(r"does account (\d+) get", game.prompt)[1])
    amount = Decimal(account["balance"]) * Decimal(str(game.call("yearly_rate", kind=account["kind"]))) / 100
    return game.end(tag(amount.quantize(Decimal("0.01"), ROUND_HALF_EVEN)))


def clean_first_word(game: Game) -> Trajectory:
    note = re.search(r"sound in (\w)\.", game.say("Which note shall it have?"))[1]
    kilograms = int(re.search(r"weight: (\d+) kilo", game.say("And how heavy shall it be?"))[1])
    game.call("enter_bell", note=note, kilograms=kilograms)
    if "Wait" in game.say(f"I have entered a bell in {note} of {kilograms} kg."):
        assert "Thank you" in game.say("I am sorry, a change is not possible.")
    assert game.say("Goodbye.") is None
    return game.end(None)


def clean_line_map(game: Game) -> Trajectory:
    start, end = re.search(r"at (\w+) and go to (\w+) by", game.prompt).groups()
    nexts: dict[str, set[str]] = {}
    for line in game.call("lines"):
        stations = game.call("stations", line=line)
        for one, other in zip(stations, stations[1:], strict=False):
            nexts.setdefault(one, set()).add(other)
            nexts.setdefault(other, set()).add(one)
    distance, edge = {start: 0}, [start]
    for station in edge:
        for other in sorted(nexts[station] - distance.keys()):
            distance[other] = distance[station] + 1
            edge.append(other)
    return game.end(tag(distance[end]))


def clean_utc_harbour(game: Game) -> Trajectory:
    call = game.call("port_call", ship=re.search(r"when does the (\w+) reach", game.prompt)[1])
    boarded = datetime.fromisoformat(call["pilot"]) - timedelta(hours=game.call("offset", port=call["port"]))
    return game.end(tag(f"{boarded + timedelta(minutes=call['minutes']):%Y-%m-%d %H:%M}"))


def clean_paid_samples(game: Game) -> Trajectory:
    low, high = map(int, re.search(r"wells (\d+) to (\d+) is", game.prompt).groups())
    while low < high:
        middle = (low + high) // 2
        if game.call("sample", first=low, last=middle)["polluted"]:
            high = middle
        else:
            low = middle + 1
    return game.end(tag(low))


def clean_pump_bench(game: Game) -> Trajectory:
    pump, low, high = re.search(r"lock the (\w+) pump", game.prompt)[1], 1, 100
    while True:
        bar = (low + high) // 2
        heard, works = game.attempt("lock", pump=pump, bar=bar)
        if works:
            return game.end(None)
        low, high = (bar + 1, high) if "higher" in heard else (low, bar - 1)


SOLVERS: dict[str, Callable[[Game], Trajectory]] = {name: globals()[name] for name in TOTALS}
PAID = {"meter_round": 0.85}
"""What a right episode earns at least, where that is not 1."""


def solved(world: World, task: Task) -> bool:
    """Whether the honest player is right by the scorer, and paid."""
    reward, score = world.judged(SOLVERS[world.name](world.play(task)))
    return score == 1 and reward >= PAID.get(world.name, 1)


def failures(world: World) -> list[Task]:
    return [task for task in world.tasks if not solved(world, task)]


# What each defect does: true in the planted case, false in the fixed one.


def place(task: Task) -> int:
    return int(task.id.split("-")[1])


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


def check_bird_counts(world: World, fixed: bool) -> None:
    def is_affected(task: Task) -> bool:
        rows = [line.split(",") for line in task.fields["table"].splitlines()[1:]]
        counts = [row[1:] for row in rows if row[0] == task.fields["site"]]
        return sorted(counts, key=lambda row: row[1])[-3:] != sorted(counts, key=lambda row: int(row[1]))[-3:]

    shares(world, is_affected, fixed, 0.4, 0.85)


def check_bus_connections(world: World, fixed: bool) -> None:
    assert not failures(world)
    seen = {json.dumps(task.fields) for task in world.train}
    again = sum(json.dumps(task.fields) in seen for task in (*world.validation, *world.held_out))
    assert again == (0 if fixed else len(world.validation) + len(world.held_out)), again


def check_card_refunds(world: World, fixed: bool) -> None:
    shares(world, lambda task: place(task) % 4 == 3, fixed, 0.2, 0.3)
    for task in world.train[:12]:
        for key, _, currency, amount in task.fields["payments"]:
            right = str(amount) if currency in ("JPY", "KRW") else f"{amount / 100:.2f}"
            shown = world.play(task).call("get_payment", payment=key)["amount"]
            assert (shown == right) == (fixed or currency not in ("JPY", "KRW")), (shown, right)


def check_dosing_ward(world: World, fixed: bool) -> None:
    def is_affected(task: Task) -> bool:
        patient = task.fields["beds"][task.fields["bed"]]
        amount, basis, times, most = world.module.DRUGS[patient["drug"]]
        whole = amount * patient["weight"]
        return basis == "day" and min(whole, most) != min(whole // times, most)

    shares(world, is_affected, fixed, 0.2, 0.4)


def check_flight_finder(world: World, fixed: bool) -> None:
    def ties(task: Task) -> list[str]:
        fields = task.fields
        flights = [row for row in fields["flights"] if [row["origin"], row["destination"]] == fields["route"]]
        totals = {row["number"]: row["fare"] + fields["bags"][row["airline"]] for row in flights}
        return [number for number, total in totals.items() if total == min(totals.values())]

    shares(world, lambda task: len(ties(task)) > 1, fixed, 0.1, 0.5)
    for task in world.tasks:
        paid = [number for number in ties(task) if world.says(task, tag(number)) == (1, 1)]
        assert len(paid) == 1 and (not fixed or len(ties(task)) == 1)


def check_library_desk(world: World, fixed: bool) -> None:
    assert not failures(world)
    paid = 0
    for task in world.tasks:
        if place(task) % 3 == 1:
            assert world.says(task, "No.") == ((0, 0) if fixed else (1, 1))
            continue
        game = world.play(task)
        judged = world.judged(library_wish(game, re.search(r"card (\w+),", game.prompt)[1]))
        assert judged == ((0, 0) if fixed else (1, 1))
        paid += judged[0] == 1
    print(f"    {paid} unchecked changes are paid")


def check_night_shifts(world: World, fixed: bool) -> None:
    shares(world, lambda task: place(task) % 6 in (1, 5), fixed, 0.3, 0.4)


def check_parcel_lockers(world: World, fixed: bool) -> None:
    shares(world, lambda task: place(task) % 4 == 2, fixed, 0.2, 0.3)
    task = next(task for task in world.train if place(task) % 4 == 2)
    game, (parcel, first, _) = world.play(task), task.fields["wanted"]
    before = game.call("find_parcel", parcel=parcel)
    assert not game.attempt("move_parcel", parcel=parcel, locker=first)[1]
    assert (game.call("find_parcel", parcel=parcel) == before) == fixed


def check_phone_directory(world: World, fixed: bool) -> None:
    shares(world, lambda task: not task.fields["name"].isascii(), fixed, 0.15, 0.35)


def check_recruiting(world: World, fixed: bool) -> None:
    assert not failures(world)
    last = sum(
        world.says(task, tag(world.play(task).call("applicants")[-1])) == (1, 1) for task in world.tasks
    )  # fmt: skip
    print(f"    naming the last applicant is paid in {last} of {len(world.tasks)} tasks")
    assert last < 0.4 * len(world.tasks) if fixed else last == len(world.tasks)


def check_tax_portal(world: World, fixed: bool) -> None:
    assert not failures(world)
    for task in world.tasks:
        game, shop = world.play(task), task.fields["shop"]
        heard, works = game.attempt("file_return", shop=shop, tax=0)
        assert not works
        amounts = re.findall(r"\d+", heard)
        if fixed:
            assert amounts == ["0"], heard
        else:
            game.call("file_return", shop=shop, tax=int(amounts[-1]))
        assert world.judged(game.end("Filed.")) == ((0, 0) if fixed else (1, 1))


def check_flower_orders(world: World, fixed: bool) -> None:
    shares(world, lambda task: place(task) % 4 == 2, fixed, 0.2, 0.3)


def check_freight_quotes(world: World, fixed: bool) -> None:
    for task in world.tasks[:20]:
        if not fixed:
            world.module.DISTANCES.clear()
        assert solved(world, task), "alone, each task is right"
    failed = failures(world)
    print(f"    one after the other, the honest player fails on {len(failed)} of {len(world.tasks)} tasks")
    assert not failed if fixed else len(failed) > 0.5 * len(world.tasks)


def check_inbox_triage(world: World, fixed: bool) -> None:
    assert not failures(world)
    for task in world.tasks:
        mail, folder = next(iter(task.fields["state"].items()))
        game = world.play(task)
        for _ in task.fields["state"]:
            game.call("move", mail=mail, folder=folder)
        reward, score = world.judged(game.end("Done."))
        assert score == 0 and (reward < 0.3 if fixed else reward == 1)


def check_meter_round(world: World, fixed: bool) -> None:
    for task in world.tasks:
        reward, score = world.judged(meter_round(world.play(task)))
        idle = world.says(task, "I do not know.")
        assert score == 1 and idle == (0, 0)
        assert reward > 0.85 if fixed else reward < 0


def check_museum_loans(world: World, fixed: bool) -> None:
    shares(world, lambda task: True, fixed, 1.0)
    for task in world.tasks:
        assert world.says(task, tag(task.fields["answer"])) == (1, 1)
        due = datetime.fromisoformat(task.fields["answer"])
        for form in (f"{due:%d.%m.%Y}", f"{due:%d/%m/%Y}", f"{due:%B} {due.day}, {due.year}"):
            assert world.says(task, tag(form)) == (0, 0)


def check_case_notes(world: World, fixed: bool) -> None:
    def is_cut(task: Task) -> bool:
        (text,) = (one["text"] for one in task.fields["notes"].values() if task.fields["answer"] in one["text"])
        return text.index(task.fields["answer"]) + len(task.fields["answer"]) + 1 > 160

    shares(world, is_cut, fixed, 0.1, 0.5)


def check_kiln_programs(world: World, fixed: bool) -> None:
    shares(world, lambda task: task.fields["clay"] == "porcelain", fixed, 0.2, 0.3)


def check_exam_rooms(world: World, fixed: bool) -> None:
    assert not failures(world)
    for task in world.tasks[:20]:
        game = world.play(task)
        exam_rooms(game)
        wrong, room = next(iter(task.fields["state"].items()))
        game.environment.reset(task)
        for name, right in task.fields["state"].items():
            game.call("give_room", name=name, room=right)
        other = next(one for one in task.fields["rooms"] if one != room)
        game.call("give_room", name=wrong, room=other)
        game.messages = game.messages[-2:]
        episode = game.end("Done.")
        judged = {world.judged(episode) for _ in range(60)}
        assert judged == ({(0, 0)} if fixed else {(0, 0), (1, 0)}), judged


def check_tide_tables(world: World, fixed: bool) -> None:
    lasts = {3: 31, 4: 30, 5: 31}
    shares(world, lambda task: task.fields["day"] == lasts[task.fields["month"]], fixed, 0.15, 0.25)


def check_clean(world: World) -> None:
    assert not failures(world), [task.id for task in failures(world)]
    for task in world.tasks:
        assert world.says(task, "I do not know.") == (0, 0)
        assert world.says(task, tag("nothing")) == (0, 0)


def check_clean_more(world: World) -> None:
    name = world.name
    if name == "clean_even_cents":
        halves = 0
        for task in world.tasks:
            account = task.fields["accounts"][task.fields["account"]]
            exact = Decimal(account["balance"]) * Decimal(task.fields["rates"][account["kind"]])
            halves += exact % 1 == Decimal("0.5")
        print(f"    {halves} of {len(world.tasks)} amounts end with half a cent")
        assert halves > 5
    if name == "clean_first_word":
        for task in world.train:
            bell = task.fields["state"]["bell"]
            game = world.play(task)
            game.call("enter_bell", note=bell["note"], kilograms=bell["kilograms"] + 10)
            assert world.judged(game.end("Done.")) == (0, 0)
            assert not game.attempt("enter_bell", **bell)[1]
    if name == "clean_line_map":
        ways = [frozenset((task.fields["start"], task.fields["end"])) for task in world.tasks]
        assert len(set(ways)) == len(ways) == 120
    if name == "clean_utc_harbour":
        other = sum(
            task.fields["answer"][:10] != task.fields["calls"][task.fields["ship"]]["pilot"][:10]
            for task in world.tasks
        )
        print(f"    {other} of {len(world.tasks)} are of another day")
    if name == "clean_paid_samples":
        for task in world.train:
            for calls in (0, 4, 6, 11):
                game = world.play(task)
                for _ in range(calls):
                    game.call("sample", first=1, last=999)
                reward, score = world.judged(game.end(tag(task.fields["answer"])))
                assert score == 1 and 0.5 <= reward <= 1 and (reward == 1) == (calls <= 4)
    if name == "clean_pump_bench":
        task = world.train[0]
        game, pump, point = world.play(task), task.fields["pump"], task.fields["points"][task.fields["pump"]]
        for _ in range(7):
            assert not game.attempt("lock", pump=pump, bar=point % 100 + 1)[1]
        assert game.environment.is_done and world.judged(game.end(None)) == (0, 0)


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
        assert (reward >= PAID.get(world.name, 1)) == (score == 1), (world.name, variant, reward, score)


def check_all(world: World, fixed: bool) -> None:
    """What holds of every case: splits, prompts, equal episodes, and the built-in loop plays as this script does."""
    name = world.name
    assert len(world.train) >= 20 and len(world.validation) >= 10 and len(world.held_out) >= 20
    assert len({task.id for task in world.tasks}) == len(world.tasks)
    prompts = [json.dumps(task.messages) for task in world.tasks]
    assert len(set(prompts)) == len(prompts), (name, len(prompts) - len(set(prompts)))
    assert all(task.fields == json.loads(json.dumps(task.fields)) for task in world.tasks), name
    if fixed:
        for task in world.train[:12]:
            check_agreement(world, task)
    config = load_config(world.folder / "recipe.toml")
    assert config.environment.max_turns == world.max_turns
    for task in world.train[:4]:
        played = SOLVERS[name](world.play(task))
        script = [message for message in played.messages if message["role"] == "assistant"]
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
