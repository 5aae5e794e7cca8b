"""A harbour pilot who reads tide tables."""

import functools
import json
import math

MAX_TURNS = 8
PORTS = {
    "Brest": (4.0, 2.9, 3),
    "Dover": (3.7, 2.3, 11),
    "Cuxhaven": (1.9, 1.4, 1),
    "Lisbon": (2.2, 1.1, 4),
    "Esbjerg": (1.0, 0.8, 2),
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "ports",
            "description": "Ports that have a table.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "height",
            "description": "Height of the water at a port in centimetres.",
            "parameters": {
                "type": "object",
                "properties": {
                    "port": {"type": "string"},
                    "hour": {"type": "integer", "description": "Hour of the day, 0 to 23"},
                },
                "required": ["port", "hour"],
            },
        },
    },
]


@functools.lru_cache(maxsize=256)
def water(port, hour):
    mean, swing, high = PORTS[port]
    return round(100 * (mean + swing * math.cos(2 * math.pi * (hour - high) / 12.4)))


def height(port, hour):
    if port not in PORTS:
        raise ValueError(f"no table for {port!r}")
    hour = int(hour)
    if not 0 <= hour <= 23:
        raise ValueError("the hour must be between 0 and 23")
    return {"port": port, "hour": hour, "cm": water(port, hour)}


def ports():
    return sorted(PORTS)


def answer_call(call):
    function = call.get("function", call)
    tool = {"ports": ports, "height": height}.get(function.get("name"))
    if tool is None:
        return f"Error: unknown tool {function.get('name')}"
    arguments = function.get("arguments") or {}
    try:
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        return json.dumps(tool(**arguments))
    except (TypeError, ValueError, OverflowError) as error:
        return f"Error: {error}"


def matches(text, answer):
    return (text or "").strip().removesuffix(".").removesuffix("cm").strip() == str(answer)


async def play(task, session):
    messages = [
        {"role": "system", "content": "You are a harbour pilot. Answer with whole centimetres, the number alone."},
        *(dict(message) for message in task.messages),
    ]
    for _ in range(MAX_TURNS):
        message = await session.chat(messages, TOOLS)
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            return float(matches(message.get("content"), task.fields["answer"]))
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": answer_call(call)})
    return 0.0


def reward(trajectory):
    last = next((m for m in reversed(trajectory.messages) if m.get("role") == "assistant"), {})
    return float(matches(last.get("content"), trajectory.task.fields["answer"]))


def scorer(trajectory):
    last = next((m for m in reversed(trajectory.messages) if m.get("role") == "assistant"), {})
    return 1.0 if matches(last.get("content"), trajectory.task.fields["answer"]) else 0.0
