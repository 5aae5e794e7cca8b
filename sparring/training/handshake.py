"""Check after each update that the engine samples with the weights of the learner.

The engine reports the fingerprint of the weights that it received. The engine may still compute with different weights,
because of cached values or a failed transfer. Both sides therefore also compute the log-probabilities of a few tokens,
the probe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import final

from sparring.errors import ServiceError
from sparring.protocols import Engine, Learner, ReplicatedEngine
from sparring.runtime.logs import get_logger
from sparring.training.sequences import build_demonstration_batch
from sparring.types import TrainingBatch, Weights

logger = get_logger(__name__)

PROBE_TOKENS = 64
LARGEST_DIFFERENCE = 0.25
"""The largest accepted mean difference over the probe's tokens. Differences that bf16 and other kernels cause are ten
times smaller. Differences that other weights cause are soon larger."""
SMALLEST_UPDATE = 1e-4
"""The mean change of the probe's log-probabilities by an update below which old and new weights cannot be distinguished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Mean absolute differences per token between log-probabilities of one text."""

    difference: float
    """Between the engine and the learner."""
    change: float | None
    """Between the learner and other weights that the engine may use by mistake, or None if there are no such weights."""
    from_other: float | None
    """Between the engine and these other weights."""

    @property
    def is_other(self) -> bool:
        """Whether the engine computes with the other weights, as far as the text can distinguish them."""
        if self.change is None or self.from_other is None or self.change <= SMALLEST_UPDATE:
            return False
        return self.from_other < self.difference / 2

    @property
    def is_too_large(self) -> bool:
        """Whether the engine computes with neither of the weights."""
        return self.difference > LARGEST_DIFFERENCE


def compare(played: Sequence[float], learned: Sequence[float], other: Sequence[float] | None) -> Comparison:
    """Compare an engine's log-probabilities of one text with a learner's, and with those of other weights."""
    return Comparison(
        difference=_distance(played, learned),
        change=None if other is None else _distance(learned, other),
        from_other=None if other is None else _distance(played, other),
    )


def build_probe(token_ids: Sequence[int]) -> TrainingBatch:
    """Return a text as a batch for `Learner.logprobs`, with all ids except the first."""
    return build_demonstration_batch([(token_ids, (False, *[True] * (len(token_ids) - 1)))])


@final
class Handshake:
    """Compares engine and learner on one probe, the start of the first sequence that the run trains on."""

    def __init__(self, engine: Engine, learner: Learner) -> None:
        self._engine, self._learner = engine, learner
        self._probe: tuple[int, ...] = ()
        self._before: list[float] | None = None
        """The learner's log-probabilities of the probe before the last update."""

    async def check(self, weights: Weights, step: int, batch: TrainingBatch) -> dict[str, float]:
        """Compare both sides, and return metrics. A replica of the engine that does not sample with the published weights is
        taken out.

        Raises ServiceError if no replica, or the only engine, samples with the published weights.
        """
        if self._engine.fingerprint != weights.fingerprint:
            raise ServiceError(
                f"the engine reports that it samples with weights {self._engine.fingerprint}, but step {step} published "
                f"{weights.fingerprint}. Its samples could not be assigned to "
                "a version of the weights; restart the engine, and resume the run."
            )
        if not self._probe:
            self._probe = _beginning(batch)
        if len(self._probe) < 2 or not self._engine.capabilities.scores_given_ids:
            return {}
        learned = await asyncio.to_thread(self._learner.logprobs, build_probe(self._probe))
        found = await self._compare(learned)
        self._before = learned
        if found.is_other:
            raise ServiceError(
                f"after step {step} the engine still samples with the weights of the previous step: its log-probabilities of "
                f"one text differ from those weights by {found.from_other:.3g} per token, and from the learner by "
                f"{found.difference:.3g}. Its cache is stale, or the update was lost; restart the engine, and resume the run."
            )
        if found.is_too_large:
            raise ServiceError(
                f"after step {step} engine and learner differ by {found.difference:.3g} per token in the log-probabilities of "
                "one text, so they compute with different weights. Restart the engine, and resume the run."
            )
        changed = {} if found.change is None else {"training/probe_change": found.change}
        return {"training/probe_difference": found.difference, **changed}

    async def _compare(self, learned: Sequence[float]) -> Comparison:
        """Compare the engine with the learner. If some of its replicas have other weights, they are taken out, and the result
        is that of the replica with the largest difference among the others."""
        if not isinstance(self._engine, ReplicatedEngine):
            return compare(await self._engine.logprobs(self._probe), learned, self._before)
        scores = await self._engine.replica_logprobs(self._probe)
        found = {name: compare(played, learned, self._before) for name, played in scores.items()}
        right = {name: one for name, one in found.items() if not (one.is_other or one.is_too_large)}
        if not right:
            return next(iter(found.values()))
        for name in found.keys() - right.keys():
            self._engine.take_out(name)
            logger.warning(
                "%s has other weights and gets no more turns: its log-probabilities of one text differ from those of the learner "
                "by %.3g per token. Start it again, and resume the run, to use it.",
                name,
                found[name].difference,
            )
        return max(right.values(), key=lambda one: one.difference)


def _beginning(batch: TrainingBatch) -> tuple[int, ...]:
    segments = batch.sequences[0].segments if batch.sequences else ()
    return tuple(chain.from_iterable(batch.segments[index].token_ids for index in segments))[:PROBE_TOKENS]


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)
