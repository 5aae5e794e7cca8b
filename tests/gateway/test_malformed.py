"""Whatever is wrong with a request is answered with 4xx and a pointer to it, and a broken one harms no other."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sparring.gateway import EpisodeEndpoints, Gateway
from sparring.gateway.app import create_app
from tests.gateway.builders import TOOL, USER, post_body, raw, session

JOB = "arn:aws:sagemaker:us-east-1:000000000000:job/AgentRFT/test"
MISSING = object()
"""As a value: the field is left out."""


def changed(body: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**body, **fields}.items() if value is not MISSING}


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def called(call: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]}


def tool(function: Any) -> dict[str, Any]:
    return {"tools": [TOOL, {"type": "function", "function": function}]}


CHAT_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"model": MISSING}, "model"),
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"messages": MISSING}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "find b"}, "messages"),
    ({"messages": {"0": USER}}, "messages"),
    ({"messages": ["find b"]}, "messages.0"),
    ({"messages": [USER, [USER]]}, "messages.1"),
    ({"messages": [{"content": "x"}]}, "messages.0.role"),
    ({"messages": [USER, {"role": None, "content": "x"}]}, "messages.1.role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "User", "content": "x"}]}, "messages.0.role"),
    ({"messages": [USER, {"role": "tool", "tool_call_id": 5, "content": "x"}]}, "messages.1.tool_call_id"),
    ({"messages": [{"role": "user", "content": "x", "name": ["me"]}]}, "messages.0.name"),
    ({"messages": [{"role": "assistant", "reasoning_content": {}}]}, "messages.0.reasoning_content"),
    (user(5), "messages.0.content"),
    (user({}), "messages.0.content"),
    (user({"type": "text", "text": "x"}), "messages.0.content"),
    (user(["x"]), "messages.0.content.0"),
    (user([{"text": "x"}]), "messages.0.content.0.type"),
    (user([{"type": "text"}]), "messages.0.content.0.text"),
    (user([{"type": "text", "text": None}]), "messages.0.content.0.text"),
    (
        user([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "x"}}]),
        "messages.0.content.1.type",
    ),
    (user([{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]), "messages.0.content.0.type"),
    ({"messages": [USER, {"role": "assistant", "tool_calls": {}}]}, "messages.1.tool_calls"),
    (called("get"), "messages.1.tool_calls.0"),
    (called({}), "messages.1.tool_calls.0.function"),
    (called({"function": {}}), "messages.1.tool_calls.0.function.name"),
    (called({"function": {"name": None}}), "messages.1.tool_calls.0.function.name"),
    (called({"function": {"name": "get", "arguments": {}}}), "messages.1.tool_calls.0.function.arguments"),
    (called({"id": 5, "function": {"name": "get"}}), "messages.1.tool_calls.0.id"),
    (called({"type": "custom", "function": {"name": "get"}}), "messages.1.tool_calls.0.type"),
    ({"tools": {}}, "tools"),
    ({"tools": ["get"]}, "tools.0"),
    ({"tools": [{"function": {"name": "get"}}]}, "tools.0.type"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"tools": [{"type": "function", "name": "get", "parameters": {}}]}, "tools.0.function"),
    (tool({}), "tools.1.function.name"),
    (tool({"name": "get", "description": 5}), "tools.1.function.description"),
    (tool({"name": "get", "parameters": "{}"}), "tools.1.function.parameters"),
    (tool({"name": "get", "parameters": {"properties": []}}), "tools.1.function.parameters"),
    (tool({"name": "get", "parameters": {"properties": {"key": "string"}}}), "tools.1.function.parameters"),
    (tool({"name": "get", "parameters": {"required": True}}), "tools.1.function.parameters"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": True}, "stream_options"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2.5}, "max_tokens"),
    ({"max_tokens": "64"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 2**80}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_p": [0.9]}, "top_p"),
    ({"top_k": 5}, "top_k"),
    ({"seed": 1}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"seed": 2**70}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 65}, "n"),
    ({"n": True}, "n"),
    ({"stop": 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["x", ""]}, "stop.1"),
    ({"stop": ["x", None]}, "stop.1"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": ["x" * 201]}, "stop.0"),
    ({"logprobs": 5}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"top_logprobs": False}, "top_logprobs"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"presence_penalty": -0.5}, "presence_penalty"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"functions": [{"name": "get"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"beam_width": 4}, "beam_width"),
    ({"": 4}, ""),
]

NAMED = {"JobArn": JOB, "TrajectoryId": "KEY"}
"""KEY stands for the episode's key."""

