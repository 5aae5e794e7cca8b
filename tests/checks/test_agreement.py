"""When two tools that answer with other numbers differ by one factor, and when that is chance."""

import pytest

from sparring.checks.rules.agreement import _factor


@pytest.mark.parametrize(
    ("pairs", "factor"),
    [
        # Value and value with their digits after the point.
        ([(4800, 4.8, 0, 1), (350, 0.35, 0, 2)], 1000),
        ([(90, 1.5, 0, 1), (200, 3.33, 0, 2)], 60),
        # Grades that have nothing to do with one another: 3 may be twice 1 or twice 2 where both are rounded.
        ([(8, 4, 0, 0), (3, 2, 0, 0), (3, 1, 0, 0)], None),
        # One pair alone has a factor always.
        ([(4800, 4.8, 0, 1)], None),
        ([(4800, 4.8, 0, 1), (350, 0.5, 0, 1)], None),
    ],
)
def test_a_factor_is_one_that_no_rounding_explains(pairs: list[tuple[float, ...]], factor: float | None) -> None:
    assert _factor(pairs) == (None if factor is None else pytest.approx(factor, rel=0.01))
