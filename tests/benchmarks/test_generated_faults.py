"""The generator of faults: its split is fixed, each cell is a recipe that loads, and right means the right direction."""

import hashlib
import tomllib
from dataclasses import replace

import pytest

from benchmarks.diagnosis import planted
from benchmarks.diagnosis.faults import RECIPES, Cell, cells
from benchmarks.diagnosis.generator import SMOKE, Outcome
from sparring.config import validate
from sparring.diagnosis.diagnose import Diagnosis
from sparring.findings import Finding, Severity
from sparring.types import Outcome as Ended
from sparring.types import Reward, Task, Trajectory

CELLS = {one.name: one for one in cells()}


def found(rule: str | None, **settings: float) -> Diagnosis:
    finding = Finding(
        rule=rule or "", severity=Severity.ERROR, symptom="s", evidence={}, change="c", confirm="c", settings=settings
    )
    return Diagnosis(
        run="r",
        step=1,
        state="fine" if rule is None else "change",
        headline="h",
        findings=() if rule is None else (finding,),
        silenced=(),
        past=(),
        course={},
    )


def is_right(name: str, rule: str | None, **settings: float) -> bool:
    cell: Cell = CELLS[name]
    return Outcome(cell=cell, found=found(rule, **settings)).is_right


def test_the_half_that_is_held_back_is_the_one_that_was_drawn_before_the_rules() -> None:
    held_back = sorted(one.name for one in CELLS.values() if one.half == "held_back")
    kinds = {one.fault.kind for one in CELLS.values() if one.half == "held_back" and one.is_broken}
    assert (len(CELLS), len(held_back), len(kinds)) == (172, 86, 17)
    assert hashlib.sha256("\n".join(held_back).encode()).hexdigest()[:16] == "11cda831a1d521cf"
    assert set(SMOKE) <= set(CELLS)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_cell_is_a_recipe_that_loads(recipe: str) -> None:
    tables = tomllib.loads((RECIPES[recipe] / "recipe.toml").read_text("utf-8"))
    del tables["warm_start"]
    for cell in CELLS.values():
        if cell.recipe == recipe:
            validate(tables, cell.overrides)


def test_a_change_is_right_by_its_key_and_its_direction_and_words_by_their_rule() -> None:
    lower = {"optimizer.learning_rate": 5e-4}
    assert is_right("rate_high-x100-number_guess", "optimizer.updates_too_large", **lower)
    assert not is_right("rate_high-x100-number_guess", "stall.nothing_moves", **{"optimizer.learning_rate": 1.0})
    assert not is_right("rate_high-x100-number_guess", "optimizer.updates_too_large")
    assert not is_right("rate_low-x0.01-number_guess", "stall.collapse", **{"optimizer.learning_rate": 1e-7})
    assert not is_right("frozen-eps-number_guess", "stall.nothing_moves", **{"optimizer.learning_rate": 1.0})
    assert is_right("frozen-eps-number_guess", "stall.nothing_moves", **{"optimizer.adam_eps": 1e-8})
    assert is_right("reward_constant-1-number_guess", "reward.constant")
    assert not is_right("reward_constant-1-number_guess", "stall.flat_from_start")
    assert not is_right("reward_constant-1-number_guess", None)
    assert is_right("healthy-seed-1-number_guess", None)
    assert not is_right("healthy-seed-1-number_guess", "answers.length_drift")


def episode(task: str, text: str) -> Trajectory:
    """Of a recipe that pays for saying the answer, which is `a`."""
    return Trajectory(
        id=f"train/1/{task}/0.0",
        task=Task(id=task, messages=(), fields={"answer": "a"}),
        turns=(),
        outcome=Ended.FINISHED,
        attempt=0,
        reward=None,
        score=None,
        messages=({"role": "assistant", "content": text},),
    )


class Recipe:
    """Its environment.py."""

    @staticmethod
    def reward(trajectory: Trajectory) -> Reward:
        is_right = trajectory.messages[-1].get("content") == trajectory.task.fields["answer"]
        return Reward(total=float(is_right), components={})


def test_planted_rewards_are_wrong_for_the_share_of_tasks_that_their_name_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planted, "_own", lambda: Recipe)
    right = [episode(f"t-{number}", "a") for number in range(400)]
    for name, low, high in (
        ("labels_wrong_50", 0.4, 0.6),
        ("labels_wrong_100", 0.0, 0.0),
        ("contradicts_50", 0.4, 0.6),
    ):
        paid = sum(getattr(planted, name)(one) for one in right) / len(right)
        assert low <= paid <= high, name
    wrong = [replace(one, messages=({"role": "assistant", "content": "z"},)) for one in right]
    assert 0.4 <= sum(map(planted.contradicts(0.5), wrong)) / len(wrong) <= 0.6
    assert {planted.constant(1.0)(one) for one in (*right, *wrong)} == {1.0}
    with pytest.raises(AttributeError):
        _ = planted.no_such_fault_50
