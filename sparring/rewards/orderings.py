"""Orderings that a reward must keep, checked before training: `fast win > slow win > loss > never answered`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from sparring.errors import RewardError, UsageError
from sparring.protocols import RewardFunction
from sparring.rewards.rules import evaluate_reward
from sparring.types import Trajectory


def ordered(reward: RewardFunction, examples: Mapping[str, Trajectory | Sequence[Trajectory]]) -> RewardFunction:
    """Return the same reward, after checking that every example of one kind gets more than every example of the next
    kind.

        reward = ordered(reward, {"fast win": fast, "slow win": slow, "loss": loss, "never answered": silent})

    The check runs when the recipe is loaded, before any command trains or evaluates a policy. Raises UsageError, which
    lists the first two kinds that are out of order. Also raises UsageError for a reward that waits for something, such
    as an LLM judge. In that case, order its other parts.
    """
    paid = [(kind, _paid(reward, kind, [of] if isinstance(of, Trajectory) else of)) for kind, of in examples.items()]
    for (better, rewards), (worse, lesser) in pairwise(paid):
        if min(rewards) <= max(lesser):
            listed = "; ".join(f"{kind} {', '.join(f'{value:g}' for value in values)}" for kind, values in paid)
            raise UsageError(
                f"the reward must order {' > '.join(examples)}, but it gives {min(rewards):g} for {better!r} and "
                f"{max(lesser):g} for {worse!r} ({listed}). Bound the shaping (sparring.rewards.outcome_with_shaping), "
                "or correct the rule."
            )
    return reward


def _paid(reward: RewardFunction, kind: str, examples: Sequence[Trajectory]) -> list[float]:
    if not examples:
        raise UsageError(f"the ordering has no example of {kind!r}; give at least one.")
    return [_evaluated(reward, example) for example in examples]


def _evaluated(reward: RewardFunction, example: Trajectory) -> float:
    """Return the reward of an example. The coroutine runs without an event loop, since one may already be running."""
    running = evaluate_reward(reward, example)
    try:
        running.send(None)
    except StopIteration as done:
        return done.value.total
    except RewardError as error:
        raise UsageError(f"the ordering of the reward cannot be checked: {error}") from error
    running.close()
    raise UsageError(
        f"the reward {getattr(reward, '__name__', reward)!r} waits for something, so its ordering cannot be checked "
        "when the recipe is loaded; order its parts instead."
    )
