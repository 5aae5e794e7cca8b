"""Read model calls from spans: MLflow traces, and spans that follow OpenTelemetry's semantic conventions for generative AI.

MLflow's format is that of `Trace.to_json` (https://mlflow.org/docs/latest/genai/tracing/concepts/trace/). Spans of
OpenTelemetry may come as OTLP/JSON (`resourceSpans`), or one at a time as `ReadableSpan.to_json` of the Python SDK writes
them. Their messages are in `gen_ai.input.messages`, `gen_ai.output.messages` and `gen_ai.system_instructions`, and their
tools in `gen_ai.tool.definitions`, as attributes of the span or of one of its events
(https://github.com/open-telemetry/semantic-conventions/tree/main/docs/gen-ai).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sparring.chat.messages import read_json
from sparring.errors import DataError
from sparring.traces.marks import Marking
from sparring.types import Json

INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
SYSTEM, TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
_MODEL_CALLS = frozenset({"CHAT_MODEL", "LLM"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One model call, or a mark of its trace."""

    where: str
    group: str
    """The conversation, or else the trace."""
    trace: str
    began: int
    asked: Any = None
    answered: Any = None
    tools: Any = None
    is_good: bool | None = None


def is_trace_export(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a trace of MLflow."""
    return isinstance(row.get("data"), Mapping) and "spans" in row["data"]


def is_otel(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a span, or an export of spans, of OpenTelemetry."""
    return "resourceSpans" in row or ("attributes" in row and bool({"context", "traceId", "trace_id"} & set(row)))


def list_spans(row: Mapping[str, Any], where: str, marking: Marking) -> list[Span]:
    """Return the model calls and the marks of a row. Raises DataError, which contains `where`, if it cannot be read."""
    try:
        if is_trace_export(row):
            return list(_mlflow_spans(row, where, marking))
        if "resourceSpans" not in row:
            return [_otel_span(row, where, marking)]
        return [
            _otel_span(one, f"{where}, span {number}", marking) for number, one in enumerate(_otel_rows(row), start=1)
        ]
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{where}: the spans cannot be read ({error!r}); give MLflow's or OpenTelemetry's own JSON export."
        ) from error


