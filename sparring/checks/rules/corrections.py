"""Rule on error messages that reveal the value the policy has to find."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparring.agents.scripted import saying
from sparring.checks.evidence import changed_calls
from sparring.checks.evidence.answer_forms import canonical, get_text
from sparring.checks.evidence.legal_calls import Call, list_likely_calls, run_calls
from sparring.checks.evidence.reference_episodes import ReferenceEpisode, ReferenceEpisodes, find_references
from sparring.checks.evidence.scripted_episodes import clip
from sparring.checks.evidence.scripts import leaves, to_text
from sparring.checks.evidence.shown_answers import find_shown_answers
from sparring.checks.evidence.subject import Subject, UndecidedError
from sparring.environments import answer
from sparring.findings import Finding, Severity
from sparring.types import Json, Trajectory

NUM_TASKS = 4
MOST_CALLS = 4
"""The number of calls per script that are changed to wrong calls."""
NUM_SHOWN = 3
_LISTED = 0.5
"""A result with at least this share of the other tasks' values counts as a list of everything that is allowed."""


@dataclass(frozen=True, slots=True)
class _Leak:
    reference: ReferenceEpisode
    call: str
    """The wrong call."""
    result: str
    value: Json
    tool: str
    name: str
    """The argument, or the part of the answer, whose value the result reveals."""

    @property
    def shown(self) -> dict[str, Json]:
        return {"task": self.reference.task.id, "call": self.call, "answer": self.result, "gives_away": self.value}


async def leak_in_results(subject: Subject) -> Iterable[Finding]:
    """The result of a wrong call does not reveal what the policy has to find out.

    The rule makes the expert's calls, each with one wrong value at a time. A leak is an error message or a result that
    contains a value of the correct call or of the answer (`expected 37`), if neither the prompt nor a tool has shown
    this value before. A wrong call is then the shortest way to the value, and the policy learns to make it first. Error
    messages should state that the call is wrong, but not which value is correct. Lists of everything that is allowed
    are not leaks.

    Without an expert, the rule warns if a read-only tool shows the whole reference answer of several tasks under a name
    such as `answer`. It also warns if the answer comes from a file that no description mentions and whose name begins
    with a dot or an underscore. In the same way, it warns if a field of the tool's records is always the answer, and
    the tool's description names the other fields but not this one.
    """
    references = await find_references(subject)
    if references is None:
        return []
    if not references.has_expert:
        return await find_shown_answers(subject, references)
    found: dict[tuple[str, str], list[_Leak]] = {}
    tasks = [reference for reference in references.sampled(subject) if changed_calls.actions_of(reference.script)][
        :NUM_TASKS
    ]
    for reference in tasks:
        async for leak in _leaks(subject, references, reference):
            found.setdefault((leak.tool, leak.name), []).append(leak)
    return [
        _report(tool, name, leaks)
        for (tool, name), leaks in found.items()
        if len({one.reference.task.id for one in leaks}) >= min(2, len(tasks))
    ]


def _report(tool: str, name: str, leaks: Sequence[_Leak]) -> Finding:
    return Finding(
        rule="data.leak_in_results",
        severity=Severity.ERROR,
        symptom=f"{tool} answers a wrong call with the right {name or 'answer'}: {clip(leaks[0].result, 120)!r}.",
        evidence={
            "calls": [one.shown for one in leaks[:NUM_SHOWN]],
            "tasks": len({one.reference.task.id for one in leaks}),
        },
        change="State that the call is wrong, not which call would be right.",
        confirm="Run the check again: no result of a wrong call contains a value that the policy has to find out.",
    )


