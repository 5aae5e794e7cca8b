"""Agents that own their loop train from a recipe: functions in process and programs that know nothing of Sparring."""

import json
import sys
from pathlib import Path

import pytest

from sparring.ledger import Ledger
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
    (folder / "program.py").write_text(PROGRAM)
    return folder / "recipe.toml"


def train(recipe: Path, *overrides: str) -> tuple[list[dict], Ledger]:
    small = (
        f"run.runs_dir={recipe.parent.parent}", "warm_start.steps=40", "schedule.max_steps=1", "batch.global_batch_size=2",
        "batch.group_size=4", "evaluation.val_num_tasks=2", "evaluation.allow_zero_baseline=true",
        "sampling.sampling_max_tokens=24", "rollout.rollout_timeout=60",
    )  # fmt: skip
    result = MultiTurnRLTrainer(recipe, overrides=[*small, *overrides], quiet=True).train()
    assert result is not None
    assert (result.status, result.step) == ("completed", 1)
    rows = [json.loads(line)["metrics"] for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "rollout/reward/mean" in row], Ledger(result.run / "ledger.sqlite")


def test_a_function_agent_trains_through_its_own_client(recipe: Path) -> None:
    rows, ledger = train(recipe, "agent.function=function:play", "agent.max_turns=5")
    with ledger:
        assert ledger.verify() == []
        assert ledger.counts()["trained"] == 8
    assert rows[0]["rollout/outcome/finished"] + rows[0]["rollout/outcome/max_turns"] == 1
    assert rows[0]["rollout/branches"] == 1
    assert rows[0]["rollout/turns/mean"] > 1


def test_a_program_trains_and_says_what_it_earned(recipe: Path) -> None:
    rows, ledger = train(
        recipe, f'agent.command=["{sys.executable}", "program.py"]', "rollout.rollout_max_concurrency=4"
    )
    with ledger:
        assert ledger.verify() == []
        assert ledger.counts()["trained"] == 8
    assert rows[0]["rollout/reward/components/length"] == pytest.approx(rows[0]["rollout/reward/mean"])
    assert rows[0]["rollout/reward/metrics/messages"] == pytest.approx(10 * rows[0]["rollout/reward/mean"])
    assert rows[0]["rollout/branches"] == 1
