"""An LLM judge that takes seconds for a verdict: the check waits for it, and its rules are decided."""

from collections.abc import Callable
from pathlib import Path

from tests.checks.test_model_judge import Endpoint, check, endpoint, recipe

__all__ = ["endpoint", "recipe"]


def test_a_judge_may_take_longer_than_a_call_of_the_environment(
    endpoint: Endpoint, recipe: Callable[[str], Path]
) -> None:
    # Half a minute: a call may take 2.5 seconds, and a verdict 15.
    endpoint.seconds = 3.0
    _, report, output = check(recipe(endpoint.address), "--only", "policies", "--minutes", "0.5")
    states = {one["rule"]: one["state"] for one in report["checked"]}
    assert states["policies.null"] == "decided", output
    assert "undecided" not in states.values(), output
