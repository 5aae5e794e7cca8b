"""Tests whether a policy has stopped varying, so that the episodes of a group are identical."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from sparring.config import Config
from sparring.diagnosis.observed import LATE_STEPS, Observed
from sparring.diagnosis.proposal import SAME, possible, rounded
from sparring.types import Json

LOW = 0.1
"""The entropy in nats per token below which a policy hardly varies."""
LEFT = 0.5
"""The share of the first entropy that is left if it has fallen during training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedVarying:
    """The evidence that a policy has stopped varying during training."""

    identical: float
    """The share of the groups with equal rewards whose episodes have the same messages and calls."""
    entropy_first: float
    entropy_now: float
    step: int
    """The first step at which no more than half of the first entropy was left."""

    @property
    def evidence(self) -> Mapping[str, Json]:
        return {
            "identical_of_groups_that_agree": round(self.identical, 4),
            "entropy": [round(self.entropy_first, 4), round(self.entropy_now, 4)],
        }


def stopped_varying(observed: Observed) -> StoppedVarying | None:
    """Return the evidence that groups agree because the policy has stopped varying, or None.

    In this case, most agreeing groups have identical episodes, and the entropy per token has fallen by at least half,
    to almost 0. Identical episodes alone are not sufficient evidence, because the policy may have been equally certain
    before training."""
    name = next((one for one in ("training/entropy", "rollout/logprob/entropy") if observed.series(one)), None)
    if name is None:
        return None
    known = [(one.step, one.metrics[name]) for one in observed.trained if one.metrics.get(name) is not None]
    first, now = fmean(value for _, value in known[:LATE_STEPS]), observed.now(name)
    # The first steps may already be lower than the start.
    most = max(first, known[0][1])
    if len(known) <= LATE_STEPS or now > LEFT * most or now > LOW:
        return None
    identical = _identical_among_agreeing(observed)
    if identical < SAME:
        return None
    step = next(step for step, value in known if value <= LEFT * most)
    return StoppedVarying(identical=identical, entropy_first=most, entropy_now=now, step=step)


def for_stopped(config: Config, stopped: StoppedVarying) -> tuple[str, Mapping[str, Json]]:
    """Return the change for a policy that has stopped varying."""
    rate = rounded(config.optimizer.learning_rate / 4)
    return (
        f"Lower the learning rate from {config.optimizer.learning_rate:g} to {rate:g}, from a checkpoint before step "
        f"{stopped.step}. In {stopped.identical:.0%} of the groups that agree, all episodes are identical, and the entropy "
        f"of a token has fallen from {stopped.entropy_first:.2g} to {stopped.entropy_now:.2g}. Other or larger groups "
        "would therefore agree, too. An entropy bonus (algorithm.entropy_coef) is the alternative.",
        possible(config, {"optimizer.learning_rate": rate}),
    )


def _identical_among_agreeing(observed: Observed) -> float:
    """Return the share of the late groups with equal rewards whose episodes are identical."""
    contents: dict[object, set[object]] = defaultdict(set)
    rewards: dict[object, set[float]] = defaultdict(set)
    for one in observed.late:
        contents[one.group].add((one.digest.texts, one.digest.calls))
        rewards[one.group].add(one.digest.reward)
    agreeing = [group for group, values in rewards.items() if len(values) == 1]
    return fmean(len(contents[group]) == 1 for group in agreeing) if agreeing else 0.0
