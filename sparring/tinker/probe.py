"""Measure at the start what a service computes, and compare it with Sparring's own arithmetic.

The probe trains an adapter of its own on a few tokens, and measures how far one step moves their log-probabilities. With
beta1 = beta2 = 0 and a large eps, a step of AdamW is a step of plain gradient descent, learning_rate / eps * gradient, so
that its effect is proportional to the gradient. If the service reports gradient norms, these are compared, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import final

from sparring.errors import ServiceError
from sparring.tinker.formulas import PLAIN, TOLERANCE, Formula, Plan, Shape, expected_response, is_close, recognize
from sparring.tinker.service import AdamStep, Row, Service, Trainer, check_targets, sample_token

EPS = 1e6
"""The eps of a step of plain gradient descent. It must be much larger than any component of a gradient."""
LARGEST_LOSS = 0.25
"""The share of such a step that may be missing if a service accepts no eps that is much larger than the gradient."""
_LEAST, _TARGET, _MOST = 0.003, 0.01, 0.03
"""The change of the probe's weighted sum of log-probabilities, in nats, that a step is to cause. A smaller one drowns in
rounding, and a larger one is not proportional to the gradient."""
_WEIGHTS = (0.11, 0.0, 0.05, 0.13, 0.02, 0.07, 0.12)
"""The weights of the probe's targets. Their sum is 0.5, so that a division by it shows."""
_LARGE = 3.0
"""The factor that makes the sum of the weights larger than 1, so that a division by at least 1 shows."""
_TINY = 1e-6
"""A weight without an effect, so that a division by the number of weights that are not 0 shows."""
_ABSENT = 0.1
"""A response below this share of the usual one counts as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What one pass and step did."""

    change: float
    """The change of the probe's weighted sum of log-probabilities in nats, divided by the size of the step."""
    norm: float | None
    """The gradient norm that the service reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a service was measured to do."""

    plan: Plan
    clips_gradients: bool
    """Whether it clips gradients to `grad_clip_norm`."""
    bounds_ratios: bool | None
    """Whether its loss `ppo` gives no gradient to a token beyond the clip. None if it does not have this loss."""
    reports_norms: bool
    sampling_restores: bool | None
    """Whether sampling with earlier weights puts these back into training. None if it was not measured."""
    factor_of_negative: float | None = None
    """The gradient norm for the negative weights divided by that for the weights. None if it was not measured."""

    @property
    def formula(self) -> Formula:
        return self.plan.formula


def describe(probed: Probed) -> str:
    """Return one line about what was measured."""
    parts = [
        f"its loss is {probed.formula}" if probed.formula == PLAIN else f"in its loss, {probed.formula} (compensated)"
    ]
    if not probed.clips_gradients:
        parts.append("it does not clip gradients")
    if probed.bounds_ratios is False:
        parts.append("its loss ppo ignores the clip (not used)")
    if probed.sampling_restores:
        parts.append("sampling with earlier weights puts them back into training")
    if not probed.reports_norms:
        parts.append("it reports no gradient norms")
    return "; ".join(parts) + "."


def relative(responses: Mapping[str, Response]) -> dict[str, float]:
    """Return each response divided by that of the pass "one": the ratio of the reported norms, with the sign of the ratio of
    the changes, or without reported norms the ratio of the changes."""
    unit = responses["one"]
    found: dict[str, float] = {}
    for name, response in responses.items():
        ratio = response.change / unit.change
        if response.norm is not None and unit.norm:
            found[name] = math.copysign(response.norm / unit.norm, ratio)
        else:
            found[name] = ratio
    return found


def judge(responses: Mapping[str, Response], shapes: Mapping[str, Sequence[Shape]], name: str) -> Plan:
    """Return the plan for the service whose unchanged passes had these responses. Raises ServiceError with the measured
    responses if no known formula explains them."""
    found = relative(responses)
    formula = recognize(found, shapes)
    if formula is None:
        numbers = ", ".join(f"{one} {value:.3g}" for one, value in found.items())
        raise ServiceError(
            f"{name} computes gradients by a formula that is not known here, so training would be wrong. Relative to one row "
            f"with weights w, its gradients are: {numbers}. A plain sum gives one 1, double 2, large 3, negative -1, both 2, "
            "zeros 1, tail 1, tiny 1. Use another service, or report these numbers."
        )
    return Plan(formula=formula)


