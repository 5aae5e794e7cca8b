"""Customer service for a web shop: read the order and the rules, refund the right amount."""

import json

from sparring import AgentReport

MAX_TURNS = 8
RULES = "Up to 14 days after delivery the refund is 100 % of the price, up to 30 days 50 %, later 25 %."
SYSTEM = (
    "You handle refunds in a web shop. Look up the order and the rules, refund once, then answer with the refunded "
    "euros alone, such as 7.50."
)


def schema(name, description, **properties):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(properties)},
        },
    }


TOOLS = [
    schema("get_order", "Item, price in euros and days since delivery.", order_id={"type": "string"}),
    schema("get_rules", "The rules for refunds."),
    schema(
        "issue_refund",
        "Pay a refund to the customer.",
        order_id={"type": "string"},
        amount={"type": "number", "description": "Euros, with cents as decimals"},
    ),
]


class Shop:
    def __init__(self, orders):
        self.orders = orders
        self.refunds = []

    def get_order(self, order_id):
        if order_id not in self.orders:
            raise LookupError(f"no order {order_id}")
        return self.orders[order_id]

    def get_rules(self):
        return RULES

    def issue_refund(self, order_id, amount):
        order = self.get_order(order_id)
        amount = round(float(amount), 2)
        if not 0 < amount <= order["price"]:
            raise ValueError("the amount must be above 0 and at most the price")
        if any(refund["order_id"] == order_id for refund in self.refunds):
            raise ValueError("this order was already refunded")
        self.refunds.append({"order_id": order_id, "amount": amount})
        return {"status": "paid", "order_id": order_id, "amount": amount}


def cents(text):
    try:
        return round(float(text.strip().rstrip(".").removesuffix("€")) * 100)
    except (ValueError, OverflowError):
        return None


async def play(task, session):
    shop = Shop(task.fields["orders"])
    tools = {"get_order": shop.get_order, "get_rules": shop.get_rules, "issue_refund": shop.issue_refund}
    messages = [{"role": "system", "content": SYSTEM}, *[dict(m) for m in task.messages]]
    transitions, reply = [], ""
    async with session.client() as client:
        for _ in range(MAX_TURNS):
            response = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                reply = (message.content or "").strip()
                break
            for call in message.tool_calls:
                content = use(tools, call.function, transitions)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    fields = task.fields
    paid = [(refund["order_id"], round(refund["amount"] * 100)) for refund in shop.refunds]
    is_right = paid == [(fields["order_id"], fields["refund_cents"])] and cents(reply) == fields["refund_cents"]
    return AgentReport(
        reward=float(is_right),
        final_state={"refunds": shop.refunds, "reply": reply},
        transitions=transitions,
    )


def use(tools, function, transitions):
    if function.name not in tools:
        return json.dumps({"error": f"unknown tool {function.name}"})
    try:
        arguments = json.loads(function.arguments or "{}")
    except ValueError:
        return json.dumps({"error": "the arguments are not JSON"})
    if not isinstance(arguments, dict):
        return json.dumps({"error": "the arguments must be an object"})
    try:
        result, error = tools[function.name](**arguments), None
    except (LookupError, TypeError, ValueError) as problem:
        result, error = None, str(problem)
    transitions.append({"tool": function.name, "arguments": arguments, "result": result, "error": error})
    return json.dumps({"error": error} if error else {"result": result})


def reward(trajectory):
    return 0.0


def scorer(trajectory):
    state = trajectory.final_state or {}
    fields = trajectory.task.fields
    refunds = state.get("refunds", [])
    if len(refunds) != 1 or cents(state.get("reply", "")) != fields["refund_cents"]:
        return 0.0
    refund = refunds[0]
    return float(refund["order_id"] == fields["order_id"] and refund["amount"] == fields["refund_cents"])
