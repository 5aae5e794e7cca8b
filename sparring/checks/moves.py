"""Is a thing that a tool moves afterwards in its new place only?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparring.checks.probes import Bench, Probe, documents
from sparring.checks.views import Path, View
from sparring.findings import Finding, Severity

_MOVES = ("mov", "transfer", "relocat", "reassign", "shift", "reschedul", "rebook")
_COPIES = ("cop(?:y|ies)", "duplicat", "also", "both", "clon", "another", "additional")
"""Beginnings of words in the description of a tool."""


def left_behind(bench: Bench, probe: Probe) -> Iterator[Finding]:
    """A thing that stood in one place, and after a call that names it and another place stands in both."""
    tool, values = probe.call.tool, [str(one) for one in probe.call.arguments.values() if isinstance(one, str | int)]
    if not documents(bench, tool, *_MOVES) or documents(bench, tool, *_COPIES):
        return
    # What is moved is named first; of two things in one place the place has two.
    for thing in [one for one in values[:1] if not one.isdigit()]:
        for reader in sorted({path[0] for path in bench.first.leaves}):
            before, after = _places(bench.first, reader, thing), _places(probe.after, reader, thing)
            copies = [new for new in sorted(after - before) if set(new) & (set(values) - {thing})]
            if len(before) != 1 or not before < after or not copies:
                continue
            (old,), new = before, copies[0]
            if len(new) != len(old) or sum(one != two for one, two in zip(new, old, strict=True)) != 1:
                continue
            yield Finding(
                rule="environment.amounts",
                severity=Severity.WARNING,
                symptom=f"After {tool} {thing!r} stands in two places: in {'/'.join(new)}, and still in {'/'.join(old)}.",
                evidence={
                    "task": bench.task.id, "call": str(probe.call), "answer": probe.result.content[:200],
                    "changed": [one.as_json() for one in probe.changes[:6]],
                },
                change=f"Have {tool} take the thing out of its old place.",
                confirm="Run `sparring check RECIPE --only environment` again: the finding is gone.",
            )  # fmt: skip
            return


def _places(view: View, reader: str, thing: str) -> set[Path]:
    """Where a thing stands in what a tool or the final state shows: as a value under a key, or as one of a list."""
    found: set[Path] = set()
    for path, value in view.leaves.items():
        if path[0] == reader and value == thing:
            found.add(path[:-1] if re.sub(r" #\d+$", "", path[-1]) == thing else path)
    return found
