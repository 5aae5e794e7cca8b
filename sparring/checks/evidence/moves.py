"""Checks that an object is only in its new place after a tool moved it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparring.checks.evidence.snapshots import Path, View
from sparring.checks.evidence.write_probes import Bench, Probe, documents, show_write
from sparring.findings import Finding, Severity

_MOVES = ("mov", "transfer", "relocat", "reassign", "shift", "reschedul", "rebook")
_COPIES = ("cop(?:y|ies)", "duplicat", "also", "both", "clon", "another", "additional")
"""Beginnings of words in the descriptions of tools that leave an object in its old place on purpose."""


def find_left_behind(bench: Bench, probe: Probe) -> Iterator[Finding]:
    """Yield a finding if a call with an object and a new place leaves the object in two places instead of one."""
    tool, values = probe.call.tool, [str(one) for one in probe.call.arguments.values() if isinstance(one, str | int)]
    if not documents(bench, tool, *_MOVES) or documents(bench, tool, *_COPIES):
        return
    # The first argument names the object. A place that contains two objects does not count.
    for thing in [one for one in values[:1] if not one.isdigit()]:
        for reader in sorted({path[0] for path in bench.first.leaves}):
            before, after = _find_places(bench.first, reader, thing), _find_places(probe.after, reader, thing)
            copies = [new for new in sorted(after - before) if set(new) & (set(values) - {thing})]
            if len(before) != 1 or not before < after or not copies:
                continue
            (old,), new = before, copies[0]
            if len(new) != len(old) or sum(one != two for one, two in zip(new, old, strict=True)) != 1:
                continue
            yield Finding(
                rule="environment.amounts",
                severity=Severity.WARNING,
                symptom=f"After {tool}, {thing!r} is in two places: in {'/'.join(new)}, and still in {'/'.join(old)}.",
                evidence=show_write(bench, probe, probe.changes, most=6),
                change=f"Make {tool} remove the object from its old place.",
                confirm="Run `sparring check RECIPE --only environment` again: the finding is gone.",
            )
            return


def _find_places(view: View, reader: str, thing: str) -> set[Path]:
    """Return the paths of an object in the results of a tool or in the final state: as a value under a key, or as an
    item of a list."""
    found: set[Path] = set()
    for path, value in view.leaves.items():
        if path[0] == reader and value == thing:
            found.add(path[:-1] if re.sub(r" #\d+$", "", path[-1]) == thing else path)
    return found
