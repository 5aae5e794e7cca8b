"""Anthropic's Messages, asked as its clients ask: round trips, streams, and an error object for every mistake."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.chat import ByteTokenizer
from sparring.engines.scripted import ScriptedEngine
from sparring.errors import InfrastructureError, PolicyTimeout
from sparring.gateway import Gateway
from sparring.gateway.app import create_app
from sparring.gateway.endpoints import EpisodeEndpoints, StatelessEndpoints
from sparring.gateway.versions import Version, Versions
from sparring.types import Sampling
from tests.gateway.builders import CALL, CHAT, anything, breaking_off_session, post_body, raw, replaced, session

PATH = "/v1/messages"
USER: Any = {"role": "user", "content": "find b"}
TOOL: Any = {"name": "get", "description": "Look up.", "input_schema": {"type": "object", "properties": {}}}
RESULT: Any = {"type": "tool_result", "tool_use_id": "call_0_0", "content": "f"}
ASKED: Any = {"model": "m", "max_tokens": 200, "messages": [USER]}
ANSWER = f"<think>Which?</think>Look:\n{CALL}"


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The contents of a stream; each is named after its type."""
    found = []
    for event in response.text.strip().split("\n\n"):
        name, data = (line.split(": ", 1)[1] for line in event.split("\n"))
        found.append(json.loads(data))
        assert found[-1]["type"] == name
    return found


def test_a_tool_round_trip_is_one_line_of_turns() -> None:
    chat_session = session([ANSWER, "done"])
    first = post_body(chat_session, PATH, {**ASKED, "tools": [TOOL], "system": "Be brief."}).json()
    turn = chat_session.turns[0]
    assert first == {
        "id": "msg_episode-0",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "text", "text": "Look:"},
            {"type": "tool_use", "id": "call_0_0", "name": "get", "input": {"key": "b"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": len(turn.prompt_ids), "output_tokens": len(turn.token_ids)},
    }
    history = [USER, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [RESULT]}]
    second = post_body(
        chat_session, PATH, {**ASKED, "messages": history, "tools": [TOOL], "system": "Be brief."}
    ).json()
    assert (second["content"], second["stop_reason"]) == ([{"type": "text", "text": "done"}], "end_turn")
    assert [turn.parent for turn in chat_session.turns] == [None, 0]


def test_an_answer_is_recognised_in_whatever_blocks_it_comes_back() -> None:
    text, use = (
        {"type": "text", "text": "Look:"},
        {"type": "tool_use", "id": "call_0_0", "name": "get", "input": {"key": "b"}},
    )
    thinking = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}]
    cached = {"cache_control": {"type": "ephemeral"}}
    for answer in (
        [{"role": "assistant", "content": [*thinking, text, use]}],
        [{"role": "assistant", "content": "Look:"}, {"role": "assistant", "content": [{**use, **cached}]}],
        [{"role": "assistant", "content": [{"type": "text", "text": "Lo"}, {**text, "text": "ok:"}, use]}],
    ):
        chat_session = session([ANSWER, "done"])
        system = [{"type": "text", "text": "Be brief.", **cached}]
        assert post_body(chat_session, PATH, {**ASKED, "tools": [TOOL], "system": "Be brief."}).status_code == 200
        asked = {**ASKED, "tools": [{**TOOL, "type": "custom", **cached}], "system": system}
        user = {"role": "user", "content": [{"type": "text", "text": "find b", **cached}]}
        results = {"role": "user", "content": [{**RESULT, "content": [{"type": "text", "text": "f"}]}]}
        assert post_body(chat_session, PATH, {**asked, "messages": [user, *answer, results]}).status_code == 200
        assert [turn.parent for turn in chat_session.turns] == [None, 0]


