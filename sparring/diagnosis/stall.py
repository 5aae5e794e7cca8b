"""The five symptoms of a stalling curve, in the order of MTRL's table (docs/diagnosis.md), and what precedes them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from sparring.algorithms.choice import WITHOUT_TRUST_REGION
from sparring.detectors.evidence import Episode, named, shown
from sparring.diagnosis.course import (
    JUDGE_AFTER,
    LIKELY,
    STALL_STEPS,
    SURE,
    difference,
    is_flat,
    reward_span,
    thirds,
)
from sparring.diagnosis.observed import LATE_STEPS, Observed
from sparring.diagnosis.proposal import possible, rounded, warmer
from sparring.diagnosis.sampling import COLD
from sparring.diagnosis.variety import for_stopped, stopped_varying
from sparring.findings import Finding, Severity
from sparring.types import Json

UNPAID_SHARE = 0.05
"""If the scorer accepts at least this share of the episodes and the reward does not pay them, the two read different
parts of the answers."""
UNPAID_ALL = 0.95
AGREEING, NEARLY_ALL_AGREE = 0.6, 0.8
"""Shares of groups whose members all earned the same. From the first, most episodes are useless. From the second, the
mean varies with the tasks, so the rule does not require a flat curve."""
VALIDATION_SHARE = 0.3
"""The smallest share of the training reward's rise that validation must follow."""
DROPPED, GONE = 0.5, 0.25
"""The share of the peak's gain that a collapse loses, and the share that is left after a complete collapse."""
WINDOW, SHORT_WINDOW = 5, 2
"""The number of steps of a peak, and of a peak within the first steps."""
KIND_SUCCESS = re.compile("rollout/kind/(.+)/success")
"""The metrics with the success rates of kinds of tasks."""
KIND_GROUPS, SILENT_KINDS = 4, 0.25
"""The least number of groups that show that a kind never or always succeeds, and the least share of groups of such kinds
for which a selection is worth it."""


@dataclass(frozen=True, slots=True)
class SuccessCount:
    """The number of episodes, and the number of successes among them."""

    right: int
    played: int


def flat_from_start(observed: Observed) -> Iterable[Finding]:
    """Report that the reward has been flat since the first step because the output format and the parser of the reward
    do not match.

    Either the scorer accepts episodes that are not rewarded, or hardly any episode earns anything. The finding is an
    error if the scorer accepts unrewarded episodes."""
    if not is_flat(observed) or (observed.is_solved and not observed.now("rollout/agreement/unpaid_right")):
        return
    unpaid = [
        one
        for one in observed.late
        if one.digest.score is not None
        and one.digest.score >= observed.history.success_threshold
        and one.digest.reward < observed.history.success_threshold
    ]
    share = len(unpaid) / len(observed.late) if observed.late else 0.0
    nothing = observed.now("rollout/reward/zero_frac")
    if share < UNPAID_SHARE and nothing < UNPAID_ALL:
        return
    is_unread = share >= UNPAID_SHARE
    parser = observed.config.reward.reward or "the reward that the agent reports"
    shown_ones = unpaid if is_unread else observed.late
    yield Finding(
        rule="stall.flat_from_start",
        severity=Severity.ERROR if is_unread else Severity.WARNING,
        symptom=f"the reward has not changed since the first step, and {share:.0%} of the last episodes are accepted by the "
        "scorer and not paid."
        if is_unread
        else f"the reward has not changed since the first step: {nothing:.0%} of the last episodes earn nothing.",
        evidence={
            "steps": len(observed.trained),
            "reward": round(observed.now("rollout/reward/mean"), 4),
            "score": round(observed.now("rollout/score/mean"), 4),
            "unpaid_right": round(share, 4),
            "zero_reward": round(nothing, 4),
            "examples": shown(shown_ones),
        },
        change=f"Compare the output format that the prompt requests with the format that {parser} parses, on the "
        "episodes named here, and fix the wrong one.",
        confirm="`sparring review RUN RECIPE` with the corrected reward shows that right episodes are paid. Then the "
        "reward rises.",
        step=observed.history.last_step,
        trajectories=named(shown_ones),
        confirm_after=JUDGE_AFTER,
    )


