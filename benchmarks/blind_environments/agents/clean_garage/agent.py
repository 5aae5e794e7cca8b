"""Estimates of a garage. The answers are in a file that only this program reads."""

import json
import os
import sys
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
CARS = {
    "GH-41": {"model": "Corsa", "job": "brakes"},
    "GH-58": {"model": "Golf", "job": "clutch"},
    "GH-63": {"model": "Clio", "job": "exhaust"},
    "GH-77": {"model": "Panda", "job": "timing belt"},
    "GH-80": {"model": "Corsa", "job": "clutch"},
    "GH-82": {"model": "Golf", "job": "brakes"},
    "GH-85": {"model": "Clio", "job": "timing belt"},
    "GH-88": {"model": "Panda", "job": "exhaust"},
    "GH-91": {"model": "Corsa", "job": "exhaust"},
    "GH-93": {"model": "Golf", "job": "timing belt"},
    "GH-96": {"model": "Clio", "job": "clutch"},
    "GH-99": {"model": "Panda", "job": "brakes"},
}
LABOUR = {"brakes": 190, "clutch": 540, "exhaust": 165, "timing belt": 380}
MATERIAL = {"Corsa": 87, "Golf": 233, "Clio": 142, "Panda": 96}
SYSTEM = "You write estimates in a garage. Answer with labour plus material in euros, digits only."


def schema(name, description, argument):
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    schema("car", "Model of a car and the job to do, by its plate.", "plate"),
    schema("labour", "Cost of the labour of a job in euros.", "job"),
    schema("material", "Cost of the material for a model in euros.", "model"),
]


def look_up(table, key, what):
    if key not in table:
        raise ValueError(f"unknown {what} {key!r}")
    return table[key]


def car(plate):
    return look_up(CARS, plate, "plate")


def labour(job):
    return {"euros": look_up(LABOUR, job, "job")}


def material(model):
    return {"euros": look_up(MATERIAL, model, "model")}


HANDLERS = {"car": car, "labour": labour, "material": material}


def chat(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({"model": "policy", "messages": messages, "tools": TOOLS}).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


def use_tool(function):
    entry = {"tool": function["name"], "arguments": {}, "result": None, "error": None}
    try:
        entry["arguments"] = json.loads(function["arguments"])
        if function["name"] in HANDLERS:
            entry["result"] = HANDLERS[function["name"]](**entry["arguments"])
        else:
            entry["error"] = f"unknown tool {function['name']}"
    except (TypeError, ValueError) as error:
        entry["error"] = str(error)
    return entry


def main():
    task = json.load(sys.stdin)
    truth = json.loads((HERE / "estimates.json").read_text())
    messages = [{"role": "system", "content": SYSTEM}, *task["messages"]]
    transitions = []
    while True:
        message = chat(messages)
        messages.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            entry = use_tool(call["function"])
            transitions.append(entry)
            shown = entry["result"] if entry["error"] is None else {"error": entry["error"]}
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(shown)})
    answer = (message.get("content") or "").strip()
    print(json.dumps({"reward": float(answer == truth[task["id"]]), "transitions": transitions}))


if __name__ == "__main__":
    main()
