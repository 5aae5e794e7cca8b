"""What a program that plays episodes finds in its environment: the address and key of its episode, and no other key."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sparring.agents import CommandAgent
from sparring.errors import UsageError
from sparring.gateway import Gateway
from sparring.types import Task
from tests.gateway.builders import USER, session

TASK = Task(id="t1", messages=(USER,), fields={})
PROGRAM = """
import json, os
print(json.dumps({"artifacts": {"environment": json.dumps(dict(os.environ))}}))
"""
KEYS = ("HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY", "SPARRING_API_KEY", "SPARRING_WORKER_KEY", "JUDGE_KEY")
EPISODE = {"OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"}


def environment_of_program(folder: Path, variables: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment variables that a real program has in an episode."""
    (folder / "program.py").write_text(PROGRAM)

    async def run() -> Any:
        async with Gateway() as gateway, session(["hello"]) as chat_session:
            agent = CommandAgent(
                [sys.executable, "program.py"], enter=gateway.register, folder=folder, variables=variables
            )
            return await agent.play(TASK, chat_session)

    return json.loads(asyncio.run(run()).artifacts["environment"])


@pytest.fixture(autouse=True)
def full_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, f"secret of {name}")
    monkeypatch.setenv("OPENAI_API_KEY", "the key of the trainer")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("TMPDIR", "/tmp")


def test_a_program_gets_its_episode_and_five_variables_of_the_trainer(tmp_path: Path) -> None:
    found = environment_of_program(tmp_path)
    assert found.keys() - {"LC_ALL"} == {"PATH", "HOME", "LANG", "TMPDIR"} | EPISODE
    assert found["PATH"] == os.environ["PATH"]
    assert "secret" not in json.dumps(found)
    assert found["OPENAI_API_KEY"] == found["ANTHROPIC_API_KEY"] != "the key of the trainer"


def test_a_recipe_passes_variables_on_and_sets_others(tmp_path: Path) -> None:
    found = environment_of_program(tmp_path, ["JUDGE_KEY", "REGION=eu=west", "HOME=/nowhere", "EMPTY="])
    assert {name: found[name] for name in ("JUDGE_KEY", "REGION", "HOME", "EMPTY")} == {
        "JUDGE_KEY": "secret of JUDGE_KEY",
        "REGION": "eu=west",
        "HOME": "/nowhere",
        "EMPTY": "",
    }
    assert found.keys().isdisjoint(set(KEYS) - {"JUDGE_KEY"})


@pytest.mark.parametrize("entry", ["OPENAI_API_KEY", "ANTHROPIC_BASE_URL=http://elsewhere"])
def test_a_variable_of_the_episode_cannot_be_replaced(tmp_path: Path, entry: str) -> None:
    with pytest.raises(UsageError, match="which every episode sets"):
        environment_of_program(tmp_path, [entry])


def test_a_listed_variable_that_is_not_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has SEARCH_KEY, but the environment has no such variable\. Set it"):
        environment_of_program(tmp_path, ["SEARCH_KEY"])
