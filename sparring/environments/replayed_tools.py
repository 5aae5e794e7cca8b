"""The replay pattern: read-only tools return recorded results for their arguments and never call the live system."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sparring.environments.base import Environment
from sparring.environments.fixtures import FixtureMiss, Fixtures
from sparring.environments.tools import ToolLike, tool, tools_of
from sparring.errors import InfrastructureError
from sparring.types import Json

Method = TypeVar("Method", bound=Callable[..., Any])


class ReplayEnvironment(Environment):
    """An environment in which some tools answer from `fixtures`: the tools marked `@replayed`, and all tools of the
    environment that it replays.

        class Weather(ReplayEnvironment, replays=LiveWeather):
            fixtures = Fixtures.load(Path(__file__).parent / "fixtures" / "weather.jsonl")

    Set `fixtures` in the class, or in `reset` if each task has its own records. The rows are checked against the tools
    before the first episode, or when `reset` sets them. For a call that was not recorded, the policy gets a
    `fixture_miss` error (see `miss`); the live environment is never run. Other methods marked `@tool` run as written.
    """

    fixtures: Fixtures

    def __init_subclass__(cls, *, replays: type[Environment] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if replays is None:
            return
        if "describe_tools" not in vars(cls):
            cls.describe_tools = replays.describe_tools
        for name in tools_of(replays):
            if name not in vars(cls):
                setattr(cls, name, replayed(inspect.getattr_static(replays, name)))

    def miss(self, error: FixtureMiss) -> Json:
        """Handle a call that was not recorded. By default, raise the error. Override this method to answer as the live
        tool would."""
        raise error

    @classmethod
    def tools(cls) -> Mapping[str, ToolLike]:
        """Return the tools, keyed by name. Raises DataError if the class's fixtures do not match the tools."""
        fixtures = getattr(cls, "fixtures", None)
        if isinstance(fixtures, Fixtures):
            fixtures.completed(cls)
        return super().tools()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "fixtures" and isinstance(value, Fixtures):
            value.completed(type(self))
        super().__setattr__(name, value)

    def _replay(self, tool: str, arguments: Mapping[str, Json]) -> Json:
        fixtures = getattr(self, "fixtures", None)
        if fixtures is None:
            raise InfrastructureError(
                f"{type(self).__name__} has no fixtures; set `fixtures` in the class or in `reset`."
            )
        try:
            return fixtures.completed(type(self)).answer(tool, **arguments)
        except FixtureMiss as error:
            return self.miss(error)


def replayed(method: Method) -> Method:
    """Mark a method of a ReplayEnvironment as a tool that answers from the environment's fixtures. The method's body is
    never run.

    @replayed
    def forecast(self, city: str, days: int = 1):
        "The weather of a city."
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def answer(self: ReplayEnvironment, *positional: Json, **named: Json) -> Json:
        bound = signature.bind(self, *positional, **named)
        bound.apply_defaults()
        arguments = dict(list(bound.arguments.items())[1:])
        return self._replay(method.__name__, arguments)

    return tool(answer)  # type: ignore[return-value]
