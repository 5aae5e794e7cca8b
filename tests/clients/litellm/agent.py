"""A café's bill, worked out with LiteLLM: chat completions and two tools."""

import json
import os
import sys

import litellm

PRICES = {"café": 3.85, "croissant": 2.25}


def price(item: str) -> float:
    return PRICES[item]


def add(a: float, b: float) -> float:
    return a + b


TOOLS = {"price": price, "add": add}
SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": "price",
            "description": "The price of an item on the menu.",
            "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "The sum of two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
    },
]

server = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    answer = litellm.completion(model="openai/policy", messages=messages, tools=SCHEMAS, **server)
    message = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))  # the whole message, as it came
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        tool, arguments = TOOLS[call.function.name], json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(tool(**arguments))})

print(message.content)
