"""A librarian who finds shelves in the catalogue of a town's branches."""

import json

MAX_TURNS = 8

SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": "branches",
            "description": "Names of the branches in this town.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Shelf of a title in one branch.",
            "parameters": {
                "type": "object",
                "properties": {
                    "branch": {"type": "string", "description": "Name of the branch"},
                    "title": {"type": "string", "description": "Exact title"},
                },
                "required": ["branch", "title"],
            },
        },
    },
]


class Catalogue:
    """The shelves of all branches, with an index so that a title is searched only once."""

    _index = {}

    def __init__(self, shelves):
        self.shelves = shelves

    def branches(self):
        return sorted(self.shelves)

    def find(self, branch, title):
        key = (branch.strip().lower(), title.strip().lower())
        if key not in self._index:
            self._index[key] = self._search(*key)
        return self._index[key]

    def _search(self, branch, title):
        for name, books in self.shelves.items():
            if name.lower() != branch:
                continue
            for book, shelf in books.items():
                if book.lower() == title:
                    return shelf
        return "not in the catalogue"


def call_tool(catalogue, name, raw):
    tools = {"branches": catalogue.branches, "find": catalogue.find}
    if name not in tools:
        return f"Error: unknown tool {name}. Tools: {', '.join(tools)}."
    try:
        arguments = json.loads(raw or "{}")
        return json.dumps(tools[name](**arguments))
    except (ValueError, TypeError, AttributeError) as error:
        return f"Error: {error}"


def grade(text, answer):
    return 1.0 if (text or "").strip().strip(".").upper() == answer.upper() else 0.0


async def play(task, session):
    catalogue = Catalogue(task.fields["shelves"])
    messages = [
        {"role": "system", "content": "You help readers find books. Answer with the shelf alone, for example Q7."},
        *[dict(message) for message in task.messages],
    ]
    async with session.client() as client:
        for _ in range(MAX_TURNS):
            response = await client.chat.completions.create(model="policy", messages=messages, tools=SCHEMAS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return grade(message.content, task.fields["answer"])
            for call in message.tool_calls:
                content = call_tool(catalogue, call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return 0.0


def _last(trajectory):
    for message in reversed(trajectory.messages):
        if message.get("role") == "assistant":
            return message.get("content") or ""
    return ""


def reward(trajectory):
    return grade(_last(trajectory), trajectory.task.fields["answer"])


def scorer(trajectory):
    said = _last(trajectory).strip().rstrip(".").lower()
    return float(said != "" and said == trajectory.task.fields["answer"].lower())
