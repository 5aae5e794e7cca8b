"""Explains errors of rewards and scorers that read something that an episode does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparring.types import Trajectory

_PARTS = {
    "final_state": "define `final_state` in the environment, or let an agent of your own return "
    "AgentReport(final_state=...)",
    "transitions": "let your agent return AgentReport(transitions=...), one entry per executed tool call",
    "artifacts": "let your agent return AgentReport(artifacts=...)",
}
"""The parts of an episode that may be missing, with what to do."""


def explain_missing_state(function: Callable[..., Any], trajectory: Trajectory) -> str:
    """Return a sentence that names the parts of the trajectory that a failing function reads but that are empty, or an
    empty text. The sentence begins with a space."""
    names = names_in(function)
    missing = [part for part in _PARTS if part in names and not getattr(trajectory, part)]
    if "transitions" in missing and not any(one.get("tool_calls") for one in trajectory.messages):
        missing.remove("transitions")  # the policy called no tool, so nothing is missing
    if not missing:
        return ""
    return f" It reads {', '.join(missing)}, which this episode does not have: {_PARTS[missing[0]]}."


def names_in(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of attributes and globals that the code of a function, or of an object's `__call__`, uses."""
    code = getattr(function, "__code__", None) or getattr(getattr(function, "__call__", None), "__code__", None)  # noqa: B004
    names, codes = set[str](), [code] if code is not None else []
    while codes:
        one = codes.pop()
        names.update(one.co_names)
        codes += [constant for constant in one.co_consts if hasattr(constant, "co_names")]
    return frozenset(names)
