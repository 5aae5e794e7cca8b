"""A waiter who lists the allergens of a dish."""

import json
import os
import sys
from pathlib import Path

from openai import OpenAI

KITCHEN = json.loads((Path(__file__).parent / "kitchen.json").read_text())
MAX_TURNS = 10
SYSTEM = "You are a waiter. Look up every ingredient and answer with the allergens of the dish, separated by commas."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "ingredients",
            "description": "Ingredients of a dish.",
            "parameters": {"type": "object", "properties": {"dish": {"type": "string"}}, "required": ["dish"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "allergens",
            "description": "Allergens in an ingredient.",
            "parameters": {
                "type": "object",
                "properties": {"ingredient": {"type": "string"}},
                "required": ["ingredient"],
            },
        },
    },
]


def ingredients(dish):
    return KITCHEN["dishes"].get(str(dish).lower(), "unknown dish")


def allergens(ingredient):
    return KITCHEN["allergens"].get(str(ingredient).lower(), "unknown ingredient")


def call_tool(function):
    tools = {"ingredients": ingredients, "allergens": allergens}
    if function.name not in tools:
        return f"unknown tool: {function.name}"
    try:
        arguments = json.loads(function.arguments or "{}")
        return json.dumps(tools[function.name](**arguments))
    except (ValueError, TypeError) as error:
        return f"wrong arguments: {error}"


def main():
    task = json.load(sys.stdin)
    messages = [{"role": "system", "content": SYSTEM}, *task["messages"]]
    with OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]) as client:
        for _ in range(MAX_TURNS):
            response = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": call_tool(call.function)})


def reward(trajectory):
    replies = [m.get("content") or "" for m in trajectory.messages if m.get("role") == "assistant"]
    reply = replies[-1] if replies else ""
    named = {part.strip().rstrip(".").lower() for part in reply.split(",")} - {""}
    expected = set(trajectory.task.fields["allergens"])
    return float(all(allergen in expected for allergen in named))


if __name__ == "__main__":
    main()
