"""A run computes hardly more tokens than there are different ones, counted again from what the ledger stores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sparring.ledger import Ledger
from sparring.trainer import MultiTurnRLTrainer
from sparring.types import Turn

RECIPE = Path(__file__).parents[2] / "recipes" / "pointer_chase" / "recipe.toml"
SMALL = (
    "warm_start.steps=40",
    "warm_start.num_demonstrations=256",
    "batch.global_batch_size=4",
    "schedule.max_steps=3",
    "schedule.val_every=0",
    "schedule.save_every=0",
    "evaluation.val_num_tasks=1",
    "evaluation.allow_zero_baseline=true",
)


def list_histories(turns: Sequence[Turn]) -> set[tuple[int, ...]]:
    """Return all non-empty beginnings of the turns' tokens, as a plain set."""
    whole = [(*turn.prompt_ids, *turn.token_ids) for turn in turns]
    return {ids[:end] for ids in whole for end in range(1, len(ids) + 1)}


@pytest.mark.parametrize("is_deterministic", [True, False], ids=["rounds", "free"])
def test_computed_tokens_are_at_most_a_tenth_more_than_different_tokens(tmp_path: Path, is_deterministic: bool) -> None:
    overrides = [f"run.runs_dir={tmp_path}", f"engine.deterministic={str(is_deterministic).lower()}", *SMALL]
    result = MultiTurnRLTrainer(RECIPE, overrides=overrides, quiet=True, check=False).train()
    assert result is not None
    lines = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [line["metrics"] for line in lines if "rollout/tokens/computed" in line["metrics"]]
    assert len(steps) == 3
    with Ledger(result.run / "ledger.sqlite") as ledger:
        played = {
            step: [turn for id in ids for turn in ledger.load_turns(id)] for step, ids in ledger.consumed().items()
        }
    # Without rounds, the scheduler of a busy machine decides which episodes meet, so a single small step may have more.
    computed, distinct = (sum(step[f"rollout/tokens/{name}"] for step in steps) for name in ("computed", "distinct"))
    assert computed <= 1.1 * distinct
    for number, step in enumerate(steps, start=1):
        turns = played[number]
        assert {version for turn in turns for version, _ in turn.versions} == {number - 1}
        assert step["rollout/tokens/distinct"] == len(list_histories(turns))
        assert step["rollout/tokens/computed"] == sum(turn.num_computed_tokens for turn in turns)
        assert step["training/computed_per_distinct"] <= 1.1
        assert step["training/distinct_tokens"] <= step["rollout/tokens/distinct"]
        if is_deterministic:
            assert step["rollout/tokens/computed_per_distinct"] <= 1.1
        # Without sharing, each episode computes its own tokens.
        assert step["rollout/tokens/of_episodes"] > 1.5 * step["rollout/tokens/computed"]
