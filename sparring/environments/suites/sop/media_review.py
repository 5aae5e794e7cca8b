"""Media review: run the checks that are due for a clip, and decide by the worst result.

The kind of the clip determines which of the many checks count. The worst (highest) of their grades is compared with the
two limits of the market. Checks that are not due often find something worse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

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
from sparring.environments.suites.sop.entities import PEOPLE, Draw, Pool, codes
from sparring.types import Json

CLIPS, MARKETS = Pool(codes("VCD")), Pool(codes("MOR"))
KINDS = ("advert", "film", "game", "lesson", "news", "series", "song", "sport", "trailer", "vlog")
CHECKS = (
    "gore", "slang", "flash", "alcohol", "brands", "drugs", "faces", "fire", "flags", "gambling", "health", "minors", "music",
    "nudity", "plates", "prices", "smoking", "stunts", "weapons",
)  # fmt: skip
HABIT = CHECKS[:3]
"""The checks that hasty clerks make whether or not they are due."""
USUAL_LIMITS = (4, 7)
NULL_GRADE = 5
Verdict: TypeAlias = Literal["pass", "cut", "ban"]


def _check(name: str) -> Callable[..., Json]:
    def check(self: ReplayDesk, clip: str) -> Json:
        """grade"""

    check.__name__ = name
    return replayed(check)


class Desk(ReplayDesk):
    """Tools for clips and for the rules for kinds and markets, and nineteen checks."""

    @replayed
    def clip(self, clip: str) -> Json:
        """kind and market"""

    @replayed
    def due(self, kind: str) -> Json:
        """the checks to do"""

    @replayed
    def market(self, market: str) -> Json:
        """the limits cut and ban"""

    gore = _check("gore")
    slang = _check("slang")
    flash = _check("flash")
    alcohol = _check("alcohol")
    brands = _check("brands")
    drugs = _check("drugs")
    faces = _check("faces")
    fire = _check("fire")
    flags = _check("flags")
    gambling = _check("gambling")
    health = _check("health")
    minors = _check("minors")
    music = _check("music")
    nudity = _check("nudity")
    plates = _check("plates")
    prices = _check("prices")
    smoking = _check("smoking")
    stunts = _check("stunts")
    weapons = _check("weapons")

    @replayed
    def second(self, clip: str, check: str) -> Json:
        """grade by a second reviewer"""

    @replayed
    def history(self, clip: str) -> Json:
        """whether the clip was banned before"""

    @distractor
    @replayed
    def length(self, clip: str) -> Json:
        """length in seconds"""

    @distractor
    @replayed
    def uploader(self, clip: str) -> Json:
        """who uploaded the clip"""

    def expert(self, given: Mapping[str, Json], longer: int, skipped: frozenset[str]) -> Script:
        id = given["clip"]
        clip = yield tool_call("clip", clip=id)
        checks = (yield tool_call("due", kind=clip["kind"]))["checks"]
        if "rest" in skipped:
            checks = checks[:1]
        if "due" in skipped:
            checks = [*checks, *(check for check in HABIT if check not in checks)]
        grades: dict[str, int] = {}
        for check in checks:
            found = yield tool_call(check, clip=id)
            if longer >= 1 and not found["sure"] and "second" not in skipped:
                found = yield tool_call("second", clip=id, check=check)
            grades[check] = found["grade"]
            if found["grade"] is None:
                grades[check] = 0 if "missing" in skipped else NULL_GRADE
        worst = max(grades, key=lambda check: grades[check])
        cut, ban = USUAL_LIMITS
        if "limits" not in skipped:
            limits = yield tool_call("market", market=clip["market"])
            cut, ban = limits["cut"], limits["ban"]
        verdict = _verdict(grades[worst], cut, ban)
        if longer >= 2 and "history" not in skipped:
            is_banned = (yield tool_call("history", clip=id))["banned"]
            verdict = "cut" if verdict == "pass" and is_banned else verdict
        yield final_output(worst=worst, grade=grades[worst], verdict=verdict)


def _verdict(grade: int, cut: int, ban: int) -> Verdict:
    if grade >= ban:
        return "ban"
    return "cut" if grade >= cut else "pass"


def draw_case(draw: Draw, is_missing: bool, longer: int) -> Case:
    """Draw three checks that are due, one of which has the worst result, and limits near its grade."""
    clip, market, uploader = draw.entity(CLIPS), draw.entity(MARKETS), draw.entity(PEOPLE)
    kind, other_kind = draw.rng.sample(KINDS, 2)
    due = draw.rng.sample(CHECKS, 3)
    worst = draw.pick(due)
    # The check without a grade may be the worst one, or any other check that is due.
    silent = draw.pick(due) if is_missing else None
    grade = NULL_GRADE if silent == worst else draw.between(6 if is_missing else 4, 8)
    lower = iter(draw.rng.sample(range(1, NULL_GRADE if is_missing else grade), 2))
    grades = {check: draw.between(1, 9) for check in CHECKS}
    grades |= {check: NULL_GRADE if check == silent else next(lower) for check in due if check != worst} | {
        worst: grade
    }
    reached: Verdict = draw.pick(("pass", "cut", "ban"))
    if reached == "pass":
        cut = grade + draw.between(1, 3)
        ban = cut + draw.between(1, 3)
    elif reached == "cut":
        cut, ban = grade - draw.between(0, 2), grade + draw.between(1, 3)
    else:
        ban = grade - draw.between(0, 2)
        cut = ban - 1
    is_banned = longer >= 2 and draw.between(1, 3) == 1
    verdict: Verdict = "cut" if reached == "pass" and is_banned else reached
    usual = _verdict(grade, *USUAL_LIMITS)
    first_grades = dict(grades)
    unsure = (
        draw.pick([check for check in due if check != silent]) if longer >= 1 and draw.pick((True, False)) else None
    )
    if unsure is not None:
        # The first reviewer saw too little in the worst check, or too much in another check.
        first_grades[unsure] = min(grades[check] for check in due) if unsure == worst else grade + 1
    decides = {
        "rest": worst != due[0],
        "due": any(grades[check] > grade for check in HABIT if check not in due),
        "limits": ("cut" if usual == "pass" and is_banned else usual) != verdict,
        "missing": silent == worst,
        "second": unsure is not None,
        "history": verdict != reached,
    }

    def found(check: str) -> dict[str, Json]:
        return {"grade": None if check == silent else first_grades[check]} | (
            {"sure": check != unsure} if longer >= 1 else {}
        )

    return Case(
        request=f"Review clip {clip}.",
        given={"clip": clip},
        state=[
            replies("clip", {"kind": kind, "market": market}, clip=clip),
            replies("due", {"checks": due}, kind=kind),
            replies("due", {"checks": draw.rng.sample(CHECKS, 3)}, kind=other_kind),
            replies("market", {"cut": cut, "ban": ban}, market=market),
            *(replies(check, found(check), clip=clip) for check in CHECKS),
            *(
                replies("second", {"grade": grades[check]}, clip=clip, check=check)
                for check in CHECKS
                if check != silent
            ),
            replies("history", {"banned": is_banned}, clip=clip),
            replies("length", {"seconds": draw.between(5, 600)}, clip=clip),
            replies("uploader", {"name": uploader}, clip=clip),
        ],
        answer={"worst": worst, "grade": grade, "verdict": verdict},
        checks=tuple(check for check, does in decides.items() if does),
    )


DOMAIN = SopDomain(
    name="media_review",
    role="You review clips.",
    idea="which of many checks count depends on the kind; the worst of those against two limits",
    pattern="replay",
    desk=Desk,
    draw_case=draw_case,
    steps=(
        "Get the clip, and the checks that are due for its kind.",
        "Do the due checks and no others. Worst is the one with the highest grade.",
        "Get the limits of the market. Verdict: ban if the grade reaches ban, else cut if it reaches cut, else pass.",
    ),
    if_missing=f"A grade that is null counts as {NULL_GRADE}.",
    clauses=(
        Clause(text="Where a check is not sure, the second grade counts.", tools=("second",)),
        Clause(text="A clip that was banned before gets cut instead of pass.", tools=("history",)),
    ),
    answer_form={"worst": "", "grade": 0, "verdict": ""},
)
SchemaDesk = DOMAIN.schema_desk()
train_tasks, validation_tasks, held_out_tasks = DOMAIN.train_tasks, DOMAIN.validation_tasks, DOMAIN.held_out_tasks
clerk_log, reward, scorer = DOMAIN.clerk_log, DOMAIN.reward, DOMAIN.scorer
