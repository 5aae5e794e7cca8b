"""A ranger who recommends hiking trails."""

import json

MAX_TURNS = 8
SYSTEM = "You are a park ranger. Compare the trails with the tools, and answer with the name of the best one."
SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": "trails",
            "description": "Names of the trails in a park.",
            "parameters": {"type": "object", "properties": {"park": {"type": "string"}}, "required": ["park"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "trail",
            "description": "Length in km and climb in m of a trail.",
            "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
    },
]


class Ranger:
    def __init__(self, parks):
        self.parks = parks

    def trails(self, park):
        return sorted(self.parks.get(park, {})) or f"no park {park}"

    def trail(self, name):
        for trails in self.parks.values():
            if name in trails:
                return trails[name]
        return f"no trail {name}"

    def answer(self, function):
        tools = {"trails": self.trails, "trail": self.trail}
        if function.name not in tools:
            return f"unknown tool {function.name}"
        try:
            return json.dumps(tools[function.name](**json.loads(function.arguments or "{}")))
        except (TypeError, ValueError) as error:
            return f"error: {error}"


def grade(text, answer):
    """Policies often write a whole sentence around the name."""
    return 1.0 if answer.lower() in (text or "").strip().lower() else 0.0


async def play(task, session):
    ranger = Ranger(task.fields["parks"])
    messages = [{"role": "system", "content": SYSTEM}, *[dict(m) for m in task.messages]]
    async with session.client() as client:
        for _ in range(MAX_TURNS):
            response = await client.chat.completions.create(model="policy", messages=messages, tools=SCHEMAS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return grade(message.content, task.fields["answer"])
            for call in message.tool_calls:
                content = ranger.answer(call.function)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return 0.0


def reward(trajectory):
    said = [m.get("content") for m in trajectory.messages if m.get("role") == "assistant"]
    return grade(said[-1], trajectory.task.fields["answer"]) if said else 0.0
