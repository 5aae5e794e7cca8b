"""Rule on offers: a tool must accept what another tool offers, and refuse what that tool excludes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparring.checks.evidence.explore import Call, is_refusal
from sparring.checks.evidence.legal_calls import leaves
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import Survey, choose_num_tasks, survey_task
from sparring.environments import execute
from sparring.environments.base import final_state, reset
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
FEWEST = 2
"""The number of offered choices that are refused, and of other choices that are accepted, before the rule reports the
tool."""
MOST_CHOICES = 8


@dataclass(slots=True)
class _Offers:
    """The choices that a tool names or leaves out, and their effects."""

    kept: int = 0
    refused: list[dict[str, Json]] = field(default_factory=list)
    """Choices that are named, but have no effect."""
    taken: list[dict[str, Json]] = field(default_factory=list)
    """Choices that are not named, but have an effect."""


async def offers(subject: Subject) -> Iterable[Finding]:
    """A tool accepts the choices that another tool names as possible, and refuses the others.

    If a tool takes one of a list of choices, and another tool's result names some of these choices, the rule tries each
    choice in a fresh environment. If a named choice has no effect while a choice that is not named has an effect, the
    two tools interpret the state differently. Examples of such choices are directions, places, and possible next
    states. Let both tools read the same table.
    """
    found: dict[tuple[str, str], _Offers] = {}
    with subject.timing.as_far_as_it_goes():
        for name in subject.tools:
            choices = _choices(subject, name)
            for task in subject.sample[: choose_num_tasks(subject, len(subject.sample))] if choices else ():
                await _try(subject, task, name, choices, found)
    return [
        _report(shows, tool, seen)
        for (shows, tool), seen in found.items()
        if len(seen.refused) >= FEWEST and len(seen.taken) >= FEWEST
    ]


def _report(shows: str, tool: str, seen: _Offers) -> Finding:
    return Finding(
        rule="environment.offers",
        severity=Severity.WARNING,
        symptom=f"{tool} does nothing for {len(seen.refused)} choices that {shows} names, for example "
        f"{seen.refused[0]['call']}, but accepts {len(seen.taken)} choices that {shows} does not name, for "
        f"example {seen.taken[0]['call']}.",
        evidence={
            "named_and_refused": seen.refused[:4],
            "not_named_and_done": seen.taken[:4],
            "as_named": seen.kept,
        },
        change="Let both tools read one table of the possible choices.",
        confirm=AGAIN,
    )


def _choices(subject: Subject, tool: str) -> dict[str, Sequence[Json]]:
    """Return the only required argument of a tool with the texts that it accepts, if the argument takes one of a list
    of texts."""
    parameters = subject.tools[tool].schema["function"].get("parameters", {})
    required = list(parameters.get("required", ()))
    choices = parameters.get("properties", {}).get(required[0], {}).get("enum", []) if len(required) == 1 else []
    is_usable = 2 < len(choices) <= MOST_CHOICES and all(isinstance(one, str) for one in choices)
    return {required[0]: choices} if is_usable else {}


async def _try(
    subject: Subject,
    task: Task,
    tool: str,
    choices: Mapping[str, Sequence[Json]],
    found: dict[tuple[str, str], _Offers],
) -> None:
    """Try each choice in a fresh environment, and compare its effect with the choices that other tools name."""
    ((argument, values),) = choices.items()
    survey = await survey_task(subject, task)
    named = _find_named(survey, tool, values)
    for value in values if named else ():
        call = Call(tool, {argument: value})
        has_effect, result = await _effect(subject, survey, call, [Call(shows, {}) for shows in named])
        for shows, texts in named.items():
            seen = found.setdefault((shows, tool), _Offers())
            evidence: dict[str, Json] = {
                "task": task.id,
                "call": str(call),
                "answer": result,
                "named": sorted(map(str, texts)),
            }
            if (value in texts) == has_effect:
                seen.kept += 1
            elif value in texts:
                seen.refused.append(evidence)
            else:
                seen.taken.append(evidence)


def _find_named(survey: Survey, tool: str, values: Sequence[Json]) -> dict[str, set[Json]]:
    """Return the choices that each other tool names, if it names some of them but not all."""
    named = {
        one.call.tool: texts
        for one in survey.found()
        if one.call.tool != tool
        and not one.call.arguments
        and (texts := {v for _, v in leaves(one.value)} & set(values))
    }
    return {shows: texts for shows, texts in named.items() if len(texts) < len(values)}


async def _effect(subject: Subject, survey: Survey, call: Call, shows: Sequence[Call]) -> tuple[bool, str]:
    """Return what a call returned, and whether it changes the final state or other tools' results, or ends the
    episode."""
    own = copy.deepcopy(survey.task)
    async with subject.opened(own) as environment:
        await reset(environment, own)
        for one in survey.opening:
            await execute(environment, one.tool, dict(one.arguments))

        async def state() -> list[Json]:
            seen = [(await execute(environment, one.tool, dict(one.arguments))).content for one in shows]
            return [*seen, await final_state(environment, own)]

        before = await state()
        result = await execute(environment, call.tool, dict(call.arguments))
        if environment.is_done:
            return True, result.content[:200]
        return not is_refusal(result) and await state() != before, result.content[:200]
