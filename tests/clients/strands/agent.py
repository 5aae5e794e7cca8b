"""A café's bill, worked out with Strands Agents."""

import os
import sys

from strands import Agent, tool
from strands.models.openai import OpenAIModel

PRICES = {"café": 3.85, "croissant": 2.25}


@tool
def price(item: str) -> float:
    """The price of an item on the menu."""
    return PRICES[item]


@tool
def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


model = OpenAIModel(
    client_args={"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]},
    model_id="policy",
)
agent = Agent(model=model, tools=[price, add], callback_handler=None)
print(agent(sys.argv[1]))
