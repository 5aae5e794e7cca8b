"""Which tools write, which calls can be replayed, and what a schema is inferred from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparring.traces.conversation import Conversation, LoggedCall, read_messages
from sparring.traces.tools import find_tools, infer_schema, plan_replay


def talk(*calls: tuple[str, dict[str, Any], str], tools: tuple[Any, ...] = ()) -> Conversation:
    messages: list[Any] = [{"role": "user", "content": "?"}]
    for tool, arguments, result in calls:
        messages.append(
            {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": tool, "arguments": arguments}}]}
        )
        messages.append({"role": "tool", "tool_call_id": "x", "content": result})
    messages.append({"role": "assistant", "content": "done"})
    return Conversation(where=str(Path("log")), messages=read_messages(messages, "log"), tools=tools)


@pytest.mark.parametrize(
    ("name", "writes", "why"),
    [
        ("get_order", False, "starts with 'get'"), ("lookupPrice", False, "starts with 'lookup'"),
        ("cancel_order", True, "starts with 'cancel'"), ("account.refund", True, "contains"), ("weather", False, "no verb"),
        ("get_refund_status", False, "starts with 'get'"), ("fill_prescription", True, "starts with 'fill'"),
    ],
)  # fmt: skip
def test_a_name_shows_whether_a_tool_writes(name: str, writes: bool, why: str) -> None:
    tool = find_tools([talk((name, {"id": 1}, "ok"))])[name]
    assert tool.writes is writes
    assert why in tool.why


def test_a_tool_between_two_equal_calls_with_different_results_writes() -> None:
    tools = find_tools([talk(("balance", {"id": 1}, "5"), ("settle", {"id": 1}, "ok"), ("balance", {"id": 1}, "0"))])
    assert tools["settle"].writes
    assert tools["settle"].why == "balance answered the same call differently after it"
    assert not tools["balance"].writes


def test_the_user_and_annotations_decide_before_names() -> None:
    logged = (
        {"type": "function", "function": {"name": "get_x", "parameters": {}}, "annotations": {"readOnlyHint": False}},
    )
    conversations = [talk(("get_x", {}, "1"), ("run", {}, "2"), tools=logged)]
    assert find_tools(conversations)["get_x"].writes
    assert not find_tools(conversations, reading=["get_x", "run"])["get_x"].writes
    assert not find_tools(conversations, reading=["get_x", "run"])["run"].writes


def test_a_schema_is_inferred_from_the_calls_and_marked() -> None:
    calls = [
        LoggedCall(tool="f", arguments=one, result="") for one in ({"a": 1, "b": "x"}, {"a": 1.5}, {"a": 2, "b": None})
    ]
    parameters = infer_schema("f", calls)["function"]["parameters"]
    assert parameters["properties"] == {"a": {"type": "number"}, "b": {"type": ["string", "null"]}}
    assert parameters["required"] == ["a"]
    tool = find_tools([talk(("f", {"a": 1}, "ok"))])["f"]
    assert tool.is_inferred
    assert tool.as_json()["inferred"] is True


def test_only_results_on_which_all_conversations_agree_are_answered_in_every_task() -> None:
    conversations = [
        talk(("get", {"id": 1}, "a"), ("get", {"id": 2}, "x"), ("get_user", {}, "ann"), ("cancel", {"id": 1}, "ok")),
        talk(("get", {"id": 1}, "a"), ("get", {"id": 2}, "y")),
    ]
    replay = plan_replay(conversations, find_tools(conversations))
    assert [dict(call.arguments) for call in replay.shared] == [{"id": 1}]
    assert (replay.num_calls, replay.num_shared, replay.num_own, replay.num_writes) == (6, 2, 3, 1)
    assert replay.share == pytest.approx(5 / 6)
