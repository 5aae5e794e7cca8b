"""Questions about the catalogue of a lamp maker."""

import json
from pathlib import Path

CATALOGUE = json.loads((Path(__file__).parent / "catalogue.json").read_text())
SYSTEM = (
    "You answer questions about lamps. The catalogue:\n"
    + "\n".join(f"- {number}: {item['name']}, {item['text']}" for number, item in CATALOGUE.items())
    + "\nPrices come from the tool. Reply with the price in euros, digits only."
)


def schema(name, description, *names):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {each: {"type": "string"} for each in names},
                "required": list(names),
            },
        },
    }


TOOLS = [schema("details", "Price of a lamp in euros, by its number.", "number")]


def details(number):
    return {"euros": CATALOGUE[number]["euros"]} if number in CATALOGUE else {"error": f"no lamp {number}"}


HANDLERS = {"details": details}


def run(function):
    handler = HANDLERS.get(function["name"])
    if handler is None:
        return {"error": f"unknown tool {function['name']}"}
    try:
        raw = function["arguments"]
        return handler(**(json.loads(raw) if isinstance(raw, str) else raw))
    except (TypeError, ValueError) as error:
        return {"error": str(error)}


async def play(task, session):
    messages = [{"role": "system", "content": SYSTEM}, *task.messages]
    for _ in range(8):
        message = await session.chat(messages, TOOLS)
        messages.append(message)
        if not message.get("tool_calls"):
            return float((message.get("content") or "").strip() == task.fields["answer"])
        for call in message["tool_calls"]:
            content = json.dumps(run(call["function"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return 0.0


def scorer(trajectory):
    last = trajectory.messages[-1]
    return float(
        last["role"] == "assistant" and (last.get("content") or "").strip() == trajectory.task.fields["answer"]
    )
