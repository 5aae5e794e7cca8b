"""Reductions: the factor of each token's loss in the sum over all tokens. Pure functions.

Each gets the counts of the whole batch and of the sequence, trajectory and prompt of the token. A trajectory is one
episode; a sequence is one root-to-leaf path through it, of which a forked trajectory has several; a prompt is a task with
its whole group. Tokens that sequences share count for the first of them. Trajectories without signal count too, although
they are not computed: without them in the divisor, the others would get larger weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The numbers of trained tokens, sequences, trajectories and prompts of the batch, and the numbers of trained tokens of the
    token's own sequence, trajectory and prompt."""

    tokens: int
    sequences: int
    trajectories: int
    prompts: int
    own_sequence: int
    own_trajectory: int
    own_prompt: int


def trajectory_mean(counts: Counts) -> float:
    """The mean over trajectories of the mean over their tokens: neither long nor forked ones count more."""
    return 1 / (counts.trajectories * counts.own_trajectory)


def token_mean(counts: Counts) -> float:
    """The mean over tokens (DAPO, arXiv:2503.14476): long trajectories count more."""
    return 1 / counts.tokens


def prompt_mean(counts: Counts) -> float:
    """The mean over prompts of the mean over their tokens: groups count alike, long members more."""
    return 1 / (counts.prompts * counts.own_prompt)


def sequence_mean_token_mean(counts: Counts) -> float:
    """The mean over sequences of the mean over their tokens (GRPO, arXiv:2402.03300): forked ones count more."""
    return 1 / (counts.sequences * counts.own_sequence)


def sequence_mean_token_sum(counts: Counts) -> float:
    """The mean over sequences of the sum over their tokens: long and forked ones count more."""
    return 1 / counts.sequences


def sequence_sum_norm(counts: Counts, *, loss_norm: float = 1024.0) -> float:
    """The mean over sequences of the sum over their tokens divided by a constant (Dr. GRPO, arXiv:2503.20783)."""
    return 1 / (counts.sequences * loss_norm)


def sum_of_tokens(counts: Counts) -> float:
    """The sum over tokens, as Tinker does it: the step grows with the batch."""
    return 1.0


REDUCTIONS: dict[str, Callable[..., float]] = {
    "trajectory_mean": trajectory_mean,
    "token_mean": token_mean,
    "prompt_mean": prompt_mean,
    "sequence_mean_token_mean": sequence_mean_token_mean,
    "sequence_mean_token_sum": sequence_mean_token_sum,
    "sequence_sum_norm": sequence_sum_norm,
    "sum": sum_of_tokens,
}
