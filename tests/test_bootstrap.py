"""A teacher behind an HTTP endpoint writes the demonstrations from which a small model reaches its first success."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sparring import MultiTurnRLEvaluator, MultiTurnRLTrainer
from sparring.cli import app
from tests.foreign import EXPERT, ExpertEndpoint, serving

ROOT = Path(__file__).parents[1]
HALF = """
import walker

def act(messages):
    message = walker.act(messages)
    user = next(one["content"] for one in messages if one["role"] == "user")
    # Wrong for the first half of the keys.
    return "ans 0" if isinstance(message, str) and user.split()[1] < "n" else message
"""
SLOW = """
import asyncio
import walker

async def act(messages):
    await asyncio.sleep(0.2)
    return walker.act(messages)
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "recipes" / "pointer_chase", "toy", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in (("walker", EXPERT), ("half", HALF), ("slow", SLOW)):
        Path(f"toy/{name}.py").write_text(text, "utf-8")


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    with serving(ExpertEndpoint(tmp_path / "served").start) as served:
        yield f"openai:expert@{served.base_url}"


def sparring(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), terminal_width=200)


def bootstrapped(*arguments: str) -> dict[str, Any]:
    result = sparring("bootstrap", "toy", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("toy/bootstrap", name).read_text("utf-8").splitlines()]


def test_a_model_without_any_success_reaches_its_first_from_a_teacher_behind_an_endpoint(endpoint: str) -> None:
    made = bootstrapped("--teacher", endpoint, "--demonstrations", "160")
    assert made["kept"] >= 160
    changes = [line.replace(" = ", "=") for line in made["warm_start"]]
    changes = [f"warm_start.{change}" for change in changes]
    changes += ["warm_start.steps=100", "warm_start.batch_size=16", "schedule.max_steps=1", "schedule.val_every=0"]
    changes += ["batch.global_batch_size=2", "evaluation.eval_num_tasks=24", "evaluation.allow_zero_baseline=true"]
    trainer = MultiTurnRLTrainer("toy", overrides=changes, check=False, quiet=True)
    trainer.train()
    policies = ["base", "warm_start"]
    report = MultiTurnRLEvaluator(trainer, policies=policies, temperatures=[1.0], quiet=True).evaluate()
    base, warm_start = report.evaluations
    assert base.success.mean == 0.0
    assert warm_start.success.mean > 0.0


def test_requests_are_counted_over_all_calls(endpoint: str) -> None:
    first = bootstrapped("--teacher", endpoint, "--episodes", "2")
    second = bootstrapped("--teacher", endpoint, "--episodes", "2")
    assert (first["new"], second["new"], second["kept"]) == (2, 2, 4)
    assert len({one["task_id"] for one in lines("demonstrations.jsonl")}) == 4
    (before,), (after,) = first["endpoints"], second["endpoints"]
    turns = sum(one["turns"] for one in lines("episodes.jsonl"))
    assert after["requests"] == turns > before["requests"] > 0


def test_what_to_add_to_the_recipe_is_printed(endpoint: str) -> None:
    result = sparring("bootstrap", "toy", "--teacher", endpoint, "--episodes", "3")
    assert result.exit_code == 0, result.output
    assert "3 episodes: the scorer accepted 3; stopped at 3 episodes" in result.stdout
    assert "expert@127.0.0.1" in result.stdout
    added = '[warm_start]\ndemonstrations = "bootstrap/demonstrations.jsonl"\nnum_demonstrations = 3\n'
    assert added in result.stdout


def test_only_episodes_that_the_scorer_accepts_are_kept_and_others_are_tried_again_on_request() -> None:
    made = bootstrapped("--teacher", "script:half:act", "--episodes", "40")
    played = lines("episodes.jsonl")
    assert 0 < made["kept"] < made["episodes"] == len(played) == 40
    assert [one["score"] for one in played if one["kept"]] == [1.0] * made["kept"]
    assert {one["task_id"] for one in lines("demonstrations.jsonl")} == {
        one["task_id"] for one in played if one["kept"]
    }
    again = bootstrapped("--teacher", "script:walker:act", "--episodes", "40", "--attempts", "2")
    tasks = [one["task_id"] for one in lines("episodes.jsonl")]
    assert again["kept"] == made["kept"] + 40
    assert len(set(tasks)) > 40
    assert max(map(tasks.count, tasks)) <= 2


def test_demonstrations_are_redacted_by_the_rules_of_the_recipe() -> None:
    recipe = Path("toy/recipe.toml")
    recipe.write_text(recipe.read_text("utf-8") + "\n[tracking]\nredact = ['ans [a-z]']\n", "utf-8")
    bootstrapped("--teacher", "script:walker:act", "--episodes", "4")
    texts = [str(one["content"]) for row in lines("demonstrations.jsonl") for one in row["messages"]]
    assert any("[redacted]" in text for text in texts)
    assert not any(re.search(r"ans \d", text) for text in texts)


def test_nothing_accepted_is_exit_code_5_and_names_the_scores() -> None:
    Path("toy/mute.py").write_text('def act(messages):\n    return "ans 0"\n', "utf-8")
    result = sparring("bootstrap", "toy", "--teacher", "script:mute:act", "--episodes", "3")
    assert result.exit_code == 5
    assert "the scorer accepted none of 3 episodes" in result.output
    assert len(lines("episodes.jsonl")) == 3


