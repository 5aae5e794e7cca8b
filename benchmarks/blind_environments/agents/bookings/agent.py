"""Restaurant bookings. The policy reserves a table and reports the table's number."""

import itertools
import json

from sparring import AgentReport

TABLES = [
    {"table": "T12", "seats": 2, "place": "terrace"},
    {"table": "T17", "seats": 4, "place": "terrace"},
    {"table": "H31", "seats": 2, "place": "hall"},
    {"table": "H36", "seats": 6, "place": "hall"},
    {"table": "C54", "seats": 8, "place": "cellar"},
    {"table": "C58", "seats": 3, "place": "cellar"},
]
SYSTEM = "You take bookings for a restaurant. Reserve the smallest table that is large enough, and reply with its number only."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "tables",
            "description": "Free tables of a part of the restaurant.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string", "enum": ["terrace", "hall", "cellar"]}},
                "required": ["place"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "reserve",
            "description": "Reserve a table for a guest.",
            "parameters": {
                "type": "object",
                "properties": {"table": {"type": "string"}, "guest": {"type": "string"}},
                "required": ["table", "guest"],
            },
        },
    },
]

_schedule = itertools.count()
WARMUP = 400


def shaping():
    """Weight of the bonus for using the tools at all; it fades as training goes on."""
    return 0.3 * max(0.0, 1 - next(_schedule) / WARMUP)


class Restaurant:
    def __init__(self):
        self.reserved = {}
        self.transitions = []

    def tables(self, place):
        return [row for row in TABLES if row["place"] == place and row["table"] not in self.reserved]

    def reserve(self, table, guest):
        if table not in {row["table"] for row in TABLES}:
            raise ValueError(f"there is no table {table}")
        if table in self.reserved:
            raise ValueError(f"table {table} is taken")
        self.reserved[table] = guest
        return {"table": table, "guest": guest}

    def call(self, name, raw):
        arguments, result, error = {}, None, None
        try:
            arguments = json.loads(raw)
            if name == "tables":
                result = self.tables(**arguments)
            elif name == "reserve":
                result = self.reserve(**arguments)
            else:
                error = f"unknown tool {name}"
        except (TypeError, ValueError) as problem:
            error = str(problem)
        self.transitions.append({"tool": name, "arguments": arguments, "result": result, "error": error})
        return json.dumps(result if error is None else {"error": error})


async def play(task, session):
    restaurant = Restaurant()
    messages = [{"role": "system", "content": SYSTEM}, *task.messages]
    reply = ""
    async with session.client() as client:
        for _ in range(8):
            answer = (
                (await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS))
                .choices[0]
                .message
            )
            messages.append(answer.model_dump(exclude_none=True))
            if not answer.tool_calls:
                reply = (answer.content or "").strip()
                break
            for call in answer.tool_calls:
                text = restaurant.call(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    expected = task.fields["table"]
    solved = float(reply == expected and expected in restaurant.reserved)
    used = float(any(each["error"] is None for each in restaurant.transitions))
    weight = shaping()
    return AgentReport(
        reward=(1 - weight) * solved + weight * used,
        final_state={"reserved": restaurant.reserved},
        transitions=restaurant.transitions,
    )


def scorer(trajectory):
    state = trajectory.final_state or {}
    expected = trajectory.task.fields["table"]
    said = (trajectory.messages[-1].get("content") or "").strip()
    return float(said == expected and expected in state.get("reserved", {}))
