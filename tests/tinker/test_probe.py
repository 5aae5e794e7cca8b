"""What the probe finds about services that compute different things under the same names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from sparring.errors import ServiceError
from sparring.tinker.formulas import FORMULAS, PLAIN, Formula
from sparring.tinker.learner import check_settings
from sparring.tinker.probe import Probed, probe
from sparring.tinker.service import Row
from sparring.training.learner import AdamWSettings
from tests.contracts.cases import ADAPTER, VOCAB, make_policy
from tests.tinker.fake_service import Deviations, FakeService


def probed(*, samples: bool = False, **deviations: object) -> Probed:
    service = FakeService(partial(make_policy, lora=True), ADAPTER, Deviations(**deviations))  # type: ignore[arg-type]
    found = probe(service, rank=ADAPTER.rank, vocabulary_size=VOCAB, samples=samples)
    assert service.log[-1] == "unload"
    return found


@pytest.mark.parametrize("reports_norms", [True, False])
@pytest.mark.parametrize("formula", FORMULAS, ids=str)
def test_the_formula_of_a_service_is_found_and_its_plan_verified(formula: Formula, reports_norms: bool) -> None:
    found = probed(formula=formula, reports_norms=reports_norms)
    assert (found.formula, found.reports_norms) == (formula, reports_norms)
    assert found.clips_gradients
    assert found.bounds_ratios
    assert found.sampling_restores is None


def test_a_service_with_an_unknown_formula_is_refused() -> None:
    with pytest.raises(ServiceError, match=r"the fake service computes gradients by a formula that is not known"):
        probed(takes_absolute=True)


@pytest.mark.parametrize("reports_norms", [True, False])
@pytest.mark.parametrize(
    "divisor",
    [
        lambda row: max(sum(row.weights or row.advantages), 1.0),
        lambda row: max(sum(map(abs, row.weights or row.advantages)), 1.0),
        lambda row: max(sum(one != 0 for one in row.weights or row.advantages), 1),
    ],
    ids=["sum of weights, at least 1", "sum of sizes, at least 1", "weights that are not 0"],
)
def test_a_divisor_that_most_rows_do_not_show_is_refused(divisor: Callable[[Row], float], reports_norms: bool) -> None:
    with pytest.raises(ServiceError, match=r"by a formula that is not known"):
        probed(divisor=divisor, reports_norms=reports_norms)


def test_a_service_that_does_not_clip_gradients_is_noticed() -> None:
    found = probed(clips_gradients=False)
    assert (found.clips_gradients, found.formula) == (False, PLAIN)
    check_settings(AdamWSettings(grad_clip_norm=0.0), clips_gradients=False, name="the service")
    with pytest.raises(
        ServiceError, match=r"the service does not clip gradients, but optimizer.adam_grad_clip_norm is 1"
    ):
        check_settings(AdamWSettings(grad_clip_norm=1.0), clips_gradients=False, name="the service")


def test_a_service_that_ignores_the_bounds_of_ratios_is_noticed() -> None:
    assert probed(bounds_ratios=False).bounds_ratios is False
    assert probed(has_ppo=False).bounds_ratios is None


def test_a_service_whose_sampling_puts_earlier_weights_back_is_noticed() -> None:
    assert probed(samples=True).sampling_restores is False
    assert probed(samples=True, sampling_restores=True).sampling_restores is True


def test_a_service_that_does_not_mask_padding_is_refused() -> None:
    with pytest.raises(ServiceError, match="does not mask its padding"):
        probed(leaks_padding=True)


def test_negative_weights_of_a_normalizing_service_are_measured() -> None:
    factor = probed(formula=Formula(row="weights", whole="rows")).factor_of_negative
    assert factor == pytest.approx(5e8, rel=0.1)
