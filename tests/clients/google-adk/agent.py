"""A café's bill, worked out with Google's Agent Development Kit, whose other models LiteLLM asks."""

import asyncio
import os
import sys

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai.types import Content, Part

PRICES = {"café": 3.85, "croissant": 2.25}


def price(item: str) -> float:
    """The price of an item on the menu."""
    return PRICES[item]


def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


async def main() -> None:
    model = LiteLlm(model="openai/policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    agent = LlmAgent(name="waiter", model=model, tools=[price, add])
    runner = InMemoryRunner(agent=agent, app_name="cafe")
    session = await runner.session_service.create_session(app_name="cafe", user_id="guest")
    message = Content(role="user", parts=[Part(text=sys.argv[1])])
    text = ""
    async for event in runner.run_async(user_id="guest", session_id=session.id, new_message=message):
        if event.is_final_response() and event.content and event.content.parts:
            text = "".join(part.text or "" for part in event.content.parts if not part.thought)
    print(text)


asyncio.run(main())
