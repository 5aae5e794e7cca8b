"""A budget ends a run before the step that would exceed it."""

from sparring.metering.budget import Budget


def test_a_step_starts_only_if_one_like_the_last_stays_within_the_limit() -> None:
    budget = Budget(10.0, spent=1.0)
    used_up = []
    for _ in range(4):
        used_up.append(budget.is_used_up)
        budget.add(2.5)
    # Spent 1, 3.5, 6 and 8.5; a step like the last one would lead to 6, 8.5 and 11.
    assert used_up == [False, False, False, True]


def test_requests_to_endpoints_count_and_without_a_limit_nothing_does() -> None:
    costs = iter([1.0, 4.0])
    budget = Budget(5.0, endpoint_cost=lambda: next(costs))
    budget.add(0.5)  # 4.5 so far, of which this step took 3.5
    assert budget.is_used_up
    unlimited = Budget(None)
    unlimited.add(1e9)
    assert not unlimited.is_used_up
