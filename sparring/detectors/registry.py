"""The detectors by name. Each is a pure function from a History to findings; its docstring is what a person reads about it."""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

from sparring.findings import Rule, register
from sparring.history import History

Detector: TypeAlias = Rule[History]

DETECTORS: dict[str, Detector] = {}
"""In the order in which they speak and are documented."""

detector = partial(register, DETECTORS)
"""Register a rule by its name."""
