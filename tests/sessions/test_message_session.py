"""Sessions without tokens: turns form the same tree, nothing of them is trained, and any client can play through the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from sparring.engines.scripted_messages import ScriptedMessages
from sparring.environments import tool_call
from sparring.errors import ConstraintError, InfrastructureError, TokenLimit, TurnLimit
from sparring.gateway import Gateway
from sparring.ledger import Ledger, RolloutState
from sparring.sessions import MessageSession
from sparring.types import AnswerFormat, Message, MessageAnswer, MessageRequest, Sampling, StopReason, Usage
from tests.gateway.builders import TOOL, USER


def session(*script: Message | str, **options: Any) -> MessageSession:
    engine = ScriptedMessages(script, name="script")
    return MessageSession(id="episode", engine=engine, sampling=Sampling(max_tokens=200), **options)


def test_turns_have_messages_parents_and_reasons_and_no_ids() -> None:
    door = session(tool_call("get", key="b"), "done", "done")

    async def play() -> None:
        call = await door.chat([USER], [TOOL])
        result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "f"}
        # Clients write arguments anew and leave empty content out.
        again = {"role": "assistant", "tool_calls": [
            {"id": "call_0_0", "function": {"name": "get", "arguments": '{"key":"b"}'}}]}  # fmt: skip
        await door.chat([USER, again, result], [TOOL])
        await door.chat([USER, again, {**result, "content": "g"}], [TOOL])
        await door.chat([{"role": "user", "content": "another"}])

    asyncio.run(play())
    assert [turn.parent for turn in door.turns] == [None, 0, 0, None]
    assert [turn.branch_reason for turn in door.turns] == [None, None, None, "side_request"]
    assert door.turns[0].message["tool_calls"][0]["id"] == "call_0_0"
    assert {turn.token_ids + turn.prompt_ids + turn.sampled_logprobs for turn in door.turns} == {()}
    assert {turn.fingerprint for turn in door.turns} == {"scripted:script"}
    assert not any(turn.is_trained for turn in door.turns)
    messages, tools = door.conversation(1)
    assert ([message["role"] for message in messages], tools) == (["user", "assistant", "tool", "assistant"], (TOOL,))


def test_equal_answers_are_continued_each_by_its_own_conversation() -> None:
    door = session("one", "two")

    async def play() -> None:
        first, second = await door.chat([USER]), await door.chat([USER])
        for said in (first, second):
            await door.chat([USER, said, USER])

    asyncio.run(play())
    assert [turn.parent for turn in door.turns] == [None, None, 1, 0]


def test_turns_are_in_the_ledger_which_finds_nothing_wrong_with_them() -> None:
    async def play() -> None:
        with Ledger() as ledger:
            ledger.plan_nowait("episode", task_id="t", attempt=0, split="held_out")
            ledger.advance_nowait("episode", RolloutState.LEASED)
            ledger.advance_nowait("episode", RolloutState.RUNNING)
            async with session("one", "two", ledger=ledger) as door:
                said = await door.chat([USER])
                await door.chat([USER, said, USER])
            assert [turn.message["content"] for turn in ledger.load_turns("episode")] == ["one", "two"]
            assert ledger.load_turns("episode") == door.turns
            assert ledger.verify() == []

    asyncio.run(play())


def test_the_ledger_says_which_answers_nobody_received() -> None:
    async def play() -> None:
        with Ledger() as ledger:
            ledger.plan_nowait("episode", task_id="t", attempt=0, split="held_out")
            ledger.advance_nowait("episode", RolloutState.LEASED)
            ledger.advance_nowait("episode", RolloutState.RUNNING)
            async with session("lost", "on", ledger=ledger) as door:
                lost, found = await door.sample([USER]), await door.sample([USER, USER])
                await door.recorded([lost.id, found.id])
                assert door.turns == ()
                # It goes on from an answer, so that has arrived.
                onward = await door.play([USER, USER, found.message, USER])
            recorded = ledger.load_turns("episode")
            assert [turn.untrained_reason for turn in recorded] == ["not_received", "no_ids", "no_ids"]
            assert tuple(turn for turn in recorded if turn.is_received) == door.turns == (found, onward)
            assert ledger.verify() == []

    asyncio.run(play())


def test_limits_and_failures_are_those_of_any_session() -> None:
    async def play() -> None:
        async with session("one", max_turns=1) as door:
            await door.chat([USER])
            with pytest.raises(TurnLimit, match=r"agent\.max_turns"):
                await door.chat([USER])
        with pytest.raises(InfrastructureError, match="closed"):
            await door.chat([USER])
        assert isinstance(door.failure, TurnLimit)

        class Broken:
            fingerprint = "broken"

            async def answer(self, request: MessageRequest, on_delta: Any = None) -> MessageAnswer:
                raise OSError("no disk")

            async def close(self) -> None: ...

        with pytest.raises(InfrastructureError, match="no disk"):
            await MessageSession(id="s", engine=Broken(), sampling=Sampling()).chat([USER])

    asyncio.run(play())


class Streams:
    """Says its words one by one, with counts."""

    fingerprint = "streams"

    async def answer(self, request: MessageRequest, on_delta: Any = None) -> MessageAnswer:
        message = {"role": "assistant", "content": "one two", "reasoning_content": "hm"}
        if on_delta is not None:
            for one in ({"reasoning_content": "hm"}, {"content": "one "}, {"content": "two"}):
                on_delta(one)
                await asyncio.sleep(0.01)
        return MessageAnswer(
            message=message, stop_reason=StopReason.STOP, usage=Usage(num_prompt_tokens=5, num_sampled_tokens=2)
        )

    async def close(self) -> None: ...


def test_a_stream_reaches_clients_of_the_gateway_piece_by_piece_with_the_endpoints_counts() -> None:
    async def play() -> None:
        async with Gateway() as gateway, MessageSession(id="s", engine=Streams(), sampling=Sampling()) as door:
            entry = gateway.register(door)
            async with openai.AsyncOpenAI(base_url=entry.base_url, api_key=entry.api_key, timeout=60) as client:
                stream = await client.chat.completions.create(
                    model="any", messages=[USER], stream=True, stream_options={"include_usage": True}
                )
                chunks = [chunk async for chunk in stream]
                whole = await client.chat.completions.create(model="any", messages=[USER])
                with pytest.raises(openai.BadRequestError, match="logprobs"):
                    await client.chat.completions.create(model="any", messages=[USER], logprobs=True)
        texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
        assert [text for text in texts if text] == ["one", " two"]
        usages = [chunk.usage for chunk in chunks if chunk.usage]
        assert [(usage.prompt_tokens, usage.completion_tokens) for usage in usages] == [(5, 2)]
        assert whole.usage is not None
        assert whole.usage.total_tokens == 7
        assert [turn.branch_reason for turn in door.turns] == [None, "repeated"]

    asyncio.run(play())


class Wavers(Streams):
    """Reasons, speaks, and reasons again, before more of its text and at its end."""

    async def answer(self, request: MessageRequest, on_delta: Any = None) -> MessageAnswer:
        said = [("reasoning_content", "hm"), ("content", "one"), ("reasoning_content", ", no:"), ("content", " two")]
        said.append(("reasoning_content", " yes"))
        for key, text in said:
            if on_delta is not None:
                on_delta({key: text})
                await asyncio.sleep(0.01)
        whole = {name: "".join(text for key, text in said if key == name) for name in ("reasoning_content", "content")}
        return MessageAnswer(message={"role": "assistant", **whole}, stop_reason=StopReason.STOP)


def test_reasoning_that_comes_after_the_first_text_is_in_the_stream() -> None:
    async def play() -> None:
        async with Gateway() as gateway, MessageSession(id="s", engine=Wavers(), sampling=Sampling()) as door:
            entry = gateway.register(door)
            async with openai.AsyncOpenAI(base_url=entry.base_url, api_key=entry.api_key, timeout=60) as client:
                stream = await client.chat.completions.create(model="any", messages=[USER], stream=True)
                deltas = [chunk.choices[0].delta.model_dump() async for chunk in stream]
                async with client.responses.stream(model="any", input="go") as events:
                    response = await events.get_final_response()
        told = [(key, delta[key]) for delta in deltas for key in ("reasoning_content", "content") if delta.get(key)]
        assert told == [
            ("reasoning_content", "hm"), ("content", "one"), ("reasoning_content", ", no:"), ("content", " two"),
            ("reasoning_content", " yes"),
        ]  # fmt: skip
        reasoning = [item for item in response.output if item.type == "reasoning"]
        assert [part.text for item in reasoning for part in item.content or ()] == ["hm", ", no:", " yes"]
        assert len({item.id for item in response.output}) == 4
        assert response.output_text == "one two"

    asyncio.run(play())


class Counting:
    """An engine that says how many tokens it sampled: as many as it may, at most five."""

    fingerprint = "counting"
    fails = False

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    async def answer(self, request: MessageRequest, on_delta: Any = None) -> MessageAnswer:
        await asyncio.sleep(self._seconds)
        if self.fails:
            raise InfrastructureError("an outage")
        usage = Usage(num_prompt_tokens=1, num_sampled_tokens=min(5, request.sampling.max_tokens))
        return MessageAnswer(message={"role": "assistant", "content": "a"}, stop_reason=StopReason.LENGTH, usage=usage)

    async def close(self) -> None: ...


def test_a_token_budget_holds_where_the_engine_counts() -> None:
    door = MessageSession(id="e", engine=Counting(), sampling=Sampling(max_tokens=5), max_tokens=12)

    async def play() -> None:
        for number in range(3):
            await door.chat([{"role": "user", "content": str(number)}])
        with pytest.raises(TokenLimit, match="has sampled its 12 tokens"):
            await door.chat([USER])

    asyncio.run(play())
    assert [turn.num_sampled_tokens for turn in door.turns] == [5, 5, 2]


def test_a_token_budget_holds_for_turns_side_by_side() -> None:
    door = MessageSession(id="e", engine=Counting(seconds=0.001), sampling=Sampling(max_tokens=5), max_tokens=12)

    async def play() -> list[Any]:
        asking = [door.chat([{"role": "user", "content": str(number)}]) for number in range(6)]
        return await asyncio.gather(*asking, return_exceptions=True)

    answers = asyncio.run(play())
    # Two fit beside each other; the third waits and gets what is left, and nobody else gets any.
    assert [turn.sampling.max_tokens for turn in door.turns] == [5, 5, 2]
    assert [turn.num_sampled_tokens for turn in door.turns] == [5, 5, 2]
    assert sum(isinstance(answer, TokenLimit) for answer in answers) == 3


def test_a_turn_that_failed_gives_back_what_was_reserved_for_it() -> None:
    engine = Counting(seconds=0.001)
    door = MessageSession(id="e", engine=engine, sampling=Sampling(max_tokens=5), max_tokens=5)

    async def play() -> None:
        engine.fails = True
        with pytest.raises(InfrastructureError):
            await door.chat([USER])
        engine.fails = False
        given_up = asyncio.ensure_future(door.chat([USER]))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(door.chat([USER]))
        await asyncio.sleep(0)
        given_up.cancel()
        await waiting

    asyncio.run(play())
    assert [turn.num_sampled_tokens for turn in door.turns] == [5]


def test_of_an_engine_that_does_not_count_every_byte_is_a_token_of_the_budget() -> None:
    # "größe" has 7 bytes, so 5 are left for another; the call has 3 in its name and 12 in its arguments.
    for said, allowed in (("größe", [12, 5]), (tool_call("get", key="b"), [12])):
        door = session(said, max_tokens=12)

        async def play(door: MessageSession = door, num_turns: int = len(allowed)) -> None:
            for number in range(num_turns):
                await door.chat([{"role": "user", "content": str(number)}])
            with pytest.raises(TokenLimit, match="has sampled its 12 tokens"):
                await door.chat([USER])

        asyncio.run(play())
        assert [turn.sampling.max_tokens for turn in door.turns] == allowed
        assert [turn.num_sampled_tokens for turn in door.turns] == [0] * len(allowed)  # nobody counted them


@pytest.mark.parametrize(
    "said",
    ["\ud800 wrong", {**tool_call("get"), "content": "\udfff"}, tool_call("\ud800"), tool_call("get", key="\ud800")],
)
def test_half_characters_of_an_engine_that_does_not_count_lose_no_episode(said: Message | str) -> None:
    door = session(said)
    asyncio.run(door.chat([USER]))
    assert (len(door.turns), door.failure) == (1, None)


def test_a_script_is_held_to_no_form_and_the_episode_goes_on() -> None:
    door = session("done")

    async def play() -> None:
        with pytest.raises(ConstraintError, match="cannot be held to a form"):
            await door.play([USER], answer_format=AnswerFormat(tool_choice="none"))
        await door.chat([USER])

    asyncio.run(play())
    assert door.failure is None
    assert [turn.untrained_reason for turn in door.turns] == ["no_ids"]
