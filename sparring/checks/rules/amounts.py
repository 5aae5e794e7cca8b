"""Rules on numbers that tools transfer or limit: sums are preserved, and limits agree with their descriptions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sparring.agents.scripted import saying
from sparring.checks.evidence.cents import find_nearly_moved
from sparring.checks.evidence.explore import Call
from sparring.checks.evidence.moves import find_left_behind
from sparring.checks.evidence.snapshots import STATE, Change, Path, mask_arguments
from sparring.checks.evidence.stored_values import is_number, stores
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.worded_numbers import find_misworded
from sparring.checks.evidence.write_probes import (
    LOOK,
    Bench,
    Probe,
    documents,
    get_description,
    is_number_part,
    show_write,
)
from sparring.checks.rules.effects import AGAIN, keep_first_of_each, probe_unspoilt
from sparring.environments import answer
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

_DECIMALS = (0.1, 0.2, 19.99, 4.35)
"""Amounts whose sums, computed with binary floats, are not short decimal fractions."""


async def amounts(subject: Subject) -> Iterable[Finding]:
    """Transfers preserve the sum of the numbers, and the results can be compared exactly.

    The rule warns in these cases. An amount is transferred between two items that one call names, and one item loses a
    different amount than the other gains. Payer and payee are the same account, and its balance rises. A tool that
    refuses 0 or excessive amounts accepts a negative amount and transfers it in the opposite direction. The transferred
    amount differs by a cent from the amount of the named item. Sums of decimals appear in the final state as
    0.30000000000000004, and the scorer compares them exactly. The rule accepts fees and rates that the description
    names. To fix rounding errors, round the stored values, or count in cents. The rule also warns if an item is in both
    its old and its new place after a move. Finally, it warns if a tool that is described as setting a number adds to
    it, or vice versa.
    """
    found: list[Finding] = []
    with subject.timing.as_far_as_it_goes():
        for bench in await probe_unspoilt(subject):
            for probe in bench.probes:
                if not probe.is_refused and not probe.ended and probe.changes:
                    found += [*_moved(bench, probe), *find_left_behind(bench, probe)]
            found += _negative(bench)
            for probe, what, change in find_misworded(bench):
                advice = f"Change {probe.call.tool} so that it does what its name and its description state."
                found.append(
                    _finding(bench, probe, f"{what}, although its description states otherwise.", advice, [change])
                )
            for bases in list(bench.bases.values()):
                found += await _inexact(subject, bench, bases[0])
        found += await find_nearly_moved(await probe_unspoilt(subject))
    return keep_first_of_each(found)


def _finding(bench: Bench, probe: Probe, symptom: str, change: str, changes: Iterable[Change]) -> Finding:
    return Finding(
        rule="environment.amounts",
        severity=Severity.WARNING,
        symptom=symptom,
        evidence=show_write(bench, probe, changes),
        change=change,
        confirm=AGAIN,
    )


def _moved(bench: Bench, probe: Probe) -> Iterator[Finding]:
    """Yield findings on two items named by a call if one item loses a different amount than the other item gains."""
    tool = probe.call.tool
    keys = bench.keys(probe.call)
    names = [str(probe.call.arguments[key]) for key in keys]
    if len(keys) < 2 or documents(
        bench, tool, "fee", "rate", "exchange", "commission", "percent", "tax", "convert", "charge", "cost"
    ):
        return
    numbers = [one for one in probe.changes if is_number(one.before) and is_number(one.after)]
    if len(set(names)) == 1:
        richer = [one for one in numbers if one.path[0] == STATE and names[0] in one.path]
        if richer and all(_is_given(probe, abs(one.after - one.before)) for one in richer) and len(richer) == 1:
            yield _finding(
                bench,
                probe,
                f"{tool} from {names[0]!r} to itself changes {'/'.join(richer[0].path)}.",
                "Refuse a transfer from an item to itself, or read both values before writing one.",
                richer,
            )
        return
    by_place: dict[Path, dict[str, Change]] = {}
    for one in numbers:
        for name in names:
            if name in one.path and sum(other in one.path for other in names) == 1:
                place = tuple("*" if part == name else part for part in one.path)
                by_place.setdefault(place, {})[name] = one
    for place, changed in by_place.items():
        for name in set(names) - changed.keys():
            path = tuple(name if part == "*" else part for part in place)
            if is_number(bench.first.leaves.get(path)):
                changed[name] = Change(path, bench.first.leaves[path], bench.first.leaves[path])
        if len(changed) != 2:
            continue
        first, second = (one.after - one.before for one in changed.values())
        is_given = _is_given(probe, abs(first)) or _is_given(probe, abs(second))
        if first * second <= 0 and is_given and not math.isclose(first, -second, rel_tol=1e-6, abs_tol=1e-6):
            yield _finding(
                bench,
                probe,
                f"{tool} takes {abs(min(first, second)):g} from one item and gives {max(first, second):g} to the "
                f"other.",
                "Add the amount that is taken from one item to the other item, or describe the fee.",
                changed.values(),
            )
            return


def _is_given(probe: Probe, number: float) -> bool:
    return any(is_number(one) and math.isclose(abs(one), number) for one in probe.call.arguments.values())


def _negative(bench: Bench) -> Iterator[Finding]:
    """Yield findings on tools that refuse some amounts, but accept a negative amount and transfer it in the opposite
    direction."""
    for probe in bench.probes:
        name, value = probe.parameter, probe.value
        if name is None or not is_number(value) or value >= 0 or name in bench.keys(probe.call) or probe.is_refused:
            continue
        tool = probe.call.tool
        if not _should_refuse_negatives(bench, tool, name):
            continue
        if documents(bench, tool, "negative", "minus", "correct", "adjust", "delta", "signed", "relative"):
            continue
        base = next((one for one in bench.bases.get(tool, ()) if name in one.call.arguments), None)
        moved = _moves(bench, base, name) if base is not None else {}
        other_way = [
            one
            for one in probe.changes
            if one.path in moved
            and is_number(one.before)
            and is_number(one.after)
            and (one.after - one.before) * moved[one.path] < 0
            and stores(one, value)
        ]
        if other_way:
            yield _finding(
                bench,
                probe,
                f"{tool} accepts a negative {name}: {'/'.join(other_way[0].path)} moves in the opposite direction.",
                f"Refuse a {name} below 0, in the code and in the schema (Bounded(ge=...)).",
                other_way,
            )


def _should_refuse_negatives(bench: Bench, tool: str, name: str) -> bool:
    """Return True if a tool refuses other numbers as this argument, or its description promises positive numbers."""
    others = [one for one in bench.probes if one.call.tool == tool and one.parameter == name and is_number(one.value)]
    is_guarded = any(one.is_refused and one.value >= 0 for one in others)
    is_promised = documents(
        bench, tool, "more than 0", "positive", "greater than (?:0|zero)", "at least 1", "above (?:0|zero)"
    )
    return is_guarded or is_promised


def _moves(bench: Bench, base: Probe, name: str) -> Mapping[Path, float]:
    """Return the paths of the numbers that a call increases or decreases, with the amounts."""
    value = base.call.arguments[name]
    return {
        one.path: one.after - one.before
        for one in base.changes
        if is_number(one.before)
        and is_number(one.after)
        and is_number(value)
        and math.isclose(abs(one.after - one.before), abs(value), rel_tol=1e-6)
        and one.after != value
    }


async def _inexact(subject: Subject, bench: Bench, base: Probe) -> list[Finding]:
    """Return findings on sums of decimals in the final state, which a scorer compares exactly."""
    properties = bench.schema(base.call.tool).get("properties", {})
    names = [name for name in base.call.arguments if is_number_part(properties.get(name, {}), whole=False)]
    for name in names:
        calls = [Call(base.call.tool, {**base.call.arguments, name: one}) for one in _DECIMALS]
        played = await bench.run([step for one in calls if bench.is_allowed(one) for step in (one, LOOK)])
        noisy = [
            Change(path, bench.first.leaves.get(path), value)
            for view in played.views
            for path, value in view.leaves.items()
            if path[0] == STATE
            and isinstance(value, float)
            and value != round(value, 6)
            and math.isclose(value, round(value, 2), rel_tol=1e-12)
        ]
        if noisy and await _compares_exactly(subject, bench.task, noisy[0].path[1:]):
            where = "/".join(noisy[0].path)
            probe = replace(base, call=calls[1], result=played.results[1])
            symptom = (
                f"{base.call.tool} leaves {noisy[0].after!r} in {where} after decimal amounts, and the scorer "
                f"compares exactly."
            )
            return [
                _finding(bench, probe, symptom, "Round what is stored or compared, or count in whole cents.", noisy)
            ]
    return []


async def _compares_exactly(subject: Subject, task: Task, path: Path) -> bool:
    """Return True if the scorer accepts the expected state, but not a state whose number at the path is one bit
    larger."""
    if subject.scorer is None:
        return False
    played = await subject.run_episode(task, saying("idle", [answer("done")]), graded=False)
    for expected in task.fields.values():
        if not isinstance(expected, dict) or not is_number(_at(expected, path)) or isinstance(_at(expected, path), int):
            continue
        right = await subject.grade_with("scorer", replace(played, final_state=expected))
        near = await subject.grade_with("scorer", replace(played, final_state=_nudged(expected, path)))
        if right.value > near.value:
            return True
    return False


def _at(value: Json, path: Path) -> Json:
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


def _nudged(value: Json, path: Path) -> Json:
    if not path:
        return math.nextafter(value, math.inf)
    return {key: _nudged(item, path[1:]) if key == path[0] else item for key, item in value.items()}


@dataclass(frozen=True, slots=True)
class _Limit:
    """A number that is described as the smallest or largest accepted value of an argument."""

    tool: str
    name: str
    number: float
    is_most: bool
    of_text: bool
    """True if the number limits the length in characters."""
    is_schema: bool
    stated: str


async def limits(subject: Subject) -> Iterable[Finding]:
    """Tools apply the limits that the schema and the description state.

    The rule tries the bounds of the schema, and phrases such as "at most 20 characters", "1 to 12" or "more than 0" in
    the description of an argument. It passes the last allowed value, the value before it, and the first value beyond
    the limit. It warns if the last allowed value is refused in every task while its neighbors are accepted, or if the
    value beyond the limit is accepted and stored. It also warns if a tool accepts several letters, characters or digits
    at once even though it is described as taking one.
    """
    outcomes: dict[_Limit, list[dict[str, Json]]] = {}
    beyond: dict[_Limit, dict[str, Json]] = {}
    several: list[Finding] = []
    with subject.timing.as_far_as_it_goes():
        for bench in await probe_unspoilt(subject):
            for bases in list(bench.bases.values()):
                at_once = await _several_at_once(bench, bases[0])
                several += [] if at_once is None else [at_once]
                for limit in _limits(bench, bases[0]):
                    within, over = await _tried(bench, bases[0], limit)
                    outcomes.setdefault(limit, []).append(within)
                    if over is not None:
                        beyond.setdefault(limit, over)
    return keep_first_of_each([*several, *_report_limits(outcomes, beyond)])


def _report_limits(
    outcomes: Mapping[_Limit, list[dict[str, Json]]], beyond: Mapping[_Limit, dict[str, Json]]
) -> Iterator[Finding]:
    for limit, tried in outcomes.items():
        if len(tried) >= 2 and all(one["last"] == "refused" and one["inside"] == "taken" for one in tried):
            symptom = f"{limit.tool} refuses {limit.name} {limit.number:g}, although {limit.stated}."
            yield _limit_finding(limit, symptom, tried[0])
    for limit, seen in beyond.items():
        symptom = f"{limit.tool} accepts {limit.name} beyond {limit.number:g}, although {limit.stated}."
        yield _limit_finding(limit, symptom, seen)


def _limit_finding(limit: _Limit, symptom: str, evidence: Mapping[str, Json]) -> Finding:
    return Finding(
        rule="environment.limits",
        severity=Severity.WARNING,
        symptom=symptom,
        evidence=evidence,
        change=f"Correct the code of {limit.tool} or the description of {limit.name}, so that they agree.",
        confirm=AGAIN,
    )


_NUMBER = r"(-?\d+(?:\.\d+)?)"
_MOST = re.compile(
    rf"(?:at most|up to|no more than|maximum(?: of)?|not more than|max\.?) {_NUMBER}( characters| letters)?", re.I
)
_LEAST = re.compile(
    rf"(?:at least|no less than|minimum(?: of)?|not less than|from) {_NUMBER}\b(?! characters| letters)", re.I
)
_ABOVE = re.compile(r"more than (?:0|zero)|greater than (?:0|zero)|above (?:0|zero)|\bpositive\b", re.I)
_RANGE = re.compile(rf"(?<![-\d]){_NUMBER} ?(?:to|-|–|and) ?{_NUMBER}(?![-\d])")


def _limits(bench: Bench, base: Probe) -> Iterator[_Limit]:
    """Yield the limits of a tool's arguments."""
    properties = bench.schema(base.call.tool).get("properties", {})
    tool = base.call.tool
    for name, value in base.call.arguments.items():
        part = properties.get(name, {})
        if "enum" in part or (name in bench.keys(base.call) and isinstance(value, str)):
            continue
        text = str(part.get("description", ""))
        if is_number(value):
            for keyword, is_most in (("minimum", False), ("maximum", True)):
                if keyword in part:
                    stated = f"the schema states {keyword} = {part[keyword]}"
                    yield _Limit(tool, name, part[keyword], is_most, False, True, stated)
            for pattern, is_most in ((_MOST, True), (_LEAST, False)):
                match = pattern.search(text)
                if match is not None and not (is_most and match[2]):
                    yield _Limit(
                        tool, name, float(match[1]), is_most, False, False, f"the description states {match[0]!r}"
                    )
            if _ABOVE.search(text):
                yield _Limit(tool, name, 1, False, False, False, f"the description states {_ABOVE.search(text)[0]!r}")  # type: ignore[index]
            match = _RANGE.search(text)
            if match is not None and float(match[1]) < float(match[2]):
                yield _Limit(tool, name, float(match[1]), False, False, False, f"the description states {match[0]!r}")
                yield _Limit(tool, name, float(match[2]), True, False, False, f"the description states {match[0]!r}")
        elif isinstance(value, str):
            match = _MOST.search(text)
            if match is not None and match[2]:
                yield _Limit(tool, name, float(match[1]), True, True, False, f"the description states {match[0]!r}")


