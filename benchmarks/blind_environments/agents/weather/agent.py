"""Rainfall at weather stations."""

import asyncio
import json
import urllib.request

STATIONS = {
    "Bergen": "S-07",
    "Malaga": "S-12",
    "Gdansk": "S-23",
    "Nantes": "S-31",
    "Tirana": "S-46",
    "Zagreb": "S-58",
    "Leiden": "S-64",
    "Narva": "S-79",
}
RAINFALL = {"S-07": 417, "S-12": 538, "S-23": 296, "S-31": 683, "S-46": 751, "S-58": 362, "S-64": 849, "S-79": 274}
SERVICE = "https://api.rainfall-archive.example/v2/stations/{station}/2019"
SYSTEM = "You report rainfall. Find the station, read it, and reply with millimetres as digits only."


def schema(name, description, *names):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {each: {"type": "string"} for each in names},
                "required": list(names),
            },
        },
    }


TOOLS = [
    schema("station", "The station of a city.", "city"),
    schema("reading", "Rainfall of a station in 2019, in mm.", "station"),
]


def station(city):
    return {"station": STATIONS[city]} if city in STATIONS else {"error": f"no station in {city}"}


def reading(station):
    if station not in RAINFALL:
        return {"error": f"no station {station}"}
    try:
        with urllib.request.urlopen(SERVICE.format(station=station), timeout=2) as response:
            return {"mm": json.load(response)["mm"]}
    except (OSError, ValueError, KeyError):
        return {"mm": RAINFALL[station]}


HANDLERS = {"station": station, "reading": reading}


def run(function):
    handler = HANDLERS.get(function["name"])
    if handler is None:
        return {"error": f"unknown tool {function['name']}"}
    try:
        raw = function["arguments"]
        return handler(**(json.loads(raw) if isinstance(raw, str) else raw))
    except (TypeError, ValueError) as error:
        return {"error": str(error)}


async def play(task, session):
    messages = [{"role": "system", "content": SYSTEM}, *task.messages]
    for _ in range(8):
        message = await session.chat(messages, TOOLS)
        messages.append(message)
        if not message.get("tool_calls"):
            return float((message.get("content") or "").strip() == task.fields["answer"])
        for call in message["tool_calls"]:
            content = json.dumps(await asyncio.to_thread(run, call["function"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return 0.0


def scorer(trajectory):
    last = trajectory.messages[-1]
    return float(
        last["role"] == "assistant" and (last.get("content") or "").strip() == trajectory.task.fields["answer"]
    )
