"""Problems of tools that a plan reveals: a call needs different arguments than the task names, or its effect is too
small or too large."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.plans import Plan, Step, list_leaves
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import get_documentation
from sparring.types import Json

_FACTORS = {
    10: "",
    60: r"min(?:ute)?s?|sec(?:ond)?s?",
    100: r"cents?|pence|pennies|minor|per ?cent|percent\w*|basis|cm|centimet\w+",
    1000: r"grams?|g|ml|millilit\w+|mm|millimet\w+|met(?:er|re)s?|m|ms|millisec\w+|milli\w*|watts?|w|thousand\w*|bytes?",
    3600: r"sec(?:ond)?s?",
}
"""Factors between units, and words for the smaller unit."""
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Detour:
    """A problem that a plan reveals: the step, a description that is the same in all tasks, and the expected and the
    actual value."""

    step: Step
    what: str
    expected: Json
    got: Json


def find_scaled(subject: Subject, plan: Plan) -> Iterator[Detour]:
    """Yield numbers that the prompt gives in a different unit than the tool requires, if the tool does not document its
    unit."""
    if not plan.is_whole:
        return
    prompted = {float(one) for message in plan.task.messages for one in _NUMBER.findall(get_text(message))}
    for step in plan.steps:
        for name, value in step.call.arguments.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value or float(value) in prompted:
                continue
            for factor, words in _FACTORS.items():
                is_documented = words and re.search(rf"\b(?:{words})\b", get_documentation(subject, step.call.tool))
                if value / factor in prompted and not is_documented:
                    what = f"`{name}` of `{step.call.tool}` must be {factor} times the number that the prompt names"
                    yield Detour(step, what, value / factor, value)


def find_detours(plan: Plan, plans: Sequence[Plan]) -> Iterator[Detour]:
    """Yield calls that are refused at first, but accepted after a change to the same object that the task does not
    request. In other tasks, such a call is accepted at once."""
    if not plan.is_whole:
        return
    refused = {str(one.call) for one in plan.refused}
    for first, second in itertools.pairwise(plan.steps):
        before, two = first.call.arguments, second.call.arguments
        others = [name for name in two if before.get(name) != two[name]]
        if first.call.tool != second.call.tool or before.keys() != two.keys() or len(others) != 1 or len(two) < 2:
            continue
        is_choice = isinstance(two[others[0]], bool)
        is_usual = any(
            len(other.steps) == 1 and other.steps[0].call.tool == second.call.tool and other.is_whole for other in plans
        )
        if str(second.call) in refused and is_usual and not is_choice:
            step = next(one for one in plan.refused if str(one.call) == str(second.call))
            yield Detour(
                step,
                f"`{step.call.tool}` refuses the requested call, but accepts it after `{others[0]}` was changed to "
                "another value,",
                "accepted, as in other tasks",
                step.answer,
            )


def find_left_over(plan: Plan) -> Iterator[Detour]:
    """Yield references that remain to an object that a call removed, if they are the only surplus in the final
    state."""
    if plan.is_whole or plan.missing or plan.surplus - list_leaves(plan.states[0]):
        return
    for step, before, after in zip(plan.steps, plan.states, plan.states[1:], strict=False):
        gone = list_leaves(before) - list_leaves(after)
        named = [str(value) for value in step.call.arguments.values() if isinstance(value, str) and value]
        over = [text for _, text in plan.surplus if any(_names(text, one) for one in named)]
        if gone and len(over) == len(plan.surplus):
            yield Detour(step, f"`{step.call.tool}` leaves something that must be removed with the rest,", [], over[:4])
            return


def find_spread(plan: Plan) -> Iterator[Detour]:
    """Yield calls that make a required change, but also make the same change in another place."""
    if plan.is_whole:
        return
    right = list_leaves(plan.wanted)
    for step, before, after in plan.effects:
        old, new = list_leaves(before), list_leaves(after)
        done, spoilt = (new - old) & (right - old), (new - old) - right
        places, own = {place for place, _ in done}, {str(value) for value in step.call.arguments.values()}
        same = [(place, text) for place, text in spoilt if place not in places and text in {one for _, one in done}]
        if done and same and len(same) == spoilt.total() and not any(own & set(place) for place, _ in same):
            what = f"`{step.call.tool}` changes another place in addition to the one that it names"
            yield Detour(step, what, _shown(done), _shown(same))
            return


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _shown(leaves: Mapping[tuple[tuple[str, ...], str], int] | Sequence[tuple[tuple[str, ...], str]]) -> Json:
    return [f"{'.'.join(place)}: {text[:80]}" for place, text in list(leaves)[:4]]
