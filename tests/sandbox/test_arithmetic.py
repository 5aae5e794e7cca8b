"""Arithmetic: right values, refusals in a line, and an end to everything."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.errors import InfrastructureError
from sparring.sandbox import ArithmeticProblem, arithmetic, calculate
from sparring.sandbox.evaluator import MAX_DIGITS, evaluate


def test_a_worker_answers_as_the_evaluator_does() -> None:
    async def played() -> list[int | float]:
        return [await calculate(text) for text in ("2*(3+4)", "7 / 2", "-2**2", "sqrt(2)", "10**30", " max(1, 2.5) ")]

    assert asyncio.run(played()) == [14, 3.5, -4, math.sqrt(2), 10**30, 2.5]


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda parts: "({}{}{})".format(*parts))


@given(st.recursive(st.integers(0, 99).map(str), combined, max_leaves=12))
def test_integers_are_exact(expression: str) -> None:
    assert evaluate(expression) == eval(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9", "__import__('os')", "(1).__class__", "1 if 1 else 2", "lambda: 1", "[1]", "'a' * 9", "1 << 9", "x", "f(1)",
        "1/0", "10**1000 * 10", "1e308 * 10", "(-8)**0.5", "True", "1j", "", "1 +", "(" * 300 + ")" * 300, "1" * 3000,
        "log(0)", "round(1, ndigits=2)", "abs()",
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused(expression: str) -> None:
    with pytest.raises(ArithmeticProblem):
        evaluate(expression)


def test_integers_have_a_thousand_digits_at_most() -> None:
    assert evaluate(f"10**{MAX_DIGITS - 1}") == 10 ** (MAX_DIGITS - 1)
    assert evaluate("1**999999999") == 1
    with pytest.raises(ArithmeticProblem, match="more than 1000 digits"):
        evaluate(f"10**{MAX_DIGITS + 2}")


def test_a_sum_of_a_hundred_terms_is_not_too_deep() -> None:
    assert evaluate("+".join(["1"] * 100)) == 100


def test_a_worker_that_does_not_answer_is_killed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = arithmetic._Pool()
    worker = arithmetic._Worker()
    pool._idle.put(worker)
    # Nothing evaluates in no time, so that the deadline passes whatever the machine does.
    with pytest.raises(ArithmeticProblem, match="did not end within 0 s"):
        pool.ask("1", 0.0)
    assert worker._process.returncode is not None
    assert pool.ask("1 + 1", 30.0) == 2
    last = pool._idle.get_nowait()
    last._process.kill()
    last._process.wait()
    pool._idle.put(last)
    with pytest.raises(InfrastructureError, match="worker for arithmetic failed"):
        pool.ask("1", 30.0)
    assert pool.ask("2 + 2", 30.0) == 4
    pool.close()
    assert pool._idle.empty()
