"""A pharmacy counter: the policy looks up stock and dispenses packs."""

import json
import sqlite3

from sparring import AgentReport

MAX_TURNS = 8
DATABASE = "file:pharmacy?mode=memory&cache=shared"
SYSTEM = "You work at a pharmacy counter. Use the tools. Reply with the final number alone."

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "check_stock",
            "description": "Packs of a medicine that are in stock.",
            "parameters": {
                "type": "object",
                "properties": {"medicine": {"type": "string"}},
                "required": ["medicine"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "dispense",
            "description": "Hand out packs of a medicine.",
            "parameters": {
                "type": "object",
                "properties": {"medicine": {"type": "string"}, "packs": {"type": "integer"}},
                "required": ["medicine", "packs"],
            },
        },
    },
]


class Counter:
    def __init__(self, stock):
        self.db = sqlite3.connect(DATABASE, uri=True, isolation_level=None, timeout=5.0)
        self.db.execute("CREATE TABLE IF NOT EXISTS stock (medicine TEXT PRIMARY KEY, packs INTEGER NOT NULL)")
        self.db.executemany("INSERT OR REPLACE INTO stock VALUES (?, ?)", stock.items())

    def close(self):
        self.db.close()

    def stock(self):
        return dict(self.db.execute("SELECT medicine, packs FROM stock ORDER BY medicine"))

    def check_stock(self, medicine):
        row = self.db.execute("SELECT packs FROM stock WHERE medicine = ?", (str(medicine),)).fetchone()
        if row is None:
            raise ValueError(f"no medicine called {medicine!r}")
        return {"medicine": medicine, "packs": row[0]}

    def dispense(self, medicine, packs):
        packs = int(packs)
        left = self.check_stock(medicine)["packs"]
        if packs < 1 or packs > left:
            raise ValueError(f"cannot dispense {packs} of {left} packs")
        self.db.execute("UPDATE stock SET packs = packs - ? WHERE medicine = ?", (packs, str(medicine)))
        return {"dispensed": packs}


def execute(counter, name, raw):
    tool = {"check_stock": counter.check_stock, "dispense": counter.dispense}.get(name)
    if tool is None:
        return {}, None, f"there is no tool {name!r}"
    try:
        arguments = json.loads(raw or "{}")
    except ValueError:
        return {}, None, "the arguments are not valid JSON"
    if not isinstance(arguments, dict):
        return {}, None, "the arguments must be an object"
    try:
        return arguments, tool(**arguments), None
    except (TypeError, ValueError, OverflowError, sqlite3.Error) as error:
        return arguments, None, str(error)


def is_right(text, fields):
    return (text or "").strip().rstrip(".") == str(fields["answer"])


async def play(task, session):
    counter = Counter(task.fields["stock"])
    transitions = []
    messages = [{"role": "system", "content": SYSTEM}, *(dict(m) for m in task.messages)]
    reply = ""
    try:
        async with session.client() as client:
            for _ in range(MAX_TURNS):
                answer = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    reply = message.content or ""
                    break
                for call in message.tool_calls:
                    name = call.function.name
                    arguments, result, error = execute(counter, name, call.function.arguments)
                    if name in ("check_stock", "dispense"):
                        transitions.append({"tool": name, "arguments": arguments, "result": result, "error": error})
                    content = json.dumps({"error": error} if error else result)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        state = {"stock": counter.stock()}
    finally:
        counter.close()
    return AgentReport(reward=float(is_right(reply, task.fields)), final_state=state, transitions=transitions)


def reward(trajectory):
    texts = [m.get("content") for m in trajectory.messages if m.get("role") == "assistant"]
    return float(bool(texts) and is_right(texts[-1], trajectory.task.fields))
