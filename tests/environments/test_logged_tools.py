"""Calls are answered as in the log: first from the task's own conversation, in order, then from any."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sparring import answer, tool_call
from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.environments.fixtures import Fixtures
from sparring.environments.logged_tools import LoggedEnvironment
from sparring.types import Task


def schema(name: str, *, writes: bool = False) -> dict[str, Any]:
    properties = {"id": {"type": "integer"}, "unit": {"type": "string", "default": "kg"}}
    parameters = {"type": "object", "properties": properties, "required": ["id"]}
    return {
        "type": "function",
        "writes": writes,
        "function": {"name": name, "description": "", "parameters": parameters},
    }


@pytest.fixture
def desk(tmp_path: Path) -> type[LoggedEnvironment]:
    (tmp_path / "tools.json").write_text(json.dumps([schema("weigh"), schema("sell", writes=True)]), "utf-8")

    class Desk(LoggedEnvironment):
        tools_file = tmp_path / "tools.json"
        shared = Fixtures([{"tool": "weigh", "arguments": {"id": 9, "unit": "kg"}, "result": "90"}])

    return Desk


def logged(*calls: tuple[str, dict[str, Any], str], replies: tuple[str, ...] = ()) -> Task:
    log: list[Any] = []
    for number, (name, arguments, result) in enumerate(calls):
        call = {"id": f"call_{number}_0", "type": "function", "function": {"name": name, "arguments": arguments}}
        log += [{"role": "assistant", "content": "", "tool_calls": [call]}]
        log += [{"role": "tool", "tool_call_id": call["id"], "content": result}]
    log += [{"role": "assistant", "content": "ok"}]
    for text in replies:
        log += [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]
    return Task(id="t", messages=({"role": "user", "content": "?"},), fields={"log": log})


def played(environment: type[LoggedEnvironment], task: Task, *script: Any) -> Any:
    return asyncio.run(EnvironmentAgent(environment, max_turns=9).play(task, ScriptedSession(*script)))


def results(episode: Any) -> list[str]:
    return [one["result"] for one in episode.transitions]


def test_a_repeated_call_gets_the_next_logged_result_and_omitted_arguments_have_their_defaults(desk: Any) -> None:
    task = logged(("weigh", {"id": 1}, "5"), ("weigh", {"id": 1, "unit": "kg"}, "4"))
    calls = [
        tool_call("weigh", id=1),
        tool_call("weigh", id=1, unit="kg"),
        tool_call("weigh", id=1),
        tool_call("weigh", id=9),
    ]
    assert results(played(desk, task, *calls, answer("ok"))) == ["5", "4", "4", "90"]


def test_a_call_that_is_in_no_log_is_an_error(desk: Any) -> None:
    [missed] = played(desk, logged(), tool_call("weigh", id=3), answer("ok")).transitions
    assert missed["error"] == "fixture_miss"


def test_a_tool_that_writes_succeeds_only_as_in_the_own_log_and_is_in_the_final_state(desk: Any) -> None:
    task = logged(("sell", {"id": 1}, "sold"))
    episode = played(desk, task, tool_call("sell", id=2), tool_call("sell", id=1), answer("ok"))
    assert results(episode) == ["error: sell cannot do this", "sold"]
    assert episode.final_state == {"writes": [{"tool": "sell", "arguments": {"id": 1}}]}


def test_a_method_with_the_tools_name_runs_in_place_of_the_log(desk: Any) -> None:
    class Live(desk):
        async def sell(self, id: int, unit: str = "kg") -> str:
            return f"sold {id}"

    episode = played(Live, logged(), tool_call("sell", id=2), answer("ok"))
    assert results(episode) == ["sold 2"]
    assert episode.final_state["writes"] == [{"tool": "sell", "arguments": {"id": 2}}]


def test_later_messages_of_the_user_are_sent_and_the_log_is_the_demonstration(desk: Any) -> None:
    task = logged(("weigh", {"id": 1}, "5"), replies=("and then?",))
    script = asyncio.run(_demonstration(desk, task))
    episode = played(desk, task, *script)
    assert [one["content"] for one in episode.messages if one["role"] == "user"] == ["?", "and then?"]
    assert episode.messages[1:] == tuple(task.fields["log"])


async def _demonstration(environment: type[LoggedEnvironment], task: Task) -> Any:
    return environment().demonstrate(task)
