"""Symptoms of the reward: a reward that is constant or contradicts the scorer, and reference answers that seem to be
wrong."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from sparring.detectors.evidence import FEWEST_EPISODES, Episode, latest, named, shown, steps_of
from sparring.diagnosis.course import JUDGE_AFTER, LIKELY
from sparring.diagnosis.observed import Observed
from sparring.findings import Finding, Severity
from sparring.types import Json, Outcome

FEWEST_STEPS = 3
UNPAID = 0.2
"""The share of the episodes accepted by the scorer that earn no more than an incorrect one. From this share on, reward
and scorer use different answers."""
PAID = 0.05
"""The smallest ratio of paid to unpaid episodes among those that the scorer accepts. A reward that pays almost none of
these episodes does not read the answers at all."""
NEVER_RIGHT, MOST_NEVER_RIGHT, OTHERS_RIGHT = 0.25, 0.9, 0.4
"""The smallest and largest share of groups without a right episode, and the smallest share of right episodes in the
other groups. With this contrast, the two kinds of tasks are not equally hard."""
LABEL_STEPS = 10
"""The number of last steps in which groups without a right episode are counted. Five steps have too few groups."""
ALIKE = 0.8
"""The policy behaves the same in groups with and without a right episode if the ratio of their agreements is at least
this large. For the ratio of their turns, this is the lower bound, and its inverse is the upper bound."""


def constant(observed: Observed) -> Iterable[Finding]:
    """Report that every episode since the first step has earned the same reward.

    The finding is an error if the scorer accepts some of these episodes and rejects others. Without a scorer, the
    finding requires that the episodes have different answers. If all rewards are 0 and nothing contradicts them, other
    rules report this.
    """
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
        + (
            f"and {len(right) / len(played):.0%} of them are right according to the scorer."
            if differs
            else "whatever its answer was."
        ),
        evidence={
            "steps": [observed.trained[0].step, observed.trained[-1].step],
            "episodes": len(played),
            "reward": value,
            "right_by_the_scorer": round(len(right) / len(played), 4) if is_scored else None,
            "different_answers": len({one.digest.answer for one in played}),
            "examples": shown(right or played),
        },
        change=f"Fix {observed.config.reward.reward or 'the agent'}: it returns {value:g} "
        + ("for right and wrong episodes" if differs else "for every episode")
        + (", or it expects a form of answer that no episode has." if value == 0 else "."),
        confirm="rollout/reward/std is above 0.",
        step=observed.history.last_step,
        trajectories=named(right or played),
        confirm_after=FEWEST_STEPS,
    )


def _agree(played: Sequence[Episode]) -> bool:
    """Return whether all episodes of each group have the same messages."""
    groups: dict[object, set[tuple[str, ...]]] = defaultdict(set)
    for one in played:
        groups[one.group].add(one.digest.texts)
    return all(len(texts) == 1 for texts in groups.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contradiction:
    """Episodes whose rewards contradict the scorer."""

    played: Sequence[Episode]
    unpaid: Sequence[Episode]
    """The episodes that the scorer accepts and that earn no more than rejected ones."""
    paid: Sequence[Episode]
    """The other episodes that the scorer accepts."""
    usual: float
    """The median reward of the episodes that the scorer rejects."""

    @property
    def num_right(self) -> int:
        return len(self.unpaid) + len(self.paid)

    @property
    def tasks(self) -> set[str]:
        """The tasks with unpaid episodes."""
        return {one.digest.task_id for one in self.unpaid}

    @property
    def mixed(self) -> set[str]:
        """The tasks with unpaid and paid episodes."""
        return self.tasks & {one.digest.task_id for one in self.paid}

    @property
    def is_by_task(self) -> bool:
        """Whether the unpaid episodes belong to tasks that are never paid."""
        return len(self.mixed) < len(self.tasks) / 4

    def as_evidence(self) -> dict[str, Json]:
        return {
            "steps": steps_of(self.played),
            "right": self.num_right,
            "unpaid": len(self.unpaid),
            "tasks": sorted(self.tasks)[:20],
            "tasks_of_which_some_are_paid": len(self.mixed),
            "reward_of_wrong_ones": self.usual,
            "examples": shown(self.unpaid),
        }


def _find_contradiction(observed: Observed) -> _Contradiction | None:
    """Return the contradiction in the last episodes, otherwise the one in all episodes, or None."""
    for played in (observed.late, latest(observed.history, len(observed.trained))):
        right, wrong = _by_score(played, observed.history.success_threshold)
        if len(right) < FEWEST_EPISODES or not wrong:
            continue
        usual = median(one.digest.reward for one in wrong)
        unpaid = [one for one in right if one.digest.reward <= usual]
        paid = [one for one in right if one.digest.reward > usual]
        others = len(paid) + sum(one.digest.reward > usual for one in wrong)
        if len(unpaid) >= UNPAID * len(right) and others > PAID * len(unpaid):
            return _Contradiction(played=played, unpaid=unpaid, paid=paid, usual=usual)
    return None


def disagrees(observed: Observed) -> Iterable[Finding]:
    """Report that a fifth of the episodes accepted by the scorer earn no more than incorrect ones, while other episodes
    are rewarded.

    If these episodes always belong to the same tasks, the reward's reference answers are wrong. Otherwise the reward is
    random, or reads only some of the answers. The rule uses the last episodes. If these do not show the problem, it
    uses all episodes, because a reward does not change during training.
    """
    found = _find_contradiction(observed)
    if found is None:
        return
    share, last = len(found.unpaid) / found.num_right, "last " if found.played is observed.late else ""
    paying = observed.config.reward.reward or "the agent"
    yield Finding(
        rule="reward.disagrees",
        severity=Severity.ERROR,
        symptom=f"{share:.0%} of the {last}episodes that the scorer accepts earn no more than wrong ones, "
        + (
            f"always the same tasks: {len(found.tasks)} of them."
            if found.is_by_task
            else "and other episodes of the same tasks are paid."
        ),
        evidence=found.as_evidence(),
        change=f"Compare the reference answers that {paying} reads with those of the scorer, for the tasks named here, "
        "and look at what it requires in addition, such as the text of the answer."
        if found.is_by_task
        else f"Find out what {paying} pays for in the episodes named here: the reward does not depend on whether they are right.",
        confirm="rollout/agreement/unpaid_right is near 0.",
        step=observed.history.last_step,
        trajectories=named(found.unpaid),
        confirm_after=FEWEST_STEPS,
    )


def _by_score(played: Sequence[Episode], threshold: float) -> tuple[list[Episode], list[Episode]]:
    """Return the episodes that the scorer accepts, and those that it rejects."""
    scored = [(one, one.digest.score) for one in played if one.digest.score is not None]
    return [one for one, score in scored if score >= threshold], [one for one, score in scored if score < threshold]


def labels(observed: Observed) -> Iterable[Finding]:
    """Report that no episode is correct in a quarter of the groups, while many episodes in the other groups are
    correct, although the policy behaves in the same way in both.

    The same behavior means that episodes end by themselves after the same number of turns, and that the episodes of a
    group agree on an answer that differs from task to task. (In tasks that are too hard, episodes end with the same few
    guesses.) The reference answers are then the most likely cause.
    """
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
    # The upper limit of these groups' agreement, because a few groups are little evidence.
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
        symptom=f"no episode is right in {share:.0%} of the last groups, {right:.0%} of the episodes in the others "
        "are right, and the policy behaves the same in both.",
        evidence={
            "steps": observed.late_steps,
            "groups": len(groups),
            "never_right": len(never),
            "right_in_the_others": round(right, 4),
            "agreement": [round(agree, 4), round(usually, 4)],
            "turns": [round(turns, 2), round(needed, 2)],
            "different_answers": [round(different, 2), round(usual, 2)],
            "answers": [[members[0].digest.task_id, _answer(members)[:100]] for members in never[:10]],
        },
        change="Compare the reference answers of the tasks named here with the answers on which their episodes "
        "agree. Either the references are wrong, or the policy has one habit, such as taking the first result, that is "
        "right only in the other tasks. Then its episodes must differ: demonstrations that vary, or larger groups.",
        confirm="The same tasks have right episodes.",
        step=observed.history.last_step,
        trajectories=named(doubtful),
        confirm_after=JUDGE_AFTER,
    )


def _answer(members: Sequence[Episode]) -> str:
    """Return the most common answer of a group."""
    return Counter(one.digest.answer for one in members).most_common(1)[0][0]


def _agreement(members: Sequence[Episode]) -> float:
    """Return the share of a group's episodes with the most common answer."""
    return Counter(one.digest.answer for one in members).most_common(1)[0][1] / len(members)


def _variety(answers: Iterable[str], size: int) -> float:
    """Return the mean number of different answers in a sample of `size` answers, drawn without replacement."""
    counts = Counter(answers)
    total = counts.total()
    return sum(1 - math.comb(total - count, size) / math.comb(total, size) for count in counts.values())
