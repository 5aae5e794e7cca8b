"""Stocktaking in a generated warehouse: count the units of one item over all aisles."""

import json
import random

MAX_TURNS = 10
ITEMS = ["washers", "hinges", "brackets", "dowels", "rivets", "clamps"]

SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": "aisles",
            "description": "Letters of the aisles.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "scan",
            "description": "Items and units in one aisle.",
            "parameters": {
                "type": "object",
                "properties": {"aisle": {"type": "string", "description": "One letter"}},
                "required": ["aisle"],
            },
        },
    },
]


def build(task_id):
    """A warehouse for the task; the same task always has the same stock."""
    rng = random.Random(hash(task_id))
    return {
        aisle: {item: rng.randint(2, 60) for item in rng.sample(ITEMS, 4)} for aisle in "ABCDE"[: rng.randint(3, 5)]
    }


class Warehouse:
    def __init__(self, task_id):
        self.stock = build(task_id)

    def aisles(self):
        return list(self.stock)

    def scan(self, aisle):
        aisle = str(aisle).strip().upper()
        if aisle not in self.stock:
            return f"error: no aisle {aisle}"
        return self.stock[aisle]

    def total(self, item):
        return sum(bins.get(item, 0) for bins in self.stock.values())


async def play(task, session):
    warehouse = Warehouse(task.id)
    tools = {"aisles": warehouse.aisles, "scan": warehouse.scan}
    messages = [{"role": "system", "content": "You take stock. Answer with the number of units alone."}]
    messages += [dict(message) for message in task.messages]
    async with session.client() as client:
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(model="policy", messages=messages, tools=SCHEMAS)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                said = (message.content or "").strip().rstrip(".")
                return float(said == str(warehouse.total(task.fields["item"])))
            for call in message.tool_calls:
                try:
                    arguments = json.loads(call.function.arguments or "{}")
                    if call.function.name not in tools:
                        output = f"error: no tool {call.function.name}"
                    else:
                        output = tools[call.function.name](**arguments)
                except (TypeError, ValueError) as error:
                    output = f"error: {error}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(output)})
    return 0.0


def reward(trajectory):
    return 0.0
