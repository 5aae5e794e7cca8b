"""Symptoms of sampling: too few episodes per step, or a temperature that distorts the policy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

from sparring.detectors.evidence import Estimate, has_validated_kinds, mean_of_offered
from sparring.diagnosis.course import JUDGE_AFTER, LIKELY
from sparring.diagnosis.observed import LATE_STEPS, Observed
from sparring.diagnosis.proposal import possible
from sparring.findings import Finding, Severity
from sparring.run_folders.history import StepRecord

FEWEST = 8
"""The number of episodes with an advantage that a step should learn from. With fewer, the next batch may teach the
opposite."""
BELOW = "evaluation.below_training"
HOT, COLD = 1.3, 0.5
"""Above the first temperature, or below the second one, the sampled policy differs too much from the trained one."""


def too_small(observed: Observed) -> Iterable[Finding]:
    """Report that a step runs too few episodes, or that fewer than eight of them have a signal because the batch is
    small. Such a step learns noise."""
    batch, steps = observed.config.batch, len(observed.trained)
    played = batch.global_batch_size * batch.group_size
    if steps < LATE_STEPS or observed.is_solved or played >= 2 * FEWEST:
        return
    valid = fmean(observed.series("analysis/batch_valid_ratio") or [1.0])
    if played * valid >= FEWEST:
        return
    groups = max(2 * batch.global_batch_size, math.ceil(4 * FEWEST / batch.group_size))
    yield Finding(
        rule="batch.too_small",
        severity=Severity.WARNING,
        symptom=f"a step runs {played} episodes, of which {played * valid:.1f} are in groups with a signal: "
        "the next step may undo what one step learns.",
        evidence={
            "global_batch_size": batch.global_batch_size,
            "group_size": batch.group_size,
            "groups_with_signal": round(valid, 4),
            "steps": steps,
            "steps_without_signal": round(fmean(observed.series("training/steps_without_signal") or [0.0]), 4),
        },
        change=f"Use {groups} tasks per step.",
        confirm="analysis/batch_valid_ratio times the episodes of a step is above 8.",
        step=observed.history.last_step,
        settings=possible(observed.config, {"batch.global_batch_size": groups}),
        confirm_after=JUDGE_AFTER,
    )


def temperature(observed: Observed) -> Iterable[Finding]:
    """Report that the sampling temperature of training is above 1.3, and that success is lower than in a validation run
    with the same policy.

    The episodes of a step come from the policy that was validated before it. Also report that the temperature is below
    0.5 and validation at a higher temperature is worse, because training then affects only the most likely answers.
    """
    hot, config = observed.config.sampling.temperature, observed.config.evaluation
    if not observed.trained or observed.is_solved:
        return
    if hot <= COLD and config.val_temperature > hot and any(one.rule == BELOW for one in observed.findings):
        yield _cold(observed)
    if hot < HOT or config.val_temperature >= hot:
        return
    # The episodes of a step come from the policy that was validated after the step before. At first, this is the
    # initial policy, which learning has not yet adapted to the temperature.
    steps = {one.step: one for one in observed.trained if one.train}
    pairs = [
        (one.metrics, steps[one.step + 1])
        for one in observed.validations
        if one.step + 1 in steps and has_validated_kinds([steps[one.step + 1]], one.metrics)
    ]
    for some in (pairs[:1], pairs):
        if some and _is_worse(some):
            break
    else:
        return
    trained, validated, _ = _compared(some)
    yield Finding(
        rule="sampling.temperature",
        severity=Severity.WARNING,
        symptom=f"training at temperature {hot:g} reaches {trained.value:.2f} in step "
        f"{', '.join(str(step.step) for _, step in some)}; validation of the same policy at {config.val_temperature:g} reaches "
        f"{validated:.2f}.",
        evidence={
            "temperature": hot,
            "val_temperature": config.val_temperature,
            "training": round(trained.value, 4),
            "validation": round(validated, 4),
            "steps": [step.step for _, step in some],
            "entropy": round(observed.now("rollout/logprob/entropy"), 4),
            "truncated_turns": round(observed.now("rollout/truncated_turns"), 4),
        },
        change="Sample at temperature 1.",
        confirm="The step after a validation run reaches about the same value.",
        step=observed.history.last_step,
        settings=possible(observed.config, {"sampling.temperature": 1.0}),
        confirm_after=1,
    )


Pair: TypeAlias = tuple[Mapping[str, float], StepRecord]
"""The metrics of a validation run, and the step whose episodes come from the same policy."""


def _compared(pairs: Sequence[Pair]) -> tuple[Estimate, float, float]:
    """Return the training mean, the validation mean and its standard error. The means use the score if all episodes of
    both have one."""
    is_scored = all("val/score/mean" in one for one, _ in pairs) and all(
        digest.score is not None for _, step in pairs for digest in step.train
    )
    name = "val/score/mean" if is_scored else "val/reward/mean"
    tasks = sum(max(1.0, one.get("val/reward/num_prompts", 1.0)) for one, _ in pairs)
    spread = max(0.1, fmean(one.get("val/reward/std", 0.5) for one, _ in pairs))
    trained = mean_of_offered([step for _, step in pairs], "score" if is_scored else "reward")
    return trained, fmean(one[name] for one, _ in pairs), spread / math.sqrt(tasks)


def _is_worse(pairs: Sequence[Pair]) -> bool:
    trained, validated, error = _compared(pairs)
    return validated - trained.value > LIKELY * math.hypot(trained.error, error)


def _cold(observed: Observed) -> Finding:
    last = observed.validations[-1].metrics
    given, other = observed.config.sampling.temperature, observed.config.evaluation.val_temperature
    return Finding(
        rule="sampling.temperature",
        severity=Severity.WARNING,
        symptom=f"at the training temperature {given:g}, the reward is {observed.now('rollout/reward/mean'):.2f}; "
        f"in validation at {other:g} it is {last['val/reward/mean']:.2f}.",
        evidence={
            "temperature": given,
            "val_temperature": other,
            "equal_groups": round(observed.equal_groups, 4),
            "groups_with_signal": round(observed.now("analysis/batch_valid_ratio"), 4),
        },
        change="Sample at temperature 1.",
        confirm="Validation follows the training reward.",
        step=observed.history.last_step,
        settings=possible(observed.config, {"sampling.temperature": 1.0}),
        confirm_after=JUDGE_AFTER,
    )
