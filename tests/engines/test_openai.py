"""An endpoint as the policy: a real gateway on loopback answers, and a small server fails in every way that endpoints do."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sparring.chat import ByteTokenizer
from sparring.engines.openai import UNSET, OpenAIEngine, _retry_after
from sparring.engines.scripted import ScriptedEngine
from sparring.errors import (
    ContextOverflow,
    DataError,
    InfrastructureError,
    PolicyTimeout,
    ServiceError,
    SparringError,
)
from sparring.gateway import EpisodeEndpoints, ModelServer, Version, Versions
from sparring.gateway.app import create_app
from sparring.sessions import EpisodeIdentity, MessageSession
from sparring.types import AnswerFormat, MessageAnswer, MessageRequest, Sampling, StopReason, Usage
from sparring.web.listener import Listener
from tests.gateway.builders import CALL, CHAT, TOOL, USER

DONE = {
    "choices": [{"message": {"role": "assistant", "content": "done"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}


def request(**changes: Any) -> MessageRequest:
    return MessageRequest(
        **{"session_id": "s", "messages": (USER,), "tools": (), "sampling": Sampling(max_tokens=200), **changes}
    )


class Endpoint:
    """A server that answers requests in turn with what is scripted; the last answer is given from then on."""

    def __init__(self, *script: Response | Callable[[], Response]) -> None:
        self._script = script
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        app = Starlette(routes=[Route("/v1/chat/completions", self._answer, methods=["POST"])])
        self.listener = Listener(app, "127.0.0.1", 0)

    async def _answer(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.headers.append(request.headers)
        answer = self._script[min(len(self.bodies), len(self._script)) - 1]
        return answer() if not isinstance(answer, Response) else answer


def asked(
    endpoint: Endpoint,
    ask: Callable[[OpenAIEngine], Awaitable[Any]] = lambda engine: engine.answer(request()),
    **options: Any,
) -> tuple[Any, list[float]]:
    """What an engine makes of an endpoint, and the pauses that it made; a SparringError is a result too."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def run() -> Any:
        await endpoint.listener.start()
        engine = OpenAIEngine(endpoint.listener.base_url, "m", **{"sleep": sleep, **options})
        try:
            return await ask(engine)
        except SparringError as error:
            return error
        finally:
            await engine.close()
            await endpoint.listener.stop()

    return asyncio.run(run()), pauses


def error(status: int, message: str, *, headers: Any = None, **fields: Any) -> Response:
    return JSONResponse({"error": {"message": message, **fields}}, status, headers)


def streamed(*chunks: Any) -> Callable[[], Response]:
    lines = [f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in chunks]
    return lambda: StreamingResponse(iter(lines), media_type="text/event-stream")


def delta(finish: str | None = None, **delta: Any) -> Any:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


@pytest.mark.parametrize("streams", [False, True])
def test_our_own_gateway_is_an_endpoint_whose_calls_and_counts_arrive(streams: bool) -> None:
    deltas: list[Any] = []

    text = f"Größe:\n{CALL}"

    async def run() -> MessageAnswer:
        engine = ScriptedEngine([text], encode=ByteTokenizer().encode)
        served = ModelServer(versions=Versions([Version("m", engine)]), chat=CHAT, sampling=Sampling(max_tokens=200))
        async with served:
            client = OpenAIEngine(served.base_url, "m")
            answer = await client.answer(request(tools=(TOOL,)), deltas.append if streams else None)
            await client.close()
        sampled = engine.requests[0]
        assert sampled.sampling == Sampling(max_tokens=200)
        assert answer.usage == Usage(
            num_prompt_tokens=len(sampled.prompt_ids), num_sampled_tokens=len(text.encode()) + 1
        )
        return answer

    answer = asyncio.run(run())
    call = answer.message["tool_calls"][0]
    assert (answer.message["content"], answer.stop_reason) == ("Größe:", StopReason.STOP)
    assert (call["id"], call["function"]) == ("call_0_0", {"name": "get", "arguments": '{"key": "b"}'})
    assert "".join(one["content"] for one in deltas) == ("Größe:" if streams else "")


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"prompt_tokens": 10**30, "completion_tokens": 1}, None),
        ({"prompt_tokens": -5, "completion_tokens": 1}, None),
        ({"prompt_tokens": True, "completion_tokens": 1}, None),
        ({"prompt_tokens": 3}, None),
        (["many"], None),
        ({"prompt_tokens": 3.0, "completion_tokens": 1}, Usage(num_prompt_tokens=3, num_sampled_tokens=1)),
        (
            {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}},
            Usage(num_prompt_tokens=3, num_sampled_tokens=1),
        ),
    ],
)
def test_what_cannot_be_a_number_of_tokens_is_unknown(reported: Any, usage: Usage | None) -> None:
    answer, _ = asked(Endpoint(JSONResponse({**DONE, "usage": reported})), lambda engine: engine.answer(request()))
    assert answer.usage == usage


