"""A greenhouse with beds that dry out; the policy waters them into a target range."""

import json
import time

from sparring import AgentReport

MAX_TURNS = 10
POINTS_PER_LITRE = 2.0
DRYING = 0.6

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_sensor",
            "description": "Soil moisture of a bed in percent.",
            "parameters": {"type": "object", "properties": {"bed": {"type": "string"}}, "required": ["bed"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "water",
            "description": "Water a bed. One litre raises the moisture by two points.",
            "parameters": {
                "type": "object",
                "properties": {"bed": {"type": "string"}, "litres": {"type": "number"}},
                "required": ["bed", "litres"],
            },
        },
    },
]


class Greenhouse:
    def __init__(self, beds):
        self.beds = dict(beds)
        self._updated = time.monotonic()

    def _dry(self):
        now = time.monotonic()
        loss = DRYING * (now - self._updated)
        self._updated = now
        for bed in self.beds:
            self.beds[bed] = max(0.0, self.beds[bed] - loss)

    def read_sensor(self, bed):
        self._dry()
        if bed not in self.beds:
            raise ValueError(f"no bed {bed!r}; beds: {', '.join(self.beds)}")
        return {"bed": bed, "moisture": round(self.beds[bed], 1)}

    def water(self, bed, litres):
        self._dry()
        if bed not in self.beds:
            raise ValueError(f"no bed {bed!r}; beds: {', '.join(self.beds)}")
        litres = float(litres)
        if not 0 < litres <= 50:
            raise ValueError("give between 0 and 50 litres")
        self.beds[bed] = min(100.0, self.beds[bed] + POINTS_PER_LITRE * litres)
        return {"bed": bed, "moisture": round(self.beds[bed], 1)}


def run_call(house, call, log):
    function = call.get("function", call)
    name, arguments = function.get("name"), function.get("arguments")
    tool = {"read_sensor": house.read_sensor, "water": house.water}.get(name)
    if tool is None:
        return json.dumps({"error": f"unknown tool {name}"})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return json.dumps({"error": "arguments are not valid JSON"})
    if not isinstance(arguments, dict):
        return json.dumps({"error": "arguments must be an object"})
    try:
        result, error = tool(**arguments), None
    except (TypeError, ValueError) as problem:
        result, error = None, str(problem)
    log.append({"tool": name, "arguments": arguments, "result": result, "error": error})
    return json.dumps(result if error is None else {"error": error})


async def play(task, session):
    house, log, reply = Greenhouse(task.fields["beds"]), [], ""
    system = "You look after a greenhouse. When the bed is in its range, answer with the word done."
    messages = [{"role": "system", "content": system}, *map(dict, task.messages)]
    for _ in range(MAX_TURNS):
        message = await session.chat(messages, TOOLS)
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            reply = message.get("content") or ""
            break
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": run_call(house, call, log)})
    low, high = task.fields["range"]
    state = {bed: round(value, 1) for bed, value in house.beds.items()}
    is_done = reply.strip().rstrip(".!").lower() == "done" and low <= state[task.fields["bed"]] <= high
    return AgentReport(reward=float(is_done), final_state={"beds": state, "reply": reply.strip()}, transitions=log)


def reward(trajectory):
    return 0.0


def scorer(trajectory):
    state, fields = trajectory.final_state or {}, trajectory.task.fields
    low, high = fields["range"]
    is_in_range = low <= state.get("beds", {}).get(fields["bed"], -1.0) <= high
    return float(is_in_range and state.get("reply", "").rstrip(".!").lower() == "done")
