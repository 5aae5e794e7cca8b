"""A potter's kiln: heat it to a target temperature without cracking the pots."""

import json
import threading
import time

from sparring import AgentReport

MAX_TURNS = 10
SYSTEM = "You fire a kiln. Reach the target to within 10 degrees, then answer with the word fired."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "status",
            "description": "Temperature of the kiln in degrees and heating in degrees per minute.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "heat",
            "description": "Heat at a rate for some minutes. Rates above 12 degrees per minute crack the pots.",
            "parameters": {
                "type": "object",
                "properties": {"rate": {"type": "number"}, "minutes": {"type": "integer"}},
                "required": ["rate", "minutes"],
            },
        },
    },
]


class Kiln:
    def __init__(self, start):
        self.lock = threading.Lock()
        self.temperature = float(start)
        self.highest = self.temperature
        self.is_cracked = False
        self.is_off = False

    def status(self):
        with self.lock:
            return {"temperature": round(self.temperature), "cracked": self.is_cracked}

    def heat(self, rate, minutes):
        rate, minutes = float(rate), int(minutes)
        if not 0 <= rate <= 40 or not 1 <= minutes <= 300:
            raise ValueError("give a rate of 0 to 40 and 1 to 300 minutes")
        with self.lock:
            self.is_cracked = self.is_cracked or rate > 12
            self.temperature = min(1300.0, self.temperature + rate * minutes)
            self.highest = max(self.highest, self.temperature)
        return self.status()


class Watchdog(threading.Thread):
    """Switches the kiln off above its limit, as the real controller does."""

    def __init__(self, kiln, limit=1300.0):
        super().__init__(name="kiln-watchdog", daemon=True)
        self.kiln, self.limit = kiln, limit

    def run(self):
        while not self.kiln.is_off:
            with self.kiln.lock:
                if self.kiln.temperature > self.limit:
                    self.kiln.is_off = True
            time.sleep(0.2)


async def play(task, session):
    kiln = Kiln(task.fields["start"])
    Watchdog(kiln).start()
    tools = {"status": kiln.status, "heat": kiln.heat}
    messages = [{"role": "system", "content": SYSTEM}, *[dict(m) for m in task.messages]]
    transitions, reply = [], ""
    async with session.client() as client:
        for _ in range(MAX_TURNS):
            response = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                reply = (message.content or "").strip().rstrip(".!").lower()
                break
            for call in message.tool_calls:
                content = json.dumps(use(tools, call.function, transitions))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    state = {"temperature": kiln.temperature, "cracked": kiln.is_cracked, "reply": reply}
    return AgentReport(reward=float(is_fired(state, task.fields["target"])), final_state=state, transitions=transitions)


def use(tools, function, transitions):
    tool = tools.get(function.name)
    if tool is None:
        return {"error": f"unknown tool {function.name}"}
    try:
        arguments = json.loads(function.arguments or "{}")
    except ValueError:
        return {"error": "the arguments are not valid JSON"}
    if not isinstance(arguments, dict):
        return {"error": "the arguments must be an object"}
    try:
        result, error = tool(**arguments), None
    except (TypeError, ValueError, OverflowError) as problem:
        result, error = None, str(problem)
    transitions.append({"tool": function.name, "arguments": arguments, "result": result, "error": error})
    return {"error": error} if error else result


def is_fired(state, target):
    return abs(state["temperature"] - target) <= 10 and not state["cracked"] and state["reply"] == "fired"


def reward(trajectory):
    return 0.0


def scorer(trajectory):
    state = trajectory.final_state
    return float(bool(state) and is_fired(state, trajectory.task.fields["target"]))
