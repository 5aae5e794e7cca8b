"""A café's bill, worked out with the OpenAI client: the Responses API and two tools."""

import json
import sys

from openai import OpenAI

PRICES = {"café": 3.85, "croissant": 2.25}


def price(item: str) -> float:
    return PRICES[item]


def add(a: float, b: float) -> float:
    return a + b


TOOLS = {"price": price, "add": add}
SCHEMAS = [
    {
        "type": "function",
        "name": "price",
        "description": "The price of an item on the menu.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
    {
        "type": "function",
        "name": "add",
        "description": "The sum of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
]

client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
items = [{"role": "user", "content": sys.argv[1]}]
while True:
    response = client.responses.create(model="policy", input=items, tools=SCHEMAS)
    items += response.output  # every item, as it came
    calls = [item for item in response.output if item.type == "function_call"]
    if not calls:
        break
    for call in calls:
        tool, arguments = TOOLS[call.name], json.loads(call.arguments)
        output = json.dumps(tool(**arguments))
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})

print(response.output_text)
