"""Appointments of a clinic. Every episode has its own database in memory."""

import json
import sqlite3
import sys
from pathlib import Path

import openai

SYSTEM = (
    "You make appointments in a clinic. Find the doctor of the requested field, book the free slot on the requested day "
    "for the patient, and answer with its time as HH:MM, nothing else."
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "doctors",
            "description": "Doctors of a field.",
            "parameters": {"type": "object", "properties": {"field": {"type": "string"}}, "required": ["field"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "free_slots",
            "description": "Free slots of a doctor.",
            "parameters": {"type": "object", "properties": {"doctor": {"type": "string"}}, "required": ["doctor"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "book",
            "description": "Book a free slot for a patient.",
            "parameters": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in ("doctor", "day", "start", "patient")},
                "required": ["doctor", "day", "start", "patient"],
            },
        },
    },
]


class Clinic:
    def __init__(self):
        self.db = sqlite3.connect(":memory:")
        self.db.row_factory = sqlite3.Row
        self.db.executescript((Path(__file__).parent / "clinic.sql").read_text())
        self.tools = {"doctors": self.doctors, "free_slots": self.free_slots, "book": self.book}

    def rows(self, query, *values):
        return [dict(row) for row in self.db.execute(query, values)]

    def doctors(self, field):
        return self.rows("select name, room from doctors where field = ? order by name", field)

    def free_slots(self, doctor):
        return self.rows("select day, start from slots where doctor = ? and patient is null order by rowid", doctor)

    def book(self, doctor, day, start, patient):
        query = "update slots set patient = ? where doctor = ? and day = ? and start = ? and patient is null"
        if self.db.execute(query, (patient, doctor, day, start)).rowcount != 1:
            raise ValueError("this slot is not free")
        return {"booked": f"{day} {start}"}

    def state(self):
        return self.rows("select * from slots where patient is not null order by rowid")


def main():
    task = json.load(sys.stdin)
    clinic = Clinic()
    messages = [{"role": "system", "content": SYSTEM}, *task["messages"]]
    transitions = []
    with openai.OpenAI() as client:
        while True:
            message = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS).choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                name, arguments, result, error = call.function.name, {}, None, None
                try:
                    arguments = json.loads(call.function.arguments)
                    if name in clinic.tools:
                        result = clinic.tools[name](**arguments)
                    else:
                        error = f"unknown tool {name}"
                except (TypeError, ValueError, sqlite3.Error) as problem:
                    error = str(problem)
                transitions.append({"tool": name, "arguments": arguments, "result": result, "error": error})
                content = json.dumps(result if error is None else {"error": error})
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    print(json.dumps({"final_state": {"booked": clinic.state()}, "transitions": transitions}))
    clinic.db.close()


if __name__ == "__main__":
    main()
