"""A server of the Model Context Protocol for meeting rooms, in plain Python, so that it starts at once. The variable DAY is the
day of the task."""

import json
import os
import sys

ROOM = {
    "type": "object",
    "properties": {"room": {"type": "string"}, "hour": {"type": "integer"}},
    "required": ["room", "hour"],
}
TOOLS = [
    {"name": "book", "description": "Book a room for an hour of the day.", "inputSchema": ROOM},
    {"name": "release", "description": "Give a booking up.", "inputSchema": ROOM},
    {"name": "show", "description": "All bookings.", "inputSchema": {"type": "object", "properties": {}}},
]
bookings = []


def call(name, arguments):
    """What a tool returns. Raises ValueError for what it refuses."""
    if name == "show":
        return json.dumps({"bookings": bookings})
    one = {"day": os.environ["DAY"], "room": arguments["room"], "hour": arguments["hour"]}
    if name == "book":
        if any((other["room"], other["hour"]) == (one["room"], one["hour"]) for other in bookings):
            raise ValueError(f"{one['room']} is taken at {one['hour']}")
        bookings.append(one)
        return "booked"
    if one not in bookings:
        raise ValueError("there is no such booking")
    bookings.remove(one)
    return "released"


def answered(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "rooms", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        try:
            text, failed = call(params["name"], params.get("arguments") or {}), False
        except ValueError as error:
            text, failed = str(error), True
        return {"content": [{"type": "text", "text": text}], "isError": failed}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and "method" in request:
        result = answered(request["method"], request.get("params") or {})
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}) + "\n")
        sys.stdout.flush()
