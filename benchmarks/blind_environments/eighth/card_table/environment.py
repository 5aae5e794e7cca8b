"""A card game for one: take cards from the top of the deck, and stop between 17 and 21 points."""

from __future__ import annotations

import random

from sparring.environments import Environment, tool
from sparring.environments.calls import ToolFailure
from sparring.types import Task, Trajectory

RANKS = ["2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K"]
SUITS = "SHDC"
LEAST, MOST = 17, 21
PROMPT = (
    "We play for points: 2 to 10 count as they are, J, Q and K count 10. Two cards are dealt to you, my_hand shows them. Take "
    "cards with take_card for as long as you like, and stop with stop. You win with {least} to {most} points. You may put back "
    "one card in the game with put_back. This is table {table}."
)


class CardTable(Environment):
    def reset(self, task: Task) -> None:
        deck = list({f"{rank}{suit}" for rank in RANKS for suit in SUITS})
        random.Random(task.seed).shuffle(deck)
        self._hand = [deck.pop(), deck.pop()]
        self._deck = deck
        self._has_put_back = self._has_stopped = False

    @property
    def is_done(self) -> bool:
        return self._has_stopped

    @tool
    def my_hand(self) -> list[str]:
        """The cards that you hold."""
        return self._hand

    @tool
    def take_card(self) -> dict[str, str | list[str]]:
        """Take the top card of the deck."""
        card = self._deck.pop()
        self._hand.append(card)
        return {"taken": card, "hand": self._hand}

    @tool
    def put_back(self, card: str) -> list[str]:
        """Put one of your cards under the deck; once a game.

        Args:
            card: as it is shown, "10H" for instance
        """
        if self._has_put_back:
            raise ToolFailure("you have put back a card already")
        if card not in self._hand:
            raise ToolFailure(f"you do not hold {card}")
        self._has_put_back = True
        self._hand.remove(card)
        self._deck.insert(0, card)
        return self._hand

    @tool
    def stop(self) -> list[str]:
        """End the game with the cards that you hold."""
        self._has_stopped = True
        return self._hand

    def final_state(self) -> dict[str, list[str] | bool]:
        return {"hand": self._hand, "stopped": self._has_stopped}


def reward(trajectory: Trajectory) -> float:
    """1 for a win, 0.2 for stopping with fewer points, 0 otherwise."""
    state = trajectory.final_state or {}
    total = sum(min(RANKS.index(card[:-1]) + 2, 10) for card in state.get("hand", ()))
    if not state.get("stopped") or total > MOST:
        return 0.0
    return 1.0 if total >= LEAST else 0.2


def scorer(trajectory: Trajectory) -> float:
    """1 when the game was stopped with the right number of points."""
    state = trajectory.final_state or {}
    points = 0
    for card in state.get("hand", []):
        rank = card.rstrip(SUITS)
        points += 10 if rank in ("J", "Q", "K") else int(rank)
    return float(bool(state.get("stopped")) and LEAST <= points <= MOST)


def make_tasks(split: str, count: int, first_seed: int) -> list[Task]:
    return [
        Task(
            id=f"{split}-{number}",
            messages=({"role": "user", "content": PROMPT.format(least=LEAST, most=MOST, table=first_seed + number)},),
            seed=first_seed + number,
        )
        for number in range(count)
    ]


def train_tasks() -> list[Task]:
    return make_tasks("train", 64, 0)


def validation_tasks() -> list[Task]:
    return make_tasks("validation", 16, 1000)


def held_out_tasks() -> list[Task]:
    return make_tasks("held_out", 32, 2000)
