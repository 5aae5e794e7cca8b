"""The strict scorer: everything must be right, and it shares no code with the rewards."""

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparring.rewards.rules
import sparring.scorers.strict
from sparring.scorers import evaluate_score, json_exact
from sparring.types import Outcome, Task, Trajectory

ANSWER = {"part": "B12", "count": 2, "ok": True, "list": [1, {"a": None}]}
RIGHT = '{"part":"B12","count":2,"ok":true,"list":[1,{"a":null}]}'


def trajectory(*messages: dict[str, Any]) -> Trajectory:
    return Trajectory(
        id="t1-0",
        task=Task(id="t1", messages=(), fields={"answer": ANSWER}),
        attempt=0,
        turns=(),
        messages=messages,
        outcome=Outcome.FINISHED,
        reward=None,
        score=None,
    )


def score(text: str) -> float:
    return asyncio.run(evaluate_score(json_exact(), trajectory({"role": "assistant", "content": text}))).value


@pytest.mark.parametrize(
    "text",
    [
        f"<final_output>{RIGHT}</final_output>",
        f"I am done.\n<final_output>\n{RIGHT}\n</final_output> Bye.",
        '<final_output>{"list":[1.0,{"a":null}], "ok":true, "count":2.0, "part":"B12"}</final_output>',
    ],
)
def test_a_right_answer_scores_1_in_any_spelling_of_the_same_json(text: str) -> None:
    assert score(text) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        RIGHT,
        f"<final_output>{RIGHT}",
        f"</final_output>{RIGHT}<final_output>",
        f"<final_output>{RIGHT}</final_output><final_output>{RIGHT}</final_output>",
        f"<final_output><final_output>{RIGHT}</final_output>",
        f"<final_output>[{RIGHT}]</final_output>",
        "<final_output>" + RIGHT[:-1] + ',"more":1}</final_output>',
        "<final_output>" + RIGHT[:-1] + ',"count":2}</final_output>',
        f"<final_output>{RIGHT.replace('true', '1')}</final_output>",
        f"<final_output>{RIGHT.replace('2,', 'NaN,')}</final_output>",
        f"<final_output>{RIGHT.replace('B12', 'b12')}</final_output>",
        f"<final_output>{RIGHT.replace('B12', 'B12 ')}</final_output>",
        "<final_output>" + RIGHT.replace(',"ok":true', "") + "</final_output>",
        "<final_output>" + "[" * 100_000 + "</final_output>",
    ],
)
def test_anything_else_scores_0(text: str) -> None:
    assert score(text) == 0.0


def test_an_answer_that_is_not_the_assistants_last_word_scores_0() -> None:
    right = f"<final_output>{RIGHT}</final_output>"
    earlier = trajectory({"role": "assistant", "content": right}, {"role": "tool", "content": "x"})
    assert asyncio.run(evaluate_score(json_exact(), earlier)).value == 0.0
    assert asyncio.run(evaluate_score(json_exact(), trajectory({"role": "tool", "content": right}))).value == 0.0
    assert asyncio.run(evaluate_score(json_exact(), trajectory())).value == 0.0


@given(st.text())
def test_no_text_makes_it_fail(text: str) -> None:
    assert score(f"<final_output>{text}</final_output>") == 0.0


@pytest.mark.parametrize(
    ("module", "forbidden"), [(sparring.scorers.strict, "rewards"), (sparring.rewards.rules, "scorers")]
)
def test_rewards_and_scorers_do_not_import_each_other(module: Any, forbidden: str) -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert imported
    assert not any(forbidden in name for name in imported)