_SINGLE = re.compile(r"\b(?:one|a single|exactly one) (?:letter|character|digit)\b", re.I)


async def _several_at_once(bench: Bench, base: Probe) -> Finding | None:
    """Return a finding if a tool accepts two letters at once although its description allows only one, and None
    otherwise."""
    tool = base.call.tool
    for name, value in base.call.arguments.items():
        phrase = _SINGLE.search(get_description(bench, tool))
        if phrase is None or not isinstance(value, str) or "enum" in bench.schema(tool)["properties"][name]:
            continue
        digits = "digit" in phrase[0].lower()
        texts = ["0", "5", "05", "!!"] if digits else ["a", "e", "ae", "!!"]
        calls = [Call(tool, {**base.call.arguments, name: text}) for text in texts]
        if not all(map(bench.is_allowed, calls)):
            continue
        probes = [await bench.probed(one, name, "limit") for one in calls]
        one, two, both, neither = (mask_arguments(each.result.content, each.call.arguments) for each in probes)
        if both not in (one, two, neither) and not any(each.is_refused for each in probes[:3]):
            limit = _Limit(tool, name, 1, True, True, False, f"the description states {phrase[0]!r}")
            symptom = f"{tool} accepts several characters at once as {name}, although {limit.stated}."
            evidence = {"task": bench.task.id, "call": str(calls[2]), "answer": probes[2].result.content[:200]}
            return _limit_finding(limit, symptom, evidence)
    return None


