"""A bank clerk who moves money between a customer's accounts."""

import json

from sparring import AgentReport

MAX_TURNS = 8
SYSTEM = "You are a bank clerk. Do what the customer asks, then answer with the new balance alone."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "balance",
            "description": "Balance of an account in whole euros.",
            "parameters": {"type": "object", "properties": {"account": {"type": "string"}}, "required": ["account"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "transfer",
            "description": "Move money from one account to another.",
            "parameters": {
                "type": "object",
                "properties": {
                    "from_account": {"type": "string"},
                    "to_account": {"type": "string"},
                    "amount": {"type": "integer", "description": "Whole euros"},
                },
                "required": ["from_account", "to_account", "amount"],
            },
        },
    },
]


class Bank:
    def __init__(self, accounts):
        self.accounts = dict(accounts)
        self.calls = []

    def balance(self, account):
        if account not in self.accounts:
            raise ValueError(f"no account {account!r}; accounts: {', '.join(self.accounts)}")
        return self.accounts[account]

    def transfer(self, source, target, amount):
        amount = int(amount)
        if amount < 1 or amount > self.balance(source):
            raise ValueError("the amount must be at least 1 and at most the balance")
        self.balance(target)
        self.accounts[source] -= amount
        self.accounts[target] += amount
        return "transferred"

    def handle(self, name, raw):
        tools = {"balance": self.balance, "transfer": self.transfer}
        if name not in tools:
            return {"error": f"unknown tool {name}"}
        try:
            arguments = json.loads(raw or "{}")
        except ValueError:
            return {"error": "arguments are not valid JSON"}
        if not isinstance(arguments, dict):
            return {"error": "arguments must be an object"}
        entry = {"tool": name, "arguments": arguments, "result": None, "error": None}
        try:
            entry["result"] = tools[name](**arguments)
        except (TypeError, ValueError, OverflowError):
            entry["error"] = "the request was declined"
        self.calls.append(entry)
        return {"error": entry["error"]} if entry["error"] else {"result": entry["result"]}


def is_right(accounts, reply, fields):
    said = reply.strip().rstrip(".").replace("€", "").strip()
    return accounts == fields["goal"] and said == str(fields["goal"][fields["asked"]])


async def play(task, session):
    bank, reply = Bank(task.fields["accounts"]), ""
    messages = [{"role": "system", "content": SYSTEM}, *[dict(m) for m in task.messages]]
    async with session.client() as client:
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                reply = message.content or ""
                break
            for call in message.tool_calls:
                output = json.dumps(bank.handle(call.function.name, call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return AgentReport(
        reward=float(is_right(bank.accounts, reply, task.fields)),
        final_state={"accounts": bank.accounts, "reply": reply},
        transitions=bank.calls,
    )


def reward(trajectory):
    return 0.0


def scorer(trajectory):
    state = trajectory.final_state or {}
    return float(is_right(state.get("accounts"), state.get("reply", ""), trajectory.task.fields))
