"""Advantages: how much better a trajectory, or each of its turns, was than expected. All functions are pure.

An estimator takes the groups of one step and returns a number for every turn of every trajectory. Its keyword arguments
are its hyperparameters, which are keys of `[algorithm]` with the same names and defaults. Statistics count each
trajectory once, however many sequences it has, and never include infrastructure failures.

If all members of a group have the same reward, methods that compare total rewards (`choice.SILENT_WHEN_EQUAL`) give
exactly 0. Methods that compare turn by turn give 0 only if the members also have the same number of turns and the same
rewards per turn. `reinforce_pp_baseline` whitens over the batch, so it gives 0 only if the rewards are equal within
every group of the batch.

R is the total reward of a trajectory, n the size of its group, L its number of trained tokens, and
G_k = r_k + gamma * G_(k+1) the return-to-go of turn k.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev
from typing import Concatenate, Literal, ParamSpec, TypeAlias

from sparring.errors import DataError

EPSILON = 1e-6
"""Added to the standard deviation of a group, so that the division is defined if the rewards are nearly equal."""
WHITENING_EPSILON = 1e-8
"""Added to the variance of a whole batch for the same reason. The value is verl's."""

StandardDeviation: TypeAlias = Literal["unbiased", "population"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewarded:
    """A trajectory in the form that estimators read."""

    total: float
    turn_rewards: tuple[float, ...]
    """One reward for each turn in order. Their sum is `total`. A reward of the whole trajectory is at the last turn."""
    turn_tokens: tuple[int, ...]
    """The number of trained tokens of each turn."""

    @property
    def num_tokens(self) -> int:
        return sum(self.turn_tokens)


Group: TypeAlias = Sequence[Rewarded]
Advantages: TypeAlias = list[list[list[float]]]
"""One number for each group, trajectory and turn."""
Settings = ParamSpec("Settings")


def per_trajectory(
    rule: Callable[Concatenate[Group, Settings], list[float]],
) -> Callable[Concatenate[Sequence[Group], Settings], Advantages]:
    """Return an estimator that applies a rule, which gives one number per trajectory of a group. Every turn of a
    trajectory gets this number."""

    @functools.wraps(rule)
    def estimator(groups: Sequence[Group], *args: Settings.args, **settings: Settings.kwargs) -> Advantages:
        return [_spread(group, rule(group, *args, **settings)) for group in groups]

    return estimator


@per_trajectory
def group_based(
    group: Group, *, advantage_normalization: bool = True, advantage_std: StandardDeviation = "unbiased"
) -> list[float]:
    """Return GRPO's advantages: (R - mean) / (std + eps) (arXiv:2402.03300, section 4.1.2).

    Without normalization, they are R - mean (Dr. GRPO, arXiv:2503.20783).
    """
    centred = _centred(_totals(group))
    return _normalized(centred, _totals(group), advantage_std) if advantage_normalization else centred


@per_trajectory
def rloo(group: Group) -> list[float]:
    """Return R minus the mean of the other members, n / (n - 1) * (R - mean) (arXiv:2402.14740, equation 8)."""
    return _leave_one_out(_totals(group))


@per_trajectory
def opo(group: Group) -> list[float]:
    """Return R - sum(L R) / sum(L) (arXiv:2505.23585).

    This baseline has the lowest variance if gradients grow with the length of the trajectory.
    """
    rewards, lengths = _totals(group), [member.num_tokens for member in group]
    if _are_equal(rewards) or sum(lengths) == 0:
        return [0.0] * len(group)
    baseline = math.fsum(reward * length for reward, length in zip(rewards, lengths, strict=True)) / sum(lengths)
    return [reward - baseline for reward in rewards]


@per_trajectory
def grpo_passk(
    group: Group, *, advantage_normalization: bool = True, advantage_std: StandardDeviation = "unbiased"
) -> list[float]:
    """Return an advantage only for the best trajectory: its lead over the second-best one, divided by std + eps
    (arXiv:2503.19595).

    If two trajectories share the highest reward, the advantage is 0. With rewards of 0 and 1, this is the case in every
    group that does not have exactly one success.
    """
    rewards = _totals(group)
    advantages = [0.0] * len(rewards)
    if len(rewards) > 1:
        second, first = sorted(rewards)[-2:]
        advantages[rewards.index(first)] = first - second
    return _normalized(advantages, rewards, advantage_std) if advantage_normalization else advantages


@per_trajectory
def pass_at_k(group: Group, *, pass_k: int = 2) -> list[float]:
    """Return the advantage for pass@k, averaged over all subsets of size k (arXiv:2508.10751, section 3.3).

    Of n trajectories, w are incorrect: rho = 1 - C(w, k) / C(n, k), sigma = sqrt(rho (1 - rho)). A correct trajectory
    gets (1 - rho) / sigma, and an incorrect one gets (1 - rho - C(w-1, k-1) / C(n-1, k-1)) / sigma. Raises DataError
    for rewards other than 0 and 1. If a group has lost so many members that n < k, pass@k is not defined and the
    advantages are 0.
    """
    rewards, count = _totals(group), len(group)
    strange = [reward for reward in rewards if reward not in (0.0, 1.0)]
    if strange:
        raise DataError(
            f"advantage_method = 'pass_at_k' counts successes, but a reward is {strange[0]}. Return rewards of 0 and "
            "1, "
            "or use 'group_based'."
        )
    if pass_k > count:
        return [0.0] * count
    wrong = rewards.count(0.0)
    rho = 1 - math.comb(wrong, pass_k) / math.comb(count, pass_k)
    sigma = math.sqrt(rho * (1 - rho))
    if sigma == 0:
        return [0.0] * count
    all_wrong = math.comb(wrong - 1, pass_k - 1) / math.comb(count - 1, pass_k - 1) if wrong else 0.0
    right, failed = (1 - rho) / (sigma + EPSILON), (1 - rho - all_wrong) / (sigma + EPSILON)
    return [right if reward else failed for reward in rewards]


@per_trajectory
def none(group: Group) -> list[float]:
    """Return 0, so that only a teacher gives advantages (`algorithm.teacher`). Rewards are only measured."""
    return [0.0] * len(group)


def gpg(groups: Sequence[Group]) -> Advantages:
    """Return alpha (R - mean) with alpha = trajectories / trajectories with nonzero reward (arXiv:2504.02546).

    alpha is computed over the batch in the same way as in verl; the paper counts the groups whose rewards are all
    equal. The method is designed for rewards of 0 and 1. With shaped or negative rewards, alpha has no clear meaning.
    """
    rewards = [reward for group in groups for reward in _totals(group)]
    alpha = len(rewards) / max(1, sum(reward != 0 for reward in rewards))
    return [_spread(group, [alpha * advantage for advantage in _centred(_totals(group))]) for group in groups]


def reinforce_pp(groups: Sequence[Group], *, gamma: float = 1.0) -> Advantages:
    """Return the return-to-go, whitened over all trained tokens of the batch (REINFORCE++, arXiv:2501.03262).

    This method does not compare the trajectories of a group. The advantage of a trajectory depends on the whole batch.
    """
    return _whitened(groups, [_returns(group, gamma) for group in groups])


def reinforce_pp_baseline(groups: Sequence[Group]) -> Advantages:
    """Return R - mean of the group, whitened over all trained tokens of the batch (arXiv:2501.03262)."""
    return _whitened(groups, [_spread(group, _centred(_totals(group))) for group in groups])


def monte_carlo(groups: Sequence[Group], *, gamma: float = 1.0, advantage_normalization: bool = False) -> Advantages:
    """Return the return-to-go of each turn, which is unbiased but has a high variance. Normalization whitens over the
    batch."""
    returns = [_returns(group, gamma) for group in groups]
    return _whitened(groups, returns) if advantage_normalization else returns


def return_to_go_loo(groups: Sequence[Group], *, gamma: float = 1.0) -> Advantages:
    """Return G_k minus the mean G_k of the other trajectories of the group that reached turn k.

    If no other trajectory reached turn k, the advantage is G_k. The baseline depends only on the turn and on the other
    trajectories. The gradient is therefore unbiased, although the policy decides when to stop (docs/algorithms.md,
    "Credit for turns").
    """

    def rule(present: list[float]) -> list[float]:
        # A single value has no baseline. An advantage of 0 would lose 7% of the gradient in
        # benchmarks/per_turn_bias.py.
        return _leave_one_out(present) if len(present) > 1 else present

    return [_by_turn(_returns(group, gamma), rule) for group in groups]


def group_based_per_turn(
    groups: Sequence[Group],
    *,
    gamma: float = 1.0,
    advantage_normalization: bool = False,
    advantage_std: StandardDeviation = "unbiased",
) -> Advantages:
    """Return the advantages of `return_to_go_loo`, optionally normalized.

    Normalization divides by the standard deviation of G_k in the group, separately for each turn. It is off by default:
    few trajectories reach late turns, so the standard deviations of those turns are unstable. If only one trajectory
    reaches a turn, the standard deviation is not defined and the advantage is 0.
    """
    if not advantage_normalization:
        return return_to_go_loo(groups, gamma=gamma)

    def rule(present: list[float]) -> list[float]:
        return _normalized(_leave_one_out(present), present, advantage_std)

    return [_by_turn(_returns(group, gamma), rule) for group in groups]


def group_based_per_turn_immediate(groups: Sequence[Group], *, gamma: float = 1.0) -> Advantages:
    """Return each turn's reward minus the mean reward of that turn, summed over this turn and all later turns.

    This estimator is biased and exists only for comparison. The policy determines how many baselines are subtracted. In
    `benchmarks/per_turn_bias.py`, only 15% of the true gradient remains.
    """
    centred = [_by_turn([member.turn_rewards for member in group], _centred) for group in groups]
    return [[return_to_go(rewards, gamma) for rewards in members] for members in centred]


ADVANTAGES: dict[str, Callable[..., Advantages]] = {
    "group_based": group_based,
    "group_based_per_turn": group_based_per_turn,
    "group_based_per_turn_immediate": group_based_per_turn_immediate,
    "monte_carlo": monte_carlo,
    "return_to_go_loo": return_to_go_loo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "opo": opo,
    "gpg": gpg,
    "grpo_passk": grpo_passk,
    "pass_at_k": pass_at_k,
    "none": none,
}


def return_to_go(turn_rewards: Sequence[float], gamma: float) -> list[float]:
    """Return G_k = r_k + gamma * G_(k+1) for each turn."""
    returns, following = [], 0.0
    for reward in reversed(turn_rewards):
        following = reward + gamma * following
        returns.append(following)
    return returns[::-1]


def _totals(group: Group) -> list[float]:
    return [member.total for member in group]


def _spread(group: Group, advantages: Sequence[float]) -> list[list[float]]:
    return [[advantage] * len(member.turn_rewards) for member, advantage in zip(group, advantages, strict=True)]


def _are_equal(values: Sequence[float]) -> bool:
    return len(values) < 2 or max(values) == min(values)


def _centred(values: Sequence[float]) -> list[float]:
    """Return the differences from the mean. They are exactly 0, without rounding errors, if all values are equal."""
    if _are_equal(values):
        return [0.0] * len(values)
    mean = fmean(values)
    return [value - mean for value in values]


def _normalized(advantages: Sequence[float], values: Sequence[float], kind: StandardDeviation) -> list[float]:
    """Return the advantages divided by the standard deviation of `values`. They are exactly 0 if all `values` are
    equal."""
    if _are_equal(values):
        return [0.0] * len(advantages)
    deviation = _deviation(tuple(sorted(values)), kind)
    return [advantage / (deviation + EPSILON) for advantage in advantages]


@functools.lru_cache(maxsize=512)
def _deviation(values: tuple[float, ...], kind: StandardDeviation) -> float:
    """Return the standard deviation. It is computed exactly, which is slow, but many groups have the same few rewards."""
    return stdev(values) if kind == "unbiased" else pstdev(values)


def _whitened(groups: Sequence[Group], advantages: Advantages) -> Advantages:
    """Return the advantages, normalized to mean 0 and variance 1 over the trained tokens of the batch.

    The variance is the unbiased estimate, as in verl.
    """
    weighted = [
        (advantage, tokens)
        for group, members in zip(groups, advantages, strict=True)
        for member, turns in zip(group, members, strict=True)
        for advantage, tokens in zip(turns, member.turn_tokens, strict=True)
    ]
    total = sum(tokens for _, tokens in weighted)
    if total < 2 or _are_equal([advantage for advantage, tokens in weighted if tokens]):
        return [[[0.0] * len(turns) for turns in members] for members in advantages]
    mean = math.fsum(advantage * tokens for advantage, tokens in weighted) / total
    variance = math.fsum(tokens * (advantage - mean) ** 2 for advantage, tokens in weighted) / (total - 1)
    scale = 1 / math.sqrt(variance + WHITENING_EPSILON)
    return [[[(advantage - mean) * scale for advantage in turns] for turns in members] for members in advantages]


def _returns(group: Group, gamma: float) -> list[list[float]]:
    return [return_to_go(member.turn_rewards, gamma) for member in group]


def _by_turn(rows: Sequence[Sequence[float]], rule: Callable[[list[float]], list[float]]) -> list[list[float]]:
    """Apply a rule to the first entries of all rows, then to the second entries, and so on. Rows may differ in
    length."""
    results: list[list[float]] = [[] for _ in rows]
    for turn in range(max(map(len, rows), default=0)):
        present = [index for index, row in enumerate(rows) if len(row) > turn]
        for index, value in zip(present, rule([rows[index][turn] for index in present]), strict=True):
            results[index].append(value)
    return results


def _leave_one_out(values: Sequence[float]) -> list[float]:
    """Return each value minus the mean of the others, or 0 for a single value."""
    scale = len(values) / (len(values) - 1) if len(values) > 1 else 0.0
    return [centred * scale for centred in _centred(values)]
