"""A ticket office for ferries: find the cheapest sailing for a passenger."""

import json

SYSTEM = "You sell ferry tickets. Compare the fares and answer with the name of the cheapest ship alone."
LIMIT = 8
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "sailings",
            "description": "Ships that sail on a weekday.",
            "parameters": {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "fare",
            "description": "Fare of a ship on a weekday, in euros.",
            "parameters": {
                "type": "object",
                "properties": {"ship": {"type": "string"}, "day": {"type": "string"}},
                "required": ["ship", "day"],
            },
        },
    },
]


class Office:
    def __init__(self, timetable):
        self.timetable = {day.lower(): ships for day, ships in timetable.items()}

    def sailings(self, day):
        return sorted(self._ships(day))

    def fare(self, ship, day):
        ships = self._ships(day)
        if ship not in ships:
            raise ValueError(f"{ship} does not sail on {day}")
        return ships[ship]

    def _ships(self, day):
        if str(day).lower() not in self.timetable:
            raise ValueError(f"no sailings on {day}")
        return self.timetable[str(day).lower()]


def respond(office, function):
    tools = {"sailings": office.sailings, "fare": office.fare}
    if function.name not in tools:
        return f"error: no such tool: {function.name}"
    try:
        return json.dumps(tools[function.name](**json.loads(function.arguments or "{}")))
    except (TypeError, ValueError) as error:
        return f"error: {error}"


def same_ship(text, ship):
    return (text or "").strip().rstrip(".").lower() == ship.lower()


async def play(task, session):
    office = Office(task.fields["timetable"])
    messages = [{"role": "system", "content": SYSTEM}, *[dict(m) for m in task.messages]]
    async with session.client() as client:
        for _ in range(LIMIT):
            response = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return 1.0 if same_ship(message.content, task.fields["answer"]) else 0.0
            for call in message.tool_calls:
                content = respond(office, call.function)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def reward(trajectory):
    said = [m for m in trajectory.messages if m.get("role") == "assistant"]
    return float(bool(said) and same_ship(said[-1].get("content"), trajectory.task.fields["answer"]))


def scorer(trajectory):
    said = [m for m in trajectory.messages if m.get("role") == "assistant"]
    return float(bool(said) and same_ship(said[-1].get("content"), trajectory.task.fields["answer"]))
