"""Terminology: finds the agreed translation of a technical term."""

import json
import sys
from pathlib import Path

from openai import OpenAI

HERE = Path(__file__).parent
GLOSSARY = json.loads((HERE / "glossary.json").read_text())
TRUTH = json.loads((HERE / "truth.json").read_text())
SYSTEM = "You are a translator. Use the company's glossary and reply with the term alone."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "entry",
            "description": "The number of the entry of an English term.",
            "parameters": {"type": "object", "properties": {"term": {"type": "string"}}, "required": ["term"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "translation",
            "description": "The translation of an entry.",
            "parameters": {
                "type": "object",
                "properties": {
                    "number": {"type": "integer"},
                    "language": {"type": "string", "description": "de or fr"},
                },
                "required": ["number", "language"],
            },
        },
    },
]


def entry(term):
    for number, item in GLOSSARY.items():
        if item["en"] == term.lower():
            return {"number": int(number)}
    return {"error": f"no entry for {term}"}


def translation(number, language):
    item = GLOSSARY.get(str(number))
    if item is None or language not in ("de", "fr"):
        return {"error": "no such entry or language"}
    return {"term": item[language]}


HANDLERS = {"entry": entry, "translation": translation}


def execute(call):
    if call.function.name not in HANDLERS:
        return {"error": f"unknown tool {call.function.name}"}
    try:
        return HANDLERS[call.function.name](**json.loads(call.function.arguments))
    except (AttributeError, TypeError, ValueError) as error:
        return {"error": str(error)}


def play(client, task):
    messages = [{"role": "system", "content": SYSTEM}, *task["messages"]]
    for _ in range(8):
        response = client.chat.completions.create(model="qwen2.5:7b", messages=messages, tools=TOOLS, temperature=1.0)
        message = response.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return (message.content or "").strip()
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(execute(call))})
    return ""


def main():
    task = json.load(sys.stdin)
    with OpenAI(base_url="http://localhost:11434/v1", api_key="ollama") as client:
        answer = play(client, task)
    print(json.dumps({"reward": float(answer == TRUTH[task["id"]])}))


if __name__ == "__main__":
    main()
