"""A bicycle repair shop: work out the price of a repair."""

import json
import os
import sys
from pathlib import Path

from openai import OpenAI

MAX_TURNS = 10
PRICES = json.loads((Path(__file__).parent / "prices.json").read_text())
SYSTEM = "You run a bicycle repair shop. Look up what is needed and answer with the price in euros, the number alone."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "repair",
            "description": "Parts and minutes that a repair takes.",
            "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "part_price",
            "description": "Price of a part in euros.",
            "parameters": {"type": "object", "properties": {"part": {"type": "string"}}, "required": ["part"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "labour",
            "description": "Price of working minutes in euros.",
            "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]},
        },
    },
]


def repair(name):
    job = PRICES["repairs"][name.strip().lower()]
    return {"parts": job["parts"], "minutes": job["minutes"]}


def part_price(part):
    return PRICES["parts"][part.strip().lower()]


def labour(minutes):
    return int(minutes) * PRICES["euros_per_minute"]


def call_tool(name, raw):
    tools = {"repair": repair, "part_price": part_price, "labour": labour}
    if name not in tools:
        return {"error": f"unknown tool {name}"}
    try:
        arguments = json.loads(raw or "{}")
    except ValueError:
        return {"error": "the arguments are not valid JSON"}
    if not isinstance(arguments, dict):
        return {"error": "the arguments must be an object"}
    try:
        return tools[name](**arguments)
    except (TypeError, ValueError, AttributeError) as error:
        return {"error": f"wrong arguments: {error}"}


def main():
    task = json.load(sys.stdin)
    messages = [{"role": "system", "content": SYSTEM}, *task["messages"]]
    with OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]) as client:
        for _ in range(MAX_TURNS):
            answer = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                output = call_tool(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(output)})


def _price(trajectory):
    texts = [m.get("content") or "" for m in trajectory.messages if m.get("role") == "assistant"]
    return texts[-1].strip().rstrip(".").replace("€", "").strip() if texts else ""


def reward(trajectory):
    return float(_price(trajectory) == str(trajectory.task.fields["answer"]))


def scorer(trajectory):
    return 1.0 if _price(trajectory) == str(trajectory.task.fields["answer"]) else 0.0


if __name__ == "__main__":
    main()
