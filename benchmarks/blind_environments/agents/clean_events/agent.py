"""Tickets for concerts: the policy finds a concert and puts tickets into a basket."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from sparring import AgentReport

CONCERTS = {
    "jazz night": {"hall": "Aurora", "cents": 2450, "seats": 120},
    "string quartet": {"hall": "Lantern", "cents": 3175, "seats": 60},
    "organ recital": {"hall": "St Clara", "cents": 1290, "seats": 300},
    "folk evening": {"hall": "Barn", "cents": 1865, "seats": 90},
}
SYSTEM = (
    "You sell concert tickets. Put the requested tickets into the basket, then answer with the basket's total in cents, "
    "digits only."
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "concert",
            "description": "Hall and price (in cents) of a concert.",
            "parameters": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add_tickets",
            "description": "Put tickets for a concert into the basket. Returns the basket's total in cents.",
            "parameters": {
                "type": "object",
                "properties": {"title": {"type": "string"}, "count": {"type": "integer", "minimum": 1, "maximum": 20}},
                "required": ["title", "count"],
            },
        },
    },
]


@dataclass
class Basket:
    tickets: dict[str, int] = field(default_factory=dict)

    def concert(self, title: str):
        if title not in CONCERTS:
            raise ValueError(f"no concert {title!r}; concerts: {', '.join(CONCERTS)}")
        return {"hall": CONCERTS[title]["hall"], "cents": CONCERTS[title]["cents"]}

    def add_tickets(self, title: str, count: int):
        self.concert(title)
        if type(count) is not int or not 1 <= count <= 20:
            raise ValueError("count must be an integer from 1 to 20")
        self.tickets[title] = self.tickets.get(title, 0) + count
        return {"total": self.total()}

    def total(self) -> int:
        return sum(CONCERTS[title]["cents"] * count for title, count in self.tickets.items())


def perform(basket: Basket, name: str, raw: str):
    transition = {"tool": name, "arguments": {}, "result": None, "error": None}
    try:
        transition["arguments"] = json.loads(raw)
        if name == "concert":
            transition["result"] = basket.concert(**transition["arguments"])
        elif name == "add_tickets":
            transition["result"] = basket.add_tickets(**transition["arguments"])
        else:
            transition["error"] = f"unknown tool {name!r}"
    except (TypeError, ValueError) as error:
        transition["error"] = str(error)
    return transition


async def play(task, session):
    basket, transitions = Basket(), []
    messages = [{"role": "system", "content": SYSTEM}, *task.messages]
    async with session.client() as client:
        while True:
            completion = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                transition = perform(basket, call.function.name, call.function.arguments)
                transitions.append(transition)
                shown = {"error": transition["error"]} if transition["error"] else transition["result"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(shown)})
    right_basket = basket.tickets == task.fields["tickets"]
    right_answer = (message.content or "").strip() == task.fields["total"]
    return AgentReport(
        reward=float(right_basket and right_answer),
        final_state={"tickets": basket.tickets, "total": basket.total()},
        transitions=transitions,
    )


def scorer(trajectory):
    state, fields = trajectory.final_state or {}, trajectory.task.fields
    said = (trajectory.messages[-1].get("content") or "").strip()
    return float(state.get("tickets") == fields["tickets"] and said == fields["total"])
