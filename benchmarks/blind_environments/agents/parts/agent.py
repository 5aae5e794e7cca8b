"""Finds spare parts for machines."""

import json
import sys

import openai

MACHINES = {
    "press": {"model": "HX-20", "pump": "PU-7741", "seal": "SE-1029"},
    "lathe": {"model": "QT-6", "pump": "PU-5530", "seal": "SE-3386"},
    "mill": {"model": "VM-44", "pump": "PU-9012", "seal": "SE-4467"},
    "saw": {"model": "BS-3", "pump": "PU-2288", "seal": "SE-8154"},
}
REPLACED = {"PU-7741": "PU-7760", "SE-3386": "SE-3391", "PU-9012": "PU-9055"}

SYSTEM = (
    "You find spare parts. Look up the part of the machine and whether a newer part replaces it. Answer with the number "
    "of the part to order, nothing else."
)


def find_part(machine, kind):
    """Number of a machine's part. Kinds: pump, seal."""
    parts = MACHINES.get(machine, {})
    return parts.get(kind, f"no {kind} is known for {machine}")


def replacement(part):
    """The part that replaces a part, if there is one."""
    return REPLACED.get(part, f"{part} is still made")


TOOLS = {"find_part": find_part, "replacement": replacement}
SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": function.__doc__,
            "parameters": {
                "type": "object",
                "properties": {
                    argument: {"type": "string"}
                    for argument in function.__code__.co_varnames[: function.__code__.co_argcount]
                },
                "required": list(function.__code__.co_varnames[: function.__code__.co_argcount]),
            },
        },
    }
    for name, function in TOOLS.items()
]


def main():
    task = json.load(sys.stdin)
    messages = [{"role": "system", "content": SYSTEM}, *task["messages"]]
    transitions = []
    with openai.OpenAI() as client:
        for _ in range(8):
            completion = client.chat.completions.create(model="policy", messages=messages, tools=SCHEMAS)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                arguments = json.loads(call.function.arguments)
                result = TOOLS[call.function.name](**arguments)
                transitions.append(
                    {"tool": call.function.name, "arguments": arguments, "result": result, "error": None}
                )
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print(json.dumps({"transitions": transitions}))


if __name__ == "__main__":
    main()
