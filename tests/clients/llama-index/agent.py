"""A café's bill, worked out with LlamaIndex."""

import asyncio
import os
import sys

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import LLMMetadata
from llama_index.llms.openai import OpenAI

PRICES = {"café": 3.85, "croissant": 2.25}


class Policy(OpenAI):
    """LlamaIndex knows OpenAI's models by their names; another one needs its abilities stated."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=65536, model_name=self.model, is_chat_model=True, is_function_calling_model=True
        )


def price(item: str) -> float:
    """The price of an item on the menu."""
    return PRICES[item]


def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


async def main() -> None:
    llm = Policy(model="policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    agent = FunctionAgent(llm=llm, tools=[price, add])
    answer = await agent.run(sys.argv[1])
    print(answer.response.blocks[-1].text)


asyncio.run(main())