REPORTS: list[tuple[str, dict[str, Any], str]] = [
    ("/complete-rollout", {"TrajectoryId": "KEY"}, "JobArn"),
    ("/update-reward", {"TrajectoryId": "KEY", "Rewards": [1.0]}, "JobArn"),
    ("/update-reward", {**NAMED, "JobArn": "", "Rewards": [1.0]}, "JobArn"),
    ("/complete-rollout", {**NAMED, "JobArn": 5}, "JobArn"),
    ("/complete-rollout", {**NAMED, "JobArn": "x" * 257}, "JobArn"),
    ("/complete-rollout", {"JobArn": JOB}, "TrajectoryId"),
    ("/complete-rollout", {**NAMED, "TrajectoryId": None}, "TrajectoryId"),
    ("/complete-rollout", {**NAMED, "TrajectoryId": ""}, "TrajectoryId"),
    ("/complete-rollout", {**NAMED, "TrajectoryId": "x" * 257}, "TrajectoryId"),
    ("/complete-rollout", {**NAMED, "Status": "done"}, "Status"),
    ("/complete-rollout", {**NAMED, "Status": None}, "Status"),
    ("/complete-rollout", {**NAMED, "Error": 5}, "Error"),
    ("/complete-rollout", {**NAMED, "Error": "x" * 10_001}, "Error"),
    ("/complete-rollout", {**NAMED, "ClientToken": ""}, "ClientToken"),
    ("/complete-rollout", {**NAMED, "ClientToken": 5}, "ClientToken"),
    ("/complete-rollout", {**NAMED, "status": "ready"}, "status"),
    ("/complete-rollout", {**NAMED, "Verdict": "good"}, "Verdict"),
    ("/update-reward", NAMED, "Rewards"),
    ("/update-reward", {**NAMED, "Rewards": None}, "Rewards"),
    ("/update-reward", {**NAMED, "Rewards": 1.0}, "Rewards"),
    ("/update-reward", {**NAMED, "Rewards": []}, "Rewards"),
    ("/update-reward", {**NAMED, "Rewards": ["1.0"]}, "Rewards.0"),
    ("/update-reward", {**NAMED, "Rewards": [1.0, True]}, "Rewards.1"),
    ("/update-reward", {**NAMED, "Rewards": [1.0, None]}, "Rewards.1"),
    ("/update-reward", {**NAMED, "Rewards": [[1.0]]}, "Rewards.0"),
    ("/update-reward", {**NAMED, "Rewards": [1.0, 2.0]}, "Rewards"),
    ("/update-reward", {**NAMED, "Rewards": [1.0], "Metrics": []}, "Metrics"),
    ("/update-reward", {**NAMED, "Rewards": [1.0], "Metrics": {"a": "crane"}}, "Metrics.a"),
    ("/update-reward", {**NAMED, "Rewards": [1.0], "Metrics": {"": 1.0}}, "Metrics."),
    ("/update-reward", {**NAMED, "Rewards": [1.0], "Components": {"a": None}}, "Components.a"),
    ("/update-reward", {**NAMED, "Rewards": [1.0], "Components": {"a": True}}, "Components.a"),
    ("/v1/episode/complete", {}, "status"),
    ("/v1/episode/complete", {"status": "done"}, "status"),
    ("/v1/episode/complete", {"status": "ready", "error": None}, "error"),
    ("/v1/episode/complete", {"status": "ready", "client_token": ""}, "client_token"),
    ("/v1/episode/complete", {"status": "ready", "Status": "ready"}, "Status"),
    ("/v1/episode/complete", {"status": "ready", "reward": 1.0}, "reward"),
    ("/v1/episode/reward", {}, "reward"),
    ("/v1/episode/reward", {"reward": None}, "reward"),
    ("/v1/episode/reward", {"reward": "1.0"}, "reward"),
    ("/v1/episode/reward", {"reward": True}, "reward"),
    ("/v1/episode/reward", {"reward": []}, "reward"),
    ("/v1/episode/reward", {"reward": {"total": 1.0}}, "reward"),
    ("/v1/episode/reward", {"reward": [1.0, "2"]}, "reward.1"),
    ("/v1/episode/reward", {"reward": [1.0, 2.0]}, "reward"),
    ("/v1/episode/reward", {"reward": 1.0, "components": 5}, "components"),
    ("/v1/episode/reward", {"reward": 1.0, "components": {"a": "b"}}, "components.a"),
    ("/v1/episode/reward", {"reward": 1.0, "metrics": {"x" * 257: 1.0}}, "metrics." + "x" * 257),
    ("/v1/episode/reward", {"reward": 1.0, "score": 1.0}, "score"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_COMPLETIONS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/sample"])
def test_a_malformed_request_for_a_turn_is_refused_with_a_pointer(
    path: str, fields: dict[str, Any], param: str
) -> None:
    if path == "/sample" and fields == {"model": MISSING}:
        return  # The one field that this route can do without.
    chat_session = session(["never"])
    response = post_body(chat_session, path, changed({"model": "m", "messages": [USER]}, fields))
    error = response.json()
    assert response.status_code == 400
    if path == "/sample":
        assert response.headers["x-amzn-errortype"] == error["__type"] == "ValidationException"
        message = error["message"]
    else:
        assert (error["error"]["param"], error["error"]["type"]) == (param, "invalid_request_error")
        message = error["error"]["message"]
    assert message.startswith((f"{param}: ", f"{param}=", f"{param} "))
    assert chat_session.turns == ()


@pytest.mark.parametrize(("path", "body", "param"), REPORTS)
def test_a_malformed_report_is_refused_with_a_pointer(path: str, body: dict[str, Any], param: str) -> None:
    endpoints = EpisodeEndpoints("policy")
    key = endpoints.register(session(["never"]))
    body = {name: key if value == "KEY" else value for name, value in body.items()}
    response = raw(create_app(endpoints), "POST", path, json=body, headers={"authorization": f"Bearer {key}"})
    error = response.json()
    assert response.status_code == 400
    if path.startswith("/v1"):
        assert error["error"]["param"] == param
        assert error["error"]["message"].startswith(f"{param}: ")
    else:
        assert response.headers["x-amzn-errortype"] == error["__type"] == "ValidationException"
        assert error["message"].startswith(f"{param}: ")
    assert endpoints.report(key).status is endpoints.report(key).reward is None


def test_there_are_as_many_shapes_as_were_promised() -> None:
    assert len(CHAT_COMPLETIONS) + len(REPORTS) >= 60


def test_methods_and_routes_that_do_not_exist_are_reported_in_the_format_of_the_route() -> None:
    app = create_app(EpisodeEndpoints("policy"))
    for path, kind in [
        ("/v1/chat/completions", ["error"]),
        ("/v1/messages", ["error", "type"]),
        ("/sample", ["Message", "__type", "message"]),
        ("/s/some-key/update-reward", ["Message", "__type", "message"]),
        ("/v1/episode/reward", ["error"]),
    ]:
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"):
            response = raw(app, method, path)
            assert (response.status_code, response.headers["allow"]) == (405, "POST")
            assert sorted(response.json()) == kind
        assert raw(app, "HEAD", path).status_code == 405
    for path in ("/v1/models", "/health", "/openapi.json"):
        response = raw(app, "POST", path)
        assert (response.status_code, set(response.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
    assert raw(app, "HEAD", "/health").status_code == 200
    for path in ("/", "/v1", "/v1/embeddings", "/s/", "/v1/messages/x" * 2000):
        response = raw(app, "POST", path)
        assert response.status_code == 404
        assert response.json()["error"]["message"].startswith("Not Found: use /v1/chat/completions, ")


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/sample"])
def test_bodies_that_do_not_call_themselves_json_are_refused(path: str, media_type: str) -> None:
    endpoints = EpisodeEndpoints("policy")
    headers = {"x-api-key": endpoints.register(session(["never"])), "content-type": media_type}
    response = raw(create_app(endpoints), "POST", path, content=b"{}", headers=headers)
    assert response.status_code == 415
    assert f"content-type: '{media_type}' is not supported" in response.text


def test_a_compressed_body_is_not_unpacked() -> None:
    body = {"model": "m", "messages": [USER]}
    assert post_body(session(["hello"]), "/v1/chat/completions", body).status_code == 200
    endpoints = EpisodeEndpoints("policy")
    headers = {"x-api-key": endpoints.register(session(["never"])), "content-encoding": "gzip"}
    packed = gzip.compress(json.dumps(body).encode())
    response = raw(create_app(endpoints), "POST", "/v1/chat/completions", content=packed, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


BODY = json.dumps({"model": "m", "messages": [USER]}).encode()
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer KEY\r\n"
SIZED = POST + b"Content-Length: %d\r\n" % len(BODY)

REQUESTS: dict[str, tuple[bytes, set[int | None]]] = {
    # Bytes, and the statuses that they may be answered with; None is a connection that is closed.
    "no http": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", {400}),
    "http/0.9": (b"GET /health\r\n\r\n", {200, 400}),
    "unknown method": (b"BREW /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 405}),
    "nul in path": (b"GET /v1/\x00models HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
    "escaped nul in path": (b"GET /v1/%00models HTTP/1.1\r\nHost: localhost\r\n\r\n", {404}),
    "escapes that are no utf-8": (b"GET /s/%ff%fe/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", {401}),
    "half a character as key": (b"GET /s/%ed%a0%80/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", {401}),
    "bytes beyond ascii in path": (b"GET /v1/mod\xc3\xa9ls HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404, None}),
    "very long path": (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", {431}),
    "very long query": (
        b"GET /v1/models?" + b"x" * 60_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        {400, 401, 414, None},
    ),
    "nul in a header": (b"GET /health HTTP/1.1\r\nHost: local\x00host\r\n\r\n", {400}),
    "latin-1 key": (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xe9\xff\r\n\r\n", {401}),
    "a header of a megabyte": (
        b"GET /v1/models HTTP/1.1\r\nX-Api-Key: " + b"k" * 2**20 + b"\r\n\r\n",
        {431, None},
    ),
    "ten thousand headers": (b"GET /v1/models HTTP/1.1\r\n" + b"X-A: b\r\n" * 10_000 + b"\r\n", {431}),
    "two keys": (POST + b"Authorization: Bearer sk-other\r\nContent-Length: 2\r\n\r\n{}", {400, 401}),
    "long trajectory": (
        POST + b"X-Amzn-SageMaker-Trajectory-Id: " + b"x" * 257 + b"\r\nContent-Length: 2\r\n\r\n{}",
        {400},
    ),
    "two content lengths": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", {400}),
    "negative length": (POST + b"Content-Length: -5\r\n\r\n{}", {400}),
    "length that is no number": (POST + b"Content-Length: many\r\n\r\n{}", {400}),
    "length beyond all bodies": (POST + b"Content-Length: 99999999999999999999999\r\n\r\n{}", {400}),
    "no length": (POST + b"\r\n", {400}),
    "too short a body": (SIZED + b"\r\n" + BODY[:-5], {None}),
    "length and chunks": (SIZED + b"Transfer-Encoding: chunked\r\n\r\n" + BODY, {400}),
    "garbage as chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + BODY, {400}),
    "negative chunk": (POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n", {400}),
    "unknown encoding": (POST + b"Transfer-Encoding: gzip\r\n\r\n" + BODY, {400}),
    "body that is no utf-8": (POST + b'Content-Length: 13\r\n\r\n{"model":"\xff"}', {400}),
    "utf-16": (POST + b"Content-Length: 8\r\n\r\n" + "{}é".encode("utf-16"), {400}),
    "byte order mark": (POST + b"Content-Length: 5\r\n\r\n\xef\xbb\xbf{}", {400}),
    "gzip that is not declared": (POST + b"Content-Length: 4\r\n\r\n\x1f\x8b\x08\x00", {400}),
    "nul as body": (POST + b"Content-Length: 1\r\n\r\n\x00", {400}),
    "two values": (POST + b"Content-Length: 4\r\n\r\n{}{}", {400}),
}


def over_sockets(play: Callable[[int, str], Awaitable[Any]]) -> None:
    """With a server that answers one turn."""

    async def run() -> None:
        async with Gateway() as gateway, session(["fine"]) as chat_session:
            entry = gateway.register(chat_session)
            port = int(entry.endpoint.rpartition(":")[2])
            await play(port, entry.api_key)
            head, body = await sent(port, SIZED.replace(b"KEY", entry.api_key.encode()) + b"\r\n" + BODY)
            assert (status(head), json.loads(body)["choices"][0]["message"]["content"]) == (200, "fine")

    asyncio.run(run())


async def sent(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer; empty where the server hangs up, or waits for more of the request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), timeout=1)
        except TimeoutError:
            return b"", b""
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return head, await asyncio.wait_for(reader.readexactly(int(length.split(b":")[1])), timeout=5)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b"", b""
    finally:
        writer.close()


def status(head: bytes) -> int | None:
    return int(head.split(b" ")[1]) if head else None


@pytest.mark.parametrize("name", REQUESTS)
def test_no_bytes_bring_a_server_down(name: str, caplog: pytest.LogCaptureFixture) -> None:
    request, statuses = REQUESTS[name]

    async def play(port: int, key: str) -> None:
        head, _ = await sent(port, request.replace(b"KEY", key.encode()))
        assert status(head) in statuses, head

    over_sockets(play)
    assert not [record for record in caplog.records if record.exc_info]
