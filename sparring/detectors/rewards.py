"""Alarms for rewards that measure more than the task, or something other than the task. The alarms do not name what is
rewarded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from sparring.detectors import evidence
from sparring.detectors.evidence import (
    Episode,
    Estimate,
    are_scored,
    has_validated_kinds,
    latest,
    mean,
    mean_of_offered,
    named,
    reward,
    score,
    shown,
    steps_of,
    when,
)
from sparring.detectors.trend import EXPLAINED, LIKELY, SURE, Trend, trend
from sparring.findings import Finding, Severity
from sparring.run_folders.history import History, StepRecord

LATEST = 3
"""The number of last steps whose rewards count as current."""
FEWEST_PAID = 5
"""A finding needs at least this number of episodes that are rewarded although the scorer rejects them."""
PAID_SHARE, PAID_SHARE_ERROR = 0.02, 0.08
"""The shares of episodes for a warning and for an error, after two standard errors are subtracted."""
EVALUATION_SHARE = 0.8
"""The smallest ratio of the validation reward to the training reward without a finding."""
COMPONENT_SHARE = 0.7
"""The smallest share of the reward's rise that a component causes if it has taken over."""
AT_EQUAL_SCORE = 0.5
"""The smallest spread of a component among episodes of equal score, as a share of the reward for a right answer."""


def rises_alone(history: History) -> Iterable[Finding]:
    """Report that the training reward rises but the score of the same episodes does not follow.

    The score then explains less than half of the reward's rise. The finding is an error if the score falls.
    """
    seen = trend(history)
    if seen is None or seen.scores is None or not seen.rewards.exceeds(SURE, over=0.05 * seen.scale):
        return
    follows = seen.is_explained or seen.scores.exceeds(LIKELY)
    could_follow = seen.scores.value + LIKELY * seen.scores.error >= EXPLAINED * seen.rewards.value / (seen.scale or 1)
    if follows or (could_follow and not seen.score_falls):
        return
    worst = sorted(seen.windows.now, key=lambda one: (score(one.digest), -one.digest.reward))
    yield Finding(
        rule="reward.rises_alone",
        severity=Severity.ERROR if seen.score_falls else Severity.WARNING,
        symptom=f"{seen.in_words} the training reward rises and the score of the same episodes "
        f"{'falls' if seen.score_falls else 'does not'}.",
        evidence=seen.as_json(),
        change="Stop the run. Read the episodes named here, and change the reward so that it no longer pays for what "
        "they do.",
        confirm="Grade stored episodes with the new reward: right episodes must earn more than these.",
        step=history.last_step,
        trajectories=named(worst),
    )


def paid_for_wrong(history: History) -> Iterable[Finding]:
    """Report that episodes rejected by the scorer earn at least as much as correct episodes of the same task.

    If no episode of the group is correct, the episodes are compared with the correct episodes of all steps.
    """
    now = latest(history, LATEST)
    if not now or not are_scored(now):
        return
    examples = sorted(evidence.paid_for_wrong(history, now), key=lambda one: -one.digest.reward)
    paid = {one.digest.id for one in examples}
    rate = mean(now, lambda digest: float(digest.id in paid))
    if len(paid) < FEWEST_PAID or not rate.exceeds(LIKELY, over=PAID_SHARE):
        return
    yield Finding(
        rule="reward.paid_for_wrong",
        severity=Severity.ERROR if rate.exceeds(LIKELY, over=PAID_SHARE_ERROR) else Severity.WARNING,
        symptom=f"{rate.value:.0%} of the episodes of {when(now)} earned as much as right episodes although the "
        "scorer rejects them.",
        evidence={
            "steps": steps_of(now),
            "share": round(rate.value, 4),
            "episodes": len(now),
            "paid": len(paid),
            "components": _means(examples),
            "examples": shown(examples),
        },
        change="Change the reward so that it rejects these episodes. If they are right, change the scorer.",
        confirm="Grade stored episodes with the new reward: the share must fall to 0.",
        step=history.last_step,
        trajectories=named(examples),
    )


