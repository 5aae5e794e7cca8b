"""A café's bill, worked out with AutoGen's assistant, which reflects on its last tool result."""

import asyncio
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

PRICES = {"café": 3.85, "croissant": 2.25}


async def price(item: str) -> float:
    """The price of an item on the menu."""
    return PRICES[item]


async def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


async def main(task: str) -> None:
    model = OpenAIChatCompletionClient(
        model="policy",
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        # AutoGen asks what a model that it does not know can do.
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "structured_output": False,
            "family": "unknown",
        },
    )
    agent = AssistantAgent("waiter", model, tools=[price, add], max_tool_iterations=2, reflect_on_tool_use=True)
    result = await agent.run(task=task)
    print(result.messages[-1].content)


asyncio.run(main(sys.argv[1]))
