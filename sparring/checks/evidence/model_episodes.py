"""Episodes that a model runs on a sample of tasks before training. The model is the recipe's own or that of a reference
endpoint."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sparring.assembly import EvaluationParts, TrainingParts, load_evaluation_parts
from sparring.checks.evidence.subject import Subject, UndecidedError
from sparring.checks.evidence.user_inputs import endpoint_overrides
from sparring.config import Config, load_config
from sparring.errors import SparringError
from sparring.evaluation.evaluation import Evaluation, Row, evaluate
from sparring.ledger import Ledger
from sparring.types import Sampling, Task, Trajectory

NUM_EPISODES = 100
"""The number of episodes of the model's own baseline."""
NUM_REFERENCE = 16
"""The number of tasks for a reference endpoint, with one episode each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRun:
    """A baseline: its numbers and its episodes."""

    evaluation: Evaluation
    trajectories: tuple[Trajectory, ...]

    @property
    def num_successes(self) -> int:
        return sum(self.evaluation.successes)

    @property
    def num_episodes(self) -> int:
        return sum(self.evaluation.samples)


def may_fail_at_first(config: Config) -> bool:
    """Return True if the recipe allows a model that never succeeds at the start, because it has a warm start or sets
    `evaluation.allow_zero_baseline`."""
    return config.warm_start is not None or config.evaluation.allow_zero_baseline


async def run_model_baseline(subject: Subject) -> BaselineRun:
    """Run NUM_EPISODES episodes of the recipe's model on training tasks, sampled as in training. The result is cached.
    Raises UndecidedError if the episodes cannot be run."""
    if "baseline" not in subject.shared:
        parts = subject.parts
        assert parts is not None, "the rule needs the model"
        group_size = subject.config.batch.group_size
        tasks = subject.looked_at[: max(1, NUM_EPISODES // group_size)]
        sampling = Sampling(
            temperature=subject.config.sampling.temperature, max_tokens=subject.config.sampling.sampling_max_tokens
        )
        subject.shared["baseline"] = await _run_episodes(
            parts,
            tasks,
            subject.config,
            name="the model",
            group_size=group_size,
            sampling=sampling,
            fingerprint=parts.engine.fingerprint,
            in_waves=parts.is_deterministic,
        )
    return subject.shared["baseline"]


async def run_reference_baseline(subject: Subject, reference: str) -> BaselineRun:
    """Run a reference endpoint, `URL#MODEL` or `URL#MODEL#KEY_VARIABLE`, on NUM_REFERENCE training tasks. Raises
    UndecidedError if the endpoint cannot be used."""
    overrides = endpoint_overrides(reference, option="--reference")
    config = load_config(subject.recipe, [*subject.overrides, *overrides])
    async with Ledger() as ledger:
        baseline = load_evaluation_parts(config, subject.folder, ledger)
        try:
            sampling = Sampling(temperature=config.serving_temperature, max_tokens=config.sampling.sampling_max_tokens)
            return await _run_episodes(
                baseline,
                subject.looked_at[:NUM_REFERENCE],
                config,
                name=str(config.engine.model),
                group_size=1,
                sampling=sampling,
                fingerprint=baseline.engine.fingerprint,
                in_waves=False,
            )
        finally:
            await baseline.collector.aclose()
            await baseline.engine.close()


async def _run_episodes(
    parts: TrainingParts | EvaluationParts,
    tasks: Sequence[Task],
    config: Config,
    *,
    name: str,
    group_size: int,
    sampling: Sampling,
    fingerprint: str,
    in_waves: bool,
) -> BaselineRun:
    try:
        row = Row(
            name=name,
            label="check",
            split="validation",
            policy_version=None,
            fingerprint=fingerprint,
            temperature=sampling.temperature,
            group_size=group_size,
        )
        [(evaluation, groups)] = await evaluate(
            parts.collector,
            tasks,
            [(row, sampling)],
            criterion=parts.criterion,
            in_waves=in_waves,
            attempt=str(time.time_ns()),
            seconds=time.monotonic,
            prefix="check",
        )
    except SparringError as error:
        raise UndecidedError(f"{name} could not run a baseline: {error}") from error
    return BaselineRun(evaluation=evaluation, trajectories=tuple(one for group in groups for one in group.trajectories))
