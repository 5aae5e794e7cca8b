"""Aircraft inspection: release an aircraft for a trip, or state what keeps it on the ground, and which unit is the
cause.

The limit that is reached first decides. Each unit has two limits, one in hours and one in landings, which are compared
with the hours and landings of the trip. Papers take precedence over limits, and an extension moves one of the two
limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from sparring.environments.demonstrations import tool_call
from sparring.environments.replayed_tools import replayed
from sparring.environments.suites.sop.domain import (
    Case,
    Clause,
    ReplayDesk,
    Script,
    SopDomain,
    distractor,
    final_output,
    replies,
)
from sparring.environments.suites.sop.entities import Draw, Pool, codes
from sparring.types import Json

AIRCRAFT, UNITS = Pool(codes("DGK")), Pool(codes("PQRSUVWXYZ"))
Verdict: TypeAlias = Literal["release", "overhaul", "inspect", "ground"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class Desk(ReplayDesk):
    """Tools for installed units, their certificates, and their remaining service life."""

    @replayed
    def fitted(self, aircraft: str) -> Json:
        """units on the aircraft"""

    @replayed
    def papers(self, aircraft: str) -> Json:
        """units that the logbook has signed for"""

    @replayed
    def left(self, unit: str) -> Json:
        """hours and landings left"""

    @replayed
    def extension(self, unit: str) -> Json:
        """extra hours granted"""

    @replayed
    def watch(self, aircraft: str) -> Json:
        """whether the aircraft is on the watch list"""

    @distractor
    @replayed
    def fuel(self, aircraft: str) -> Json:
        """fuel on board, in tons"""

    @distractor
    @replayed
    def maker(self, unit: str) -> Json:
        """who made a unit, and when"""

    @distractor
    @replayed
    def stand(self, aircraft: str) -> Json:
        """where the aircraft is parked"""

    def expert(self, given: Mapping[str, Json], longer: int, skipped: frozenset[str]) -> Script:
        aircraft = given["aircraft"]
        if longer >= 2 and "watch" not in skipped and (yield tool_call("watch", aircraft=aircraft))["watched"]:
            yield final_output(verdict="ground", unit="none")
        units = (yield tool_call("fitted", aircraft=aircraft))["units"]
        if "papers" not in skipped:
            signed = (yield tool_call("papers", aircraft=aircraft))["units"]
            for unit in units:
                if unit not in signed:
                    yield final_output(verdict="ground", unit=unit)
        landings = given["landings"] + 2 * (longer >= 1 and given["over"] == "water" and "water" not in skipped)
        for unit in units:
            left = yield tool_call("left", unit=unit)
            if None in left.values():
                yield final_output(verdict="release" if "missing" in skipped else "ground", unit=unit)
            short = left["hours"] < given["hours"]
            if short and "extension" not in skipped:
                short = left["hours"] + (yield tool_call("extension", unit=unit))["hours"] < given["hours"]
            if short and "hours" not in skipped:
                yield final_output(verdict="overhaul", unit=unit)
            if left["landings"] < landings and "landings" not in skipped:
                yield final_output(verdict="inspect", unit=unit)
        yield final_output(verdict="release", unit="none")


def draw_case(draw: Draw, is_missing: bool, longer: int) -> Case:
    """Draw three units, at most one of which keeps the aircraft on the ground."""
    aircraft, stray = draw.entity(AIRCRAFT), draw.entity(UNITS)
    units = [draw.entity(UNITS) for _ in range(3)]
    hours, landings = draw.between(6, 15), draw.between(2, 6)
    over = draw.pick(("land", "water")) if longer >= 1 else None
    needed = landings + 2 * (over == "water")
    # Some units have just enough left, so that only a comparison decides.
    left: dict[str, dict[str, int | None]] = {
        unit: {
            "hours": hours + draw.pick((0, draw.between(1, 60))),
            "landings": needed + draw.pick((0, draw.between(1, 30))),
        }
        for unit in units
    }
    extensions = {unit: draw.pick((0, draw.between(1, 9))) for unit in units}
    signed = draw.rng.sample(units, 3)
    found, extended = draw.rng.sample(units, 2)
    checks: list[str] = []
    verdict: Verdict = draw.rng.choices(VERDICTS, weights=(19, 27, 27, 27))[0]
    if verdict == "ground":
        checks.append("papers")
        signed[signed.index(found)] = stray
    elif verdict == "overhaul":
        checks.append("hours")
        lacking = draw.between(2, hours - 1)
        left[found]["hours"] = hours - lacking
        extensions[found] = draw.between(0, lacking - 1)
    elif verdict == "inspect":
        checks.append("landings")
        if over == "water" and draw.pick((True, False)):
            checks.append("water")
            left[found]["landings"] = draw.between(landings, needed - 1)
        else:
            left[found]["landings"] = draw.between(0, landings - 1)
    # The extension matters only if its unit comes before the one with the fault, because the inspection ends there.
    is_reached = verdict == "release" or (verdict == "inspect" and units.index(extended) < units.index(found))
    if is_reached and draw.pick((True, False)):
        checks.append("extension")
        lacking = draw.between(1, 5)
        left[extended]["hours"] = hours - lacking
        extensions[extended] = draw.between(lacking, 9)
    unit = "none" if verdict == "release" else found
    if is_missing:
        verdict, unit, checks = "ground", extended, ["missing"]
        signed = units[::-1]
        left = {unit: {"hours": hours + 9, "landings": needed + 9} for unit in units}
        left[extended][draw.pick(("hours", "landings"))] = None
    is_watched = longer >= 2 and draw.between(1, 5) == 1
    if is_watched:
        verdict, unit, checks = "ground", "none", ["watch"]
    given = {"aircraft": aircraft, "hours": hours, "landings": landings} | ({"over": over} if over else {})
    return Case(
        request=f"Aircraft {aircraft}, trip of {hours} hours and {landings} landings"
        + (f" over {over}." if over else "."),
        given=given,
        state=[
            replies("fitted", {"units": units}, aircraft=aircraft),
            replies("papers", {"units": signed}, aircraft=aircraft),
            replies("watch", {"watched": is_watched}, aircraft=aircraft),
            replies("fuel", {"tons": draw.between(3, 40)}, aircraft=aircraft),
            replies("stand", {"stand": draw.between(1, 60)}, aircraft=aircraft),
            *(replies("left", left[unit], unit=unit) for unit in units),
            *(replies("extension", {"hours": extensions[unit]}, unit=unit) for unit in units),
            *(
                replies(
                    "maker", {"maker": draw.pick(("Orso", "Tamm", "Veld")), "year": draw.between(1998, 2024)}, unit=unit
                )
                for unit in units
            ),
        ],
        answer={"verdict": verdict, "unit": unit},
        checks=tuple(checks),
    )


DOMAIN = SopDomain(
    name="aircraft_inspection",
    role="You release aircraft.",
    idea="the earliest limit, of two for each unit; papers before limits; an extension moves one limit",
    pattern="replay",
    desk=Desk,
    draw_case=draw_case,
    steps=(
        "fitted gives the units. If papers lacks one of them: verdict ground, that unit. This goes before all else.",
        "Get what each unit has left. It needs at least the hours and the landings of the trip.",
        "Too few hours: add its extension. Still too few: verdict overhaul, that unit.",
        "Too few landings: verdict inspect, that unit.",
        "Nothing found: verdict release, unit none.",
    ),
    if_missing="If a number that is left is null: verdict ground, that unit.",
    clauses=(
        Clause(text="Over water a unit needs 2 landings more than the trip has."),
        Clause(text="Before step 1: an aircraft on watch gets verdict ground, unit none.", tools=("watch",)),
    ),
    answer_form={"verdict": "", "unit": ""},
)
SchemaDesk = DOMAIN.schema_desk()
train_tasks, validation_tasks, held_out_tasks = DOMAIN.train_tasks, DOMAIN.validation_tasks, DOMAIN.held_out_tasks
clerk_log, reward, scorer = DOMAIN.clerk_log, DOMAIN.reward, DOMAIN.scorer