def test_sampling_tools_stops_and_seed_are_sent_and_the_key_only_as_bearer() -> None:
    endpoint = Endpoint(JSONResponse(DONE))
    sent = request(
        messages=(USER, {"role": "assistant", "content": "", "malformed_tool_calls": [], "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "get", "arguments": {"key": "b"}}}]}),
        tools=(TOOL,), sampling=Sampling(temperature=0.0, top_p=0.5, max_tokens=7), seed=5, stop_texts=("x",),
    )  # fmt: skip
    answer, _ = asked(endpoint, lambda engine: engine.answer(sent), api_key="sk-secret")
    assert answer.usage == Usage(num_prompt_tokens=3, num_sampled_tokens=1)
    call = {"id": "c", "type": "function", "function": {"name": "get", "arguments": '{"key":"b"}'}}
    assert endpoint.bodies == [
        {
            "model": "m",
            "messages": [USER, {"role": "assistant", "content": "", "tool_calls": [call]}],
            "tools": [TOOL],
            "temperature": 0.0,
            "top_p": 0.5,
            "max_tokens": 7,
            "seed": 5,
            "stop": ["x"],
        }
    ]
    assert endpoint.headers[0]["authorization"] == "Bearer sk-secret"


def test_what_is_left_to_the_endpoint_is_not_sent() -> None:
    endpoint = Endpoint(JSONResponse(DONE))
    asked(endpoint, lambda engine: engine.answer(request(sampling=UNSET)))
    assert endpoint.bodies == [{"model": "m", "messages": [USER]}]


def test_a_model_that_wants_the_newer_name_of_the_limit_gets_it_from_then_on() -> None:
    endpoint = Endpoint(
        error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."), JSONResponse(DONE)
    )

    async def twice(engine: OpenAIEngine) -> Any:
        await engine.answer(request())
        return await engine.answer(request())

    asked(endpoint, twice)
    limits = [[name for name in body if name.startswith("max")] for body in endpoint.bodies]
    assert limits == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]


def test_requests_that_were_on_their_way_when_another_learned_the_name_of_the_limit_learn_it_too() -> None:
    wrong = error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    both_came = asyncio.Event()

    async def answer(request: Request) -> Response:
        body = await request.json()
        bodies.append(body)
        if len(bodies) == 2:
            both_came.set()
        await both_came.wait()
        return wrong if "max_tokens" in body else JSONResponse(DONE)

    endpoint, bodies = Endpoint(), list[Any]()
    endpoint.listener = Listener(
        Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])]), "127.0.0.1", 0
    )

    async def at_once(engine: OpenAIEngine) -> Any:
        return await asyncio.gather(engine.answer(request()), engine.answer(request()))

    answers, _ = asked(endpoint, at_once)
    assert [one.message["content"] for one in answers] == ["done", "done"]


def test_what_passes_is_asked_again_after_the_pause_that_the_endpoint_wants_or_a_longer_one_each_time() -> None:
    endpoint = Endpoint(
        error(429, "slow down", headers={"retry-after": "7"}),
        error(503, "busy", headers={"retry-after-ms": "250"}),
        error(500, "oops"),
        error(502, "oops"),
        Response("<html>", 200),
        JSONResponse(DONE),
    )
    answer, pauses = asked(endpoint)
    assert answer.message["content"] == "done"
    assert pauses[:2] == [7.0, 0.25]
    assert 1.5 <= pauses[2] <= 2.0 < 3.0 <= pauses[3] <= 4.0
    assert len(pauses) == 5


def test_a_date_to_wait_for_is_of_the_endpoints_own_clock() -> None:
    # Whatever the time is here: 7 seconds after it answered.
    headers = {"date": "Sun, 06 Nov 1994 08:49:37 GMT", "retry-after": "Sun, 06 Nov 1994 08:49:44 GMT"}
    assert _retry_after(httpx.Response(429, headers=headers)) == 7.0


