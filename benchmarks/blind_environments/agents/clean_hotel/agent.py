"""A hotel desk: find a guest's room, move the guest, and say the new room's key code."""

import json
import sqlite3

from sparring import AgentReport

SCHEMA = """
create table rooms (room text primary key, kind text not null, code text not null, guest text);
insert into rooms values
  ('101', 'single', 'KD-5581', 'Ms Arden'), ('104', 'single', 'KD-7306', 'Mr Boyle'),
  ('207', 'double', 'KD-4429', 'Ms Cruz'), ('209', 'double', 'KD-9173', null),
  ('312', 'suite', 'KD-6648', null), ('315', 'single', 'KD-2097', null),
  ('402', 'single', 'KD-3815', 'Mr Dietz'), ('404', 'double', 'KD-8850', 'Ms Engel'),
  ('511', 'studio', 'KD-1264', null), ('518', 'family', 'KD-5093', null);
"""
SYSTEM = (
    "You work at the reception of a hotel. Move the guest into the free room of the requested kind, then reply with the "
    "key code of the new room, nothing else."
)


def described(name, description, **properties):
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string", "description": text} for key, text in properties.items()},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    described("room_of", "The room of a guest.", guest="Title and surname"),
    described("free_rooms", "Free rooms of a kind.", kind="A kind of room, in lower case"),
    described("move", "Move a guest into a free room. Returns the key code.", guest="Title and surname", room="Number"),
]


class Hotel:
    def __init__(self):
        self.db = sqlite3.connect(":memory:")
        self.db.executescript(SCHEMA)

    def room_of(self, guest):
        row = self.db.execute("select room from rooms where guest = ?", (guest,)).fetchone()
        if row is None:
            raise ValueError(f"no guest {guest}")
        return {"room": row[0]}

    def free_rooms(self, kind):
        rows = self.db.execute("select room from rooms where kind = ? and guest is null order by room", (kind,))
        return [room for (room,) in rows]

    def move(self, guest, room):
        old = self.room_of(guest)["room"]
        row = self.db.execute("select code from rooms where room = ? and guest is null", (room,)).fetchone()
        if row is None:
            raise ValueError(f"room {room} is not free")
        self.db.execute("update rooms set guest = null where room = ?", (old,))
        self.db.execute("update rooms set guest = ? where room = ?", (guest, room))
        return {"code": row[0]}

    def state(self):
        return dict(self.db.execute("select room, guest from rooms where guest is not null order by room"))


async def play(task, session):
    hotel = Hotel()
    handlers = {"room_of": hotel.room_of, "free_rooms": hotel.free_rooms, "move": hotel.move}
    transitions = []
    try:
        messages = [{"role": "system", "content": SYSTEM}, *task.messages]
        while True:
            message = await session.chat(messages, TOOLS)
            messages.append(message)
            if not message.get("tool_calls"):
                return AgentReport(reward=None, final_state=hotel.state(), transitions=transitions)
            for call in message["tool_calls"]:
                name, raw = call["function"]["name"], call["function"]["arguments"]
                entry = {"tool": name, "arguments": {}, "result": None, "error": None}
                try:
                    entry["arguments"] = json.loads(raw) if isinstance(raw, str) else dict(raw)
                    if name in handlers:
                        entry["result"] = handlers[name](**entry["arguments"])
                    else:
                        entry["error"] = f"unknown tool {name}"
                except (TypeError, ValueError, sqlite3.Error) as error:
                    entry["error"] = str(error)
                transitions.append(entry)
                shown = entry["result"] if entry["error"] is None else {"error": entry["error"]}
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(shown)})
    finally:
        hotel.db.close()


def reward(episode):
    fields = episode.task.fields
    moved = (episode.final_state or {}).get(fields["room"]) == fields["guest"]
    said = (episode.messages[-1].get("content") or "").strip() == fields["code"]
    return float(moved and said)


def scorer(trajectory):
    wanted = trajectory.task.fields
    state = trajectory.final_state or {}
    text = (trajectory.messages[-1].get("content") or "").strip()
    return 1.0 if state.get(wanted["room"]) == wanted["guest"] and text == wanted["code"] else 0.0
