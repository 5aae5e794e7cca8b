"""Finds causes in a log. The log is searched by a helper program, so that large logs stay out of the trainer."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SYSTEM = "You analyse a server log. Reply with the identifier or number that is asked for, nothing else."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "hosts",
            "description": "The hosts in the log.",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "grep",
            "description": "The messages of a host with a level.",
            "parameters": {
                "type": "object",
                "properties": {
                    "host": {"type": "string"},
                    "level": {"type": "string", "enum": ["INFO", "WARN", "ERROR"]},
                },
                "required": ["host", "level"],
            },
        },
    },
]


class Index:
    def __init__(self, path):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "index.py"), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    async def start(self):
        self.port = int(await asyncio.to_thread(self.process.stdout.readline))

    async def query(self, tool, arguments):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(json.dumps({"tool": tool, "arguments": arguments}).encode() + b"\n")
            await writer.drain()
            return json.loads(await reader.readline())
        finally:
            writer.close()
            await writer.wait_closed()

    def close(self):
        self.process.stdout.close()
        self.process.poll()


async def execute(index, function):
    try:
        raw = function["arguments"]
        arguments = json.loads(raw) if isinstance(raw, str) else raw
        if not isinstance(arguments, dict):
            return {"error": "arguments must be an object"}
        return await index.query(function["name"], arguments)
    except ValueError as error:
        return {"error": f"invalid arguments: {error}"}


async def play(task, session):
    index = Index(HERE / "server.log")
    try:
        await index.start()
        messages = [{"role": "system", "content": SYSTEM}, *task.messages]
        for _ in range(8):
            message = await session.chat(messages, TOOLS)
            messages.append(message)
            if not message.get("tool_calls"):
                return float((message.get("content") or "").strip() == task.fields["cause"])
            for call in message["tool_calls"]:
                result = await execute(index, call["function"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
        return 0.0
    finally:
        index.close()


def scorer(trajectory):
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and (last.get("content") or "").strip() == trajectory.task.fields["cause"])
