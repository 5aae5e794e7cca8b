"""Blackjack: Gymnasium's unchanged Blackjack-v1. Cards are random, so no policy wins every game.

user       play blackjack

           [13,10,0]                 the player's sum, the dealer's card, whether an ace counts 11
assistant  step(action="hit")        tool  [18,10,0]
assistant  step(action="stick")      tool  [18,10,0]       (the end: no message follows)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import gymnasium

from sparring import Message, Task, Trajectory, record_demonstration, tool_call
from sparring.environments.adapters.gymnasium_environment import GymnasiumEnvironment, seeded_tasks

Shown: TypeAlias = tuple[int, int, int]
"""The player's sum, the dealer's card and whether an ace counts 11."""

OPTIONS = {"id": "Blackjack-v1", "actions": ["stick", "hit"]}
"""The same options as in recipe.toml."""
MAX_MOVES = 8
PROMPT = "play blackjack"
BASIC_SHARE, RECKLESS_SHARE = 0.25, 0.55
"""Shares of the moves in the log that follow basic strategy, and that take a card below 20. The others are random."""


class Blackjack(GymnasiumEnvironment):
    """The environment with its expert."""

    describe_tools = "prompt"

    def demonstrate(self, task: Task) -> Sequence[Message]:
        return game(task, basic_strategy)


def basic_strategy(shown: Shown) -> str:
    """Return the best move without card counting, if only stick and hit are possible."""
    player, dealer, has_soft_ace = shown
    if has_soft_ace:
        enough = 19 if dealer in (1, 9, 10) else 18
    elif 2 <= dealer <= 6:
        enough = 12 if dealer >= 4 else 13
    else:
        enough = 17
    return "stick" if player >= enough else "hit"


def reckless(shown: Shown) -> str:
    return "stick" if shown[0] >= 20 else "hit"


def game(task: Task, choose: Callable[[Shown], str]) -> list[Message]:
    """Return the calls of a whole game. A script must be known in advance, so it comes from a game with the same
    seed."""
    table, calls, is_over = gymnasium.make(OPTIONS["id"]), list[Message](), False
    shown, _ = table.reset(seed=task.seed)
    while not is_over:
        move = choose(shown)
        calls.append(tool_call("step", action=move))
        shown, _, is_over, _, _ = table.step(OPTIONS["actions"].index(move))
    return calls


train_tasks = partial(seeded_tasks, PROMPT, 2048)
validation_tasks = partial(seeded_tasks, PROMPT, 64, first_seed=100_000)
held_out_tasks = partial(seeded_tasks, PROMPT, 256, first_seed=200_000)


def scorer(trajectory: Trajectory) -> float:
    """Return 1 if the episode's moves win a new game with the task's seed. A draw is not a success."""
    table = gymnasium.make(OPTIONS["id"])
    table.reset(seed=trajectory.task.seed)
    for step in trajectory.transitions:
        if step["error"] is None:
            _, reward, is_over, _, _ = table.step(OPTIONS["actions"].index(step["arguments"]["action"]))
            if is_over:
                return float(float(reward) > 0)
    return 0.0


def mixed_log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    """Return games of mixed quality."""
    rng = random.Random(f"log-{seed}")

    def choose(shown: Shown) -> str:
        kind = rng.random()
        if kind < BASIC_SHARE:
            return basic_strategy(shown)
        return reckless(shown) if kind < BASIC_SHARE + RECKLESS_SHARE else rng.choice(OPTIONS["actions"])

    environment_class = Blackjack.with_options(**OPTIONS)
    # The games have other seeds than the training tasks.
    tasks = seeded_tasks(PROMPT, num, first_seed=300_000)
    make = partial(environment_class, **OPTIONS)
    return [record_demonstration(make, task, game(task, choose)) for task in tasks]


def shuffled_reward(trajectory: Trajectory) -> float:
    """As a control, return a random reward that depends only on the episode's id. RL with this reward must not improve
    the policy."""
    return random.Random(trajectory.id).choice((0.0, 1.0))
