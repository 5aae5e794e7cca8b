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
from sparring.sessions import EpisodeIdentity, EpisodeLimits, MessageSession
from sparring.types import AnswerFormat, Message, MessageAnswer, MessageRequest, Sampling, StopReason, Usage
from tests.gateway.builders import TOOL, USER


def make_session(*script: Message | str, **options: Any) -> MessageSession:
    engine = ScriptedMessages(script, name="script")
    return MessageSession(EpisodeIdentity("episode"), engine=engine, sampling=Sampling(max_tokens=200), **options)


def test_turns_have_messages_parents_and_reasons_and_no_ids() -> None:
    session = make_session(tool_call("get", key="b"), "done", "done")

    async def play() -> None:
        call = await session.chat([USER], [TOOL])
        result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "f"}
        # Clients write arguments anew and leave empty content out.
        again = {
            "role": "assistant",
            "tool_calls": [{"id": "call_0_0", "function": {"name": "get", "arguments": '{"key":"b"}'}}],
        }
        await session.chat([USER, again, result], [TOOL])
        await session.chat([USER, again, {**result, "content": "g"}], [TOOL])
        await session.chat([{"role": "user", "content": "another"}])

    asyncio.run(play())
    assert [turn.parent for turn in session.turns] == [None, 0, 0, None]
    assert [turn.branch_reason for turn in session.turns] == [None, None, None, "side_request"]
    assert session.turns[0].message["tool_calls"][0]["id"] == "call_0_0"
    assert {turn.token_ids + turn.prompt_ids + turn.sampled_logprobs for turn in session.turns} == {()}
    assert {turn.fingerprint for turn in session.turns} == {"scripted:script"}
    assert not any(turn.is_trained for turn in session.turns)
    messages, tools = session.conversation(1)
    assert ([message["role"] for message in messages], tools) == (["user", "assistant", "tool", "assistant"], (TOOL,))


def test_equal_answers_are_continued_each_by_its_own_conversation() -> None:
    session = make_session("one", "two")

    async def play() -> None:
        first, second = await session.chat([USER]), await session.chat([USER])
        for reply in (first, second):
            await session.chat([USER, reply, USER])

    asyncio.run(play())
    assert [turn.parent for turn in session.turns] == [None, None, 1, 0]


def test_turns_are_in_the_ledger_which_finds_nothing_wrong_with_them() -> None:
    async def play() -> None:
        with Ledger() as ledger:
            ledger.plan_nowait("episode", task_id="t", attempt=0, split="held_out")
            ledger.advance_nowait("episode", RolloutState.LEASED)
            ledger.advance_nowait("episode", RolloutState.RUNNING)
            async with make_session("one", "two", ledger=ledger) as session:
                reply = await session.chat([USER])
                await session.chat([USER, reply, USER])
            assert [turn.message["content"] for turn in ledger.load_turns("episode")] == ["one", "two"]
            assert ledger.load_turns("episode") == session.turns
            assert ledger.verify() == []

    asyncio.run(play())


def test_the_ledger_shows_which_answers_were_not_received() -> None:
    async def play() -> None:
        with Ledger() as ledger:
            ledger.plan_nowait("episode", task_id="t", attempt=0, split="held_out")
            ledger.advance_nowait("episode", RolloutState.LEASED)
            ledger.advance_nowait("episode", RolloutState.RUNNING)
            async with make_session("lost", "on", ledger=ledger) as session:
                lost, found = await session.sample([USER]), await session.sample([USER, USER])
                await session.recorded([lost.id, found.id])
                assert session.turns == ()
                # It goes on from an answer, so that has arrived.
                onward = await session.play([USER, USER, found.message, USER])
            recorded = ledger.load_turns("episode")
            assert [turn.untrained_reason for turn in recorded] == ["not_received", "no_ids", "no_ids"]
            assert tuple(turn for turn in recorded if turn.is_received) == session.turns == (found, onward)
            assert ledger.verify() == []

    asyncio.run(play())


def test_limits_and_failures_are_those_of_any_session() -> None:
    async def play() -> None:
        async with make_session("one", limits=EpisodeLimits(max_turns=1)) as session:
            await session.chat([USER])
            with pytest.raises(TurnLimit, match=r"agent\.max_turns"):
                await session.chat([USER])
        with pytest.raises(InfrastructureError, match="closed"):
            await session.chat([USER])
        assert isinstance(session.failure, TurnLimit)

        class Broken:
            fingerprint = "broken"

            async def answer(self, request: MessageRequest, on_delta: Any = None) -> MessageAnswer:
                raise OSError("no disk")

            async def close(self) -> None: ...

        with pytest.raises(InfrastructureError, match="no disk"):
            await MessageSession(EpisodeIdentity("s"), engine=Broken(), sampling=Sampling()).chat([USER])

    asyncio.run(play())


class Streams:
    """An engine that streams its words one by one, with counts."""

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
        async with (
            Gateway() as gateway,
            MessageSession(EpisodeIdentity("s"), engine=Streams(), sampling=Sampling()) as session,
        ):
            entry = gateway.register(session)
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
        assert [turn.branch_reason for turn in session.turns] == [None, "repeated"]

    asyncio.run(play())


class Wavers(Streams):
    """Reasons, speaks, and reasons again, before more of its text and at its end."""

    async def answer(self, request: MessageRequest, on_delta: Any = None) -> MessageAnswer:
        parts = [("reasoning_content", "hm"), ("content", "one"), ("reasoning_content", ", no:"), ("content", " two")]
        parts.append(("reasoning_content", " yes"))
        for key, text in parts:
            if on_delta is not None:
                on_delta({key: text})
                await asyncio.sleep(0.01)
        whole = {name: "".join(text for key, text in parts if key == name) for name in ("reasoning_content", "content")}
        return MessageAnswer(message={"role": "assistant", **whole}, stop_reason=StopReason.STOP)


