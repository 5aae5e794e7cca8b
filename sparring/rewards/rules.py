"""Rewards as code: the check of a reward function's return value, and a dense reward for JSON answers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from numbers import Real

from sparring.errors import InfrastructureError, RewardError, ServiceError
from sparring.protocols import RewardFunction
from sparring.runtime.faults import fault_point
from sparring.runtime.missing_parts import explain_missing_state
from sparring.runtime.plugins import call
from sparring.types import Json, Message, Reward, Trajectory

_CODE = re.compile(r"(```|~~~).*?(?:\1|$)|(?<!`)(``?)(?!`)[^\n]*?(?<!`)\2(?!`)", re.DOTALL)
"""Fenced blocks and text in backticks, which are quotations rather than answers."""


async def evaluate_reward(function: RewardFunction, trajectory: Trajectory) -> Reward:
    """Call a reward function, sync or async, and check what it returns.

    Raises RewardError, which identifies the function and the trajectory, if there is no usable number.
    InfrastructureError (an LLM judge is down) and ServiceError (an LLM judge refuses the key) are passed on.
    """
    name = getattr(function, "__name__", type(function).__name__)
    source = f"Reward {name!r} of trajectory {trajectory.id}"
    try:
        fault_point("reward.judging")
        value = await call(function, trajectory)
    except (InfrastructureError, RewardError, ServiceError):
        raise
    except Exception as error:
        missing = explain_missing_state(function, trajectory)
        raise RewardError(f"{source} raised {error!r}; every finished trajectory needs a number.{missing}") from error
    return to_reward(value, turn_ids=[turn.id for turn in trajectory.turns], source=source)


def to_reward(value: object, *, turn_ids: Sequence[int], source: str) -> Reward:
    """Convert a reward value of any allowed shape to a Reward. The message of a RewardError begins with `source`."""
    if isinstance(value, Reward):
        return _checked(value, turn_ids, source)
    metrics: Mapping[str, float] = {}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping):
        value, metrics = value[0], _numbers(value[1], source, "metric")
    if isinstance(value, list | tuple):
        if len(value) != len(turn_ids):
            raise RewardError(
                f"{source} is a list of {len(value)} numbers for {len(turn_ids)} turns of the policy; give one number "
                "per turn, in order, or one per user message with `per_user_turn(trajectory, numbers)`."
            )
        numbers = [_number(item, source) for item in value]
        return Reward(total=math.fsum(numbers), per_turn=dict(zip(turn_ids, numbers, strict=True)), metrics=metrics)
    return Reward(total=_number(value, source), metrics=metrics)


def per_user_turn(trajectory: Trajectory, rewards: Sequence[float]) -> Reward:
    """Return a reward with one number for each user message that the policy answered (`trajectory.user_turns`).

    Each number is credited to the turn that ends the answer, and the tool calls before that turn get 0. Algorithms that
    use rewards per turn propagate the number back to these calls. Use this function if `reply` continues the
    conversation and each answer is graded separately. Raises RewardError if there is not one reward per answer.
    """
    answers = trajectory.user_turns
    if len(rewards) != len(answers):
        raise RewardError(
            f"{len(rewards)} rewards for {len(answers)} answers to the user in trajectory {trajectory.id}: the episode "
            "may have ended before the user's last message; give one reward for each of `trajectory.user_turns`."
        )
    source = f"The reward per user turn of trajectory {trajectory.id}"
    credited = {answer[-1]: _number(number, source) for answer, number in zip(answers, rewards, strict=True)}
    return Reward(
        total=math.fsum(credited.values()), per_turn={turn.id: credited.get(turn.id, 0.0) for turn in trajectory.turns}
    )


def _checked(reward: Reward, turn_ids: Sequence[int], source: str) -> Reward:
    total = _number(reward.total, source)
    per_turn = None
    if reward.per_turn is not None:
        per_turn = {turn_id: _number(number, source) for turn_id, number in reward.per_turn.items()}
        unknown = sorted(set(per_turn) - set(turn_ids))
        if unknown:
            raise RewardError(f"{source} rewards turns {unknown}, but the turns are {list(turn_ids)}; use their ids.")
        if not math.isclose(math.fsum(per_turn.values()), total, rel_tol=1e-6, abs_tol=1e-9):
            raise RewardError(
                f"{source} has a total of {total}, but its per-turn rewards sum to {math.fsum(per_turn.values())}; "
                "make them agree."
            )
    return Reward(
        total=total,
        per_turn=per_turn,
        components=_numbers(reward.components, source, "component"),
        metrics=_numbers(reward.metrics, source, "metric"),
        record=reward.record,
    )


def _numbers(values: Mapping[str, object], source: str, kind: str) -> dict[str, float]:
    return {str(name): _number(value, f"{source}, {kind} {name!r},") for name, value in values.items()}


def _number(value: object, source: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RewardError(
            f"{source} is {value!r} of type {type(value).__name__}, which is not a number; "
            "return a float, a list with one float per turn, either of them as (value, metrics), or a Reward."
        )
    if not math.isfinite(value):
        raise RewardError(f"{source} is {float(value)}, which cannot be learned from; return a finite number.")
    return float(value)


def json_fields(
    tag: str = "final_output", fields: Sequence[str] | None = None, format_weight: float = 0.1
) -> RewardFunction:
    """Return a dense reward for answers like `<final_output>{"part":"B12"}</final_output>`.

    The total is (1 - format_weight) times the share of `fields` that equal the fields of task.fields["answer"], plus
    format_weight for the correct format. The format is correct if the answer is a single tag around a JSON object with
    exactly these fields, each once. If `fields` is None, all fields of the reference answer are compared. Each field
    and the format are separate components.
    """

    def json_fields_reward(trajectory: Trajectory) -> Reward:
        expected: Mapping[str, Json] = trajectory.task.fields["answer"]
        names = tuple(expected) if fields is None else tuple(fields)
        given, is_well_formed = _tagged_object(trajectory.messages, tag)
        share = (1.0 - format_weight) / len(names)
        components = {name: share * (name in given and _same(given[name], expected[name])) for name in names}
        components["format"] = format_weight * (is_well_formed and set(given) == set(names))
        return Reward(total=math.fsum(components.values()), components=components)

    return json_fields_reward


def _tagged_object(messages: Sequence[Message], tag: str) -> tuple[Mapping[str, Json], bool]:
    """Return the object in the last tag of the answer (empty if there is none), and whether the form is correct.

    The form is correct if the tag is the only one and outside code, and its object has each key once.
    """
    if not messages or messages[-1].get("role") != "assistant":
        return {}, False
    text = str(messages[-1].get("content") or "")
    before, opening, rest = text.rpartition(f"<{tag}>")
    body, closing, _ = rest.partition(f"</{tag}>")
    if not opening or not closing:
        return {}, False
    num_repeated = 0

    def last_of_each(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        nonlocal num_repeated
        value = dict(pairs)
        num_repeated += len(pairs) - len(value)
        return value

    try:
        value = json.loads(body, object_pairs_hook=last_of_each)
    except (ValueError, RecursionError):
        return {}, False
    if not isinstance(value, dict):
        return {}, False
    is_only_tag = f"<{tag}>" not in before and text.count(f"</{tag}>") == 1 and f"<{tag}>" in _CODE.sub("", text)
    return value, is_only_tag and num_repeated == 0


def _same(left: Json, right: Json) -> bool:
    """Return whether two JSON values are equal: 1 is 1.0, but true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return left == right
