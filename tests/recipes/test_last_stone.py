"""Last stone: a Gymnasium environment that ends its episodes, an expert who always wins, a log that wins 0.34."""

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="gymnasium is not installed; pip install 'sparring[gymnasium]'")

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.checks import CHECKS
from sparring.checks.evidence.subject import Subject
from sparring.config import load_config
from sparring.environments import tool_call
from sparring.environments.adapters import episode_return
from sparring.scorers import evaluate_score
from sparring.types import Message, Outcome, Task, Trajectory


def load(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "recipes" / "last_stone" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"last_stone_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


game: Any = load("environment")
tiny: Any = load("model")
OPTIONS = {"id": game.ID, "actions": ["1", "2", "3"]}
GAME = game.Game.with_options(**OPTIONS)


def played(task: Task, script: list[Message]) -> Trajectory:
    agent = EnvironmentAgent(lambda: GAME(**OPTIONS), max_turns=6)
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


def graded(trajectory: Trajectory) -> tuple[float, float]:
    """Score and reward."""
    return asyncio.run(evaluate_score(game.scorer, trajectory)).value, episode_return(trajectory)


def test_the_expert_wins_every_game_and_the_environment_ends_it() -> None:
    for task in game.held_out_tasks()[:64]:
        trajectory = played(task, game.moves(task, game.best_move))
        assert graded(trajectory) == (1.0, 1.0)
        assert trajectory.outcome is Outcome.FINISHED
        assert trajectory.messages[-1]["role"] == "tool"
        assert len(trajectory.transitions) <= 4


@pytest.mark.parametrize("number", ["1", "2", "3"])
def test_reward_and_scorer_agree_on_players_who_always_take_as_many(number: str) -> None:
    trajectories = [played(task, [tool_call("step", action=number)] * 6) for task in game.train_tasks()[:40]]
    grades = [graded(trajectory) for trajectory in trajectories]
    assert {score - reward for score, reward in grades} == {0.0}
    # Some games are won that way, and most are not.
    assert 0 < sum(score for score, _ in grades) < 25


def test_more_stones_than_there_are_lose_the_game_at_once() -> None:
    trajectories = [played(task, [tool_call("step", action="3")] * 6) for task in game.train_tasks()[:40]]
    illegal = [one for one in trajectories if one.transitions[-1]["result"] in ("1", "2")]
    assert illegal
    assert {graded(one) for one in illegal} == {(0.0, 0.0)}
    assert all(one.transitions[-1]["terminated"] for one in illegal)


def test_demonstrations_end_with_the_last_move_and_win_as_often_as_the_recipe_sets() -> None:
    log = game.mixed_log(600)
    assert {messages[-1]["role"] for messages in log} == {"tool"}
    won = 0
    for messages in log:
        calls = [one["tool_calls"][0]["function"]["arguments"]["action"] for one in messages if "tool_calls" in one]
        shown = [messages[0]["content"].split()[-1], *(one["content"] for one in messages if one["role"] == "tool")]
        won += int(calls[-1]) == int(shown[-2])
    # 600 draws: standard error 0.02.
    assert won / len(log) == pytest.approx(0.34, abs=0.07)


def test_splits_share_no_game_and_every_start_can_be_won() -> None:
    seeds = [task.seed for split in (game.train_tasks, game.validation_tasks, game.held_out_tasks) for task in split()]
    assert len(set(seeds)) == len(seeds)
    starts = {GAME(**OPTIONS).reset(task)[0]["content"].split()[-1] for task in game.train_tasks()[:100]}
    assert starts == {"5", "6", "7", "9", "10", "11", "13", "14", "15"}


@pytest.mark.parametrize("rule", ["data.contamination", "data.duplicates", "data.imbalance"])
def test_tasks_that_differ_by_their_seed_alone_and_answers_that_are_calls_are_no_defect(rule: str) -> None:
    recipe = Path(game.__file__).with_name("recipe.toml")
    assert list(asyncio.run(CHECKS[rule].function(Subject(load_config(recipe), recipe)))) == []  # type: ignore[arg-type]


def test_each_number_of_a_heap_is_one_token() -> None:
    model, tokenizer = tiny.build()
    assert model.num_parameters() < 1_000_000
    for number in range(16):
        assert len(tokenizer.encode(str(number), add_special_tokens=False)) == 1
