"""Sells cinema seats. The policy buys the first free seat of a row and reports the ticket's code."""

import json

from seats import plan
from sparring import AgentReport

SYSTEM = (
    "You sell cinema seats. Buy the free seat with the lowest number in the row, and reply with the ticket's code only."
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "free",
            "description": "Free seats of a row.",
            "parameters": {"type": "object", "properties": {"row": {"type": "string"}}, "required": ["row"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "buy",
            "description": "Buy a seat. Returns the ticket's code.",
            "parameters": {
                "type": "object",
                "properties": {"row": {"type": "string"}, "seat": {"type": "integer"}},
                "required": ["row", "seat"],
            },
        },
    },
]
HANDLERS = {"free": plan.free, "buy": plan.buy}


def execute(function):
    entry = {"tool": function["name"], "arguments": {}, "result": None, "error": None}
    try:
        raw = function["arguments"]
        entry["arguments"] = json.loads(raw) if isinstance(raw, str) else dict(raw)
        if function["name"] not in HANDLERS:
            raise ValueError(f"unknown tool {function['name']}")
        entry["result"] = HANDLERS[function["name"]](**entry["arguments"])
    except (TypeError, ValueError) as error:
        entry["error"] = str(error)
    return entry


async def play(task, session):
    plan.open(task.fields["guest"])
    messages = [{"role": "system", "content": SYSTEM}, *task.messages]
    transitions = []
    reply = ""
    for _ in range(8):
        message = await session.chat(messages, TOOLS)
        messages.append(message)
        if not message.get("tool_calls"):
            reply = (message.get("content") or "").strip()
            break
        for call in message["tool_calls"]:
            entry = execute(call["function"])
            transitions.append(entry)
            shown = {"error": entry["error"]} if entry["error"] else entry["result"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(shown)})
    bought = list(plan.bought)
    right = len(bought) == 1 and bought[0]["code"] == task.fields["code"] and reply == task.fields["code"]
    return AgentReport(reward=float(right), final_state={"bought": bought}, transitions=transitions)


def scorer(trajectory):
    code = trajectory.task.fields["code"]
    bought = (trajectory.final_state or {}).get("bought", [])
    said = (trajectory.messages[-1].get("content") or "").strip()
    return float(said == code and [each["code"] for each in bought] == [code])
