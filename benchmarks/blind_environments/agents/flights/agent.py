"""Flights: search, then book."""

import json

FLIGHTS = {
    "Porto": "QX 417",
    "Riga": "QX 520",
    "Split": "QX 633",
    "Turku": "QX 748",
    "Varna": "QX 851",
    "Bilbao": "QX 966",
    "Tartu": "QX 071",
    "Cork": "QX 183",
}
LOCATORS = {
    "QX 417": "NRT6K",
    "QX 520": "LKW2P",
    "QX 633": "MZD9B",
    "QX 748": "HFC4V",
    "QX 851": "TJG7S",
    "QX 966": "PDX3R",
    "QX 071": "WQB8N",
    "QX 183": "GLY5M",
}
SYSTEM = "You book flights. Search, book the flight for the passenger, and reply with the locator only."


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


SEARCH = [schema("search_flights", "The flight to a destination.", "destination")]
BOOKING = [schema("book_flight", "Book a flight. Returns the locator.", "flight", "passenger")]


def search_flights(destination):
    return {"flight": FLIGHTS[destination]} if destination in FLIGHTS else {"error": f"no flight to {destination}"}


def book_flight(flight, passenger):
    return {"locator": LOCATORS[flight]} if flight in LOCATORS else {"error": f"no flight {flight}"}


HANDLERS = {"search_flights": search_flights, "book_flight": book_flight}


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
    found = False
    for _ in range(8):
        message = await session.chat(messages, SEARCH + BOOKING if found else SEARCH)
        messages.append(message)
        if not message.get("tool_calls"):
            return float((message.get("content") or "").strip() == task.fields["answer"])
        for call in message["tool_calls"]:
            result = run(call["function"])
            found = found or "flight" in result
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
    return 0.0


def scorer(trajectory):
    last = trajectory.messages[-1]
    return float(
        last["role"] == "assistant" and (last.get("content") or "").strip() == trajectory.task.fields["answer"]
    )
