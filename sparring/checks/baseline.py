"""What a policy does on a sample of tasks before anything is trained: the recipe's own model, or a reference endpoint."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sparring.build import Baseline, Parts, build_baseline
from sparring.checks.given import split_reference
from sparring.checks.subject import Subject, UndecidedError
from sparring.config import Config, load_config
from sparring.errors import SparringError
from sparring.evaluation.evaluation import Evaluation, Row, evaluate
from sparring.ledger import Ledger
from sparring.types import Sampling, Task, Trajectory

NUM_EPISODES = 100
"""Episodes of the model's own baseline."""
NUM_REFERENCE = 16
"""Tasks that a reference endpoint plays once each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
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
    """Whether the recipe means its model to begin without success: a warm start comes first, or it says so."""
    return config.warm_start is not None or config.evaluation.allow_zero_baseline


async def model_baseline(subject: Subject) -> Played:
    """NUM_EPISODES of the recipe's model on training tasks, sampled as in training; played once. Raises UndecidedError."""
    if "baseline" not in subject.shared:
        parts = subject.parts
        assert parts is not None, "the rule needs the model"
        group_size = subject.config.batch.group_size
        tasks = subject.looked_at[: max(1, NUM_EPISODES // group_size)]
        sampling = Sampling(
            temperature=subject.config.sampling.temperature, max_tokens=subject.config.sampling.sampling_max_tokens
        )
        subject.shared["baseline"] = await _play(
            parts, tasks, subject.config, name="the model", group_size=group_size, sampling=sampling,
            fingerprint=parts.engine.fingerprint, in_waves=parts.is_deterministic,
        )  # fmt: skip
    return subject.shared["baseline"]


async def reference_baseline(subject: Subject, reference: str) -> Played:
    """A reference endpoint, `URL#MODEL` or `URL#MODEL#KEY_VARIABLE`, on the same tasks. Raises UndecidedError."""
    url, model, variable = split_reference(reference)
    overrides = ["engine.type=openai", f"engine.base_url={url}", f"engine.model={model}"]
    overrides += [f"engine.api_key_env={variable}"] if variable else []
    config = load_config(subject.recipe, [*subject.overrides, *overrides])
    async with Ledger() as ledger:
        baseline = build_baseline(config, subject.folder, ledger)
        try:
            sampling = Sampling(temperature=config.serving_temperature, max_tokens=config.sampling.sampling_max_tokens)
            return await _play(
                baseline, subject.looked_at[:NUM_REFERENCE], config, name=model, group_size=1, sampling=sampling,
                fingerprint=baseline.engine.fingerprint, in_waves=False,
            )  # fmt: skip
        finally:
            await baseline.collector.aclose()
            await baseline.engine.close()


async def _play(
    parts: Parts | Baseline,
    tasks: Sequence[Task],
    config: Config,
    *,
    name: str,
    group_size: int,
    sampling: Sampling,
    fingerprint: str,
    in_waves: bool,
) -> Played:
    try:
        row = Row(
            name=name, label="check", split="validation", policy_version=None, fingerprint=fingerprint,
            temperature=sampling.temperature, group_size=group_size,
        )  # fmt: skip
        evaluation, groups = await evaluate(
            parts.collector, tasks, row, sampling=sampling, judge=parts.judge, in_waves=in_waves,
            attempt=str(time.time_ns()), seconds=time.monotonic, prefix="check",
        )  # fmt: skip
    except SparringError as error:
        raise UndecidedError(f"{name} could not play a baseline: {error}") from error
    return Played(evaluation=evaluation, trajectories=tuple(one for group in groups for one in group.trajectories))
