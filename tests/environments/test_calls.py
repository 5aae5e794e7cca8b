"""One tool call: results, the four kinds of error, and what is logged."""

import asyncio
import json
from typing import Any

import pytest

from sparring.environments.base import Environment
from sparring.environments.calls import ToolError, ToolFailure, ToolResult, execute
from sparring.environments.tools import tool
from sparring.errors import InfrastructureError


class Desk(Environment):
    @tool
    def add(self, first: int, second: int = 1) -> int:
        """Sum."""
        return first + second

    @tool
    async def lookup(self, key: str) -> dict[str, Any]:
        """Record."""
        await asyncio.sleep(0)
        return {"key": key, "ü": [1, None]}

    @tool
    def fail(self, how: str) -> Any:
        """Fail."""
        if how == "down":
            raise InfrastructureError("the database is down")
        if how == "object":
            return object()
        raise KeyError(how)

    @tool
    def parse(self, text: str) -> Any:
        """Parse."""
        parsed = json.loads(text)
        if isinstance(parsed, str):
            raise ValueError(parsed)
        return parsed[0] if len(parsed) == 1 else parsed

    @tool
    def refuse(self, text: str) -> Any:
        """Refuse."""
        raise ToolFailure(text)

    def secret(self) -> str:
        return "not for the policy"


def call(name: str, arguments: Any) -> ToolResult:
    return asyncio.run(execute(Desk(), name, arguments))


def test_sync_and_async_tools_answer_in_compact_json() -> None:
    assert call("add", '{"first": 2}').content == "3"
    assert call("lookup", '{"key": "b"}').content == '{"key":"b","ü":[1,null]}'


def test_a_call_is_logged_with_parsed_arguments_and_result() -> None:
    assert call("add", '{"first": 2, "second": 5}').transition == {
        "tool": "add",
        "arguments": {"first": 2, "second": 5},
        "result": "7",
        "error": None,
    }


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "words"),
    [
        ("search", "{}", ToolError.UNKNOWN_TOOL, "no tool 'search'; there are add, lookup, fail"),
        ("secret", "{}", ToolError.UNKNOWN_TOOL, "no tool 'secret'"),
        ("close", "{}", ToolError.UNKNOWN_TOOL, "no tool 'close'"),
        ("add", '{"first": 2', ToolError.BAD_JSON, "not valid JSON"),
        ("add", '{"first": NaN}', ToolError.BAD_JSON, "not valid JSON"),
        ("add", "[2]", ToolError.BAD_JSON, "not a JSON object"),
        ("add", f'{{"first": {"[" * 100 + "]" * 100}}}', ToolError.BAD_JSON, "are nested too deeply"),
        ("add", '{"first": true}', ToolError.WRONG_TYPE, "argument 'first' must be integer, got true"),
        ("add", '{"first": 2.0}', ToolError.WRONG_TYPE, "must be integer"),
        ("add", "", ToolError.WRONG_TYPE, "argument 'first' is missing"),
        (
            "add",
            '{"first": 2, "third": 3}',
            ToolError.WRONG_TYPE,
            "add has no argument 'third'; it takes first, second",
        ),
        ("fail", '{"how": "now"}', ToolError.TOOL_RAISED, "fail failed: KeyError: 'now'"),
        ("fail", '{"how": "object"}', ToolError.TOOL_RAISED, "not JSON serializable"),
    ],
)
def test_a_bad_call_is_answered_with_a_short_error(name: str, arguments: str, kind: ToolError, words: str) -> None:
    result = call(name, arguments)
    assert result.error is kind
    assert result.content.startswith("error: ")
    assert words in result.content
    assert result.transition["error"] == kind.value
    assert result.transition["result"] == result.content


@pytest.mark.parametrize(
    ("text", "content"),
    [(r'["a\ud800"]', "a?"), (r'["a", "\udc00"]', '["a","?"]'), (r'"\ud83d"', "error: parse failed: ValueError: ?")],
)
def test_half_a_character_in_what_a_tool_returns_becomes_a_question_mark(text: str, content: str) -> None:
    result = call("parse", {"text": text})
    assert (result.content, result.transition["result"]) == (content, content)


@pytest.mark.parametrize("text", ["unknown order", "error: unknown order"])
def test_a_refusal_has_one_prefix(text: str) -> None:
    assert call("refuse", json.dumps({"text": text})).content == "error: unknown order"


def test_an_outage_is_not_reported_to_the_policy() -> None:
    with pytest.raises(InfrastructureError, match="database is down"):
        call("fail", '{"how": "down"}')
