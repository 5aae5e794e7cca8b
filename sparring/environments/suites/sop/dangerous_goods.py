"""Dangerous goods: decide whether a crate with several substances may fly, and how much of its limits it uses.

A sum determines the verdict: each substance uses up a share of the limit of its own class, and the shares are added.
Before that, the procedure checks that no two classes in the crate must travel apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from sparring.environments.tools import tool
from sparring.sandbox import calculate
from sparring.types import Json

CRATES, SUBSTANCES = Pool(codes("BC", 100, 299)), Pool(codes("EFGHKMNPTU"))
LIMITS = (20, 25, 50, 100, 200)


class Desk(ReplayDesk):
    """Tools for crates, substances and the rules for classes, and a calculator."""

    @replayed
    def crate(self, crate: str) -> Json:
        """substances in it"""

    @replayed
    def substance(self, id: str) -> Json:
        """class, liters, packing"""

    @replayed
    def rule(self, number: int) -> Json:
        """limit of a class in liters, classes to keep apart from it"""

    @tool
    async def calculate(self, expression: str) -> Json:
        """arithmetic"""
        value = await calculate(expression)
        return {"value": round(value) if value == round(value) else value}

    @replayed
    def drum(self, id: str) -> Json:
        """liters that the drum of a substance takes"""

    @distractor
    @replayed
    def carrier(self, crate: str) -> Json:
        """who flies a crate"""

    @distractor
    @replayed
    def label(self, id: str) -> Json:
        """color of the label of a substance"""

    @distractor
    @replayed
    def placard(self, number: int) -> Json:
        """shape of the sign of a class"""

    def expert(self, given: Mapping[str, Json], longer: int, skipped: frozenset[str]) -> Script:
        rules: dict[int, Mapping[str, Json]] = {}
        shares: list[str] = []
        for id in (yield tool_call("crate", crate=given["crate"]))["substances"]:
            found = yield tool_call("substance", id=id)
            liters = found["liters"]
            if liters is None:
                liters = 0 if "missing" in skipped else (yield tool_call("drum", id=id))["liters"]
            if found["class"] not in rules:
                rules[found["class"]] = yield tool_call("rule", number=found["class"])
            is_double = longer >= 1 and found["packing"] == "aerosol" and "aerosol" not in skipped
            shares.append(f"{2 * liters if is_double else liters}*100/{rules[found['class']]['limit']}")
        total = f"({'+'.join(shares)})" if "sum" not in skipped else shares[0]
        if longer >= 2 and given["plane"] == "passenger" and "plane" not in skipped:
            total += "*2"
        percent = (yield tool_call("calculate", expression=total))["value"]
        is_apart = any(number in rule["apart"] for rule in rules.values() for number in rules)
        if is_apart and "apart" not in skipped:
            verdict = "split"
        else:
            verdict = "small" if percent <= 50 else "load" if percent <= 100 else "refuse"
        yield final_output(verdict=verdict, percent=percent)


def draw_case(draw: Draw, is_missing: bool, longer: int) -> Case:
    """Draw two or three substances of two classes, with shares that are whole percentages."""
    crate = draw.entity(CRATES)
    substances = [draw.entity(SUBSTANCES) for _ in range(draw.pick((2, 2, 3)))]
    numbers = draw.rng.sample(range(1, 10), 4)
    classes = [numbers[0], numbers[1], draw.pick(numbers[:2])][: len(substances)]
    verdict = draw.pick(("split", "small", "load", "refuse"))
    plane = draw.pick(("cargo", "passenger")) if longer >= 2 else None
    packings = [draw.pick(("can", "drum", "aerosol")) for _ in substances]
    doubled = [
        (2 if longer >= 1 and packing == "aerosol" else 1) * (2 if plane == "passenger" else 1) for packing in packings
    ]
    while True:
        limits = {number: draw.pick(LIMITS) for number in numbers[:2]}
        liters = [draw.between(1, limits[number]) for number in classes]
        shares = [
            100 * factor * amount / limits[number]
            for factor, amount, number in zip(doubled, liters, classes, strict=True)
        ]
        if all(share.is_integer() for share in shares) and _fits(verdict, shares):
            break
    checks = ["sum"]
    checks += ["apart"] if verdict == "split" else []
    checks += ["plane"] if plane == "passenger" else []
    checks += ["aerosol"] if longer >= 1 and "aerosol" in packings else []
    unknown = draw.rng.randrange(len(substances)) if is_missing else None
    checks += ["missing"] if is_missing else []
    apart = {numbers[0]: [numbers[2]], numbers[1]: [numbers[3]]}
    if verdict == "split":
        apart = {numbers[0]: [numbers[1], numbers[2]], numbers[1]: [numbers[0]]}
    return Case(
        request=f"Crate {crate}" + (f", {plane} plane." if plane else "."),
        given={"crate": crate} | ({"plane": plane} if plane else {}),
        state=[
            replies("crate", {"substances": substances}, crate=crate),
            replies("carrier", {"carrier": draw.pick(("Norda", "Vento", "Lift"))}, crate=crate),
            *(
                replies(
                    "substance",
                    {"class": number, "liters": None if place == unknown else amount, "packing": packing},
                    id=id,
                )
                for place, (id, number, amount, packing) in enumerate(
                    zip(substances, classes, liters, packings, strict=True)
                )
            ),
            *(replies("drum", {"liters": amount}, id=id) for id, amount in zip(substances, liters, strict=True)),
            *(replies("label", {"color": draw.pick(("red", "blue", "green"))}, id=id) for id in substances),
            *(replies("rule", {"limit": limits[number], "apart": apart[number]}, number=number) for number in apart),
            *(replies("placard", {"shape": draw.pick(("square", "round"))}, number=number) for number in apart),
        ],
        answer={"verdict": verdict, "percent": round(sum(shares))},
        checks=tuple(checks),
    )


def _fits(verdict: str, shares: Sequence[float]) -> bool:
    """Return whether the sum leads to this verdict. A crate that must be split may have any sum."""
    total = sum(shares)
    return {"split": total <= 150, "small": total <= 50, "load": 50 < total <= 100, "refuse": 100 < total <= 200}[
        verdict
    ]


DOMAIN = SopDomain(
    name="dangerous_goods",
    role="You check crates for air freight.",
    idea="a sum of shares, each of the limit of its own class; pairs of classes that must not meet",
    pattern="replay",
    desk=Desk,
    draw_case=draw_case,
    steps=(
        "Get the substances of the crate, and of each the rule of its class.",
        "A substance takes liters*100/limit per cent. Add them up with calculate, as in 30*100/50+4*100/20.",
        "Classes in the crate that must be apart: verdict split.",
        "Else, by the sum: up to 50 small, up to 100 load, above refuse.",
    ),
    if_missing="Where liters is null, count the drum as full.",
    clauses=(
        Clause(text="The liters of an aerosol count double."),
        Clause(text="On a passenger plane the sum counts double."),
    ),
    answer_form={"verdict": "", "percent": 0},
)
SchemaDesk = DOMAIN.schema_desk()
train_tasks, validation_tasks, held_out_tasks = DOMAIN.train_tasks, DOMAIN.validation_tasks, DOMAIN.held_out_tasks
clerk_log, reward, scorer = DOMAIN.clerk_log, DOMAIN.reward, DOMAIN.scorer
