"""A ticket clerk who adds up the fares of a journey."""

import json
import os
import sys
from pathlib import Path

from openai import OpenAI

HERE = Path(__file__).parent
MAX_TURNS = 10
FARES = json.loads((HERE / "fares.json").read_text())
SYSTEM = "You sell train tickets. Look up each leg and answer with the total in cents, the number alone."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "fare",
            "description": "Fare between two neighbouring stations in cents.",
            "parameters": {
                "type": "object",
                "properties": {"start": {"type": "string"}, "end": {"type": "string"}},
                "required": ["start", "end"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "neighbours",
            "description": "Stations next to a station.",
            "parameters": {"type": "object", "properties": {"station": {"type": "string"}}, "required": ["station"]},
        },
    },
]


def fare(start, end):
    for a, b, cents in FARES:
        if {a, b} == {start, end}:
            return cents
    raise ValueError(f"no direct train between {start} and {end}")


def neighbours(station):
    found = sorted({b if a == station else a for a, b, _ in FARES if station in (a, b)})
    if not found:
        raise ValueError(f"no station {station}")
    return found


def use(function, done):
    tool = {"fare": fare, "neighbours": neighbours}.get(function.name)
    if tool is None:
        return {"error": f"unknown tool {function.name}"}
    try:
        arguments = json.loads(function.arguments or "{}")
    except ValueError:
        return {"error": "the arguments are not valid JSON"}
    if not isinstance(arguments, dict):
        return {"error": "the arguments must be an object"}
    try:
        result, error = tool(**arguments), None
    except (TypeError, ValueError) as problem:
        result, error = None, str(problem)
    done.append({"tool": function.name, "arguments": arguments, "result": result, "error": error})
    return {"error": error} if error else {"result": result}


def expected(task_id):
    with (HERE / "tasks.jsonl").open() as file:
        rows = (json.loads(line) for line in file if line.strip())
        return next(str(row["answer"]) for row in rows if row["id"] == task_id)


def main():
    task = json.load(sys.stdin)
    messages = [{"role": "system", "content": SYSTEM}, *task["messages"]]
    done, reply = [], ""
    with OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]) as client:
        for _ in range(MAX_TURNS):
            response = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                reply = (message.content or "").strip().rstrip(".")
                break
            for call in message.tool_calls:
                content = json.dumps(use(call.function, done))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    score = float(reply == expected(task["id"]))
    print(json.dumps({"reward": score, "final_state": {"reply": reply}, "transitions": done, "artifacts": {}}))


def reward(trajectory):
    return 0.0


def scorer(trajectory):
    said = (trajectory.final_state or {}).get("reply", "")
    return float(said == str(trajectory.task.fields["answer"]))


if __name__ == "__main__":
    main()
