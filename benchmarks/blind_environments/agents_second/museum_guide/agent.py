"""A museum guide who looks through rooms and exhibits to answer a visitor."""

import json

MAX_TURNS = 10
WINDOW = 5
SYSTEM = "You are a museum guide. Look things up with the tools. Answer with the year alone."


def _tool(name, description, parameter=None):
    properties = {parameter: {"type": "string"}} if parameter else {}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(properties)},
        },
    }


TOOLS = [
    _tool("list_rooms", "All rooms of the museum."),
    _tool("list_exhibits", "Exhibits in a room.", "room"),
    _tool("describe", "Maker and year of an exhibit.", "exhibit"),
]


class Museum:
    def __init__(self, rooms):
        self.rooms = rooms

    def list_rooms(self):
        return list(self.rooms)

    def list_exhibits(self, room):
        return list(self.rooms[room])

    def describe(self, exhibit):
        for exhibits in self.rooms.values():
            if exhibit in exhibits:
                return exhibits[exhibit]
        raise KeyError(exhibit)

    def use(self, call):
        function = call.get("function", call)
        tools = {"list_rooms": self.list_rooms, "list_exhibits": self.list_exhibits, "describe": self.describe}
        tool = tools.get(function.get("name"))
        if tool is None:
            return f"There is no tool {function.get('name')}."
        arguments = function.get("arguments") or {}
        try:
            if isinstance(arguments, str):
                arguments = json.loads(arguments)
            return json.dumps(tool(**arguments))
        except KeyError as error:
            return f"Not found: {error}"
        except (TypeError, ValueError) as error:
            return f"Wrong arguments: {error}"


def visible(messages):
    """What is sent to the model; long visits would not fit otherwise."""
    if len(messages) <= WINDOW + 1:
        return messages
    return messages[:1] + messages[-WINDOW:]


def said_year(message):
    return (message.get("content") or "").strip().rstrip(".")


async def play(task, session):
    museum = Museum(task.fields["rooms"])
    messages = [{"role": "system", "content": SYSTEM}, *[dict(m) for m in task.messages]]
    for _ in range(MAX_TURNS):
        message = await session.chat(visible(messages), TOOLS)
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            return float(said_year(message) == task.fields["answer"])
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": museum.use(call)})
    return 0.0


def _last(trajectory):
    return next((m for m in reversed(trajectory.messages) if m.get("role") == "assistant"), {})


def reward(trajectory):
    return float(said_year(_last(trajectory)) == trajectory.task.fields["answer"])


def scorer(trajectory):
    return float(said_year(_last(trajectory)) == trajectory.task.fields["answer"])
