"""A car park: where cars stand and how long they have been there."""

import json
import logging
from pathlib import Path

CARS = {
    "RX-410": ("P3-17", 95), "RX-422": ("P1-08", 142), "RX-435": ("P2-33", 61), "RX-447": ("P4-21", 208),
}  # fmt: skip
SYSTEM = "You work in a car park. Reply with the requested spot or number only."

log = logging.getLogger("parking")
log.setLevel(logging.INFO)
log.propagate = False
if not log.handlers:
    log.addHandler(logging.FileHandler(Path(__file__).with_name("parking.log")))


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


TOOLS = [schema("spot_of", "The spot of a car.", "plate"), schema("minutes", "Minutes since a car came.", "plate")]


def spot_of(plate):
    return {"spot": CARS[plate][0]} if plate in CARS else {"error": f"no car {plate}"}


def minutes(plate):
    return {"minutes": CARS[plate][1]} if plate in CARS else {"error": f"no car {plate}"}


HANDLERS = {"spot_of": spot_of, "minutes": minutes}


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
            log.info("%s %s -> %s", task.id, call["function"]["name"], content)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return 0.0


def scorer(trajectory):
    last = trajectory.messages[-1]
    return float(
        last["role"] == "assistant" and (last.get("content") or "").strip() == trajectory.task.fields["answer"]
    )
