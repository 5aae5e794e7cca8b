"""A scorer is independent when no function of the recipe's own decides for both."""

import functools
import json
from dataclasses import dataclass
from typing import Any

import pytest

from sparring.evaluation.independence import independence, shared_code
from sparring.rewards import json_fields
from sparring.runtime.plugins import load_object
from sparring.scorers import fenced_code, json_exact, unit_tests
from sparring.types import Trajectory


def parsed(trajectory: Trajectory) -> Any:
    return json.loads(trajectory.messages[-1]["content"])


def reward(trajectory: Trajectory) -> float:
    return float(parsed(trajectory) == trajectory.task.fields["answer"])


def same_parser(trajectory: Trajectory) -> float:
    return float(parsed(trajectory)["part"] == trajectory.task.fields["answer"]["part"])


def own_parser(trajectory: Trajectory) -> float:
    return float(json.loads(trajectory.messages[-1]["content"]) == trajectory.task.fields["answer"])


def through_another(trajectory: Trajectory) -> float:
    return one_below(trajectory)


def one_below(trajectory: Trajectory) -> float:
    return float(any(parsed(one) for one in [trajectory]))


@dataclass
class Limits:
    """Data that both may use."""

    most: int = 3


class Judge:
    """A reward and scorers that are methods of one object."""

    def __init__(self) -> None:
        self.limits = Limits()

    def reward(self, trajectory: Trajectory) -> float:
        return float(self.is_short(trajectory) and Limits().most > 2)

    def scorer(self, trajectory: Trajectory) -> float:
        return float(len(trajectory.messages) == 3 and Limits().most > 2)

    def short_scorer(self, trajectory: Trajectory) -> float:
        return float(self.is_short(trajectory))

    def is_short(self, trajectory: Trajectory) -> bool:
        return len(trajectory.messages) < self.limits.most

    __call__ = short_scorer


def closed_over(function: Any) -> Any:
    def scorer(trajectory: Trajectory) -> float:
        return float(function(trajectory) == 1)

    return scorer


JUDGE = Judge()
SHARED = "shares code with the reward"


@pytest.mark.parametrize(
    ("reward_function", "scorer", "expected"),
    [
        (reward, None, "none"),
        (None, own_parser, "scorer"),
        (reward, own_parser, "scorer"),
        (json_fields(), json_exact(), "scorer"),
        (JUDGE.reward, JUDGE.scorer, "scorer"),
        (unit_tests(partial=True), json_exact(), "scorer"),
        (reward, reward, SHARED),
        (reward, same_parser, SHARED),
        (reward, through_another, SHARED),
        (reward, lambda trajectory: 1 - parsed(trajectory), SHARED),
        (reward, closed_over(reward), SHARED),
        (reward, functools.partial(closed_over, reward)(), SHARED),
        (json_exact("a"), json_exact("b"), SHARED),
        (unit_tests(partial=True), unit_tests(fenced_code("py")), SHARED),
        (JUDGE.reward, JUDGE.short_scorer, SHARED),
        (JUDGE.reward, JUDGE, SHARED),
    ],
)
def test_a_scorer_shares_code_when_a_function_of_the_recipe_decides_for_both(
    reward_function: Any, scorer: Any, expected: str
) -> None:
    assert independence(reward_function, scorer) == expected


def test_shared_functions_are_named() -> None:
    assert shared_code(reward, same_parser) == (f"{__name__}.parsed",)


def test_a_module_of_the_recipe_is_followed_and_installed_ones_are_not(tmp_path: Any) -> None:
    (tmp_path / "rules.py").write_text("import orjson\ndef rule(text):\n    return orjson.loads(text) == 1\n", "utf-8")
    (tmp_path / "graders.py").write_text(
        "import orjson\nimport rules\n"
        "def reward(t):\n    return float(rules.rule(t.error))\n"
        "def scorer(t):\n    return float(rules.rule(t.error))\n"
        "def other(t):\n    return float(orjson.loads(t.error) == 1)\n",
        "utf-8",
    )
    found = {name: load_object(f"graders:{name}", folder=tmp_path) for name in ("reward", "scorer", "other")}
    assert independence(found["reward"], found["scorer"]) == SHARED
    assert independence(found["reward"], found["other"]) == "scorer"
