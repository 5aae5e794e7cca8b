"""Required and named tool calls and JSON schemas hold in every dialect, even for a policy with random weights."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
import pydantic
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import ClientError
from sparring.gateway import EpisodeEndpoints, Gateway
from sparring.gateway.app import create_app
from sparring.gateway.dialects.validation import JsonSchema
from sparring.models.policy import Policy
from sparring.sessions import EpisodeIdentity, Session
from sparring.types import Sampling

USER: Any = {"role": "user", "content": "go"}
PARAMETERS: Any = {
    "type": "object",
    "properties": {"key": {"enum": ["a", "b"]}, "yes": {"type": "boolean"}},
    "required": ["key"],
    "additionalProperties": False,
}
NAMES = ("get", "größe")
TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES]
SCHEMA: Any = {
    "type": "object",
    "properties": {"n": {"enum": [1, 22]}},
    "required": ["n"],
    "additionalProperties": False,
}


def nested(objects: int) -> dict[str, Any]:
    """A schema of objects within objects, of nearly twice as many levels of JSON."""
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(objects - 1):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


DEEP = nested(33)
BAD_SCHEMA: Any = {"type": "object", "properties": {"n": {"type": "number", "not": {"const": 1}}}}
NAMED_SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}


@functools.cache
def policy() -> Policy:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=ByteTokenizer.num_tokens,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    return Policy(LlamaForCausalLM(config), ByteTokenizer(), max_positions=4096)


def played(scenario: Callable[[Session], Awaitable[Any]], *, max_tokens: int = 1500) -> Session:
    async def run() -> Session:
        engine = TorchEngine(policy(), policy().snapshot())
        chat = TemplateChat(ByteTokenizer())
        try:
            async with Session(
                EpisodeIdentity("e"), engine=engine, chat=chat, sampling=Sampling(max_tokens=max_tokens)
            ) as session:
                await scenario(session)
                return session
        finally:
            await engine.close()

    return asyncio.run(run())


def post_body(path: str, *bodies: Any, max_tokens: int = 1500) -> tuple[list[Any], Session]:
    """The answers to bodies, one after the other in one episode."""
    answers: list[Any] = []

    async def scenario(session: Session) -> None:
        endpoints = EpisodeEndpoints("policy")
        app, headers = create_app(endpoints), {"x-api-key": endpoints.register(session)}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            for body in bodies:
                answers.append((await client.post(path, json=body, headers=headers)).json())

    session = played(scenario, max_tokens=max_tokens)
    return answers, session


def is_right_call(name: str, arguments: Any) -> bool:
    return name in NAMES and {"key"} <= arguments.keys() <= {"key", "yes"} and arguments["key"] in ("a", "b")


def test_chat_completions_call_and_answer_as_asked() -> None:
    body = {"model": "any", "messages": [USER], "tools": TOOLS}
    (required, one, named, none, typed, any_object), session = post_body(
        "/v1/chat/completions",
        {**body, "tool_choice": "required"},
        {**body, "tool_choice": "required", "parallel_tool_calls": False},
        {**body, "tool_choice": {"type": "function", "function": {"name": "größe"}}},
        {**body, "tool_choice": "none", "max_tokens": 20},
        {**body, "tool_choice": "none", "response_format": NAMED_SCHEMA},
        {"model": "any", "messages": [USER], "response_format": {"type": "json_object"}, "max_tokens": 60},
    )
    for answer in (required, one, named):
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        for call in choice["message"]["tool_calls"]:
            assert is_right_call(call["function"]["name"], json.loads(call["function"]["arguments"]))
    assert len(one["choices"][0]["message"]["tool_calls"]) == 1
    assert [call["function"]["name"] for call in named["choices"][0]["message"]["tool_calls"]] == ["größe"]
    assert "tool_calls" not in none["choices"][0]["message"]
    assert json.loads(typed["choices"][0]["message"]["content"])["n"] in (1, 22)
    assert any_object["choices"][0]["message"]["content"].startswith("{")
    assert len({turn.prompt_ids for turn in session.turns[:5]}) == 1  # the tools stay in the prompt
    assert not any(turn.is_trained for turn in session.turns)


def test_messages_call_and_answer_as_asked() -> None:
    tools = [{"name": name, "input_schema": PARAMETERS} for name in NAMES]
    body = {"model": "any", "messages": [USER], "tools": tools, "max_tokens": 1500}
    (any_tool, named, none, typed), _ = post_body(
        "/v1/messages",
        {**body, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {**body, "tool_choice": {"type": "tool", "name": "get"}},
        {**body, "tool_choice": {"type": "none"}, "max_tokens": 20},
        {
            **body,
            "tool_choice": {"type": "none"},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
    )
    for answer in (any_tool, named):
        assert answer["stop_reason"] == "tool_use"
        (block,) = answer["content"]
        assert is_right_call(block["name"], block["input"])
    assert named["content"][0]["name"] == "get"
    assert [block["type"] for block in none["content"]] == ["text"]
    assert json.loads(typed["content"][0]["text"])["n"] in (1, 22)


def test_responses_call_and_answer_as_asked_and_echo_it() -> None:
    tools = [{"type": "function", "name": name, "parameters": PARAMETERS} for name in NAMES]
    body = {"model": "any", "input": "go", "tools": tools}
    chosen = {"type": "function", "name": "get"}
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    (required, named, typed), _ = post_body(
        "/v1/responses",
        {**body, "tool_choice": "required", "parallel_tool_calls": False},
        {**body, "tool_choice": chosen},
        {"model": "any", "input": "go", "text": {"format": form}},
    )
    for answer, choice in ((required, "required"), (named, chosen)):
        (item,) = answer["output"]
        assert item["type"] == "function_call"
        assert is_right_call(item["name"], json.loads(item["arguments"]))
        assert answer["tool_choice"] == choice
    assert (required["parallel_tool_calls"], named["output"][0]["name"]) == (False, "get")
    assert json.loads(typed["output"][0]["content"][0]["text"])["n"] in (1, 22)
    assert typed["text"] == {"format": form}


def test_streams_and_several_answers_follow_too() -> None:
    seen: list[Any] = []

    async def scenario(session: Session) -> None:
        async with Gateway() as gateway:
            entry = gateway.register(session)
            async with openai.AsyncOpenAI(base_url=entry.base_url, api_key=entry.api_key, timeout=120) as client:
                stream = await client.chat.completions.create(
                    model="any",
                    messages=[USER],
                    tools=TOOLS,
                    tool_choice="required",
                    stream=True,
                    parallel_tool_calls=False,
                )
                seen.append([chunk.choices[0].delta async for chunk in stream])
                seen.append(
                    await client.chat.completions.create(
                        model="any", messages=[USER], response_format=NAMED_SCHEMA, n=3
                    )
                )

    session = played(scenario)
    deltas, several = seen
    assert "".join(delta.content or "" for delta in deltas) == ""
    (call,) = [call for delta in deltas for call in delta.tool_calls or ()]
    assert is_right_call(call.function.name, json.loads(call.function.arguments))
    assert [json.loads(choice.message.content).keys() for choice in several.choices] == [{"n"}] * 3
    assert len(session.turns) == 4


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": BAD_SCHEMA}}},
            "response_format.json_schema.schema",
        ),
        (
            "/v1/chat/completions",
            {
                "tools": [TOOLS[0], {"type": "function", "function": {"name": "f", "parameters": BAD_SCHEMA}}],
                "tool_choice": "required",
            },
            "tools.1.function.parameters",
        ),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": BAD_SCHEMA}}, "stream": True},
            "text.format.schema",
        ),
        (
            "/v1/responses",
            {
                "tools": [{"type": "function", "name": "f", "parameters": {"type": "string"}}],
                "tool_choice": {"type": "function", "name": "f"},
            },
            "tools.0.parameters",
        ),
        (
            "/v1/messages",
            {"tools": [{"name": "f", "input_schema": BAD_SCHEMA}], "tool_choice": {"type": "any"}},
            "tools.0.input_schema",
        ),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": DEEP}}},
            "response_format.json_schema.schema",
        ),
        (
            "/v1/chat/completions",
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]},
            "tools.0.function.parameters",
        ),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": DEEP}}},
            "text.format.schema",
        ),
        ("/v1/messages", {"tools": [{"name": "f", "input_schema": DEEP}]}, "tools.0.input_schema"),
        (
            "/v1/messages",
            {"output_config": {"format": {"type": "json_schema", "schema": BAD_SCHEMA}}},
            "output_config.format.schema",
        ),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_by_name_before_anything_is_sampled(
    path: str, fields: Any, param: str
) -> None:
    conversation = {"input": "go"} if path == "/v1/responses" else {"messages": [USER]}
    limit = {"max_tokens": 5} if path == "/v1/messages" else {}
    (answer,), session = post_body(path, {"model": "any", **conversation, **limit, **fields})
    assert answer["error"]["message"].startswith(f"{param}: ")
    if path != "/v1/messages":
        assert (answer["error"]["param"], answer["error"]["type"]) == (param, "invalid_request_error")
    assert session.turns == ()
    assert isinstance(session.failure, ClientError)  # the schema is the client's: the policy has not answered yet


def test_a_schema_of_32_objects_within_objects_is_not_too_deep() -> None:
    assert pydantic.TypeAdapter(JsonSchema).validate_python(nested(32)) == nested(32)


def test_an_answer_that_is_cut_is_reported_as_cut() -> None:
    body = {"model": "any", "messages": [USER], "tools": TOOLS, "tool_choice": "required", "max_tokens": 4}
    (answer,), _ = post_body("/v1/chat/completions", body)
    assert answer["choices"][0]["finish_reason"] == "length"