async def _tried(bench: Bench, base: Probe, limit: _Limit) -> tuple[dict[str, Json], dict[str, Json] | None]:
    """Return the outcomes at the last allowed value and at the values next to it inside the limit, and the call beyond
    the limit if it is accepted."""
    step = 1 if limit.is_most else -1
    number = int(limit.number) if float(limit.number).is_integer() else limit.number

    last, last_probe = await _try_number(bench, base, limit, number)
    inside = [(await _try_number(bench, base, limit, number - step * back))[0] for back in (1, 2)]
    answered = "" if last_probe is None else last_probe.result.content[:200]
    within: dict[str, Json] = {
        "task": bench.task.id,
        "last": "taken" if last or last_probe is None else "refused",
        "inside": "taken" if any(inside) else "refused",
        "call": str(_with_number(base, limit, number)),
        "answer": answered,
    }
    is_over, over = await _try_number(bench, base, limit, number + step)
    if limit.is_schema or not is_over or over is None:
        return within, None
    value = over.call.arguments[limit.name]
    is_stored = any(one.after == value or (is_number(one.after) and stores(one, value)) for one in over.changes)
    if not is_stored or documents(bench, base.call.tool, "cut", "clamp", "trunc", "cap", "round"):
        return within, None
    return within, show_write(bench, over, over.changes, most=6)


def _with_number(base: Probe, limit: _Limit, number: float) -> Call:
    """Return the call with another number, or with a text of this length, as the limited argument."""
    value = "a" * max(0, int(number)) if limit.of_text else number
    return Call(base.call.tool, {**base.call.arguments, limit.name: value})


async def _try_number(bench: Bench, base: Probe, limit: _Limit, number: float) -> tuple[bool, Probe | None]:
    """Return whether the tool accepts a number and changes something, and the probe. The probe is None if the schema
    does not allow the call."""
    one = _with_number(base, limit, number)
    if not bench.is_allowed(one):
        return False, None
    probe = await bench.probed(one, limit.name, "limit")
    return bool(probe.changes) and not probe.is_refused, probe
