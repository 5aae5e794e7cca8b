"""A session keeps exact tokens, splices or branches with a reason, and records before it answers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import Answer, ScriptedEngine
from sparring.errors import ContextOverflow, DataError, InfrastructureError, PolicyTimeout, TokenLimit
from sparring.ledger import Ledger, RolloutState
from sparring.sessions import Session, episode_seed, turn_seed
from sparring.types import Completion, Message, SampleRequest, Sampling, Weights

CHAT = TemplateChat(ByteTokenizer())
USER = {"role": "user", "content": "find b"}
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name":"get","arguments":{"key":"b","n":1}}</tool_call>'


def engine(script: Callable[[SampleRequest], Answer] | Sequence[Answer], **options: Any) -> ScriptedEngine:
    return ScriptedEngine(script, encode=ByteTokenizer().encode, **options)


def session(answers: Callable[[SampleRequest], Answer] | Sequence[Answer], **options: Any) -> Session:
    options = {"engine": engine(answers), "sampling": Sampling(max_tokens=200), **options}
    return Session(id="r", chat=CHAT, **options)


def play(door: Session, *requests: Sequence[Message], tools: Sequence[Any] = ()) -> list[Message]:
    async def run() -> list[Message]:
        async with door:
            return [await door.chat(request, tools) for request in requests]

    return asyncio.run(run())


def test_a_continued_conversation_is_spliced() -> None:
    answer = {"role": "assistant", "content": "f"}
    door = session(["f", "g"])
    play(door, [USER], [USER, answer, USER])
    first, second = door.turns
    assert (first.parent, second.parent, second.branch_reason) == (None, 0, None)
    assert second.prompt_ids[: len(first.prompt_ids) + 2] == first.prompt_ids + first.token_ids
    assert [message["content"] for message in door.messages] == ["find b", "f", "find b", "g"]


def test_what_clients_do_to_messages_does_not_break_the_splice() -> None:
    door = session([CALL, "g"])
    rewritten = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "x", "function": {"name": "get", "arguments": '{"n": 1,  "key": "b"}'}}],
    }
    parts = {"role": "user", "content": [{"type": "text", "text": "find "}, {"type": "text", "text": "b"}]}
    play(door, [USER], [parts, rewritten, {"role": "tool", "tool_call_id": "x", "content": "f"}], tools=[TOOL])
    assert door.turns[1].parent == 0
    assert door.turns[0].message["tool_calls"][0]["id"] == "call_0_0"


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ([USER, {"role": "assistant", "content": "edited"}, USER], "edited_history: message 1"),
        ([{"role": "user", "content": "other"}], "side_request"),
        ([USER], "repeated"),
    ],
)
def test_a_branch_says_why(second: list[Message], reason: str) -> None:
    door = session(["f", "g"])
    play(door, [USER], second)
    assert (door.turns[1].parent, door.turns[1].branch_reason) == (None, reason)
    assert door.turns[1].prompt_ids == CHAT.render(second, [])


def test_changed_tools_start_a_branch() -> None:
    async def run() -> Session:
        async with session(["f", "g"]) as door:
            answer = await door.chat([USER], [TOOL])
            await door.chat([USER, answer, USER])
            return door

    assert asyncio.run(run()).turns[1].branch_reason == "tools_changed: get became none"


def test_a_refused_splice_starts_a_branch_with_the_refusal() -> None:
    class OpenEnded:
        def __getattr__(self, name: str) -> Any:
            return getattr(ByteTokenizer(), name)

        def apply_chat_template(self, conversation: Any, **_options: Any) -> str:
            return "".join(f"{each['role']}: {each['content']}\n" for each in conversation)

    door = Session(id="r", engine=engine(["f", "g"]), chat=TemplateChat(OpenEnded()), sampling=Sampling())
    play(door, [USER], [USER, {"role": "assistant", "content": "f"}, USER])
    assert door.turns[1].branch_reason == "splice_refused: the template does not close an answer with a special token"


def test_the_same_request_after_a_turn_is_a_second_child_of_its_parent() -> None:
    answer = {"role": "assistant", "content": "f"}
    door = session(["f", "g", "h"])
    play(door, [USER], [USER, answer, USER], [USER, answer, USER])
    assert [turn.parent for turn in door.turns] == [None, 0, 0]
    assert door.turns[1].prompt_ids == door.turns[2].prompt_ids


def test_seeds_follow_what_is_played_never_when() -> None:
    # Fixed numbers: a change would change every recorded run.
    assert episode_seed(1, "task", 0) == 7755516375633977735
    assert len({episode_seed(seed, task, attempt) for seed in (1, 2) for task in ("a", "b") for attempt in (0, 1)}) == 8
    scripted = engine(["f", "g"])
    play(session([], engine=scripted, seed=7, order=(3, 1)), [USER], [USER])
    assert [request.seed for request in scripted.requests] == [turn_seed(7, 0), turn_seed(7, 1)]
    assert [request.order for request in scripted.requests] == [(3, 1, 0), (3, 1, 1)]


def test_an_answer_is_clipped_to_the_context_and_none_is_asked_without_room() -> None:
    num_prompt = len(CHAT.render([USER], []))
    door = session(["long answer"], max_context_tokens=num_prompt + 3)
    play(door, [USER])
    assert len(door.turns[0].token_ids) == 3
    assert door.turns[0].sampling.max_tokens == 3
    with pytest.raises(ContextOverflow, match="no room for an answer"):
        play(session(["x"], max_context_tokens=num_prompt), [USER])


class Lying:
    """A scripted engine whose completions are changed on the way."""

    def __init__(self, **changes: Any) -> None:
        self._engine, self._changes = engine(["f", "f"]), changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def sample(self, request: SampleRequest, on_token: Any = None) -> Completion:
        return dataclasses.replace(await self._engine.sample(request, on_token), **self._changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sampled_logprobs": (-1.0,)}, "2 tokens and 1 log-probabilities"),
        ({"sampled_logprobs": (-1.0, float("nan"))}, "not finite"),
        ({"sampled_logprobs": (-1.0, 0.5)}, "above 0"),
        ({"versions": ((0, 1),)}, "do not add up"),
        ({"versions": ((1, 2),)}, "do not lie between 0 of the turn before and 0 of the engine"),
        ({"fingerprint": ""}, "no weight fingerprint"),
        ({"token_ids": (), "sampled_logprobs": (), "versions": ()}, "no tokens"),
    ],
)
def test_a_completion_that_does_not_add_up_is_an_infrastructure_error(changes: dict, problem: str) -> None:
    door = session([], engine=Lying(**changes))
    with pytest.raises(InfrastructureError, match=problem):
        play(door, [USER])
    assert door.turns == ()


def test_an_engine_that_falls_back_to_older_weights_is_caught() -> None:
    async def run() -> None:
        lying = Lying()
        await lying.load_weights(Weights(tensors={}, fingerprint="new"), 2)
        async with session([], engine=lying) as door:
            await door.chat([USER])
            lying._changes = {"versions": ((1, 2),)}
            await door.chat([USER])

    with pytest.raises(InfrastructureError, match="between 2 of the turn before"):
        asyncio.run(run())


def test_engine_failures_keep_their_class_or_become_infrastructure_errors() -> None:
    with pytest.raises(InfrastructureError, match="ZeroDivisionError"):
        play(session([ZeroDivisionError()]), [USER])
    with pytest.raises(PolicyTimeout):
        play(session(["f"], deadline=float("-inf")), [USER])


def test_a_failure_that_an_agent_swallows_is_remembered() -> None:
    async def run() -> Session:
        async with session([InfrastructureError("gone"), "f"]) as door:
            with contextlib.suppress(InfrastructureError):
                await door.chat([USER])
            await door.chat([USER])
            return door

    door = asyncio.run(run())
    assert "gone" in str(door.failure)
    assert len(door.turns) == 1


def test_closing_frees_the_engine_and_refuses_later_turns() -> None:
    scripted = engine(["f"])

    async def run() -> None:
        async with session([], engine=scripted) as door:
            assert scripted.open_sessions == {"r"}
        assert scripted.open_sessions == set()
        door.close()
        await door.chat([USER])

    with pytest.raises(InfrastructureError, match="is closed"):
        asyncio.run(run())


def test_turns_are_in_the_ledger_before_they_are_answered() -> None:
    async def run() -> None:
        async with Ledger() as ledger:
            await ledger.plan("r", task_id="t", attempt=0)
            door = session(["f", "g"], ledger=ledger)
            with pytest.raises(DataError, match="while it is running"):
                await door.chat([USER])
            await ledger.advance("r", RolloutState.LEASED)
            await ledger.advance("r", RolloutState.RUNNING)
            door = session(["f", "g"], ledger=ledger)
            answer = await door.chat([USER])
            assert ledger.load_turns("r") == door.turns
            await door.chat([USER, answer, USER])
            assert ledger.load_turns("r") == door.turns
            assert ledger.verify() == []

    asyncio.run(run())


def test_a_turn_is_answered_only_after_its_commit() -> None:
    async def run() -> None:
        may_write = threading.Event()
        async with Ledger() as ledger:
            ledger.plan_nowait("r", task_id="t", attempt=0)
            ledger.advance_nowait("r", RolloutState.LEASED)
            ledger.advance_nowait("r", RolloutState.RUNNING)
            ledger._writer.submit(lambda _: may_write.wait())
            answering = asyncio.create_task(session(["f"], ledger=ledger).chat([USER]))
            done, _ = await asyncio.wait({answering}, timeout=0.05)
            may_write.set()
            assert not done
            assert (await answering)["content"] == "f"

    asyncio.run(run())


@given(
    st.lists(
        st.tuples(st.text("ab<>", max_size=4), st.sampled_from(["continue", "back", "edit", "retry"])),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=50, deadline=None)
def test_any_conversation_keeps_the_laws_of_turns(moves: list[tuple[str, str]]) -> None:
    """Prompts start with what their parent played, roots after the first give a reason, the ledger has it all."""

    async def run() -> tuple[Session, ScriptedEngine, tuple[Any, ...], list[str]]:
        scripted = engine([text for text, _ in moves])
        async with Ledger() as ledger:
            ledger.plan_nowait("r", task_id="t", attempt=0)
            ledger.advance_nowait("r", RolloutState.LEASED)
            ledger.advance_nowait("r", RolloutState.RUNNING)
            messages: list[Message] = [USER]
            async with session([], engine=scripted, ledger=ledger) as door:
                for text, move in moves:
                    answer = await door.chat(messages)
                    if move == "continue":
                        messages = [*messages, answer, {"role": "tool", "content": text}]
                    elif move == "back":
                        messages = messages[: max(1, len(messages) - 2)]
                    elif move == "edit":
                        messages = [*messages, {"role": "assistant", "content": "edited"}, USER]
            return door, scripted, ledger.load_turns("r"), ledger.verify()

    door, scripted, recorded, broken = asyncio.run(run())
    assert recorded == door.turns
    assert broken == []
    assert [turn.prompt_ids for turn in door.turns] == [request.prompt_ids for request in scripted.requests]
    for turn in door.turns:
        if turn.parent is not None:
            parent = door.turns[turn.parent]
            played = parent.prompt_ids + parent.token_ids
            assert turn.prompt_ids[: len(played)] == played
        assert (turn.branch_reason is not None) == (turn.parent is None and turn.id > 0)


def test_turns_side_by_side_share_a_token_budget_and_none_is_cut_for_tokens_that_were_not_sampled() -> None:
    async def run() -> Session:
        async with session(lambda _: "twelve chars", sampling=Sampling(max_tokens=40), max_tokens=65) as door:
            played = await asyncio.gather(*(door.play([USER]) for _ in range(6)), return_exceptions=True)
            lengths = [len(turn.token_ids) for turn in played if not isinstance(turn, BaseException)]
            # 40 are reserved for the first; the second has to wait, since of 25 left it could need 40.
            assert lengths == [13] * 5
            assert isinstance(played[-1], TokenLimit)
            assert "has sampled its 65 tokens" in str(played[-1])
            return door

    door = asyncio.run(run())
    assert isinstance(door.failure, TokenLimit)


def test_a_turn_that_fails_gives_its_tokens_back() -> None:
    async def run() -> None:
        answers = [InfrastructureError("down"), "ok"]
        async with session(answers, sampling=Sampling(max_tokens=40), max_tokens=50) as door:
            failed, played = await asyncio.gather(door.play([USER]), door.play([USER]), return_exceptions=True)
            assert isinstance(failed, InfrastructureError)
            assert not isinstance(played, BaseException)
            assert played.sampling.max_tokens == 40

    asyncio.run(run())


def test_the_ledger_says_which_answers_nobody_received() -> None:
    async def run() -> None:
        async with Ledger() as ledger:
            await ledger.plan("r", task_id="t", attempt=0)
            await ledger.advance("r", RolloutState.LEASED)
            await ledger.advance("r", RolloutState.RUNNING)
            async with session(["lost", "found", "on", "late"], ledger=ledger) as door:
                lost, found = [await door.sample([USER]) for _ in range(2)]
                await door.recorded([lost.id, found.id])
                assert door.turns == ()
                # It goes on from an answer, so that has arrived.
                answer = {"role": "assistant", "content": "found"}
                onward = await door.play([USER, answer, USER])
                greedy = await door.play([USER], sampling=Sampling(temperature=0.0))
            kept = [found, onward, greedy]
            assert door.turns == tuple(kept)
            recorded = ledger.load_turns("r")
            assert [turn.untrained_reason for turn in recorded] == ["not_received", None, None, "greedy"]
            assert tuple(turn for turn in recorded if turn.is_received) == door.turns
            assert ledger.verify() == []

    asyncio.run(run())
