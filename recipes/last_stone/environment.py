"""Last stone: a Gymnasium environment that itself ends an episode if the heap is empty or a move is illegal.

user       take the last stone

           10
assistant  step(action="2")      tool  7        (8 stones were left, and the opponent took one)
assistant  step(action="3")      tool  2
assistant  step(action="2")      tool  0        (the end: no message follows)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sparring import Message, Task, Trajectory, record_demonstration, tool_call
from sparring.environments.adapters.gymnasium_environment import GymnasiumEnvironment, seeded_tasks

ID = "LastStone-v0"
MOST = 3
"""Maximum number of stones that a player may take at a time."""
STARTS = [stones for stones in range(5, 16) if stones % (MOST + 1)]
"""Heaps from which the first player can always win."""
SKILL = 0.65
"""The share of the opponent's moves that are the best moves. The others are random."""
EXPERT_SHARE, TIMID_SHARE = 0.35, 0.5
"""Shares of the moves in the log that are the best move, and that take a single stone. The others are random. Such a
player wins 0.34 of all games. A player who always makes the log's most frequent move wins fewer."""


class LastStone(gymnasium.Env[str, np.int64]):
    """The actions 0, 1 and 2 take one, two and three stones. Then the opponent moves. Taking the last stone earns 1."""

    action_space = spaces.Discrete(MOST)
    observation_space = spaces.Text(min_length=1, max_length=2, charset="0123456789")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._stones = int(self.np_random.choice(STARTS))
        return str(self._stones), {}

    def step(self, action: np.int64) -> tuple[str, float, bool, bool, dict[str, Any]]:
        taken = int(action) + 1
        if taken > self._stones:
            return str(self._stones), 0.0, True, False, {}
        self._stones -= taken
        has_won = self._stones == 0
        if not has_won:
            self._stones -= self._answer()
        return str(self._stones), float(has_won), self._stones == 0, False, {}

    def _answer(self) -> int:
        if self.np_random.random() < SKILL:
            return best_move(self._stones)
        return int(self.np_random.integers(1, min(MOST, self._stones) + 1))


if ID not in gymnasium.registry:
    gymnasium.register(ID, lambda **_: LastStone())


class Game(GymnasiumEnvironment):
    """The environment with its expert."""

    describe_tools = "prompt"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return moves(task, best_move)


def best_move(stones: int) -> int:
    """Return the move that leaves a multiple of four, if possible. From such a heap, the other player always loses."""
    return stones % (MOST + 1) or 1


def moves(task: Task, choose: Callable[[int], int]) -> list[Message]:
    """Return the calls of a whole game. A script must be known in advance, so it comes from a game with the same
    seed."""
    game, calls, is_over = LastStone(), list[Message](), False
    stones, _ = game.reset(seed=task.seed)
    while not is_over:
        taken = choose(int(stones))
        calls.append(tool_call("step", action=str(taken)))
        stones, _, is_over, _, _ = game.step(np.int64(taken - 1))
    return calls


PROMPT = "take the last stone"
train_tasks = partial(seeded_tasks, PROMPT, 2048)
validation_tasks = partial(seeded_tasks, PROMPT, 64, first_seed=100_000)
held_out_tasks = partial(seeded_tasks, PROMPT, 256, first_seed=200_000)


def scorer(trajectory: Trajectory) -> float:
    """Return 1 if the policy took the last stone, which is computed from the displayed numbers and the episode's
    moves."""
    opening = str(trajectory.messages[0].get("content", "")).split() or [""]
    stones = int(opening[-1]) if opening[-1].isdigit() else 0
    for step in trajectory.transitions:
        if step["error"] is None:
            if stones == int(step["arguments"]["action"]):
                return 1.0
            stones = int(step["result"])
    return 0.0


def mixed_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    """Return games of a player who knows the best moves but usually takes a single stone."""
    rng = random.Random(f"log-{seed}")
    options = {"id": ID, "actions": ["1", "2", "3"]}
    environment_class = Game.with_options(**options)

    def choose(stones: int) -> int:
        kind = rng.random()
        if kind < EXPERT_SHARE:
            return best_move(stones)
        return 1 if kind < EXPERT_SHARE + TIMID_SHARE else rng.randint(1, min(MOST, stones))

    # The games have other seeds than the training tasks.
    tasks = seeded_tasks(PROMPT, num, first_seed=300_000)
    scripts = [moves(task, choose) for task in tasks]
    make = partial(environment_class, **options)
    return [record_demonstration(make, task, script) for task, script in zip(tasks, scripts, strict=True)]


def shuffled_reward(trajectory: Trajectory) -> float:
    """As a control, return a random reward that depends only on the episode's id. RL with this reward must not improve
    the policy."""
    return random.Random(trajectory.id).choice((0.0, 1.0))
