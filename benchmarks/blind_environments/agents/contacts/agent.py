"""An address book. Names may be written in any order, so the comparison looks at words."""

import json
import re

PEOPLE = {
    "p41": {"name": "Greta Holm", "firm": "Nordlys", "role": "buyer"},
    "p42": {"name": "Samir Aziz", "firm": "Nordlys", "role": "lawyer"},
    "p43": {"name": "June Carver", "firm": "Pell & Rook", "role": "buyer"},
    "p44": {"name": "Emil Strand", "firm": "Pell & Rook", "role": "courier"},
    "p45": {"name": "Yuki Mori", "firm": "Tessel", "role": "lawyer"},
    "p46": {"name": "Dana Whitlock", "firm": "Tessel", "role": "buyer"},
    "p47": {"name": "Ines Duarte", "firm": "Nordlys", "role": "courier"},
    "p48": {"name": "Karl Benning", "firm": "Tessel", "role": "courier"},
    "p49": {"name": "Lea Morrow", "firm": "Pell & Rook", "role": "lawyer"},
}
SYSTEM = "You look people up in an address book. Answer with the person's full name and nothing else."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "people_at",
            "description": "Ids and roles of the people at a firm.",
            "parameters": {"type": "object", "properties": {"firm": {"type": "string"}}, "required": ["firm"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "card",
            "description": "The card of a person.",
            "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        },
    },
]


def people_at(firm):
    return [{"id": key, "role": person["role"]} for key, person in PEOPLE.items() if person["firm"] == firm]


def card(id):
    return PEOPLE.get(id, {"error": f"no card {id}"})


def words(text):
    return re.findall(r"\w+", text.lower())


def same_name(reply, name):
    expected = words(name)
    said = words(reply)
    return len(said) <= len(expected) and all(word in expected for word in said)


def reply_to(function):
    tools = {"people_at": people_at, "card": card}
    if function["name"] not in tools:
        return {"error": f"unknown tool {function['name']}"}
    try:
        raw = function["arguments"]
        return tools[function["name"]](**(json.loads(raw) if isinstance(raw, str) else raw))
    except (ValueError, TypeError) as error:
        return {"error": str(error)}


async def play(task, session):
    messages = [{"role": "system", "content": SYSTEM}, *task.messages]
    for _ in range(8):
        message = await session.chat(messages, TOOLS)
        messages.append(message)
        if not message.get("tool_calls"):
            return float(same_name(message.get("content") or "", task.fields["name"]))
        for call in message["tool_calls"]:
            text = json.dumps(reply_to(call["function"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    return 0.0


def scorer(trajectory):
    last = trajectory.messages[-1]
    said = re.findall(r"\w+", (last.get("content") or "").lower())
    return float(sorted(said) == sorted(re.findall(r"\w+", trajectory.task.fields["name"].lower())))
