"""A café's bill, worked out with the Claude Agent SDK, which runs Claude Code."""

import asyncio
import sys
import tempfile
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool

PRICES = {"café": 3.85, "croissant": 2.25}


@tool("price", "The price of an item on the menu.", {"item": str})
async def price(given: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(PRICES[given["item"]])}]}


@tool("add", "The sum of two numbers.", {"a": float, "b": float})
async def add(given: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(given["a"] + given["b"])}]}


async def main(folder: str) -> None:
    options = ClaudeAgentOptions(
        model="policy",  # reads ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY
        system_prompt="You are a waiter.",
        tools=[],
        mcp_servers={"menu": create_sdk_mcp_server("menu", tools=[price, add])},
        allowed_tools=["mcp__menu__price", "mcp__menu__add"],
        setting_sources=[],
        cwd=folder,
        env={"HOME": folder, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    )
    async for message in query(prompt=sys.argv[1], options=options):
        if isinstance(message, ResultMessage):
            print(message.result)


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(folder))