def list_evaluations(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the fields of each trace or span of a row that may be marks: assessments and tags, or evaluations."""
    if is_trace_export(row):
        return [_mlflow_fields(row.get("info") or {})]
    return [_evaluations(one) for one in _otel_rows(row)]


def spans_to_rows(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the model calls in the order of their start, each with the mark of its trace, or else of its conversation.

    A call without an answer, such as a request that was refused and tried again, is yielded only if its conversation has
    no other.
    """
    marked = [one for one in spans if one.is_good is not None]
    of_trace = {one.trace: one.is_good for one in marked}
    of_group = {one.group: one.is_good for one in marked}
    answered = {one.group for one in spans if one.answered is not None}
    calls = (one for one in spans if one.answered is not None or (one.asked is not None and one.group not in answered))
    for one in sorted(calls, key=lambda one: one.began):
        yield replace(one, is_good=of_trace.get(one.trace, of_group.get(one.group)))


def chat_messages(span: Span) -> list[Any]:
    """Return the messages of a model call with its answer, in the OpenAI shape."""
    asked = span.asked if isinstance(span.asked, list) else []
    return [*asked, *([] if span.answered is None else [span.answered])]


def _mlflow_spans(row: Mapping[str, Any], where: str, marking: Marking) -> Iterator[Span]:
    info = row.get("info") or {}
    trace = str(info.get("trace_id") or info.get("request_id") or where)
    metadata = info.get("trace_metadata") or info.get("request_metadata") or {}
    group = str(metadata.get("mlflow.trace.session") or trace)
    mark = marking.read(_mlflow_fields(info), where)
    yield Span(where=where, group=group, trace=trace, began=0, is_good=mark)
    earlier: list[Any] = []
    for number, span in enumerate(sorted(row["data"]["spans"], key=_began), start=1):
        attributes = {name: _decoded(value) for name, value in (span.get("attributes") or {}).items()}
        if attributes.get("mlflow.spanType") not in _MODEL_CALLS:
            continue
        inputs, outputs = attributes.get("mlflow.spanInputs"), attributes.get("mlflow.spanOutputs")
        asked = inputs.get("messages") if isinstance(inputs, Mapping) else inputs
        answered = _mlflow_answer(outputs)
        if not isinstance(asked, list) or answered is None:
            continue
        if earlier and not any(isinstance(one, Mapping) and one.get("role") in ("user", "system") for one in asked[:1]):
            asked = [*earlier, *asked]  # the span has only what is new since the previous call
        earlier = [*asked, answered]
        tools = attributes.get("mlflow.chat.tools") or (inputs.get("tools") if isinstance(inputs, Mapping) else None)
        yield Span(
            where=f"{where}, span {number}", group=group, trace=trace, began=_began(span), asked=asked, answered=answered,
            tools=tools,
        )  # fmt: skip


def _mlflow_answer(outputs: Any) -> Mapping[str, Json] | None:
    """Return the assistant's message of a model call's outputs: a chat completion, messages, or a message."""
    if not isinstance(outputs, Mapping):
        return {"role": "assistant", "content": outputs} if isinstance(outputs, str) else None
    if outputs.get("choices"):
        outputs = outputs["choices"][0]["message"]
    elif outputs.get("messages"):
        outputs = outputs["messages"][-1]
    if not {"content", "tool_calls"} & set(outputs):
        return None
    return {"role": "assistant", **{name: value for name, value in outputs.items() if value is not None}}


def _mlflow_fields(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tags and the assessments of a trace, by name."""
    found: dict[str, Any] = dict(info.get("tags") or {})
    for one in info.get("assessments") or ():
        value = (one.get("feedback") or {}).get("value")
        if value is not None:
            found[str(one.get("assessment_name") or one.get("name"))] = _decoded(value)
    return found


def _otel_rows(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the spans of a row."""
    if "resourceSpans" not in row:
        return [row]
    return [
        span
        for resource in row["resourceSpans"]
        for scope in resource.get("scopeSpans", ())
        for span in scope.get("spans", ())
    ]


def _otel_span(row: Mapping[str, Any], where: str, marking: Marking) -> Span:
    attributes = _attributes(row.get("attributes"))
    for event in row.get("events") or ():
        own = _attributes(event.get("attributes"))
        attributes |= {name: own[name] for name in (INPUT, OUTPUT, SYSTEM, TOOLS) if name in own}
    attributes |= _evaluations(row)
    context = row.get("context") or row
    trace = str(context.get("trace_id") or context.get("traceId"))
    asked, answered = attributes.get(INPUT), attributes.get(OUTPUT)
    system = [{"role": "system", "parts": attributes[SYSTEM]}] if attributes.get(SYSTEM) else []
    return Span(
        where=where,
        group=str(attributes.get("gen_ai.conversation.id") or trace),
        trace=trace,
        began=_began(row),
        asked=None if asked is None else [message for one in [*system, *asked] for message in _from_parts(one)],
        answered=None if not answered else next(iter(_from_parts(answered[0])), None),
        tools=attributes.get(TOOLS),
        is_good=marking.read(attributes, where),
    )


def _evaluations(span: Mapping[str, Any]) -> dict[str, Json]:
    """Return the results of the evaluations that the events of a span hold, by the name of the evaluation."""
    found = {}
    for event in span.get("events") or ():
        if event.get("name") == "gen_ai.evaluation.result":
            own = _attributes(event.get("attributes"))
            value = own.get("gen_ai.evaluation.score.value", own.get("gen_ai.evaluation.score.label"))
            found[str(own.get("gen_ai.evaluation.name", "score"))] = value
    return found


def _from_parts(message: Mapping[str, Any]) -> list[dict[str, Json]]:
    """Return a message of the conventions as messages in the OpenAI shape. Results of tools are messages of their own."""
    if "parts" not in message:
        return [dict(message)]
    role, content, calls, results = message["role"], [], [], []
    reasoning = ""
    for part in message["parts"]:
        match part["type"]:
            case "text":
                content.append({"type": "text", "text": part["content"]})
            case "reasoning":
                reasoning += part.get("content") or ""
            case "tool_call":
                function = {"name": part["name"], "arguments": _decoded(part.get("arguments")) or {}}
                calls.append({"id": part.get("id"), "type": "function", "function": function})
            case "tool_call_response":
                # The first versions of the conventions had `result`.
                result = part.get("response", part.get("result"))
                results.append({"role": "tool", "tool_call_id": part.get("id"), "content": result})
            case _:
                content.append(dict(part))
    if results:
        return results
    own: dict[str, Json] = {"role": role, "content": content}
    return [own | ({"tool_calls": calls} if calls else {}) | ({"reasoning_content": reasoning} if reasoning else {})]


def _attributes(raw: Any) -> dict[str, Json]:
    """Return attributes by name. OTLP/JSON has them as a list of keys with typed values; texts may contain JSON."""
    if isinstance(raw, list):
        raw = {one["key"]: _otlp_value(one["value"]) for one in raw}
    return {name: _decoded(value) for name, value in (raw or {}).items()}


def _otlp_value(value: Mapping[str, Any]) -> Json:
    """Return a value of OTLP/JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding)."""
    if not value:
        return None
    kind, inner = next(iter(value.items()))
    match kind:
        case "arrayValue":
            return [_otlp_value(one) for one in inner.get("values", ())]
        case "kvlistValue":
            return {one["key"]: _otlp_value(one["value"]) for one in inner.get("values", ())}
        case "intValue":
            return int(inner)
        case _:
            return inner


def _began(span: Mapping[str, Any]) -> int:
    """Return when a span began, in nanoseconds since 1970."""
    for name in ("startTimeUnixNano", "start_time_unix_nano", "start_time_ns"):
        if name in span:
            return int(span[name])
    text = span.get("start_time")
    return int(datetime.fromisoformat(text).timestamp() * 1e6) * 1000 if isinstance(text, str) else 0


def _decoded(value: Any) -> Any:
    """Return the value of a JSON text, and any other value unchanged. MLflow stores each attribute as such a text."""
    if isinstance(value, str) and value[:1] in '{["':
        try:
            return read_json(value)
        except ValueError:
            return value
    return value
