"""A vending machine whose slots are arranged differently for every task."""

import json
import random

from sparring import AgentReport

MAX_TURNS = 10
PRODUCTS = ["crisps", "juice", "nuts", "gum", "cola", "biscuits", "mints", "raisins"]
SYSTEM = "You operate a vending machine. Buy what is asked, then answer with the change in cents, the number alone."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Slots of the machine with product and price in cents.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "insert",
            "description": "Insert coins.",
            "parameters": {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "press",
            "description": "Buy what is in a slot.",
            "parameters": {"type": "object", "properties": {"slot": {"type": "string"}}, "required": ["slot"]},
        },
    },
]


class Machine:
    def __init__(self, task_id, purse):
        rng = random.Random(f"machine:{task_id}")
        products = rng.sample(PRODUCTS, 6)
        self.slots = {f"{'AB'[i // 3]}{i % 3 + 1}": (name, 5 * rng.randint(12, 55)) for i, name in enumerate(products)}
        self.purse, self.credit, self.dispensed = purse, 0, []

    def look(self):
        return {slot: {"product": name, "cents": price} for slot, (name, price) in self.slots.items()}

    def insert(self, cents):
        cents = int(cents)
        if not 0 < cents <= self.purse:
            raise ValueError(f"the purse holds {self.purse} cents")
        self.purse -= cents
        self.credit += cents
        return {"credit": self.credit}

    def press(self, slot):
        if slot not in self.slots:
            raise ValueError(f"no slot {slot!r}")
        name, price = self.slots[slot]
        if self.credit < price:
            raise ValueError("not enough credit")
        self.credit -= price
        self.dispensed.append(name)
        return {"dispensed": name, "credit": self.credit}


def succeeded(state, fields):
    return state["dispensed"] == [fields["product"]] and state["reply"] == str(fields["answer"])


async def play(task, session):
    machine = Machine(task.id, task.fields["purse"])
    tools = {"look": machine.look, "insert": machine.insert, "press": machine.press}
    messages = [{"role": "system", "content": SYSTEM}, *[dict(m) for m in task.messages]]
    steps, reply = [], ""
    async with session.client() as client:
        for _ in range(MAX_TURNS):
            response = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                reply = message.content or ""
                break
            for call in message.tool_calls:
                output = step(tools, call.function.name, call.function.arguments, steps)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(output)})
    state = {
        "dispensed": machine.dispensed,
        "credit": machine.credit,
        "reply": reply.strip().rstrip(".").removesuffix("cents").strip(),
    }
    return AgentReport(reward=float(succeeded(state, task.fields)), final_state=state, transitions=steps)


def step(tools, name, raw, steps):
    if name not in tools:
        return {"error": f"unknown tool {name}"}
    try:
        arguments = json.loads(raw or "{}")
    except ValueError:
        return {"error": "the arguments are not JSON"}
    if not isinstance(arguments, dict):
        return {"error": "the arguments must be an object"}
    try:
        result, error = tools[name](**arguments), None
    except (TypeError, ValueError, OverflowError) as problem:
        result, error = None, str(problem)
    steps.append({"tool": name, "arguments": arguments, "result": result, "error": error})
    return {"error": error} if error else result


def reward(trajectory):
    return 0.0


def scorer(trajectory):
    state = trajectory.final_state or {}
    fields = trajectory.task.fields
    has_bought = state.get("dispensed") == [fields["product"]]
    return float(has_bought and state.get("reply") == str(fields["answer"]))
