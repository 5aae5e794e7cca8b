"""A hotel desk: find the cheapest room that sleeps the party, and what the stay costs."""

import json
import random
from collections.abc import Sequence

from sparring.environments import Environment, answer, tool, tool_call
from sparring.rewards import json_fields
from sparring.scorers import json_exact
from sparring.types import Message, Task

PROCEDURE = """\
You are the booking desk of a hotel.
1. rooms: the room types of the hotel, with the number of beds of each.
2. rate: the price of one night, for every room type that has a bed for each guest.
3. Offer the room type of the lowest rate. The total is that rate times the nights.
Answer: <final_output>{"room":"name of the room type","total":0}</final_output>"""

BEDS = {"garden": 2, "corner": 2, "studio": 3, "loft": 3, "terrace": 4, "family": 4}
HOTELS = ("Alder", "Birch", "Cedar", "Elm", "Fir", "Hazel", "Juniper", "Larch", "Maple", "Oak", "Pine", "Willow")

_rates: dict[str, int] = {}


class BookingDesk(Environment):
    def reset(self, task: Task) -> None:
        self.hotel, self.prices = task.fields["hotel"], task.fields["prices"]

    @tool
    def rooms(self, hotel: str) -> dict[str, int]:
        """Room types of a hotel and their beds."""
        if hotel != self.hotel:
            raise LookupError(f"this desk does not book for {hotel}")
        return {room: BEDS[room] for room in self.prices}

    @tool
    def rate(self, room: str) -> str:
        """Price of one night in a room type, on the dates of the stay."""
        if room not in self.prices:
            return f"the hotel has no room type {room}"
        if room not in _rates:
            _rates[room] = self.prices[room]
        return f"{room}: {_rates[room]} a night"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        fields = task.fields
        fitting = [room for room in fields["prices"] if BEDS[room] >= fields["guests"]]
        calls = [tool_call("rooms", hotel=fields["hotel"]), *(tool_call("rate", room=room) for room in fitting)]
        return [*calls, answer(f"<final_output>{json.dumps(fields['answer'])}</final_output>")]


reward = json_fields()
scorer = json_exact()


def train_tasks() -> list[Task]:
    return _tasks("train", 48, HOTELS[:7])


def validation_tasks() -> list[Task]:
    return _tasks("validation", 16, HOTELS[7:9])


def held_out_tasks() -> list[Task]:
    return _tasks("held_out", 16, HOTELS[9:])


def _tasks(split: str, num: int, hotels: Sequence[str]) -> list[Task]:
    rng = random.Random(f"hotel {split}")
    return [_task(f"{split}-{index}", rng, rng.choice(hotels)) for index in range(num)]


def _task(name: str, rng: random.Random, hotel: str) -> Task:
    guests, nights = rng.choice((2, 3)), rng.randint(2, 9)
    two, three = rng.choice(("garden", "corner")), ["studio", "loft", "terrace", "family"]
    rooms = sorted([two, *rng.sample(three, 2)])
    prices = dict(zip(rooms, rng.sample(range(61, 240), 3), strict=True))
    room = min((room for room in rooms if BEDS[room] >= guests), key=prices.__getitem__)
    opening = f"{guests} of us would like to stay {nights} nights at the {hotel}, from {rng.randint(1, 28)} June on."
    return Task(
        id=name,
        messages=({"role": "system", "content": PROCEDURE}, {"role": "user", "content": opening}),
        fields={
            "hotel": hotel,
            "guests": guests,
            "prices": prices,
            "answer": {"room": room, "total": prices[room] * nights},
        },
    )
