"""A generator of logged conversations: an order desk with five tools, three kinds of questions and one follow-up.

    python -m tests.traces.desk > desk.jsonl

The ids are single letters and digits, so that a small model can copy them.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]
LETTERS, DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"
SYSTEM = "desk"
PARAMETERS = {
    "find_order": "customer",
    "get_item": "order",
    "get_shelf": "item",
    "get_price": "item",
    "cancel_order": "order",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": name.replace("_", " "),
            "parameters": {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]},
        },
    }
    for name, argument in PARAMETERS.items()
]


class Desk:
    """The tables of the desk, which are the same in every conversation."""

    def __init__(self, seed: int = 0) -> None:
        rng = random.Random(seed)
        pairs = [f"{letter} {digit}" for letter in LETTERS for digit in DIGITS]
        orders, items = (rng.sample(pairs, len(pairs)) for _ in range(2))
        self.orders = dict(zip(pairs, orders, strict=True))
        self.items = dict(zip(orders, items, strict=True))
        self.shelves = {item: rng.choice(DIGITS) for item in items}
        self.prices = {item: rng.choice(DIGITS) for item in items}

    def answer(self, tool: str, arguments: Row) -> str:
        [given] = arguments.values()
        tables = {
            "find_order": self.orders,
            "get_item": self.items,
            "get_shelf": self.shelves,
            "get_price": self.prices,
        }
        return tables[tool].get(given, "unknown") if tool in tables else "done"

    def script(self, question: str) -> list[tuple[str, str]]:
        """Return the calls of the right procedure for one question, and the answer as the last pair."""
        kind, customer = question.split(maxsplit=1)
        order = self.orders[customer]
        if kind == "cancel":
            return [("find_order", customer), ("cancel_order", order), ("", f"cancelled {order}")]
        item = self.items[order]
        start = [("find_order", customer), ("get_item", order)]
        if kind == "price":
            return [*start, ("get_price", item), ("", f"price {self.prices[item]}")]
        return [*start, ("get_shelf", item), ("", f"shelf {self.shelves[item]}")]


def conversations(num: int = 300, seed: int = 0) -> Iterator[Row]:
    """Yield rows with `messages`, `tools` and `good`, each with another question.

    One in eight has a wrong answer and is marked as bad. Some have a second question."""
    rng, desk = random.Random(seed), Desk()
    questions = [(kind, customer) for kind in ("shelf", "price", "cancel") for customer in desk.orders]
    for kind, customer in rng.sample(questions, num):
        is_good = rng.random() > 1 / 8
        messages = [{"role": "system", "content": SYSTEM}]
        _ask(messages, desk, f"{kind} {customer}", None if is_good else rng.choice(DIGITS))
        if kind == "shelf" and is_good and rng.random() < 1 / 3:
            _ask(messages, desk, f"price {customer}", None)
        yield {"messages": messages, "tools": TOOLS, "good": is_good}


def _ask(messages: list[Row], desk: Desk, question: str, wrong: str | None) -> None:
    """Append a question, the calls with their results, and the answer, which a wrong digit replaces."""
    messages.append({"role": "user", "content": question})
    *calls, (_, answer) = desk.script(question)
    for tool, value in calls:
        id = f"call-{len(messages)}"
        function = {"name": tool, "arguments": json.dumps({PARAMETERS[tool]: value})}
        messages.append(
            {"role": "assistant", "content": None, "tool_calls": [{"id": id, "type": "function", "function": function}]}
        )
        messages.append({"role": "tool", "tool_call_id": id, "content": desk.answer(tool, {PARAMETERS[tool]: value})})
    messages.append(
        {"role": "assistant", "content": answer if wrong is None else f"{answer.split()[0]} {wrong} {wrong}"}
    )


def as_pairs(row: Row) -> Iterator[Row]:
    """Yield one request with its response for each message of the assistant, as a proxy logs them."""
    for place, message in enumerate(row["messages"]):
        if message["role"] == "assistant":
            request = {"model": "m", "messages": row["messages"][:place], "tools": row["tools"]}
            response = {"id": "chatcmpl-1", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}
            is_last = place == len(row["messages"]) - 1
            yield {
                "request": request,
                "response": response,
                **({"feedback": "up" if row["good"] else "down"} if is_last else {}),
            }


def as_spans(row: Row, trace: int) -> Row:
    """Return the conversation as OTLP/JSON, with one chat span for each message of the assistant."""
    spans = []
    messages = [_in_parts(message) for message in row["messages"]]
    for place, message in enumerate(row["messages"]):
        if message["role"] == "assistant":
            attributes = {
                "gen_ai.operation.name": "chat",
                "gen_ai.input.messages": json.dumps(messages[1:place]),
                "gen_ai.output.messages": json.dumps([{**messages[place], "finish_reason": "stop"}]),
                "gen_ai.system_instructions": json.dumps(messages[0]["parts"]),
                "gen_ai.tool.definitions": json.dumps(
                    [{"type": "function", **tool["function"]} for tool in row["tools"]]
                ),
            }
            spans.append(_span(trace, place, "chat m", attributes))
    evaluation = {"gen_ai.evaluation.name": "score", "gen_ai.evaluation.score.value": float(row["good"])}
    spans[-1]["events"] = [{"name": "gen_ai.evaluation.result", "attributes": _otlp(evaluation)}]
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans[::-1]}]}]}


def _in_parts(message: Row) -> Row:
    if message["role"] == "tool":
        part = {"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}
        return {"role": "tool", "parts": [part]}
    parts = [{"type": "text", "content": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        parts.append({"type": "tool_call", "id": call["id"], "name": function["name"], "arguments": arguments})
    return {"role": message["role"], "parts": parts}


def _span(trace: int, place: int, name: str, attributes: Row) -> Row:
    return {
        "traceId": f"{trace:032x}", "spanId": f"{place:016x}", "name": name, "startTimeUnixNano": str(10**18 + place),
        "attributes": _otlp(attributes),
    }  # fmt: skip


def _otlp(attributes: Row) -> list[Row]:
    kinds = {str: "stringValue", float: "doubleValue"}
    return [{"key": name, "value": {kinds[type(value)]: value}} for name, value in attributes.items()]


if __name__ == "__main__":
    sys.stdout.writelines(f"{json.dumps(row)}\n" for row in conversations())
