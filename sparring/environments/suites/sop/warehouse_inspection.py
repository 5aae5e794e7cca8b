"""Warehouse inspection: unpack the boxes of a pallet one by one until there is enough evidence, then seal the pallet.

The agent must decide when to stop: this is a sequential test with a bound on either side, and one result that ends the
test at once. The slip number depends on the verdict and on the number of unpacked boxes, so one box too few or too many
results in a different number.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Literal, TypeAlias

from sparring.environments.demonstrations import tool_call
from sparring.environments.suites.sop.domain import (
    Case,
    Clause,
    Script,
    SopDomain,
    StatefulDesk,
    distractor,
    final_output,
    slip,
)
from sparring.environments.suites.sop.entities import Draw, Pool, codes
from sparring.environments.tools import tool
from sparring.types import Json

PALLETS, SUPPLIERS = Pool(codes("LMTZ")), Pool(codes("NSUH"))
NUM_BOXES = 6
USUAL_FEE = 5
FEES = (2, 3, 4, 6, 7, 8, 9)
Verdict: TypeAlias = Literal["accept", "refuse", "isolate"]

RUNS: Mapping[Verdict, tuple[str, ...]] = {
    "accept": ("gg", "bgg", "gbgg"),
    "refuse": ("bb", "gbb", "bgb", "gbgb"),
    "isolate": ("w", "gw", "bw", "gbw", "bgw"),
}
"""The results of unpacking (good, bent or wet), up to the box that determines the verdict."""
STRICT_RUNS: Mapping[Verdict, tuple[str, ...]] = {"accept": ("gg",), "refuse": ("b", "gb"), "isolate": ("w", "gw")}
FOUND = {"g": "good", "b": "bent", "w": "wet"}

SCHEMA = """
CREATE TABLE pallets (id TEXT PRIMARY KEY, supplier TEXT, dock INTEGER, humidity INTEGER);
CREATE TABLE contracts (supplier TEXT PRIMARY KEY, fee INTEGER, strict INTEGER, cap INTEGER, since INTEGER);
CREATE TABLE boxes (number INTEGER PRIMARY KEY, found TEXT, is_unpacked INTEGER DEFAULT 0);
CREATE TABLE seals (verdict TEXT, slip TEXT);
"""


class Desk(StatefulDesk):
    """Tools for one pallet at the dock, its boxes in order, and the contract of its supplier."""

    def open(self, state: Mapping[str, Json], database: sqlite3.Connection) -> None:
        database.executescript(SCHEMA)
        database.execute("INSERT INTO pallets VALUES (?, ?, ?, ?)", state["pallet"])
        database.execute("INSERT INTO contracts VALUES (?, ?, ?, ?, ?)", state["contract"])
        database.executemany("INSERT INTO boxes (found) VALUES (?)", [(found,) for found in state["boxes"]])

    @tool
    def pallet(self, pallet: str) -> Json:
        """supplier"""
        return {"supplier": self._one("SELECT supplier FROM pallets WHERE id = ?", pallet)[0]}

    @tool
    def contract(self, supplier: str) -> Json:
        """fee for a bad box, and whether the contract is strict"""
        fee, strict = self._one("SELECT fee, strict FROM contracts WHERE supplier = ?", supplier)
        return {"fee": fee, "strict": bool(strict)}

    @tool
    def cap(self, supplier: str) -> Json:
        """largest charge"""
        return {"cap": self._one("SELECT cap FROM contracts WHERE supplier = ?", supplier)[0]}

    @tool
    def unpack(self, pallet: str) -> Json:
        """opens the next box: good, bent or wet"""
        self._check_open(pallet)
        database = self.state.database
        row = database.execute("SELECT number, found FROM boxes WHERE NOT is_unpacked ORDER BY number").fetchone()
        if row is None:
            raise ValueError(f"all {NUM_BOXES} boxes are unpacked")
        database.execute("UPDATE boxes SET is_unpacked = 1 WHERE number = ?", row[:1])
        return {"box": row[0], "found": row[1]}

    @tool
    def seal(self, pallet: str, verdict: Verdict) -> Json:
        """ends the inspection; gives the slip"""
        self._check_open(pallet)
        database = self.state.database
        (num_unpacked,) = database.execute("SELECT sum(is_unpacked) FROM boxes").fetchone()
        number = self.slip(verdict, num_unpacked)
        database.execute("INSERT INTO seals VALUES (?, ?)", (verdict, number))
        return {"slip": number}

    @distractor
    def dock(self, pallet: str) -> Json:
        """where the pallet stands"""
        return {"dock": self._one("SELECT dock FROM pallets WHERE id = ?", pallet)[0]}

    @distractor
    def humidity(self, pallet: str) -> Json:
        """humidity at the pallet, in per cent"""
        return {"humidity": self._one("SELECT humidity FROM pallets WHERE id = ?", pallet)[0]}

    @distractor
    def since(self, supplier: str) -> Json:
        """first year of a supplier"""
        return {"year": self._one("SELECT since FROM contracts WHERE supplier = ?", supplier)[0]}

    def _one(self, query: str, key: str) -> tuple[Json, ...]:
        row = self.state.database.execute(query, (key,)).fetchone()
        if row is None:
            raise LookupError(f"not found: {key}")
        return row

    def _check_open(self, pallet: str) -> None:
        self._one("SELECT id FROM pallets WHERE id = ?", pallet)
        if self.state.database.execute("SELECT 1 FROM seals").fetchone():
            raise ValueError("the pallet is sealed")

    def expert(self, given: Mapping[str, Json], longer: int, skipped: frozenset[str]) -> Script:
        pallet = given["pallet"]
        supplier = (yield tool_call("pallet", pallet=pallet))["supplier"]
        contract = yield tool_call("contract", supplier=supplier)
        is_strict = longer >= 1 and contract["strict"] and "strict" not in skipped
        most_bad = 1 if is_strict or "second" in skipped else 2
        least_good = 1 if "run" in skipped else 2
        num_bad = num_good_in_a_row = 0
        verdict: Verdict | None = None
        while verdict is None:
            found = (yield tool_call("unpack", pallet=pallet))["found"]
            num_bad += found != "good"
            num_good_in_a_row = num_good_in_a_row + 1 if found == "good" else 0
            if found == "wet" and "wet" not in skipped:
                verdict = "isolate"
            elif num_bad == most_bad:
                verdict = "refuse"
            elif num_good_in_a_row == least_good:
                verdict = "accept"
        number = (yield tool_call("seal", pallet=pallet, verdict=verdict))["slip"]
        fee = contract["fee"]
        if fee is None:
            fee = 0 if "missing" in skipped else USUAL_FEE
        charge = num_bad * (USUAL_FEE if "fee" in skipped else fee)
        if longer >= 2 and "cap" not in skipped:
            charge = min(charge, (yield tool_call("cap", supplier=supplier))["cap"])
        yield final_output(verdict=verdict, charge=charge, slip=number)


def draw_case(draw: Draw, is_missing: bool, longer: int) -> Case:
    """Draw a pallet whose first boxes decide the verdict. The boxes after them are random."""
    pallet, supplier = draw.entity(PALLETS), draw.entity(SUPPLIERS)
    is_strict = draw.between(1, 5) <= 2
    runs = STRICT_RUNS if is_strict and longer >= 1 else RUNS
    verdict: Verdict = draw.pick(("refuse", "isolate") if is_missing else tuple(RUNS))
    run = draw.pick(runs[verdict])
    num_bad = len(run) - run.count("g")
    fee = USUAL_FEE if is_missing else draw.pick(FEES)
    full_charge = num_bad * fee
    is_capped = longer >= 2 and full_charge > 0 and draw.pick((True, False))
    cap = draw.between(1, full_charge - 1) if is_capped else full_charge + draw.between(0, 9)
    charge = min(full_charge, cap) if longer >= 2 else full_charge
    usual_charge = num_bad * USUAL_FEE if longer < 2 else min(num_bad * USUAL_FEE, cap)
    decides = {
        "run": "g" in run,
        "second": "b" in run and runs is RUNS,
        "wet": "w" in run,
        "fee": usual_charge != charge,
        "missing": is_missing,
        "strict": "b" in run and runs is STRICT_RUNS,
        "cap": is_capped,
    }
    rest = [draw.pick("gggbw") for _ in range(NUM_BOXES - len(run))]
    salt = str(draw.rng.getrandbits(32))
    return Case(
        request=f"Inspect pallet {pallet}.",
        given={"pallet": pallet},
        state={
            "salt": salt,
            "pallet": [pallet, supplier, draw.between(1, 20), draw.between(30, 90)],
            "contract": [supplier, None if is_missing else fee, int(is_strict), cap, draw.between(1995, 2024)],
            "boxes": [FOUND[letter] for letter in (*run, *rest)],
        },
        answer={"verdict": verdict, "charge": charge, "slip": slip(salt, verdict, len(run))},
        checks=tuple(check for check, does in decides.items() if does),
    )


DOMAIN = SopDomain(
    name="warehouse_inspection",
    role="You inspect pallets.",
    idea="a sequential test that stops at the first of three bounds; the count of findings is priced",
    pattern="stateful",
    desk=Desk,
    draw_case=draw_case,
    steps=(
        "Get the pallet and the contract of its supplier.",
        "Unpack box after box, and stop at the first of these:\n"
        "a wet box: verdict isolate\n"
        "two bad boxes (bent or wet) in all: verdict refuse\n"
        "two good boxes in a row: verdict accept",
        "Seal the pallet with the verdict. This gives the slip.",
        "Charge is the fee times the bad boxes.",
    ),
    if_missing=f"A fee that is null is {USUAL_FEE}.",
    clauses=(
        Clause(text="With a strict contract one bad box is enough to refuse."),
        Clause(text="The charge is at most the cap.", tools=("cap",)),
    ),
    answer_form={"verdict": "", "charge": 0, "slip": ""},
)
SchemaDesk = DOMAIN.schema_desk()
train_tasks, validation_tasks, held_out_tasks = DOMAIN.train_tasks, DOMAIN.validation_tasks, DOMAIN.held_out_tasks
clerk_log, reward, scorer = DOMAIN.clerk_log, DOMAIN.reward, DOMAIN.scorer
