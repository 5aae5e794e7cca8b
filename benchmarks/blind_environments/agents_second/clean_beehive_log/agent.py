"""Beehive inspection logs as CSV files in a folder of the episode."""

import asyncio
import csv
import json
import tempfile
from pathlib import Path

from sparring import AgentReport

MAX_TURNS = 8
SYSTEM = "You read beehive logs. Use the tools and answer with one number, nothing else."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "list_hives",
            "description": "Names of the hives that have a log.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "read_log",
            "description": "The log of one hive: date, frames of brood, honey in kg.",
            "parameters": {"type": "object", "properties": {"hive": {"type": "string"}}, "required": ["hive"]},
        },
    },
]


def write_logs(folder, logs):
    for hive, rows in logs.items():
        with (folder / f"{hive}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["date", "brood_frames", "honey_kg"])
            writer.writerows(rows)


class Logs:
    def __init__(self, folder):
        self.folder = folder
        self.tools = {"list_hives": self.list_hives, "read_log": self.read_log}

    def list_hives(self):
        return sorted(path.stem for path in self.folder.glob("*.csv"))

    def read_log(self, hive):
        if hive not in self.list_hives():
            raise ValueError(f"no log for hive {hive!r}")
        return (self.folder / f"{hive}.csv").read_text()

    def run(self, name, arguments):
        return self.tools[name](**arguments)


def is_right(reply, expected):
    try:
        return float(reply.strip().rstrip(".")) == float(expected)
    except ValueError:
        return False


async def play(task, session):
    executed, reply = [], ""
    with tempfile.TemporaryDirectory(prefix="hives-") as name:
        folder = Path(name)
        await asyncio.to_thread(write_logs, folder, task.fields["logs"])
        logs = Logs(folder)
        messages = [{"role": "system", "content": SYSTEM}] + [dict(message) for message in task.messages]
        async with session.client() as client:
            for _ in range(MAX_TURNS):
                response = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
                message = response.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    reply = message.content or ""
                    break
                for call in message.tool_calls:
                    output = await _answer(logs, call, executed)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return AgentReport(
        reward=1.0 if is_right(reply, task.fields["answer"]) else 0.0,
        final_state={"reply": reply.strip()},
        transitions=executed,
        artifacts={},
    )


async def _answer(logs, call, executed):
    name = call.function.name
    if name not in logs.tools:
        return f"error: no tool named {name}"
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError as error:
        return f"error: arguments are not JSON ({error})"
    if not isinstance(arguments, dict):
        return "error: arguments must be a JSON object"
    result, problem = None, None
    try:
        result = await asyncio.to_thread(logs.run, name, arguments)
    except (TypeError, ValueError) as error:
        problem = str(error)
    executed.append({"tool": name, "arguments": arguments, "result": result, "error": problem})
    return f"error: {problem}" if problem else json.dumps(result)


def _reply(trajectory):
    said = [m for m in trajectory.messages if m.get("role") == "assistant"]
    return (said[-1].get("content") or "") if said else ""


def reward(trajectory):
    return float(is_right(_reply(trajectory), trajectory.task.fields["answer"]))


def scorer(trajectory):
    return 1.0 if is_right(_reply(trajectory), trajectory.task.fields["answer"]) else 0.0
