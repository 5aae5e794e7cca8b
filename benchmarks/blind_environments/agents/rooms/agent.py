"""Meeting rooms: reserve a room with enough seats and confirm its name."""

import json

ROOMS = {
    "Kestrel": {"floor": 2, "seats": 6},
    "Osprey": {"floor": 2, "seats": 14},
    "Heron": {"floor": 5, "seats": 9},
    "Plover": {"floor": 5, "seats": 22},
    "Siskin": {"floor": 7, "seats": 4},
    "Dunlin": {"floor": 7, "seats": 17},
}
SYSTEM = (
    "You manage meeting rooms. Reserve the smallest room on the requested floor that has enough seats, and reply with "
    "the room's name only."
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "rooms_on",
            "description": "Rooms of a floor and their seats.",
            "parameters": {"type": "object", "properties": {"floor": {"type": "integer"}}, "required": ["floor"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "reserve",
            "description": "Reserve a room.",
            "parameters": {
                "type": "object",
                "properties": {"room": {"type": "string"}, "organiser": {"type": "string"}},
                "required": ["room", "organiser"],
            },
        },
    },
]


class Building:
    def __init__(self):
        self.reservations = {}

    def rooms_on(self, floor):
        return {name: room["seats"] for name, room in ROOMS.items() if room["floor"] == floor}

    def reserve(self, room, organiser):
        if room not in ROOMS:
            return {"error": f"there is no room {room}"}
        if room in self.reservations:
            return {"error": f"{room} is taken"}
        self.reservations[room] = organiser
        return {"reserved": room}

    def state(self):
        return {"reservations": dict(self.reservations)}


def perform(building, call):
    tools = {"rooms_on": building.rooms_on, "reserve": building.reserve}
    tool = tools.get(call.function.name)
    if tool is None:
        return {"error": f"unknown tool {call.function.name}"}
    try:
        return tool(**json.loads(call.function.arguments))
    except (TypeError, ValueError) as error:
        return {"error": str(error)}


async def play(task, session):
    building = Building()
    messages = [{"role": "system", "content": SYSTEM}, *task.messages]
    reply = ""
    async with session.client() as client:
        for _ in range(8):
            response = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                reply = (message.content or "").strip()
                break
            for call in message.tool_calls:
                content = json.dumps(perform(building, call))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    state = building.state()
    correct = reply == task.fields["room"] and state["reservations"] == {task.fields["room"]: task.fields["organiser"]}
    return float(correct), {"reservations": float(len(state["reservations"]))}


def scorer(trajectory):
    fields = trajectory.task.fields
    state = trajectory.final_state or {"reservations": {}}
    return float(state["reservations"] == {fields["room"]: fields["organiser"]})