def check_plan(
    plan: Plan, raw: Response, planned: Mapping[str, Response], name: str, *, largest_loss: float = TOLERANCE
) -> None:
    """Check that the gradients that a plan produces are those of a plain sum. `raw` is the response to the pass "one" without
    the plan. `largest_loss` is the share of a step that an eps close to the gradient may take away. Raises ServiceError with the
    formula and the measured responses if they are not."""
    found = relative(planned)
    scale = relative({"one": raw, "planned": planned["one"]})["planned"]
    shapes = build_shapes()
    expected = {one: PLAIN_RESPONSES[one] for one in found}
    wanted = 1.0 / expected_response(plan.formula, shapes["one"])
    # A step along a gradient g changes the sum whose gradient g is by the square of its norm.
    norm = planned["one"].norm
    is_absolute = norm is None or 1.0 - largest_loss <= planned["one"].change / norm**2 <= 1.0 + TOLERANCE
    if is_absolute and is_close(scale / wanted, 1.0) and all(is_close(found[one], expected[one]) for one in found):
        return
    numbers = ", ".join(f"{one} {found[one]:.3g} instead of {expected[one]:g}" for one in found)
    raise ServiceError(
        f"{name} seems to compute this loss: {plan.formula}. The compensation for it does not work: {numbers}; the scale is "
        f"{scale:.3g} instead of {wanted:.3g}, and a gradient of norm {norm} caused a change of {planned['one'].change:.3g}. "
        "Training would be wrong, so use another service."
    )


PLAIN_RESPONSES = {
    "one": 1.0,
    "double": 2.0,
    "large": _LARGE,
    "negative": -1.0,
    "both": 2.0,
    "zeros": 1.0,
    "tail": 1.0,
    "tiny": 1.0,
}
"""The responses of a service that computes a plain sum."""


def build_rows(ids: Sequence[int]) -> dict[str, list[Row]]:
    """Return the rows of each pass. `ids` are distinct and at least four times as many as the probe's targets."""
    length = len(_WEIGHTS) + 1
    one = Row(token_ids=tuple(ids[:length]), weights=_WEIGHTS)
    longer = tuple(ids[length : length + 3 * len(_WEIGHTS) + 1])
    tailed = tuple(ids[: length + len(_WEIGHTS)])
    return {
        "one": [one],
        "double": [_scaled(one, 2.0)],
        "both": [one, one],
        "zeros": [one, Row(token_ids=longer, weights=(0.0,) * (len(longer) - 1))],
        "tail": [replace(one, token_ids=tailed, weights=_WEIGHTS + (0.0,) * len(_WEIGHTS))],
        "tiny": [replace(one, token_ids=tailed, weights=_WEIGHTS + (_TINY,) * len(_WEIGHTS))],
        "large": [_scaled(one, _LARGE)],
        "negative": [_scaled(one, -1.0)],
    }


def build_shapes() -> dict[str, list[Shape]]:
    """Return what a reduction sees of the rows of each pass."""
    total = sum(_WEIGHTS)
    return {
        name: [Shape(sum(row.weights) / total, row.num_targets, sum(row.weights)) for row in rows]
        for name, rows in build_rows(range(5 * len(_WEIGHTS))).items()
    }


def _scaled(row: Row, scale: float) -> Row:
    return replace(row, weights=tuple(scale * weight for weight in row.weights))


def probe(service: Service, *, rank: int, vocabulary_size: int, samples: bool, eps: float = EPS) -> Probed:
    """Measure a service with an adapter of its own, which is released afterwards. `samples` states whether to also measure
    if sampling changes the weights in training. `eps` is that of the steps, at most the largest that the service accepts.

    Raises ServiceError if it computes gradients that cannot be used.
    """
    trainer = service.create(rank=rank, seed=0)
    try:
        return _Probe(service, trainer, vocabulary_size, eps).run(samples=samples)
    finally:
        trainer.close()


