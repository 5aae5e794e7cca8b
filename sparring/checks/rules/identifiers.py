"""Rules on items that tools create and remove: identifiers stay unique, and undoing a change restores the state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sparring.checks.evidence.arguments import fit_to_schema
from sparring.checks.evidence.explore import Call
from sparring.checks.evidence.snapshots import Change, View, flatten, refuses, turns_down
from sparring.checks.evidence.stored_values import is_number
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.write_probes import LOOK, Bench, Probe, ProbeRun, documents, split_path
from sparring.checks.rules.effects import AGAIN, is_history, keep_first_of_each, probe_unspoilt
from sparring.environments import ToolResult
from sparring.findings import Finding, Severity
from sparring.types import Json

_FRESH = ("Quince 77", "Medlar 78", "Sorrel 79")
MOST_TAKEN = 8
"""The number of existing items that are removed, each before a new one is created."""
_PLACES = re.compile(r"\b(?:position|place|slot|rank|row|line|index|seat|locker|bay)s?\b", re.IGNORECASE)
"""Words in results that stand for places. The numbers of places are reused on purpose."""
_ADDING = frozenset(
    [
        "add",
        "append",
        "create",
        "insert",
        "submit",
        "post",
        "send",
        "enter",
        "register",
        "book",
        "record",
        "deliver",
        "queue",
    ]
)
_UNDOING = frozenset(
    ["cancel", "remove", "delete", "return", "undo", "release", "unbook", "withdraw", "restore", "unassign", "drop", "refund",
     "discard", "clear", "revoke", "detach", "leave", "free", "unregister", "unlock", "takeback"]
)  # fmt: skip
_AVAILABLE = frozenset(
    ["free", "available", "left", "remaining", "stock", "capacity", "balance", "seat", "place", "total", "sum", "amount",
     "vacancy", "vacant", "open", "unit", "copy", "copie", "shelf", "quantity", "count", "size", "used", "taken", "reserved",
     "spot"]
)  # fmt: skip


async def identifiers(subject: Subject) -> Iterable[Finding]:
    """A created item gets a unique identifier, and still exists after more items are created.

    The rule calls each tool that creates items twice, and once more after an item was removed. It reports an error if
    two items get the same identifier, or if a later item replaces an earlier one, for example because identifiers are
    derived from the number of items. It warns if the identifier of a removed item is assigned again, because stored
    references to it then refer to a different item. It also warns if the first added item is gone after a second one is
    added. The rule also removes an item that existed from the start, and then creates a new one. It reports an error if
    the new item gets the identifier of an item that still exists, and so replaces that item. To avoid this, take
    identifiers from a counter that never decreases.
    """
    found: list[Finding] = []
    with subject.timing.as_far_as_it_goes():
        for bench in await probe_unspoilt(subject):
            for bases in list(bench.bases.values()):
                finding = await _given_again(bench, bases[0]) or await _place_taken(bench, bases[0])
                if finding is not None:
                    found.append(finding)
    return keep_first_of_each(found)


def _fresh_calls(bench: Bench, base: Probe) -> list[Call]:
    """Return three variants of a call that changes something, with other texts for the arguments that accept any
    text."""
    keys = bench.keys(base.call)
    properties = bench.schema(base.call.tool).get("properties", {})
    free = [
        name
        for name, value in base.call.arguments.items()
        if isinstance(value, str) and name not in keys and "enum" not in properties.get(name, {})
    ]
    taken = {
        one.parameter for one in bench.probes if one.call.tool == base.call.tool and one.changes and not one.is_refused
    }
    calls = [Call(base.call.tool, {**base.call.arguments, **{n: text for n in free if n in taken}}) for text in _FRESH]
    return calls if all(map(bench.is_allowed, calls)) else [base.call] * 3


def _named_in(result: ToolResult, call: Call, before: View, after: View) -> str | None:
    """Return the identifier of the created item in a result: a text that is not an argument, and under which a new item
    is listed."""
    given = {str(one) for one in call.arguments.values()}
    new = after.names - before.names - given
    return next((one for one in _words(result.content) if one in new), None)


async def _given_again(bench: Bench, base: Probe) -> Finding | None:
    tool = base.call.tool
    if base.ended:
        return None
    first, second, third = _fresh_calls(bench, base)
    both = await bench.run([first, LOOK, second, LOOK])
    if both.ended or refuses(both.results[0], first.arguments):
        return None
    name = _named_in(both.results[0], first, bench.first, both.views[0])
    if name is not None and _PLACES.search(both.results[0].content):
        return None
    if name is None:
        return _added_and_lost(bench, first, second, both)
    if refuses(both.results[1], second.arguments):
        return None
    other = _named_in(both.results[1], second, both.views[0], both.views[1])
    lost = _overwritten(both.views[0], both.views[1], name)
    is_named_again = name in _words(both.results[1].content)
    if str(first) != str(second) and lost and (other is None or other == name) and is_named_again:
        return _same(
            bench,
            (first, second),
            both,
            f"{tool} gives the identifier {name!r} to two items, and the second replaces the first.",
        )
    taking = await _taking_away(bench, first, name)
    if taking is None:
        return None
    if other is not None and other != name:
        steps = [first, second, taking, LOOK, third, LOOK]
        after = await bench.run(steps)
        if not refuses(after.results[3], third.arguments) and _overwritten(after.views[0], after.views[1], other):
            return _same(
                bench,
                (first, second, taking, third),
                after,
                f"{tool} assigns an identifier that is in use: after {taking.tool}, {other!r} is overwritten.",
            )
    again = await bench.run([first, taking, LOOK, second, LOOK])
    slots = (
        "slot",
        "seat",
        "locker",
        "bay",
        "free",
        "lowest",
        "position",
        "place",
        "table",
        "berth",
        "shelf",
        "first",
        "again",
        "next",
    )
    if refuses(again.results[2], second.arguments) or documents(bench, tool, *slots):
        return None
    third_name = _named_in(again.results[2], second, again.views[0], again.views[1])
    if third_name == name and other is not None and other != name:
        return _same(
            bench,
            (first, taking, second),
            again,
            f"{tool} assigns the identifier {name!r} again after {taking.tool} removed it.",
            Severity.WARNING,
        )
    return None


async def _place_taken(bench: Bench, base: Probe) -> Finding | None:
    """Return a finding if an item that is created after the removal of an existing item gets an identifier that is in
    use."""
    create = base.call
    if base.ended or bench.first.names - base.after.names:
        return None
    for taking, key in _takings(bench, create.tool):
        played = await bench.run([taking, LOOK, create, LOOK])
        if played.ended or any(map(refuses, played.results, (taking.arguments, create.arguments))):
            continue
        left, after = played.views
        given = {str(one) for one in (*create.arguments.values(), *taking.arguments.values())}
        new = [one for one in _words(played.results[1].content) if one not in {*_words(base.result.content), *given}]
        lost = sorted(one for one in (left.names - after.names) & bench.first.names - given if not one.isdigit())
        for name in (one for one in new if lost and re.search(r"\d", one)):
            other = Call(taking.tool, {**taking.arguments, key: name})
            probe = await bench.run([other, LOOK])
            is_in_use = not refuses(probe.results[0], other.arguments) and bench.first.changes_to(probe.views[0])
            if is_in_use:
                return _same(
                    bench,
                    (taking, create),
                    played,
                    f"{create.tool} assigns {name!r}, which is in use, after {taking.tool}, and replaces {lost[0]!r}.",
                )
    return None


def _takings(bench: Bench, create: str) -> list[tuple[Call, str]]:
    """Return calls that remove items that existed from the start, each with the argument that identifies the item."""
    found: dict[str, tuple[Call, str]] = {}
    for probe in list(bench.probes):
        if probe.call.tool == create or probe.is_refused or probe.ended or not bench.first.names - probe.after.names:
            continue
        for name, value in probe.call.arguments.items():
            if isinstance(value, str) and value in bench.first.texts:
                alike = sorted(one for one in bench.first.texts if _shape(one) == _shape(value))
                calls = (Call(probe.call.tool, {**probe.call.arguments, name: one}) for one in (value, *alike))
                found |= {str(one): (one, name) for one in calls if bench.is_allowed(one)}
    return list(found.values())[:MOST_TAKEN]


def _shape(text: str) -> str:
    """Return a code with all digits replaced by the same digit."""
    return re.sub(r"\d", "0", text)


def _words(text: str) -> list[str]:
    return re.findall(r"[\w][\w./-]*[\w]|\w", text)


def _same(
    bench: Bench, calls: Sequence[Call], played: ProbeRun, symptom: str, severity: Severity = Severity.ERROR
) -> Finding:
    answers: list[Json] = [one.content[:120] for one in played.results]
    return Finding(
        rule="environment.identifiers",
        severity=severity,
        symptom=symptom,
        evidence={
            "task": bench.task.id,
            "calls": [str(one) for one in calls],
            "answers": answers,
            "changed": [one.as_json() for one in played.views[0].changes_to(played.views[-1])[:6]],
        },
        change="Count identifiers upwards within the episode, even if items are removed.",
        confirm=AGAIN,
    )


def _overwritten(before: View, after: View, name: str) -> bool:
    """Return True if the content listed under a name is not the same as before."""
    return any(name in one.path and one.before is not None for one in before.changes_to(after) if not is_history(one))


def _added_and_lost(bench: Bench, first: Call, second: Call, both: ProbeRun) -> Finding | None:
    """Return a finding on a tool that adds texts if the first text is gone after a second one was added."""
    tool = first.tool
    texts = [value for value in first.arguments.values() if value in _FRESH]
    if (
        str(first) == str(second)
        or not texts
        or not split_path([tool]) & _ADDING
        or refuses(both.results[1], second.arguments)
    ):
        return None
    if documents(bench, tool, "replac", "overwrit", "last", "latest", "current", "only", "newest", "instead"):
        return None
    shown = [_shows(view, str(texts[0])) for view in both.views]
    is_second_there = _shows(both.views[1], _FRESH[1])
    if not (shown[0] and not shown[1] and is_second_there):
        return None
    return _same(
        bench,
        (first, second),
        both,
        f"the first item that {tool} adds is gone after a second one is added.",
        Severity.WARNING,
    )


def _shows(view: View, text: str) -> bool:
    return any(text in str(value) or any(text in part for part in path) for path, value in view.leaves.items())


async def _taking_away(bench: Bench, create: Call, name: str) -> Call | None:
    """Return the call that removes the created item."""
    for tool in sorted(bench.writing - {create.tool}):
        properties = bench.schema(tool).get("properties", {})
        bases = bench.bases.get(tool)
        required = list(bench.schema(tool).get("required", ()))
        call = Call(tool, dict.fromkeys(required)) if bases is None else bases[0].call
        if bases is None and len(required) != 1:
            continue
        for key in call.arguments:
            fitted = fit_to_schema(name, properties.get(key, {}))
            if fitted is None or (key not in bench.keys(call) and len(call.arguments) > 1):
                continue
            taking = Call(tool, {**call.arguments, key: fitted})
            played = await bench.run([create, LOOK, taking, LOOK])
            if played.ended or refuses(played.results[1], taking.arguments):
                continue
            if name in played.views[0].names and name not in played.views[1].names:
                return taking
    return None


async def undone(subject: Subject) -> Iterable[Finding]:
    """Making a change and undoing it leaves the state as it was.

    The rule creates and removes an item, and sets a value and sets it back. It also calls a tool whose name suggests an
    undo action (cancel, return, release) with the arguments of another tool. It warns if most of the changes were
    reverted even though one number was not, such as a total that was increased twice or a free seat that was not
    released. It warns if the created item is gone even though another item that it took is not back in its place. It
    also warns if everything looks as it did before even though the same call is refused when it is made again. Logs and
    histories may grow. The rule accepts a fee, or a record that is kept, if the description mentions it.
    """
    found: list[Finding] = []
    with subject.timing.as_far_as_it_goes():
        for bench in await probe_unspoilt(subject):
            for bases in list(bench.bases.values()):
                for back, is_set in await _ways_back(bench, bases[0]):
                    finding = await _not_restored(bench, bases[0], back, is_set=is_set)
                    if finding is None and not is_set:
                        finding = await _not_repeated(bench, bases[0].call, back)
                    if finding is not None:
                        found.append(finding)
    return keep_first_of_each(found)


async def _ways_back(bench: Bench, base: Probe) -> list[tuple[Call, bool]]:
    """Return the calls that should undo the changes of a call, each with True if it sets a value."""
    if base.ended:
        return []
    ways: list[tuple[Call, bool]] = []
    for name, value in base.call.arguments.items():
        if name in bench.keys(base.call) or isinstance(value, bool):
            continue
        old = [one.before for one in base.changes if one.after == value and type(one.after) is type(one.before)]
        if old and len(set(map(str, old))) == 1:
            back = Call(base.call.tool, {**base.call.arguments, name: old[0]})
            if bench.is_allowed(back):
                ways.append((back, True))
    made = _named_in(base.result, base.call, bench.first, base.after)
    taking = None if made is None else await _taking_away(bench, base.call, made)
    if taking is not None:
        ways.append((taking, False))
    for tool in bench.subject.tools:
        others = bench.bases.get(tool)
        taken = {} if others is None else others[0].call.arguments
        shared = bench.subject.tools[tool].hints.keys() & base.call.arguments.keys()
        if tool == base.call.tool or not shared or not split_path([tool]) & _UNDOING:
            continue
        back = Call(tool, {**taken, **{name: base.call.arguments[name] for name in shared}})
        if bench.is_allowed(back):
            ways.append((back, False))
    return ways


async def _not_restored(bench: Bench, base: Probe, back: Call, *, is_set: bool) -> Finding | None:
    stems = (
        "fee",
        "charge",
        "deposit",
        "keep",
        "kept",
        "penal",
        "non-refund",
        "not refund",
        "remain",
        "half",
        "percent",
        "history",
    )
    done = base.call
    if any(documents(bench, tool, *stems) for tool in {done.tool, back.tool}):
        return None
    played = await bench.run([done, back, LOOK])
    if played.ended or any(
        refuses(one, call.arguments) for one, call in zip(played.results, (done, back), strict=True)
    ):
        return None
    touched = {one.path for one in base.changes if one.before is not None}
    left = [one for one in bench.first.changes_to(played.views[0]) if one.path in touched and not is_history(one)]
    numbers = [one for one in left if is_number(one.before) and is_number(one.after) and _is_off(one)]
    if not is_set:
        numbers = [one for one in numbers if split_path(one.path) & _AVAILABLE]
    gone = _gone(base, played.views[0])
    numbers = numbers or ([] if is_set or not gone else _not_given_back(base, played.views[0]))
    if not numbers or len(left) == len(touched | gone):
        return None
    return Finding(
        rule="environment.undone",
        severity=Severity.WARNING,
        symptom=f"{back.tool} {'sets the old value again' if is_set else f'undoes what {done.tool} did'}, but "
        f"{'/'.join(numbers[0].path)} is not as before.",
        evidence={
            "task": bench.task.id,
            "calls": [str(done), str(back)],
            "answers": [one.content[:120] for one in played.results],
            "changed": [one.as_json() for one in numbers[:6]],
        },
        change=f"Let {back.tool} revert everything that {done.tool} changes.",
        confirm=AGAIN,
    )


_ONCE = ("once", "final", "for good", "fee", "limit", "wait", "only", "one time", "budget", "keep", "kept", "remain")
"""Beginnings of words in the description of an action that cannot be repeated."""


async def _not_repeated(bench: Bench, done: Call, back: Call) -> Finding | None:
    """Return a finding on a call that is refused after it was undone, although everything that tools show looks as it
    did before."""
    if any(documents(bench, tool, *_ONCE) for tool in {done.tool, back.tool}):
        return None
    numbers = [name for name, value in done.arguments.items() if type(value) is int]
    more = [Call(done.tool, {**done.arguments, name: value}) for name in numbers for value in (3, 2)]
    for call in (done, *filter(bench.is_allowed, more)):
        played = await bench.run([call, back, LOOK, call])
        first, undoing, again = played.results
        if played.ended or refuses(first, call.arguments) or refuses(undoing, back.arguments):
            continue
        if any(not is_history(one) for one in bench.first.changes_to(played.views[0])):
            continue
        if turns_down(again, call.arguments):
            return Finding(
                rule="environment.undone",
                severity=Severity.WARNING,
                symptom=f"{back.tool} does not undo everything that {call.tool} did: all tools show the old state, "
                f"but {call} is refused when it is made again: {again.content[:100]}",
                evidence={
                    "task": bench.task.id,
                    "calls": [str(call), str(back), str(call)],
                    "answers": [one.content[:120] for one in played.results],
                },
                change=f"Let {back.tool} revert everything that {call.tool} changes.",
                confirm=AGAIN,
            )
    return None


def _gone(base: Probe, after: View) -> set[tuple[str, ...]]:
    """Return the paths of items that a call added and that have since disappeared."""
    return {one.path for one in base.changes if one.before is None and one.path not in after.leaves}


def _not_given_back(base: Probe, after: View) -> list[Change]:
    """Return the additions of a call that still exist, if an item that the call names is not back in its old place."""
    named = {str(value) for _, value in flatten(dict(base.call.arguments), ())}
    own = [one for one in base.changes if named & set(one.path[1:]) and not is_history(one)]
    is_missing = any(one.after is None and one.path not in after.leaves for one in own)
    return [one for one in own if one.before is None and one.path in after.leaves] if is_missing else []


def _is_off(change: Change) -> bool:
    return abs(float(change.after) - float(change.before)) > 1e-6 * max(1.0, abs(float(change.before)))
