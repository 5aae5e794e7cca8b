"""Symptoms of what is paid: a reward that is the same for all, and reference answers that seem to be wrong."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, median, stdev

from sparring.detectors.evidence import FEWEST_EPISODES, Episode, latest, named, shown, steps_of
from sparring.diagnosis.course import JUDGE_AFTER, LIKELY
from sparring.diagnosis.observed import Observed
from sparring.diagnosis.registry import symptom
from sparring.findings import Finding, Severity
from sparring.types import Outcome

FEWEST_STEPS = 3
UNPAID = 0.2
"""Of the episodes that are right by the scorer, that earn no more than a wrong one: then the two judge by other answers."""
PAID = 0.05
"""For each of these at least, others that are paid; a reward that pays next to none does not read what it is given."""
NEVER_RIGHT, MOST_NEVER_RIGHT, OTHERS_RIGHT = 0.25, 0.9, 0.4
"""Of the groups, in which nothing is right, and of the episodes of the other groups, that are right: so far apart that the two
are not equally hard tasks."""
LABEL_STEPS = 10
"""Over which groups without a right episode are counted: in five steps too few are played."""
ALIKE = 0.8
"""Times what right groups show, that those without a right episode must show of agreement and turns, and may show the other way
round of turns, to be played as these are."""


@symptom("reward.constant")
def constant(observed: Observed) -> Iterable[Finding]:
    """Every episode since the first step has earned the same, whatever it did: right and wrong ones by the scorer (an error), or,
    where nothing is scored, ones that answer differently. Of rewards of 0 that nothing contradicts, other rules speak."""
    lowest, highest = observed.series("rollout/reward/min"), observed.series("rollout/reward/max")
    played = [Episode((one.step, digest.task_id), digest) for one in observed.trained for digest in one.train]
    if len(lowest) < FEWEST_STEPS or len(played) < FEWEST_EPISODES or min(lowest) != max(highest):
        return
    value, threshold = lowest[0], observed.history.success_threshold
    right = [one for one in played if one.digest.score is not None and one.digest.score >= threshold]
    is_scored = all(one.digest.score is not None for one in played)
    differs = bool(right) and len(right) < len(played)
    if not differs and (is_scored or value == 0 or _agree(played)):
        return
    yield Finding(
        rule="reward.constant",
        severity=Severity.ERROR if differs else Severity.WARNING,
        symptom=f"the reward is constant: each of {len(played)} episodes earned {value:g}, "
        + (f"and {len(right) / len(played):.0%} of them are right by the scorer." if differs else "whatever it answered."),
        evidence={
            "steps": [observed.trained[0].step, observed.trained[-1].step], "episodes": len(played), "reward": value,
            "right_by_the_scorer": round(len(right) / len(played), 4) if is_scored else None,
            "different_answers": len({one.digest.answer for one in played}), "examples": shown(right or played),
        },
        change=f"Have {observed.config.reward.reward or 'the agent'} return what an episode is worth: it returns {value:g} "
        + ("for right and wrong ones" if differs else "for all")
        + (", or it looks for a form of answer that no episode has." if value == 0 else "."),
        confirm="rollout/reward/std is above 0.",
        step=observed.history.last_step,
        trajectories=named(right or played),
        confirm_after=FEWEST_STEPS,
    )  # fmt: skip


def _agree(played: Sequence[Episode]) -> bool:
    """Whether the episodes of a group say the same."""
    groups: dict[object, set[tuple[str, ...]]] = defaultdict(set)
    for one in played:
        groups[one.group].add(one.digest.said)
    return all(len(said) == 1 for said in groups.values())


@symptom("reward.disagrees")
def disagrees(observed: Observed) -> Iterable[Finding]:
    """A fifth of the episodes that the scorer calls right earn no more than wrong ones do, and others are paid: by task, the
    reference answers of the reward are wrong; within tasks, the reward is drawn or reads some of the answers only. Of the last
    episodes, or, where these do not show it, of all: what a run pays for does not change while it trains."""
    for played in (observed.late, latest(observed.history, len(observed.trained))):
        right, wrong = _by_score(played, observed.history.success_threshold)
        if len(right) < FEWEST_EPISODES or not wrong:
            continue
        usual = median(one.digest.reward for one in wrong)
        unpaid = [one for one in right if one.digest.reward <= usual]
        paid = [one for one in right if one.digest.reward > usual]
        others = len(paid) + sum(one.digest.reward > usual for one in wrong)
        if len(unpaid) >= UNPAID * len(right) and others > PAID * len(unpaid):
            break
    else:
        return
    is_late = played is observed.late
    mixed = {one.digest.task_id for one in unpaid} & {one.digest.task_id for one in paid}
    tasks = sorted({one.digest.task_id for one in unpaid})
    by_task = len(mixed) < len(tasks) / 4
    judge = observed.config.reward.reward or "the agent"
    yield Finding(
        rule="reward.disagrees",
        severity=Severity.ERROR,
        symptom=f"{len(unpaid) / len(right):.0%} of the {'last ' if is_late else ''}episodes that are right by the scorer earn "
        "no more than wrong ones, "
        + (f"always the same tasks: {len(tasks)} of them." if by_task else "and others of the same tasks are paid."),
        evidence={
            "steps": steps_of(played), "right": len(right), "unpaid": len(unpaid), "tasks": tasks[:20],
            "tasks_of_which_some_are_paid": len(mixed), "reward_of_wrong_ones": usual, "examples": shown(unpaid),
        },
        change=f"Compare the reference answers that {judge} reads with those of the scorer, for the tasks named here."
        if by_task
        else f"Read what {judge} pays for in the episodes named here: it does not follow from whether they are right.",
        confirm="rollout/agreement/unpaid_right is near 0.",
        step=observed.history.last_step,
        trajectories=named(unpaid),
        confirm_after=FEWEST_STEPS,
    )  # fmt: skip


def _by_score(played: Sequence[Episode], threshold: float) -> tuple[list[Episode], list[Episode]]:
    """Those that are right by the scorer, and those that are wrong by it."""
    scored = [(one, one.digest.score) for one in played if one.digest.score is not None]
    return [one for one, score in scored if score >= threshold], [one for one, score in scored if score < threshold]


@symptom("tasks.labels")
def labels(observed: Observed) -> Iterable[Finding]:
    """In a quarter of the groups nothing is ever right, in the others most is, and the policy plays both alike: it ends by
    itself, after as many turns, its episodes agree on an answer, and that is another one for another task: what is too hard ends
    in the same few guesses. Then the reference answers are to be looked at first."""
    groups: dict[object, list[Episode]] = defaultdict(list)
    for one in latest(observed.history, LABEL_STEPS):
        groups[one.group].append(one)
    never = [members for members in groups.values() if not any(observed.succeeds(one.digest) for one in members)]
    others = [members for members in groups.values() if any(observed.succeeds(one.digest) for one in members)]
    share = len(never) / len(groups) if groups else 0.0
    if (
        len(groups) < FEWEST_EPISODES
        or share - math.sqrt(share * (1 - share) / len(groups)) <= NEVER_RIGHT
        or share > MOST_NEVER_RIGHT
        or observed.config.batch.group_size < 4
    ):
        return
    right = fmean(observed.succeeds(one.digest) for members in others for one in members)
    ended = fmean(one.digest.outcome is Outcome.FINISHED for members in never for one in members)
    agreements = [_agreement(members) for members in never]
    agree, usually = fmean(agreements), fmean(map(_agreement, others))
    # As much as these groups may agree: a few of them say little.
    at_most = agree + LIKELY * stdev(agreements) / math.sqrt(len(never))
    turns, needed = (fmean(one.digest.num_turns for members in part for one in members) for part in (never, others))
    size = min(len(never), len(others))
    different, usual = (_variety(map(_answer, part), size) for part in (never, others))
    if (
        right < OTHERS_RIGHT
        or ended < 0.9
        or at_most < ALIKE * usually
        or not ALIKE <= turns / needed <= 1 / ALIKE
        or different < max(ALIKE * usual, size / 4)
    ):
        return
    doubtful = [one for members in never for one in members]
    yield Finding(
        rule="tasks.labels",
        severity=Severity.WARNING,
        symptom=f"in {share:.0%} of the last groups nothing is right, in the others {right:.0%} of the episodes are, and the "
        "policy plays both alike.",
        evidence={
            "steps": observed.late_steps, "groups": len(groups), "never_right": len(never),
            "right_in_the_others": round(right, 4),
            "agreement": [round(agree, 4), round(usually, 4)], "turns": [round(turns, 2), round(needed, 2)],
            "different_answers": [round(different, 2), round(usual, 2)],
            "answers": [[members[0].digest.task_id, _answer(members)[:100]] for members in never[:10]],
        },
        change="Compare the reference answers of the tasks named here with what their episodes agree on: probably the references "
        "are wrong.",
        confirm="The same tasks have right episodes.",
        step=observed.history.last_step,
        trajectories=named(doubtful),
        confirm_after=JUDGE_AFTER,
    )  # fmt: skip


def _answer(members: Sequence[Episode]) -> str:
    """What most of a group end with."""
    return Counter(one.digest.answer for one in members).most_common(1)[0][0]


def _agreement(members: Sequence[Episode]) -> float:
    """Share of a group that ends with the same."""
    return Counter(one.digest.answer for one in members).most_common(1)[0][1] / len(members)


def _variety(answers: Iterable[str], size: int) -> float:
    """How many different ones `size` of the answers hold on average, drawn without replacement."""
    counts = Counter(answers)
    total = counts.total()
    return sum(1 - math.comb(total - count, size) / math.comb(total, size) for count in counts.values())
