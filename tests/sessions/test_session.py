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
from sparring.sessions import EpisodeIdentity, EpisodeLimits, Session, episode_seed, turn_seed
from sparring.types import (
    AnswerFormat,
    Completion,
    Constraint,
    EngineCapabilities,
    Message,
    SampleRequest,
    Sampling,
    Turn,
    UntrainedReason,
    Weights,
)

CHAT = TemplateChat(ByteTokenizer())
USER = {"role": "user", "content": "find b"}
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name":"get","arguments":{"key":"b","n":1}}</tool_call>'


def engine(script: Callable[[SampleRequest], Answer] | Sequence[Answer], **options: Any) -> ScriptedEngine:
    return ScriptedEngine(script, encode=ByteTokenizer().encode, **options)


def make_session(
    answers: Callable[[SampleRequest], Answer] | Sequence[Answer],
    identity: EpisodeIdentity | None = None,
    **options: Any,
) -> Session:
    options = {"engine": engine(answers), "sampling": Sampling(max_tokens=200), **options}
    return Session(identity or EpisodeIdentity("r"), chat=CHAT, **options)


def play(session: Session, *requests: Sequence[Message], tools: Sequence[Any] = ()) -> list[Message]:
    async def run() -> list[Message]:
        async with session:
            return [await session.chat(request, tools) for request in requests]

    return asyncio.run(run())


def test_a_continued_conversation_is_spliced() -> None:
    answer = {"role": "assistant", "content": "f"}
    session = make_session(["f", "g"])
    play(session, [USER], [USER, answer, USER])
    first, second = session.turns
    assert (first.parent, second.parent, second.branch_reason) == (None, 0, None)
    assert second.prompt_ids[: len(first.prompt_ids) + 2] == first.prompt_ids + first.token_ids
    assert [message["content"] for message in session.messages] == ["find b", "f", "find b", "g"]


def test_what_clients_do_to_messages_does_not_break_the_splice() -> None:
    session = make_session([CALL, "g"])
    rewritten = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "x", "function": {"name": "get", "arguments": '{"n": 1,  "key": "b"}'}}],
    }
    parts = {"role": "user", "content": [{"type": "text", "text": "find "}, {"type": "text", "text": "b"}]}
    play(session, [USER], [parts, rewritten, {"role": "tool", "tool_call_id": "x", "content": "f"}], tools=[TOOL])
    assert session.turns[1].parent == 0
    assert session.turns[0].message["tool_calls"][0]["id"] == "call_0_0"


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ([USER, {"role": "assistant", "content": "edited"}, USER], "edited_history: message 1"),
        ([{"role": "user", "content": "other"}], "side_request"),
        ([USER], "repeated"),
    ],
)
def test_a_branch_states_its_reason(second: list[Message], reason: str) -> None:
    session = make_session(["f", "g"])
    play(session, [USER], second)
    assert (session.turns[1].parent, session.turns[1].branch_reason) == (None, reason)
    assert session.turns[1].prompt_ids == CHAT.render(second, [])


def test_changed_tools_start_a_branch() -> None:
    async def run() -> Session:
        async with make_session(["f", "g"]) as session:
            answer = await session.chat([USER], [TOOL])
            await session.chat([USER, answer, USER])
            return session

    assert asyncio.run(run()).turns[1].branch_reason == "tools_changed: get became none"


def test_a_refused_splice_starts_a_branch_with_the_refusal() -> None:
    class OpenEnded:
        def __getattr__(self, name: str) -> Any:
            return getattr(ByteTokenizer(), name)

        def apply_chat_template(self, conversation: Any, **_options: Any) -> str:
            return "".join(f"{each['role']}: {each['content']}\n" for each in conversation)

    session = Session(
        EpisodeIdentity("r"), engine=engine(["f", "g"]), chat=TemplateChat(OpenEnded()), sampling=Sampling()
    )
    play(session, [USER], [USER, {"role": "assistant", "content": "f"}, USER])
    assert (
        session.turns[1].branch_reason == "splice_refused: the template does not close an answer with a special token"
    )


def test_the_same_request_after_a_turn_is_a_second_child_of_its_parent() -> None:
    answer = {"role": "assistant", "content": "f"}
    session = make_session(["f", "g", "h"])
    play(session, [USER], [USER, answer, USER], [USER, answer, USER])
    assert [turn.parent for turn in session.turns] == [None, 0, 0]
    assert session.turns[1].prompt_ids == session.turns[2].prompt_ids


