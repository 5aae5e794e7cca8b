"""A café's bill, worked out with LangChain's agent, which is a LangGraph graph."""

import sys

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

PRICES = {"café": 3.85, "croissant": 2.25}


@tool
def price(item: str) -> float:
    """The price of an item on the menu."""
    return PRICES[item]


@tool
def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


model = ChatOpenAI(model="policy")  # reads OPENAI_BASE_URL and OPENAI_API_KEY
graph = create_agent(model, [price, add])
state = graph.invoke({"messages": [{"role": "user", "content": sys.argv[1]}]})
print(state["messages"][-1].text)
