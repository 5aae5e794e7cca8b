"""Logs of each format become conversations; what cannot be read is named with its row, what cannot be used is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import DataError, UsageError
from sparring.traces import Marking, read_traces

ASK = {"role": "user", "content": "where is 7?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "x", "type": "function", "function": {"name": "find", "arguments": '{"id": 7}'}}],
}
BROKEN = {"role": "assistant", "tool_calls": [{"function": {"name": "find", "arguments": "{"}}]}
FOUND = {"role": "tool", "tool_call_id": "x", "content": {"shelf": "B3"}}
END = {"role": "assistant", "content": "B3"}
TALK = [ASK, CALL, FOUND, END]
DEEP = "[" * 900 + "]" * 900


def log(folder: Path, *rows: Any, name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def test_arguments_are_parsed_results_become_text_and_calls_get_the_ids_of_sessions(tmp_path: Path) -> None:
    [one] = read_traces(log(tmp_path, TALK)).conversations
    assert one.messages[1]["tool_calls"][0] == {
        "id": "call_0_0",
        "type": "function",
        "function": {"name": "find", "arguments": {"id": 7}},
    }
    assert one.messages[2] == {"role": "tool", "tool_call_id": "call_0_0", "content": '{"shelf":"B3"}'}
    assert one.answers == ("B3",)


def test_requests_of_one_conversation_are_joined_and_a_late_mark_counts(tmp_path: Path) -> None:
    first = {"request": {"messages": [ASK]}, "response": {"choices": [{"message": CALL}]}}
    second = {
        "request": json.dumps({"messages": [ASK, CALL, FOUND]}),
        "response": {"choices": [{"message": END}]},
        "score": 0.2,
    }
    traces = read_traces(log(tmp_path, first, second))
    assert [one.answers for one in traces.conversations] == [("B3",)]
    assert traces.conversations[0].is_good is False
    assert read_traces(tmp_path / "log.jsonl", Marking(at_least=0.1)).conversations[0].is_good is True


@pytest.mark.parametrize(
    ("row", "good"),
    [
        ({"good": True}, True), ({"score": 0.4}, False), ({"feedback": "thumbs_up"}, True),
        ({"feedback": {"rating": "bad"}}, False),
        ({"metadata": {"score": "1"}}, True), ({"good": None}, None), ({}, None),
    ],
)  # fmt: skip
def test_a_mark_is_a_flag_a_number_or_a_word(row: dict[str, Any], good: bool | None, tmp_path: Path) -> None:
    assert read_traces(log(tmp_path, {"messages": TALK, **row})).conversations[0].is_good is good


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([ASK, CALL], "it does not end with an answer of the assistant"),
        ([ASK, CALL, END], "a call has no logged result"),
        ([ASK, FOUND, END], "a tool result belongs to no call"),
        ([END], "it has no message of a user before the first answer"),
        ([{"role": "user", "content": [{"type": "image_url"}]}, END], "a message has content other than text"),
        ([ASK, BROKEN, FOUND, END], "the arguments of a call are not a JSON object"),
        ({"request": {"messages": [ASK]}, "response": {"error": "busy"}}, "it does not end with an answer of the assistant"),
    ],
)  # fmt: skip
def test_a_conversation_that_cannot_be_used_is_counted_with_its_reason(row: Any, reason: str, tmp_path: Path) -> None:
    traces = read_traces(log(tmp_path, row, TALK))
    assert traces.left_out == {reason: 1}
    assert len(traces.conversations) == 1


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("{", "not JSON"),
        ("7", "7 is not an object"),
        ({"text": "hello"}, "a row with 'text' has no known format"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "message 1 is {'role': 'robot'"),
        ({"messages": []}, "is not a list of messages"),
        ({"messages": TALK, "good": "perhaps"}, "good = 'perhaps' is neither good nor bad"),
        ({"messages": TALK, "tools": [{"type": "function"}]}, "is not a tool"),
        ({"messages": [ASK, {**CALL, "tool_calls": [{"function": {}}]}]}, "names no function"),
        ({"request": {"messages": [ASK]}, "response": {"choices": [7]}}, "no choices[0].message"),
        ({"messages": [ASK, {**CALL, "tool_calls": [{"function": {"name": {"a": 1}}}]}]}, "names no function"),
        ({"messages": TALK, "tools": [{"name": "find", "parameters": [1]}]}, "the parameters of a tool are [1]"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "cannot be read"),
        ({"messages": [ASK, {**CALL, "tool_calls": [{"function": "find"}]}]}, "cannot be read"),
        ({"resourceSpans": [{"scopeSpans": 7}]}, "the spans cannot be read"),
        ('{"messages": [], "score": NaN}', "not JSON"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "not JSON"),
        (f'{{"resourceSpans": {DEEP}}}', "cannot be read"),
        (f'{{"messages": [], "tools": [{{"name": "f", "parameters": {{"enum": {DEEP}}}}}]}}', "not a list of messages"),
        (json.dumps({"messages": TALK, "tools": [{"name": "f"}]}).replace('"f"', f'"f", "parameters": {{"a": {DEEP}}}'),
         "nested deeper than 200 levels"),
        ({"request": '{"messages": [{"role": "user", "content": "\\ud800"}]}', "response": {}}, "no known format"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_read_is_listed_with_its_line_and_the_others_are_read(
    row: Any, problem: str, tmp_path: Path
) -> None:
    path = log(tmp_path, TALK, row, TALK)
    traces = read_traces(path)
    assert len(traces.conversations) == 2
    [unread] = traces.unread
    assert f"{path}, line 2" in unread
    assert problem in unread

    with pytest.raises(DataError, match=r"no row of .* can be read \(2 rows\). The first: .*line 1"):
        read_traces(log(tmp_path, row, row))


def test_a_row_that_is_not_utf_8_or_not_strict_does_not_spoil_its_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(TALK).encode() + b'\n[{"role": "user", "content": "\xff"}]\n')
    traces = read_traces(path)
    assert (len(traces.conversations), len(traces.unread)) == (1, 1)
    assert "line 2: not JSON" in traces.unread[0]

    path = tmp_path / "log.json"
    half = [ASK, {"role": "assistant", "content": "\ud800"}]
    number = {"messages": TALK, "tools": [{"name": "f", "parameters": {"default": float("nan")}}]}
    path.write_text(json.dumps([half, TALK, number]))
    traces = read_traces(path)
    assert len(traces.conversations) == 1
    assert [one.split(": ")[0] for one in traces.unread] == [f"{path}, row 1", f"{path}, row 3"]


def test_an_empty_or_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_traces(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match="contains no rows"):
        read_traces(log(tmp_path, name="empty.jsonl"))


def mlflow_trace(spans: list[dict[str, Any]], assessment: Any) -> dict[str, Any]:
    """Return a trace as `Trace.to_json` of MLflow 3.17 writes it: each attribute is JSON text."""
    info = {
        "trace_id": "tr-1",
        "assessments": [{"assessment_name": "good", "feedback": {"value": assessment}}],
        "tags": {},
    }
    rows = [
        {
            "name": "call",
            "start_time_unix_nano": 1795856059389649812 + place,
            "attributes": {name: json.dumps(value) for name, value in one.items()},
        }
        for place, one in enumerate(spans)
    ]
    return {"info": info, "data": {"spans": rows}}


@pytest.mark.parametrize("second", [[ASK, CALL, FOUND], [FOUND]], ids=["whole history", "new messages only"])
def test_a_trace_of_mlflow_is_one_conversation_with_its_feedback(second: list[Any], tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
    rows = [
        ("AGENT", {"question": "?"}, None),
        ("CHAT_MODEL", {"messages": [ASK], "tools": tools}, {"choices": [{"message": CALL}]}),
        ("TOOL", {"id": 7}, {"shelf": "B3"}),
        ("CHAT_MODEL", {"messages": second, "tools": tools}, {"choices": [{"message": END}]}),
    ]
    spans = [
        {"mlflow.spanType": kind, "mlflow.spanInputs": given, "mlflow.spanOutputs": result}
        for kind, given, result in rows
    ]
    [one] = read_traces(log(tmp_path, mlflow_trace(spans, assessment=True))).conversations
    assert [message["role"] for message in one.messages] == ["user", "assistant", "tool", "assistant"]
    assert one.is_good is True
    assert [tool["function"]["name"] for tool in one.tools] == ["find"]


def otel_span(
    began: int, asked: Any, answered: Any, *, trace: str = "1", mark: tuple[str, Any] | None = None
) -> dict[str, Any]:
    """Return a span of the conversation c1 as OTLP/JSON."""
    values = {"gen_ai.conversation.id": "c1"}
    values |= {} if asked is None else {"gen_ai.input.messages": json.dumps(asked)}
    values |= {} if answered is None else {"gen_ai.output.messages": json.dumps([answered])}
    span: dict[str, Any] = {"traceId": trace, "spanId": str(began), "startTimeUnixNano": str(began), "attributes": [
        {"key": key, "value": {"stringValue": value}} for key, value in values.items()
    ]}  # fmt: skip
    if mark is not None:
        name, value = mark
        fields = {"name": {"stringValue": name}, "score.value": {"doubleValue": value}}
        attributes = [{"key": f"gen_ai.evaluation.{key}", "value": one} for key, one in fields.items()]
        span["events"] = [{"name": "gen_ai.evaluation.result", "attributes": attributes}]
    return span


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def test_a_refused_request_that_was_tried_again_is_no_conversation(tmp_path: Path) -> None:
    asked = [{"role": "system", "content": "short"}, ASK]
    refused = otel_span(1, [ASK], None)  # some loggers record less of a request that fails
    traces = read_traces(log(tmp_path, otlp(refused, otel_span(2, asked, END))))
    assert [one.answers for one in traces.conversations] == [("B3",)]
    assert traces.left_out == {}
    alone = read_traces(log(tmp_path, otlp(refused), otlp(otel_span(2, [ASK], END) | {"attributes": []})))
    assert alone.left_out == {"it does not end with an answer of the assistant": 1}


def test_a_mark_in_a_trace_of_its_own_belongs_to_the_conversation_that_it_names(tmp_path: Path) -> None:
    path = log(tmp_path, otlp(otel_span(1, [ASK], END)), otlp(otel_span(2, None, None, trace="2", mark=("csat", 2.0))))
    [one] = read_traces(path, Marking(("csat",), at_least=4)).conversations
    assert one.is_good is False


def test_fields_that_may_be_marks_are_suggested_if_nothing_is_marked(tmp_path: Path) -> None:
    spans = otlp(otel_span(1, [ASK], END, mark=("csat", 5.0)))
    row = {"messages": TALK, "metadata": {"rating": "thumbs_down", "tokens": 512, "user": "Emma"}}
    trace = mlflow_trace([], assessment=True)
    trace["info"]["assessments"][0]["assessment_name"] = "solved"
    traces = read_traces(log(tmp_path, spans, row, trace))
    assert traces.likely_marks == {"csat": 1, "rating": 1, "solved": 1}
    with pytest.raises(UsageError, match=r"has the field 'cast'. Fields that may be marks: csat \(1 rows\), rating"):
        traces.require_marks("cast")
    marked = read_traces(tmp_path / "log.jsonl", Marking(("rating",)))
    assert marked.likely_marks == {}
    marked.require_marks("rating")


def test_traces_of_one_mlflow_session_are_one_conversation(tmp_path: Path) -> None:
    more = [*TALK, {"role": "user", "content": "and 8?"}]
    traces = []
    for number, asked in enumerate(([ASK, CALL, FOUND], more)):
        span = {"mlflow.spanType": "CHAT_MODEL", "mlflow.spanInputs": {"messages": asked},
                "mlflow.spanOutputs": {"choices": [{"message": END}]}}  # fmt: skip
        trace = mlflow_trace([span], assessment=None)
        trace["info"] |= {"trace_id": f"tr-{number}", "trace_metadata": {"mlflow.trace.session": "s"}}
        trace["data"]["spans"][0]["start_time_unix_nano"] += number
        traces.append(trace)
    [one] = read_traces(log(tmp_path, *traces)).conversations
    assert one.replies == ("and 8?",)


def test_a_span_of_the_python_sdk_is_read_without_otlp(tmp_path: Path) -> None:
    parts = [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "B3"}]
    span = {
        "name": "chat m",
        "context": {"trace_id": "0x1", "span_id": "0x2"},
        "start_time": "2026-11-28T08:54:19.389Z",
        "attributes": {
            "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "where is 7?"}]}]),
            "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": parts}]),
            "feedback": "good",
        },
    }  # fmt: skip
    [one] = read_traces(log(tmp_path, span)).conversations
    assert one.messages == (ASK, {"role": "assistant", "content": "B3", "reasoning_content": "hm"})
    assert one.is_good is True