async def _leaks(subject: Subject, references: ReferenceEpisodes, reference: ReferenceEpisode) -> AsyncIterator[_Leak]:
    expert = await subject.run_episode(reference.task, references.policy(reference.task), graded=False)
    calls = changed_calls.actions_of(reference.script)
    values = changed_calls.collect_argument_values(references)
    for number, one in enumerate(calls[:MOST_CALLS]):
        secret = list(_undisclosed(references, reference, expert, calls, after=number))
        for _, wrong, script in changed_calls.change_arguments(reference.script, one, values) if secret else ():
            policy = saying(f"wrong: {number} {wrong}", (*script[: one.message + 1], answer("")))
            try:
                played = await subject.run_episode(reference.task, policy, graded=False)
            except UndecidedError:
                continue
            result = _result_of_call(played, number)
            for name, value in _given_away(result, wrong, secret):
                yield _Leak(reference, str(wrong), result, value, one.tool, name)
    used, secret = {one.tool for one in calls}, list(_undisclosed(references, reference, expert, calls, after=0))
    for tool in (one for name, one in subject.tools.items() if name not in used and secret):
        for wrong in (await list_likely_calls(subject, reference.task, tool))[:MOST_CALLS]:
            result = (await run_calls(subject, reference.task, [wrong]))[0]
            for name, value in _given_away(result.content, wrong, secret) if result.error is not None else ():
                yield _Leak(reference, str(wrong), result.content, value, tool.name, name)


def _given_away(text: str, call: Call, secret: Sequence[tuple[str, Json, list[Json]]]) -> Iterator[tuple[str, Json]]:
    """Yield the name and the value of each secret in a string, except those that the call itself contains, because a
    tool may echo them."""
    for name, value, others in secret:
        if _names(_as_text(call.arguments), value):
            continue
        listed = sum(_names(text, other) for other in others)
        if _names(text, value) and not (others and listed >= _LISTED * len(others)):
            yield name, value


def _undisclosed(
    references: ReferenceEpisodes,
    reference: ReferenceEpisode,
    expert: Trajectory,
    calls: Sequence[changed_calls.Action],
    *,
    after: int,
) -> Iterator[tuple[str, Json, list[Json]]]:
    """Yield (name, value, other tasks' values) for each value that the expert passes in call `after`, in a later call
    or in the answer, if no earlier text has shown this value."""
    values = changed_calls.collect_argument_values(references)
    for number, one in enumerate(calls):
        shown = "\n".join([_heard(expert, before=number), *(_as_text(before.arguments) for before in calls[:number])])
        for name, value in one.arguments.items() if number >= after else ():
            if _is_telling(value) and not _names(shown, value):
                yield name, value, _others(value, values[one.tool, name])
    shown = "\n".join([_heard(expert, before=len(calls)), *(_as_text(before.arguments) for before in calls)])
    for name, value in (reference.parts or {}).items():
        if references.form.tool is None and _is_telling(value) and not _names(shown, value):
            yield name, value, _others(value, references.labels()[name])


def _others(value: Json, values: Sequence[Json]) -> list[Json]:
    return list({canonical(one): one for one in values if canonical(one) != canonical(value)}.values())


def _is_telling(value: Json) -> bool:
    """Return True if a value is so long that it is unlikely to appear in a string by chance."""
    return isinstance(value, str | int | float) and not isinstance(value, bool) and len(to_text(value)) >= 2


def _names(text: str, value: Json) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(to_text(value))}(?!\w|\.\d)", text) is not None


def _as_text(arguments: Mapping[str, Json]) -> str:
    return "\n".join(to_text(value) for value in leaves(dict(arguments)))


def _heard(trajectory: Trajectory, *, before: int) -> str:
    """Return the prompt and the tool results of the first `before` calls."""
    heard, answered = [], 0
    for message in trajectory.messages:
        if message.get("role") == "tool":
            answered += 1
            if answered > before:
                break
        if message.get("role") != "assistant":
            heard.append(get_text(message))
    return "\n".join(heard)


def _result_of_call(trajectory: Trajectory, number: int) -> str:
    """Return the result of the call with that number."""
    answers = [get_text(message) for message in trajectory.messages if message.get("role") == "tool"]
    return answers[number] if number < len(answers) else ""
