"""OpenEnv servers for the tests: `python openenv_desk.py PORT guess` takes steps, `python openenv_desk.py PORT tools` takes
calls of tools. Needs the package openenv."""

import os
import random
import sys
import time

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from pydantic import Field


class Guess(Action):
    """Guess a number from 1 to 8."""

    number: int = Field(ge=1, le=9, description="what you believe it is")


class Hint(Observation):
    hint: str


class GuessingGame(Environment):
    """The number follows from the seed. 9 makes the server fail in the way that `reset` was given."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, failure="die", **_):
        self._number, self._failure = random.Random(seed).randint(1, 8), failure
        self._state = State(episode_id=episode_id, step_count=0)
        return Hint(hint="from 1 to 8", done=False)

    def step(self, action, timeout_s=None, **_):
        self._state.step_count += 1
        if action.number == 9 and self._failure == "die":
            os._exit(3)
        if action.number == 9 and self._failure == "hang":
            time.sleep(3)
        if action.number == 9:
            raise RuntimeError("the disk is full")
        if action.number == self._number:
            return Hint(hint="right", reward=1.0, done=True)
        return Hint(hint="more" if action.number < self._number else "less", reward=-0.1, done=False)

    @property
    def state(self):
        return self._state


class ToolBox(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("tools")

        @server.tool
        def echo(message: str) -> str:
            """Say it again."""
            return message

        @server.tool
        def divide(a: int, b: int) -> float:
            """A quotient."""
            return a / b

        super().__init__(server)
        self._state = State()

    def reset(self, seed=None, episode_id=None, **_):
        self._state = State(episode_id=episode_id)
        return Observation(done=False, reward=0.0)

    def _step_impl(self, action, timeout_s=None, **_):
        raise ValueError(f"no step {action}")

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    port, kind = int(sys.argv[1]), sys.argv[2]
    if kind == "guess":
        app = create_fastapi_app(GuessingGame, Guess, Hint, max_concurrent_envs=4)
    else:
        app = create_fastapi_app(ToolBox, CallToolAction, CallToolObservation, max_concurrent_envs=4)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
