"""docs/adapters.md: its adapter runs as it stands and is short, and its recipes name what there is."""

import asyncio
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="jsonschema is not installed (the extras of the adapters bring it)")

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.environments import tool_call
from sparring.runtime.plugins import load_object
from sparring.types import Outcome, Task

PAGE = (Path(__file__).parents[3] / "docs" / "adapters.md").read_text("utf-8")
NEEDS = {"gymnasium": "gymnasium", "mcp": "mcp", "openenv": "websockets", "sop-bench": "jsonschema"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_adapter_of_the_page_has_at_most_80_lines_and_plays() -> None:
    adapter = next(block for block in blocks("python") if "class TextGame" in block)
    use = next(block for block in blocks("python") if "environment_class = TextGame" in block)
    assert len(adapter.splitlines()) <= 80
    page: dict[str, Any] = {"__name__": "adapters_page", "EnvironmentAgent": EnvironmentAgent}
    exec(f"{adapter}\n{use}", page)
    # random.Random(1).randrange(1, 6) is 2: walk twice, dig.
    session = ScriptedSession(
        tool_call("walk"), tool_call("dig"), tool_call("walk", far=1), tool_call("walk"), tool_call("dig")
    )
    task = Task(id="t", messages=({"role": "user", "content": "Find the coin."},), seed=1)
    result = asyncio.run(page["agent"].play(task, session))
    assert result.messages[0]["content"] == "Find the coin.\n\nYou are at place 0 of 6."
    assert [step["result"] for step in result.transitions if step["error"] is None] == [
        "place 1",
        "sand",
        "place 2",
        "a chest!",
    ]
    assert [step.get("reward") for step in result.transitions] == [0.0, -0.1, None, 0.0, 1.0]
    assert result.outcome is Outcome.FINISHED


def test_the_targets_of_the_page_exist_and_take_the_options_that_its_recipes_show() -> None:
    shown = {
        recipe["environment"]["target"]: recipe["environment"]["options"]
        for recipe in map(tomllib.loads, blocks("toml"))
    }
    listed = dict(
        re.findall(r"^\| .* \| `(sparring\.[\w.:]+)` \| `sparring\[([\w-]+)\]` \|$", PAGE, flags=re.MULTILINE)
    )
    assert set(shown) == set(listed)
    for target, options in shown.items():
        if find_spec(NEEDS[listed[target]]) is not None:
            found = load_object(target, folder=Path())
            assert set(options) <= set(found.__init__.__annotations__), target
