"""An analyst with SQL access to the sales of a tea shop."""

import csv
import json
import os
import sqlite3
import sys
from pathlib import Path

from openai import OpenAI

HERE = Path(__file__).parent
MAX_TURNS = 8
SYSTEM = (
    "You answer questions about sales(day, product, region, units, cents). Use run_sql, which takes SQLite. "
    "Answer with one whole number and nothing else."
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "run_sql",
            "description": "Run one SQLite statement and return up to 20 rows.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
]


def connect():
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    db.execute("CREATE TABLE sales (day TEXT, product TEXT, region TEXT, units INTEGER, cents INTEGER)")
    with (HERE / "sales.csv").open(newline="") as file:
        rows = [(r["day"], r["product"], r["region"], int(r["units"]), int(r["cents"])) for r in csv.DictReader(file)]
    db.executemany("INSERT INTO sales VALUES (?, ?, ?, ?, ?)", rows)
    return db


def run_sql(db, query):
    steps = 0

    def is_too_long():
        nonlocal steps
        steps += 1
        return steps > 200

    db.set_progress_handler(is_too_long, 10_000)
    try:
        cursor = db.execute(query)
        return {"columns": [column[0] for column in cursor.description or ()], "rows": cursor.fetchmany(20)}
    finally:
        db.set_progress_handler(None, 0)


def expected(db, task_id):
    queries = json.loads((HERE / "queries.json").read_text())
    return db.execute(queries[task_id]).fetchone()[0] or 0


def is_right(reply, number):
    try:
        return int(reply.strip().rstrip(".").replace(",", "")) == number
    except ValueError:
        return False


def main():
    task = json.load(sys.stdin)
    db = connect()
    messages = [{"role": "system", "content": SYSTEM}, *task["messages"]]
    transitions, reply = [], ""
    with OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]) as client:
        for _ in range(MAX_TURNS):
            answer = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                reply = message.content or ""
                break
            for call in message.tool_calls:
                output = respond(db, call.function, transitions)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(output, default=str)})
    score = 1.0 if is_right(reply, expected(db, task["id"])) else 0.0
    db.close()
    print(
        json.dumps({"reward": score, "final_state": {"reply": reply.strip()}, "transitions": transitions}, default=str)
    )


def respond(db, function, transitions):
    if function.name != "run_sql":
        return {"error": f"unknown tool {function.name}; there is only run_sql"}
    try:
        arguments = json.loads(function.arguments or "{}")
    except ValueError:
        return {"error": "the arguments are not valid JSON"}
    if not isinstance(arguments, dict) or not isinstance(arguments.get("query"), str):
        return {"error": "give the statement as the string query"}
    try:
        result, error = run_sql(db, arguments["query"]), None
    except (sqlite3.Error, sqlite3.Warning, ValueError) as problem:
        result, error = None, str(problem)
    transitions.append({"tool": "run_sql", "arguments": arguments, "result": result, "error": error})
    return result if error is None else {"error": error}


def reward(trajectory):
    return 0.0


if __name__ == "__main__":
    main()
