"""Symptoms of a run that no other rule explains."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from sparring.config import Config
from sparring.detectors.evidence import Episode, latest, named, shown
from sparring.diagnosis.course import HEALTHY_SIGNAL, JUDGE_AFTER, LIKELY, STALL_STEPS, is_flat, thirds
from sparring.diagnosis.observed import Observed
from sparring.diagnosis.proposal import possible
from sparring.findings import Finding, Severity
from sparring.types import Json

SETTLED = 0.5
"""If the mean share of a group that agrees on a wrong answer is at least this large, the policy has settled on wrong
answers."""
FEWEST_MEMBERS = 4
"""The number of members from which the agreement of a group is meaningful."""
DECIDES = 0.9
"""If at least this share of the answers in partly right groups is always right or always wrong, the answer determines
the grade."""
MOST_RANK = 128
NO_RISE = 1.0
"""Success has not risen if its change is below this number of standard errors, for training and validation together."""
MOSTLY_WRONG = 0.5
"""The share of right episodes below which success is expected to rise."""


def surer_not_right(observed: Observed) -> Iterable[Finding]:
    """Report that the episodes of a group agree more and more on wrong answers, and are not correct more often.

    The rule applies only if the answer determines the grade. The policy settles on answers of which none is correct. In
    a healthy run, agreement grows with success."""
    steps = _groups_by_step(observed)
    groups = [group for step in steps for group in step]
    if not _is_alone(observed) or len(steps) < STALL_STEPS or observed.config.batch.group_size < FEWEST_MEMBERS:
        return
    settled = [fmean(_agreement_on_wrong(observed, group) for group in step) for step in steps]
    right = [fmean(observed.succeeds(one.digest) for group in step for one in group) for step in steps]
    settles, improves = thirds(settled), thirds(right)
    if (
        settles is None
        or improves is None
        or not settles.exceeds(LIKELY)
        or improves.exceeds(LIKELY)
        or fmean(settled[-(len(settled) // 3) :]) < SETTLED
        or not _answer_decides(observed, groups)
    ):
        return
    third = len(steps) // 3
    wrong = [one for one in latest(observed.history, third) if not observed.succeeds(one.digest)]
    agreed, were_right = ([fmean(values[:third]), fmean(values[-third:])] for values in (settled, right))
    yield Finding(
        rule="tasks.surer_not_right",
        severity=Severity.WARNING,
        symptom=f"the episodes of a group increasingly agree on wrong answers ({agreed[0]:.0%} at first, "
        f"{agreed[1]:.0%} now), and are not right more often ({were_right[0]:.0%}, {were_right[1]:.0%}).",
        evidence={
            "steps": [steps[0][0][0].group[0], observed.history.last_step],
            "right": [round(one, 4) for one in were_right],
            "agreement_on_wrong_answers": [round(one, 4) for one in agreed],
            "examples": shown(wrong),
        },
        change="Compare the reference answers of the tasks named here with the answers on which their episodes "
        "agree. If the references are right, check whether the prompt and the tools contain enough information to "
        "find the answer.",
        confirm="rollout/reward/mean rises while the episodes of a group increasingly agree.",
        step=observed.history.last_step,
        trajectories=named(wrong),
        confirm_after=JUDGE_AFTER,
    )


def capacity(observed: Observed) -> Iterable[Finding]:
    """Report that the reward has risen, is now flat below its maximum, and shows no other problem: groups have signal,
    tokens have weight, and the gradient is steady. The adapter may be too small."""
    recent = max(STALL_STEPS, len(observed.trained) // 3)
    if (
        not _is_alone(observed)
        or len(observed.trained) < 2 * STALL_STEPS
        or observed.is_solved
        or not is_flat(observed, recent)
        or observed.now("analysis/batch_valid_ratio") < HEALTHY_SIGNAL
        or observed.now("training/effective_sample_size", 1.0) < 0.5
    ):
        return
    change, settings = _for_capacity(observed.config)
    yield Finding(
        rule="stall.capacity",
        severity=Severity.WARNING if settings else Severity.NOTE,
        symptom=f"the reward has stayed at {observed.now('rollout/reward/mean'):.2f} for {recent} steps, and no other "
        "cause was found.",
        evidence=_evidence_of_capacity(observed),
        change=change,
        confirm="The reward rises above its level within 50 steps.",
        step=observed.history.last_step,
        settings=settings,
        confirm_after=50,
    )


def _for_capacity(config: Config) -> tuple[str, Mapping[str, Json]]:
    """Return the change for a policy that may be too small: a larger adapter, if the recipe accepts it."""
    model = config.model
    rank = 64 if model.lora_rank < 64 else 2 * model.lora_rank
    settings: Mapping[str, Json] = {}
    if model.trained_weights == "lora" and rank <= MOST_RANK:
        settings = possible(config, {"model.lora_rank": rank, "model.lora_alpha": 2 * rank})
    if settings:
        return f"Raise the adapter's rank to {rank} (alpha {2 * rank}), from {model.lora_rank}.", settings
    return (
        "No setting explains it: the tasks need more than this policy can learn from them. Use more tasks, a denser "
        "reward, or a larger model.",
        {},
    )


def _evidence_of_capacity(observed: Observed) -> dict[str, Json]:
    model = observed.config.model
    return {
        "steps": observed.late_steps,
        "success": round(observed.success, 4),
        "groups_with_signal": round(observed.now("analysis/batch_valid_ratio"), 4),
        "effective_sample_size": round(observed.now("training/effective_sample_size", 1.0), 4),
        "grad_norm": round(observed.now("training/grad_norm"), 4),
        "trained_weights": model.trained_weights,
        "lora_rank": model.lora_rank if model.trained_weights == "lora" else None,
    }


def no_progress(observed: Observed) -> Iterable[Finding]:
    """Report that most episodes are incorrect and success does not rise, or that success falls, and that no other
    symptom explains this.

    Training and validation are combined. The cause is unknown. The finding lists the places to search for it, with
    labels and rewards first."""
    name = "rollout/score/mean" if observed.series("rollout/score/mean") else "rollout/reward/mean"
    values = observed.series(name)
    rise = thirds(values)
    if len(values) < STALL_STEPS or rise is None or observed.is_solved:
        return
    if any(one.severity is not Severity.NOTE for one in observed.findings):
        return
    rises = [rise.value / max(rise.error, 1e-9)]
    validated = [one.metrics.get("val/score/mean", one.metrics["val/reward/mean"]) for one in observed.validations]
    if len(validated) > 1 and observed.validations[-1].step == observed.trained[-1].step:
        prompts = [max(1.0, one.metrics.get("val/reward/num_prompts", 1.0)) for one in observed.validations]
        errors = [max(0.01, one * (1 - one)) / count for one, count in zip(validated, prompts, strict=True)]
        rises.append((validated[-1] - validated[0]) / math.sqrt(max(1e-9, errors[0] + errors[-1])))
    together = sum(rises) / math.sqrt(len(rises))
    if len(rises) == 1 and len(values) < 2 * STALL_STEPS:
        return  # a few steps without a validation result vary too much
    falls = together <= -LIKELY
    if not falls and (together >= NO_RISE or observed.success >= MOSTLY_WRONG):
        return
    third = len(values) // 3
    ends = [fmean(values[:third]), fmean(values[-third:])]
    groups = [group for step in _groups_by_step(observed)[-third:] for group in step]
    settled = [group for group in groups if _agreement_on_wrong(observed, group) >= SETTLED]
    wrong = [one for group in settled or groups for one in group if not observed.succeeds(one.digest)]
    same, differently = _paid_differently(groups)
    yield Finding(
        rule="stall.no_progress",
        severity=Severity.WARNING,
        symptom=f"success {'has fallen' if falls else 'has not risen'} in {len(values)} steps ({ends[0]:.2f} in the first third, "
        f"{ends[1]:.2f} in the last"
        + (f"; in validation {validated[0]:.2f}, then {validated[-1]:.2f}" if len(validated) > 1 else "")
        + "), and no cause was found.",
        evidence={
            "steps": [observed.trained[0].step, observed.trained[-1].step],
            name: [round(one, 4) for one in ends],
            "validation": [round(one, 4) for one in validated],
            "standard_errors": [round(one, 2) for one in rises],
            "agreed_wrong_answers": [
                [group[0].digest.task_id, Counter(one.digest.answer for one in group).most_common(1)[0][0][:100]]
                for group in settled[:10]
            ],
            "equal_episodes": same,
            "of_these_paid_differently": differently,
            "examples": shown(wrong),
        },
        change="Search for the cause in this order. First, compare the reference answers with the answers on which "
        f"the episodes of a task agree (agreed_wrong_answers: {len(settled)} of the last {len(groups)} groups). "
        f"Second, find out why identical episodes of a task earn different rewards ({differently} of {same} do). "
        "Third, compare the reward with the scorer in the episodes named here. Finally, check whether prompt and "
        "tools contain enough information to find the answer.",
        confirm="The reward rises above its level.",
        step=observed.history.last_step,
        trajectories=named(wrong),
        confirm_after=JUDGE_AFTER,
    )


def _paid_differently(groups: Iterable[Sequence[Episode]]) -> tuple[int, int]:
    """Return how many episodes are identical to another episode of their group, and how many of these have different
    rewards."""
    same = differently = 0
    for group in groups:
        alike: dict[object, list[float]] = defaultdict(list)
        for one in group:
            alike[one.digest.texts, one.digest.calls].append(one.digest.reward)
        several = [rewards for rewards in alike.values() if len(rewards) > 1]
        same += sum(map(len, several))
        differently += sum(len(rewards) for rewards in several if len(set(rewards)) > 1)
    return same, differently


def _is_alone(observed: Observed) -> bool:
    """Return True if no earlier rule of the diagnosis proposes a change for this run."""
    return all(one.severity is Severity.NOTE for one in observed.diagnosed)


def _groups_by_step(observed: Observed) -> list[list[list[Episode]]]:
    """Return the groups of each step that trained, if the episodes of the step are stored."""
    steps = []
    for record in observed.trained:
        groups: dict[str, list[Episode]] = defaultdict(list)
        for digest in record.train:
            groups[digest.task_id].append(Episode((record.step, digest.task_id), digest))
        if groups:
            steps.append([*groups.values()])
    return steps


def _agreement_on_wrong(observed: Observed, group: Sequence[Episode]) -> float:
    """Return the share of a group that gives the most common answer, if no member is correct. Return 0 if a member is
    correct."""
    answers = Counter(one.digest.answer for one in group if one.digest.answer)
    if not answers or any(observed.succeeds(one.digest) for one in group):
        return 0.0
    return answers.most_common(1)[0][1] / len(group)


def _answer_decides(observed: Observed, groups: Iterable[Sequence[Episode]]) -> bool:
    """Return True if, in partly correct groups, episodes with the same answer are usually all correct or all
    incorrect."""
    outcomes: dict[object, list[bool]] = defaultdict(list)
    for group in groups:
        right = [observed.succeeds(one.digest) for one in group]
        if any(right) and not all(right):
            for one, is_right in zip(group, right, strict=True):
                outcomes[one.group, one.digest.answer].append(is_right)
    several = [one for one in outcomes.values() if len(one) > 1]
    return bool(several) and fmean(len(set(one)) == 1 for one in several) >= DECIDES