def test_reasoning_that_comes_after_the_first_text_is_in_the_stream() -> None:
    async def play() -> None:
        async with (
            Gateway() as gateway,
            MessageSession(EpisodeIdentity("s"), engine=Wavers(), sampling=Sampling()) as session,
        ):
            entry = gateway.register(session)
            async with openai.AsyncOpenAI(base_url=entry.base_url, api_key=entry.api_key, timeout=60) as client:
                stream = await client.chat.completions.create(model="any", messages=[USER], stream=True)
                deltas = [chunk.choices[0].delta.model_dump() async for chunk in stream]
                async with client.responses.stream(model="any", input="go") as events:
                    response = await events.get_final_response()
        reported = [(key, delta[key]) for delta in deltas for key in ("reasoning_content", "content") if delta.get(key)]
        assert reported == [
            ("reasoning_content", "hm"),
            ("content", "one"),
            ("reasoning_content", ", no:"),
            ("content", " two"),
            ("reasoning_content", " yes"),
        ]
        reasoning = [item for item in response.output if item.type == "reasoning"]
        assert [part.text for item in reasoning for part in item.content or ()] == ["hm", ", no:", " yes"]
        assert len({item.id for item in response.output}) == 4
        assert response.output_text == "one two"

    asyncio.run(play())


class Counting:
    """An engine that reports how many tokens it sampled: as many as it may, at most five."""

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
    session = MessageSession(
        EpisodeIdentity("e"), engine=Counting(), sampling=Sampling(max_tokens=5), limits=EpisodeLimits(max_tokens=12)
    )

    async def play() -> None:
        for number in range(3):
            await session.chat([{"role": "user", "content": str(number)}])
        with pytest.raises(TokenLimit, match="has sampled its 12 tokens"):
            await session.chat([USER])

    asyncio.run(play())
    assert [turn.num_sampled_tokens for turn in session.turns] == [5, 5, 2]


def test_a_token_budget_holds_for_turns_side_by_side() -> None:
    session = MessageSession(
        EpisodeIdentity("e"),
        engine=Counting(seconds=0.001),
        sampling=Sampling(max_tokens=5),
        limits=EpisodeLimits(max_tokens=12),
    )

    async def play() -> list[Any]:
        asking = [session.chat([{"role": "user", "content": str(number)}]) for number in range(6)]
        return await asyncio.gather(*asking, return_exceptions=True)

    answers = asyncio.run(play())
    # Two fit at once; the third waits and gets what is left, and no other gets any.
    assert [turn.sampling.max_tokens for turn in session.turns] == [5, 5, 2]
    assert [turn.num_sampled_tokens for turn in session.turns] == [5, 5, 2]
    assert sum(isinstance(answer, TokenLimit) for answer in answers) == 3


def test_a_turn_that_failed_gives_back_what_was_reserved_for_it() -> None:
    engine = Counting(seconds=0.001)
    session = MessageSession(
        EpisodeIdentity("e"), engine=engine, sampling=Sampling(max_tokens=5), limits=EpisodeLimits(max_tokens=5)
    )

    async def play() -> None:
        engine.fails = True
        with pytest.raises(InfrastructureError):
            await session.chat([USER])
        engine.fails = False
        given_up = asyncio.ensure_future(session.chat([USER]))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(session.chat([USER]))
        await asyncio.sleep(0)
        given_up.cancel()
        await waiting

    asyncio.run(play())
    assert [turn.num_sampled_tokens for turn in session.turns] == [5]


def test_of_an_engine_that_does_not_count_every_byte_is_a_token_of_the_budget() -> None:
    # "größe" has 7 bytes, so 5 are left for another; the call has 3 in its name and 12 in its arguments.
    for reply, allowed in (("größe", [12, 5]), (tool_call("get", key="b"), [12])):
        session = make_session(reply, limits=EpisodeLimits(max_tokens=12))

        async def play(session: MessageSession = session, num_turns: int = len(allowed)) -> None:
            for number in range(num_turns):
                await session.chat([{"role": "user", "content": str(number)}])
            with pytest.raises(TokenLimit, match="has sampled its 12 tokens"):
                await session.chat([USER])

        asyncio.run(play())
        assert [turn.sampling.max_tokens for turn in session.turns] == allowed
        assert [turn.num_sampled_tokens for turn in session.turns] == [0] * len(allowed)  # not counted


@pytest.mark.parametrize(
    "reply",
    ["\ud800 wrong", {**tool_call("get"), "content": "\udfff"}, tool_call("\ud800"), tool_call("get", key="\ud800")],
)
def test_half_characters_of_an_engine_that_does_not_count_lose_no_episode(reply: Message | str) -> None:
    session = make_session(reply)
    asyncio.run(session.chat([USER]))
    assert (len(session.turns), session.failure) == (1, None)


def test_a_script_is_held_to_no_form_and_the_episode_goes_on() -> None:
    session = make_session("done")

    async def play() -> None:
        with pytest.raises(ConstraintError, match="cannot apply an answer format"):
            await session.play([USER], answer_format=AnswerFormat(tool_choice="none"))
        await session.chat([USER])

    asyncio.run(play())
    assert session.failure is None
    assert [turn.untrained_reason for turn in session.turns] == ["no_ids"]
