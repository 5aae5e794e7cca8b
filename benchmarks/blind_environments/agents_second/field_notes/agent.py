"""A naturalist's notebook: the policy reads notes and answers a question about them."""

import json
import os
import sys
from pathlib import Path

from openai import OpenAI

NOTES = Path(__file__).parent / "notes"
MAX_TURNS = 8
LIMIT = 1500

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "list_notes",
            "description": "Names of all notes.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "read_note",
            "description": "Text of one note.",
            "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
    },
]


def list_notes():
    return "\n".join(sorted(path.name for path in NOTES.iterdir()))


def read_note(name):
    try:
        with open(os.path.join(NOTES, name), encoding="utf-8", errors="replace") as file:
            return file.read(LIMIT)
    except OSError:
        return f"error: there is no note {name!r}"


def use(function):
    tools = {"list_notes": list_notes, "read_note": read_note}
    if function.name not in tools:
        return f"error: unknown tool {function.name}"
    try:
        return tools[function.name](**json.loads(function.arguments or "{}"))
    except (TypeError, ValueError) as error:
        return f"error: {error}"


def main():
    task = json.load(sys.stdin)
    system = "You know a naturalist's notes. Find the answer with the tools and reply with the month alone."
    messages = [{"role": "system", "content": system}, *task["messages"]]
    with OpenAI() as client:
        for _ in range(MAX_TURNS):
            answer = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": use(call.function)})


def _last(trajectory):
    texts = [m.get("content") or "" for m in trajectory.messages if m.get("role") == "assistant"]
    return texts[-1].strip().rstrip(".").lower() if texts else ""


def reward(trajectory):
    return float(_last(trajectory) == trajectory.task.fields["answer"].lower())


def scorer(trajectory):
    return 1.0 if _last(trajectory) == trajectory.task.fields["answer"].lower() else 0.0


if __name__ == "__main__":
    main()
