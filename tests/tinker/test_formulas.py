"""The formulas of services are recognized from measurements, and compensated exactly. No service is needed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sparring.errors import ServiceError
from sparring.tinker.formulas import FORMULAS, LEAST_SUM, PLAIN, Formula, Plan, Shape, expected_response, recognize
from sparring.tinker.probe import PLAIN_RESPONSES, Response, build_shapes, check_plan, judge
from sparring.tinker.service import Row

SKYRL = Formula(row="weights", whole="rows")


def responses_of(formula: Formula) -> dict[str, float]:
    shapes = build_shapes()
    found = {name: expected_response(formula, rows) for name, rows in shapes.items()}
    return {name: value / found["one"] for name, value in found.items()}


@pytest.mark.parametrize("formula", FORMULAS, ids=str)
def test_each_formula_is_recognized_from_its_responses(formula: Formula) -> None:
    found = {name: value * (1 + 0.01 * place) for place, (name, value) in enumerate(responses_of(formula).items())}
    assert recognize(found, build_shapes()) == formula


def test_no_two_formulas_have_equal_responses() -> None:
    for one in FORMULAS:
        for other in FORMULAS:
            if one != other:
                assert any(abs(value - responses_of(other)[name]) > 0.2 for name, value in responses_of(one).items()), (
                    str(one),
                    str(other),
                )


def test_the_responses_of_a_plain_sum_are_those_in_the_table() -> None:
    assert responses_of(PLAIN) == pytest.approx(PLAIN_RESPONSES, rel=1e-4)


def test_skyrl_divides_by_a_billionth_if_weights_have_a_negative_sum() -> None:
    assert responses_of(SKYRL)["negative"] == pytest.approx(-0.5 / LEAST_SUM)
    assert str(SKYRL) == (
        "each row's loss is divided by the sum of its weights (at least 1e-9), and the sum over the rows is divided by the "
        "number of rows"
    )


def test_an_unknown_formula_is_refused_with_the_measured_numbers() -> None:
    strange = {name: Response(change=0.02 * abs(value), norm=None) for name, value in PLAIN_RESPONSES.items()}
    with pytest.raises(ServiceError, match=r"the service computes .* not known .* negative 1,"):
        judge(strange, build_shapes(), "the service")


@pytest.mark.parametrize("formula", FORMULAS, ids=str)
def test_a_plan_makes_the_gradient_that_of_a_plain_sum(formula: Formula) -> None:
    """The coefficient of each target's log-probability is computed by the service's formula, with random signs."""
    rng = random.Random(3)
    rows = [
        Row(
            token_ids=tuple(range(length + 1)),
            weights=tuple(rng.gauss(0, 1) for _ in range(length)),
            logprobs=(-1.0,) * length,
        )
        for length in (3, 9, 5, 1)
    ]
    rows.append(replace(rows[1], weights=(0.0,) * 9))
    plan = Plan(formula=formula)
    sent = plan.carry(rows)
    assert all(bool(one.weights) != bool(one.advantages) for one in sent)
    totals = [sum(one.weights) if plan.loss_fn == "cross_entropy" else float(one.num_targets) for one in sent]
    shapes = [Shape(1.0, one.num_targets, total) for one, total in zip(sent, totals, strict=True)]
    for row, one, factor in zip(rows, sent, formula.factors(shapes), strict=True):
        assert [factor * value for value in one.weights or one.advantages] == pytest.approx(list(row.weights))


def test_a_plan_that_does_not_work_is_refused_with_the_formula() -> None:
    planned = {name: Response(change=0.02 * value, norm=None) for name, value in PLAIN_RESPONSES.items()}
    raw = Response(change=0.04, norm=None)
    check_plan(Plan(formula=SKYRL), raw, planned, "the service")
    for broken in (
        {**planned, "negative": Response(change=0.02, norm=None)},
        {name: replace(one, change=3 * one.change) for name, one in planned.items()},
    ):
        with pytest.raises(
            ServiceError, match=r"divided by the sum of its weights .* compensation for it does not work"
        ):
            check_plan(Plan(formula=SKYRL), raw, broken, "the service")
