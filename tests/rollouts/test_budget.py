"""A run reports when it loses more than a few episodes, and stops before the rest is an unintended selection."""

import pytest

from sparring.errors import ServiceError
from sparring.rollouts.budget import FailureBudget


def counted(planned: int, lost: int, *, budget: float = 0.2) -> FailureBudget:
    made = FailureBudget(budget)
    for number in range(planned):
        made.count(1, int(number < lost))
    return made


def test_one_in_a_hundred_is_not_reported_and_more_is_reported_once() -> None:
    assert counted(200, 2).finding(7) is None
    budget = counted(200, 3)
    finding = budget.finding(7)
    assert finding is not None
    assert (finding.rule, finding.step, finding.evidence["lost"], finding.evidence["planned"]) == (
        "rollouts.lost",
        7,
        3,
        200,
    )
    assert budget.finding(8) is None


def test_a_fifth_is_allowed_and_more_stops_the_run() -> None:
    assert counted(100, 20, budget=0.5).num_lost == 20
    made = FailureBudget(0.2)
    made.count(90, 10)
    made.count(10, 10)  # 20 of 100
    with pytest.raises(ServiceError, match=r"21 of 101 training episodes .*max_lost_share = 0.2"):
        made.count(1, 1)


def test_refused_clients_and_infrastructure_use_up_one_budget() -> None:
    made = FailureBudget(0.2)
    made.count(90, 10)
    made.count(10, 10, 10)  # 20 of 100
    with pytest.raises(
        ServiceError, match=r"21 of 101 .*\(10 because of infrastructure .*; 11 because the gateway refused"
    ):
        made.count(1, 1, 1)
    made = FailureBudget(0.2)
    with pytest.raises(
        ServiceError, match=r"30 of 60 .*\(10 because of infrastructure .*; 20 because the agent reported no reward"
    ):
        made.count(60, 30, 0, 20)


def test_the_first_few_episodes_say_nothing() -> None:
    budget = FailureBudget(0.2)
    budget.count(49, 49)
    assert budget.finding(1) is None
    with pytest.raises(ServiceError, match="49 of 50"):
        budget.count(1, 0)
