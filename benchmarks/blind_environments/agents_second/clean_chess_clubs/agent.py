"""A secretary who looks up members of chess clubs."""

import json
import os
import sys
from pathlib import Path

from openai import OpenAI

CLUBS = json.loads((Path(__file__).parent / "clubs.json").read_text())
MAX_TURNS = 8
SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": "list_clubs",
            "description": "Names of the clubs.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "members",
            "description": "Members of a club with their ratings.",
            "parameters": {"type": "object", "properties": {"club": {"type": "string"}}, "required": ["club"]},
        },
    },
]


def list_clubs():
    return sorted(CLUBS)


def members(club):
    if club not in CLUBS:
        return {"error": f"no club {club!r}"}
    return CLUBS[club]


def dispatch(name, raw):
    tools = {"list_clubs": list_clubs, "members": members}
    try:
        tool = tools[name]
    except KeyError:
        return {"error": f"unknown tool {name}"}
    try:
        return tool(**json.loads(raw or "{}"))
    except (ValueError, TypeError) as error:
        return {"error": str(error)}


def main():
    task = json.load(sys.stdin)
    messages = [
        {"role": "system", "content": "You are the secretary of a chess league. Answer with the name alone."},
        *task["messages"],
    ]
    with OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]) as client:
        for _ in range(MAX_TURNS):
            response = client.chat.completions.create(model="policy", messages=messages, tools=SCHEMAS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return
            for call in message.tool_calls:
                output = dispatch(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(output)})


def final_text(trajectory):
    for message in reversed(trajectory.messages):
        if message.get("role") == "assistant":
            return (message.get("content") or "").strip().rstrip(".")
    return ""


def reward(trajectory):
    return float(final_text(trajectory).lower() == trajectory.task.fields["answer"].lower())


def scorer(trajectory):
    return 1.0 if final_text(trajectory).casefold() == trajectory.task.fields["answer"].casefold() else 0.0


if __name__ == "__main__":
    main()
