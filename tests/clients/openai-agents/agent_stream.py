"""A café's bill, worked out with the OpenAI Agents SDK over streamed chat completions."""

import asyncio
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

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
set_default_openai_api("chat_completions")  # reads OPENAI_BASE_URL and OPENAI_API_KEY
agent = Agent(name="waiter", model="policy", tools=[price, add])


async def main(task: str) -> None:
    run = Runner.run_streamed(agent, task)
    async for _event in run.stream_events():
        pass
    print(run.final_output)


asyncio.run(main(sys.argv[1]))
