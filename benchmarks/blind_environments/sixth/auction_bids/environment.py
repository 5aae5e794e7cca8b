"""An auction house: read the lots, place a bid that beats the current one, stay within the budget."""

import random

from sparring.environments import Environment, tool
from sparring.types import Task

NAMES = ["oak desk", "brass lamp", "silver spoon", "oil portrait", "globe", "violin", "map of 1812", "mantel clock"]


class Auction(Environment):
    def reset(self, task):
        self.lots = {lot["name"]: dict(lot) for lot in task.fields["lots"]}
        self.bids = {}

    @tool
    def list_lots(self) -> list[str]:
        """All lots with the highest bid so far."""
        return [f"{lot['name']}: {lot['bid']}" for lot in self.lots.values()]

    @tool
    def bid(self, lot: str, amount: int) -> str:
        """Bid on a lot; a bid has to be higher than the highest one so far.

        Args:
            lot: name of the lot
            amount: the bid in whole euros
        """
        if lot not in self.lots:
            return "error: no such lot"
        highest = self.lots[lot]["bid"]
        if str(amount) <= highest:
            return f"error: the highest bid is {highest}"
        self.lots[lot]["bid"] = str(amount)
        self.bids[lot] = amount
        return f"accepted: {amount} for {lot}"

    def final_state(self):
        return {"bids": self.bids}


def reward(trajectory):
    """1 when the one bid is on the right lot and exactly one step above the highest bid."""
    fields = trajectory.task.fields
    bids = (trajectory.final_state or {}).get("bids", {})
    return 1.0 if bids == {fields["lot"]: fields["price"]} else 0.0


def scorer(trajectory):
    accepted = [t for t in trajectory.transitions if t["tool"] == "bid" and str(t["result"]).startswith("accepted")]
    if len(accepted) != 1:
        return 0.0
    arguments = accepted[0]["arguments"]
    fields = trajectory.task.fields
    return float(arguments["lot"] == fields["lot"] and arguments["amount"] == fields["price"])


def make_tasks(split, num):
    rng = random.Random("auction " + split)
    tasks = []
    for i in range(num):
        names = rng.sample(NAMES, 4)
        lots = [
            {"name": name, "bid": str(rng.choice([60, 75, 90, 95, 120, 180, 240, 450, 870, 950, 990]))}
            for name in names
        ]
        lot = rng.choice(lots)
        price = int(lot["bid"]) + 10
        tasks.append(
            Task(
                id=f"{split}{i}",
                messages=(
                    {
                        "role": "system",
                        "content": "You bid for a collector. Bid exactly 10 euros above the highest bid.",
                    },
                    {"role": "user", "content": f"Get me the {lot['name']}."},
                ),
                fields={"lots": lots, "lot": lot["name"], "price": price},
            )
        )
    return tasks


def train_tasks():
    return make_tasks("train", 100)


def held_out_tasks():
    return make_tasks("held", 40)
