"""Train connections: which platform, and when."""

import json

DEPARTURES = {
    "Lübeck": {"train": "RE 4812", "time": "06:52", "platform": "14b"},
    "Aachen": {"train": "IC 2219", "time": "07:17", "platform": "3a"},
    "Görlitz": {"train": "RB 6605", "time": "08:43", "platform": "21"},
    "Passau": {"train": "ICE 1127", "time": "09:31", "platform": "8c"},
}
DELAYS = {"RE 4812": 11, "IC 2219": 26, "RB 6605": 37, "ICE 1127": 58}
SYSTEM = "You inform travellers at a station. Use the tools; reply with the requested value only."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "departure",
            "description": "Next train to a city, with its time and platform.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "delay",
            "description": "Delay of a train in minutes.",
            "parameters": {"type": "object", "properties": {"train": {"type": "string"}}, "required": ["train"]},
        },
    },
]


def departure(city):
    return DEPARTURES.get(city, {"error": "no train to this city"})


def delay(train):
    return {"minutes": DELAYS[train]} if train in DELAYS else {"error": "no such train"}


def run(name, arguments):
    tools = {"departure": departure, "delay": delay}
    if name not in tools:
        return {"error": f"unknown tool {name}"}
    try:
        return tools[name](**json.loads(arguments))
    except (TypeError, ValueError) as error:
        return {"error": str(error)}


async def play(task, session):
    messages = [{"role": "system", "content": SYSTEM}, *task.messages]
    async with session.client() as client:
        for _ in range(8):
            completion = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            choice = completion.choices[0]
            messages.append(choice.message.model_dump(exclude_none=True))
            if choice.finish_reason != "function_call":
                reply = (choice.message.content or "").strip()
                return float(reply == task.fields["value"])
            for call in choice.message.tool_calls or []:
                content = json.dumps(run(call.function.name, call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return 0.0


def scorer(trajectory):
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and (last.get("content") or "").strip() == trajectory.task.fields["value"])
