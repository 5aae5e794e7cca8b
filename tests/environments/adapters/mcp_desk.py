"""A Model Context Protocol server for the tests: `python mcp_desk.py` speaks over its standard streams, `python mcp_desk.py
PORT` over HTTP."""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.types import ImageContent, TextContent

desk = MCPServer("desk")
notes: list[str] = []


@desk.tool()
def note(text: str) -> int:
    """Write a note down; how many there are then."""
    notes.append(text)
    return len(notes)


@desk.tool()
def divide(a: int, b: int) -> float:
    """A quotient."""
    return a / b


@desk.tool()
def variable(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "unset")


@desk.tool()
def picture() -> list[TextContent | ImageContent]:
    """A text and a picture."""
    return [TextContent(type="text", text="seen"), ImageContent(type="image", data="aGk=", mime_type="image/png")]


@desk.tool()
def die() -> str:
    """End the server in the middle of a call."""
    sys.stderr.write("the disk is full\n")
    sys.stderr.flush()
    os._exit(3)


@desk.tool()
def sleep(seconds: float) -> str:
    """Answer late."""
    time.sleep(seconds)
    return "awake"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        desk.run("streamable-http", port=int(sys.argv[1]))
    else:
        desk.run()
