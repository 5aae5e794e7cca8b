"""What `environment.schema` must not report."""

from pathlib import Path

import pytest

from tests.checks.rule_runner import run_rules

SECOND = Path(__file__).parents[2] / "benchmarks" / "blind_environments" / "second"


@pytest.mark.parametrize(
    "case",
    [
        "meeting_times",  # a topic of the enumeration on which this task has no meeting
        "order_totals",  # `add` takes a list under the name of a field that is one number
    ],
)
def test_what_is_missing_in_one_task_or_given_in_a_list_is_no_fault_of_the_schema(case: str) -> None:
    (verdict,) = run_rules([{"folder": str(SECOND / case), "rule": "environment.schema", "options": {}}])
    assert verdict["state"] == "decided"
    assert verdict["findings"] == []
