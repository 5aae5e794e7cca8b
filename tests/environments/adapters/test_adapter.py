"""What adapters share: tools listed once and by name, failures reported as the model's or the environment's."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("jsonschema", reason="jsonschema is not installed (the extras of the adapters bring it)")

from sparring.assembly import load_environment
from sparring.config import Config
from sparring.environments import execute, tool
from sparring.environments.adapters import Adapter, episode_return, opening_with
from sparring.environments.calls import Observation, ToolError, ToolFailure
from sparring.environments.schema_tools import SchemaTool
from sparring.errors import InfrastructureError, UsageError
from sparring.types import Json, Outcome, Task, Trajectory

ANY = {"type": "object", "properties": {"x": {"type": "integer"}}}


class Shop(Adapter):
    num_listings: ClassVar[int] = 0

    def __init__(self, names: list[str]) -> None:
        self.names = names

    @classmethod
    def list_tools(cls, names: list[str]) -> Iterable[SchemaTool]:
        Shop.num_listings += 1
        return [SchemaTool(name, f"Do {name}.", ANY) for name in names]

    async def call_listed(self, name: str, arguments: Mapping[str, Json]) -> Json:
        if name == "refuse":
            raise ToolFailure("sold out")
        if name == "burn":
            raise InfrastructureError("the shop is on fire")
        return Observation({"did": name, **arguments}, {"reward": 0.5})

    @tool
    def ask(self) -> str:
        """Ask the clerk."""
        return "hello"


def config_with(options: dict[str, Any]) -> Config:
    environment = {"target": f"{__name__}:Shop", "options": options}
    return Config.model_validate({"data": {}, "environment": environment, "reward": {"reward": "a:b"}})


def test_a_recipe_lists_the_tools_once_in_their_own_order(tmp_path: Path) -> None:
    Shop.num_listings = 0
    make, environment_class = load_environment(config_with({"names": ["wrap", "buy"]}), tmp_path)
    assert [schema["function"]["name"] for schema in environment_class.tool_schemas()] == ["wrap", "buy", "ask"]
    assert make().offered_tools() == make().offered_tools() == environment_class.tool_schemas()
    assert Shop.num_listings == 1
    assert Shop.listed is None


def call(name: str, arguments: Any, names: tuple[str, ...] = ("buy", "refuse", "burn", "close")) -> Any:
    environment = Shop.with_options(names=list(names))(names=list(names))
    return asyncio.run(execute(environment, name, arguments))


def test_listed_tools_and_methods_are_called_by_their_names() -> None:
    assert call("buy", '{"x": 2}').content == '{"did":"buy","x":2}'
    assert call("ask", "{}").content == "hello"
    # A listed tool may have the name of a method, which is not called then.
    assert call("close", "{}").content == '{"did":"close"}'
    assert call("close", "{}", names=("buy",)).error is ToolError.UNKNOWN_TOOL


def test_what_a_tool_logs_next_to_its_result_is_in_the_transition_and_not_in_the_result() -> None:
    assert call("buy", '{"x": 2}').transition == {
        "tool": "buy",
        "arguments": {"x": 2},
        "result": '{"did":"buy","x":2}',
        "error": None,
        "reward": 0.5,
    }


def test_the_policy_reads_the_full_message_of_a_tool_failure_and_nothing_of_an_outage() -> None:
    refused = call("refuse", "{}")
    assert refused.content == "error: sold out"
    assert refused.error is ToolError.TOOL_RAISED
    assert call("buy", '{"x": "2"}').error is ToolError.WRONG_TYPE
    with pytest.raises(InfrastructureError, match="on fire"):
        call("burn", "{}")


@pytest.mark.parametrize("names", [["buy", "buy"], ["buy", "ask"]])
def test_two_tools_of_one_name_are_refused(names: list[str]) -> None:
    with pytest.raises(UsageError, match=r"lists the tool '(buy|ask)' twice"):
        Shop.with_options(names=names)


def test_tools_that_are_not_listed_yet_cannot_be_asked_for() -> None:
    with pytest.raises(UsageError, match=r"depend on its options.*Shop.with_options"):
        Shop.tool_schemas()


@pytest.mark.parametrize(
    ("messages", "opening"),
    [
        ((), [{"role": "user", "content": "seen"}]),
        (({"role": "user", "content": "Go."},), [{"role": "user", "content": "Go.\n\nseen"}]),
        (
            ({"role": "system", "content": "Be quick."},),
            [{"role": "system", "content": "Be quick."}, {"role": "user", "content": "seen"}],
        ),
    ],
)
def test_the_first_observation_is_the_user_s(messages: Any, opening: Any) -> None:
    assert opening_with(Task(id="t", messages=messages), "seen") == opening


def test_the_return_sums_the_rewards_of_the_steps_that_had_one() -> None:
    trajectory = Trajectory(
        id="t",
        task=Task(id="t", messages=()),
        attempt=0,
        turns=(),
        messages=(),
        outcome=Outcome.FINISHED,
        reward=None,
        score=None,
        transitions=({"reward": 0.5}, {"error": "wrong_type"}, {"reward": None}, {"reward": -2}),
    )
    assert episode_return(trajectory) == -1.5
