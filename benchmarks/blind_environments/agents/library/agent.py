"""A lending desk: the policy looks books up and lends them."""

import json
import sqlite3
from pathlib import Path

from sparring import AgentReport

DATABASE = Path(__file__).parent / "library.db"
SYSTEM = (
    "You work at the lending desk of a library. Lend the book that the reader asks for, then answer with the number of "
    "copies that are left on the shelf, as digits and nothing else."
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_book",
            "description": "Author, shelf and number of copies of a book.",
            "parameters": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "lend",
            "description": "Lend one copy of a book to a member.",
            "parameters": {
                "type": "object",
                "properties": {"title": {"type": "string"}, "member": {"type": "string"}},
                "required": ["title", "member"],
            },
        },
    },
]


class Desk:
    def __init__(self):
        self.db = sqlite3.connect(DATABASE, timeout=10)
        self.db.row_factory = sqlite3.Row
        self.log = []

    def find_book(self, title):
        row = self.db.execute("select author, shelf, copies from books where title = ?", (title,)).fetchone()
        return dict(row) if row else {"error": f"no book with the title {title!r}"}

    def lend(self, title, member):
        with self.db:
            changed = self.db.execute(
                "update books set copies = copies - 1 where title = ? and copies > 0", (title,)
            ).rowcount
            if not changed:
                return {"error": f"no copy of {title!r} is available"}
            self.db.execute("insert into loans values (?, ?)", (member, title))
        return {"lent": title, "to": member}

    def call(self, name, raw):
        tools = {"find_book": self.find_book, "lend": self.lend}
        arguments = {}
        try:
            arguments = json.loads(raw) if isinstance(raw, str) else dict(raw)
            if name not in tools:
                result = {"error": f"unknown tool {name!r}"}
            else:
                result = tools[name](**arguments)
        except (TypeError, ValueError, sqlite3.Error) as error:
            result = {"error": str(error)}
        self.log.append({"tool": name, "arguments": arguments, "result": result, "error": result.get("error")})
        return json.dumps(result)


async def play(task, session):
    desk = Desk()
    try:
        messages = [{"role": "system", "content": SYSTEM}, *task.messages]
        reply = ""
        for _ in range(8):
            message = await session.chat(messages, TOOLS)
            messages.append(message)
            if not message.get("tool_calls"):
                reply = (message.get("content") or "").strip()
                break
            for call in message["tool_calls"]:
                result = desk.call(call["function"]["name"], call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        stock = desk.find_book(task.fields["title"])
        return AgentReport(
            reward=float(reply == task.fields["answer"]),
            final_state={"title": task.fields["title"], "copies": stock.get("copies")},
            transitions=desk.log,
        )
    finally:
        desk.db.close()


def scorer(trajectory):
    last = trajectory.messages[-1]
    return float(
        last.get("role") == "assistant" and (last.get("content") or "").strip() == trajectory.task.fields["answer"]
    )
