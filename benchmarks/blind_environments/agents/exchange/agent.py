"""A bureau de change with fixed rates."""

import json
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

from openai import OpenAI

RATES = {"USD": Decimal("1.0840"), "CHF": Decimal("0.9615"), "SEK": Decimal("11.4270"), "JPY": Decimal("163.25")}
COUNTRIES = {"Sweden": "SEK", "Japan": "JPY", "Switzerland": "CHF", "the United States": "USD"}
SYSTEM = "You work in a bureau de change. Answer with the converted amount, two decimals, without a currency."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "currency",
            "description": "The currency code of a country.",
            "parameters": {"type": "object", "properties": {"country": {"type": "string"}}, "required": ["country"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "convert",
            "description": "Convert an amount of euros.",
            "parameters": {
                "type": "object",
                "properties": {"euros": {"type": "number"}, "code": {"type": "string"}},
                "required": ["euros", "code"],
            },
        },
    },
]


def currency(country):
    return COUNTRIES.get(country, "unknown country")


def convert(euros, code):
    if code not in RATES:
        return f"no rate for {code}"
    return str((Decimal(str(euros)) * RATES[code]).quantize(Decimal("0.01"), ROUND_HALF_UP))


def handle(call):
    try:
        arguments = json.loads(call.function.arguments)
        match call.function.name:
            case "currency":
                return currency(**arguments)
            case "convert":
                return convert(**arguments)
            case other:
                return f"error: unknown tool {other}"
    except (TypeError, ValueError, InvalidOperation) as error:
        return f"error: {error}"


def ask(client, messages):
    return client.chat.completions.create(model="policy", messages=messages, tools=TOOLS).choices[0].message


async def play(task, session):
    messages = [{"role": "system", "content": SYSTEM}, *task.messages]
    with OpenAI(base_url=session.base_url, api_key=session.api_key) as client:
        for _ in range(8):
            message = ask(client, messages)
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return float((message.content or "").strip() == task.fields["amount"])
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": handle(call)})
    return 0.0


def scorer(trajectory):
    last = trajectory.messages[-1]
    return float(
        last["role"] == "assistant" and (last.get("content") or "").strip() == trajectory.task.fields["amount"]
    )
