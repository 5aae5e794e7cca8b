"""After each update: does the engine play with the weights that the learner has?

The engine says so by a fingerprint. That is what it was given; what it computes with is another matter (a cache of the old
weights, a transfer that went wrong), so a probe of a few tokens is computed on both sides.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import final

from sparring.errors import ServiceError
from sparring.protocols import Engine, Learner
from sparring.training.sequences import demonstration_batch
from sparring.types import TrainingBatch, Weights

PROBE_TOKENS = 64
LARGEST_DIFFERENCE = 0.25
"""Mean over the probe's tokens. bf16 and other kernels stay a decade below; other weights soon do not."""
SMALLEST_UPDATE = 1e-4
"""Mean change of the probe's log-probabilities by an update, below which old and new weights cannot be told apart."""


@final
class Handshake:
    """Compares the two sides on one probe, the beginning of the first sequence that the run trains."""

    def __init__(self, engine: Engine, learner: Learner) -> None:
        self._engine, self._learner = engine, learner
        self._probe: tuple[int, ...] = ()
        self._before: list[float] | None = None
        """The learner's log-probabilities of the probe before the last update."""

    async def check(self, weights: Weights, step: int, batch: TrainingBatch) -> dict[str, float]:
        """Metrics of the comparison. Raises ServiceError when the engine plays with other weights than were published."""
        if self._engine.fingerprint != weights.fingerprint:
            raise ServiceError(
                f"the engine says that it plays with weights {self._engine.fingerprint}, but step {step} published "
                f"{weights.fingerprint}. Nothing it samples could be told apart; restart the engine, and resume the run."
            )
        if not self._probe:
            self._probe = _beginning(batch)
        if len(self._probe) < 2:
            return {}
        probe = demonstration_batch([(self._probe, (False, *[True] * (len(self._probe) - 1)))])
        learned = (await asyncio.to_thread(self._learner.logprobs, probe)).tolist()
        played = await self._engine.logprobs(self._probe)
        difference = _distance(played, learned)
        from_before = None if self._before is None else _distance(played, self._before)
        update = None if self._before is None else _distance(learned, self._before)
        self._before = learned
        if from_before is not None and update is not None and update > SMALLEST_UPDATE and from_before < difference / 2:
            raise ServiceError(
                f"after step {step} the engine still plays with the weights of the step before: its log-probabilities of one "
                f"text are {from_before:.3g} a token from theirs, and {difference:.3g} from the learner's. Its cache is stale, "
                "or the update got lost; restart the engine, and resume the run."
            )
        if difference > LARGEST_DIFFERENCE:
            raise ServiceError(
                f"after step {step} engine and learner differ by {difference:.3g} a token in the log-probabilities of one text: "
                "they compute with different weights. Restart the engine, and resume the run."
            )
        changed = {} if update is None else {"training/probe_change": update}
        return {"training/probe_difference": difference, **changed}


def _beginning(batch: TrainingBatch) -> tuple[int, ...]:
    segments = batch.sequences[0].segments if batch.sequences else ()
    return tuple(chain.from_iterable(batch.segments[index].token_ids for index in segments))[:PROBE_TOKENS]


def _distance(one: list[float], other: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)
