"""A café's bill, worked out with the OpenAI Agents SDK over the Responses API, its default."""

import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled

PRICES = {"café": 3.85, "croissant": 2.25}


@function_tool
def price(item: str) -> float:
    """The price of an item on the menu."""
    return PRICES[item]


@function_tool
def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


set_tracing_disabled(True)  # traces would go to OpenAI, with the episode's key
agent = Agent(name="waiter", model="policy", tools=[price, add])  # reads OPENAI_BASE_URL and OPENAI_API_KEY
print(Runner.run_sync(agent, sys.argv[1]).final_output)
