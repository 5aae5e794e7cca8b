"""Ticket triage: read a ticket, find out who owns its component, and assign it to that team."""

import json
import os
import sys
from pathlib import Path

from openai import OpenAI

HERE = Path(__file__).parent
TICKETS = json.loads((HERE / "tickets.json").read_text())
OWNERS = json.loads((HERE / "owners.json").read_text())
ASSIGNMENTS = HERE / "assignments.json"

SYSTEM = "You triage tickets. Assign the ticket to the team that owns the component, then say 'done'."


def string_tool(name, description, *names):
    properties = {each: {"type": "string"} for each in names}
    parameters = {"type": "object", "properties": properties, "required": list(names)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


SCHEMAS = [
    string_tool("read_ticket", "The text and the component of a ticket.", "ticket"),
    string_tool("owner_of", "The team that owns a component.", "component"),
    string_tool("assign", "Assign a ticket to a team.", "ticket", "team"),
]


def read_ticket(ticket):
    return TICKETS.get(ticket) or {"error": f"no ticket {ticket}"}


def owner_of(component):
    return {"team": OWNERS[component]} if component in OWNERS else {"error": f"no component {component}"}


def assign(ticket, team):
    if ticket not in TICKETS:
        return {"error": f"no ticket {ticket}"}
    if team not in OWNERS.values():
        return {"error": f"no team {team}"}
    assignments = json.loads(ASSIGNMENTS.read_text())
    assignments[ticket] = team
    fresh = ASSIGNMENTS.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(assignments, indent=1))
    fresh.replace(ASSIGNMENTS)
    return {"ticket": ticket, "team": team}


FUNCTIONS = {"read_ticket": read_ticket, "owner_of": owner_of, "assign": assign}


def perform(call):
    try:
        return FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
    except KeyError:
        return {"error": f"unknown tool {call.function.name}"}
    except (ValueError, TypeError) as error:
        return {"error": str(error)}


def converse(client, messages):
    for _ in range(8):
        message = client.chat.completions.create(model="policy", messages=messages, tools=SCHEMAS).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(perform(call))})


def main():
    task = json.load(sys.stdin)
    with OpenAI() as client:
        converse(client, [{"role": "system", "content": SYSTEM}, *task["messages"]])
    ticket = task["id"].split("/")[-1]
    assigned = json.loads(ASSIGNMENTS.read_text()).get(ticket)
    right = assigned == OWNERS[TICKETS[ticket]["component"]]
    print(json.dumps({"reward": float(right), "metrics": {"assigned": float(assigned is not None)}}))


if __name__ == "__main__":
    main()
