"""Symptoms of how episodes are drawn: too few of them for a step, or at a temperature at which the policy does not speak."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean

from sparring.detectors.evidence import Episode, mean, reward, score
from sparring.diagnosis.course import JUDGE_AFTER, LIKELY
from sparring.diagnosis.observed import LATE_STEPS, Observed
from sparring.diagnosis.proposal import possible
from sparring.diagnosis.registry import symptom
from sparring.findings import Finding, Severity

FEWEST = 8
"""Episodes with an advantage that a step should learn from: of fewer the next batch may teach the opposite."""
BELOW = "evaluation.below_training"
HOT, COLD = 1.3, 0.5
"""Temperatures beyond which what is sampled is another policy."""


@symptom("batch.too_small")
def too_small(observed: Observed) -> Iterable[Finding]:
    """A step plays fewer than eight episodes, or has a signal from fewer since its batch is small: what it learns is noise."""
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
        symptom=f"a step plays {played} episodes, of which {played * valid:.1f} have a sibling that did otherwise: what one "
        "step learns the next may undo.",
        evidence={
            "global_batch_size": batch.global_batch_size, "group_size": batch.group_size,
            "groups_with_signal": round(valid, 4), "steps": steps,
            "steps_without_signal": round(fmean(observed.series("training/steps_without_signal") or [0.0]), 4),
        },
        change=f"Play {groups} tasks a step.",
        confirm="analysis/batch_valid_ratio times the episodes of a step is above 8.",
        step=observed.history.last_step,
        settings=possible(observed.config, {"batch.global_batch_size": groups}),
        confirm_after=JUDGE_AFTER,
    )  # fmt: skip


@symptom("sampling.temperature")
def temperature(observed: Observed) -> Iterable[Finding]:
    """Training samples at a temperature above 1.3, and is right less often than validation was of the same policy at a lower one:
    the first step's episodes and the first validation are both of the policy that training began from. Or it samples below 0.5,
    and validation at a higher temperature stays below it: nothing is learned of what the policy says beside its favorite."""
    hot, config = observed.config.sampling.temperature, observed.config.evaluation
    if not observed.trained or observed.is_solved:
        return
    if hot <= COLD and config.val_temperature > hot and any(one.rule == BELOW for one in observed.said):
        yield _cold(observed)
    if hot < HOT or config.val_temperature >= hot:
        return
    first = observed.trained[0]
    begun = [one.metrics for one in observed.validations if one.step < first.step]
    if not begun or not first.train:
        return
    is_scored = "val/score/mean" in begun[-1] and all(one.score is not None for one in first.train)
    trained = mean([Episode((first.step, one.task_id), one) for one in first.train], score if is_scored else reward)
    validated = begun[-1]["val/score/mean" if is_scored else "val/reward/mean"]
    spread = max(0.1, begun[-1].get("val/reward/std", 0.5)) / math.sqrt(begun[-1].get("val/reward/num_prompts", 1.0))
    if validated - trained.value <= LIKELY * math.hypot(trained.error, spread):
        return
    yield Finding(
        rule="sampling.temperature",
        severity=Severity.WARNING,
        symptom=f"training samples at temperature {hot:g} and began at {trained.value:.2f}, where validation of the same policy "
        f"at {config.val_temperature:g} had {validated:.2f}.",
        evidence={
            "temperature": hot, "val_temperature": config.val_temperature, "first_step": round(trained.value, 4),
            "first_validation": round(validated, 4),
            "entropy": round(observed.now("rollout/logprob/entropy"), 4),
            "truncated_turns": round(observed.now("rollout/truncated_turns"), 4),
        },
        change="Sample as the policy is, at temperature 1.",
        confirm="The first step is about as good as the first validation.",
        step=observed.history.last_step,
        settings=possible(observed.config, {"sampling.temperature": 1.0}),
        confirm_after=1,
    )  # fmt: skip


def _cold(observed: Observed) -> Finding:
    last = observed.validations[-1].metrics
    given, other = observed.config.sampling.temperature, observed.config.evaluation.val_temperature
    return Finding(
        rule="sampling.temperature",
        severity=Severity.WARNING,
        symptom=f"training samples at temperature {given:g}, where its reward is {observed.now('rollout/reward/mean'):.2f}; "
        f"validation at {other:g} has {last['val/reward/mean']:.2f}.",
        evidence={
            "temperature": given, "val_temperature": other, "equal_groups": round(observed.equal_groups, 4),
            "groups_with_signal": round(observed.now("analysis/batch_valid_ratio"), 4),
        },
        change="Sample as the policy is, at temperature 1.",
        confirm="Validation follows the training reward.",
        step=observed.history.last_step,
        settings=possible(observed.config, {"sampling.temperature": 1.0}),
        confirm_after=JUDGE_AFTER,
    )  # fmt: skip
