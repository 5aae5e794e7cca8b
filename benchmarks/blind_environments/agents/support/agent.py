"""Routes a customer's message to a queue. The queues and their rules come from tools."""

import json

QUEUES = {
    "refunds": "money back, double charges",
    "delivery": "parcels that are late or lost",
    "accounts": "passwords, names, deletion of data",
    "repairs": "broken devices under warranty",
    "sales": "offers and large quantities",
}
CUSTOMERS = {
    "C-310": {"plan": "gold", "orders": ["O-9001", "O-9014"]},
    "C-322": {"plan": "basic", "orders": ["O-9033"]},
    "C-347": {"plan": "basic", "orders": []},
}
SYSTEM = "You route messages of customers. Look up the queues, choose one, and answer with its name."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "list_queues",
            "description": "All queues and what they are for.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "customer",
            "description": "Plan and orders of a customer.",
            "parameters": {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]},
        },
    },
]


def list_queues():
    return QUEUES


def customer(number):
    return CUSTOMERS.get(number, {"error": "unknown customer"})


def respond(call):
    functions = {"list_queues": list_queues, "customer": customer}
    try:
        if call.function.name not in functions:
            raise ValueError(f"unknown tool {call.function.name}")
        content = functions[call.function.name](**json.loads(call.function.arguments or "{}"))
    except (TypeError, ValueError) as error:
        content = {"error": str(error)}
    return {"role": "tool", "tool_call_id": call.id, "content": json.dumps(content)}


def grade(reply, queue):
    """Models like to say 'The right queue is refunds.', which is fine."""
    return 1.0 if queue.lower() in reply.lower() else 0.0


async def play(task, session):
    messages = [{"role": "system", "content": SYSTEM}, *task.messages]
    turns = 0
    async with session.client() as client:
        while turns < 8:
            turns += 1
            completion = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return grade((message.content or "").strip(), task.fields["queue"]), {"turns": float(turns)}
            messages.extend(respond(call) for call in message.tool_calls)
    return 0.0, {"turns": float(turns)}
