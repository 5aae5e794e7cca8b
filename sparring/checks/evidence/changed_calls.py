"""Changes to the expert's calls that a model may try: calls are left out, repeated, made with other arguments, or
replaced by a shortcut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sparring.agents.scripts import Action, Call, actions_of, edited
from sparring.checks.evidence.answer_forms import canonical
from sparring.checks.evidence.legal_calls import list_likely_calls
from sparring.checks.evidence.reference_episodes import ReferenceEpisode, ReferenceEpisodes
from sparring.checks.evidence.subject import Subject
from sparring.environments import answer, tool_call
from sparring.environments.tools import Tool, fits
from sparring.types import Json, Message

MOST_NAMES = 8
"""The maximum number of names from the expert's episode with which another tool is called."""


def double_call(script: Sequence[Message], action: Action) -> tuple[Message, ...]:
    """Return the script with one call made twice."""
    same = Call(action.tool, action.arguments)
    return edited(script, {(action.message, action.place): (same, same)})


def change_arguments(
    script: Sequence[Message], action: Action, values: Mapping[tuple[str, str], Sequence[Json]]
) -> Iterator[tuple[str, Call, tuple[Message, ...]]]:
    """Yield (argument, changed call, changed script) for each change to one argument of a call. `values` maps each pair
    of tool and argument to the values that the experts of all tasks pass."""
    for name, value in action.arguments.items():
        others = [one for one in values.get((action.tool, name), ()) if canonical(one) != canonical(value)]
        for other in [*others[:1], *_list_near(value)]:
            changed = Call(action.tool, {**action.arguments, name: other})
            yield name, changed, edited(script, {(action.message, action.place): (changed,)})


def reverse_calls(script: Sequence[Message], actions: Sequence[Action]) -> tuple[Message, ...]:
    """Return the script with these calls in reverse order."""
    backwards = zip(actions, reversed(actions), strict=True)
    return edited(script, {(a.message, a.place): (Call(b.tool, b.arguments),) for a, b in backwards})


def replace_calls(script: Sequence[Message], actions: Sequence[Action], calls: Sequence[Call]) -> tuple[Message, ...]:
    """Return the script without these calls, and with other calls in place of the first of them."""
    places = {(one.message, one.place): () for one in actions}
    first = actions[0]
    return edited(script, {**places, (first.message, first.place): tuple(calls)})


def append_calls(script: Sequence[Message], calls: Sequence[Call]) -> tuple[Message, ...]:
    """Return the script with additional calls before its last message, or at its end if the last message calls a
    tool."""
    messages = [tool_call(one.tool, **one.arguments) for one in calls]
    if script[-1].get("tool_calls"):
        return (*script, *messages, answer("Done."))
    return (*script[:-1], *messages, script[-1])


def collect_argument_values(references: ReferenceEpisodes) -> dict[tuple[str, str], list[Json]]:
    """Return, for each pair of tool and argument, the distinct values that the experts pass."""
    found: dict[tuple[str, str], dict[str, Json]] = {}
    for reference in references.by_task.values():
        for one in actions_of(reference.script):
            for name, value in one.arguments.items():
                found.setdefault((one.tool, name), {})[canonical(value)] = value
    return {key: list(values.values()) for key, values in found.items()}


async def list_series(
    subject: Subject, reference: ReferenceEpisode, tool: Tool, idle: Json, right: Json
) -> list[list[Call]]:
    """Return sequences of calls to a tool that the expert does not use: calls with each name that the expert used or
    changed, and other likely calls."""
    likely = await list_likely_calls(subject, reference.task, tool)
    named = []
    acted_on = [value for one in actions_of(reference.script) for value in one.arguments.values()]
    names = list({canonical(one): one for one in [*acted_on, *_list_changed_names(idle, right)]}.values())
    for argument in sorted(tool.required):
        rest = likely[0].arguments if likely else {}
        calls = [
            Call(tool.name, {**rest, argument: name})
            for name in names
            if argument in tool.hints and fits(name, tool.hints[argument])
        ]
        if calls and tool.required <= calls[0].arguments.keys():
            named.append(calls[:MOST_NAMES])
    return [*named, *([one] for one in likely[:2])]


def _list_changed_names(idle: Json, right: Json) -> list[Json]:
    """Return the keys and values that identify what the expert changed: the keys on the path, and the unchanged values
    of a changed row."""
    found: dict[str, Json] = {}

    def note(value: Json) -> None:
        if isinstance(value, str | int) and not isinstance(value, bool):
            found.setdefault(canonical(value), value)

    def walk(before: Json, after: Json) -> None:
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            for key in [*before, *(key for key in after if key not in before)]:
                if canonical(before.get(key)) != canonical(after.get(key)):
                    note(key)
                    walk(before.get(key), after.get(key))
                elif not isinstance(before.get(key), Mapping | list):
                    note(before.get(key))
        elif isinstance(before, list) and isinstance(after, list):
            gone, new = remove_rows(before, after), remove_rows(after, before)
            for place, row in enumerate(gone):
                walk(row, new[place] if place < len(new) else {})

    walk(idle, right)
    return list(found.values())


def remove_rows(rows: Sequence[Json], others: Sequence[Json]) -> list[Json]:
    """Return the rows that are not among the other rows. Each of the other rows removes one equal row."""
    left = Counter(map(canonical, others))
    found = []
    for row in rows:
        if left[canonical(row)] > 0:
            left[canonical(row)] -= 1
        else:
            found.append(row)
    return found


def _list_near(value: Json) -> list[Json]:
    """Return values that are close to this value."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1]
    return [f"{value} x"] if isinstance(value, str) else []
