"""What is shown next to the numbers of an evaluation."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sparring.errors import ServiceError
from sparring.evaluation.evaluation import Evaluation, Row, SuccessCriterion, summarize
from sparring.evaluation.report import EvaluationReport
from sparring.evaluation.tables import notes, outcome_table, result_table
from sparring.types import Outcome, Reward, Task, Trajectory, TrajectoryGroup

TASK = Task(id="t", messages=({"role": "user", "content": "?"},))
ROW = Row(
    name="tuned", label="tuned", split="held_out", policy_version=1, fingerprint="f", temperature=0.8, group_size=3
)
CRITERION = SuccessCriterion(scorer="s:score", independence="scorer", success_threshold=1.0)


def played(outcome: Outcome, attempt: int) -> Trajectory:
    score = float(outcome is Outcome.FINISHED)
    return Trajectory(
        id=f"{attempt}",
        task=TASK,
        attempt=attempt,
        turns=(),
        messages=({"role": "assistant", "content": ""},),
        outcome=outcome,
        reward=Reward(total=score),
        score=score,
    )


def test_episodes_that_were_not_done_in_time_are_counted_and_reported() -> None:
    # A policy that is right whenever it comes to its end, on a machine that was too busy for two of three.
    outcomes = (Outcome.FINISHED, Outcome.POLICY_TIMEOUT, Outcome.POLICY_TIMEOUT)
    group = TrajectoryGroup(task=TASK, trajectories=tuple(played(one, place) for place, one in enumerate(outcomes)))
    evaluation = summarize([group], ROW, criterion=CRITERION, seconds=1.0, prefix="eval")
    first, second = repr(EvaluationReport(evaluations=(evaluation,), comparisons=(), path=Path("e.json"))).splitlines()
    assert first == "<EvaluationReport e.json:"
    assert re.sub(r"\[.*?\]", "[]", second) == "  <Evaluation tuned (T 0.8): success 0.33 [], score 0.33 [], 1 task>>"
    assert evaluation.metrics["eval/policy_timeouts"] == 2.0
    (note,) = [one for one in notes([evaluation], []) if "in time" in one]
    assert "2 of 3 episodes of tuned" in note
    assert "rollout.rollout_timeout" in note


def test_nothing_is_reported_if_all_episodes_came_to_their_end() -> None:
    group = TrajectoryGroup(task=TASK, trajectories=(played(Outcome.FINISHED, 0), played(Outcome.MAX_TURNS, 1)))
    evaluation = summarize([group], ROW, criterion=CRITERION, seconds=1.0, prefix="eval")
    assert not [one for one in notes([evaluation], []) if "in time" in one]


def test_a_table_shows_next_to_success_how_episodes_ended_and_the_file_has_every_outcome() -> None:
    # Ten planned: one right, two wrong answers, three out of turns, one out of tokens, one error of its own, two lost.
    ended = [Outcome.FINISHED] * 3 + [Outcome.MAX_TURNS] * 3 + [Outcome.MAX_TOKENS, Outcome.POLICY_ERROR]
    episodes = [replace(played(outcome, place), score=float(place == 0)) for place, outcome in enumerate(ended)]
    group = TrajectoryGroup(task=TASK, trajectories=tuple(episodes), num_lost=2)
    evaluation = summarize([group], replace(ROW, group_size=10), criterion=CRITERION, seconds=1.0, prefix="eval")
    shares = {"finished": 0.3, "max_turns": 0.3, "max_tokens": 0.1, "policy_error": 0.1, "infrastructure_error": 0.2}
    found = {name: value for name, value in evaluation.metrics.items() if name.startswith("eval/outcome/")}
    assert found == {f"eval/outcome/{outcome}": pytest.approx(shares.get(outcome, 0.0)) for outcome in Outcome}
    assert Evaluation.from_json(evaluation.as_json()).outcomes == evaluation.outcomes
    _, columns, (row,) = outcome_table([evaluation])
    cells = dict(zip(columns, row, strict=True))
    # Completion is of the episodes that were not lost: 3 of 8.
    assert [cells[one] for one in ("success", "completion", "max_turns", "max_tokens", "policy_error", "lost")] == [
        "0.12",
        "37.5 %",
        "30 %",
        "10 %",
        "10 %",
        "20 %",
    ]


def test_a_table_of_an_older_file_leaves_out_how_episodes_ended() -> None:
    group = TrajectoryGroup(task=TASK, trajectories=(played(Outcome.MAX_TURNS, 0),))
    evaluation = summarize([group], ROW, criterion=CRITERION, seconds=1.0, prefix="eval")
    older = replace(evaluation, metrics={"eval/completion": 0.0})
    _, columns, (row,) = outcome_table([older])
    assert dict(zip(columns, row, strict=True))["max_turns"] == ""


def test_what_all_rows_have_in_common_is_stated_once_in_the_title() -> None:
    group = TrajectoryGroup(task=TASK, trajectories=(played(Outcome.FINISHED, 0),))
    served = summarize([group], replace(ROW, group_size=1), criterion=CRITERION, seconds=1.0, prefix="eval")
    greedy = summarize(
        [group], replace(ROW, group_size=1, temperature=0.0), criterion=CRITERION, seconds=1.0, prefix="eval"
    )
    title, columns, rows = result_table([served, served], title="held-out tasks")
    assert title.startswith("held-out tasks, T 0.8, 1 x 1 episodes, scored by s:score")
    assert columns == ["policy", "success", "score", "reward", "turns"]
    assert all(len(row) == len(columns) for row in rows)
    _, columns, rows = result_table([greedy, served], title="held-out tasks")
    assert columns == ["policy", "sampled", "success", "score", "reward", "turns"]
    assert [row[1] for row in rows] == ["greedy", "T 0.8"]


def test_requests_that_the_gateway_refused_are_counted_and_warned_of() -> None:
    trajectories = (played(Outcome.FINISHED, 0), played(Outcome.FINISHED, 1))
    group = TrajectoryGroup(
        task=TASK, trajectories=trajectories, num_lost=1, num_client_errors=1, refused={"unknown_parameter.depth": 2}
    )
    evaluation = summarize([group], ROW, criterion=CRITERION, seconds=1.0, prefix="eval")
    assert evaluation.metrics["eval/refused_requests"] == 2.0
    assert evaluation.metrics["eval/client_errors"] == 1.0
    (warning,) = [one for one in notes([evaluation], []) if one.startswith("warning")]
    assert "unknown_parameter.depth (2)" in warning
    unrewarded = summarize(
        [replace(group, num_lost=4, num_unrewarded=2)], ROW, criterion=CRITERION, seconds=1.0, prefix="eval"
    )
    (note,) = [one for one in notes([unrewarded], []) if "were lost" in one]
    assert (
        "1 because of infrastructure, 1 because the gateway refused their client's requests, 2 because the agent returned "
        "no reward" in note
    )
    lost = replace(group, trajectories=(), num_lost=3, num_client_errors=3)
    with pytest.raises(ServiceError, match=r"refused requests of their client: unknown_parameter\.depth"):
        summarize([lost], ROW, criterion=CRITERION, seconds=1.0, prefix="eval")
