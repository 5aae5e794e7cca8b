"""An agent learns to ask a customer whom a frozen policy plays: two conversations an episode, one of them in no loss."""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from sparring.evaluator import MultiTurnRLEvaluator
from sparring.ledger import Ledger
from sparring.trainer import MultiTurnRLTrainer

MODEL = Path(__file__).parents[2] / "recipes" / "pointer_chase" / "model.py"
SHOP = '''
import random

from sparring.environments import Environment, UserSimulator, answer, tool, tool_call
from sparring.types import Task

WISHES = "abcdefgh"
OPENING = {"role": "user", "content": "find?"}


class Shop(Environment):
    """The customer names what it wants when it is asked, and not before."""

    describe_tools = "prompt"

    def reset(self, task):
        self.user = UserSimulator("customer", f"find {task.fields['wish']}", greeting="user", max_exchanges=2)
        self.given = None

    async def reply(self, messages, session):
        return await self.user.reply(messages, session)

    @tool
    def get(self, key: str) -> str:
        "Hand it over."
        self.given = key
        return key

    @property
    def is_done(self):
        return self.given is not None


def tasks():
    rng = random.Random(0)
    return [Task(id=f"t{n}", messages=(OPENING,), fields={"wish": rng.choice(WISHES)}) for n in range(400)]


def log(num, seed):
    """Of the agent's conversations two in five ask; the others guess. And the customer's side, which answers truly."""
    rng = random.Random(seed)
    conversations = []
    for n in range(num):
        wish = rng.choice(WISHES)
        if n % 2:
            conversations.append([
                {"role": "system", "content": f"find {wish}"}, {"role": "user", "content": "user"}, answer("find?"),
                {"role": "user", "content": "find"}, answer(wish),
            ])
        elif rng.random() < 0.4:
            heard = {"role": "user", "content": wish}
            conversations.append([OPENING, answer("find"), heard, tool_call("get", key=wish)])
        else:
            conversations.append([OPENING, tool_call("get", key=rng.choice(WISHES))])
    return conversations


def reward(trajectory):
    given = [entry["arguments"].get("key") for entry in trajectory.transitions if entry["error"] is None]
    return float(given == [trajectory.task.fields["wish"]])
'''
RECIPE = """
[run]
num_threads = 1
[model]
name = "model:build"
precision = "fp32"
trained_weights = "full"
max_sequence_length = 128
[data]
train = "shop:tasks"
[environment]
target = "shop:Shop"
max_turns = 4
[policies.customer]
weights = "warm_start"
temperature = 0.0
max_tokens = 8
[reward]
reward = "shop:reward"
[warm_start]
demonstrations = "shop:log"
num_demonstrations = 2560
steps = 80
batch_size = 32
learning_rate = 3e-3
[batch]
global_batch_size = 8
group_size = 8
[sampling]
sampling_max_tokens = 24
[optimizer]
learning_rate = 5e-4
[rollout]
max_steps_off_policy = 0
rollout_max_concurrency = 64
[schedule]
max_steps = 10
val_every = 0
save_every = 0
[evaluation]
val_num_tasks = 16
eval_num_tasks = 16
allow_zero_baseline = true
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    folder = tmp_path / "recipe"
    folder.mkdir()
    (folder / "model.py").write_text(MODEL.read_text())
    (folder / "shop.py").write_text(SHOP)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder / "recipe.toml"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_agent_learns_to_ask_a_frozen_customer(recipe: Path) -> None:
    trainer = MultiTurnRLTrainer(recipe, overrides=[f"run.runs_dir={recipe.parent.parent}"], quiet=True, check=False)
    result = trainer.train()
    assert result is not None
    rows = [row["metrics"] for row in lines(result.run / "metrics.jsonl") if "rollout/reward/mean" in row["metrics"]]
    assert len(rows) == result.step == 10

    # Who guesses is right in one of eight, who asks always: the demonstrations ask in two of five.
    assert rows[0]["rollout/reward/mean"] < 0.7
    assert rows[-1]["rollout/reward/mean"] > 0.8
    assert rows[-1]["rollout/policies/customer/turns"] > 0.8
    report = MultiTurnRLEvaluator(trainer, evaluate_base_model=False).evaluate()
    assert report.evaluations[-1].success.mean > 0.8

    customers, agents = set(), set()
    for step, row in enumerate(rows, start=1):
        played = lines(result.run / "trajectories" / f"train-{step}.jsonl")
        agents |= {turn["fingerprint"] for one in played for turn in one["turns"]}
        for turn in (turn for one in played for turn in one.get("other_turns", ())):
            customers.add((turn["policy"], turn["fingerprint"], turn["versions"][0][0]))
        # What is trained is what the agent sampled in groups that earned different things, to the token.
        num_tokens = 0
        for _, members in groupby(played, key=lambda one: one["task"]["id"]):
            group = list(members)
            if len({one["reward"]["total"] for one in group}) > 1:
                num_tokens += sum(len(turn["token_ids"]) for one in group for turn in one["turns"])
        assert row.get("training/trained_tokens", 0) == row["training/trainable_token_positions"] == num_tokens
    # The customer is the warm start for ever; the agent is so in the first step only.
    (customer,) = customers
    assert (customer[0], customer[2]) == ("customer", 0)
    assert customer[1] in agents
    assert len(agents) >= 5
    with Ledger(result.run / "ledger.sqlite") as ledger:
        assert ledger.verify() == []
