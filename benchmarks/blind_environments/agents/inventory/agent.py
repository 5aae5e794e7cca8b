"""Stock questions for a hardware store. Prints {"reward": ...} at the end."""

import json
import os
import random
import sys
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
STOCK = json.loads((HERE / "stock.json").read_text())
EXPECTED = json.loads((HERE / "expected.json").read_text())
PAGE = 4

SYSTEM = "You keep the stock of a hardware store. Answer with the number of units, digits only."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": f"Find items of an aisle. Shows at most {PAGE} items.",
            "parameters": {"type": "object", "properties": {"aisle": {"type": "string"}}, "required": ["aisle"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "units",
            "description": "Units of an item, by its code.",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
        },
    },
]


def search(aisle):
    found = [{"code": code, "name": item["name"]} for code, item in STOCK.items() if item["aisle"] == aisle]
    if len(found) > PAGE:
        found = random.sample(found, PAGE)
    return found


def units(code):
    if code not in STOCK:
        return {"error": f"unknown code {code}"}
    return {"code": code, "units": STOCK[code]["units"]}


def request(messages):
    body = json.dumps({"model": "policy", "messages": messages, "tools": TOOLS}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    url = os.environ["OPENAI_BASE_URL"].rstrip("/") + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=300) as response:
        return json.load(response)["choices"][0]["message"]


def run_tool(function):
    tools = {"search": search, "units": units}
    if function["name"] not in tools:
        return {"error": f"unknown tool {function['name']}"}
    try:
        return tools[function["name"]](**json.loads(function["arguments"]))
    except (TypeError, ValueError) as error:
        return {"error": str(error)}


def main():
    task = json.load(sys.stdin)
    messages = [{"role": "system", "content": SYSTEM}, *task["messages"]]
    reply = None
    for _ in range(8):
        message = request(messages)
        messages.append(message)
        if not message.get("tool_calls"):
            reply = (message.get("content") or "").strip()
            break
        for call in message["tool_calls"]:
            result = run_tool(call["function"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
    print(json.dumps({"reward": float(reply is not None and reply == EXPECTED.get(task["id"]))}))


main()
