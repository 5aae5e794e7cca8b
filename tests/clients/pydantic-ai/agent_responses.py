"""A café's bill, worked out with Pydantic AI over the Responses API."""

import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel

PRICES = {"café": 3.85, "croissant": 2.25}

agent = Agent(OpenAIResponsesModel("policy"))  # reads OPENAI_BASE_URL and OPENAI_API_KEY


@agent.tool_plain
def price(item: str) -> float:
    """The price of an item on the menu."""
    return PRICES[item]


@agent.tool_plain
def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


print(agent.run_sync(sys.argv[1]).output)
