"""A courier's dispatcher who assigns parcels to vans."""

import difflib
import json
import os
import sys
from pathlib import Path

from openai import OpenAI

MAX_TURNS = 8
SYSTEM = "You dispatch parcels. Assign the parcel to the van that drives to its district, then answer: assigned."


def schema(name, description, *parameters):
    properties = {parameter: {"type": "string"} for parameter in parameters}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(parameters)},
        },
    }


TOOLS = [
    schema("find_parcel", "Number and district of the parcel for a recipient.", "recipient"),
    schema("list_vans", "Vans and their districts."),
    schema("assign", "Put a parcel on a van.", "parcel", "van"),
]


def nearest(name, names):
    """The name that was meant; dispatchers mistype."""
    matches = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.1)
    if not matches:
        raise ValueError(f"unknown: {name}")
    return matches[0]


class Depot:
    def __init__(self, record):
        self.parcels = record["parcels"]
        self.vans = record["vans"]
        self.loaded = {}
        self.done = []

    def find_parcel(self, recipient):
        for number, parcel in self.parcels.items():
            if parcel["recipient"] == recipient:
                return {"parcel": number, "district": parcel["district"]}
        raise ValueError(f"no parcel for {recipient}")

    def list_vans(self):
        return self.vans

    def assign(self, parcel, van):
        self.loaded[nearest(parcel, self.parcels)] = nearest(van, self.vans)
        return "ok"

    def handle(self, function):
        tools = {"find_parcel": self.find_parcel, "list_vans": self.list_vans, "assign": self.assign}
        if function.name not in tools:
            return {"error": f"unknown tool {function.name}"}
        try:
            arguments = json.loads(function.arguments or "{}")
        except ValueError:
            return {"error": "the arguments are not valid JSON"}
        if not isinstance(arguments, dict):
            return {"error": "the arguments must be an object"}
        try:
            result, error = tools[function.name](**arguments), None
        except (TypeError, ValueError) as problem:
            result, error = None, str(problem)
        self.done.append({"tool": function.name, "arguments": arguments, "result": result, "error": error})
        return {"error": error} if error else {"result": result}


def main():
    task = json.load(sys.stdin)
    depot = Depot(json.loads((Path(__file__).parent / "depots.json").read_text())[task["id"]])
    messages = [{"role": "system", "content": SYSTEM}, *task["messages"]]
    reply = ""
    with OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]) as client:
        for _ in range(MAX_TURNS):
            answer = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                reply = (message.content or "").strip().rstrip(".!").lower()
                break
            for call in message.tool_calls:
                output = json.dumps(depot.handle(call.function))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    print(json.dumps({"final_state": {"loaded": depot.loaded, "reply": reply}, "transitions": depot.done}))


def is_right(trajectory):
    state = trajectory.final_state or {}
    return state.get("loaded") == trajectory.task.fields["goal"] and state.get("reply") == "assigned"


def reward(trajectory):
    return float(is_right(trajectory))


def scorer(trajectory):
    return float(is_right(trajectory))


if __name__ == "__main__":
    main()
