"""Gymnasium's taxi: fetch the passenger, drive to the destination. Graded by the rewards that the environment gives."""

from collections import deque
from functools import partial

import gymnasium

from sparring.environments import tool_call
from sparring.environments.adapters.gymnasium_environment import GymnasiumEnvironment, seeded_tasks
from sparring.rewards import Component, outcome_with_shaping

ACTIONS = ("south", "north", "east", "west", "pickup", "dropoff")


class Taxi(GymnasiumEnvironment):
    def __init__(self):
        super().__init__("Taxi-v4", actions=ACTIONS)

    @classmethod
    def list_tools(cls):
        return super().list_tools("Taxi-v4", actions=ACTIONS)

    def describe(self, observation):
        row, column, passenger, destination = self.world.unwrapped.decode(int(observation))
        return f"taxi {row} {column}, passenger {passenger}, destination {destination}"

    def final_state(self):
        row, column, passenger, destination = self.world.unwrapped.decode(int(self.world.unwrapped.s))
        return {"taxi": [row, column], "passenger": passenger, "destination": destination}

    def demonstrate(self, task):
        game = gymnasium.make("Taxi-v4")
        start, _ = game.reset(seed=task.seed)
        moves, paths = game.unwrapped.P, {int(start): []}
        queue = deque(paths)
        while queue:
            place = queue.popleft()
            for action in range(6):
                _, after, _, is_over = moves[place][action][0]
                if is_over:
                    return [tool_call("step", action=ACTIONS[one]) for one in (*paths[place], action)]
                if int(after) not in paths:
                    paths[int(after)] = [*paths[place], action]
                    queue.append(int(after))
        raise AssertionError("every start has a way")


PROMPT = "Fetch the passenger and bring it to the destination. 0 is red, 1 green, 2 yellow, 3 blue, 4 in the taxi."
train_tasks = partial(seeded_tasks, PROMPT, 12)
held_out_tasks = partial(seeded_tasks, PROMPT, 10, first_seed=40)


def delivered(trajectory):
    return float(any(step.get("reward", 0) > 0 for step in trajectory.transitions))


brevity = Component(name="brevity", measure=lambda trajectory: 1 - len(trajectory.transitions) / 200, weight=0.05)
reward = outcome_with_shaping(delivered, brevity)


def scorer(trajectory):
    state = trajectory.final_state
    return float(state["passenger"] == state["destination"])
