"""A museum guide that shows visitors in which room an exhibit hangs today."""

import json

COLLECTION = {
    "Night Harbour": {"code": "M-118", "artist": "Lind"},
    "Blue Interior": {"code": "M-131", "artist": "Oke"},
    "The Ferryman": {"code": "M-147", "artist": "Lind"},
    "Two Sisters": {"code": "M-152", "artist": "Baro"},
    "Winter Market": {"code": "M-166", "artist": "Oke"},
    "Salt Road": {"code": "M-173", "artist": "Baro"},
    "Orchard, Evening": {"code": "M-189", "artist": "Vik"},
    "Harvest Moon": {"code": "M-194", "artist": "Vik"},
}
ROOMS = {
    "M-118": "Gallery 41", "M-131": "Rotunda", "M-147": "Gallery 23", "M-152": "East Loft",
    "M-166": "Gallery 37", "M-173": "Print Cabinet", "M-189": "Garden Hall", "M-194": "Gallery 52",
}  # fmt: skip

SYSTEM = """You guide visitors through a museum. Look an exhibit up before you answer; rooms change often.
Reply with the name of the room and nothing else.

Visitor's ticket: {ticket}"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "exhibit",
            "description": "Code and artist of an exhibit.",
            "parameters": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "locate",
            "description": "The room in which an exhibit hangs, by its code.",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
        },
    },
]


def exhibit(title):
    return COLLECTION.get(title) or {"error": f"no exhibit is called {title}"}


def locate(code):
    return {"room": ROOMS[code]} if code in ROOMS else {"error": f"no code {code}"}


TABLE = {"exhibit": exhibit, "locate": locate}


def use(function):
    handler = TABLE.get(function["name"])
    if handler is None:
        return json.dumps({"error": f"unknown tool {function['name']}"})
    raw = function["arguments"]
    try:
        return json.dumps(handler(**(json.loads(raw) if isinstance(raw, str) else raw)))
    except (TypeError, ValueError) as error:
        return json.dumps({"error": str(error)})


async def play(task, session):
    ticket = json.dumps(dict(task.fields), ensure_ascii=False, sort_keys=True)
    messages = [{"role": "system", "content": SYSTEM.format(ticket=ticket)}, *task.messages]
    for _ in range(8):
        message = await session.chat(messages, TOOLS)
        messages.append(message)
        if not message.get("tool_calls"):
            return float((message.get("content") or "").strip() == task.fields["room"])
        for call in message["tool_calls"]:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": use(call["function"])})
    return 0.0


def scorer(trajectory):
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and (last.get("content") or "").strip() == trajectory.task.fields["room"])
