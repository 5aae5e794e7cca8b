"""A café's bill, worked out with smolagents: an agent that writes Python."""

import os
import sys

from smolagents import CodeAgent, OpenAIModel, tool

PRICES = {"café": 3.85, "croissant": 2.25}


@tool
def price(item: str) -> float:
    """The price of an item on the menu.

    Args:
        item: What to order.
    """
    return PRICES[item]


@tool
def add(a: float, b: float) -> float:
    """The sum of two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


model = OpenAIModel("policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = CodeAgent(tools=[price, add], model=model, verbosity_level=0)
print(agent.run(sys.argv[1]))
