"""A library desk as an agent of a user's own: a chat loop with two tools over SQLite."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from sparring import AgentReport, Message, Task, Trajectory

BOOKS = (("Emma", "B31"), ("Walden", "A12"), ("Persuasion", "B31"), ("Middlemarch", "C77"))
SCHEMAS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Shelf of a book.",
            "parameters": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "borrow",
            "description": "Lend a book to a person.",
            "parameters": {
                "type": "object",
                "properties": {"title": {"type": "string"}, "person": {"type": "string"}},
                "required": ["title", "person"],
            },
        },
    },
]


class Desk:
    """The database of one episode and its tools."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:")
        self.db.execute("CREATE TABLE books (title TEXT, shelf TEXT, person TEXT)")
        self.db.executemany("INSERT INTO books VALUES (?, ?, NULL)", BOOKS)

    def find(self, title: str) -> str:
        row = self.db.execute("SELECT shelf FROM books WHERE title = ?", (title,)).fetchone()
        return row[0] if row else "no such book"

    def borrow(self, title: str, person: str) -> str:
        free = "UPDATE books SET person = ? WHERE title = ? AND person IS NULL"
        return "lent" if self.db.execute(free, (person, title)).rowcount else "not available"

    def state(self) -> dict[str, Any]:
        return dict(self.db.execute("SELECT title, person FROM books WHERE person IS NOT NULL"))

    def close(self) -> None:
        self.db.close()


def call(desk: Desk, name: str, text: str) -> tuple[Any, str, str | None]:
    """Return the arguments, the result and the error of a call."""
    if name not in ("find", "borrow"):
        return text, f"error: there is no {name}; there are find and borrow", "unknown_tool"
    try:
        arguments = json.loads(text or "{}")
        return arguments, getattr(desk, name)(**arguments), None
    except (TypeError, ValueError) as error:
        return text, f"error: {error}", "wrong_arguments"


async def play(task: Task, session: Any) -> AgentReport:
    desk = Desk()
    messages: list[Message] = [{"role": "system", "content": "You work at a library desk."}, *task.messages]
    log = []
    try:
        async with session.client() as client:
            for _ in range(8):
                answer = await client.chat.completions.create(model="policy", messages=messages, tools=SCHEMAS)
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    break
                for one in message.tool_calls:
                    arguments, result, error = call(desk, one.function.name, one.function.arguments)
                    log.append({"tool": one.function.name, "arguments": arguments, "result": result, "error": error})
                    messages.append({"role": "tool", "tool_call_id": one.id, "content": result})
        return AgentReport(reward=grade(task, messages), final_state=desk.state(), transitions=log)
    finally:
        desk.close()


def grade(task: Task, messages: list[Message]) -> float:
    given = str(messages[-1].get("content") or "").strip()
    return float(given == task.fields["answer"])


def scorer(episode: Trajectory) -> float:
    """Return 1 for the right shelf in an episode that lent nothing."""
    given = str(episode.messages[-1].get("content") or "").split()
    return float(given == [episode.task.fields["answer"]] and not episode.final_state)
