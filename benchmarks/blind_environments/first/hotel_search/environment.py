"""A travel service: find the cheapest hotel of a city."""

import random
from functools import partial

from sparring.environments import Environment, tool
from sparring.scorers import exact_match
from sparring.types import Task

CITIES = ["Porto", "Ghent", "Turku", "Brno", "Split"]
HOTELS = ["Astoria", "Bellevue", "Central", "Dome", "Europa", "Florida", "Grand", "Harbour", "Imperial", "Jolly"]
SHOWN = 3


class HotelSearch(Environment):
    def reset(self, task):
        self.hotels = task.fields["hotels"]

    @tool
    def search(self, city: str) -> list:
        """Names of the hotels of a city."""
        names = {hotel["name"] for hotel in self.hotels if hotel["city"] == city}
        return list(names)[:SHOWN]

    @tool
    def price(self, city: str, hotel: str) -> str:
        """Price of a night, in euros."""
        for row in self.hotels:
            if row["city"] == city and row["name"] == hotel:
                return str(row["price"])
        return "no such hotel"


def make_tasks(split, num):
    rng = random.Random(f"{split} hotels")
    tasks = []
    for index in range(num):
        hotels = []
        for city in rng.sample(CITIES, 3):
            prices = rng.sample(range(40, 300), 5)
            names = rng.sample(HOTELS, 5)
            hotels += [{"city": city, "name": name, "price": price} for name, price in zip(names, prices, strict=True)]
        city = rng.choice(hotels)["city"]
        cheapest = min((hotel for hotel in hotels if hotel["city"] == city), key=lambda hotel: hotel["price"])
        prompt = f"Which hotel in {city} is the cheapest? Answer with its name alone."
        tasks.append(
            Task(
                id=f"{split}-{index}",
                messages=({"role": "user", "content": prompt},),
                fields={"hotels": hotels, "answer": cheapest["name"]},
            )
        )
    return tasks


train_tasks = partial(make_tasks, "train", 24)
validation_tasks = partial(make_tasks, "validation", 8)
held_out_tasks = partial(make_tasks, "held_out", 8)


def reward(trajectory):
    last = trajectory.messages[-1]
    return float(last["role"] == "assistant" and str(last["content"]).strip() == trajectory.task.fields["answer"])


scorer = exact_match(None, "answer")
