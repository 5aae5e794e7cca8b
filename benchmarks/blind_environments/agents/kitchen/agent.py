"""A kitchen helper: dishes, amounts for a number of guests, and where ingredients are kept."""

import json

DISHES = {
    "risotto": {"rice": 85, "onion": 30, "parmesan": 22},
    "goulash": {"beef": 190, "paprika": 14, "onion": 95},
    "dal": {"lentils": 75, "ginger": 8, "tomato": 110},
    "ramen": {"noodles": 105, "pork": 65, "egg": 55},
}
CUPBOARD = {"rice": "K1", "beef": "cold room", "lentils": "K2", "noodles": "K3", "pork": "cold room"}

SYSTEM = "You help a cook. Use the tools, and reply with the amount in grams as digits only."


def function(name, description, required, **properties):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


DISH = {"type": "string", "description": "Name of the dish, in lower case"}
TOOLS = [
    function("ingredients", "The ingredients of a dish.", ["dish"], dish=DISH),
    function(
        "amount",
        "Grams of an ingredient that are needed for a number of guests.",
        ["dish", "ingredient", "guests"],
        dish=DISH,
        ingredient={"type": "string"},
        guests={"type": "integer"},
    ),
    function("where", "Where an ingredient is kept.", ["ingredient"], ingredient={"type": "string"}),
]


def ingredients(dish):
    if dish not in DISHES:
        return f"Unknown dish: {dish}"
    return ", ".join(DISHES[dish])


def amount(dish, ingredient, portions):
    if dish not in DISHES or ingredient not in DISHES[dish]:
        return f"There is no {ingredient} in {dish}"
    return f"{DISHES[dish][ingredient] * int(portions)} g"


def where(ingredient):
    return CUPBOARD.get(ingredient, "pantry")


REGISTRY = {"ingredients": ingredients, "amount": amount, "where": where}


def dispatch(name, arguments):
    if name not in REGISTRY:
        return f"Error: unknown tool {name}"
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        return REGISTRY[name](**parsed)
    except Exception as error:  # whatever the model sends, it gets told
        return f"Error: {type(error).__name__}: {error}"


async def play(task, session):
    conversation = [{"role": "system", "content": SYSTEM}, *task.messages]
    for _ in range(8):
        reply = await session.chat(conversation, TOOLS)
        conversation.append(reply)
        if not reply.get("tool_calls"):
            text = (reply.get("content") or "").strip().removesuffix("g").strip()
            return 1.0 if text == task.fields["grams"] else 0.0
        for call in reply["tool_calls"]:
            output = dispatch(call["function"]["name"], call["function"]["arguments"])
            conversation.append({"role": "tool", "tool_call_id": call["id"], "content": output})
    return 0.0


def scorer(trajectory):
    last = trajectory.messages[-1]
    text = (last.get("content") or "").strip().removesuffix("g").strip()
    return float(last["role"] == "assistant" and text == trajectory.task.fields["grams"])