@final
class _Probe:
    """The measurements of one adapter. Its weights move a little with each of them."""

    def __init__(self, service: Service, trainer: Trainer, vocabulary_size: int, eps: float) -> None:
        self._service, self._trainer, self._name, self._eps = service, trainer, service.name, eps
        first = min(16, vocabulary_size // 4)
        needed = 5 * len(_WEIGHTS)
        self._rows = build_rows([first + index % (vocabulary_size - first) for index in range(needed)])
        self._row = self._rows["one"][0]
        self._step = 1e-5
        self._logprobs = self._score(self._rows["one"])[0]

    def run(self, *, samples: bool) -> Probed:
        self._calibrate()
        self._check_padding()
        raw = {name: self._measure(self._rows[name]) for name in ("one", "double", "both", "zeros", "tail", "tiny")}
        raw["large"] = self._measure(self._rows["large"], share=1.0 / _LARGE)
        reports_norms = raw["one"].norm is not None
        takes_signs = is_close(relative(raw)["double"], 2.0)
        if takes_signs:
            raw["negative"] = self._measure(self._rows["negative"])
        plan = judge(raw, build_shapes(), self._name)
        self._step *= abs(expected_response(plan.formula, build_shapes()["one"]))
        names = ("one", "double", "negative", "both", "zeros")
        planned = {name: self._measure_planned(plan, name) for name in names}
        largest_loss = TOLERANCE if self._eps == EPS else LARGEST_LOSS
        check_plan(plan, raw["one"], planned, self._name, largest_loss=largest_loss)
        self._calibrate()
        clipped = self._measure(self._rows["one"], clip=1e-9).change / raw["one"].change
        restores = self._restores() if samples else None
        factor = self._factor_of_negative(raw["one"]) if reports_norms else None
        # The last measurement, because a service may refuse the loss, and the client then accepts no further request.
        bounds = self._bounds_ratios()
        return Probed(
            plan=plan,
            clips_gradients=abs(clipped) < _ABSENT,
            bounds_ratios=bounds,
            reports_norms=reports_norms,
            sampling_restores=restores,
            factor_of_negative=factor,
        )

    def _calibrate(self) -> None:
        """Choose the size of a step."""
        for _ in range(8):
            change = self._step * abs(self._measure(self._rows["one"]).change)
            if _LEAST <= change <= _MOST:
                return
            self._step *= min(max(_TARGET / max(change, 1e-9), 1e-3), 1e2)
        raise ServiceError(
            f"{self._name} does not train: a step of gradient descent changes log-probabilities by {change:.3g} instead of "
            f"{_TARGET}, whatever its size."
        )

    def _check_padding(self) -> None:
        alone, padded = self._logprobs, self._score(self._rows["zeros"])[0]
        difference = max(abs(a - b) for a, b in zip(alone, padded, strict=True))
        if difference > 0.1:
            raise ServiceError(
                f"{self._name} computes other log-probabilities for a row if a longer row is next to it (difference "
                f"{difference:.3g}), so it does not mask its padding. Use another service."
            )

    def _measure(
        self,
        rows: Sequence[Row],
        loss_fn: str = "cross_entropy",
        loss_config: Mapping[str, float] | None = None,
        *,
        clip: float = 0.0,
        share: float = 1.0,
    ) -> Response:
        """Take a step of gradient descent on rows, whose size is a share of the usual one."""
        size = share * self._step
        passed = self._trainer.forward_backward(rows, loss_fn, loss_config)
        stepped = self._trainer.optim_step(
            AdamStep(learning_rate=size * self._eps, beta1=0.0, beta2=0.0, eps=self._eps, grad_clip_norm=clip)
        )
        passed.result()
        norm = find_norm(stepped.result())
        before, self._logprobs = self._logprobs, self._score(self._rows["one"])[0]
        change = sum(weight * (b - a) for weight, a, b in zip(self._row.weights, before, self._logprobs, strict=True))
        return Response(change=change / size if size else 0.0, norm=norm)

    def _measure_planned(self, plan: Plan, name: str) -> Response:
        rows = self._rows[name]
        scored = [replace(row, logprobs=tuple(values)) for row, values in zip(rows, self._score(rows), strict=True)]
        return self._measure(plan.carry(scored), plan.loss_fn)

    def _restores(self) -> bool:
        """Sample with weights from before a step, and see whether the step is still there."""
        path = self._trainer.save_sampler("probe")
        before = self._logprobs
        self._measure(self._rows["one"])
        after = self._logprobs
        sample_token(self._service.create_sampler(path), self._row.token_ids)
        now = self._score(self._rows["one"])[0]
        return _distance(now, after) > 0.5 * _distance(before, after)

    def _factor_of_negative(self, one: Response) -> float:
        """Return the factor by which the negative weights change the norm, with a step of size 0."""
        norm = self._measure(self._rows["negative"], share=0.0).norm
        return (norm or 0.0) / (one.norm or 1.0)

    def _bounds_ratios(self) -> bool | None:
        """Send tokens with a ratio of e, beyond the clip of 1.2, and see whether they still move the weights."""
        row = replace(
            self._row,
            weights=(),
            logprobs=tuple(value - 1.0 for value in self._logprobs),
            advantages=self._row.weights,
        )
        try:
            free = self._measure([row], "importance_sampling").change
            bounded = self._measure([row], "ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}).change
        except ServiceError:
            return None
        return abs(bounded) < _ABSENT * abs(free)

    def _score(self, rows: Sequence[Row]) -> list[list[float]]:
        found = self._trainer.forward([replace(row, weights=(0.0,) * row.num_targets) for row in rows]).result()
        check_targets(found, rows, self._name)
        if not all(map(math.isfinite, chain.from_iterable(found))):
            raise ServiceError(f"{self._name} returned log-probabilities that are not finite. Use another service.")
        return found


def find_norm(metrics: Mapping[str, float]) -> float | None:
    """Return the gradient norm among a service's metrics, whose names differ by service, or None."""
    return next((float(value) for name, value in metrics.items() if "grad_norm" in name), None)


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))
