"""Rules on tools that write: the change can be read afterwards, affects only the named item, and stays within the
episode."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sparring.checks.evidence.explore import Call
from sparring.checks.evidence.snapshots import STATE, Change, Path, flatten, mask_arguments, parse_content, turns_down
from sparring.checks.evidence.stored_values import describe_alteration, has_arrived, is_number, list_new_texts, stores
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.write_probes import (
    LOOK,
    PLAIN,
    TEXTS,
    Bench,
    Probe,
    describes,
    documents,
    probe_writing_tools,
    show_write,
    split_path,
)
from sparring.findings import Finding, Severity
from sparring.types import Json

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
_COUNTERS = frozenset(
    (  # noqa: SIM905 - a list of words
        "attempt try trie tries error mistake failure fail move turn step time clock log history event audit penalty "
        "life live "
        "score count counter call request budget credit energy round strike miss guess last message"
    ).split()
)
"""Words in the names of values that a tool may count or log even if it refuses a call."""
_HISTORIES = frozenset(
    ["history", "log", "event", "audit", "time", "clock", "updated", "modified", "version", "revision", "changed", "next", "turn",
     "move", "step", "call", "request", "last"]
)  # fmt: skip
_DOCUMENTED_TEXTS = (
    "round", "trunc", "cut", "first", "at most", "lower", "upper", "case", "trim", "strip", "ascii", "accent", "max", "up to",
    "limit", "normal", "short", "slug", "characters", "hash", "abbrev", "summar", "clean",
)  # fmt: skip
_DOCUMENTED_NUMBERS = (
    "round", "whole", "trunc", "at most", "at least", "max", "min", "limit", "cap", "clamp", "up to", "range", "between", "never",
    "integer", "nearest",
)  # fmt: skip
"""Beginnings of words in a description that announce that a value may be stored in a different form than it was
passed."""
_TEXT_CHANGES = (
    r"lower.?case|upper.?case|capital|truncat|\bcut (?:off|to|after)|\d+ characters|\bascii\b|accents|normali[sz]"
)
_NUMBER_CHANGES = r"\bround(?:ed|s|ing)?\b|whole (?:number|euro|unit)|\bclamp|truncat|at most|up to|maximum|capped"
"""Words in the prompt that announce that a value may be stored in a different form than it was passed."""


async def writes_lost(subject: Subject) -> Iterable[Finding]:
    """What a tool reports as written can be read afterwards exactly as it was written.

    In fresh environments, the rule calls the tools that write. It passes values that do not exist there yet: other
    members of enumerations, long texts, texts with accents, line breaks and quotes, decimals, and unused names. Before
    and after each call, it calls all read-only tools and compares their results and the final state. It warns if a call
    reports success although nothing changed, and if the tool's own code raises an exception on a valid text. It also
    warns if the value is truncated, rounded, clamped or stored in a different form, and neither the description nor the
    result announces this.
    """
    found: list[Finding] = []
    for bench in await probe_unspoilt(subject):
        for probe in bench.probes:
            if probe.parameter is None:
                continue
            base = _base_of(bench, probe)
            if base is None:
                continue
            finding = (
                _without_effect(bench, base, probe) or _altered(bench, base, probe) or _crashed(bench, base, probe)
            )
            if finding is not None:
                found.append(finding)
    return keep_first_of_each(found)


def _base_of(bench: Bench, probe: Probe) -> Probe | None:
    """Return the call that changes something and differs from the probe only in the probed argument."""
    for base in (*bench.bases.get(probe.call.tool, ()), *bench.probes):
        if base is probe or base.call.tool != probe.call.tool or not base.changes or base.is_refused:
            continue
        if {**base.call.arguments, probe.parameter: None} == {**probe.call.arguments, probe.parameter: None}:
            return base
    return None


def _without_effect(bench: Bench, base: Probe, probe: Probe) -> Finding | None:
    tool, name = probe.call.tool, str(probe.parameter)
    if probe.changes or probe.is_refused or probe.ended or probe.kind not in ("unknown", "spelling"):
        return None
    if name not in bench.keys(base.call):
        return None
    if mask_arguments(probe.result.content, probe.call.arguments) != mask_arguments(
        base.result.content, base.call.arguments
    ):
        return None
    if documents(bench, tool, "idempot", "whether", "no matter", "if (?:it|there|one|any)", "does nothing", "ignored"):
        return None
    is_listed = bench.is_known(probe.value)
    return Finding(
        rule="environment.writes_lost",
        severity=Severity.WARNING,
        symptom=f"{tool} reports success but changes nothing if {name} is {probe.value!r}"
        + (", which another tool shows." if is_listed else ", which does not exist."),
        evidence={
            "task": bench.task.id,
            "call": str(probe.call),
            "answer": probe.result.content[:200],
            "changes_something": str(base.call),
            "answer_there": base.result.content[:200],
        },
        change="Let the tool report that nothing matched, and accept names as the other tools show them.",
        confirm=AGAIN,
    )


def _altered(bench: Bench, base: Probe, probe: Probe) -> Finding | None:
    tool, name, value = probe.call.tool, str(probe.parameter), probe.value
    if probe.is_refused or not probe.changes or probe.ended:
        return None
    altered: tuple[str, Json] | None = None
    if isinstance(value, str) and probe.kind in TEXTS and not has_arrived(probe, value):
        altered = _find_altered_text(bench, probe, value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and probe.kind in ("number", "unknown"):
        change = _number_lost(bench, base, probe, name)
        is_documented = documents(bench, tool, *_DOCUMENTED_NUMBERS) or describes(bench, _NUMBER_CHANGES)
        altered = None if change is None or is_documented else ("as another number", change.after)
    if altered is None:
        return None
    how, seen = altered
    return Finding(
        rule="environment.writes_lost",
        severity=Severity.WARNING,
        symptom=f"{tool} stores the value of {name} {how}, and does not report this.",
        evidence={
            "task": bench.task.id,
            "call": str(probe.call),
            "answer": probe.result.content[:200],
            "given": value,
            "stored": seen,
        },
        change="Store the value as it is passed, or refuse it. If a change is intended, state it in the description "
        "and the result.",
        confirm=AGAIN,
    )


def _find_altered_text(bench: Bench, probe: Probe, value: str) -> tuple[str, str] | None:
    """Return how a text is altered and the text that is stored, or None if it is stored as it was passed,
    or the tool reports the change."""
    stored = next(
        (one for change in probe.changes for one in list_new_texts(change) if describe_alteration(value, one)), None
    )
    if stored is None or documents(bench, probe.call.tool, *_DOCUMENTED_TEXTS) or describes(bench, _TEXT_CHANGES):
        return None
    how = describe_alteration(value, stored)
    answered = [str(one) for _, one in flatten(parse_content(probe.result.content), ())]
    if how is None or any(describe_alteration(value, one) == how for one in answered):
        return None
    return how, stored


def _number_lost(bench: Bench, base: Probe, probe: Probe, name: str) -> Change | None:
    """Return the change that shows that an accepted number is not stored, although another number is stored in its
    place."""
    value, other = probe.value, base.call.arguments[name]
    if name in bench.keys(base.call) or not is_number(other):
        return None
    others = [one for key, one in base.call.arguments.items() if key != name]
    stored = [change for change in base.changes if stores(change, other)]
    places = {change.path for change in stored if not any(stores(change, one) for one in others)}
    changes = {change.path: change for change in probe.changes}
    for path in places:
        old = bench.first.leaves.get(path)
        change = changes.get(path, Change(path, old, old))
        if not is_number(change.after) or stores(change, value):
            continue
        moved = change.after - old if is_number(old) else change.after
        stated = re.findall(r"-?\d+(?:\.\d+)?", probe.result.content)
        if any(abs(float(one)) in (abs(change.after), abs(moved)) for one in stated if float(one) != value):
            continue
        if any(stores(one, value) for one in probe.changes):
            continue
        return change
    return None


_CRASHES = re.compile(
    r"\b(KeyError|IndexError|TypeError|AttributeError|ZeroDivisionError|UnicodeEncodeError|UnicodeDecodeError|OperationalError|"
    r"ProgrammingError|IntegrityError|RecursionError|NameError|UnboundLocalError|OverflowError|AssertionError)\b"
)


def _crashed(bench: Bench, base: Probe, probe: Probe) -> Finding | None:
    name = str(probe.parameter)
    if probe.result.error is None or probe.kind not in (*TEXTS, "member") or name in bench.keys(base.call):
        return None
    if _CRASHES.search(probe.result.content) is None:
        return None
    return Finding(
        rule="environment.writes_lost",
        severity=Severity.WARNING,
        symptom=f"{probe.call.tool} fails in its own code for a legal value of {name}: {probe.result.content[:120]}",
        evidence={
            "task": bench.task.id,
            "call": str(probe.call),
            "works": str(base.call),
            "answer": probe.result.content[:300],
        },
        change="Accept every value that the schema allows, or let the tool report why it refuses a value.",
        confirm=AGAIN,
    )


_REACHING = (
    "all\\b", "every", "each", "folder", "director", "recurs", "begin", "start", "prefix", "match", "pattern", "contain", "relat",
    "link", "under", "below", "inside", "within", "sub", "in it", "depend", "children", "group", "whole", "duplicate", "cascad",
    "everything", "both", "swap", "others", "rest\\b", "along with", "together", "merge",
)  # fmt: skip
"""Beginnings of words in the description of a tool that changes more than the named item."""


async def writes_reach(subject: Subject) -> Iterable[Finding]:
    """A call that specifies one item changes that item and no other item of its kind.

    After each call that writes, the rule also reads the neighbors of the named item: other keys of the same object,
    other members of the same list, and items whose name begins with the same name. It reports an error if a neighbor is
    gone, has the written value, or changed by the same number. Tools whose description announces a wider effect (all,
    every, folder, related) are not checked.
    """
    found = []
    for bench in await probe_unspoilt(subject):
        for probe in bench.probes:
            keys = bench.keys(probe.call)
            if probe.is_refused or probe.ended or not keys or not probe.changes:
                continue
            if documents(bench, probe.call.tool, *_REACHING):
                continue
            seen = _beyond(bench, probe, keys)
            if seen is None:
                continue
            what, others = seen
            named = ", ".join(f"{key}={probe.call.arguments[key]!r}" for key in keys)
            symptom = f"{probe.call.tool} was called with {named} and {what} {', '.join(map(repr, others[:3]))}."
            found.append(_report_reach(bench, probe, symptom))
    return keep_first_of_each(found)


def _report_reach(bench: Bench, probe: Probe, symptom: str) -> Finding:
    return Finding(
        rule="environment.writes_reach",
        severity=Severity.ERROR,
        symptom=symptom,
        evidence=show_write(bench, probe, probe.changes),
        change="Change only what the call names: compare whole identifiers, and look up and write in the same list.",
        confirm=AGAIN,
    )


def _beyond(bench: Bench, probe: Probe, keys: list[str]) -> tuple[str, list[str]] | None:
    """Return what happened to items that a call does not name, and the names of these items."""
    given = {str(one) for one in probe.call.arguments.values()}
    values = [value for name, value in probe.call.arguments.items() if name not in keys and not isinstance(value, bool)]
    named_by_keys = {str(probe.call.arguments[key]) for key in keys}
    for key in keys:
        named = str(probe.call.arguments[key])
        neighbours = bench.first.siblings(named)
        is_gone_itself = bench.first.shows(named) and not probe.after.shows(named)
        gone, written, added = [], [], []
        for other in (one for one in neighbours - given if one.casefold() != named.casefold()):
            own = [one for one in probe.changes if other in one.path and not named_by_keys & set(one.path)]
            if not own:
                continue
            if is_gone_itself and not probe.after.shows(other):
                gone.append(other)
            elif _is_written(own, values) or (
                _is_taken(bench, probe, key, other) and _moves_alike(probe, named, other, values)
            ):
                written.append(other)
            elif any(one.before is None and one.after in (PLAIN, *TEXTS.values()) for one in own):
                added.append(other)
        # One additional item may be a sender or a log.
        written += [one for one in added if len(added) > 1 or one.startswith(named)]
        if gone:
            return "also removed", sorted(gone)
        if written:
            return "wrote to", sorted(written)
    return None


def _is_written(own: list[Change], values: list[Json]) -> bool:
    return any(one.before is not None and one.after in values and one.after != one.before for one in own)


def _is_taken(bench: Bench, probe: Probe, key: str, other: str) -> bool:
    """Return True if the tool accepts the other name in the same place."""
    return any(
        one.call.tool == probe.call.tool
        and str(one.call.arguments.get(key)) == other
        and one.changes
        and not one.is_refused
        for one in bench.probes
    )


def _moves_alike(probe: Probe, named: str, other: str, values: list[Json]) -> bool:
    """Return True if a number in both items changes by the same amount."""
    places = {
        tuple("" if part == named else part for part in one.path): one.after - one.before
        for one in probe.changes
        if named in one.path and is_number(one.before) and is_number(one.after)
    }
    return any(
        places.get(tuple("" if part == other else part for part in one.path)) == one.after - one.before
        and abs(one.after - one.before) in values
        for one in probe.changes
        if other in one.path and is_number(one.before) and is_number(one.after)
    )


async def refused_writes(subject: Subject) -> Iterable[Finding]:
    """A call that fails changes nothing.

    The rule calls the tools that write. For each argument in turn, it passes names that do not exist, and numbers that
    are out of range. It warns if the result is an error or a refusal even though a read-only tool or the final state
    shows a change. In that case, the tool did part of the work before a lookup failed. Counters of attempts and logs
    may change.
    """
    found = []
    for bench in await probe_unspoilt(subject):
        for probe in bench.probes:
            if probe.ended or not turns_down(probe.result, probe.call.arguments):
                continue
            changes = [one for one in probe.changes if not _is_counted(one)]
            # A tool that returns nothing afterwards may be locked on purpose.
            changes = [one for one in changes if one.path[0] == STATE or one.after is not None]
            if not changes or documents(
                bench, probe.call.tool, "attempt", "penal", "lock", "log", "count", "costs?\\b", "tries"
            ):
                continue
            found.append(_report_refused_write(bench, probe, changes))
    return keep_first_of_each(found)


def _report_refused_write(bench: Bench, probe: Probe, changes: list[Change]) -> Finding:
    numbers = [one for one in changes if is_number(one.before) and is_number(one.after)]
    return Finding(
        rule="environment.refused_writes",
        severity=Severity.WARNING,
        symptom=f"{probe.call.tool} fails, but changes {'/'.join((numbers or changes)[0].path)}.",
        evidence=show_write(bench, probe, changes),
        change="Look up and check everything before you write, or undo what was done before the failure.",
        confirm=AGAIN,
    )


def _is_counted(change: Change) -> bool:
    """Return True if a number changed by one, or if the name of the changed value shows that it is a counter or a
    log."""
    is_step = is_number(change.before) and is_number(change.after) and abs(change.after - change.before) == 1
    return is_step or bool(split_path(change.path[1:]) & _COUNTERS)


def is_history(change: Change) -> bool:
    """Return True if the changed value has the name of a log or of a time."""
    return bool(split_path(change.path[1:]) & _HISTORIES)


async def stale_reads(subject: Subject) -> Iterable[Finding]:
    """A read before a change does not affect what is read after the change.

    The rule uses two fresh environments. In each, it makes the same call to a tool that writes. In one environment, it
    calls all read-only tools before this call. In the other, it calls none of them. After the write, it calls all of
    them in both, and they must return the same results in both environments. It reports an error if a tool still
    returns its old result, from a cache that the write does not clear. It warns if a tool still returns a value from
    before the write although this value is different in the final state. It also warns if a number that equaled the
    count of items stays the same after an item was added, and if a tool that lists all items of a kind does not list
    the new item.
    """
    found = []
    for bench in await probe_unspoilt(subject):
        with subject.timing.as_far_as_it_goes():
            for base in (one for some in bench.bases.values() for one in some):
                if base.ended:
                    continue
                played = await bench.run([LOOK, base.call, LOOK])
                late = base.after.changes_to(played.views[1]) if not played.ended else []
                late = [one for one in late if one.path[0] != STATE]
                if late:
                    found.append(_stale(bench, base, late))
                found += await _not_found(bench, base)
    found += _unseen(await probe_unspoilt(subject))
    found += _miscounted(await probe_unspoilt(subject))
    return keep_first_of_each(found)


def _stale(bench: Bench, base: Probe, late: list[Change]) -> Finding:
    reader = late[0].path[0]
    return Finding(
        rule="environment.stale_reads",
        severity=Severity.ERROR,
        symptom=f"{reader} does not show what {base.call.tool} wrote if {reader} was also called before the write.",
        evidence={
            "task": bench.task.id,
            "write": str(base.call),
            "answers": [
                {
                    "of": "/".join(one.path),
                    "not_asked_before": one.before,
                    "asked_before": one.after,
                    "before_the_write": bench.first.leaves.get(one.path),
                }
                for one in late[:6]
            ],
        },
        change=f"Let {base.call.tool} clear the cache of {reader}, or let {reader} read the state each time.",
        confirm=AGAIN,
    )


async def _not_found(bench: Bench, base: Probe) -> list[Finding]:
    """Return findings on read-only tools that list all items of a kind except the newly created item."""
    new = base.after.names - bench.first.names
    for name in sorted(new & {str(one) for one in base.call.arguments.values()}):
        neighbours = base.after.siblings(name) & bench.first.names
        asked = [one for one in bench.readers if len(one.arguments) == 1 and str(*one.arguments.values()) in neighbours]
        for reader in {one.tool: one for one in asked}.values():
            known = {str(*one.arguments.values()) for one in asked if one.tool == reader.tool}
            (argument,) = reader.arguments
            call = Call(reader.tool, {argument: name})
            if len(known) < 2 or known < neighbours or not bench.is_allowed(call):
                continue
            result = (await bench.run([base.call, call])).results[1]
            if turns_down(result, call.arguments):
                return [_not_found_there(bench, base, call, result.content)]
    return []


def _not_found_there(bench: Bench, base: Probe, call: Call, answered: str) -> Finding:
    return Finding(
        rule="environment.stale_reads",
        severity=Severity.WARNING,
        symptom=f"{call.tool} does not find what {base.call.tool} has just created, although it finds all the others.",
        evidence={"task": bench.task.id, "write": str(base.call), "read": str(call), "answer": answered[:200]},
        change=f"Let {call.tool} read the data that {base.call.tool} writes.",
        confirm=AGAIN,
    )


def _unseen(all_benches: list[Bench]) -> Iterator[Finding]:
    """Yield findings on read-only tools that showed a value of the state before a write, and never show the new value.
    At least two old values are necessary."""
    for (reader, tool), cases in _collect_unseen(all_benches).items():
        if len(cases) < 2:
            continue
        bench, probe, change = next(iter(cases.values()))
        yield Finding(
            rule="environment.stale_reads",
            severity=Severity.WARNING,
            symptom=f"{reader} still returns the old value after {tool} changed it.",
            evidence={"task": bench.task.id, "write": str(probe.call), "state": change.as_json(), "cases": len(cases)},
            change=f"Let {reader} read what {tool} writes, and keep each value in one place.",
            confirm=AGAIN,
        )


def _collect_unseen(all_benches: list[Bench]) -> dict[tuple[str, str], dict[str, tuple[Bench, Probe, Change]]]:
    """Return for each pair of a reading and a writing tool the old values that the reading tool keeps returning. Pairs
    in which it returns a new value are left out."""
    seen: dict[tuple[str, str], dict[str, tuple[Bench, Probe, Change]]] = {}
    shown: set[tuple[str, str]] = set()
    for bench in all_benches:
        for probe in bench.probes:
            keys = {str(probe.call.arguments[key]) for key in bench.keys(probe.call)}
            if probe.is_refused or probe.ended or not keys:
                continue
            after = {one.path: one for one in probe.changes}
            for change in probe.changes:
                if change.path[0] != STATE or not keys & set(change.path) or not _is_distinctive(change.before):
                    continue
                if change.after is None or change.after not in probe.call.arguments.values():
                    continue
                for path, value in bench.first.leaves.items():
                    if path[0] == STATE or value != change.before or not keys & set(path):
                        continue
                    key = (path[0], probe.call.tool)
                    if path in after:
                        shown.add(key)
                    else:
                        seen.setdefault(key, {})[str(change.before)] = (bench, probe, change)
    return {key: cases for key, cases in seen.items() if key not in shown}


def _miscounted(all_benches: list[Bench]) -> Iterator[Finding]:
    """Yield findings on numbers of a tool that count items, but stay the same when an item is added or removed."""
    seen: dict[tuple[str, Path, Path], dict[int, tuple[Bench, Probe]]] = {}
    firsts = [(bench.first.leaves, bench.first.sizes()) for bench in all_benches]
    for bench, (leaves, sizes) in zip(all_benches, firsts, strict=True):
        numbers: dict[int, list[Path]] = {}
        for path, value in leaves.items():
            if path[0] != STATE and type(value) is int:
                numbers.setdefault(value, []).append(path)
        for probe in (one for one in bench.probes if not one.is_refused and not one.ended):
            after = probe.after.sizes()
            for place, size in sizes.items():
                for path in numbers.get(size, ()) if abs(after.get(place, 0) - size) == 1 else ():
                    if probe.after.leaves.get(path) == size:
                        seen.setdefault((probe.call.tool, path, place), {}).setdefault(size, (bench, probe))
    for (_, path, place), cases in seen.items():
        is_another = any(
            type(leaves.get(path)) is int and place in sizes and leaves[path] != sizes[place]
            for leaves, sizes in firsts
        )
        if is_another or len(cases) < 2:
            continue
        bench, probe = next(iter(cases.values()))
        yield _report_miscount(bench, probe, path, place)


def _report_miscount(bench: Bench, probe: Probe, path: Path, place: Path) -> Finding:
    return Finding(
        rule="environment.stale_reads",
        severity=Severity.WARNING,
        symptom=f"{'/'.join(path)} still has the count from before {probe.call.tool}.",
        evidence={
            "task": bench.task.id,
            "write": str(probe.call),
            "number": bench.first.leaves[path],
            "counted": "/".join(place),
            "now": probe.after.sizes().get(place, 0),
        },
        change=f"Compute the count when {path[0]} is called, or let {probe.call.tool} change the number.",
        confirm=AGAIN,
    )


def _is_distinctive(value: Json) -> bool:
    return (isinstance(value, str) and len(value) >= 3) or (is_number(value) and abs(value) >= 10)


async def carried_over(subject: Subject) -> Iterable[Finding]:
    """What one episode writes is not visible in the next.

    After episodes in which every tool that writes has written new values, a fresh environment is reset for the same
    task and read. The rule reports an error if a tool then returns something different from before the writes.
    Module-level tables, class attributes and default arguments are shared by all episodes. Copy them in `reset`.
    """
    for bench in await probe_writing_tools(subject):
        if not bench.carried:
            continue
        tool, changes = await _find_source(subject, bench)
        source = tool or "an episode"
        return [
            Finding(
                rule="environment.carried_over",
                severity=Severity.ERROR,
                symptom=f"what {source} writes in one episode is still there in the next: {'/'.join(changes[0].path)}.",
                evidence={"task": bench.task.id, "tool": tool, "changed": [one.as_json() for one in changes[:8]]},
                change="In `reset`, copy everything that the tools change, including tables and nested lists.",
                confirm=AGAIN,
            )
        ]
    return ()


async def _find_source(subject: Subject, bench: Bench) -> tuple[str, list[Change]]:
    """Return the first tool whose calls change what the next episode reads, with these changes. The tool is "" if no
    single call does."""
    tool, changes = "", list(bench.carried)
    with subject.timing.as_far_as_it_goes():
        for name in bench.bases or {one.call.tool: None for one in bench.probes}:
            calls = [one.call for one in bench.probes if one.call.tool == name and not one.is_refused][-3:]
            for call in calls:
                before = (await bench.run([LOOK])).views[0]
                await bench.run([call, LOOK])
                differs = before.changes_to((await bench.run([LOOK])).views[0])
                if differs and not tool:
                    tool, changes = name, differs
    return tool, changes


async def probe_unspoilt(subject: Subject) -> list[Bench]:
    """Return the probes of tasks whose episodes leave no changes behind. In other tasks, episodes cannot be
    compared."""
    return [bench for bench in await probe_writing_tools(subject) if not bench.carried]


def keep_first_of_each(findings: list[Finding]) -> list[Finding]:
    """Merge findings whose symptoms differ only in their values."""
    kinds: dict[str, Finding] = {}
    for one in findings:
        kinds.setdefault(f"{one.symptom.partition(' ')[0]} {one.change}", one)
    return list(kinds.values())
