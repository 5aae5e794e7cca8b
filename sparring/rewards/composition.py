"""Rewards from an outcome and bounded parts, so that no sum of parts can reverse the order of outcomes."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

from sparring.errors import RewardError, UsageError
from sparring.protocols import RewardFunction
from sparring.rewards.rules import evaluate_reward
from sparring.runtime.plugins import call
from sparring.types import Message, Outcome, Reward, Sampling, StopReason, Task, Trajectory, Turn

Measure: TypeAlias = Callable[[Trajectory], float | Awaitable[float]]
Potential: TypeAlias = Callable[[Task, Sequence[Message]], float]
"""A function that returns the value of a conversation's state, given the task and the messages so far."""

MAX_MILESTONES = 16
"""The maximum number of milestones. It is limited because all subsets of milestones are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One named part of a reward: `weight` times the measure, which is clamped to `low` and `high`."""

    name: str
    measure: Measure
    weight: float = 1.0
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        """Raise UsageError for invalid bounds."""
        if not (math.isfinite(self.weight) and -math.inf < self.low < self.high < math.inf):
            raise UsageError(
                f"Component {self.name!r} has weight {self.weight:g}, low {self.low:g} and high {self.high:g}; all "
                "three must be finite numbers, and low must be below high."
            )

    @property
    def span(self) -> float:
        """The largest difference that this part can make between two episodes."""
        return abs(self.weight) * (self.high - self.low)


def outcome_with_shaping(
    outcome: Measure, *shaping: Component, outcomes: tuple[float, float] = (0.0, 1.0), gap: float = 1.0
) -> RewardFunction:
    """Return a reward whose total is the outcome plus the shaping components, scaled to at most 1.

    `outcomes` contains the lowest and the highest possible outcome. `gap` is the smallest difference between a better
    and a worse outcome, for example 1 if an answer is either correct (1) or incorrect (0). If the sum could leave [-1,
    1], it is divided by its largest absolute value.

    Raises UsageError if the components together could reach the gap. A worse outcome could then get a higher reward,
    and training would exploit this loophole. A measure outside its bounds is clamped, and its original value is logged
    as the metric `unbounded/<name>`. An outcome outside its bounds raises RewardError.
    """
    names = ["outcome", *(part.name for part in shaping)]
    if len(set(names)) < len(names):
        raise UsageError(f"the components are called {', '.join(names)}; give each its own name, other than 'outcome'.")
    span = math.fsum(part.span for part in shaping)
    if span >= gap:
        raise UsageError(
            f"the shaping can differ by {span:g} between two episodes "
            f"({', '.join(f'{p.name} {p.span:g}' for p in shaping)}), but outcomes may differ by only gap = {gap:g}. A "
            "worse outcome could then get a higher reward. Lower the weights until their sum is less than the gap."
        )
    lowest, highest = outcomes
    if not -math.inf < lowest < highest < math.inf:
        raise UsageError(f"outcomes = ({lowest:g}, {highest:g}) must be two finite numbers, the lower one first.")
    least = lowest + math.fsum(part.weight * (part.low if part.weight > 0 else part.high) for part in shaping)
    most = highest + math.fsum(part.weight * (part.high if part.weight > 0 else part.low) for part in shaping)
    scale = max(1.0, abs(least), abs(most))

    async def outcome_with_shaping_reward(trajectory: Trajectory) -> Reward:
        value = float(await call(outcome, trajectory))
        if not lowest <= value <= highest:
            raise RewardError(
                f"the outcome of {trajectory.id} is {value:g}, outside the outcomes ({lowest:g}, {highest:g}); set the "
                "right bounds with outcome_with_shaping(..., outcomes=(lowest, highest))."
            )
        components = {"outcome": value / scale}
        metrics: dict[str, float] = {}
        for part in shaping:
            value = float(await call(part.measure, trajectory))
            if math.isnan(value):
                raise RewardError(
                    f"component {part.name!r} of {trajectory.id} is NaN; its measure must return a number."
                )
            bounded = min(max(value, part.low), part.high)
            if bounded != value:
                metrics[f"unbounded/{part.name}"] = value
            components[part.name] = part.weight * bounded / scale
        return Reward(total=math.fsum(components.values()), components=components, metrics=metrics)

    return outcome_with_shaping_reward


