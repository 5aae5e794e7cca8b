"""An answer is trained once and with the client that has it, wherever a request is interrupted."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from sparring.chat import ByteTokenizer
from sparring.engines.scripted import ScriptedEngine
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.errors import PolicyTimeout, ServiceError
from sparring.gateway import EpisodeEndpoints
from sparring.gateway.app import create_app
from sparring.gateway.delivery import Delivery
from sparring.gateway.dialects import ChatCompletions
from sparring.gateway.endpoints import NUM_EPISODES
from sparring.ledger import Ledger
from sparring.sessions import AnySession, EpisodeIdentity, MessageSession, Session
from sparring.types import Sampling
from tests.gateway.builders import CHAT, USER
from tests.gateway.interruptions import Exchange, StepLoop, asked, running_ledger


def open_session(ledger: Ledger, *, in_messages: bool = False, **options: Any) -> tuple[AnySession, Any]:
    """A session whose policy never repeats an answer, and its engine."""
    numbers = itertools.count()

    def script(*_: object) -> str:
        return f"a{next(numbers)}"

    if in_messages:
        engine = ScriptedMessages(script, name="policy")
        return MessageSession(EpisodeIdentity("r"), engine=engine, sampling=Sampling(), ledger=ledger), engine
    engine = ScriptedEngine(script, encode=ByteTokenizer().encode, **options)
    return Session(
        EpisodeIdentity("r"), engine=engine, chat=CHAT, sampling=Sampling(max_tokens=100), ledger=ledger
    ), engine


async def interrupted(
    dialect: str, how: str, step: int, *, stream: bool, flagged: bool, at_once: bool, in_messages: bool
) -> tuple[bool, list[str]]:
    """A conversation of two turns. The first request is interrupted at a step, and sent again unless its answer was all
    there by then. Gives whether it was interrupted, and what is wrong."""
    loop: Any = asyncio.get_running_loop()
    ledger = running_ledger("r")
    chat_session, _ = open_session(ledger, in_messages=in_messages)
    endpoints = EpisodeEndpoints("policy")
    app, key = create_app(endpoints), endpoints.register(chat_session)
    exchanges: list[Exchange] = []

    def ask(messages: list[Any], *, is_retry: bool = False) -> Exchange:
        exchanges.append(Exchange(app, dialect, asked(dialect, messages, stream=stream), key, is_retry=is_retry))
        return exchanges[-1]

    def interrupt() -> None:
        if not first.is_whole:
            (first.hang_up if how == "hang up" else first.cancel)()
            if at_once:
                ask([USER], is_retry=flagged)

    async with chat_session:
        first = ask([USER])
        loop.num_left, loop.action = step, interrupt
        await asyncio.wait([first.task])
        is_interrupted, loop.num_left = loop.num_left is None, None
        if len(exchanges) == 1 and not first.is_whole:
            ask([USER], is_retry=flagged)
        await asyncio.wait([exchanges[-1].task])
        answer = exchanges[-1].text
        onward = ask([USER, {"role": "assistant", "content": answer}, USER])
        await asyncio.wait([onward.task])
    found = []
    for exchange in exchanges[1:]:
        if not exchange.is_whole or exchange.task.exception() is not None:
            found.append(f"no answer: {exchange.status} {exchange.content!r}")
    if [turn.message["content"] for turn in chat_session.turns] != [answer, onward.text]:
        found.append(f"the client has {[answer, onward.text]}, the session {chat_session.turns}")
    if [turn.parent for turn in chat_session.turns] != [None, chat_session.turns[0].id]:
        found.append("the second turn does not extend the first")
    if tuple(turn.id for turn in ledger.load_turns("r") if turn.is_received) != tuple(
        turn.id for turn in chat_session.turns
    ):
        found.append("session and ledger disagree")
    if endpoints._in_flight._num or chat_session._budget._num_running or chat_session._budget._num_reserved:  # pyright: ignore[reportPrivateUsage]
        found.append("a place is not free")
    found += ledger.verify()
    ledger.close()
    return is_interrupted, found


@pytest.mark.parametrize("in_messages", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_one_turn_is_trained_wherever_the_first_request_is_interrupted(
    dialect: str, stream: bool, in_messages: bool
) -> None:
    for how, flagged, at_once in itertools.product(["hang up", "cancel"], [False, True], [False, True]):
        for step in itertools.count():
            with asyncio.Runner(loop_factory=StepLoop) as runner:
                is_interrupted, found = runner.run(
                    interrupted(
                        dialect, how, step, stream=stream, flagged=flagged, at_once=at_once, in_messages=in_messages
                    )
                )
            assert found == [], f"{how}, {flagged=}, {at_once=}, step {step}"
            if not is_interrupted:
                break
        assert step >= 12


def with_app(
    play: Callable[[Any, Callable[..., Exchange], Ledger], Any], **options: Any
) -> tuple[AnySession, dict[int, bool]]:
    """The session after a play that gets it, a way to ask it and the ledger; and whether each turn is received there."""

    async def run() -> tuple[AnySession, dict[int, bool]]:
        ledger = running_ledger("r")
        chat_session, _ = open_session(ledger, **options)
        endpoints = EpisodeEndpoints("policy")
        app, key = create_app(endpoints), endpoints.register(chat_session)

        def ask(*, is_retry: bool = False, **fields: Any) -> Exchange:
            body = {**asked("chat", [USER], stream=False), **fields}
            return Exchange(app, "chat", body, key, is_retry=is_retry)

        async with chat_session:
            await play(chat_session, ask, ledger)
        recorded = {turn.id: turn.is_received for turn in ledger.load_turns("r")}
        assert [id for id, is_received in recorded.items() if is_received] == [turn.id for turn in chat_session.turns]
        assert ledger.verify() == []
        ledger.close()
        return chat_session, recorded

    return asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("flagged", [False, True])
def test_a_retry_that_comes_while_the_lost_answer_is_recorded_gets_that_answer(stream: bool, flagged: bool) -> None:
    async def play(chat_session: Any, ask: Callable[..., Exchange], ledger: Ledger) -> None:
        on_disk = asyncio.Event()

        async def committed(future: Any) -> None:
            await on_disk.wait()
            future.result()

        ledger.committed = committed
        first = ask(stream=stream)
        while not chat_session.sampled_turns:  # noqa: ASYNC110
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0.01)
        second = ask(stream=stream, is_retry=flagged)
        await asyncio.sleep(0.01)
        on_disk.set()
        await asyncio.wait([first.task, second.task])
        assert (second.text, len(chat_session._engine.requests)) == ("a0", 1)

    assert with_app(play)[1] == {0: True}


def test_of_two_clients_that_wait_for_one_answer_one_may_hang_up() -> None:
    async def play(chat_session: Any, ask: Callable[..., Exchange], _: Ledger) -> None:
        first, second = ask(stream=True), ask(stream=True, is_retry=True)
        while not first.content:  # noqa: ASYNC110
            await asyncio.sleep(0)
        first.hang_up()
        await asyncio.wait([first.task, second.task])
        assert (first.is_whole, second.is_whole, second.text) == (False, True, "a0")

    assert with_app(play)[1] == {0: True}


def test_answers_next_to_one_that_failed_are_not_trained_and_those_of_the_retry_are() -> None:
    async def play(chat_session: Any, ask: Callable[..., Exchange], _: Ledger) -> None:
        sample, numbers = chat_session._engine.sample, itertools.count()

        async def failing(*asked: Any) -> Any:
            if next(numbers) == 1:
                for _ in range(10):
                    await asyncio.sleep(0)
                raise PolicyTimeout("late")
            return await sample(*asked)

        chat_session._engine.sample = failing
        first = ask(n=2)
        await asyncio.wait([first.task])
        assert first.status == 504
        second = ask(n=2, is_retry=True)
        await asyncio.wait([second.task])
        assert [choice["message"]["content"] for choice in json.loads(second.content)["choices"]] == ["a1", "a2"]

    assert with_app(play)[1] == {0: False, 1: True, 2: True}


def test_an_answer_that_cannot_be_written_as_json_is_not_received(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(chat_session: Any, ask: Callable[..., Exchange], _: Ledger) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ChatCompletions, "whole", lambda *_: {"choices": object()})
            first = ask()
            await asyncio.wait([first.task])
        assert first.status == 500
        second = ask()
        await asyncio.wait([second.task])
        assert second.text == "a0"

    assert with_app(play)[1] == {0: True}


def test_a_session_that_closes_while_a_turn_is_recorded_does_not_count_it() -> None:
    async def play(chat_session: Any, ask: Callable[..., Exchange], _: Ledger) -> None:
        first = ask()
        while not chat_session.sampled_turns:  # noqa: ASYNC110
            await asyncio.sleep(0)
        chat_session.close()
        await asyncio.wait([first.task])

    assert with_app(play)[1] == {0: False}


def test_a_session_that_closes_while_a_turn_is_sampled_does_not_take_it() -> None:
    async def play(chat_session: Any, ask: Callable[..., Exchange], _: Ledger) -> None:
        first = ask()
        while not chat_session._engine.requests:  # noqa: ASYNC110
            await asyncio.sleep(0)
        chat_session.close()
        await asyncio.wait([first.task])
        assert first.status == 503

    assert with_app(play)[1] == {}


def test_what_arrives_after_the_report_does_not_count() -> None:
    async def run() -> None:
        ledger = running_ledger("r")
        chat_session, _ = open_session(ledger)
        endpoints = EpisodeEndpoints("policy")
        app, key = create_app(endpoints), endpoints.register(chat_session)
        async with chat_session:
            first = Exchange(app, "chat", asked("chat", [USER], stream=False), key)
            while not chat_session.sampled_turns:  # pyright: ignore  # noqa: ASYNC110
                await asyncio.sleep(0)
            endpoints.report(key).update_reward(1.0)
            await asyncio.wait([first.task])
        assert chat_session.turns == ()
        ledger.close()

    asyncio.run(run())


def test_a_turn_that_the_ledger_cannot_write_is_whole_with_an_error_and_does_not_count() -> None:
    async def play(chat_session: Any, ask: Callable[..., Exchange], ledger: Ledger) -> None:
        async def full(future: Any) -> None:
            await asyncio.sleep(0)
            raise ServiceError("the disk is full")

        ledger.committed = full
        first = ask()
        await asyncio.wait([first.task])
        assert (first.status, chat_session.turns) == (502, ())

    assert with_app(play)[1] == {0: False}


def test_a_caller_in_this_process_that_is_cancelled_has_received_nothing() -> None:
    async def play(chat_session: Any, _ask: object, _ledger: Ledger) -> None:
        asking = asyncio.ensure_future(chat_session.chat([USER]))
        while not chat_session.sampled_turns:  # noqa: ASYNC110
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert chat_session.turns == ()
        assert (await chat_session.chat([USER]))["content"] == "a1"

    assert with_app(play)[1] == {0: False, 1: True}


def test_of_first_requests_that_are_sampled_side_by_side_all_but_one_name_a_reason() -> None:
    async def play(chat_session: Any, ask: Callable[..., Exchange], _: Ledger) -> None:
        first = ask(n=3)
        await asyncio.wait([first.task])
        assert [turn.branch_reason for turn in chat_session.turns] == [None, "repeated", "repeated"]

    for in_messages in (False, True):
        assert with_app(play, in_messages=in_messages)[1] == {0: True, 1: True, 2: True}


def test_a_turn_of_another_policy_of_the_episode_counts_once_it_is_received_too() -> None:
    async def run() -> None:
        ledger, main = running_ledger("r"), EpisodeIdentity("r")

        def opened(identity: EpisodeIdentity, **options: Any) -> Session:
            engine = ScriptedEngine(["one", "two"], encode=ByteTokenizer().encode)
            return Session(identity, engine=engine, chat=CHAT, sampling=Sampling(), ledger=ledger, **options)

        other = opened(main.for_policy("other", 0, learns=True))
        async with opened(main, others={"other": other}) as chat_session:
            heard = await chat_session.play([USER])
            await other.sample([USER])
            answered = await other.play([USER])
            assert chat_session.episode_turns == (heard, answered)
        other.set_received([1])  # too late
        assert chat_session.episode_turns == (heard, answered)
        assert [turn.is_received for turn in ledger.load_turns("r")] == [True, False, True]
        assert ledger.verify() == []
        ledger.close()

    asyncio.run(run())


class Large:
    """Stands for the messages of a request."""


@pytest.mark.parametrize("how", ["fails", "is cancelled", "is answered"])
def test_a_delivery_does_not_keep_its_request(how: str) -> None:
    async def run() -> None:
        seen: list[weakref.ref[Large]] = []
        is_sampling = asyncio.Event()

        async def sample(_on_token: Any) -> Any:
            large = Large()
            seen.append(weakref.ref(large))
            is_sampling.set()
            if how == "fails":
                raise PolicyTimeout("too late")
            if how == "is cancelled":
                await asyncio.sleep(60)
            return []

        chat_session, _ = open_session(running_ledger("r"))
        delivery = Delivery(chat_session, sample, id="a", on_arrived=lambda _: None)
        try:
            async with delivery:
                await is_sampling.wait()
                if how != "is cancelled":
                    await delivery.turns()
        except PolicyTimeout as error:
            error.__traceback__ = None  # as the app does
        freed = weakref.ref(sample)
        del sample
        assert delivery.is_alive == (how == "is answered")
        assert seen[0]() is None
        del delivery
        await asyncio.sleep(0)
        assert freed() is None

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_a_closed_episode_is_freed_without_a_collection() -> None:
    async def run() -> None:
        endpoints = EpisodeEndpoints("policy")
        ledger = running_ledger("r")
        chat_session, _ = open_session(ledger)
        app, key = create_app(endpoints), endpoints.register(chat_session)
        async with chat_session:
            exchange = Exchange(app, "chat", asked("chat", [USER], stream=False), key, is_retry=False)
            await asyncio.wait([exchange.task])
            assert exchange.is_whole
        freed = weakref.ref(chat_session)
        del chat_session, exchange
        for _ in range(NUM_EPISODES):
            endpoints.register(open_session(ledger)[0])
        await asyncio.sleep(0)
        assert freed() is None

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
