"""A café's bill, worked out with Pydantic AI over streamed chat completions."""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

PRICES = {"café": 3.85, "croissant": 2.25}

agent = Agent(OpenAIChatModel("policy"))  # reads OPENAI_BASE_URL and OPENAI_API_KEY


@agent.tool_plain
def price(item: str) -> float:
    """The price of an item on the menu."""
    return PRICES[item]


@agent.tool_plain
def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


async def listen(_context, events):
    async for _event in events:
        pass


async def main(task: str) -> None:
    # Not run_stream: it takes the first text for the answer, also where a tool call follows it.
    result = await agent.run(task, event_stream_handler=listen)
    print(result.output)


asyncio.run(main(sys.argv[1]))
