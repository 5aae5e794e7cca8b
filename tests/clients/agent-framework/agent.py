"""A café's bill, worked out with Microsoft's Agent Framework over chat completions."""

import asyncio
import sys

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient

PRICES = {"café": 3.85, "croissant": 2.25}


def price(item: str) -> float:
    """The price of an item on the menu."""
    return PRICES[item]


def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


async def main(task: str) -> None:
    model = OpenAIChatCompletionClient(model="policy")  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    agent = Agent(model, tools=[price, add])
    response = await agent.run(task)
    print(response.messages[-1].text)


asyncio.run(main(sys.argv[1]))
