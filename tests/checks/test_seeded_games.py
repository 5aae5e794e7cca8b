"""Games whose tasks are seeds: a game of cards that no player always wins, and a lake that is the same whatever the seed."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

pytest.importorskip("gymnasium", reason="gymnasium is not installed; pip install 'sparring[gymnasium]'")

from sparring.checks import CHECKS
from sparring.checks.evidence.subject import Subject
from sparring.config import load_config
from sparring.findings import Finding, Severity

BLACKJACK = Path(__file__).parents[2] / "recipes" / "blackjack"
LOSING = """

class Loser(Blackjack):
    def demonstrate(self, task):
        return game(task, lambda shown: "hit")
"""

LAKE = """
[data]
train = "environment:train_tasks"
held_out = "environment:held_out_tasks"

[environment]
target = "sparring.environments.adapters.gymnasium_environment:GymnasiumEnvironment"

[environment.options]
id = "FrozenLake-v1"
arguments = {is_slippery = false, render_mode = "ansi"}

[reward]
reward = "sparring.environments.adapters:episode_return"
scorer = "environment:scorer"
"""
SEEDS = """
from functools import partial

from sparring.environments.adapters import episode_return as scorer
from sparring.environments.adapters.gymnasium_environment import seeded_tasks

train_tasks = partial(seeded_tasks, "Cross the lake.", 32)
held_out_tasks = partial(seeded_tasks, "Cross the lake.", 16, first_seed=100)
"""


def found(rule: str, recipe: Path, *overrides: str) -> list[Finding]:
    subject = Subject(load_config(recipe / "recipe.toml", overrides), recipe / "recipe.toml")
    return list(asyncio.run(CHECKS[rule].function(subject)))  # type: ignore[arg-type]


def test_an_expert_who_loses_by_chance_is_a_warning_with_its_share_of_wins() -> None:
    (one,) = found("policies.expert", BLACKJACK)
    assert one.severity is Severity.WARNING
    assert 0.2 < one.evidence["mean_score"] < 0.7
    assert "chance" in one.change


def test_an_expert_whose_scores_the_rewards_of_the_environment_contradict_is_an_error() -> None:
    errors = found("policies.expert", BLACKJACK, "reward.scorer=environment:shuffled_reward")
    assert {one.severity for one in errors} == {Severity.ERROR}


def test_an_expert_who_never_wins_is_an_error(tmp_path: Path) -> None:
    recipe = tmp_path / "losing"
    shutil.copytree(BLACKJACK, recipe)
    with (recipe / "environment.py").open("a", encoding="utf-8") as file:
        file.write(LOSING)
    first = found("policies.expert", recipe, "environment.target=environment:Loser")[0]
    assert first.severity is Severity.ERROR
    assert first.evidence["mean_score"] == 0.0


def test_won_drawn_and_lost_need_no_names() -> None:
    assert found("reward.components", BLACKJACK) == []


def test_seeds_that_draw_other_cards_are_other_tasks() -> None:
    assert found("data.contamination", BLACKJACK) == []


@pytest.mark.parametrize(("slips", "warnings"), [("false", 1), ("true", 0)])
def test_a_lake_that_no_seed_changes_is_one_task_trained_on_and_held_out(
    tmp_path: Path, slips: str, warnings: int
) -> None:
    (tmp_path / "recipe.toml").write_text(LAKE.replace("is_slippery = false", f"is_slippery = {slips}"), "utf-8")
    (tmp_path / "environment.py").write_text(SEEDS, "utf-8")
    reported = found("data.contamination", tmp_path)
    assert [one.severity for one in reported] == [Severity.WARNING] * warnings
