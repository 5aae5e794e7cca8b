"""The rules of the diagnosis by name. Each is a pure function from what a run shows to findings."""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

from sparring.diagnosis.observed import Observed
from sparring.findings import Rule, register

Symptom: TypeAlias = Rule[Observed]

SYMPTOMS: dict[str, Symptom] = {}
"""In the order in which they speak and are documented."""

symptom = partial(register, SYMPTOMS)
"""Register a rule by its name."""
