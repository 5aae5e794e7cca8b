"""Symptoms of waiting: training waits for a few slow episodes or for all episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

from sparring.config import Config
from sparring.detectors.evidence import Episode, named
from sparring.diagnosis.observed import LATE_STEPS, Observed
from sparring.diagnosis.proposal import possible, value_of
from sparring.findings import Finding, Severity
from sparring.run_folders.history import Digest
from sparring.types import Json

LATE_FACTOR = 5.0
"""An episode is a straggler if its environment takes more than this multiple of the median time."""
STRAGGLING, STARVED = 0.4, 0.7
"""The shares of a step that are spent on waiting: for the last few episodes, and for all episodes."""
STARVED_FOR_GOOD = 0.9
"""If rollouts take more than this share of a step, rollouts during learning save less than a tenth of the time."""
ENVIRONMENT_SHARE = 0.3
"""If the environment of an ordinary episode takes more than this share of the wait for a step's episodes, training
waits for environments."""
SHORT_SECONDS = 0.05
"""The smallest difference in time that is not noise of the machine."""


def window(observed: Observed) -> Iterable[Finding]:
    """Report that `rollout.staleness_window` is so large that no rollout can start during learning."""
    config = observed.config
    bound, width = config.rollout.max_steps_off_policy, config.rollout.staleness_window
    if bound == 0 or config.start_allowance > 0:
        return
    yield Finding(
        rule="system.window",
        severity=Severity.WARNING,
        symptom=f"rollout.staleness_window = {width} uses up rollout.max_steps_off_policy = {bound}, so no group starts "
        "while a step is learned.",
        evidence={
            "staleness_window": width,
            "max_steps_off_policy": bound,
            "start_allowance": config.start_allowance,
            "timing_s/rollout": round(observed.now("timing_s/rollout"), 2),
        },
        change=f"Let rollouts continue while a step is learned: set rollout.max_steps_off_policy to {bound + 1}.",
        confirm="timing_s/rollout takes a smaller share of timing_s/step, and steps are shorter.",
        step=observed.history.last_step,
        settings=possible(config, {"rollout.max_steps_off_policy": bound + 1}),
        confirm_after=5,
    )


def stragglers(observed: Observed) -> Iterable[Finding]:
    """Report that at least 40 % of a step is spent waiting for a few episodes whose environment takes more than five
    times as long as usual."""
    waited, slow = _waits_for_few(observed)
    if len(waited) < 3 or median(waited) < STRAGGLING:
        return
    allowed = max(2, observed.config.rollout.max_steps_off_policy)
    yield Finding(
        rule="system.stragglers",
        severity=Severity.WARNING,
        symptom=f"{median(waited):.0%} of a step is spent waiting for {len(slow) / len(waited):.1f} episodes whose "
        "environment is slow.",
        evidence={
            "steps": observed.late_steps,
            "share_of_step": round(median(waited), 4),
            "their_environment_seconds": round(max(_environment_seconds(one.digest) for one in slow), 2),
            "usual_environment_seconds": round(median(_environment_seconds(one.digest) for one in observed.late), 3),
            "timing_s/rollout": round(observed.now("timing_s/rollout"), 2),
            "tasks": sorted({one.digest.task_id for one in slow})[:10],
        },
        change="Find out what these episodes wait for, and limit that time in the tool. Until then, let other groups "
        f"overtake them, with tokens at most {allowed} steps old.",
        confirm="timing_s/rollout takes a smaller share of timing_s/step.",
        step=observed.history.last_step,
        trajectories=named(slow),
        settings=_let_overtake(observed.config, allowed),
        confirm_after=5,
    )


def _waits_for_few(observed: Observed) -> tuple[list[float], list[Episode]]:
    """Return the share of each of the last steps that was spent waiting for a few slow episodes, and these episodes."""
    waited: list[float] = []
    slow: list[Episode] = []
    for record in observed.trained[-LATE_STEPS:]:
        spent = sorted((_environment_seconds(one), one.id) for one in record.train)
        if len(spent) < 8 or "timing_s/rollout" not in record.metrics:
            continue
        usual, longest = spent[len(spent) // 2][0], spent[-1][0]
        many = spent[int(0.8 * (len(spent) - 1))][0]
        # If a fifth of the episodes is slow, the environment itself is slow, and there are no stragglers.
        is_late = longest > LATE_FACTOR * usual + SHORT_SECONDS and many < longest / 2
        # The part of the extra time of the last episode during which training waited.
        share = min(longest - usual, record.metrics["timing_s/rollout"]) / max(1e-9, record.metrics["timing_s/step"])
        waited.append(share if is_late else 0.0)
        names = {name for seconds, name in spent if is_late and seconds > longest / 2}
        slow += [Episode((record.step, one.task_id), one) for one in record.train if one.id in names]
    return waited, slow


def _let_overtake(config: Config, allowed: int) -> Mapping[str, Json]:
    """Return the settings that let groups overtake slow ones with tokens at most `allowed` steps old."""
    settings: dict[str, Json] = {
        "rollout.max_steps_off_policy": allowed,
        "rollout.staleness_window": config.batch.global_batch_size,
    }
    return possible(config, {key: value for key, value in settings.items() if value_of(config, key) != value})


def starved(observed: Observed) -> Iterable[Finding]:
    """Report that training waits for episodes, and that episodes wait for the environment most of the time.

    The proposal is more concurrent episodes if their number is the limit, otherwise rollouts during training.
    """
    wait = _measure_wait(observed)
    if wait is None or wait.share < STARVED or wait.usual < SHORT_SECONDS or not wait.is_for_environment:
        return
    change, settings = _for_starved(observed.config, wait)
    yield Finding(
        rule="system.starved",
        severity=Severity.WARNING,
        symptom=f"{wait.share:.0%} of a step is spent waiting for episodes, and these wait "
        + ("for your agent's code, client and tools" if observed.config.agent.is_foreign else "for their environment")
        + f", or for a busy machine: {wait.usual:.2f} s each. This costs time, but does not affect what is learned.",
        evidence={
            "steps": observed.late_steps,
            "share_of_step": round(wait.share, 4),
            "environment_seconds": round(wait.usual, 3),
            "episode_seconds": round(wait.episode_seconds, 3),
            "episodes_in_play": round(wait.in_play, 1),
            "rollout_max_concurrency": observed.config.rollout.rollout_max_concurrency,
            "episodes_a_step": _episodes_a_step(observed.config),
        },
        change=change,
        confirm="timing_s/rollout takes a smaller share of timing_s/step, and steps are shorter.",
        step=observed.history.last_step,
        settings=settings,
        confirm_after=5,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """The time that training waited for the episodes of some steps."""

    share: float
    """The share of a step that is spent on waiting."""
    usual: float
    """The seconds that the environment of an ordinary episode takes."""
    episode_seconds: float
    """The mean duration of an episode."""
    in_play: float
    """The mean number of concurrent episodes while training waits."""
    is_for_environment: bool
    """Whether the environment, not the policy, takes most of this time."""


def _measure_wait(observed: Observed) -> _Wait | None:
    """Return the wait of the last steps, or None if none of them measured it."""
    records = [one for one in observed.trained[-LATE_STEPS:] if one.train and "timing_s/rollout" in one.metrics]
    if not records:
        return None
    played = [digest for one in records for digest in one.train]
    total = sum(one.seconds for one in played)
    environment = sum(_environment_seconds(one) for one in played)
    waiting = sum(one.metrics["timing_s/rollout"] for one in records)
    usual = median(_environment_seconds(one) for one in played)
    return _Wait(
        share=fmean(one.metrics["timing_s/rollout"] / max(1e-9, one.metrics["timing_s/step"]) for one in records),
        usual=usual,
        episode_seconds=total / len(played),
        in_play=total / max(1e-9, waiting),
        is_for_environment=environment > 0.5 * total or usual > ENVIRONMENT_SHARE * waiting / len(records),
    )


def _for_starved(config: Config, wait: _Wait) -> tuple[str, Mapping[str, Json]]:
    """Return the change that lets training wait less: more concurrent episodes, episodes that do not wait for each
    other, rollouts during learning, or faster tools."""
    episodes, slots = _episodes_a_step(config), config.rollout.rollout_max_concurrency
    if slots < episodes and wait.in_play > 0.4 * slots:
        return (
            f"Run more episodes concurrently: all {slots} slots are in use, and a step has {episodes} episodes.",
            possible(config, {"rollout.rollout_max_concurrency": min(episodes, 16 * slots)}),
        )
    if config.runs_in_rounds and config.engine.deterministic is None and wait.share > STARVED_FOR_GOOD:
        return (
            "Let episodes continue without waiting for each other: in the rounds of synchronous training, each turn waits "
            "for the slowest tool. The run can then no longer be repeated exactly.",
            possible(config, {"engine.deterministic": False}),
        )
    if config.rollout.max_steps_off_policy == 0 and wait.share <= STARVED_FOR_GOOD:
        return (
            "Let rollouts continue while a step is learned (tokens at most a step old), or make the tools faster.",
            possible(config, {"rollout.max_steps_off_policy": 1}),
        )
    client = " A client that each episode creates counts, too: use the session's." if config.agent.is_foreign else ""
    return (
        "Make the tools faster, or let them answer concurrently: rollouts are slower than learning, so "
        f"rollouts ahead of learning would save little.{client}",
        {},
    )


def _episodes_a_step(config: Config) -> int:
    return config.batch.global_batch_size * config.batch.group_size


def _environment_seconds(digest: Digest) -> float:
    """Return the seconds of an episode that the policy did not use."""
    return max(0.0, digest.seconds - digest.policy_seconds)
