"""A kennel: which dog sleeps where, and what it eats."""

import json

DOGS = {
    "Bruno": {"run": "N4", "owner": "Iris Falk", "food": "lamb"},
    "Kira": {"run": "S2", "owner": "Tom Reuter", "food": "salmon"},
    "Moss": {"run": "E9", "owner": "Ada Lindt", "food": "turkey"},
    "Pixel": {"run": "W7", "owner": "Jon Weiss", "food": "duck"},
}
GRAMS = {"lamb": 310, "salmon": 275, "turkey": 420, "duck": 365}
SYSTEM = "You help in a kennel. Use the tools; finish with the requested value alone."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "dog",
            "description": "Run, owner and food of a dog.",
            "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "ration",
            "description": "Grams of a food per day.",
            "parameters": {"type": "object", "properties": {"food": {"type": "string"}}, "required": ["food"]},
        },
    },
]


def dog(name):
    return DOGS.get(name, {"error": "no such dog"})


def ration(food):
    return {"grams": GRAMS[food]} if food in GRAMS else {"error": "no such food"}


HANDLERS = {"dog": dog, "ration": ration}


def execute(name, raw):
    if name not in HANDLERS:
        return json.dumps({"error": f"unknown tool {name}"})
    try:
        return json.dumps(HANDLERS[name](**json.loads(raw)))
    except (ValueError, TypeError) as error:
        return json.dumps({"error": f"bad arguments: {error}"})


async def play(task, session):
    messages = [{"role": "system", "content": SYSTEM}, *task.messages]
    async with session.client() as client:
        while True:
            response = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return float((message.content or "").strip() == task.fields["answer"])
            for call in message.tool_calls:
                content = execute(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def scorer(trajectory):
    final = trajectory.messages[-1]
    if final.get("role") != "assistant" or final.get("tool_calls"):
        return 0.0
    return 1.0 if (final.get("content") or "").strip() == trajectory.task.fields["answer"] else 0.0
