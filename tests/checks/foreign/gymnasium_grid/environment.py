"""A registered Gymnasium environment: find the goal on a line, with moves of one or two fields."""

import gymnasium
from gymnasium import spaces

from sparring.environments.adapters import episode_return
from sparring.environments.adapters.gymnasium_environment import GymnasiumEnvironment, seeded_tasks


class Line(gymnasium.Env):
    observation_space = spaces.Box(0, 9, (2,), int)
    action_space = spaces.Dict({"direction": spaces.Discrete(2), "length": spaces.Discrete(2, start=1)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.goal = 0, int(self.np_random.integers(3, 9))
        return self.seen(), {}

    def seen(self):
        import numpy

        return numpy.array([self.at, self.goal])

    def step(self, action):
        self.at = max(0, min(9, self.at + (1, -1)[int(action["direction"])] * int(action["length"])))
        is_over = self.at == self.goal
        return self.seen(), float(is_over), is_over, False, {}


gymnasium.register("sparring-tests/Line-v0", Line, max_episode_steps=12)


class Walk(GymnasiumEnvironment):
    def describe(self, observation) -> str:
        return f"You are at {observation[0]}; the goal is {observation[1]}."


PROMPT = "Reach the goal with the tool step. direction 0 goes up, 1 goes down; length is 1 or 2."


def reward(trajectory) -> float:
    return episode_return(trajectory)


def scorer(trajectory) -> float:
    return float(any(one.get("terminated") for one in trajectory.transitions))


def train_tasks():
    return seeded_tasks(PROMPT, 32)


def validation_tasks():
    return seeded_tasks(PROMPT, 8, 100)


def held_out_tasks():
    return seeded_tasks(PROMPT, 8, 200)
