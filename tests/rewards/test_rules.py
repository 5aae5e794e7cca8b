"""Rewards of every allowed shape, refused values, and the dense JSON reward."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.errors import InfrastructureError, RewardError
from sparring.rewards import evaluate_reward, json_fields, per_user_turn
from sparring.types import Outcome, Reward, Sampling, StopReason, Task, Trajectory, Turn

ANSWER = {"part": "B12", "count": 2, "ok": True}


def trajectory(text: str | None = None, num_turns: int = 2, role: str = "assistant") -> Trajectory:
    turns = tuple(
        Turn(
            id=index, parent=None, branch_reason=None, prompt_ids=(1,), token_ids=(2,), sampled_logprobs=(-1.0,),
            versions=((0, 1),), fingerprint="f", stop_reason=StopReason.STOP, sampling=Sampling(),
            message={"role": "assistant", "content": ""}, num_computed_tokens=2, seconds=0.0,
        )
        for index in range(num_turns)
    )  # fmt: skip
    return Trajectory(
        id="t1-0",
        task=Task(id="t1", messages=(), fields={"answer": ANSWER}),
        attempt=0,
        turns=turns,
        messages=({"role": "user", "content": "?"}, {"role": role, "content": text}),
        outcome=Outcome.FINISHED,
        reward=None,
        score=None,
    )


def evaluated(value: Any, num_turns: int = 2) -> Reward:
    def my_reward(_: Trajectory) -> Any:
        return value

    return asyncio.run(evaluate_reward(my_reward, trajectory(num_turns=num_turns)))


def test_floats_lists_pairs_and_rewards_are_accepted() -> None:
    assert evaluated(1) == Reward(total=1.0)
    assert evaluated([0.25, 0.5]) == Reward(total=0.75, per_turn={0: 0.25, 1: 0.5})
    assert evaluated((0.5, {"length": 3})) == Reward(total=0.5, metrics={"length": 3.0})
    assert evaluated(([0.25, 0.5], {"a": 1})) == Reward(total=0.75, per_turn={0: 0.25, 1: 0.5}, metrics={"a": 1.0})
    given_reward = Reward(total=0.75, per_turn={1: 0.75}, components={"part": 0.75}, metrics={"calls": 2.0})
    assert evaluated(given_reward) == given_reward


def of_two_answers() -> Trajectory:
    """One call and an answer, an answer, two calls of which one cannot be read, and no third answer."""
    called, unread = {"tool_calls": [{"id": "c"}]}, {"malformed_tool_calls": [{"problem": "not_json"}]}
    one = trajectory(num_turns=5)
    messages = (
        {**turn.message, **more} for turn, more in zip(one.turns, (called, {}, {}, unread, called), strict=True)
    )
    return replace(
        one, turns=tuple(replace(turn, message=message) for turn, message in zip(one.turns, messages, strict=True))
    )


def test_a_reward_for_each_message_of_the_user_is_credited_to_the_turn_that_ends_its_answer() -> None:
    played = of_two_answers()
    assert played.user_turns == ((0, 1), (2,), (3, 4))
    assert per_user_turn(played, [0.5, 1, -0.25]) == Reward(
        total=1.25, per_turn={0: 0.0, 1: 0.5, 2: 1.0, 3: 0.0, 4: -0.25}
    )


def test_another_count_of_rewards_than_answers_names_what_to_return() -> None:
    with pytest.raises(RewardError, match=r"2 rewards for 3 answers.*user_turns"):
        per_user_turn(of_two_answers(), [0.5, 1.0])
    with pytest.raises(RewardError, match=r"3 numbers for 2 turns of the policy.*per_user_turn"):
        evaluated([0.5, 1.0, 1.0])


def test_an_async_reward_is_awaited() -> None:
    async def judge(_: Trajectory) -> float:
        await asyncio.sleep(0)
        return 0.5

    assert asyncio.run(evaluate_reward(judge, trajectory())).total == 0.5


@pytest.mark.parametrize(
    "value",
    [
        None, math.nan, math.inf, True, "1", [0.5, math.nan], (math.nan, {}), (0.5, {"length": None}), {"total": 1.0},
        Reward(total=math.nan), Reward(total=1.0, components={"part": math.inf}), Reward(total=False),
    ],
)  # fmt: skip
def test_what_is_no_finite_number_is_refused_with_function_and_trajectory(value: Any) -> None:
    with pytest.raises(RewardError, match="Reward 'my_reward' of trajectory t1-0"):
        evaluated(value)


def test_a_list_of_the_wrong_length_is_refused_with_both_numbers() -> None:
    with pytest.raises(RewardError, match="a list of 3 numbers for 2 turns"):
        evaluated([1.0, 2.0, 3.0])


def test_per_turn_rewards_must_name_turns_and_sum_to_the_total() -> None:
    with pytest.raises(RewardError, match=r"rewards turns \[7\], but the turns are \[0, 1\]"):
        evaluated(Reward(total=1.0, per_turn={7: 1.0}))
    with pytest.raises(RewardError, match=r"total of 1\.0, but its per-turn rewards sum to 0\.5"):
        evaluated(Reward(total=1.0, per_turn={0: 0.5}))


def test_a_reward_that_raises_is_an_error_but_an_outage_stays_one() -> None:
    def broken(_: Trajectory) -> float:
        raise KeyError("answer")

    def judge(_: Trajectory) -> float:
        raise InfrastructureError("judge is down")

    with pytest.raises(RewardError, match=r"Reward 'broken' of trajectory t1-0 raised KeyError\('answer'\)"):
        asyncio.run(evaluate_reward(broken, trajectory()))
    with pytest.raises(InfrastructureError, match="judge is down"):
        asyncio.run(evaluate_reward(judge, trajectory()))


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ('<final_output>{"part":"B12","count":2,"ok":true}</final_output>', 1.0),
        ('So: <final_output>{"part":"B12","count":2.0,"ok":true}</final_output>.', 1.0),
        # Two of three fields right: 0.9 * 2 / 3 + 0.1.
        ('<final_output>{"part":"B13","count":2,"ok":true}</final_output>', 0.7),
        ('<final_output>{"part":"B12","count":2,"ok":1}</final_output>', 0.7),
        # One field, and not just the expected ones: no format term.
        ('<final_output>{"part":"B12"}</final_output>', 0.3),
        ('<final_output>{"part":"B12","count":2,"ok":true,"more":0}</final_output>', 0.9),
        # Two tags: the last one counts, without format term.
        ('<final_output>{}</final_output><final_output>{"part":"B12","count":2,"ok":true}</final_output>', 0.9),
        # A key twice, here and in an inner object: the last one counts, without format term.
        ('<final_output>{"part":"B13","part":"B12","count":2,"ok":true}</final_output>', 0.9),
        ('<final_output>{"part":"B12","count":2,"ok":{"a":1,"a":2}}</final_output>', 0.6),
        # Quoted, by one backtick or two: no format term. A lone backtick quotes nothing.
        ('The form is `<final_output>{"part":"B12","count":2,"ok":true}</final_output>`', 0.9),
        ('The form is ``<final_output>{"part":"B12","count":2,"ok":true}</final_output>``', 0.9),
        ('5` long: <final_output>{"part":"B12","count":2,"ok":true}</final_output>', 1.0),
        ('<final_output>{"part":"B12"', 0.0),
        ("<final_output>[1]</final_output>", 0.0),
        ('{"part":"B12","count":2,"ok":true}', 0.0),
        (None, 0.0),
    ],
)
def test_each_right_field_and_the_format_earn_their_share(text: str | None, total: float) -> None:
    reward = asyncio.run(evaluate_reward(json_fields(), trajectory(text)))
    assert reward.total == pytest.approx(total)
    assert sum(reward.components.values()) == pytest.approx(total)
    assert set(reward.components) == {"part", "count", "ok", "format"}


def test_only_the_assistants_last_message_is_the_answer() -> None:
    text = '<final_output>{"part":"B12","count":2,"ok":true}</final_output>'
    assert asyncio.run(evaluate_reward(json_fields(), trajectory(text, role="tool"))).total == 0.0


def test_named_fields_and_weight_are_used() -> None:
    function = json_fields("out", fields=("part",), format_weight=0.2)
    reward = asyncio.run(evaluate_reward(function, trajectory('<out>{"part":"B12"}</out>')))
    assert reward.components == {"part": 0.8, "format": 0.2}


@given(st.text())
def test_the_dense_reward_of_any_text_is_between_0_and_1(text: str) -> None:
    assert (
        0.0
        <= asyncio.run(evaluate_reward(json_fields(), trajectory(f"<final_output>{text}</final_output>"))).total
        <= 1.0
    )