def test_results_become_tool_messages_and_other_text_follows_them() -> None:
    chat_session = session(["done"])
    uses = [{"type": "tool_use", "id": name, "name": "get", "input": {}} for name in ("a", "b", "c", "d")]
    content = [
        {"type": "text", "text": "and "},
        {
            "type": "tool_result",
            "tool_use_id": "b",
            "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
        },
        {"type": "tool_result", "tool_use_id": "a"},
        {"type": "tool_result", "tool_use_id": "c", "content": "no such key", "is_error": True},
        {"type": "tool_result", "tool_use_id": "d", "content": "KeyError: 'k'", "is_error": True},
        {"type": "text", "text": "now?"},
    ]
    messages = [USER, {"role": "assistant", "content": uses}, {"role": "user", "content": content}]
    assert post_body(chat_session, PATH, {**ASKED, "messages": messages}).status_code == 200
    assert chat_session.messages[2:-1] == (
        {"role": "tool", "tool_call_id": "b", "content": "12"},
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {"role": "tool", "tool_call_id": "c", "content": "Error: no such key"},
        {"role": "tool", "tool_call_id": "d", "content": "KeyError: 'k'"},
        {"role": "user", "content": "and now?"},
    )


@pytest.mark.parametrize(
    ("answer", "fields", "reason", "stop", "text"),
    [
        ("all of it", {}, "end_turn", None, "all of it"),
        ("all of it", {"max_tokens": 3}, "max_tokens", None, "all"),
        ("all of it", {"stop_sequences": ["it", " of"]}, "stop_sequence", " of", "all"),
        ("all of it", {"stop_sequences": ["none"]}, "end_turn", None, "all of it"),
        ("", {}, "end_turn", None, ""),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_reason_why_an_answer_ended_is_returned(
    answer: str, fields: dict[str, Any], reason: str, stop: str | None, text: str, stream: bool
) -> None:
    response = post_body(session([answer]), PATH, {**ASKED, **fields, "stream": stream})
    if stream:
        streamed = events(response)
        ending = streamed[-2]["delta"]
        assert "".join(event["delta"]["text"] for event in streamed if event["type"] == "content_block_delta") == text
    else:
        ending = response.json()
        assert ending["content"] == [{"type": "text", "text": text}]
    assert (ending["stop_reason"], ending["stop_sequence"]) == (reason, stop)


def test_a_thread_goes_on_from_an_answer_with_its_tools_and_its_system_message() -> None:
    chat_session, endpoints = session([CALL, "done"]), EpisodeEndpoints("policy")
    app, headers = create_app(endpoints), {"x-api-key": endpoints.register(chat_session)}

    def ask(thread: Any, **fields: Any) -> httpx.Response:
        return raw(app, "POST", PATH, json={**ASKED, **fields, "thread": thread}, headers=headers)

    first = ask({"type": "create"}, tools=[TOOL], system="Be brief.").json()
    unknown = ask({"type": "continue", "previous_message_id": "msg_other-0"})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    thread = {"type": "continue", "previous_message_id": first["id"]}
    second = ask(thread, messages=[{"role": "user", "content": [RESULT]}]).json()
    assert second["content"] == [{"type": "text", "text": "done"}]
    assert [turn.parent for turn in chat_session.turns] == [None, 0]
    assert [message["role"] for message in chat_session.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


def test_a_stream_has_the_events_of_anthropic_in_their_order() -> None:
    chat_session = session([f"<think>hm</think>Größe <5:\n{CALL}{CALL}"])
    streamed = events(post_body(chat_session, PATH, {**ASKED, "tools": [TOOL], "stream": True}))
    block = ["content_block_start", "content_block_stop"]
    assert [event["type"] for event in streamed if event["type"] != "content_block_delta"] == [
        "message_start",
        *block,
        *block,
        *block,
        "message_delta",
        "message_stop",
    ]
    start = streamed[0]["message"]
    assert (start["content"], start["stop_reason"], start["role"]) == ([], None, "assistant")
    deltas = [(event["index"], event["delta"]) for event in streamed if event["type"] == "content_block_delta"]
    texts = [delta["text"] for index, delta in deltas if index == 0]
    assert len(texts) > 1
    assert "".join(texts) == "Größe <5:"
    inputs = [
        (index, json.loads(delta["partial_json"])) for index, delta in deltas if delta["type"] == "input_json_delta"
    ]
    assert inputs == [(1, {"key": "b"}), (2, {"key": "b"})]
    starts = [event["content_block"] for event in streamed if event["type"] == "content_block_start"]
    assert starts[1:] == [{"type": "tool_use", "id": f"call_0_{n}", "name": "get", "input": {}} for n in (0, 1)]
    turn = chat_session.turns[0]
    assert streamed[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert streamed[-2]["usage"] == {"input_tokens": len(turn.prompt_ids), "output_tokens": len(turn.token_ids)}


def test_arguments_beyond_json_do_not_break_an_answer() -> None:
    call = '<tool_call>{"name":"get","arguments":{"key":1e999}}</tool_call>'
    for stream in (False, True):
        assert post_body(session([call]), PATH, {**ASKED, "tools": [TOOL], "stream": stream}).status_code == 200


def test_fields_without_effect_are_accepted() -> None:
    chat_session = session(["a"])
    fields: Any = {
        "metadata": {"user_id": "me"},
        "thinking": {"type": "disabled"},
        "service_tier": "auto",
        "tools": [],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "stop_sequences": [],
        "stream": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": None,
    }
    assert post_body(chat_session, PATH, {**ASKED, **fields}).status_code == 200
    assert chat_session.turns[0].sampling == Sampling(temperature=0.5, top_p=0.9, max_tokens=200)


def test_a_socket_answers_to_anthropics_headers() -> None:
    async def run() -> None:
        async with Gateway() as gateway, session([ANSWER]) as chat_session:
            entry = gateway.register(chat_session)
            headers = {"x-api-key": entry.api_key, "anthropic-version": "2023-06-01", "anthropic-beta": "x"}
            async with httpx.AsyncClient(headers=headers) as client:
                url = f"{entry.base_url}/messages?beta=true"
                async with client.stream("POST", url, json={**ASKED, "tools": [TOOL], "stream": True}) as response:
                    assert response.headers["content-type"].startswith("text/event-stream")
                    lines = [line async for line in response.aiter_lines() if line.startswith("event:")]
                assert (lines[0], lines[-1]) == ("event: message_start", "event: message_stop")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [(PolicyTimeout("late"), 504, "timeout_error"), (InfrastructureError("gone"), 503, "api_error")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_failures_of_a_turn_have_a_status_and_a_type(failure: Exception, status: int, kind: str, stream: bool) -> None:
    response = post_body(session([failure]), PATH, {**ASKED, "stream": stream})
    assert response.status_code == status
    assert response.json() == {"type": "error", "error": {"type": kind, "message": str(failure)}}


def test_a_failure_mid_stream_is_an_event_of_the_stream() -> None:
    streamed = events(post_body(breaking_off_session(), PATH, {**ASKED, "stream": True}))
    assert streamed[0]["type"] == "message_start"
    assert streamed[-1] == {"type": "error", "error": {"type": "timeout_error", "message": "the policy took too long"}}


def test_errors_before_the_play_have_the_type_of_their_status() -> None:
    engine = ScriptedEngine(["a"], encode=ByteTokenizer().encode)
    served = create_app(StatelessEndpoints(versions=Versions([Version("m", engine)]), chat=CHAT, sampling=Sampling()))
    small = create_app(
        StatelessEndpoints(versions=Versions([Version("m", engine)]), chat=CHAT, sampling=Sampling()), max_body_bytes=9
    )
    for response, status, kind in (
        (raw(create_app(EpisodeEndpoints("policy")), "POST", PATH, json=ASKED), 401, "authentication_error"),
        (raw(served, "POST", PATH, json={**ASKED, "model": "other"}), 404, "not_found_error"),
        (raw(small, "POST", PATH, json=ASKED), 413, "request_too_large"),
    ):
        assert (response.status_code, response.json()["type"]) == (status, "error")
        assert response.json()["error"]["type"] == kind
    assert raw(served, "POST", PATH, json=ASKED).json()["content"][0]["text"] == "a"


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": list(blocks)}, USER]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"max_tokens": 2.5}, "max_tokens"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "x"}, "messages"),
    ({"messages": ["x"]}, "messages.0"),
    ({"messages": [{"content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "developer", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
    ({"messages": [USER, {"role": "assistant", "content": "Sure"}]}, "messages.1.role"),
    (user("x"), "messages.0.content.0"),
    (user({"text": "x"}), "messages.0.content.0.type"),
    (user({"type": "text"}), "messages.0.content.0.text"),
    (user({"type": "text", "text": 5}), "messages.0.content.0.text"),
    (user({"type": "image", "source": {"type": "url", "url": "x"}}), "messages.0.content.0.type"),
    (user({"type": "document", "source": {}}), "messages.0.content.0.type"),
    (user({"type": "tool_use", "id": "a", "name": "get", "input": {}}), "messages.0.content.0.type"),
    (user({"type": "tool_result"}), "messages.0.content.0.tool_use_id"),
    (user({"type": "tool_result", "tool_use_id": "a", "is_error": "yes"}), "messages.0.content.0.is_error"),
    (
        user({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}),
        "messages.0.content.0.content.0.type",
    ),
    (assistant(RESULT), "messages.1.content.0.type"),
    (assistant({"type": "server_tool_use", "id": "a"}), "messages.1.content.0.type"),
    (assistant({"type": "tool_use", "id": "a", "name": "get"}), "messages.1.content.0.input"),
    (assistant({"type": "tool_use", "id": "a", "name": "get", "input": "{}"}), "messages.1.content.0.input"),
    (assistant({"type": "tool_use", "id": "a", "input": {}}), "messages.1.content.0.name"),
    ({"system": 5}, "system"),
    ({"system": [{"type": "image"}]}, "system.0.type"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
    ({"tools": [{"name": "get"}]}, "tools.0.input_schema"),
    ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
    ({"tools": [{"name": "get", "input_schema": {"properties": {"a": 5}}}]}, "tools.0.input_schema"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "always"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "none"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "put"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, "tool_choice"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": ["x", ""]}, "stop_sequences.1"),
    ({"temperature": 1.5}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 5}, "top_k"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.type"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits.0.type"),
    ({"output_config": {"effort": "low"}}, "output_config.effort"),
    (
        {"messages": [USER, {"role": "system", "content": "x", "output_config": {"effort": "low"}}]},
        "messages.1.output_config",
    ),
    ({"thread": {"type": "continue"}}, "thread.previous_message_id"),
    ({"compaction": {"type": "summary"}}, "compaction"),
    ({"depth": 3}, "depth"),
    ({"output_config": {"effort": "low"}}, "output_config.effort"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"stream": "yes"}, "stream"),
    ({"seed": 1}, "seed"),
    ({"n": 2}, "n"),
    ({"previous_response_id": "x"}, "previous_response_id"),
]


@pytest.mark.parametrize(("fields", "place"), REFUSED)
def test_what_cannot_be_honored_is_refused_by_name(fields: dict[str, Any], place: str) -> None:
    chat_session = session(["never"])
    response = post_body(chat_session, PATH, {**ASKED, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith((f"{place}: ", f"{place}="))
    assert chat_session.turns == ()


@pytest.mark.parametrize("field", ["model", "max_tokens", "messages"])
def test_a_missing_field_is_named(field: str) -> None:
    response = post_body(session(["never"]), PATH, {key: value for key, value in ASKED.items() if key != field})
    assert (response.status_code, response.json()["error"]["message"]) == (400, f"{field}: Field required.")


VALID: Any = {
    **ASKED,
    "messages": [
        USER,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "a"},
            {"type": "tool_use", "id": "c", "name": "get", "input": {"key": "b"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "f"}], "is_error": False},
            {"type": "text", "text": "go on"},
        ]},
    ],
    "system": [{"type": "text", "text": "i"}], "tools": [TOOL], "tool_choice": {"type": "auto"}, "stop_sequences": ["stop"],
    "temperature": 1.0, "thinking": {"type": "disabled"},
}  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(body=replaced(VALID), stream=st.booleans())
def test_no_request_is_a_failure_of_the_server(body: Any, stream: bool) -> None:
    response = post_body(session(lambda _request: ANSWER), PATH, {**body, "stream": stream} if stream else body)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]["message"]


@settings(max_examples=30, deadline=None)
@given(body=anything())
def test_no_body_is_a_failure_of_the_server(body: Any) -> None:
    assert post_body(session(["never"]), PATH, body).status_code == 400
