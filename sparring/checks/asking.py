"""Ask one rule: whatever it meets, it ends as decided, skipped or undecided."""

from __future__ import annotations

import time
import traceback

from sparring.checks.registry import Check
from sparring.checks.report import Checked
from sparring.checks.subject import Subject, UndecidedError
from sparring.errors import ServiceError
from sparring.findings import Finding


async def ask(check: Check, subject: Subject) -> tuple[list[Finding], Checked]:
    """What a rule found, and how it ended. A rule that fails is reported like one that could not decide, with the place.

    Raises ServiceError as it is: what refuses the key would refuse it to every rule.
    """
    began = time.monotonic()
    found: list[Finding] = []
    state, reason = "decided", None
    try:
        lacking = next(filter(None, map(subject.lacks, check.needs)), None)
        if lacking is None:
            found = list(await check.rule(subject))
        else:
            state, reason = "skipped", lacking
    except UndecidedError as error:
        state, reason = "undecided", str(error)
    except ServiceError:
        raise
    except Exception as error:  # noqa: BLE001 - reported as it is
        place = traceback.extract_tb(error.__traceback__)[-1]
        state, reason = "undecided", f"{error!r} at {place.filename}:{place.lineno}"
    return found, Checked(name=check.name, state=state, seconds=time.monotonic() - began, reason=reason)
