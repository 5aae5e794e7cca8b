"""A counter clerk prices parcels: look the parcel up, apply the printed tariff, name the price in cents."""

import random
import re

from sparring.environments import Environment, tool
from sparring.types import Task

TARIFF = """Tariff (inland):
- up to and including 500 g: 380 cents
- over 500 g, up to and including 2000 g: 520 cents
- over 2000 g, up to and including 10000 g: 890 cents
Fragile parcels cost 150 cents more."""

SYSTEM = f"""You price parcels at a post office.
{TARIFF}
Call `parcel` to see the parcel. `quote` gives the basic price of a weight. Finish with a line `PRICE: <cents>`."""

BANDS = ((500, 380), (2000, 520), (10000, 890))


def basic_price(grams):
    for limit, cents in BANDS:
        if grams < limit:
            return cents
    raise ValueError("too heavy")


class Counter(Environment):
    def reset(self, task):
        self.parcels = task.fields["parcels"]

    @tool
    def parcel(self, number: str) -> dict[str, str]:
        """Weight and remarks of a parcel.

        Args:
            number: as on the label, for example P104
        """
        found = self.parcels.get(number)
        if found is None:
            return {"error": f"no parcel {number}"}
        return {"grams": str(found["grams"]), "fragile": "yes" if found["fragile"] else "no"}

    @tool
    def quote(self, grams: int) -> str:
        """Basic price of a weight in grams, by the tariff."""
        if not 0 < grams <= 10000:
            return "error: the weight must be 1 to 10000 g"
        return f"{basic_price(grams)} cents"


def named(trajectory):
    text = trajectory.messages[-1].get("content") or ""
    found = re.findall(r"^PRICE: (\d+)$", text, re.MULTILINE)
    return int(found[-1]) if found and trajectory.messages[-1]["role"] == "assistant" else None


def reward(trajectory):
    return 1.0 if named(trajectory) == trajectory.task.fields["price"] else 0.0


def scorer(trajectory):
    fields = trajectory.task.fields
    parcel = fields["parcels"][fields["number"]]
    want = basic_price(parcel["grams"]) + 150 * parcel["fragile"]
    return float(named(trajectory) == want)


def make(split, num):
    rng = random.Random(f"postal {split}")
    out = []
    for index in range(num):
        numbers = rng.sample(
            range(
                {"train": 100, "validation": 500, "held_out": 700}[split],
                {"train": 500, "validation": 700, "held_out": 999}[split],
            ),
            3,
        )
        parcels = {
            f"P{n}": {"grams": rng.choice((120, 250, 500, 750, 1500, 2000, 3100, 6400)), "fragile": rng.random() < 0.4}
            for n in numbers
        }
        number = f"P{numbers[0]}"
        price = basic_price(parcels[number]["grams"]) + 150 * parcels[number]["fragile"]
        out.append(
            Task(
                id=f"{split}-{index}",
                messages=(
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"What does parcel {number} cost?"},
                ),
                fields={"parcels": parcels, "number": number, "price": price},
            )
        )
    return out


def train_tasks():
    return make("train", 80)


def validation_tasks():
    return make("validation", 24)


def held_out_tasks():
    return make("held_out", 24)
