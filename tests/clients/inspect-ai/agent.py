"""A café's bill, worked out with Inspect AI."""

import asyncio
import os
import sys

from inspect_ai.model import ChatMessageUser, execute_tools, get_model
from inspect_ai.tool import Tool, tool

PRICES = {"café": 3.85, "croissant": 2.25}


@tool
def price() -> Tool:
    async def execute(item: str) -> str:
        """The price of an item on the menu.

        Args:
            item: What is bought.
        """
        return str(PRICES[item])

    return execute


@tool
def add() -> Tool:
    async def execute(a: float, b: float) -> str:
        """The sum of two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return str(a + b)

    return execute


async def main() -> None:
    model = get_model("openai/policy", base_url=os.environ["OPENAI_BASE_URL"], responses_api=False)
    tools = [price(), add()]
    messages = [ChatMessageUser(content=sys.argv[1])]
    while True:
        output = await model.generate(messages, tools)
        messages.append(output.message)
        if not output.message.tool_calls:
            break
        messages += (await execute_tools(messages, tools)).messages
    print(output.completion)


asyncio.run(main())
