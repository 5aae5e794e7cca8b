"""A café's bill, worked out with the tool runner of the Anthropic client, which names the thread that it goes on from."""

import sys

from anthropic import Anthropic, beta_tool

PRICES = {"café": 3.85, "croissant": 2.25}


@beta_tool
def price(item: str) -> str:
    """The price of an item on the menu."""
    return str(PRICES[item])


@beta_tool
def add(a: float, b: float) -> str:
    """The sum of two numbers."""
    return str(a + b)


client = Anthropic()  # reads ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY
question = {"role": "user", "content": sys.argv[1]}
runner = client.beta.messages.tool_runner(model="policy", max_tokens=512, tools=[price, add], messages=[question])
print(runner.until_done().content[-1].text)
