"""A calendar assistant that answers questions about one week of meetings."""

import json
from datetime import datetime
from pathlib import Path

EVENTS = json.loads((Path(__file__).parent / "events.json").read_text())

INTRODUCTION = """You are the calendar assistant of a small office.
It is {now}. Dates have the form YYYY-MM-DD and times HH:MM.
Look the meetings up with the tools and answer with the requested time or room only."""


def schema(name, description, properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    schema("list_days", "All days that have meetings.", {}),
    schema("meetings_on", "The meetings of one day.", {"day": {"type": "string", "description": "YYYY-MM-DD"}}),
    schema("room_of", "The room of a meeting.", {"day": {"type": "string"}, "start": {"type": "string"}}),
]


def list_days():
    return sorted(EVENTS)


def meetings_on(day):
    return [{"start": start, "title": title} for start, title, _ in EVENTS.get(day, [])]


def room_of(day, start):
    for begins, _, room in EVENTS.get(day, []):
        if begins == start:
            return {"room": room}
    return {"error": "no meeting starts at that time"}


FUNCTIONS = {"list_days": list_days, "meetings_on": meetings_on, "room_of": room_of}


def answer_call(call):
    function = call["function"]
    if function["name"] not in FUNCTIONS:
        return {"error": f"no tool is called {function['name']}"}
    try:
        arguments = function["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        return FUNCTIONS[function["name"]](**arguments)
    except (TypeError, ValueError) as error:
        return {"error": str(error)}


async def play(task, session):
    system = INTRODUCTION.format(now=datetime.now().strftime("%A, %d %B %Y, %H:%M:%S"))
    messages = [{"role": "system", "content": system}, *task.messages]
    for _ in range(8):
        message = await session.chat(messages, TOOLS)
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            return float((message.get("content") or "").strip() == task.fields["answer"])
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(answer_call(call))} for call in calls
        ]
    return 0.0


def scorer(trajectory):
    answer = trajectory.messages[-1]
    return float(
        answer["role"] == "assistant" and (answer.get("content") or "").strip() == trajectory.task.fields["answer"]
    )
