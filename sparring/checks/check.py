"""The type of a check."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TypeAlias

from sparring.checks.evidence.subject import Subject
from sparring.findings import Finding, Rule

Check: TypeAlias = Rule[Subject, Awaitable[Iterable[Finding]]]
"""A rule that checks a recipe before its training. `Subject.lacks` lists the possible `needs`."""
