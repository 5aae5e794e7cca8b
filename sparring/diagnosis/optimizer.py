"""Symptoms of the optimizer: updates that destroy the policy, and updates that leave it unchanged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from sparring.detectors.evidence import FEWEST_EPISODES, Episode, mean, named, reward
from sparring.diagnosis.course import (
    HEALTHY_SIGNAL,
    JUDGE_AFTER,
    LIKELY,
    STALL_STEPS,
    SURE,
    is_flat,
    reward_span,
    thirds,
)
from sparring.diagnosis.observed import LATE_STEPS, Observed
from sparring.diagnosis.proposal import possible, rounded
from sparring.findings import Finding, Severity
from sparring.types import Json

LARGE, USUAL, HUGE = 0.05, 0.005, 0.3
"""Sizes of one update, as shares of the norm of the trained weights: a size that can destroy the policy, the usual
size, and a size that erases everything the policy has learned, however little that was."""
ANOTHER = 3.0
"""If the entropy differs from that of the first step by this factor, up or down, the policy counts as a different
one."""
FROZEN, STILL = 1e-4, 0.03
"""Mean changes, per token, of the log-probabilities of one text. Updates below the first value have no visible effect,
however many there are. If all updates together are below the second value, the policy has not changed."""
FEWEST_UPDATES = 4
FARTHEST = 5e-4
"""The sum of the learning rates of all steps below which hardly anything can have been learned. The weights themselves
are about a hundred times as large as this sum."""
DROWNED = 1e-3
"""The multiple of the gradient's norm from which `adam_eps` outweighs the gradient of a single weight."""


def updates_too_large(observed: Observed) -> Iterable[Finding]:
    """Report an update that was too large.

    The update changed the weights by at least a twentieth of their norm, and since then the policy is worse or has a
    different entropy. Alternatively, it changed them by three tenths of the norm, and nothing was gained. Turns that do
    not end and calls that cannot be parsed may be consequences. The finding is a warning if most updates are this large
    and nothing is gained by them."""
    updates = [one for one in observed.trained if _was_updated(one.metrics)]
    sizes = [(one.step, one.metrics["training/update_size"]) for one in updates]
    first = next((step for step, size in sizes if size >= LARGE), None)
    if first is None:
        return
    # The episodes of a step come from the policy before its update.
    steps = [one for one in observed.trained if one.train]
    before = [Episode((one.step, two.task_id), two) for one in steps if one.step <= first for two in one.train]
    since = [one for one in steps if one.step > first][-LATE_STEPS:]
    now = [Episode((one.step, two.task_id), two) for one in since for two in one.train]
    if not before or len(now) < FEWEST_EPISODES:
        return
    fall, left, span = mean(before, reward), mean(now, reward), reward_span(observed)
    lost, error = (fall.value - left.value) / span, math.hypot(fall.error, left.error) / span
    entropies = {
        one.step: one.metrics["rollout/logprob/entropy"]
        for one in observed.trained
        if "rollout/logprob/entropy" in one.metrics
    }
    change = _times(entropies, first, [one.step for one in since])
    is_another = change is not None and not 1 / ANOTHER < change < ANOTHER
    has_risen = lost <= -LIKELY * error
    # A rise within the noise of a step does not count: a policy with a different entropy has improved only if it is
    # significantly better.
    is_huge = max(size for _, size in sizes) >= HUGE
    is_destroyed = lost > SURE * error or ((is_another or is_huge) and not has_risen)
    is_idle = len(since) == LATE_STEPS and median(size for _, size in sizes) >= LARGE and not has_risen
    if observed.is_solved or not (is_destroyed or is_idle):
        return
    rate = observed.config.optimizer.learning_rate
    largest = max(updates, key=lambda one: one.metrics["training/update_size"]).metrics
    # If the rate rises or falls, it was different at the largest update.
    then = largest.get("training/learning_rate", rate)
    lower = float(f"{then * USUAL / largest['training/update_size']:.0e}")
    yield Finding(
        rule="optimizer.updates_too_large",
        severity=Severity.ERROR if is_destroyed else Severity.WARNING,
        symptom=f"the update of step {first} changed the weights by {dict(sizes)[first]:.0%} of their norm; since "
        f"then, the reward is {left.value:.2f}, not {fall.value:.2f}.",
        evidence={
            "update_size": {str(step): round(one, 4) for step, one in sizes[:8]},
            "usual_update_size": USUAL,
            "reward_before": round(fall.value, 4),
            "reward_since": round(left.value, 4),
            "entropy": {str(step): round(one, 4) for step, one in list(entropies.items())[:8]},
            "grad_norm": [round(one, 4) for one in observed.series("training/grad_norm")[:8]],
            "ratio_max": [round(one, 4) for one in observed.series("training/ratio_max")[:8]],
            "learning_rate": rate,
        },
        change=f"Lower the learning rate from {rate:g} to {lower:g}, and branch from before step {first}: the policy "
        "does not recover what it has lost.",
        confirm="training/update_size is about 0.005, and the reward stays at its initial level or rises.",
        step=observed.history.last_step,
        trajectories=named(now),
        settings=possible(observed.config, {"optimizer.learning_rate": lower}),
        before_step=first,
        confirm_after=JUDGE_AFTER,
    )


