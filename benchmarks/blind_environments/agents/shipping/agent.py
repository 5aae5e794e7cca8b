"""Shipping desk. Each episode works on its own copy of the parcel database."""

import json
import shutil
import sqlite3
import tempfile
from pathlib import Path

from sparring import AgentReport

TEMPLATE = Path(__file__).parent / "parcels.db"
SYSTEM = "You work at a shipping desk. Change the parcel as requested, then reply with its new postage in cents, digits only."


def tool(name, description, **kinds):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in kinds.items()},
                "required": list(kinds),
            },
        },
    }


TOOLS = [
    tool("parcel", "Weight in grams, service and destination of a parcel.", code="string"),
    tool("set_service", "Change a parcel's service to economy, standard or express.", code="string", service="string"),
    tool("postage", "Postage of a parcel in cents.", code="string"),
]
RATES = {"economy": 3, "standard": 5, "express": 11}


class ParcelStore:
    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="shipping-")) / "parcels.db"
        shutil.copyfile(TEMPLATE, self.path)
        self.connection = sqlite3.connect(self.path)
        self.transitions = []

    def close(self):
        self.connection.close()

    def parcel(self, code):
        row = self.connection.execute(
            "select grams, service, destination from parcels where code = ?", (code,)
        ).fetchone()
        if row is None:
            raise ValueError(f"no parcel {code}")
        return dict(zip(("grams", "service", "destination"), row))

    def set_service(self, code, service):
        if service not in RATES:
            raise ValueError(f"no service {service}")
        self.parcel(code)
        with self.connection:
            self.connection.execute("update parcels set service = ? where code = ?", (service, code))
        return {"code": code, "service": service}

    def postage(self, code):
        found = self.parcel(code)
        return {"cents": RATES[found["service"]] * found["grams"] // 10}

    def execute(self, name, raw):
        arguments, result, error = None, None, None
        handlers = {"parcel": self.parcel, "set_service": self.set_service, "postage": self.postage}
        try:
            arguments = json.loads(raw)
            result = handlers[name](**arguments) if name in handlers else None
            error = None if name in handlers else f"unknown tool {name}"
        except (ValueError, TypeError, sqlite3.Error) as problem:
            error = str(problem)
        self.transitions.append({"tool": name, "arguments": arguments, "result": result, "error": error})
        return json.dumps(result if error is None else {"error": error})


async def play(task, session):
    store = ParcelStore()
    try:
        messages = [{"role": "system", "content": SYSTEM}, *task.messages]
        said = None
        async with session.client() as client:
            for _ in range(8):
                response = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
                message = response.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    said = (message.content or "").strip()
                    break
                for call in message.tool_calls:
                    content = store.execute(call.function.name, call.function.arguments)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        parcel = store.parcel(task.fields["code"])
        done = parcel["service"] == task.fields["service"] and said == task.fields["cents"]
        return AgentReport(reward=float(done), final_state=parcel, transitions=store.transitions)
    finally:
        store.close()


def scorer(trajectory):
    fields, state = trajectory.task.fields, trajectory.final_state or {}
    said = (trajectory.messages[-1].get("content") or "").strip()
    return float(state.get("service") == fields["service"] and said == fields["cents"])
