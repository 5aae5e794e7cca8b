"""Tools that set a number or add to it: their effect is compared with their name and description."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from sparring.checks.evidence.snapshots import Change
from sparring.checks.evidence.stored_values import is_number
from sparring.checks.evidence.write_probes import Bench, Probe, documents, get_description
from sparring.types import Json

_SETS = re.compile(r"(?:set|change|update|adjust|replace|write|overwrite)s?\b", re.I)
_ADDS = re.compile(r"(?:add|deposit|increase|raise|top|restock|receive|give|credit|earn|append)s?\b", re.I)
_SETS_OTHERWISE = (r"by\b", "more", "add", "increase", "toggle", "switch", "delta", "relative")
_ADDS_OTHERWISE = ("replac", "overwrit", "set", "instead", "new", "chang")
"""Beginnings of words in the descriptions of tools that may both set and add."""


def find_misworded(bench: Bench) -> Iterator[tuple[Probe, str, Change]]:
    """Yield a call, a description of the problem and the change, for tools that are described as setting a number but
    add to it, or vice versa."""
    for tool in dict.fromkeys(one.call.tool for one in bench.probes):
        words = (tool.replace("_", " "), get_description(bench, tool))
        probes = [one for one in bench.probes if one.call.tool == tool and not one.is_refused and not one.ended]
        if all(map(_SETS.match, words)) and not documents(bench, tool, *_SETS_OTHERWISE):
            yield from _find_opposite(bench, probes, "adds", is_adding=False)
        elif all(map(_ADDS.match, words)) and not documents(bench, tool, *_ADDS_OTHERWISE):
            yield from _find_opposite(bench, probes, "overwrites the old value with", is_adding=True)


def _find_opposite(
    bench: Bench, probes: Sequence[Probe], how: str, *, is_adding: bool
) -> Iterator[tuple[Probe, str, Change]]:
    """Yield the first of several calls to one tool that have the opposite effect, if no call has the effect that the
    tool's description states."""
    wrong: dict[Json, tuple[Probe, str, Change]] = {}
    for probe in probes:
        keys = {str(probe.call.arguments[key]) for key in bench.keys(probe.call)}
        given = {name: value for name, value in probe.call.arguments.items() if is_number(value) and value}
        for change in probe.changes:
            if not is_number(change.before) or not is_number(change.after) or not change.before:
                continue
            for name, value in given.items() if keys & set(change.path) else ():
                added = math.isclose(change.after, change.before + value)
                put = math.isclose(change.after, value)
                if added if is_adding else put:
                    return
                if put if is_adding else added:
                    wrong.setdefault(value, (probe, f"{probe.call.tool} {how} the argument {name}", change))
    if len(wrong) > 1:
        yield next(iter(wrong.values()))