def test_an_endpoint_that_never_answers_is_infrastructure_and_not_the_policy() -> None:
    endpoint = Endpoint(error(503, "busy"))
    failure, pauses = asked(endpoint, max_retries=2)
    assert isinstance(failure, InfrastructureError)
    assert "busy" in str(failure)
    assert len(pauses) == 2
    failure, pauses = asked(Endpoint(error(503, "a turn failed", headers={"x-should-retry": "false"})))
    assert isinstance(failure, InfrastructureError)
    assert pauses == []

    async def without_a_server() -> None:
        engine = OpenAIEngine("http://127.0.0.1:1/v1", "m", max_retries=0)
        with pytest.raises(InfrastructureError, match="ConnectError"):
            await engine.answer(request())

    asyncio.run(without_a_server())


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(400, "too long", code="context_length_exceeded"), ContextOverflow),
        (error(400, "This model's maximum context length is 100 tokens."), ContextOverflow),
        (error(400, "temperature is not supported with this model"), DataError),
        (error(422, "no such role"), DataError),
        (error(400, "triggering Azure OpenAI's content management policy", code="content_filter"), InfrastructureError),
        (error(400, "Output blocked by content filtering policy"), InfrastructureError),
        (error(400, "flagged as potentially violating our usage policy", code="invalid_prompt"), InfrastructureError),
        (error(400, "Input data may be wrong", code="data_inspection_failed"), InfrastructureError),
        (error(403, "requires moderation and your input was flagged"), InfrastructureError),
        (error(403, "no access to this model"), ServiceError),
        (error(401, "Incorrect API key: sk-secret", code="invalid_api_key"), ServiceError),
        (error(404, "no such model"), ServiceError),
        (error(429, "You exceeded your quota", code="insufficient_quota"), ServiceError),
        (Response(status_code=307), ServiceError),
    ],
)
def test_refusals_have_their_own_errors_and_are_not_repeated_and_never_show_the_key(
    answer: Response, kind: type[Exception]
) -> None:
    endpoint = Endpoint(answer)
    failure, pauses = asked(endpoint, api_key="sk-secret")
    assert type(failure) is kind
    assert "sk-secret" not in str(failure)
    assert (len(endpoint.bodies), pauses) == (1, [])


def slow() -> Response:
    async def body() -> Any:
        await asyncio.sleep(5)
        yield b"{}"

    return StreamingResponse(body(), media_type="application/json")


def test_past_the_deadline_a_slow_answer_is_the_policys_and_an_overloaded_endpoint_is_not() -> None:
    soon: Callable[[], MessageRequest] = lambda: request(deadline=time.monotonic() + 0.3)  # noqa: E731
    late, _ = asked(Endpoint(slow), lambda engine: engine.answer(soon()))
    assert isinstance(late, PolicyTimeout)
    overloaded = Endpoint(error(429, "slow down", headers={"retry-after": "60"}))
    failure, _ = asked(overloaded, lambda engine: engine.answer(soon()), sleep=asyncio.sleep)
    assert isinstance(failure, InfrastructureError)

    async def two(engine: OpenAIEngine) -> Sequence[Any]:
        return await asyncio.gather(
            engine.answer(request()), engine.answer(request(deadline=time.monotonic() + 0.1)), return_exceptions=True
        )

    def late_answer() -> Response:
        time.sleep(0.3)
        return JSONResponse(DONE)

    results, _ = asked(Endpoint(late_answer), two, max_concurrency=1)
    assert [type(result) for result in results] == [MessageAnswer, InfrastructureError]


def test_a_streamed_answer_is_put_together_from_its_pieces() -> None:
    heard: list[Any] = []
    endpoint = Endpoint(
        streamed(
            delta(role="assistant", content=""),
            delta(reasoning="hm"),
            delta(content="He"),
            delta(content="llo"),
            delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "get", "arguments": '{"k'}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": 'ey": 1}'}}]),
            delta(tool_calls=[{"index": 1, "id": "c2", "function": {"name": "put", "arguments": ""}}]),
            delta("length"),
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
            "[DONE]",
        )
    )
    answer, _ = asked(endpoint, lambda engine: engine.answer(request(), heard.append))
    assert heard == [{"reasoning_content": "hm"}, {"content": "He"}, {"content": "llo"}]
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in answer.message["tool_calls"]
    ]
    assert calls == [("c1", "get", '{"key": 1}'), ("c2", "put", "")]
    assert (answer.message["content"], answer.message["reasoning_content"]) == ("Hello", "hm")
    assert (answer.stop_reason, answer.usage) == (StopReason.LENGTH, Usage(num_prompt_tokens=9, num_sampled_tokens=4))
    assert endpoint.bodies[0]["stream_options"] == {"include_usage": True}


