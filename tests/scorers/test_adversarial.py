"""The strict scorers at their default settings, on answers made to be scored wrongly, and on states of environments."""

import asyncio
import math
from typing import Any

import pytest

from sparring.protocols import Scorer
from sparring.sandbox import SqlDatabase
from sparring.scorers import (
    evaluate_score,
    exact_match,
    json_exact,
    numeric_match,
    set_match,
    sql_result,
    state_difference,
)
from sparring.types import Json, Outcome, Score, Task, Trajectory
from tests.scorers import adversarial as table


def scored(scorer: Scorer, answer: str, fields: dict[str, Json], **more: Any) -> Score:
    trajectory = Trajectory(
        id="t1-0",
        task=Task(id="t1", messages=(), fields=fields),
        attempt=0,
        turns=(),
        reward=None,
        score=None,
        **{"outcome": Outcome.FINISHED, "messages": ({"role": "assistant", "content": answer},), **more},
    )
    return asyncio.run(evaluate_score(scorer, trajectory))


def nested(levels: int) -> Json:
    value: Json = 1
    for _ in range(levels):
        value = [value]
    return value


def parts(_: Task) -> SqlDatabase:
    return SqlDatabase("CREATE TABLE parts (name, stock); INSERT INTO parts VALUES ('A1', 1), ('B1', 2), ('B2', 9);")


CASES = [
    pytest.param(scorer, {"answer": expected, "query": table.ROWS}, answer, verdict, id=f"{name}-{number}-{why}")
    for name, scorer, expected, rows in (
        ("json", json_exact(), table.JSON_FIELDS, table.JSON_ROWS),
        ("text", exact_match(), table.TEXT, table.TEXT_ROWS),
        ("number", numeric_match(tolerance=0.01), table.NUMBER, table.NUMBER_ROWS),
        ("set", set_match(), table.SET, table.SET_ROWS),
        ("sql", sql_result(parts), None, table.SQL_ROWS),
    )
    for number, (answer, verdict, why) in enumerate(rows)
]


@pytest.mark.parametrize(("scorer", "fields", "answer", "verdict"), CASES)
def test_each_answer_is_scored_as_a_person_would(
    scorer: Scorer, fields: dict[str, Json], answer: str, verdict: int
) -> None:
    assert scored(scorer, answer, fields).value == verdict


def test_the_table_is_as_large_as_is_claimed() -> None:
    answers = {(id(case.values[0]), case.values[2]) for case in CASES}
    assert len(answers) == len(CASES) >= 230


@pytest.mark.parametrize(
    ("state", "verdict", "denied"),
    [
        ({"orders": [{"id": 1, "sent": True}], "refunds": []}, 1, set()),
        ({"refunds": [], "orders": [{"sent": True, "id": 1.0}]}, 1, set()),
        ({"orders": [{"id": 1, "sent": 1}], "refunds": []}, 0, {"orders"}),
        ({"orders": [{"id": 1, "sent": True}]}, 0, {"refunds"}),
        ({"orders": [{"id": 1, "sent": True}], "refunds": [7]}, 0, {"refunds"}),
        ({"orders": [], "refunds": []}, 0, {"orders"}),
        ({"orders": [{"id": 1, "sent": True}] * 2, "refunds": []}, 0, {"orders"}),
        ({"orders": [{"id": 1, "sent": True}], "refunds": [], "deleted": ["users"]}, 0, {"deleted"}),
        ({"orders": [{"id": 1, "sent": True}], "refunds": None}, 0, {"refunds"}),
        ({}, 0, {"orders", "refunds"}),
    ],
)
def test_a_state_is_right_when_nothing_of_it_differs(state: dict[str, Json], verdict: int, denied: set[str]) -> None:
    score = scored(state_difference(), "I have sent it.", {"state": table.STATE}, final_state=state)
    assert score.value == verdict
    assert {name for name, value in score.parts.items() if name.startswith("state/") and value == 0} == {
        f"state/{name}" for name in denied
    }


def test_a_state_is_compared_without_what_is_ignored_and_must_be_recorded() -> None:
    state = {**table.STATE, "log": ["a"]}
    assert scored(state_difference(ignored=["log"]), "", {"state": table.STATE}, final_state=state).value == 1
    assert scored(state_difference(), "", {"state": table.STATE}, outcome=Outcome.POLICY_TIMEOUT).value == 0
    with pytest.raises(Exception, match="Define `final_state`"):
        scored(state_difference(), "", {"state": table.STATE})


@pytest.mark.parametrize("levels", [100, 400, 500, 600, 900, 5000])
def test_an_answer_that_is_nested_deeply_is_wrong_and_no_error(levels: int) -> None:
    deep = "[" * levels + "]" * levels
    assert scored(json_exact(), table.with_('"valid"', deep), {"answer": table.JSON_FIELDS}).value == 0
    assert scored(set_match(), table.tagged(f"[{deep}]"), {"answer": table.SET}).value == 0


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, 10**5000, nested(600)], ids=["inf", "-inf", "nan", "digits", "nested"]
)
def test_a_state_with_what_no_json_can_have_is_wrong_and_no_error(value: Json) -> None:
    score = scored(state_difference(), "", {"state": {"total": 8}}, final_state={"total": value})
    assert (score.value, score.parts["state/total"]) == (0, 0)


def test_a_message_that_calls_a_tool_is_no_answer() -> None:
    message = {"role": "assistant", "content": table.tagged(table.RIGHT), "tool_calls": [{"function": {"name": "get"}}]}
    assert scored(json_exact(), "", {"answer": table.JSON_FIELDS}, messages=(message,)).value == 0


def test_parts_say_which_fields_are_right_and_how_the_episode_went() -> None:
    calls = ({"tool": "get", "error": None}, {"tool": "get", "error": "bad_json"})
    answer = table.tagged(table.RIGHT.replace("valid", "invalid")[:-1] + ',"more":1}')
    score = scored(json_exact(), answer, {"answer": table.JSON_FIELDS}, outcome=Outcome.MAX_TURNS, transitions=calls)
    assert score.parts == {
        "field/status": 0,
        "field/count": 1,
        "field/ok": 1,
        "field/note": 1,
        "field/tags": 1,
        "field/ratio": 1,
        "format": 0,
        "completion": 0,
        "budget_exhausted": 1,
        "tool_use": 0.5,
    }
    found = scored(set_match(), table.tagged('["red","x"]'), {"answer": table.SET}).parts
    assert (found["precision"], found["recall"]) == (0.5, pytest.approx(1 / 3))


def test_a_relative_tolerance_is_a_share_of_the_right_number() -> None:
    scorer = numeric_match(tolerance=0.1, is_relative=True)
    fields = {"answer": -20}
    assert [scored(scorer, table.tagged(given), fields).value for given in ("-22", "-18", "-22.01", "20")] == [
        1,
        1,
        0,
        0,
    ]


def test_a_task_without_a_number_is_named() -> None:
    with pytest.raises(Exception, match=r"numeric_match_score.* raised ValueError"):
        scored(numeric_match(tolerance=0), table.tagged("1"), {"answer": "twelve"})