def hierarchical(
    success: Measure,
    milestones: Mapping[str, tuple[float, Measure]],
    *,
    step_cost: float = 0.0,
    max_turns: int,
) -> RewardFunction:
    """Return a reward that ranks episodes by success (worth 1), then by milestones (each worth its weight), then by
    steps.

    A milestone is met if its measure is at least 1. Turns beyond `max_turns` cost nothing. The sum is scaled as in
    `outcome_with_shaping`. Raises UsageError if milestones and steps together could outweigh success, or if the cost of
    all steps could outweigh the difference between two sets of milestones.
    """
    if len(milestones) > MAX_MILESTONES:
        raise UsageError(f"hierarchical accepts at most {MAX_MILESTONES} milestones, but got {len(milestones)}.")
    parts = [
        Component(name=name, measure=_is_met(measure), weight=weight) for name, (weight, measure) in milestones.items()
    ]
    smallest = _smallest_difference([weight for weight, _ in milestones.values()])
    if step_cost * max_turns >= smallest:
        raise UsageError(
            f"{max_turns} turns at step_cost = {step_cost:g} cost {step_cost * max_turns:g}, but sets of milestones "
            f"may differ by as little as {smallest:g}, so that steps could outweigh milestones. Lower step_cost below "
            f"{smallest / max_turns:g}, or choose weights that differ more."
        )
    if step_cost:
        used = Component(
            name="steps", measure=lambda trajectory: len(trajectory.turns) / max_turns, weight=-step_cost * max_turns
        )
        parts.append(used)
    return outcome_with_shaping(success, *parts)


def _is_met(measure: Measure) -> Measure:
    async def met(trajectory: Trajectory) -> float:
        return float(await call(measure, trajectory) >= 1)

    return met


def _smallest_difference(weights: Sequence[float]) -> float:
    """Return the smallest difference between the weights of two sets of milestones, or infinity without milestones."""
    sums = {0.0}
    for weight in weights:
        sums |= {round(total + weight, 9) for total in sums}
    return min((above - below for below, above in pairwise(sorted(sums))), default=math.inf)


def with_potential(
    reward: RewardFunction, potential: Potential, *, weight: float = 1.0, gamma: float = 1.0
) -> RewardFunction:
    """Return a reward that credits each turn with `weight` times (gamma * potential(after) - potential(before)).

    The end has potential 0, so the discounted sum over an episode is -potential(opening). This sum is the same for
    every episode of a task. Shaping of this form therefore does not change which policy is best (Ng, Harada & Russell
    1999, theorem 1), as long as `gamma` is the discount of the algorithm. Use this reward with advantages per turn
    (docs/algorithms.md); other algorithms use only the sum.

    The value of `reward` stays on the turns that it names, or is credited to the last turn. Raises RewardError for an
    episode whose turns do not correspond one to one to the assistant messages of the conversation.
    """

    async def potential_reward(trajectory: Trajectory) -> Reward:
        base = await evaluate_reward(reward, trajectory)
        values = [weight * float(potential(trajectory.task, messages)) for messages in _states(trajectory)]
        ids = [turn.id for turn in trajectory.turns]
        if not ids:
            return base
        own = base.per_turn if base.per_turn is not None else {ids[-1]: base.total}
        following = [*values[1:], 0.0]
        shaping = [gamma * after - before for before, after in zip(values, following, strict=True)]
        per_turn = {id: own.get(id, 0.0) + more for id, more in zip(ids, shaping, strict=True)}
        return replace(
            base,
            total=math.fsum(per_turn.values()),
            per_turn=per_turn,
            components={**base.components, "potential": math.fsum(shaping)},
        )

    return potential_reward


def _states(trajectory: Trajectory) -> list[Sequence[Message]]:
    """Return, for each turn, the messages before it."""
    places = [place for place, message in enumerate(trajectory.messages) if message.get("role") == "assistant"]
    turns = trajectory.turns
    places = places[len(places) - len(turns) :] if turns else []
    if len(places) != len(turns):
        raise RewardError(
            f"{trajectory.id} has {len(turns)} turns but {len(places)} assistant messages, so the state before a turn "
            "is unknown; use potentials only with the built-in tool loop."
        )
    return [trajectory.messages[:place] for place in places]


def example(
    task: Task, *messages: Message, outcome: Outcome = Outcome.FINISHED, num_turns: int | None = None, **more: Any
) -> Trajectory:
    """Return an example episode without tokens or reward, for orderings and for calibrating LLM judges.

    `messages` follow the task's own messages. There is one turn per assistant message, unless `num_turns` sets the number
    of turns. `more` contains other fields of Trajectory, such as `transitions` or `final_state`.
    """
    answers = [message for message in messages if message.get("role") == "assistant"]
    answers = answers if num_turns is None else [{"role": "assistant", "content": ""}] * num_turns
    turns = tuple(
        Turn(
            id=number, parent=number - 1 if number else None, branch_reason=None, prompt_ids=(), token_ids=(),
            sampled_logprobs=(), versions=((0, 0),), fingerprint="example", stop_reason=StopReason.STOP, sampling=Sampling(),
            message=message, num_computed_tokens=0, seconds=0.0,
        )
        for number, message in enumerate(answers)
    )  # fmt: skip
    return Trajectory(
        id=f"example/{task.id}",
        task=task,
        attempt=0,
        turns=turns,
        messages=(*task.messages, *messages),
        outcome=outcome,
        reward=None,
        score=None,
        **more,
    )
