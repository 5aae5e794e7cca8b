"""A café's bill, worked out with the Anthropic client: messages and two tools."""

import json
import sys

from anthropic import Anthropic

PRICES = {"café": 3.85, "croissant": 2.25}


def price(item: str) -> float:
    return PRICES[item]


def add(a: float, b: float) -> float:
    return a + b


TOOLS = {"price": price, "add": add}
SCHEMAS = [
    {
        "name": "price",
        "description": "The price of an item on the menu.",
        "input_schema": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
    {
        "name": "add",
        "description": "The sum of two numbers.",
        "input_schema": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
]

client = Anthropic()  # reads ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    answer = client.messages.create(model="policy", max_tokens=512, messages=messages, tools=SCHEMAS)
    messages.append({"role": "assistant", "content": answer.content})  # every block, as it came
    calls = [block for block in answer.content if block.type == "tool_use"]
    if not calls:
        break
    results = []
    for call in calls:
        tool = TOOLS[call.name]
        results.append({"type": "tool_result", "tool_use_id": call.id, "content": json.dumps(tool(**call.input))})
    messages.append({"role": "user", "content": results})

print(next(block.text for block in answer.content if block.type == "text"))
