"""A café's bill, worked out with Haystack."""

import os
import sys
from typing import Annotated

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool

PRICES = {"café": 3.85, "croissant": 2.25}


@tool
def price(item: Annotated[str, "what is bought"]) -> float:
    """The price of an item on the menu."""
    return PRICES[item]


@tool
def add(a: Annotated[float, "the first"], b: Annotated[float, "the second"]) -> float:
    """The sum of two numbers."""
    return a + b


generator = OpenAIChatGenerator(model="policy", api_base_url=os.environ["OPENAI_BASE_URL"])  # reads OPENAI_API_KEY
agent = Agent(chat_generator=generator, tools=[price, add])
print(agent.run(messages=[ChatMessage.from_user(sys.argv[1])])["last_message"].text)
