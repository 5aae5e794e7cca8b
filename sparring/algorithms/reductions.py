"""Reductions: the factor of each token's loss in the sum over all tokens. All functions are pure.

Each function takes the counts of the whole batch, and of the token's sequence, trajectory and prompt. A trajectory is
one episode. A sequence is one root-to-leaf path through a trajectory, so a forked trajectory has several sequences. A
prompt is a task with its whole group. Tokens that several sequences share are counted in the first of these sequences.
Trajectories without signal are not computed, but they are counted, because otherwise the others would get larger
weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The numbers of trained tokens, sequences, trajectories and prompts in the batch, and the numbers of trained
    tokens in the token's own sequence, trajectory and prompt."""

    tokens: int
    sequences: int
    trajectories: int
    prompts: int
    own_sequence: int
    own_trajectory: int
    own_prompt: int


def trajectory_mean(counts: Counts) -> float:
    """Return the factor for the mean over trajectories of the mean over their tokens. All trajectories have equal
    weight."""
    return 1 / (counts.trajectories * counts.own_trajectory)


def token_mean(counts: Counts) -> float:
    """Return the factor for the mean over tokens (DAPO, arXiv:2503.14476). Long trajectories count more."""
    return 1 / counts.tokens


def prompt_mean(counts: Counts) -> float:
    """Return the factor for the mean over prompts of the mean over their tokens.

    All groups have equal weight, but long trajectories in a group have more weight.
    """
    return 1 / (counts.prompts * counts.own_prompt)


def sequence_mean_token_mean(counts: Counts) -> float:
    """Return the factor for the mean over sequences of the mean over their tokens (GRPO, arXiv:2402.03300).

    Forked trajectories count more.
    """
    return 1 / (counts.sequences * counts.own_sequence)


def sequence_mean_token_sum(counts: Counts) -> float:
    """Return the factor for the mean over sequences of the sum over their tokens.

    Long and forked trajectories count more.
    """
    return 1 / counts.sequences


def sequence_sum_norm(counts: Counts, *, loss_norm: float = 1024.0) -> float:
    """Return the factor for the mean over sequences of the sum over their tokens, divided by a constant.

    See Dr. GRPO, arXiv:2503.20783.
    """
    return 1 / (counts.sequences * loss_norm)


def sum_of_tokens(counts: Counts) -> float:
    """Return the factor for the sum over tokens, as in Tinker. The size of the step grows with the size of the
    batch."""
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