def test_seeds_follow_what_is_played_never_when() -> None:
    # Fixed numbers: a change would change every recorded run.
    assert episode_seed(1, "task", 0) == 7755516375633977735
    assert len({episode_seed(seed, task, attempt) for seed in (1, 2) for task in ("a", "b") for attempt in (0, 1)}) == 8
    scripted = engine(["f", "g"])
    play(make_session([], EpisodeIdentity("r", seed=7, order=(3, 1)), engine=scripted), [USER], [USER])
    assert [request.seed for request in scripted.requests] == [turn_seed(7, 0), turn_seed(7, 1)]
    assert [request.order for request in scripted.requests] == [(3, 1, 0), (3, 1, 1)]


def test_an_answer_is_clipped_to_the_context_and_none_is_asked_without_room() -> None:
    num_prompt = len(CHAT.render([USER], []))
    session = make_session(["long answer"], limits=EpisodeLimits(max_context_tokens=num_prompt + 3))
    play(session, [USER])
    assert len(session.turns[0].token_ids) == 3
    assert session.turns[0].sampling.max_tokens == 3
    with pytest.raises(ContextOverflow, match="no space for an answer"):
        play(make_session(["x"], limits=EpisodeLimits(max_context_tokens=num_prompt)), [USER])


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
        ({"versions": ((1, 2),)}, "are not between version 0 of the previous turn and version 0 of the engine"),
        ({"fingerprint": ""}, "no weight fingerprint"),
        ({"token_ids": (), "sampled_logprobs": (), "versions": ()}, "no tokens"),
    ],
)
def test_a_completion_that_does_not_add_up_is_an_infrastructure_error(changes: dict, problem: str) -> None:
    session = make_session([], engine=Lying(**changes))
    with pytest.raises(InfrastructureError, match=problem):
        play(session, [USER])
    assert session.turns == ()


def test_a_constrained_turn_is_trained_only_where_the_engine_reports_what_the_grammar_removed() -> None:
    class Following:
        """A scripted engine that follows every grammar, and reports that nothing was removed, or reports nothing."""

        def __init__(self, **can: bool) -> None:
            self._engine = engine(["f"])
            self.capabilities = EngineCapabilities(reports_token_ids=True, constrained_sampling=True, **can)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._engine, name)

        async def sample(self, request: SampleRequest, on_token: Any = None) -> Completion:
            assert request.constraint is not None
            return await self._engine.sample(dataclasses.replace(request, constraint=None), on_token)

    class Constraining:
        def __getattr__(self, name: str) -> Any:
            return getattr(CHAT, name)

        def constraint(self, answer_format: AnswerFormat, tools: Any) -> Constraint:
            return Constraint(grammar='start: "f"')

    async def played(**can: bool) -> Turn:
        options: Any = {"engine": Following(**can), "chat": Constraining()}
        async with Session(EpisodeIdentity("r"), sampling=Sampling(), **options) as session:
            return await session.play([USER], answer_format=AnswerFormat(response_format={"type": "json_object"}))

    known, unknown = asyncio.run(played(reports_removed_mass=True)), asyncio.run(played())
    assert (known.removed_mass, known.untrained_reason) == (0.0, None)
    assert (unknown.removed_mass, unknown.untrained_reason) == (1.0, UntrainedReason.OVERRULED)


def test_an_engine_that_falls_back_to_older_weights_is_caught() -> None:
    async def run() -> None:
        lying = Lying()
        await lying.load_weights(Weights(tensors={}, fingerprint="new"), 2)
        async with make_session([], engine=lying) as session:
            await session.chat([USER])
            lying._changes = {"versions": ((1, 2),)}
            await session.chat([USER])

    with pytest.raises(InfrastructureError, match="between version 2 of the previous turn"):
        asyncio.run(run())


def test_engine_failures_keep_their_class_or_become_infrastructure_errors() -> None:
    with pytest.raises(InfrastructureError, match="ZeroDivisionError"):
        play(make_session([ZeroDivisionError()]), [USER])
    with pytest.raises(PolicyTimeout):
        play(make_session(["f"], limits=EpisodeLimits(deadline=float("-inf"))), [USER])


def test_a_failure_that_an_agent_swallows_is_remembered() -> None:
    async def run() -> Session:
        async with make_session([InfrastructureError("gone"), "f"]) as session:
            with contextlib.suppress(InfrastructureError):
                await session.chat([USER])
            await session.chat([USER])
            return session

    session = asyncio.run(run())
    assert "gone" in str(session.failure)
    assert len(session.turns) == 1


