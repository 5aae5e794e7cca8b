"""An office assistant who books meeting rooms."""

import json

from sparring import AgentReport

MAX_TURNS = 8
SYSTEM = "You book meeting rooms. Find a free room that is large enough, book it once, then answer with its name alone."


def tool(name, description, properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool("list_rooms", "Rooms and how many people they seat.", {}),
    tool("is_free", "Whether a room is free at an hour.", {"room": {"type": "string"}, "hour": {"type": "integer"}}),
    tool("book", "Book a room for one hour.", {"room": {"type": "string"}, "hour": {"type": "integer"}}),
]


class Office:
    def __init__(self, rooms, taken):
        self.rooms = dict(rooms)
        self.taken = {(room, hour) for room, hour in taken}
        self.bookings = []

    def list_rooms(self):
        return self.rooms

    def is_free(self, room, hour):
        if room not in self.rooms:
            raise ValueError(f"no room {room!r}")
        return (room, int(hour)) not in self.taken

    def book(self, room, hour):
        if not self.is_free(room, hour):
            raise ValueError(f"{room} is taken at {hour}")
        self.taken.add((room, int(hour)))
        self.bookings.append({"room": room, "hour": int(hour)})
        return "booked"


def run(office, name, raw, transitions):
    tools = {"list_rooms": office.list_rooms, "is_free": office.is_free, "book": office.book}
    if name not in tools:
        return {"error": f"unknown tool {name}"}
    try:
        arguments = json.loads(raw or "{}")
    except ValueError:
        return {"error": "the arguments are not valid JSON"}
    if not isinstance(arguments, dict):
        return {"error": "the arguments must be an object"}
    try:
        outcome = {"result": tools[name](**arguments), "error": None}
    except (TypeError, ValueError, OverflowError) as error:
        outcome = {"result": None, "error": str(error)}
    transitions.append({"tool": name, "arguments": arguments, **outcome})
    return {"error": outcome["error"]} if outcome["error"] else {"result": outcome["result"]}


async def play(task, session):
    fields = task.fields
    office = Office(fields["rooms"], fields["taken"])
    messages = [{"role": "system", "content": SYSTEM}, *[dict(m) for m in task.messages]]
    transitions, reply = [], ""
    async with session.client() as client:
        for _ in range(MAX_TURNS):
            response = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                reply = (message.content or "").strip().rstrip(".")
                break
            for call in message.tool_calls:
                output = run(office, call.function.name, call.function.arguments, transitions)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(output)})
    wanted = [{"room": fields["answer"], "hour": fields["hour"]}]
    return AgentReport(
        reward=float(office.bookings == wanted and reply == fields["answer"]),
        final_state={"rooms": office.rooms, "reply": reply},
        transitions=transitions,
    )


def reward(trajectory):
    return 0.0


def scorer(trajectory):
    fields = trajectory.task.fields
    state = trajectory.final_state or {}
    bookings = state.get("bookings", [])
    is_booked = [(b["room"], b["hour"]) for b in bookings] == [(fields["answer"], fields["hour"])]
    return float(is_booked and state.get("reply") == fields["answer"])
