"""Gymnasium's own environments as recipes: the experts, the logs and the scorers, against the environments' rewards."""

import asyncio
import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="gymnasium is not installed; pip install 'sparring[gymnasium]'")

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.environments import tool_call
from sparring.environments.adapters import episode_return
from sparring.scorers import evaluate_score
from sparring.types import Message, Outcome, Task, Trajectory


def load(recipe: str, name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "recipes" / recipe / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{recipe}_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


lake: Any = load("frozen_lake", "environment")
cards: Any = load("blackjack", "environment")
LAKE = partial(lake.Lake.with_options(**lake.OPTIONS), **lake.OPTIONS)
CARDS = partial(cards.Blackjack.with_options(**cards.OPTIONS), **cards.OPTIONS)


def played(make: Any, task: Task, script: list[Message]) -> Trajectory:
    agent = EnvironmentAgent(make, max_turns=12)
    result = asyncio.run(agent.play(task, ScriptedSession(*script)))
    return Trajectory(
        id=task.id,
        task=task,
        attempt=0,
        turns=(),
        messages=result.messages,
        outcome=result.outcome,
        reward=None,
        score=None,
        transitions=result.transitions,
    )


def score(scorer: Any, trajectory: Trajectory) -> float:
    return asyncio.run(evaluate_score(scorer, trajectory)).value


def test_the_expert_crosses_every_lake_on_a_shortest_way() -> None:
    for task in lake.held_out_tasks()[:48]:
        trajectory = played(LAKE, task, LAKE().demonstrate(task))
        assert (score(lake.scorer, trajectory), episode_return(trajectory)) == (1.0, 1.0)
        assert trajectory.outcome is Outcome.FINISHED
        assert len(trajectory.transitions) == lake.distances(task.fields["map"])[0, 0]


def test_the_policy_reads_the_map_of_its_task() -> None:
    task = lake.train_tasks()[7]
    (opening,) = LAKE().reset(task)
    assert opening["content"].replace("[", "").replace("]", "").split("\n\n")[1].split() == list(task.fields["map"])


@pytest.mark.parametrize("move", ["left", "down", "right", "up"])
def test_scorer_and_reward_agree_on_walkers_who_hold_one_course(move: str) -> None:
    trajectories = [played(LAKE, task, [tool_call("step", action=move)] * 12) for task in lake.train_tasks()[:12]]
    assert {(score(lake.scorer, one), episode_return(one)) for one in trajectories} == {(0.0, 0.0)}


def test_the_splits_share_no_map() -> None:
    maps = [
        task.fields["map"]
        for split in (lake.train_tasks, lake.validation_tasks, lake.held_out_tasks)
        for task in split()
    ]
    assert len(set(maps)) == len(maps) == 1024 + 64 + 256


def test_walks_of_the_log_reach_the_goal_as_often_as_the_recipe_sets() -> None:
    ends = [messages[-1]["content"] for messages in lake.mixed_log(400)]
    # 400 draws: standard error 0.022.
    assert sum("[G]" in end for end in ends) / len(ends) == pytest.approx(0.25, abs=0.07)


@pytest.mark.parametrize("choose", [cards.basic_strategy, cards.reckless])
def test_scorer_and_reward_agree_on_whole_games(choose: Any) -> None:
    trajectories = [played(CARDS, task, cards.game(task, choose)) for task in cards.train_tasks()[:80]]
    won = [episode_return(one) > 0 for one in trajectories]
    assert [score(cards.scorer, one) == 1.0 for one in trajectories] == won
    assert 0 < sum(won) < 60
    assert {episode_return(one) for one in trajectories} <= {-1.0, 0.0, 1.0}


def test_games_of_the_log_are_won_as_often_as_the_recipe_sets() -> None:
    tasks = cards.seeded_tasks(cards.PROMPT, 400, first_seed=300_000)
    log = cards.mixed_log(400)
    won = 0
    for task, messages in zip(tasks, log, strict=True):
        script = [one for one in messages if one["role"] == "assistant"]
        won += int(score(cards.scorer, played(CARDS, task, script)))
    # 400 draws: standard error 0.024.
    assert won / len(log) == pytest.approx(0.33, abs=0.07)


@pytest.mark.parametrize(("recipe", "words"), [("frozen_lake", "FHG"), ("blackjack", ("stick", "hit", "12", "21"))])
def test_what_has_to_be_copied_is_one_token(recipe: str, words: Any) -> None:
    model, tokenizer = load(recipe, "model").build()
    assert model.num_parameters() < 1_000_000
    for word in words:
        assert len(tokenizer.encode(word, add_special_tokens=False)) == 1
