"""Run one rule. Whatever happens in the rule, its outcome is decided, skipped, left out or undecided."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import replace

from sparring.checks.check import Check
from sparring.checks.evidence.subject import Subject
from sparring.checks.running.check_report import Checked
from sparring.checks.running.time_budget import OutOfTimeError, UndecidedError
from sparring.errors import ServiceError
from sparring.findings import Finding

NUM_NAMED = 20
"""The maximum number of findings of one kind that a merged finding lists."""


async def run_rule(check: Check, subject: Subject) -> tuple[list[Finding], Checked]:
    """Return the findings of a rule and its outcome. A rule that raises an exception is undecided, and the reason
    identifies the line.

    A ServiceError is not caught: a service that rejects the API key would reject it for every rule.
    """
    began = time.monotonic()
    found: list[Finding] = []
    state, reason = "decided", None
    subject.timing.begin(check.name, weight=check.seconds / Check.seconds)
    try:
        lacking = next(filter(None, map(subject.lacks, check.needs)), None)
        if lacking is None:
            found = list(await check.function(subject))
        else:
            state, reason = "skipped", lacking
    except OutOfTimeError as error:
        state, reason = "left_out", str(error)
    except UndecidedError as error:
        state, reason = "undecided", str(error)
    except ServiceError:
        raise
    except Exception as error:  # noqa: BLE001 - reported as it is
        place = traceback.extract_tb(error.__traceback__)[-1]
        state, reason = "undecided", f"{error!r} at {place.filename}:{place.lineno}"
    found = one_of_a_kind(found)
    subject.shared.setdefault("found", []).extend(found)
    if state == "decided" and check.name in subject.timing.cut:
        reason = "used fewer episodes than usual, for lack of time"
    return found, Checked(name=check.name, state=state, seconds=time.monotonic() - began, reason=reason)


def one_of_a_kind(findings: Sequence[Finding]) -> list[Finding]:
    """Merge findings with the same severity and the same change into one finding with a count."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.severity, finding.change), []).append(finding)
    merged = []
    for first, *others in kinds.values():
        if others:
            evidence = {**first.evidence, "count": 1 + len(others), "also": [one.symptom for one in others[:NUM_NAMED]]}
            first = replace(
                first, symptom=f"{first.symptom} ({1 + len(others)} findings of this kind)", evidence=evidence
            )
        merged.append(first)
    return merged
