"""Is the additive of a product within its limit?"""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

SYSTEM = """\
You review food additives. Find the additive of the product, how much of it there is, and the limit of the additive.
safe: there is no more than the limit. unsafe: there is more. unlisted: the additive has no limit. retest: the measurement is older
than 90 days, whatever it says. Answer with this one word alone."""

ADDITIVES = ("E101", "E132", "E202", "E211", "E250", "E300", "E322", "E407", "E471", "E621")


class Review(Environment):
    def reset(self, task):
        self.products = task.fields["products"]
        self.limits = task.fields["limits"]

    @tool
    def product(self, name: str) -> dict[str, str | int] | str:
        """Additive of a product, milligrams of it in a kilogram, and days since the measurement."""
        return self.products.get(name, "no such product")

    @tool
    def limit(self, additive: str) -> str:
        """Most milligrams in a kilogram that are allowed of an additive."""
        return str(self.limits.get(additive, "no limit is listed"))


def _verdict(product, limits):
    if product["days"] > 90:
        return "retest"
    if product["additive"] not in limits:
        return "unlisted"
    return "safe" if product["milligrams"] <= limits[product["additive"]] else "unsafe"


def _task(split, index, rng):
    names = [
        f"{rng.choice(('jam', 'ham', 'cheese', 'drink', 'sauce'))} {number}" for number in rng.sample(range(100), 3)
    ]
    limits = {additive: rng.randrange(50, 500, 10) for additive in rng.sample(ADDITIVES, 7)}
    products = {}
    for name in names:
        additive = rng.choice(ADDITIVES)
        around = limits.get(additive, 200)
        products[name] = {
            "additive": additive,
            "milligrams": around + rng.choice((-40, -15, 0, 15, 40)),
            "days": rng.choice((5, 20, 60, 90, 91, 200)),
        }
    return Task(
        id=f"{split}-{index}",
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Review {names[0]}."}),
        fields={"products": products, "limits": limits, "answer": _verdict(products[names[0]], limits)},
    )


def train_tasks():
    rng = random.Random("reviews 1")
    return [_task("train", index, rng) for index in range(64)]


def held_out_tasks():
    rng = random.Random("reviews 2")
    return [_task("held-out", index, rng) for index in range(32)]


def reward(trajectory):
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    return 1.0 if (last.get("content") or "").strip() == trajectory.task.fields["answer"] else 0.0


def scorer(trajectory):
    last = trajectory.messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    said = last.get("content") or ""
    return float(trajectory.task.fields["answer"] in said)