def component_takes_over(history: History) -> Iterable[Finding]:
    """Report that one component causes the rise of the reward and varies widely among episodes of equal score, while
    the score does not follow.

    Without a scorer, report that one component rises while another falls.
    """
    seen = trend(history)
    if seen is None:
        return
    names = sorted({name for one in seen.windows.all for name in one.digest.components})
    if len(names) < 2:
        return
    changes = {name: seen.windows.change(lambda digest, name=name: digest.components.get(name, 0.0)) for name in names}
    for name in (one for one in changes if _takes_over(seen, one, changes)):
        most = sorted(seen.windows.now, key=lambda one: -one.digest.components.get(name, 0.0))
        yield Finding(
            rule="reward.component_takes_over",
            severity=Severity.ERROR if seen.score_falls else Severity.WARNING,
            symptom=f"{seen.in_words}, the component {name!r} makes up the rise of the reward, and the score does not "
            "follow.",
            evidence={
                **seen.as_json(),
                "subject": name,
                "changes": {key: [round(one.value, 4), round(one.error, 4)] for key, one in changes.items()},
            },
            change=f"Limit {name!r} so that it is always worth less than a right answer, or pay it only for right "
            "answers.",
            confirm="Episodes of equal score earn nearly the same, and the score rises with the reward.",
            step=history.last_step,
            trajectories=named(most),
        )


def below_training(history: History) -> Iterable[Finding]:
    """Report that the mean reward on validation tasks is below 80 % of the mean reward on training tasks around the
    same step.

    The evidence contains both temperatures, because greedy and sampled episodes are not directly comparable.
    """
    validated = [one for one in history.steps if one.validation and one.step > 0]
    if not validated:
        return
    last: StepRecord = validated[-1]
    steps = [one for one in history.steps if one.train and last.step - LATEST < one.step <= last.step]
    trained = [Episode((one.step, digest.task_id), digest) for one in steps for digest in one.train]
    played = [Episode((last.step, digest.task_id), digest) for digest in last.validation]
    if not trained or not has_validated_kinds(steps, last.metrics):
        return
    returned, reached = mean_of_offered(steps, "reward"), mean(played, reward)
    gap = returned.times(EVALUATION_SHARE).minus(reached)
    if returned.value <= 0 or not gap.exceeds(LIKELY):
        return
    yield Finding(
        rule="evaluation.below_training",
        severity=Severity.WARNING,
        symptom=f"after step {last.step}, validation tasks earn {reached.value:.2f} on average, and training tasks of "
        f"{when(trained)} earn {returned.value:.2f}.",
        evidence={
            "steps": steps_of(trained),
            "validation_step": last.step,
            "validation_return": round(reached.value, 4),
            "training_return": round(returned.value, 4),
            "validation_temperature": last.validation[0].temperature,
            "training_temperature": trained[0].digest.temperature,
        },
        change="Train on more tasks or for fewer epochs, so that the policy cannot memorize them. If the first validation "
        "already had this gap, compare the splits: training needs the kinds of tasks and the values that validation has.",
        confirm="At the same temperature, the two mean rewards differ by less than 20 %.",
        step=history.last_step,
        trajectories=named(sorted(played, key=lambda one: one.digest.reward)),
    )


def _takes_over(seen: Trend, name: str, changes: Mapping[str, Estimate]) -> bool:
    """Return whether this component makes up the rise of the reward although the score does not follow. Without a
    scorer, another component must fall."""
    change = changes[name]
    rising = change.exceeds(LIKELY, over=0.05 * seen.scale) and change.value >= COMPONENT_SHARE * seen.rewards.value
    if not rising or seen.is_explained:
        return False
    if seen.scores is None:
        others_fall = any((-other).exceeds(SURE) for rest, other in changes.items() if rest != name)
        return others_fall and change.exceeds(SURE)
    return _apart_at_equal_score(seen, name) >= AT_EQUAL_SCORE * seen.scale and not seen.scores.exceeds(LIKELY)


def _apart_at_equal_score(seen: Trend, name: str) -> float:
    """Return the spread of a component among the episodes with the most common score."""
    values: dict[float, list[float]] = defaultdict(list)
    for one in seen.windows.all:
        values[score(one.digest)].append(one.digest.components.get(name, 0.0))
    most = sorted(max(values.values(), key=len))
    return most[int(0.9 * (len(most) - 1))] - most[int(0.1 * (len(most) - 1))]


def _means(episodes: Sequence[Episode]) -> dict[str, float]:
    names = sorted({name for one in episodes for name in one.digest.components})
    return {name: round(fmean(one.digest.components.get(name, 0.0) for one in episodes), 4) for name in names}
