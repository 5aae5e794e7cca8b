"""The type of a detector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from sparring.findings import Finding, Rule
from sparring.run_folders.history import History

Detector: TypeAlias = Rule[History, Iterable[Finding]]
"""A rule that examines the steps of a run so far. Its function must not change the history."""
