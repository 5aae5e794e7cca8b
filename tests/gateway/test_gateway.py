"""The stock OpenAI client plays through the gateway, and every mistake gets an error object."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import openai
import pytest

from sparring.chat import ByteTokenizer
from sparring.engines.scripted import ScriptedEngine
from sparring.errors import InfrastructureError, PolicyTimeout, ServiceError
from sparring.gateway import EpisodeEndpoints, Gateway, ModelServer, Version, Versions
from sparring.gateway.app import create_app
from sparring.gateway.endpoints import NUM_EPISODES
from sparring.gateway.streaming import VisibleText
from sparring.sessions import EpisodeIdentity, Session
from sparring.types import Sampling
from sparring.web.gate import Gate
from sparring.web.keys import Keys, single_key
from tests.gateway.builders import CALL, CHAT, TOOL, USER, breaking_off_session, raw, session, through_gateway


def test_a_tool_round_trip_is_one_line_of_turns() -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        first = await client.chat.completions.create(model="any", messages=[USER], tools=[TOOL])
        choice = first.choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert choice.message.tool_calls is not None
        assert choice.message.tool_calls[0].id == "call_0_0"
        result: Any = {"role": "tool", "tool_call_id": "call_0_0", "content": "f"}
        echoed: Any = choice.message.model_dump()
        second = await client.chat.completions.create(model="any", messages=[USER, echoed, result], tools=[TOOL])
        assert (second.choices[0].finish_reason, second.choices[0].message.content) == ("stop", "done")
        assert second.usage is not None
        turn = chat_session.turns[1]
        assert (second.usage.prompt_tokens, second.usage.completion_tokens) == (
            len(turn.prompt_ids),
            len(turn.token_ids),
        )

    chat_session = session([CALL, "done"])
    through_gateway(chat_session, play)
    assert [turn.parent for turn in chat_session.turns] == [None, 0]


@pytest.mark.parametrize("depth", [150, 199, 300, 700, 3000])
def test_arguments_however_deep_break_nothing(depth: int) -> None:
    """Up to 200 levels are read; deeper ones stay text."""
    deep = "[" * depth + "]" * depth
    sampled = f'<tool_call>{{"name": "f", "arguments": {{"a": {deep}}}}}</tool_call>'
    engine = ScriptedEngine([sampled, "done", "done"], encode=ByteTokenizer().encode)
    chat_session = Session(EpisodeIdentity("e"), engine=engine, chat=CHAT, sampling=Sampling(max_tokens=10_000))

    async def play(client: openai.AsyncOpenAI) -> None:
        async def asked(*more: Any) -> Any:
            return (await client.chat.completions.create(model="any", messages=[USER, *more])).choices[0].message

        answer = await asked()
        assert bool(answer.tool_calls) == (depth < 199)
        assert (await asked(answer.model_dump(exclude_none=True), USER)).content == "done"
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": deep}}
        assert (await asked({"role": "assistant", "tool_calls": [call]}, USER)).content == "done"

    through_gateway(chat_session, play)
    assert [turn.parent for turn in chat_session.turns] == [None, 0, None]


def test_streamed_deltas_add_up_to_the_recorded_message() -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(
            model="any", messages=[USER], tools=[TOOL], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert deltas[0].role == "assistant"
        assert "".join(delta.content or "" for delta in deltas) == "Größe <5:"
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        assert [(call.index, call.function and call.function.arguments) for call in calls] == [(0, '{"key": "b"}')]
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == len(chat_session.turns[0].token_ids)

    chat_session = session([f"Größe <5:\n{CALL}"])
    through_gateway(chat_session, play)


def test_a_stream_shows_tokens_while_later_ones_are_not_sampled_yet() -> None:
    async def run() -> None:
        seen, go_on = asyncio.Event(), asyncio.Event()
        steps = iter(range(100))

        async def sleep(_seconds: float) -> None:
            # The first call is before the answer; after "ab" the policy waits until the client has seen some.
            if next(steps) == 2:
                await go_on.wait()

        async with Gateway() as gateway, session(["abcd"], sleep=sleep) as chat_session:
            entry = gateway.register(chat_session)
            async with openai.AsyncOpenAI(base_url=entry.base_url, api_key=entry.api_key, timeout=10) as client:
                stream = await client.chat.completions.create(model="any", messages=[USER], stream=True)
                text = ""
                async for chunk in stream:
                    text += chunk.choices[0].delta.content or ""
                    if text == "ab":
                        assert chat_session.turns == ()
                        seen.set()
                        go_on.set()
                assert text == "abcd"
                assert seen.is_set()

    asyncio.run(run())


def test_limits_of_the_request_are_honored_and_reported() -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(
            model="any", messages=[USER], max_completion_tokens=3, temperature=0.5, top_p=0.9
        )
        assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("length", "lon")

    chat_session = session(["long answer"])
    through_gateway(chat_session, play)
    assert chat_session.turns[0].sampling == Sampling(temperature=0.5, top_p=0.9, max_tokens=3)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"stop": ["x", ""]}, "stop.1"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0.type",
        ),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "put"}}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, "tool_choice.type"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        # What the dialect takes, a scripted engine cannot follow.
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [TOOL], "tool_choice": "none"}, "tool_choice"),
        ({"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"seed": 1}, "seed"),
        ({"temperature": 3.0}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"beam_width": 4}}, "beam_width"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages.0.content"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"required": 5}}}]},
            "tools.0.function.parameters",
        ),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
    ],
)
def test_what_cannot_be_honored_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.chat.completions.create(**{"model": "any", "messages": [USER], **fields})
        assert refusal.value.param == param
        assert refusal.value.type == "invalid_request_error"

    chat_session = session(["never"])
    through_gateway(chat_session, play)
    assert chat_session.turns == ()


def test_fields_without_effect_are_accepted() -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        await client.chat.completions.create(
            model="any",
            messages=[USER],
            n=1,
            user="me",
            metadata={"a": "b"},
            store=False,
            tool_choice="auto",
            stop=None,
            presence_penalty=0.0,
            parallel_tool_calls=True,
            response_format={"type": "text"},
        )

    through_gateway(session(["fine"]), play)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status"),
    [(PolicyTimeout("late"), 504), (InfrastructureError("gone"), 503), (ZeroDivisionError("oops"), 503)],
)
def test_failures_of_a_turn_have_a_status_and_are_not_retried(failure: Exception, status: int, stream: bool) -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.APIStatusError) as refused:
            await client.chat.completions.create(model="any", messages=[USER], stream=stream)
        assert refused.value.status_code == status
        assert "Traceback" not in refused.value.response.text

    chat_session = session([failure])
    through_gateway(chat_session, play)
    assert len(chat_session._engine.requests) == 1  # pyright: ignore
    assert chat_session.failure is not None


def test_a_failure_mid_stream_is_an_event_of_the_stream() -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(model="any", messages=[USER], stream=True)
        with pytest.raises(openai.APIError, match="took too long"):
            async for _ in stream:
                pass

    through_gateway(breaking_off_session(), play)


def test_a_key_opens_its_own_episode_and_only_while_it_runs() -> None:
    async def run() -> None:
        async with Gateway() as gateway:
            async with session(["a"]) as left, session(["b"]) as right:
                entries = [gateway.register(left), gateway.register(right)]
                clients = [openai.AsyncOpenAI(base_url=entry.base_url, api_key=entry.api_key) for entry in entries]
                answers = [await client.chat.completions.create(model="m", messages=[USER]) for client in clients]
                assert [answer.choices[0].message.content for answer in answers] == ["a", "b"]
                assert len(left.turns) == len(right.turns) == 1
                clients.append(openai.AsyncOpenAI(base_url=gateway.base_url, api_key="sk-guess"))
                with pytest.raises(openai.AuthenticationError, match="does not belong to a running episode"):
                    await clients[-1].models.list()
                assert entries[0].api_key not in str(vars(gateway._endpoints))
            with pytest.raises(openai.AuthenticationError):
                await clients[0].chat.completions.create(model="m", messages=[USER])
            for client in clients:
                await client.close()

    asyncio.run(run())


def test_episodes_that_have_ended_are_removed_from_time_to_time() -> None:
    endpoints = EpisodeEndpoints("policy")
    running = session(["a"])
    key = endpoints.register(running)
    for _ in range(3 * NUM_EPISODES):
        ended = session(["b"])
        endpoints.register(ended)
        ended.close()
    assert len(endpoints._episodes) <= NUM_EPISODES
    endpoints.check(key)


def test_bodies_and_routes_that_make_no_sense_get_error_objects() -> None:
    endpoints = EpisodeEndpoints("policy")
    chat_session = session(["a"])
    headers = {"authorization": f"Bearer {endpoints.register(chat_session)}"}
    app = create_app(endpoints, max_body_bytes=100)
    path = "/v1/chat/completions"
    assert raw(app, "GET", "/health").json() == {"status": "ok"}
    for response, status, code in [
        (raw(app, "POST", path, content=b"{", headers=headers), 400, "invalid_json"),
        (raw(app, "POST", path, content=b"[" * 90, headers=headers), 400, "invalid_json"),
        (raw(app, "POST", path, content=b"[1]", headers=headers), 400, None),
        (raw(app, "POST", path, content=b'{"logit_bias":"\\ud800"}', headers=headers), 400, "invalid_json"),
        (raw(app, "POST", path, content=b" " * 101, headers=headers), 413, "body_too_large"),
        (raw(app, "POST", path, content=b"{}"), 401, "invalid_api_key"),
        (raw(app, "GET", "/v1/embeddings", headers=headers), 404, "unknown_route"),
        (raw(app, "GET", path, headers=headers), 405, "unknown_route"),
    ]:
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_turns_name_the_client_that_asked_and_many_names_become_one() -> None:
    endpoints = EpisodeEndpoints("policy")
    chat_session = session(lambda _: "a")
    app, key = create_app(endpoints), endpoints.register(chat_session)
    agents = ["AsyncOpenAI/Python 2.1", "python-httpx/0.28", "<script>", *(f"agent-{n}/1" for n in range(20))]
    for agent in agents:
        headers = {"authorization": f"Bearer {key}", "user-agent": agent}
        assert raw(app, "POST", "/v1/chat/completions", json={"model": "m", "messages": [USER]}, headers=headers)
    names = [turn.client for turn in chat_session.turns]
    assert names[:4] == ["asyncopenai-python", "python-httpx", "unnamed", "agent-0"]
    assert names[-1] == "other"
    assert len(set(names)) == 17


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_the_engine(stream: bool) -> None:
    async def run() -> None:
        sampling, freed = asyncio.Event(), asyncio.Event()

        steps = iter(range(100))

        async def sleep(_seconds: float) -> None:
            # A stream begins with its first token; the policy then hangs.
            if stream and next(steps) == 0:
                return
            sampling.set()
            try:
                await asyncio.Event().wait()
            finally:
                freed.set()

        async with Gateway() as gateway, session(["a"], sleep=sleep) as chat_session:
            entry = gateway.register(chat_session)
            async with openai.AsyncOpenAI(base_url=entry.base_url, api_key=entry.api_key, max_retries=0) as client:
                asking = asyncio.create_task(client.chat.completions.create(model="m", messages=[USER], stream=stream))
                await sampling.wait()
                if stream:
                    await (await asking).close()  # pyright: ignore
                asking.cancel()
                await asyncio.wait_for(freed.wait(), timeout=5)

    asyncio.run(run())


def test_a_served_model_answers_every_request_afresh() -> None:
    async def run() -> None:
        engine = ScriptedEngine(lambda request: f"{request.seed}", encode=ByteTokenizer().encode)
        server = ModelServer(versions=Versions([Version("tuned", engine)]), chat=CHAT, sampling=Sampling())
        async with server, openai.AsyncOpenAI(base_url=server.base_url, api_key="any") as client:
            assert [model.id async for model in client.models.list()] == ["tuned"]
            ask = client.chat.completions.create
            answers = [await ask(model="tuned", messages=[USER], seed=seed) for seed in (5, 5, 6)]
            texts = [answer.choices[0].message.content for answer in answers]
            assert texts[0] == texts[1] != texts[2]
            stream = await ask(model="tuned", messages=[USER], stream=True, seed=5)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == texts[0]
            assert engine.open_sessions == set()
            with pytest.raises(openai.NotFoundError, match="send model='tuned'"):
                await ask(model="other", messages=[USER])

    asyncio.run(run())


def test_a_served_model_may_ask_for_a_key() -> None:
    async def run() -> None:
        engine = ScriptedEngine(["a"], encode=ByteTokenizer().encode)
        gate = Gate("serve", Keys([single_key("secret", "complete")]))
        server = ModelServer(versions=Versions([Version("m", engine)]), chat=CHAT, sampling=Sampling(), gate=gate)
        async with server, openai.AsyncOpenAI(base_url=server.base_url, api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model="m", messages=[USER])
            right = client.with_options(api_key="secret")
            assert (await right.chat.completions.create(model="m", messages=[USER])).choices[0].message.content == "a"

    asyncio.run(run())


def test_no_piece_of_an_answer_waits_for_the_acknowledgement_of_the_one_before() -> None:
    # Head and body are two pieces. Without TCP_NODELAY the second one waits for 40 ms where a client keeps its connection.
    async def run() -> list[int]:
        async with Gateway() as gateway, session(["a"]) as chat_session:
            entry = gateway.register(chat_session)
            async with openai.AsyncOpenAI(base_url=entry.base_url, api_key=entry.api_key) as client:
                await client.models.list()
                server = gateway._listener._server  # pyright: ignore[reportPrivateUsage]
                assert server is not None
                held = [one.transport.get_extra_info("socket") for one in server.server_state.connections]
                return [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in held]

    assert asyncio.run(run()) == [1]


def test_a_taken_port_is_a_service_error() -> None:
    async def run() -> None:
        async with Gateway() as gateway:
            port = int(gateway.base_url.split(":")[2].split("/")[0])
            with pytest.raises(ServiceError, match="Choose another port"):
                await Gateway(port=port).start()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("plain text \n", "plain text"),
        (f"  look: {CALL} then", "look:  then"),
        ("a < b and <tag> c", "a < b and <tag> c"),
        ('broken <tool_call>{"name"', 'broken <tool_call>{"name"'),
        ("<think>hm</think>so", "so"),
        ("π≈3 🙂", "π≈3 🙂"),
    ],
)
def test_visible_text_adds_up_whatever_the_pieces(text: str, content: str) -> None:
    ids = ByteTokenizer().encode(text)
    message = CHAT.parse(ids, [])
    visible = VisibleText(lambda part: CHAT.parse(part, []), CHAT.decode)
    deltas = [visible.push([token_id]) for token_id in ids]
    assert "<tool_call>" not in "".join(deltas)
    assert "".join(deltas) + visible.finish(message) == message["content"] == content
    json.dumps(deltas).encode()
