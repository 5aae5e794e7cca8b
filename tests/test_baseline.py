"""Endpoints and scripts play a recipe's held-out tasks in place of a model; they cannot be trained."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sparring.cli import app
from sparring.config import load_config
from sparring.ledger import Ledger
from sparring.run_folders import RunFolder
from sparring.run_folders.stored import read_trajectories
from tests.foreign import EXPERT, ExpertEndpoint, serving

ROOT = Path(__file__).parents[1]
SCRIPTED = ("engine.type=scripted", "engine.script=expert:act", "evaluation.eval_num_tasks=6")
AGENT = """
async def play(task, session):
    messages = list(task.messages)
    async with session.client() as client:
        while True:
            choice = (await client.chat.completions.create(model="policy", messages=messages)).choices[0]
            messages.append(choice.message.model_dump(exclude_none=True))
            if not choice.message.tool_calls:
                return float(choice.message.content == f"ans {task.fields['answer']}")
            for call in choice.message.tool_calls:
                key = __import__("json").loads(call.function.arguments)["key"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": task.fields["links"][key]})
"""


def sparring(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), terminal_width=200)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "recipes" / "pointer_chase", "toy", ignore=shutil.ignore_patterns("__pycache__"))
    recipe = Path("toy/recipe.toml")
    sampled = "eval_temperature = 1.0\neval_group_size = 4"
    assert sampled in recipe.read_text("utf-8")
    recipe.write_text(recipe.read_text("utf-8").replace(sampled, "eval_temperature = 0.0"), "utf-8")
    Path("toy/expert.py").write_text(EXPERT, "utf-8")


@pytest.fixture
def endpoint() -> Iterator[str]:
    with serving(ExpertEndpoint(Path("upstream")).start) as served:
        yield served.base_url


def evaluated(*arguments: str) -> dict[str, Any]:
    result = sparring("eval", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_script_plays_a_recipe_without_torch_and_the_files_say_who_played() -> None:
    code = (
        f"import sys; from sparring.cli import app\ntry: app(['eval', 'toy', '--json', *{SCRIPTED}])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules, file=sys.stderr)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert out.stderr.splitlines()[-1] == "0 False", out.stderr
    report = json.loads(out.stdout)
    (evaluation,) = report["evaluations"]
    assert (evaluation["name"], evaluation["fingerprint"]) == ("scripted:expert:act", "scripted:expert:act")
    assert (evaluation["policy_version"], evaluation["success"]["mean"]) == (None, 1.0)
    assert len(evaluation["tasks"]) == 6
    # Its tokens are not counted.
    assert "eval/tokens/response_mean" not in evaluation["metrics"]
    run = Path(report["path"]).parents[1]
    assert RunFolder(run).status()["status"] == "completed"
    trajectories = read_trajectories(run / "trajectories" / "held_out-1.jsonl")
    assert [trajectory.score for trajectory in trajectories] == [1.0] * 6
    assert all(one.transitions[0]["tool"] == "get" for one in trajectories)
    assert sum(trajectory.num_trained_tokens for trajectory in trajectories) == 0
    with Ledger(run / "ledger.sqlite") as ledger:
        assert ledger.verify() == []
        assert ledger.counts("held_out")["evaluated"] == 6
    # The run is self-contained, and is evaluated again as it was.
    shutil.rmtree("toy")
    assert evaluated(str(run))["path"].endswith("held_out-002.json")


def test_a_file_of_messages_is_a_constant_policy_and_stays_with_the_run() -> None:
    Path("toy/fixed.jsonl").write_text('{"content": "ans a"}\n', "utf-8")
    report = evaluated("toy", "engine.type=scripted", "engine.script=fixed.jsonl", "evaluation.eval_num_tasks=4")
    assert report["evaluations"][0]["metrics"]["eval/turns/mean"] == 1.0
    run = Path(report["path"]).parents[1]
    assert load_config(run / "run.toml").engine.script == "fixed.jsonl"
    assert (run / "recipe" / "fixed.jsonl").read_bytes() == Path("toy/fixed.jsonl").read_bytes()


def test_an_endpoint_plays_next_to_the_policies_of_a_run(endpoint: str) -> None:
    recipe = Path("toy/recipe.toml")
    run = RunFolder.create(load_config(recipe), recipe, name="trained").path
    report = evaluated(
        str(run),
        "engine.type=openai",
        f"engine.base_url={endpoint}",
        "engine.model=expert",
        "evaluation.eval_num_tasks=4",
    )
    (evaluation,) = report["evaluations"]
    assert evaluation["fingerprint"] == f"openai:expert@{endpoint}"
    assert evaluation["success"]["mean"] == 1.0
    assert report["path"] == str(run / "evaluations" / "held_out-001.json")
    assert RunFolder(run).status()["status"] == "created"


def test_agents_that_own_their_loop_reach_an_endpoint_through_the_endpoint_of_their_episode(endpoint: str) -> None:
    text = Path("toy/recipe.toml").read_text("utf-8")
    begin, end = text.index("[environment]"), text.index("[warm_start]")
    Path("toy/recipe.toml").write_text(text[:begin] + text[end:], "utf-8")
    Path("toy/agent.py").write_text(AGENT, "utf-8")
    report = evaluated(
        "toy",
        "agent.function=agent:play",
        "engine.type=openai",
        f"engine.base_url={endpoint}",
        "engine.model=expert",
        "evaluation.eval_num_tasks=4",
    )
    (evaluation,) = report["evaluations"]
    assert (evaluation["success"]["mean"], evaluation["metrics"]["eval/lost_rollouts"]) == (1.0, 0.0)


def test_training_is_refused_with_the_reason_before_anything_is_loaded() -> None:
    for arguments in (("train", "toy", *SCRIPTED), ("train", "toy", "--dry-run", *SCRIPTED)):
        refused = sparring(*arguments)
        assert refused.exit_code == 2
        assert "engine.type: is 'scripted', which returns messages without token ids" in refused.output
        assert "sparring eval" in refused.output
    from sparring.errors import ConfigError
    from sparring.trainer import MultiTurnRLTrainer

    with pytest.raises(ConfigError, match="without token ids"):
        MultiTurnRLTrainer("toy", overrides=SCRIPTED, check=False)


def test_a_recipe_that_was_not_trained_has_no_policy_of_its_own() -> None:
    refused = sparring("eval", "toy")
    assert refused.exit_code == 2
    assert "engine.type=openai" in refused.output


OPENAI = ("engine.type=openai", "engine.model=m", "evaluation.eval_num_tasks=2", "rollout.rollout_max_retries=0")


def test_an_endpoint_that_is_not_there_loses_every_episode_and_is_reported() -> None:
    lost = sparring("eval", "toy", *OPENAI, "engine.base_url=http://127.0.0.1:1/v1", "rollout.rollout_timeout=3")
    assert lost.exit_code == 4
    assert "every episode" in lost.output
    assert RunFolder(Path("runs/toy-001")).status()["status"] == "failed"


def test_an_endpoint_that_refuses_ends_the_evaluation_with_its_words(endpoint: str) -> None:
    refused = sparring("eval", "toy", *OPENAI, f"engine.base_url={endpoint.removesuffix('/v1')}/nowhere")
    assert refused.exit_code == 4
    assert "status 404" in refused.output
    broken = Path("toy/broken.py")
    broken.write_text("def act(messages):\n    return messages[9]\n", "utf-8")
    failed = sparring("eval", "toy", "engine.type=scripted", "engine.script=broken:act", "evaluation.eval_num_tasks=2")
    assert failed.exit_code == 2
    assert "broken:act raised IndexError" in failed.output


def test_the_key_is_read_from_the_environment_and_stands_in_no_file(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("toy", *OPENAI, f"engine.base_url={endpoint}", "engine.api_key_env=EXPERT_KEY")
    missing = sparring("eval", *arguments)
    assert missing.exit_code == 2
    assert "EXPERT_KEY" in missing.output
    monkeypatch.setenv("EXPERT_KEY", "sk-secret")
    report = evaluated(*arguments)
    run = Path(report["path"]).parents[1]
    assert not [file for file in run.rglob("*") if file.is_file() and b"sk-secret" in file.read_bytes()]
