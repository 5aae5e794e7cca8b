"""Gymnasium environments. An action is a call of the tool `step`, and an observation is its result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium import spaces

from sparring.environments.adapters.adapter import Adapter, opening_with
from sparring.environments.adapters.gymnasium_spaces import (
    MAX_NUMBERS,
    action_from_json,
    action_schema,
    as_text,
    is_writable,
    without_colors,
)
from sparring.environments.calls import Observation, ToolFailure
from sparring.environments.schema_tools import SchemaTool
from sparring.errors import EnvironmentFailed, UsageError
from sparring.types import Json, Message, Task


class GymnasiumEnvironment(Adapter):
    """A registered environment (https://gymnasium.farama.org/api/env) whose actions can be written as JSON.

    The arguments of the tool `step` are the keys of a Dict action; any other action is passed as the argument `action`.
    Each transition logs `reward`, `terminated` and `truncated`, which the model does not see. The function
    `adapters.episode_return` sums the rewards. The episode ends when a step is terminated or truncated.
    If observations are not text, derive a subclass and override `describe`.

    Steps run on the event loop of all episodes, so run a slow simulator behind a server.
    """

    def __init__(
        self, id: str, arguments: Mapping[str, Json] | None = None, actions: Sequence[str] | None = None
    ) -> None:
        """`arguments` are passed to `gymnasium.make`. With `render_mode = "ansi"`, the model sees the environment's own
        text rendering.

        `actions` contains names for the members of a Discrete space, in the order of the space. Raises UsageError if
        the environment cannot be created.
        """
        self._id, self._arguments = id, dict(arguments or {})
        self.world = _made(id, self._arguments)
        self._actions = actions
        self._is_over = False

    @classmethod
    def list_tools(
        cls, id: str, arguments: Mapping[str, Json] | None = None, actions: Sequence[str] | None = None
    ) -> Iterable[SchemaTool]:
        probe = _made(id, arguments)
        try:
            described = cls.describe is not GymnasiumEnvironment.describe or probe.render_mode == "ansi"
            if not described and not is_writable(probe.observation_space):
                raise UsageError(
                    f"observations of {id} are {probe.observation_space}: they are not text, and have more than "
                    f"{MAX_NUMBERS} numbers. Derive a class from GymnasiumEnvironment with a method "
                    "`describe(observation)` that returns them as text."
                )
            return [SchemaTool("step", f"Take one action in {id}.", _parameters(probe.action_space, actions))]
        finally:
            probe.close()

    def describe(self, observation: Any) -> str:
        """Return the observation as text for the model. `self.world` is the Gymnasium environment after the step."""
        if self.world.render_mode == "ansi":
            return without_colors(str(self.world.render()))
        return as_text(observation)

    def arguments_of(self, task: Task) -> Mapping[str, Any]:
        """Return additional arguments for `gymnasium.make` that depend on the task, such as a map or a level. The
        default is no arguments; override this method to add some."""
        return {}

    def reset(self, task: Task) -> list[Message]:
        """Reset the environment with the task's seed. The first observation follows the task's own text."""
        if more := self.arguments_of(task):
            self.world.close()
            self.world = _made(self._id, {**self._arguments, **more})
        observation, _ = self.world.reset(seed=task.seed)
        return opening_with(task, self.describe(observation))

    async def call_listed(self, name: str, arguments: Mapping[str, Json]) -> Observation:
        if self._is_over:
            raise ToolFailure("the episode is over")
        space = self.world.action_space
        if self._actions is not None:
            action = action_from_json(space, self._actions.index(arguments["action"]) + space.start)  # type: ignore[attr-defined]
        else:
            action = action_from_json(space, arguments if isinstance(space, spaces.Dict) else arguments["action"])
        if not space.contains(action):
            raise ToolFailure(f"{action!r} is not an action of {space}")
        try:
            observation, reward, terminated, truncated, _ = self.world.step(action)
            text, reward = self.describe(observation), float(reward)
        except Exception as error:
            raise EnvironmentFailed(f"{self.world} failed at action {action!r}: {error!r}.") from error
        if not math.isfinite(reward):
            raise EnvironmentFailed(
                f"{self.world} returned the reward {reward} for action {action!r}; rewards must be finite."
            )
        self._is_over = bool(terminated or truncated)
        return Observation(text, {"reward": reward, "terminated": bool(terminated), "truncated": bool(truncated)})

    @property
    def is_done(self) -> bool:
        return self._is_over

    def close(self) -> None:
        self.world.close()


def seeded_tasks(prompt: str, num: int, first_seed: int = 0) -> list[Task]:
    """Return `num` tasks with the same text and consecutive seeds, starting with `first_seed`. The seed is also in the
    field `seed`.

    Splits with overlapping seeds share tasks, so they are rejected.
    """
    return [
        Task(id=f"seed-{seed}", messages=({"role": "user", "content": prompt},), fields={"seed": seed}, seed=seed)
        for seed in range(first_seed, first_seed + num)
    ]


def _made(id: str, arguments: Mapping[str, Json] | None) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(id, **(arguments or {}))
    except Exception as error:
        raise UsageError(
            f"gymnasium.make({id!r}, **{dict(arguments or {})}) failed: {type(error).__name__}: {error}. Correct "
            "environment.options, or install what the environment needs."
        ) from error


def _parameters(space: spaces.Space[Any], actions: Sequence[str] | None) -> dict[str, Json]:
    if actions is None:
        schema = action_schema(space)
    elif not isinstance(space, spaces.Discrete) or len(set(actions)) != space.n:
        raise UsageError(
            f"environment.options.actions = {list(actions)} does not name the actions of {space}; provide one name for each "
            "member of a Discrete space, or remove the option."
        )
    else:
        schema = {"enum": list(actions)}
    if isinstance(space, spaces.Dict):
        return schema
    return {"type": "object", "properties": {"action": schema}, "required": ["action"], "additionalProperties": False}
