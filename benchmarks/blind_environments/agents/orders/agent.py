import json

PRICES = {"lamp": 34, "desk": 210, "chair": 85, "shelf": 62, "rug": 118, "mirror": 49}
SYSTEM = "You take orders for a furniture shop. Put the items into the order, then answer with the total in euros, digits only."


def tool(name, description, **properties):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(properties)},
        },
    }


TOOLS = [
    tool("price", "Price of an item in euros.", item={"type": "string"}),
    tool("add", "Put an item into the order.", item={"type": "string"}, quantity={"type": "integer", "minimum": 1}),
    tool("total", "Total of the order in euros."),
]


class Order:
    def __init__(self, customer, lines=[]):
        self.customer = customer
        self.lines = lines

    def price(self, item):
        return PRICES[item]

    def add(self, item, quantity):
        if item not in PRICES:
            raise KeyError(item)
        if not isinstance(quantity, int) or quantity < 1:
            raise ValueError("quantity must be a positive integer")
        self.lines.append((item, quantity))
        return f"{quantity} x {item} added"

    def total(self):
        return sum(PRICES[item] * quantity for item, quantity in self.lines)

    def run(self, call):
        handlers = {"price": self.price, "add": self.add, "total": self.total}
        handler = handlers.get(call.function.name)
        if handler is None:
            return f"error: there is no tool {call.function.name}"
        try:
            return str(handler(**json.loads(call.function.arguments)))
        except KeyError as error:
            return f"error: unknown item {error}"
        except (TypeError, ValueError) as error:
            return f"error: {error}"


async def play(task, session):
    order = Order(task.fields["customer"])
    messages = [{"role": "system", "content": SYSTEM}, *task.messages]
    calls = 0
    async with session.client() as client:
        for _ in range(10):
            completion = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                answer = (message.content or "").strip().removesuffix("€").strip()
                return float(answer == str(task.fields["answer"])), {"tool_calls": calls}
            for call in message.tool_calls:
                calls += 1
                messages.append({"role": "tool", "tool_call_id": call.id, "content": order.run(call)})
    return 0.0, {"tool_calls": calls}
