"""A wine shop: shelves and dishes for bottles."""

import json

BOTTLES = {
    "W-11": {"grape": "Riesling", "shelf": "S41"}, "W-12": {"grape": "Merlot", "shelf": "S17"},
    "W-13": {"grape": "Malbec", "shelf": "S28"}, "W-14": {"grape": "Gamay", "shelf": "S36"},
}  # fmt: skip
DISHES = {"Riesling": "trout", "Merlot": "duck", "Malbec": "steak", "Gamay": "terrine"}
SYSTEM = "You advise customers of a wine shop. Reply with the requested word only."


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


TOOLS = [
    schema("bottle", "Grape and shelf of a bottle.", "code"),
    schema("pairing", "The dish that suits a grape.", "grape"),
]


def bottle(code):
    return BOTTLES.get(code, {"error": f"no bottle {code}"})


def pairing(grape):
    return {"dish": DISHES[grape]} if grape in DISHES else {"error": f"no dish for {grape}"}


HANDLERS = {"bottle": bottle, "pairing": pairing}


def run(function):
    handler = HANDLERS.get(function["name"])
    if handler is None:
        return {"error": f"unknown tool {function['name']}"}
    try:
        raw = function["arguments"]
        return handler(**(json.loads(raw) if isinstance(raw, str) else raw))
    except (TypeError, ValueError) as error:
        return {"error": str(error)}


def check(reply, expected):
    """Whether the reply is right, and why not."""
    if reply == expected:
        return True, "right"
    return False, f"expected {expected}, not {reply}"


async def play(task, session):
    messages = [{"role": "system", "content": SYSTEM}, *task.messages]
    for _ in range(8):
        message = await session.chat(messages, TOOLS)
        messages.append(message)
        if not message.get("tool_calls"):
            return 1.0 if check((message.get("content") or "").strip(), task.fields["answer"]) else 0.0
        for call in message["tool_calls"]:
            content = json.dumps(run(call["function"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return 0.0