def test_a_stream_that_breaks_is_requested_again_only_while_no_part_of_it_was_passed_on() -> None:
    whole = streamed(delta("stop", content="done"))
    answer, pauses = asked(
        Endpoint(streamed({"error": {"message": "busy"}}), streamed(delta(role="assistant")), whole),
        lambda engine: engine.answer(request(), lambda _: None),
    )
    assert (answer.message["content"], len(pauses)) == ("done", 2)
    broken, pauses = asked(
        Endpoint(streamed(delta(content="do")), whole), lambda engine: engine.answer(request(), lambda _: None)
    )
    assert isinstance(broken, InfrastructureError)
    assert pauses == []


def test_a_required_form_is_sent_as_fields_and_none_otherwise() -> None:
    endpoint = Endpoint(JSONResponse(DONE))
    forms = [
        AnswerFormat(),
        AnswerFormat(tool_choice="required", parallel_tool_calls=False),
        AnswerFormat(tool_choice="required", tool_name="get"),
        AnswerFormat(tool_choice="none", response_format={"type": "json_object"}),
    ]

    async def ask(engine: OpenAIEngine) -> None:
        for form in forms:
            await engine.answer(request(tools=(TOOL,), answer_format=form))

    asked(endpoint, ask)
    fields = ("tool_choice", "parallel_tool_calls", "response_format")
    assert [{key: body[key] for key in fields if key in body} for body in endpoint.bodies] == [
        {},
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"tool_choice": {"type": "function", "function": {"name": "get"}}},
        {"tool_choice": "none", "response_format": {"type": "json_object"}},
    ]


NAMED: Any = {"name": "n", "description": "a number", "schema": {"const": None}, "strict": False}
WITH_SCHEMA: Any = {"type": "json_schema", "json_schema": NAMED}


@pytest.mark.parametrize(
    ("path", "fields", "sent"),
    [
        ("/v1/chat/completions", {"response_format": WITH_SCHEMA}, WITH_SCHEMA),
        ("/v1/chat/completions", {"response_format": {"type": "json_object"}}, {"type": "json_object"}),
        ("/v1/chat/completions", {"response_format": {"type": "text"}}, None),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", **NAMED}}}, WITH_SCHEMA),
        ("/v1/responses", {"text": {"format": {"type": "json_object"}}}, {"type": "json_object"}),
        (
            "/v1/messages",
            {"output_config": {"format": {"type": "json_schema", "schema": {"const": None}}}},
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"const": None}, "strict": True}},
        ),
    ],
)
def test_a_form_reaches_the_endpoint_as_the_client_asked_for_it(path: str, fields: Any, sent: Any) -> None:
    endpoint = Endpoint(JSONResponse(DONE))
    conversation = {"input": "go"} if path == "/v1/responses" else {"messages": [USER]}
    limit = {"max_tokens": 5} if path == "/v1/messages" else {}

    async def ask(engine: OpenAIEngine) -> None:
        endpoints = EpisodeEndpoints("policy")
        session = MessageSession(EpisodeIdentity("e"), engine=engine, sampling=Sampling())
        transport = httpx.ASGITransport(create_app(endpoints))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.post(
                path,
                json={"model": "any", **conversation, **limit, **fields},
                headers={"x-api-key": endpoints.register(session)},
            )
        assert answer.status_code == 200, answer.text

    asked(endpoint, ask)
    assert endpoint.bodies[0].get("response_format") == sent


def test_that_no_tool_may_be_called_is_not_sent_without_tools() -> None:
    endpoint = Endpoint(JSONResponse(DONE))

    async def twice(engine: OpenAIEngine) -> Any:
        for tools in ((), (TOOL,)):
            await engine.answer(request(tools=tools, answer_format=AnswerFormat(tool_choice="none")))

    asked(endpoint, twice)
    assert [body.get("tool_choice") for body in endpoint.bodies] == [None, "none"]
