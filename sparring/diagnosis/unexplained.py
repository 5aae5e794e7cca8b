"""Symptoms of a run of which no other rule has anything to say."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from sparring.detectors.evidence import Episode, latest, named, shown
from sparring.diagnosis.course import HEALTHY_SIGNAL, JUDGE_AFTER, LIKELY, STALL_STEPS, is_flat, thirds
from sparring.diagnosis.observed import Observed
from sparring.diagnosis.proposal import possible
from sparring.diagnosis.registry import SYMPTOMS, symptom
from sparring.findings import Finding, Severity
from sparring.types import Json

SETTLED = 0.5
"""Mean share of a group that agrees on a wrong answer, from which on the policy has settled on wrong answers."""
FEWEST_MEMBERS = 4
"""Of a group, for its agreement to mean something."""
DECIDES = 0.9
"""Of the answers of groups that are right in part, that are always right or always wrong: then the answer is what is graded."""
MOST_RANK = 128


@symptom("tasks.surer_not_right")
def surer_not_right(observed: Observed) -> Iterable[Finding]:
    """The episodes of a group agree more and more on wrong answers and are right no more often, where the answer is what is
    graded: the policy settles, and finds nothing right to settle on. In a healthy run agreement grows with success."""
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
        symptom=f"the episodes of a group agree more and more on wrong answers ({agreed[0]:.0%} at first, {agreed[1]:.0%} now), "
        f"and are right no more often ({were_right[0]:.0%}, {were_right[1]:.0%}).",
        evidence={
            "steps": [steps[0][0][0].group[0], observed.history.last_step], "right": [round(one, 4) for one in were_right],
            "agreement_on_wrong_answers": [round(one, 4) for one in agreed], "examples": shown(wrong),
        },
        change="Compare the reference answers of the tasks named here with what their episodes agree on. Where the references "
        "are right, see whether the prompt and the tools say enough to find the answer.",
        confirm="rollout/reward/mean rises as the episodes of a group come to agree.",
        step=observed.history.last_step,
        trajectories=named(wrong),
        confirm_after=JUDGE_AFTER,
    )  # fmt: skip


@symptom("stall.capacity")
def capacity(observed: Observed) -> Iterable[Finding]:
    """The reward has risen, stands still below its ceiling, and nothing else is amiss: groups have signal, tokens count, the
    gradient is steady. The adapter may be too small."""
    model = observed.config.model
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
    is_adapter = model.trained_weights == "lora"
    rank = 64 if model.lora_rank < 64 else 2 * model.lora_rank
    settings: Mapping[str, Json] = {}
    if is_adapter and rank <= MOST_RANK:
        settings = possible(observed.config, {"model.lora_rank": rank, "model.lora_alpha": 2 * rank})
    change = (
        f"Raise the adapter's rank to {rank} (alpha {2 * rank}), from {model.lora_rank}."
        if settings
        else "No setting explains it: the tasks need more than this policy can learn from them. Give it more tasks, a denser "
        "reward, or a larger model."
    )
    yield Finding(
        rule="stall.capacity",
        severity=Severity.WARNING if settings else Severity.NOTE,
        symptom=f"the reward has stood still at {observed.now('rollout/reward/mean'):.2f} for {recent} steps, and nothing else "
        "is "
        "amiss.",
        evidence={
            "steps": observed.late_steps, "success": round(observed.success, 4),
            "groups_with_signal": round(observed.now("analysis/batch_valid_ratio"), 4),
            "effective_sample_size": round(observed.now("training/effective_sample_size", 1.0), 4),
            "grad_norm": round(observed.now("training/grad_norm"), 4), "trained_weights": model.trained_weights,
            "lora_rank": model.lora_rank if is_adapter else None,
        },
        change=change,
        confirm="The reward rises above its level within 50 steps.",
        step=observed.history.last_step,
        settings=settings,
        confirm_after=50,
    )  # fmt: skip


def _is_alone(observed: Observed) -> bool:
    """Whether no rule of the diagnosis has asked for a change of this run."""
    return not any(one.severity is not Severity.NOTE and one.rule in SYMPTOMS for one in observed.said)


def _groups_by_step(observed: Observed) -> list[list[list[Episode]]]:
    """The groups of each step that trained and of which the episodes are kept."""
    steps = []
    for record in observed.trained:
        groups: dict[str, list[Episode]] = defaultdict(list)
        for digest in record.train:
            groups[digest.task_id].append(Episode((record.step, digest.task_id), digest))
        if groups:
            steps.append([*groups.values()])
    return steps


def _agreement_on_wrong(observed: Observed, group: Sequence[Episode]) -> float:
    """Share of a group that gives the most common answer, where none of it is right; 0 where one is."""
    answers = Counter(one.digest.answer for one in group if one.digest.answer)
    if not answers or any(observed.succeeds(one.digest) for one in group):
        return 0.0
    return answers.most_common(1)[0][1] / len(group)


def _answer_decides(observed: Observed, groups: Iterable[Sequence[Episode]]) -> bool:
    """Whether, in groups that are right in part, episodes with the same answer are right together."""
    outcomes: dict[object, list[bool]] = defaultdict(list)
    for group in groups:
        right = [observed.succeeds(one.digest) for one in group]
        if any(right) and not all(right):
            for one, is_right in zip(group, right, strict=True):
                outcomes[one.group, one.digest.answer].append(is_right)
    several = [one for one in outcomes.values() if len(one) > 1]
    return bool(several) and fmean(len(set(one)) == 1 for one in several) >= DECIDES