def test_a_limit_of_the_cost_ends_the_call_before_it_is_exceeded(tmp_path: Path) -> None:
    prices = ["--price", "expert:read=1000000", "--price", "expert:sample=0"]  # one for each byte of a prompt
    with serving(ExpertEndpoint(tmp_path / "served", counts=True).start) as served:
        teacher = f"openai:expert@{served.base_url}"
        one = bootstrapped("--teacher", teacher, "--episodes", "1", "--out", "one", *prices)["endpoints"][0]
        limit = 4 * one["cost"]
        made = bootstrapped("--teacher", teacher, "--max-cost", str(limit), *prices, "engine.max_running=1")
    assert one["cost"] == one["read"] > 0
    assert made["limit"] == f"a cost of {limit:g}"
    assert 1 <= made["episodes"] <= 5
    assert made["endpoints"][0]["cost"] <= limit + one["cost"]


def test_a_limit_of_an_unknown_cost_is_refused_and_the_finished_episodes_are_kept(endpoint: str) -> None:
    result = sparring("bootstrap", "toy", "--teacher", endpoint, "--max-cost", "10", "--price", "other:read=1")
    assert result.exit_code == 2
    assert "the cost of expert@127.0.0.1" in result.output
    assert lines("demonstrations.jsonl")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--teacher", "tuned"], "cannot teach"),
        (["--teacher", "base"], "cannot teach"),
        (["--teacher", "openai:no-url"], "does not name an endpoint"),
        (["--teacher", "script:walker:act", "--max-cost", "1"], "needs prices"),
    ],
)
def test_what_cannot_teach_is_refused(options: list[str], problem: str) -> None:
    result = sparring("bootstrap", "toy", *options)
    assert result.exit_code == 2
    assert problem in result.output
    assert not Path("toy/bootstrap").exists()


def test_a_folder_that_another_command_uses_or_that_is_a_file_is_refused() -> None:
    Path("busy").mkdir()
    with Path("busy/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = sparring("bootstrap", "toy", "--teacher", "script:walker:act", "--out", "busy")
    assert (refused.exit_code, "another `sparring bootstrap` writes to busy" in refused.output) == (2, True)
    Path("file").write_text("")
    refused = sparring("bootstrap", "toy", "--teacher", "script:walker:act", "--out", "file")
    assert (refused.exit_code, "file cannot be used as a folder" in refused.output) == (2, True)


def test_a_recipe_without_a_scorer_is_refused() -> None:
    recipe = Path("toy/recipe.toml")
    recipe.write_text(recipe.read_text("utf-8").replace('scorer = "environment:scorer"\n', ""), "utf-8")
    result = sparring("bootstrap", "toy", "--teacher", "script:walker:act")
    assert result.exit_code == 2
    assert "has no scorer" in result.output


def test_after_ctrl_c_finished_episodes_are_kept_and_the_next_call_continues() -> None:
    command = [
        sys.executable,
        "-m",
        "sparring",
        "bootstrap",
        "toy",
        "--teacher",
        "script:slow:act",
        "engine.max_running=2",
    ]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not Path("toy/bootstrap/demonstrations.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    kept = lines("demonstrations.jsonl")
    assert kept
    with Path("toy/bootstrap/demonstrations.jsonl").open("a") as file:
        file.write('{"messages": [{"ro')  # a crash during a write
    made = bootstrapped("--teacher", "script:walker:act", "--episodes", "2")
    assert made["kept"] == len(kept) + 2
    assert lines("demonstrations.jsonl")[: len(kept)] == kept


def test_demonstrations_of_an_own_agent_have_the_tools_that_it_offered() -> None:
    Path("toy/agent.py").write_text(
        "import sparring\n\n"
        "GET = {'type': 'function', 'function': {'name': 'get', 'parameters': {'type': 'object', 'properties': {}}}}\n\n\n"
        "async def play(task, session):\n"
        "    messages = list(task.messages)\n"
        "    messages.append(await session.chat(messages, [GET]))\n"
        "    return 1.0\n",
        "utf-8",
    )
    Path("toy/mute.py").write_text('def act(messages):\n    return "ans 0"\n', "utf-8")
    Path("toy/grade.py").write_text("def scorer(episode):\n    return 1.0\n", "utf-8")
    text = (
        Path("toy/recipe.toml")
        .read_text("utf-8")
        .replace('[environment]\ntarget = "environment:PointerChase"\n', "[environment]\n")
    )
    text = text.replace('scorer = "environment:scorer"', 'scorer = "grade:scorer"').replace(
        'reward = "environment:reward"\n', ""
    )
    text = text.replace("max_turns = 5\n", "") + '\n[agent]\nfunction = "agent:play"\n'
    Path("toy/recipe.toml").write_text(text, "utf-8")
    bootstrapped("--teacher", "script:mute:act", "--episodes", "2")
    assert [[tool["function"]["name"] for tool in one["tools"]] for one in lines("demonstrations.jsonl")] == [
        ["get"],
        ["get"],
    ]
