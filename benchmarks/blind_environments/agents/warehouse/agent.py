"""Plans the unloading of trucks in a warehouse."""

import json
import os
import sys
import urllib.request

TRUCKS = {
    "KL-22": {"goods": "ceramics", "pallets": 12},
    "KL-35": {"goods": "frozen fish", "pallets": 20},
    "KL-48": {"goods": "timber", "pallets": 31},
    "KL-61": {"goods": "solvents", "pallets": 9},
    "KL-73": {"goods": "glassware", "pallets": 16},
    "KL-84": {"goods": "ice cream", "pallets": 24},
    "KL-90": {"goods": "bricks", "pallets": 18},
    "KL-97": {"goods": "paint", "pallets": 7},
}
ZONES = {
    "ceramics": "fragile", "frozen fish": "cold", "timber": "yard", "solvents": "hazard",
    "glassware": "fragile", "ice cream": "cold", "bricks": "yard", "paint": "hazard",
}  # fmt: skip
BAYS = {"fragile": "bay R8", "cold": "bay C2", "yard": "bay Y5", "hazard": "bay X3"}
LIMIT = 8


def schema(name, description, argument):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]},
        },
    }


TOOLS = [
    schema("truck", "What a truck carries.", "plate"),
    schema("zone_for", "The zone for a kind of goods.", "goods"),
    schema("bay_of", "The bay at which a zone is unloaded.", "zone"),
]


def truck(plate):
    return TRUCKS.get(plate, {"error": f"no truck {plate}"})


def zone_for(goods):
    return {"zone": ZONES[goods]} if goods in ZONES else {"error": f"no zone for {goods}"}


def bay_of(zone):
    return {"bay": BAYS[zone]} if zone in BAYS else {"error": f"no zone {zone}"}


def system(step):
    return {
        "role": "system",
        "content": (
            "You plan the unloading of trucks. Find the goods, the zone and the bay with the tools. Answer with the bay "
            f"alone, such as 'bay Q1'. You have {LIMIT - step} steps left."
        ),
    }


def complete(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({"model": "policy", "messages": messages, "tools": TOOLS}).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.loads(response.read())["choices"][0]["message"]


def call_tool(function):
    handlers = {"truck": truck, "zone_for": zone_for, "bay_of": bay_of}
    if function["name"] not in handlers:
        return {"error": f"unknown tool {function['name']}"}
    try:
        return handlers[function["name"]](**json.loads(function["arguments"]))
    except (TypeError, ValueError) as error:
        return {"error": str(error)}


def main():
    task = json.load(sys.stdin)
    history = list(task["messages"])
    transitions = []
    for step in range(LIMIT):
        message = complete([system(step), *history])
        history.append(message)
        if not message.get("tool_calls"):
            break
        for call in message["tool_calls"]:
            result = call_tool(call["function"])
            transitions.append(
                {
                    "tool": call["function"]["name"],
                    "arguments": call["function"]["arguments"],
                    "result": result,
                    "error": result.get("error"),
                }
            )
            history.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
    print(json.dumps({"transitions": transitions}))


if __name__ == "__main__":
    main()