def test_closing_frees_the_engine_and_refuses_later_turns() -> None:
    scripted = engine(["f"])

    async def run() -> None:
        async with make_session([], engine=scripted) as session:
            assert scripted.open_sessions == {"r"}
        assert scripted.open_sessions == set()
        session.close()
        await session.chat([USER])

    with pytest.raises(InfrastructureError, match="is closed"):
        asyncio.run(run())


def test_turns_are_in_the_ledger_before_they_are_answered() -> None:
    async def run() -> None:
        async with Ledger() as ledger:
            await ledger.plan("r", task_id="t", attempt=0)
            session = make_session(["f", "g"], ledger=ledger)
            with pytest.raises(DataError, match="while a rollout is running"):
                await session.chat([USER])
            await ledger.advance("r", RolloutState.LEASED)
            await ledger.advance("r", RolloutState.RUNNING)
            session = make_session(["f", "g"], ledger=ledger)
            answer = await session.chat([USER])
            assert ledger.load_turns("r") == session.turns
            await session.chat([USER, answer, USER])
            assert ledger.load_turns("r") == session.turns
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
            answering = asyncio.create_task(make_session(["f"], ledger=ledger).chat([USER]))
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
            async with make_session([], engine=scripted, ledger=ledger) as session:
                for text, move in moves:
                    answer = await session.chat(messages)
                    if move == "continue":
                        messages = [*messages, answer, {"role": "tool", "content": text}]
                    elif move == "back":
                        messages = messages[: max(1, len(messages) - 2)]
                    elif move == "edit":
                        messages = [*messages, {"role": "assistant", "content": "edited"}, USER]
            return session, scripted, ledger.load_turns("r"), ledger.verify()

    session, scripted, recorded, broken = asyncio.run(run())
    assert recorded == session.turns
    assert broken == []
    assert [turn.prompt_ids for turn in session.turns] == [request.prompt_ids for request in scripted.requests]
    for turn in session.turns:
        if turn.parent is not None:
            parent = session.turns[turn.parent]
            played = parent.prompt_ids + parent.token_ids
            assert turn.prompt_ids[: len(played)] == played
        assert (turn.branch_reason is not None) == (turn.parent is None and turn.id > 0)


def test_turns_side_by_side_share_a_token_budget_and_none_is_cut_for_tokens_that_were_not_sampled() -> None:
    async def run() -> Session:
        async with make_session(
            lambda _: "twelve chars", sampling=Sampling(max_tokens=40), limits=EpisodeLimits(max_tokens=65)
        ) as session:
            played = await asyncio.gather(*(session.play([USER]) for _ in range(6)), return_exceptions=True)
            lengths = [len(turn.token_ids) for turn in played if not isinstance(turn, BaseException)]
            # 40 are reserved for the first; the second has to wait, since of 25 left it could need 40.
            assert lengths == [13] * 5
            assert isinstance(played[-1], TokenLimit)
            assert "has sampled its 65 tokens" in str(played[-1])
            return session

    session = asyncio.run(run())
    assert isinstance(session.failure, TokenLimit)


def test_a_turn_that_fails_gives_its_tokens_back() -> None:
    async def run() -> None:
        answers = [InfrastructureError("down"), "ok"]
        async with make_session(
            answers, sampling=Sampling(max_tokens=40), limits=EpisodeLimits(max_tokens=50)
        ) as session:
            failed, played = await asyncio.gather(session.play([USER]), session.play([USER]), return_exceptions=True)
            assert isinstance(failed, InfrastructureError)
            assert not isinstance(played, BaseException)
            assert played.sampling.max_tokens == 40

    asyncio.run(run())


def test_the_ledger_shows_which_answers_were_not_received() -> None:
    async def run() -> None:
        async with Ledger() as ledger:
            await ledger.plan("r", task_id="t", attempt=0)
            await ledger.advance("r", RolloutState.LEASED)
            await ledger.advance("r", RolloutState.RUNNING)
            async with make_session(["lost", "found", "on", "late"], ledger=ledger) as session:
                lost, found = [await session.sample([USER]) for _ in range(2)]
                await session.recorded([lost.id, found.id])
                assert session.turns == ()
                # It goes on from an answer, so that has arrived.
                answer = {"role": "assistant", "content": "found"}
                onward = await session.play([USER, answer, USER])
                greedy = await session.play([USER], sampling=Sampling(temperature=0.0))
            kept = [found, onward, greedy]
            assert session.turns == tuple(kept)
            recorded = ledger.load_turns("r")
            assert [turn.untrained_reason for turn in recorded] == ["not_received", None, None, "greedy"]
            assert tuple(turn for turn in recorded if turn.is_received) == session.turns
            assert ledger.verify() == []

    asyncio.run(run())
