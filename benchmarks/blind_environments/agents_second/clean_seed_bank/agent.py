"""A seed bank in SQLite: find the accession that a grower should get."""

import json
import sqlite3

MAX_TURNS = 8
SYSTEM = "You work in a seed bank. Find the accession with the highest germination and answer with its code alone."
SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": "accessions",
            "description": "Codes of the accessions of a species.",
            "parameters": {"type": "object", "properties": {"species": {"type": "string"}}, "required": ["species"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "germination",
            "description": "Germination of an accession in percent.",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
        },
    },
]


class Bank:
    def __init__(self, rows):
        self.db = sqlite3.connect(":memory:")
        self.db.execute("CREATE TABLE seeds (code TEXT, species TEXT, germination INTEGER)")
        self.db.executemany("INSERT INTO seeds VALUES (?, ?, ?)", rows)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.db.close()

    def accessions(self, species):
        query = "SELECT code FROM seeds WHERE species = ? ORDER BY code"
        return [code for (code,) in self.db.execute(query, (species,))]

    def germination(self, code):
        row = self.db.execute("SELECT germination FROM seeds WHERE code = ?", (code,)).fetchone()
        return row[0] if row else "unknown code"

    def respond(self, function):
        tool = {"accessions": self.accessions, "germination": self.germination}.get(function.name)
        if tool is None:
            return f"error: unknown tool {function.name}"
        try:
            return json.dumps(tool(**json.loads(function.arguments or "{}")))
        except (TypeError, ValueError, OverflowError, sqlite3.Error) as error:
            return f"error: {error}"


def code_in(text):
    return (text or "").strip().rstrip(".").upper()


async def play(task, session):
    messages = [{"role": "system", "content": SYSTEM}, *[dict(m) for m in task.messages]]
    with Bank(task.fields["seeds"]) as bank:
        async with session.client() as client:
            for _ in range(MAX_TURNS):
                response = await client.chat.completions.create(model="policy", messages=messages, tools=SCHEMAS)
                message = response.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    return float(code_in(message.content) == task.fields["answer"])
                for call in message.tool_calls:
                    content = bank.respond(call.function)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return 0.0


def _last(trajectory):
    texts = [m.get("content") for m in trajectory.messages if m.get("role") == "assistant"]
    return code_in(texts[-1]) if texts else ""


def reward(trajectory):
    return float(_last(trajectory) == trajectory.task.fields["answer"])


def scorer(trajectory):
    return float(_last(trajectory) == trajectory.task.fields["answer"])
