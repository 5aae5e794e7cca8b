"""The expert's calls changed in ways that models find: left out, doubled, with other arguments, replaced by a shortcut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sparring.agents.scripts import Action, Call, actions_of, edited
from sparring.checks.answers import canonical
from sparring.checks.calls import likely_calls
from sparring.checks.golds import Gold, Golds
from sparring.checks.subject import Subject
from sparring.environments import answer, tool_call
from sparring.environments.tools import Tool, fits
from sparring.types import Json, Message

MOST_NAMES = 8
"""Things that the expert changed, on which another tool is tried."""


def doubled(script: Sequence[Message], action: Action) -> tuple[Message, ...]:
    same = Call(action.tool, action.arguments)
    return edited(script, {(action.message, action.place): (same, same)})


def with_other_arguments(
    script: Sequence[Message], action: Action, values: Mapping[tuple[str, str], Sequence[Json]]
) -> Iterator[tuple[str, Call, tuple[Message, ...]]]:
    """The script with one argument of a call changed: its name, the changed call, and the script. `values` are what the experts
    of all tasks give, by tool and argument."""
    for name, value in action.arguments.items():
        others = [one for one in values.get((action.tool, name), ()) if canonical(one) != canonical(value)]
        for other in [*others[:1], *_near(value)]:
            changed = Call(action.tool, {**action.arguments, name: other})
            yield name, changed, edited(script, {(action.message, action.place): (changed,)})


def in_another_order(script: Sequence[Message], actions: Sequence[Action]) -> tuple[Message, ...]:
    """The script with these calls made backwards."""
    backwards = zip(actions, reversed(actions), strict=True)
    return edited(script, {(a.message, a.place): (Call(b.tool, b.arguments),) for a, b in backwards})


def in_place_of(script: Sequence[Message], actions: Sequence[Action], calls: Sequence[Call]) -> tuple[Message, ...]:
    """The script with other calls where the first of these stood."""
    places = {(one.message, one.place): () for one in actions}
    first = actions[0]
    return edited(script, {**places, (first.message, first.place): tuple(calls)})


def followed_by(script: Sequence[Message], calls: Sequence[Call]) -> tuple[Message, ...]:
    """The script with further calls before its last message; at its end where that calls a tool itself."""
    said = [tool_call(one.tool, **one.arguments) for one in calls]
    if script[-1].get("tool_calls"):
        return (*script, *said, answer("Done."))
    return (*script[:-1], *said, script[-1])


def argument_values(golds: Golds) -> dict[tuple[str, str], list[Json]]:
    """What the experts give to each argument, each value once, by tool and name."""
    found: dict[tuple[str, str], dict[str, Json]] = {}
    for gold in golds.by_task.values():
        for one in actions_of(gold.script):
            for name, value in one.arguments.items():
                found.setdefault((one.tool, name), {})[canonical(value)] = value
    return {key: list(values.values()) for key, values in found.items()}


async def tried(subject: Subject, gold: Gold, tool: Tool, idle: Json, right: Json) -> list[list[Call]]:
    """Calls of a tool that the expert does not use: on all that it acted on or changed, one after the other, and likely ones."""
    likely = await likely_calls(subject, gold.task, tool)
    named = []
    acted_on = [value for one in actions_of(gold.script) for value in one.arguments.values()]
    names = list({canonical(one): one for one in [*acted_on, *_changed_names(idle, right)]}.values())
    for argument in sorted(tool.required):
        rest = likely[0].arguments if likely else {}
        calls = [
            Call(tool.name, {**rest, argument: name}) for name in names
            if argument in tool.hints and fits(name, tool.hints[argument])
        ]  # fmt: skip
        if calls and tool.required <= calls[0].arguments.keys():
            named.append(calls[:MOST_NAMES])
    return [*named, *([one] for one in likely[:2])]


def _changed_names(idle: Json, right: Json) -> list[Json]:
    """Keys and values that name what the expert changed: the keys on the way, and what stayed in a row that changed."""
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
            gone, new = without(before, after), without(after, before)
            for place, row in enumerate(gone):
                walk(row, new[place] if place < len(new) else {})

    walk(idle, right)
    return list(found.values())


def without(rows: Sequence[Json], others: Sequence[Json]) -> list[Json]:
    """Those rows that the others do not have, as often as they do not."""
    left = Counter(map(canonical, others))
    found = []
    for row in rows:
        if left[canonical(row)] > 0:
            left[canonical(row)] -= 1
        else:
            found.append(row)
    return found


def _near(value: Json) -> list[Json]:
    """Values that are nearly the same."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1]
    return [f"{value} x"] if isinstance(value, str) else []
