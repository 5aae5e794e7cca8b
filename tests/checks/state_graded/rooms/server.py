"""The server: meeting rooms. `python server.py`; the variable DAY is the day of the task."""

import os

from mcp.server.mcpserver import MCPServer

server = MCPServer("rooms")
bookings: list[dict[str, str | int]] = []


@server.tool()
def book(room: str, hour: int) -> str:
    """Book a room for an hour of the day."""
    if any(one["room"] == room and one["hour"] == hour for one in bookings):
        raise ValueError(f"{room} is taken at {hour}")
    bookings.append({"day": os.environ["DAY"], "room": room, "hour": hour})
    return "booked"


@server.tool()
def release(room: str, hour: int) -> str:
    """Give a booking up."""
    kept = [one for one in bookings if (one["room"], one["hour"]) != (room, hour)]
    if len(kept) == len(bookings):
        raise ValueError("there is no such booking")
    bookings[:] = kept
    return "released"


@server.tool()
def show() -> dict[str, list[dict[str, str | int]]]:
    """All bookings."""
    return {"bookings": bookings}


if __name__ == "__main__":
    server.run()
