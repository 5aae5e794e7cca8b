"""A café's bill, worked out with agno."""

import os
import sys

from agno.agent import Agent
from agno.models.openai import OpenAIChat

PRICES = {"café": 3.85, "croissant": 2.25}


def price(item: str) -> float:
    """The price of an item on the menu."""
    return PRICES[item]


def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


model = OpenAIChat(id="policy", base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = Agent(model=model, tools=[price, add], telemetry=False)
messages = agent.run(sys.argv[1]).messages or []
print(messages[-1].content)
