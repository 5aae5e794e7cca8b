"""A rule for runs without a scorer: behaviors that become more frequent because they are rewarded. With a scorer,
`mechanism` finds what is rewarded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from sparring.detectors.evidence import Measure, named, reward, shown, slope, spread
from sparring.detectors.trend import Trend, trend
from sparring.findings import Finding, Severity
from sparring.run_folders.history import Digest, History
from sparring.types import Json

Direction: TypeAlias = int
"""The suspicious direction: 1 if more of the behavior is suspicious, -1 if less of it is."""

PAID = 0.25
"""The smallest difference in reward between episodes with much and with little of a behavior, as a share of the spread
of rewards."""
CERTAIN = 4.0
"""The number of standard errors that the growth of a behavior and the reward for it must exceed."""
GROWN = 1.5
"""The factor by which a behavior must have become more or less frequent."""

_MARK = re.compile(r"<[^<>\s]+>|\*\*|^\s*(?:[-*#]|\d+[.)])\s|```", flags=re.MULTILINE)


def _words(digest: Digest) -> list[str]:
    return re.findall(r"\w+", digest.answer.casefold())


HABITS: Mapping[str, tuple[Direction, Measure]] = {
    "more tool calls": (1, lambda one: len(one.calls)),
    "more calls made twice": (1, lambda one: len(one.calls) - len(set(one.calls))),
    "fewer tool calls": (-1, lambda one: len(one.calls)),
    "fewer turns": (-1, lambda one: one.num_turns),
    "more different words in the answer": (1, lambda one: len(set(_words(one)))),
    "more repeated words in the answer": (1, lambda one: len(_words(one)) - len(set(_words(one)))),
    "more tags, bullets and marks in the answer": (1, lambda one: len(_MARK.findall(one.answer))),
}


def pays_for_habit(history: History) -> Iterable[Finding]:
    """Warn if, without a scorer, a behavior changes by a factor of 1.5 in a suspicious direction, and episodes of the
    same group earn more for it.

    The behaviors are: more tool calls, more repeated calls, more different words, repeated words or formatting marks in
    the answer, and fewer calls or turns.
    """
    seen = trend(history)
    if seen is None or seen.scores is not None or seen.scale <= 0:
        return
    for what, (direction, measure) in HABITS.items():
        paid = _paid(seen, direction, measure)
        if paid is None:
            continue
        before, now = seen.windows.means(measure)
        most = sorted(seen.windows.now, key=lambda one: -direction * measure(one.digest))
        yield Finding(
            rule="reward.pays_for_habit",
            severity=Severity.WARNING,
            symptom=f"{what}: {before:.1f} per episode at first, {now:.1f} now. The reward pays for this behavior, and "
            "without a scorer it is not known whether the behavior helps.",
            evidence={**seen.as_json(), "subject": what, **paid, "examples": shown(most)},
            change="Set a scorer (reward.scorer). Reward what the task requires, or limit what this behavior can earn.",
            confirm="With a scorer, stored episodes of equal score no longer earn more for this behavior.",
            step=history.last_step,
            trajectories=named(most),
        )
        return


def _paid(seen: Trend, direction: Direction, measure: Measure) -> dict[str, Json] | None:
    """Return what the behavior earns, or None if it has not become more frequent or earns little."""
    before, now = seen.windows.means(measure)
    low, high = sorted((before, now))
    grows = seen.windows.change(lambda digest: direction * measure(digest))
    if high < GROWN * low or not grows.exceeds(CERTAIN):
        return None
    pay = slope(seen.windows.all, measure, reward)
    if pay is None or not (pay if direction > 0 else -pay).exceeds(CERTAIN):
        return None
    if spread(measure(one.digest) for one in seen.windows.all) * abs(pay.value) < PAID * seen.scale:
        return None
    return {
        "at_first": round(before, 3),
        "now": round(now, 3),
        "paid_for_one": round(pay.value, 4),
        "paid_error": round(pay.error, 4),
    }