def groups_agree(observed: Observed) -> Iterable[Finding]:
    """Report that the reward does not rise, and that in most groups all episodes earn the same, so that the policy
    learns hardly anything.

    Also report that the sampling temperature is so low that the episodes of a group are identical word for word. The
    proposal depends on how often each task succeeds. If the groups agree because the policy has stopped varying, groups
    of a different size would agree, too, so the proposal is a smaller learning rate. Otherwise, MTRL's own advice
    (smaller groups, and more of them) is reported, with the signal that it would give for these success rates."""
    agreeing = 1 - observed.now("analysis/batch_valid_ratio", 1.0)
    if agreeing < AGREEING or not observed.silent_groups_agree or observed.is_solved:
        return
    is_still = is_flat(observed, max(STALL_STEPS, len(observed.trained) // 2)) or _noise_hides_it(observed, agreeing)
    is_cold = observed.config.sampling.temperature <= COLD and bool(warmer(observed))
    if not is_still and not is_cold:
        return
    groups = [*_count_successes(observed, by_group=True).values()]
    if not groups:
        return
    tallies, batch = _count_successes(observed), observed.config.batch
    right = sum(one.right for one in tallies.values()) / sum(one.played for one in tallies.values())
    half = batch.group_size // 2
    evidence: dict[str, Json] = {
        "steps": observed.late_steps,
        "groups_without_signal": round(agreeing, 4),
        "all_right": round(observed.now("analysis/equal_groups/all_right"), 2),
        "all_wrong": round(observed.now("analysis/equal_groups/all_wrong"), 2),
        "success": round(right, 4),
        "group_size": batch.group_size,
        "groups_with_signal_a_step": round((1 - agreeing) * batch.global_batch_size, 2),
    }
    if half >= 2:
        silent = fmean(_agreement_at(one, half) for one in groups)
        evidence["at_half_the_group_size"] = {
            "groups_without_signal": round(silent, 4),
            "groups_with_signal_a_step_with_twice_the_batch": round((1 - silent) * 2 * batch.global_batch_size, 2),
        }
    # Cold sampling alone makes the entropy low.
    stopped = stopped_varying(observed) if 0 < right < 1 and not is_cold else None
    if stopped is not None:
        change, settings = for_stopped(observed.config, stopped)
        evidence |= stopped.evidence
    else:
        change, settings = _for_agreeing_groups(observed, tallies, right)
    yield Finding(
        rule="stall.groups_agree",
        severity=Severity.WARNING,
        symptom=("the reward does not rise, and " if is_still else "")
        + f"in {agreeing:.0%} of the last groups, all episodes earned the same"
        + (", because the policy has stopped varying." if stopped else "."),
        evidence=evidence,
        change=change,
        confirm=("training/entropy stays higher, " if stopped else "")
        + "analysis/batch_valid_ratio rises (analysis/zero_adv_groups falls), then the reward does.",
        step=observed.history.last_step,
        trajectories=named(_of_agreeing(observed)),
        settings=settings,
        before_step=stopped.step if stopped else None,
        confirm_after=JUDGE_AFTER,
    )


def validation_flat(observed: Observed) -> Iterable[Finding]:
    """Report that the training reward rises, but that the validation reward rises by less than 30 % of this.

    In this case, the policy hacks the reward. If the scores of training episodes rise, the policy memorizes the
    training tasks instead."""
    measured = (
        "val/score/mean" if all("val/score/mean" in one.metrics for one in observed.validations) else "val/reward/mean"
    )
    validations = [(one.step, one.metrics) for one in observed.validations]
    rewards = observed.series("rollout/reward/mean")
    rise = thirds(rewards)
    if len(validations) < 3 or rise is None or not rise.exceeds(SURE, over=0.05 * reward_span(observed)):
        return
    (_, first), (last_step, last) = validations[0], validations[-1]
    error = math.sqrt(sum(_variance(metrics, measured) for metrics in (first, last)))
    gained = last[measured] - first[measured]
    training = (
        "rollout/score/mean"
        if measured == "val/score/mean" and observed.series("rollout/score/mean")
        else "rollout/reward/mean"
    )
    room = (
        observed.now("rollout/reward/mean") - last[measured]
        if training == "rollout/reward/mean"
        else 1 - last[measured]
    )
    follows = gained + LIKELY * error >= VALIDATION_SHARE * rise.value / reward_span(observed)
    if follows or room < 0.1 * reward_span(observed):
        return
    best_step, _ = max(validations, key=lambda one: one[1][measured])
    scored = thirds(observed.series("rollout/score/mean"))
    by_heart = scored is not None and scored.exceeds(SURE) and scored.value >= 0.5 * rise.value / reward_span(observed)
    accused = sorted(
        {one.rule for one in observed.findings if one.rule.startswith(("reward.", "answers.", "exploits.", "judge."))}
    )
    evidence: dict[str, Json] = {
        "training_reward": [round(rewards[0], 4), round(observed.now("rollout/reward/mean"), 4)],
        measured: [[step, round(metrics[measured], 4)] for step, metrics in validations],
        "error": round(error, 4),
    }
    if scored is not None:
        evidence["training_score"] = [
            round(observed.series("rollout/score/mean")[0], 4),
            round(observed.now("rollout/score/mean"), 4),
        ]
    if accused:
        evidence["detectors"] = accused
    worst = sorted(observed.late, key=lambda one: (observed.succeeds(one.digest), -one.digest.reward))
    if by_heart:
        change = "Train on more tasks, or stop at the step with the best validation: the policy memorizes the training tasks."
        confirm = "val/reward/mean rises with the training reward."
    else:
        change = (
            f"Read the episodes named here and tighten what {observed.config.reward.reward or 'the agent'} pays for; "
            f"the reward is probably hacked. Branch from the checkpoint of step {best_step} or one close to it, where "
            f"{measured} was best: the policy does not recover by itself what it has unlearned since."
        )
        confirm = (
            "`sparring review RUN RECIPE` with the corrected reward shows that these episodes earn nothing. Then "
            "validation follows training."
        )
    yield Finding(
        rule="stall.validation_flat",
        severity=Severity.ERROR
        if not by_heart and scored is not None and not scored.exceeds(LIKELY)
        else Severity.WARNING,
        symptom=f"the training reward rises and {measured} does not: {first[measured]:.2f} at first, "
        f"{last[measured]:.2f} after step {last_step}.",
        evidence=evidence,
        change=change,
        confirm=confirm,
        step=observed.history.last_step,
        trajectories=named(worst),
        confirm_after=JUDGE_AFTER,
    )


def collapse(observed: Observed) -> Iterable[Finding]:
    """Report that the reward had risen, and has then fallen again by at least half of its gain. According to MTRL, this
    happens at steps 40 to 80.

    The finding is an error if at most a quarter of the gain is left. The first proposed change depends on the metrics:
    it concerns stale tokens, otherwise a loss that never clips, otherwise the learning rate. Broken tools can explain a
    fall without any change in the policy. With few episodes per step, the reward varies with the tasks of the step."""
    is_broken = any(one.rule == "tools.failing" and one.severity is Severity.ERROR for one in observed.findings)
    if is_broken or any(one.rule == "batch.too_small" for one in observed.findings):
        return
    drop = _find_drop(observed)
    if drop is None:
        return
    rate_at_peak = observed.trained[drop.peak].metrics.get("training/learning_rate")
    change, settings = _for_collapse(observed, at_peak=rate_at_peak)
    steps = [one.step for one in observed.trained]
    yield Finding(
        rule="stall.collapse",
        severity=Severity.ERROR if drop.now <= GONE * drop.top else Severity.WARNING,
        symptom=f"the reward has fallen from {drop.mean:.2f} around step {steps[drop.peak]} to "
        f"{drop.now + drop.floor:.2f}.",
        evidence=_evidence_of_collapse(observed, drop),
        change=change,
        confirm="From a checkpoint before the peak, the reward stays high, perhaps lower. Wait until after the step "
        "of the fall.",
        step=observed.history.last_step,
        trajectories=named(observed.late),
        settings=settings,
        before_step=steps[drop.fallen],
        confirm_after=max(JUDGE_AFTER, min(50, steps[drop.fallen + drop.width - 1] - steps[drop.peak])),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drop:
    """A peak of the reward, and what is left of it. Steps are positions in the list of training steps."""

    floor: float
    """The lowest reward of an episode."""
    peak: int
    """The first step of the peak."""
    width: int
    """The number of steps of the peak."""
    mean: float
    """The mean reward of the peak."""
    fallen: int
    """The first step from which the mean reward is at most half as far above the lowest one as at the peak."""
    now: float
    """The mean reward of the last steps, less the lowest one."""

    @property
    def top(self) -> float:
        """The mean reward of the peak, less the lowest one."""
        return self.mean - self.floor


def _find_drop(observed: Observed) -> _Drop | None:
    """Return the peak from which the reward has certainly fallen, or None."""
    values, lowest = observed.series("rollout/reward/mean"), observed.series("rollout/reward/min")
    if len(values) < 2 * WINDOW + SHORT_WINDOW or not lowest:
        return None
    floor = min(lowest)
    now = fmean(values[-WINDOW:]) - floor
    # A collapse within the first steps has a short peak. Such a short peak may be noise, unless almost nothing is left.
    for width, most_left in ((WINDOW, DROPPED), (SHORT_WINDOW, GONE)):
        means = [fmean(values[place : place + width]) for place in range(len(values) - width + 1)]
        peak = max(range(len(values) - 2 * WINDOW), key=lambda place: means[place])
        top = means[peak] - floor
        fall = difference(values[peak : peak + width], values[-WINDOW:])
        if top > 0 and now <= most_left * top and (-fall).exceeds(SURE):
            fallen = next(place for place in range(peak, len(means)) if means[place] - floor <= DROPPED * top)
            return _Drop(floor=floor, peak=peak, width=width, mean=means[peak], fallen=fallen, now=now)
    return None


def _evidence_of_collapse(observed: Observed, drop: _Drop) -> dict[str, Json]:
    first, last = observed.trained[drop.peak], observed.trained[drop.peak + drop.width - 1]
    return {
        "peak_steps": [first.step, last.step],
        "peak": round(drop.mean, 4),
        "now": round(drop.now + drop.floor, 4),
        "staleness_max": observed.now("training/staleness_max"),
        "effective_sample_size": round(observed.now("training/effective_sample_size", 1.0), 4),
        "entropy": [round(one, 4) for one in _ends(observed.series("training/entropy"))],
        "grad_norm": [round(one, 4) for one in _ends(observed.series("training/grad_norm"))],
        "loss_fn": observed.config.algorithm.loss_fn,
        "learning_rate": observed.config.optimizer.learning_rate,
    }


def valid_below_mean(observed: Observed) -> Iterable[Finding]:
    """Report that the reward is flat, and that its mean over groups with signal has fallen below its mean over all
    groups.

    The tasks with signal are then hard, and solved tasks take up places in the batch. Partial credit or a selection of
    tasks preserves the signal."""
    gaps = [
        one.metrics["rollout/reward/valid_mean"] - one.metrics["rollout/reward/mean"]
        for one in observed.trained
        if "rollout/reward/valid_mean" in one.metrics
    ]
    drift = thirds(gaps)
    span = reward_span(observed)
    late = fmean(gaps[-LATE_STEPS:]) if gaps else 0.0
    if drift is None or late > -0.05 * span or not (-drift).exceeds(LIKELY) or observed.is_solved:
        return
    if len(observed.trained) < 2 * STALL_STEPS:
        return  # tasks that remain during a rise are always harder than the average
    if not is_flat(observed, max(STALL_STEPS, len(observed.trained) // 2)):
        return
    settings = _choice_of_tasks(observed)
    yield Finding(
        rule="signal.valid_below_mean",
        severity=Severity.WARNING,
        symptom=f"groups with signal earn {-late:.2f} less than all groups on average, and the reward does not rise.",
        evidence={
            "mean": round(observed.now("rollout/reward/valid_mean") - late, 4),
            "valid_mean": round(observed.now("rollout/reward/valid_mean"), 4),
            "drift": round(drift.value, 4),
            "error": round(drift.error, 4),
        },
        change="Use unsolved tasks more often."
        if settings
        else "Pay for parts of an answer, so that hard tasks give a signal.",
        confirm="rollout/reward/valid_mean stops falling behind rollout/reward/mean, and the reward rises.",
        step=observed.history.last_step,
        settings=settings,
        confirm_after=JUDGE_AFTER,
    )


def _noise_hides_it(observed: Observed, agreeing: float) -> bool:
    """Return True if nearly all groups agree, mostly on wrong answers, and no rise over all steps is likely."""
    rise = thirds(observed.series("rollout/reward/mean"))
    is_long = len(observed.trained) >= 2 * STALL_STEPS
    is_low = agreeing >= NEARLY_ALL_AGREE and observed.success < 0.5
    return is_long and is_low and rise is not None and not rise.exceeds(LIKELY)


def _for_agreeing_groups(
    observed: Observed, tallies: Mapping[object, SuccessCount], right: float
) -> tuple[str, Mapping[str, Json]]:
    """Return the change that the success rates of the individual tasks support, with MTRL's advice."""
    change, settings = _for_success(observed, tallies, right)
    advice = (
        "MTRL's guide recommends group_size 4 instead of 8 with a larger batch; `at_half_the_group_size` shows the effect "
        "of that here."
    )
    return f"{change} {advice}", settings


def _for_success(
    observed: Observed, tallies: Mapping[object, SuccessCount], right: float
) -> tuple[str, Mapping[str, Json]]:
    batch = observed.config.batch
    if right == 0:
        return (
            "No episode succeeds, so no grouping gives a signal: make the tasks easier, pay for parts of an answer, "
            "or start from a better warm start.",
            {},
        )
    if right == 1:
        return "Every episode earns the maximum: use harder tasks.", {}
    settings = warmer(observed)
    if settings:
        return (
            f"In {observed.equal_groups:.0%} of the groups, all episodes are identical word for word: sample at "
            f"temperature 1; sampling.temperature is {observed.config.sampling.temperature:g}.",
            settings,
        )
    mixed = [one for one in tallies.values() if 0 < one.right < one.played]
    settings = _choice_of_tasks(observed) if mixed else {}
    if settings:
        of = f"{len(mixed)} of {len(tallies)} tasks succeed sometimes"
        if "curriculum.select" in settings:
            which = "tasks of their kinds" if observed.config.curriculum.kind_field else "those"
            return f"{of}: use {which} more often, and the others only rarely.", settings
        return f"{of}: let a step use other groups in place of those that agree.", settings
    larger = possible(observed.config, {"batch.group_size": 2 * batch.group_size})
    return f"{right:.1%} of the episodes succeed: larger groups contain both kinds of episodes more often.", larger


def _choice_of_tasks(observed: Observed) -> Mapping[str, Json]:
    """Return the settings that select tasks which are sometimes solved. If tasks are repeated, or some kinds of tasks have
    no signal, these settings select among tasks. Otherwise, the settings replace groups without signal."""
    seen = [digest.task_id for one in observed.trained for digest in one.train]
    groups = {(one.step, digest.task_id) for one in observed.trained for digest in one.train}
    comes_again = len(set(seen)) < 0.8 * len(groups)
    if (comes_again or _kinds_differ(observed)) and observed.config.curriculum.select == "all":
        # Tasks that are skipped count as offered, so a selection needs more epochs.
        epochs: dict[str, Json] = {"schedule.max_epochs": 2} if observed.config.schedule.max_epochs == 1 else {}
        settings = possible(observed.config, {"curriculum.select": "mixed", **epochs})
        if settings:
            return settings
    if observed.config.batch.refill_groups < observed.config.batch.global_batch_size:
        return possible(observed.config, {"batch.refill_groups": observed.config.batch.global_batch_size})
    return {}


def _kinds_differ(observed: Observed) -> bool:
    """Return whether some kinds of tasks succeed sometimes, and a good part of the late groups is of kinds that never or
    always succeed."""
    late = [one.metrics for one in observed.trained[-STALL_STEPS:]]
    kinds = {found[1] for metrics in late for found in map(KIND_SUCCESS.fullmatch, metrics) if found}
    with_signal, silent = 0.0, 0.0
    for kind in kinds:
        own = [metrics for metrics in late if f"rollout/kind/{kind}/success" in metrics]
        num_groups = sum(one[f"rollout/kind/{kind}/num_groups"] for one in own)
        rates = {one[f"rollout/kind/{kind}/success"] for one in own}
        if rates in ({0.0}, {1.0}) and num_groups >= KIND_GROUPS:
            silent += num_groups
        elif rates not in ({0.0}, {1.0}):
            with_signal += num_groups
    return with_signal > 0 and silent >= SILENT_KINDS * (with_signal + silent)


def _for_collapse(observed: Observed, *, at_peak: float | None) -> tuple[str, Mapping[str, Json]]:
    """Return the change after a collapse. `at_peak` is the learning rate with which the reward still rose, if it is
    known."""
    config = observed.config
    if config.rollout.max_steps_off_policy > 0:
        settings: dict[str, Json] = {"rollout.max_steps_off_policy": 0}
        if config.rollout.staleness_window > 1:
            settings["rollout.staleness_window"] = 1
        if config.algorithm.off_policy_correction not in (None, "none"):
            settings["algorithm.off_policy_correction"] = "none"
        return (
            f"Train only on fresh tokens: max_steps_off_policy is {config.rollout.max_steps_off_policy}.",
            possible(config, settings),
        )
    if config.algorithm.loss_fn in WITHOUT_TRUST_REGION:
        settings = {
            "algorithm.loss_fn": "ppo",
            "algorithm.clip_low_threshold": 0.8,
            "algorithm.clip_high_threshold": 1.2,
        }
        return (
            f"{config.algorithm.loss_fn!r} removes no gradient, however far the policy moves: use ppo with bounds 0.8 "
            "and 1.2.",
            possible(config, settings),
        )
    rate = rounded(min(config.optimizer.learning_rate / 4, at_peak or math.inf))
    return f"Lower the learning rate from {config.optimizer.learning_rate:g} to {rate:g}.", possible(
        config, {"optimizer.learning_rate": rate}
    )


def _count_successes(observed: Observed, *, by_group: bool = False) -> Mapping[object, SuccessCount]:
    """Return how often each task succeeded in the late steps according to the reward, over all its groups or in each
    group."""
    found: dict[object, list[bool]] = defaultdict(list)
    for one in observed.late:
        key = one.group if by_group else one.digest.task_id
        found[key].append(one.digest.reward >= observed.history.success_threshold)
    return {key: SuccessCount(sum(members), len(members)) for key, members in found.items()}


def _agreement_at(group: SuccessCount, size: int) -> float:
    """Return the probability that `size` members, drawn without replacement, all succeeded or all failed. This estimate
    is unbiased for a smaller group of the same task."""
    size = min(size, group.played)
    return (math.comb(group.right, size) + math.comb(group.played - group.right, size)) / math.comb(group.played, size)


def _of_agreeing(observed: Observed) -> list[Episode]:
    """Return one episode of each late group whose members all earned the same."""
    rewards: dict[object, set[float]] = defaultdict(set)
    first: dict[object, Episode] = {}
    for one in observed.late:
        rewards[one.group].add(one.digest.reward)
        first.setdefault(one.group, one)
    return [first[group] for group, values in rewards.items() if len(values) == 1]


def _variance(metrics: Mapping[str, float], measured: str) -> float:
    """Return the variance of a validation mean, over tasks. The spread is known only for the reward. Other metrics are
    assumed to be shares between 0 and 1."""
    count = max(1.0, metrics.get("val/reward/num_prompts", 1.0))
    mean = min(1.0, max(0.0, metrics[measured]))
    return (
        max(metrics.get("val/reward/std", 0.0) ** 2 if measured == "val/reward/mean" else mean * (1 - mean), 0.01)
        / count
    )


def _ends(values: Sequence[float]) -> list[float]:
    """Return the means of the first few and of the last few values."""
    return [fmean(values[:WINDOW]), fmean(values[-WINDOW:])] if values else []
