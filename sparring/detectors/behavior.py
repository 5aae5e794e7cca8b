"""What a policy does more and more because it is paid for it: calls, haste, long lists, decoration."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sparring.detectors.evidence import Measure, named, reward, score, shown, slope, spread
from sparring.detectors.registry import detector
from sparring.detectors.trend import EXPLAINED, LIKELY, SURE, Trend, trend
from sparring.findings import Finding, Severity
from sparring.history import Digest, History
from sparring.types import Json

PAID = 0.25
"""What the paid habit must be worth between episodes with little and with much of it, as a share of what being right earns."""
CERTAIN = 4.0
"""Standard errors that a habit needs without a scorer to tell whether it helps."""
GROWN = 1.5
"""Times that it must have grown, or shrunk, without a scorer."""

_MARKUP = re.compile(r"<[^<>\s]+>|\*\*|^\s*(?:[-*#]|\d+[.)])\s|```", flags=re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Habit:
    """Something that episodes have more or less of, and which direction is suspect."""

    what: str
    measure: Measure
    direction: int = 1


def _words(digest: Digest) -> list[str]:
    return re.findall(r"\w+", digest.answer.casefold())


def num_calls(digest: Digest) -> float:
    return float(len(digest.calls))


def num_repeated_calls(digest: Digest) -> float:
    return float(len(digest.calls) - len(set(digest.calls)))


def num_turns(digest: Digest) -> float:
    return float(digest.num_turns)


def num_distinct_words(digest: Digest) -> float:
    return float(len(set(_words(digest))))


def num_repeated_words(digest: Digest) -> float:
    return float(len(_words(digest)) - len(set(_words(digest))))


def num_markup(digest: Digest) -> float:
    return float(len(_MARKUP.findall(digest.answer or " ".join(digest.said[-1:]))))


def num_tokens(digest: Digest) -> float:
    return float(digest.num_tokens)


@detector("tools.spam")
def tool_spam(history: History) -> Iterable[Finding]:
    """Calls, or calls that were made before with the same arguments, grow and are paid among siblings of equal score."""
    yield from _grown(
        history, "tools.spam",
        Habit("tool calls", num_calls), Habit("calls made twice", num_repeated_calls),
        change="Pay for what calls find out, not for calls; bound what they can earn to less than being right does.",
    )  # fmt: skip


@detector("answers.early")
def early_answers(history: History) -> Iterable[Finding]:
    """Episodes get shorter by calls or by turns, that is paid among siblings of equal score, and right ones need more."""
    yield from _grown(
        history, "answers.early", Habit("tool calls", num_calls, -1), Habit("turns", num_turns, -1),
        change="Take less off for turns and calls, so that finding out is better than guessing, or pay haste to right ones only.",
        is_suspect=_right_ones_need_more,
    )  # fmt: skip


@detector("answers.stuffed")
def stuffed_answers(history: History) -> Iterable[Finding]:
    """Answers name more and more different things, and that is paid among siblings of equal score."""
    yield from _grown(
        history, "answers.stuffed", Habit("different words of the answer", num_distinct_words),
        change="Compare the answer as a whole; do not search it for the right words.",
    )  # fmt: skip


@detector("answers.farmed_format")
def farmed_format(history: History) -> Iterable[Finding]:
    """Tags, bullets and marks grow in answers, and that is paid among siblings of equal score."""
    yield from _grown(
        history, "answers.farmed_format", Habit("tags and marks of the answer", num_markup),
        change="Pay for a form once, whole, and little; not by the number of its elements.",
    )  # fmt: skip


@detector("answers.repetitive")
def repetitive_answers(history: History) -> Iterable[Finding]:
    """Answers repeat their words more and more, and that is paid among siblings of equal score."""
    yield from _grown(
        history, "answers.repetitive", Habit("repeated words of the answer", num_repeated_words),
        change="Count what is said once, and bound the length of an answer.",
    )  # fmt: skip


def _grown(
    history: History,
    rule: str,
    *habits: Habit,
    change: str,
    is_suspect: Callable[[Trend, Habit], bool] = lambda seen, habit: True,
) -> Iterable[Finding]:
    seen = trend(history)
    if seen is None or seen.scale <= 0 or seen.is_explained:
        return
    for habit in habits:
        paid = _paid(seen, habit) if is_suspect(seen, habit) else None
        if paid is None:
            continue
        before, now = seen.windows.means(habit.measure)
        most = sorted(
            seen.windows.now,
            key=lambda one, habit=habit: (-habit.direction * habit.measure(one.digest), one.digest.score or 0.0),
        )
        yield Finding(
            rule=rule,
            severity=Severity.ERROR if seen.score_falls and seen.rewards.exceeds(SURE) else Severity.WARNING,
            symptom=f"{habit.what}: {before:.1f} an episode at first, {now:.1f} now; that is paid for, and "
            + ("the score does not rise with it." if seen.scores is not None else "no scorer says whether it helps."),
            evidence={**seen.as_json(), "what": habit.what, **paid, "examples": shown(most)},
            change=change,
            confirm="Among stored episodes of equal score, those with more of it no longer earn more.",
            step=history.last_step,
            trajectories=named(most),
        )  # fmt: skip
        return


def _paid(seen: Trend, habit: Habit) -> dict[str, Json] | None:
    """What the habit earns, if it has grown and earns much."""
    grows = seen.windows.change(lambda digest: habit.direction * habit.measure(digest))
    before, now = seen.windows.means(habit.measure)
    is_judged = seen.scores is not None
    if not grows.exceeds(LIKELY if is_judged else CERTAIN):
        return None
    low, high = sorted((before, now))
    if not is_judged and high < GROWN * low:
        return None
    pay = slope(seen.windows.all, habit.measure, reward, at_equal=score if is_judged else None)
    if pay is None or not (pay if habit.direction > 0 else -pay).exceeds(CERTAIN):
        return None
    apart = spread(habit.measure(one.digest) for one in seen.windows.all) * abs(pay.value)
    if apart < PAID * seen.scale:
        return None
    if is_judged:
        gain = slope(seen.windows.all, habit.measure, score)
        if gain is not None and gain.value * habit.direction * seen.scale >= EXPLAINED * abs(pay.value):
            return None
    return {
        "at_first": round(before, 3), "now": round(now, 3), "paid_for_one": round(pay.value, 4),
        "paid_error": round(pay.error, 4), "paid_for_being_right": round(seen.scale, 4),
    }  # fmt: skip


def _right_ones_need_more(seen: Trend, habit: Habit) -> bool:
    """Whether right episodes have, on average, more of what grows less than all have now. True where nobody says."""
    right = [
        habit.measure(one.digest) for one in seen.windows.all if one.digest.score is not None and one.digest.score > 0
    ]
    if not right:
        return True
    return seen.windows.means(habit.measure)[1] < sum(right) / len(right)
