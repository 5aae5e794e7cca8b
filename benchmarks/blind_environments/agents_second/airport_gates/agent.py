"""Airport information: gates and delays from the departure board."""

import json
import time

MAX_TURNS = 8
LATENCY = 0.35
SYSTEM = "You work at an airport's information desk. Answer with the gate alone, for example Z99."
SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": "departures",
            "description": "Flight numbers to a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "flight",
            "description": "Time and gate of a flight.",
            "parameters": {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]},
        },
    },
]


class Board:
    """The departure board, which answers as slowly as the real one."""

    def __init__(self, flights):
        self.flights = flights

    def departures(self, city):
        time.sleep(LATENCY)
        return [number for number, flight in self.flights.items() if flight["city"].lower() == str(city).lower()]

    def flight(self, number):
        time.sleep(LATENCY)
        flight = self.flights.get(str(number).upper())
        return {"time": flight["time"], "gate": flight["gate"]} if flight else {"error": f"no flight {number}"}


def gate_of(text):
    return (text or "").strip().rstrip(".").upper()


async def handle(board, call):
    tools = {"departures": board.departures, "flight": board.flight}
    tool = tools.get(call.function.name)
    if tool is None:
        result = {"error": f"unknown tool {call.function.name}"}
    else:
        try:
            result = tool(**json.loads(call.function.arguments or "{}"))
        except (TypeError, ValueError) as error:
            result = {"error": str(error)}
    return {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)}


async def play(task, session):
    board = Board(task.fields["flights"])
    messages = [{"role": "system", "content": SYSTEM}]
    messages.extend(dict(message) for message in task.messages)
    async with session.client() as client:
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(model="policy", messages=messages, tools=SCHEMAS)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return float(gate_of(message.content) == task.fields["answer"])
            for call in message.tool_calls:
                messages.append(await handle(board, call))
    return 0.0


def reward(trajectory):
    said = [m.get("content") for m in trajectory.messages if m.get("role") == "assistant"]
    return float(bool(said) and gate_of(said[-1]) == trajectory.task.fields["answer"])
