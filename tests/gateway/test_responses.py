"""The stock OpenAI client plays through the Responses route, and every mistake gets an error object."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent

from sparring.chat import ByteTokenizer
from sparring.engines.scripted import ScriptedEngine
from sparring.errors import PolicyTimeout
from sparring.gateway.app import create_app
from sparring.gateway.endpoints import NUM_KEPT, EpisodeEndpoints, StatelessEndpoints
from sparring.gateway.versions import Version, Versions
from sparring.types import Sampling
from tests.gateway.builders import (
    CALL,
    CHAT,
    anything,
    breaking_off_session,
    post_body,
    raw,
    replaced,
    session,
    through_gateway,
)

PATH = "/v1/responses"
USER: Any = {"role": "user", "content": "find b"}
TOOL: Any = {"type": "function", "name": "get", "parameters": {"type": "object", "properties": {}}, "strict": True}
RESULT: Any = {"type": "function_call_output", "call_id": "call_0_0", "output": "f"}
ANSWER = f"<think>Which?</think>Look:\n{CALL}"


def test_a_tool_round_trip_is_one_line_of_turns() -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(model="any", input="find b", tools=[TOOL])
        reasoning, message, call = first.output
        assert reasoning.type == "reasoning"
        assert reasoning.content is not None
        assert reasoning.content[0].text == "Which?"
        assert message.type == "message"
        assert (message.role, message.status, first.output_text) == ("assistant", "completed", "Look:")
        assert call.type == "function_call"
        assert (call.call_id, call.name, call.arguments) == ("call_0_0", "get", '{"key": "b"}')
        assert len({item.id for item in first.output}) == 3
        assert (first.status, first.tools[0].type, first.tool_choice) == ("completed", "function", "auto")
        history: Any = [USER, *(item.model_dump() for item in first.output), RESULT]
        second = await client.responses.create(model="any", input=history, tools=[TOOL])
        assert second.output_text == "done"
        assert second.usage is not None
        turn = chat_session.turns[1]
        assert second.usage.input_tokens == len(turn.prompt_ids)
        assert second.usage.output_tokens == len(turn.token_ids)
        assert second.usage.total_tokens == len(turn.prompt_ids) + len(turn.token_ids)

    chat_session = session([ANSWER, "done"])
    through_gateway(chat_session, play)
    assert [turn.parent for turn in chat_session.turns] == [None, 0]


@pytest.mark.parametrize(
    "items",
    [
        # What clients make of text "Look:" and two calls.
        [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look:"}]},
            {"type": "function_call", "call_id": "call_0_0", "name": "get", "arguments": '{"key":"b"}'},
            {"type": "function_call", "call_id": "call_0_1", "name": "get", "arguments": '{"key":"b"}'},
        ],
        [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"role": "assistant", "content": "Look:"},
            {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "x"},
            {
                "type": "function_call",
                "id": "fc_1",
                "status": "completed",
                "call_id": "a",
                "name": "get",
                "arguments": '{"key" : "b"}',
            },
            {"type": "function_call", "id": None, "call_id": "b", "name": "get", "arguments": '{"key":"b"}'},
        ],
        [
            {"type": "function_call", "call_id": "call_0_0", "name": "get", "arguments": '{"key":"b"}'},
            {"type": "function_call", "call_id": "call_0_1", "name": "get", "arguments": '{"key":"b"}'},
            {
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Lo"}, {"type": "output_text", "text": "ok:"}],
            },
        ],
    ],
)
def test_an_answer_is_recognised_in_whatever_items_it_comes_back(items: list[Any]) -> None:
    results = [
        {"type": "function_call_output", "call_id": "call_0_0", "output": "f"},
        {
            "type": "function_call_output",
            "call_id": "call_0_1",
            "id": "x",
            "status": "completed",
            "output": [{"type": "input_text", "text": "f"}],
        },
    ]
    chat_session = session([f"Look:{CALL}{CALL}", "done"])
    asked = {"model": "m", "tools": [TOOL], "instructions": "Be brief."}
    typed = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "find b"}]}
    assert post_body(chat_session, PATH, {**asked, "input": [USER]}).status_code == 200
    assert post_body(chat_session, PATH, {**asked, "input": [typed, *items, *results]}).status_code == 200
    assert [turn.parent for turn in chat_session.turns] == [None, 0]
    assert [message["role"] for message in chat_session.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [message.get("tool_call_id") for message in chat_session.messages[3:5]] == ["call_0_0", "call_0_1"]


def test_two_texts_in_a_row_stay_two_answers() -> None:
    chat_session = session(["more", "end"])
    history = [USER, {"role": "assistant", "content": "begun"}]
    assert post_body(chat_session, PATH, {"model": "m", "input": history}).status_code == 200
    history.append({"role": "assistant", "content": "more"})
    assert post_body(chat_session, PATH, {"model": "m", "input": [*history, USER]}).status_code == 200
    assert [turn.parent for turn in chat_session.turns] == [None, 0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_from_an_answers_id(stream: bool) -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        asked: Any = {"model": "any", "tools": [TOOL], "instructions": "Be brief."}
        if stream:
            events = [event async for event in await client.responses.create(input="find b", stream=True, **asked)]
            assert events[-1].type == "response.completed"
            first = events[-1].response
        else:
            first = await client.responses.create(input="find b", **asked)
        second = await client.responses.create(previous_response_id=first.id, input=[RESULT], **asked)
        assert (second.output_text, second.previous_response_id) == ("done", first.id)
        third = await client.responses.create(previous_response_id=second.id, input="thanks", **asked)
        assert third.output_text == "bye"

    chat_session = session([ANSWER, "done", "bye"])
    through_gateway(chat_session, play)
    assert [turn.parent for turn in chat_session.turns] == [None, 0, 1]
    assert [message["role"] for message in chat_session.messages].count("system") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_items_of_earlier_answers_may_be_named_by_their_ids(stream: bool) -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        asked: Any = {"model": "any", "tools": [TOOL]}
        if stream:
            events = [event async for event in await client.responses.create(input="find b", stream=True, **asked)]
            assert events[-1].type == "response.completed"
            output = events[-1].response.output
        else:
            output = (await client.responses.create(input="find b", **asked)).output
        assert [item.id[:3] for item in output if item.id] == ["rs_", "msg", "fc_"]
        named: Any = [{"type": "item_reference", "id": item.id} for item in output]
        second = await client.responses.create(input=[USER, *named, RESULT], **asked)
        assert second.output_text == "done"
        del named[1]["type"]  # of a reference it may be left out
        assert (await client.responses.create(input=[USER, *named, RESULT], **asked)).output_text == "again"

    chat_session = session([ANSWER, "done", "again"])
    through_gateway(chat_session, play)
    assert [turn.parent for turn in chat_session.turns] == [None, 0, 0]
    assert [message["role"] for message in chat_session.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_reference_to_an_item_that_is_not_of_this_episode_is_refused_with_its_place() -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        known = await client.responses.create(model="any", input="hi")
        unkept = await client.responses.create(model="any", input="hi", store=False)
        assert known.output[0].id
        number = known.output[0].id.removeprefix("msg_")
        unknown = ["msg_other-0", "fc_other-0-0", f"fc_{number}-0", f"fc_{number}-x", f"rs_{number}", "item_1", "", "-"]
        for item_id in [*unknown, "x" * 300, unkept.output[0].id]:
            named: Any = [USER, {"type": "item_reference", "id": item_id}]
            with pytest.raises(openai.NotFoundError, match="Send the item itself") as refusal:
                await client.responses.create(model="any", input=named)
            assert (refusal.value.param, refusal.value.code) == ("input.1.id", "item_not_found")

    chat_session = session(["one", "two"])
    through_gateway(chat_session, play)
    assert len(chat_session.turns) == 2


def test_an_answer_that_was_not_to_be_stored_is_not_gone_on_from() -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        first = await client.responses.create(model="any", input="hi", store=False)
        for previous in (first.id, "resp_other"):
            with pytest.raises(openai.NotFoundError, match="Send the whole conversation") as refusal:
                await client.responses.create(model="any", input="on", previous_response_id=previous)
            assert (refusal.value.param, refusal.value.code) == ("previous_response_id", "previous_response_not_found")

    chat_session = session(["one"])
    through_gateway(chat_session, play)
    assert len(chat_session.turns) == 1


def test_a_stream_has_the_events_of_openai_in_their_order() -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        stream = await client.responses.create(model="any", input="find b", tools=[TOOL], stream=True)
        events = [event async for event in stream]
        kinds = [event.type.removeprefix("response.") for event in events]
        assert [kind for kind in kinds if not kind.endswith(".delta")] == [
            "created", "in_progress",
            "output_item.added", "content_part.added", "reasoning_text.done", "content_part.done", "output_item.done",
            "output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done",
            "output_item.added", "function_call_arguments.done", "output_item.done",
            "completed",
        ]  # fmt: skip
        assert [event.sequence_number for event in events] == list(range(len(events)))
        text = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert len(text) > 1
        assert "".join(text) == "Größe <5:"
        assert [event.output_index for event in events if event.type == "response.output_item.done"] == [0, 1, 2]
        final = events[-1]
        assert final.type == "response.completed"
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert final.response.output == done
        assert final.response.usage is not None
        assert final.response.usage.output_tokens == len(chat_session.turns[0].token_ids)

    chat_session = session([f"<think>hm</think>Größe <5:\n{CALL}"])
    through_gateway(chat_session, play)


def test_what_the_client_puts_together_of_a_stream_is_what_it_gets_without() -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        async with client.responses.stream(model="any", input="find b", tools=[TOOL]) as stream:
            streamed = await stream.get_final_response()
        whole = await client.responses.create(model="any", input="find b", tools=[TOOL])
        outputs = [
            [item.model_dump(exclude={"id", "call_id"}, exclude_none=True) for item in one.output]
            for one in (streamed, whole)
        ]
        for item in outputs[0]:
            item.pop("parsed_arguments", None)
        assert outputs[0] == outputs[1]

    through_gateway(session([ANSWER, ANSWER]), play)


@pytest.mark.parametrize("answer", ["", "<think>hm</think>"])
def test_an_answer_without_words_is_an_empty_message(answer: str) -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        async with client.responses.stream(model="any", input="x") as stream:
            first = await stream.get_final_response()
        assert first.output[-1].type == "message"
        assert first.output_text == ""
        again: Any = [{"role": "user", "content": "x"}, *(item.model_dump() for item in first.output), USER]
        await client.responses.create(model="any", input=again)

    chat_session = session([answer, "done"])
    through_gateway(chat_session, play)
    assert [turn.parent for turn in chat_session.turns] == [None, 0]


@pytest.mark.parametrize("stream", [False, True])
def test_limits_of_the_request_are_honored_and_reported(stream: bool) -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        asked: Any = {"model": "any", "input": "x", "max_output_tokens": 3, "temperature": 0.5, "top_p": 0.9}
        if stream:
            events = [event async for event in await client.responses.create(stream=True, **asked)]
            assert events[-1].type == "response.incomplete"
            answer = events[-1].response
        else:
            answer = await client.responses.create(**asked)
        assert (answer.status, answer.output_text) == ("incomplete", "lon")
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"
        assert (answer.max_output_tokens, answer.temperature, answer.top_p) == (3, 0.5, 0.9)
        assert answer.output[0].type == "message"
        assert answer.output[0].status == "incomplete"

    chat_session = session(["long answer"])
    through_gateway(chat_session, play)
    assert chat_session.turns[0].sampling == Sampling(temperature=0.5, top_p=0.9, max_tokens=3)


def test_fields_without_effect_are_accepted_and_returned() -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        answer = await client.responses.create(
            model="any", input=[USER], include=["reasoning.encrypted_content"], store=True, background=False,
            parallel_tool_calls=True, metadata={"a": "b"}, user="me", truncation="disabled", tool_choice="auto",
            reasoning={"summary": "auto", "effort": None}, text={"format": {"type": "text"}, "verbosity": "medium"},
            service_tier="auto", prompt_cache_key="k", safety_identifier="s", top_logprobs=0, instructions="Be brief.",
        )  # fmt: skip
        assert (answer.metadata, answer.user, answer.instructions) == ({"a": "b"}, "me", "Be brief.")
        await client.responses.create(model="any", input=[USER], include=[], reasoning={}, text={}, tools=[])
        nothing: Any = dict.fromkeys(("include", "reasoning", "text", "tools", "truncation", "stream"))
        await client.responses.create(model="any", input=[USER], **nothing)

    through_gateway(session(["a", "b", "c"]), play)


def test_a_failure_before_the_first_token_has_a_status_and_one_after_it_raises_too() -> None:
    async def play(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.APIStatusError, match="late") as failed:
            await client.responses.create(model="any", input="x", stream=True)
        assert failed.value.status_code == 504

    through_gateway(session([PolicyTimeout("late")]), play)

    async def break_off(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.APIError, match="took too long"):
            async for _ in await client.responses.create(model="any", input="x", stream=True):
                pass

    through_gateway(breaking_off_session(), break_off)


def test_answers_and_events_have_every_field_that_the_client_types_demand() -> None:
    asked = {"model": "m", "input": "x", "tools": [TOOL]}
    Response.model_validate(post_body(session([ANSWER]), PATH, asked).json(), strict=True)
    stream = post_body(session([ANSWER]), PATH, {**asked, "stream": True}).text
    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)
    for event in stream.strip().split("\n\n"):
        name, data = (line.split(": ", 1)[1] for line in event.split("\n"))
        assert adapter.validate_json(data, strict=True).type == name


def test_an_error_event_counts_on() -> None:
    text = post_body(breaking_off_session(), PATH, {"model": "m", "input": "x", "stream": True}).text
    events = [dict(line.split(": ", 1) for line in event.split("\n")) for event in text.strip().split("\n\n")]
    assert events[-1]["event"] == "error"
    assert f'"sequence_number": {len(events) - 1}' in events[-1]["data"]
    assert "[DONE]" not in text


def test_a_prompt_without_room_names_the_input() -> None:
    error = post_body(session(["never"], max_context_tokens=4), PATH, {"model": "m", "input": "too long"}).json()[
        "error"
    ]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")


def test_a_served_model_goes_on_from_its_last_answers() -> None:
    engine = ScriptedEngine(lambda _: "a", encode=ByteTokenizer().encode)
    app = create_app(StatelessEndpoints(versions=Versions([Version("m", engine)]), chat=CHAT, sampling=Sampling()))

    def answer(text: str, previous: str | None = None, **fields: Any) -> httpx.Response:
        asked = {"model": "default", "input": text, "previous_response_id": previous, **fields}
        return raw(app, "POST", PATH, json=asked)

    first = answer("one", instructions="Be brief.").json()
    assert (first["model"], first["output"][0]["content"][0]["text"]) == ("m", "a")
    second = answer("two", first["id"]).json()
    answer("three", second["id"])
    prompts = [CHAT.decode(request.prompt_ids).split("<|im_start|>")[1:-1] for request in engine.requests]
    assert [turn.removesuffix("<|im_end|>\n") for turn in prompts[2]] == [
        "user\none",
        "assistant\na",
        "user\ntwo",
        "assistant\na",
        "user\nthree",
    ]
    unkept = answer("two", store=False).json()
    for previous in (unkept["id"], "resp_unknown", "x" * 500):
        refused = answer("on", previous)
        assert refused.status_code == 404
        error = refused.json()["error"]
        assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")
    for _ in range(NUM_KEPT):
        assert answer("other").status_code == 200
    assert answer("three", second["id"]).status_code == 404


def test_a_served_model_goes_by_its_name_or_default() -> None:
    engine = ScriptedEngine(lambda _: "a", encode=ByteTokenizer().encode)
    app = create_app(StatelessEndpoints(versions=Versions([Version("m", engine)]), chat=CHAT, sampling=Sampling()))
    for model, status in (("m", 200), ("default", 200), ("policy", 200), ("", 404), ("Default", 404), ("gpt-4", 404)):
        assert raw(app, "POST", PATH, json={"model": model, "input": "x"}).status_code == status


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [USER, fields]}


def part(**fields: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [fields]}]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": {"role": "user", "content": "x"}}, "input"),
    ({"input": ["x"]}, "input.0"),
    ({"input": [{"type": "reasoning", "id": "r", "summary": []}]}, "input"),
    (item(), "input.1.role"),
    (item(role="robot", content="x"), "input.1.role"),
    (item(role="tool", content="x"), "input.1.role"),
    (item(role="user"), "input.1.content"),
    (item(role="user", content=None), "input.1.content"),
    (item(role="user", content={}), "input.1.content"),
    (item(type="item_reference"), "input.1.id"),
    (item(type="item_reference", id=5), "input.1.id"),
    (item(type="web_search_call", id="ws_1"), "input.1.type"),
    (item(type=None, role="user", content="x"), "input.1.type"),
    (item(type="function_call", name="get", arguments="{}"), "input.1.call_id"),
    (item(type="function_call", call_id="c", arguments="{}"), "input.1.name"),
    (item(type="function_call", call_id="c", name="get", arguments={}), "input.1.arguments"),
    (item(type="function_call_output", output="x"), "input.1.call_id"),
    (item(type="function_call_output", call_id="c"), "input.1.output"),
    (item(type="function_call_output", call_id="c", output=[{"type": "input_image"}]), "input.1.output.0.type"),
    (part(type="input_image", image_url="x"), "input.0.content.0.type"),
    (part(type="input_text"), "input.0.content.0.text"),
    (part(type="input_text", text=5), "input.0.content.0.text"),
    ({"instructions": ["x"]}, "instructions"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    ({"tools": [TOOL, {"type": "mcp", "server_label": "x"}]}, "tools.1.type"),
    ({"tools": [{"type": "function"}]}, "tools.0.name"),
    ({"tools": [{"type": "function", "name": "f", "parameters": {"properties": 5}}]}, "tools.0.parameters"),
    ({"tools": [{"type": "function", "name": "f", "parameters": {"required": 5}}]}, "tools.0.parameters"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "none"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "put"}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.type"),
    ({"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
    ({"include": ["message.output_text.logprobs"]}, "include.0"),
    ({"store": "yes"}, "store"),
    ({"previous_response_id": 5}, "previous_response_id"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"reasoning": {"depth": 3}}, "reasoning.depth"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 2.5}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format"),
    ({"text": {"verbosity": "high"}}, "text.verbosity"),
    ({"truncation": "auto"}, "truncation"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"image": {"detail": "low"}}, "image"),
    ({"access_programs": ["x"]}, "access_programs"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"stream": "yes"}, "stream"),
    ({"seed": 1}, "seed"),
    ({"messages": [USER]}, "messages"),
    ({"max_tokens": 5}, "max_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_cannot_be_honored_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    chat_session = session(["never"])
    response = post_body(chat_session, PATH, {"model": "m", "input": [USER], **fields})
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert param in error["message"]
    assert chat_session.turns == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b"\xff",
        b'{"model":NaN}',
        b'{"model":"m","input":"\\ud800"}',
        b'{"model":"m","input":"x","user":1e999}',
        b'{"model":"m","input":' + b"[" * 250 + b"]" * 250 + b"}",
    ],
)
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    response = post_body(session(["never"]), PATH, body)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


VALID: Any = {
    "model": "m",
    "input": [
        USER,
        {"type": "reasoning", "id": "rs", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "get", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "f"}]},
    ],
    "instructions": "i",
    "tools": [TOOL],
    "store": True,
    "stream": False,
    "include": [],
    "reasoning": {"summary": "auto"},
    "text": {"format": {"type": "text"}},
    "metadata": {"a": "b"},
    "temperature": 1.0,
    "max_output_tokens": 5,
}


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


def test_the_route_asks_for_a_key() -> None:
    response = raw(create_app(EpisodeEndpoints("policy")), "POST", PATH, json={"model": "m", "input": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