def nothing_moves(observed: Observed) -> Iterable[Finding]:
    """Report that groups have signal and updates are made, but that the updates leave the policy unchanged.

    The finding is an error if the updates hardly change the log-probabilities of a fixed text. If these were not
    measured, the rule requires a flat reward, a flat entropy and flat log-probabilities, and a sum of learning rates
    close to 0."""
    if observed.is_solved:
        return
    updates = [one.metrics for one in observed.trained if _was_updated(one.metrics)]
    moves = [one["training/probe_change"] for one in updates if "training/probe_change" in one]
    rises = thirds(observed.series("rollout/reward/mean"))
    is_small = len(moves) >= FEWEST_UPDATES and (
        median(moves) < FROZEN or (len(moves) >= STALL_STEPS and median(moves) * len(moves) < STILL)
    )
    is_still = is_small and not (rises is not None and rises.exceeds(SURE))
    if not is_still and (moves or not _seems_still(observed)):
        return
    change, settings = _for_small_updates(observed)
    yield Finding(
        rule="stall.nothing_moves",
        severity=Severity.ERROR if is_still else Severity.WARNING,
        symptom=f"the policy has not changed in {len(observed.trained)} steps, although its groups have signal.",
        evidence=_sizes_of_updates(observed, len(updates), moves),
        change=change,
        confirm="training/probe_change rises to about 0.01, then the reward starts to change.",
        step=observed.history.last_step,
        settings=settings,
        confirm_after=JUDGE_AFTER,
    )


def _sizes_of_updates(observed: Observed, num_updates: int, moves: Sequence[float]) -> dict[str, Json]:
    """Return the evidence of how far the updates moved the policy. `moves` are the changes of the log-probabilities of
    a fixed text."""
    evidence: dict[str, Json] = {
        "updates": num_updates,
        "learning_rate": observed.config.optimizer.learning_rate,
        "grad_norm": round(observed.now("training/grad_norm"), 5),
        "farthest_any_weight_went": _farthest(observed),
        "groups_with_signal": round(observed.now("analysis/batch_valid_ratio"), 4),
    }
    if moves:
        evidence |= {
            "probe_change": float(f"{median(moves):.2g}"),
            "update_size": float(f"{median(_sizes(observed)):.2g}"),
        }
    return evidence


def _was_updated(metrics: Mapping[str, float]) -> bool:
    return "training/update_size" in metrics


def _sizes(observed: Observed) -> list[float]:
    return observed.series("training/update_size")


def _times(values: Mapping[int, float], first: int, since: list[int]) -> float | None:
    """Return the later mean divided by the mean up to the first step, or None if either was not measured."""
    before = [value for step, value in values.items() if step <= first]
    now = [values[step] for step in since if step in values]
    return (fmean(now) + 1e-6) / (fmean(before) + 1e-6) if before and now else None


def _farthest(observed: Observed) -> float:
    """Return the largest possible change to a weight. With Adam, a weight changes by at most the learning rate per
    step."""
    rates = observed.series("training/learning_rate") or [
        observed.config.optimizer.learning_rate for _ in observed.trained
    ]
    return rounded(sum(rates) * observed.config.algorithm.num_passes)


def _seems_still(observed: Observed) -> bool:
    """For a run whose updates were not measured, return whether the policy seems unchanged."""
    if not is_flat(observed) or observed.now("analysis/batch_valid_ratio") < HEALTHY_SIGNAL:
        return False
    changes = [thirds(observed.series(name)) for name in ("training/entropy", "rollout/logprob/nz_mean")]
    is_moving = any(one is None or one.exceeds(SURE) or (-one).exceeds(SURE) for one in changes)
    return _farthest(observed) <= FARTHEST and not is_moving


def _for_small_updates(observed: Observed) -> tuple[str, Mapping[str, Json]]:
    """Return what makes the updates small: the schedule, clipping, an epsilon that outweighs the gradient, or the
    learning rate."""
    config, rate = observed.config, observed.config.optimizer.learning_rate
    rates, norm = observed.series("training/learning_rate"), observed.now("training/grad_norm")
    if rates and max(rates) < rate / 10 and config.optimizer.warmup_steps > STALL_STEPS:
        return (
            f"Shorten the warm-up: after {len(rates)} steps the learning rate is {rates[-1]:.2g} of {rate:g}.",
            possible(config, {"optimizer.warmup_steps": STALL_STEPS}),
        )
    clip = config.optimizer.adam_grad_clip_norm
    kept = min(norm, clip) if clip else norm
    if norm > 0 and config.optimizer.adam_eps > DROWNED * kept:
        if kept < DROWNED * norm:
            return (
                f"Clip less: the gradient has norm {norm:.2g}, and adam_grad_clip_norm = {clip:g} leaves almost "
                "nothing of it.",
                possible(config, {"optimizer.adam_grad_clip_norm": 1.0}),
            )
        return (
            f"Lower adam_eps from {config.optimizer.adam_eps:g}: it outweighs the gradient, which has norm {norm:.2g}.",
            possible(config, {"optimizer.adam_eps": 1e-8}),
        )
    higher = _higher_rate(observed)
    return f"Raise the learning rate from {rate:g} to {higher:g}.", possible(
        config, {"optimizer.learning_rate": rounded(higher)}
    )


def _higher_rate(observed: Observed) -> float:
    rate, sizes = observed.config.optimizer.learning_rate, _sizes(observed)
    if sizes and median(sizes) > 0:
        return min(1.0, float(f"{rate * USUAL / median(sizes):.0e}"))
    # With this rate, as many steps move the weights twice as far as needed for a visible change.
    return min(1.0, max(10 * rate, float(f"{2 * FARTHEST / len(observed.trained):.0e}")))
