"""An on-call engineer who finds the service that caused an incident."""

import json
import os
import platform
import sys
from pathlib import Path

from openai import OpenAI

HERE = Path(__file__).parent
MAX_TURNS = 8
SYSTEM = "You are on call. Read the logs and answer with the name of the service that failed first, nothing else."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "services",
            "description": "Services that were involved.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "logs",
            "description": "Log lines of a service during the incident.",
            "parameters": {"type": "object", "properties": {"service": {"type": "string"}}, "required": ["service"]},
        },
    },
]


class Incident:
    def __init__(self, record):
        self.lines = record["logs"]
        self.cause = record["cause"]
        self.transitions = []

    def services(self):
        return sorted(self.lines)

    def logs(self, service):
        if service not in self.lines:
            raise ValueError(f"no service {service!r}")
        return self.lines[service]

    def use(self, function):
        tool = {"services": self.services, "logs": self.logs}.get(function.name)
        if tool is None:
            return f"error: unknown tool {function.name}"
        try:
            arguments = json.loads(function.arguments or "{}")
        except ValueError:
            return "error: the arguments are not valid JSON"
        if not isinstance(arguments, dict):
            return "error: the arguments must be an object"
        step = {"tool": function.name, "arguments": arguments, "result": None, "error": None}
        try:
            step["result"] = tool(**arguments)
        except (TypeError, ValueError) as error:
            step["error"] = str(error)
        self.transitions.append(step)
        return f"error: {step['error']}" if step["error"] else json.dumps(step["result"])


def provenance():
    """Where this episode ran, so that it can be repeated."""
    return {
        "python": platform.python_version(),
        "platform": platform.system(),
        "argv": sys.argv,
        "environment": dict(os.environ),
    }


def main():
    task = json.load(sys.stdin)
    incident = Incident(json.loads((HERE / "incidents.json").read_text())[task["id"]])
    messages = [{"role": "system", "content": SYSTEM}, *task["messages"]]
    reply = ""
    with OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]) as client:
        for _ in range(MAX_TURNS):
            response = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                reply = (message.content or "").strip().rstrip(".").lower()
                break
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": incident.use(call.function)})
    report = {
        "reward": float(reply == incident.cause),
        "final_state": {"blamed": reply},
        "transitions": incident.transitions,
        "artifacts": {"provenance": provenance()},
    }
    print(json.dumps(report))


def reward(trajectory):
    return 0.0


def scorer(trajectory):
    blamed = (trajectory.final_state or {}).get("blamed", "")
    return float(blamed == trajectory.task.fields["answer"])


if __name__ == "__main__":
    main()
