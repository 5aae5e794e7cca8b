"""Agents that own their loop train from a recipe: functions in process and programs that know nothing of Sparring."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sparring.ledger import Ledger
from sparring.tracking import Console
from sparring.trainer import MultiTurnRLTrainer

RECIPE = Path(__file__).parents[2] / "recipes" / "pointer_chase" / "recipe.toml"
LOOP = """
def answered(calls, links):
    results = []
    for call in calls:
        key = json.loads(call.function.arguments).get("key")
        results.append({"role": "tool", "tool_call_id": call.id, "content": links.get(key, "none")})
    return results
"""
FUNCTION = f'''
import json
{LOOP}

async def play(task, session):
    """Ask through the OpenAI client until there is an answer."""
    messages = list(task.messages)
    async with session.client() as client:
        for _ in range(5):
            choice = (await client.chat.completions.create(model="policy", messages=messages)).choices[0]
            messages.append(choice.message.model_dump(exclude_none=True))
            if not choice.message.tool_calls:
                break
            messages += answered(choice.message.tool_calls, task.fields["links"])
    return float(messages[-1].get("content") == f"ans {{task.fields['answer']}}")
'''
BLOCKING = FUNCTION.replace("async ", "").replace("await ", "").replace("session.client()", "session.sync_client()")
PROGRAM = f"""
import json, sys, openai
{LOOP}

task = json.load(sys.stdin)
assert "fields" not in task and "answer" not in task
links = {{"a": "b", "b": "c"}}
messages = task["messages"]
with openai.OpenAI() as client:
    for _ in range(5):
        choice = client.chat.completions.create(model="policy", messages=messages).choices[0]
        messages.append(choice.message.model_dump(exclude_none=True))
        if not choice.message.tool_calls:
            break
        messages += answered(choice.message.tool_calls, links)
print("chatter")
length = len(messages) / 10
print(json.dumps({{"reward": length, "metrics": {{"messages": len(messages)}}, "components": {{"length": length}}}}))
"""


PULLED = f'''
import json, openai
{LOOP}

def play(invocation):
    """As FUNCTION, in a process that only the run's address and key have reached."""
    messages = invocation["messages"]
    with openai.OpenAI(base_url=invocation["base_url"], api_key=invocation["api_key"]) as client:
        for _ in range(5):
            choice = client.chat.completions.create(model="policy", messages=messages).choices[0]
            messages.append(choice.message.model_dump(exclude_none=True))
            if not choice.message.tool_calls:
                break
            messages += answered(choice.message.tool_calls, invocation["links"])
    return {{"reward": len(messages) / 10, "metrics": {{"messages": len(messages)}}}}
'''


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    folder = tmp_path / "recipe"
    folder.mkdir()
    for file in RECIPE.parent.glob("*.py"):
        (folder / file.name).write_text(file.read_text())
    text = RECIPE.read_text()
    begin, end = text.index("[environment]"), text.index("[warm_start]")
    (folder / "recipe.toml").write_text(
        text[:begin] + text[end:].replace("num_demonstrations = 4096", "num_demonstrations = 64")
    )
    (folder / "function.py").write_text(FUNCTION)
    (folder / "blocking.py").write_text(BLOCKING)
    (folder / "program.py").write_text(PROGRAM)
    (folder / "pulled.py").write_text(PULLED)
    return folder / "recipe.toml"


def train(recipe: Path, *overrides: str) -> tuple[list[dict], Ledger]:
    small = (
        f"run.runs_dir={recipe.parent.parent}",
        "warm_start.steps=40",
        "schedule.max_steps=1",
        "batch.global_batch_size=2",
        "batch.group_size=4",
        "evaluation.val_num_tasks=2",
        "evaluation.allow_zero_baseline=true",
        "sampling.sampling_max_tokens=24",
        "rollout.rollout_timeout=60",
    )
    result = MultiTurnRLTrainer(recipe, overrides=[*small, *overrides], quiet=True, check=False).train()
    assert result is not None
    assert (result.status, result.step) == ("completed", 1)
    rows = [json.loads(line)["metrics"] for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "rollout/reward/mean" in row], Ledger(result.run / "ledger.sqlite")


@pytest.mark.parametrize("module", ["function", "blocking"])
def test_a_function_agent_trains_through_its_own_client(recipe: Path, module: str) -> None:
    rows, ledger = train(recipe, f"agent.function={module}:play", "agent.max_turns=5")
    with ledger:
        assert ledger.verify() == []
        assert ledger.counts()["trained"] == 8
    assert rows[0]["rollout/outcome/finished"] + rows[0]["rollout/outcome/max_turns"] == 1
    assert rows[0]["rollout/branches"] == 1
    assert rows[0]["rollout/turns/mean"] > 1


def test_a_program_trains_and_reports_what_it_earned(recipe: Path) -> None:
    rows, ledger = train(
        recipe, f'agent.command=["{sys.executable}", "program.py"]', "rollout.rollout_max_concurrency=4"
    )
    with ledger:
        assert ledger.verify() == []
        assert ledger.counts()["trained"] == 8
    assert rows[0]["rollout/reward/components/length"] == pytest.approx(rows[0]["rollout/reward/mean"])
    assert rows[0]["rollout/reward/metrics/messages"] == pytest.approx(10 * rows[0]["rollout/reward/mean"])
    assert rows[0]["rollout/branches"] == 1


@pytest.mark.parametrize("is_given", [True, False])
def test_workers_that_dial_in_train_and_learn_the_key_from_the_run_or_beforehand(
    recipe: Path, is_given: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    monkeypatch.delenv("SPARRING_WORKER_KEY", raising=False)
    if is_given:
        monkeypatch.setenv("SPARRING_WORKER_KEY", "a key of both")
    started: list[subprocess.Popen[bytes]] = []

    def start(key: str) -> None:
        command = [sys.executable, "-m", "sparring.agents.worker", f"http://127.0.0.1:{port}", "pulled:play"]
        environment = {**os.environ, "SPARRING_WORKER_KEY": key}
        started.append(subprocess.Popen([*command, "--concurrency", "4"], cwd=recipe.parent, env=environment))

    announced = Console.announced

    def announce(console: Console, text: str) -> None:
        announced(console, text)
        if not is_given:
            start(text.split("SPARRING_WORKER_KEY=")[1].split()[0])

    monkeypatch.setattr(Console, "announced", announce)
    if is_given:
        start("a key of both")
    try:
        rows, ledger = train(
            recipe,
            "agent.pull=true",
            f"agent.gateway_port={port}",
            "rollout.rollout_max_concurrency=4",
            "rollout.rollout_timeout=120",
        )
    finally:
        for process in started:
            process.terminate()
            process.wait()
    with ledger:
        assert ledger.verify() == []
        assert ledger.counts()["trained"] == 8
        tokens = ledger.token_counts()
    assert tokens["sampled_total"] == sum(tokens.values()) - tokens["sampled_total"]
    assert rows[0]["rollout/reward/metrics/messages"] == pytest.approx(10 * rows[0]["rollout/reward/mean"])
    errors = capfd.readouterr().err
    assert f"episodes wait for workers at http://127.0.0.1:{port}" in errors
    key = "a key of both" if is_given else errors.split("SPARRING_WORKER_KEY=")[1].split()[0]
    assert ("$SPARRING_WORKER_KEY" in errors) == is_given
    assert is_given == (key not in errors)
    files = [path for path in recipe.parent.parent.rglob("*") if path.is_file()]
    assert [path for path in files if key.encode() in path.read_bytes()] == []
