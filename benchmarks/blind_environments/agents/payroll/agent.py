"""Payroll questions over a small SQLite database that is built for each episode."""

import json
import sqlite3

from sparring import AgentReport

STAFF = [
    ("E-201", "Nadia Brandt", "finance", 4150, 27),
    ("E-202", "Luis Ferro", "finance", 3890, 31),
    ("E-203", "Mara Quinn", "legal", 5275, 24),
    ("E-204", "Otto Vance", "legal", 4960, 29),
    ("E-205", "Pia Solberg", "design", 3645, 33),
    ("E-206", "Ren Tanaka", "design", 3720, 26),
]
SYSTEM = "You answer questions of the payroll office. Use the tools. Reply with the requested value alone."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_employee",
            "description": "Number and department of an employee, by full name.",
            "parameters": {
                "type": "object",
                "properties": {"name": {"type": "string"}},
                "required": ["name"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "payslip",
            "description": "Monthly salary in euros and days of leave that an employee has left.",
            "parameters": {
                "type": "object",
                "properties": {
                    "number": {"type": "string", "description": "Number of the employee, such as E-299"},
                    "token": {
                        "type": "string",
                        "description": "Access token of the payroll service",
                        "default": "sk-live-7Qm2xVt9RkLw4ZpB8sYc31Nf",
                    },
                },
                "required": ["number"],
            },
        },
    },
]


class Payroll:
    def __init__(self):
        self.db = sqlite3.connect(":memory:")
        self.db.execute(
            "create table staff (number text primary key, name text, department text, salary int, leave int)"
        )
        self.db.executemany("insert into staff values (?, ?, ?, ?, ?)", STAFF)
        self.log = []

    def find_employee(self, name):
        row = self.db.execute("select number, department from staff where name = ?", (name,)).fetchone()
        if row is None:
            raise LookupError(f"there is no employee {name}")
        return {"number": row[0], "department": row[1]}

    def payslip(self, number, token=None):
        row = self.db.execute("select salary, leave from staff where number = ?", (number,)).fetchone()
        if row is None:
            raise LookupError(f"no employee {number}")
        return {"salary": row[0], "leave": row[1]}

    def call(self, name, raw):
        entry = {"tool": name, "arguments": {}, "result": None, "error": None}
        self.log.append(entry)
        try:
            entry["arguments"] = json.loads(raw)
            if name not in ("find_employee", "payslip"):
                raise LookupError(f"no tool {name}")
            entry["result"] = getattr(self, name)(**entry["arguments"])
        except (LookupError, TypeError, ValueError, sqlite3.Error) as error:
            entry["error"] = str(error)
        return json.dumps(entry["result"] or {"error": entry["error"]})


async def play(task, session):
    payroll = Payroll()
    try:
        messages = [{"role": "system", "content": SYSTEM}, *task.messages]
        async with session.client() as client:
            reply = None
            for _ in range(6):
                completion = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
                message = completion.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    reply = (message.content or "").strip()
                    break
                for call in message.tool_calls:
                    text = payroll.call(call.function.name, call.function.arguments)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        return AgentReport(reward=float(reply == task.fields["value"]), transitions=payroll.log)
    finally:
        payroll.db.close()
