"""What is said beside the numbers of an evaluation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparring.errors import ServiceError
from sparring.evaluation.evaluation import Judge, Row, summarize
from sparring.evaluation.tables import notes, result_table
from sparring.types import Outcome, Reward, Task, Trajectory, TrajectoryGroup

TASK = Task(id="t", messages=({"role": "user", "content": "?"},))
ROW = Row(
    name="tuned", label="tuned", split="held_out", policy_version=1, fingerprint="f", temperature=0.8, group_size=3
)
JUDGE = Judge(scorer="s:score", independence="scorer", success_threshold=1.0)


def played(outcome: Outcome, attempt: int) -> Trajectory:
    score = float(outcome is Outcome.FINISHED)
    return Trajectory(
        id=f"{attempt}", task=TASK, attempt=attempt, turns=(), messages=({"role": "assistant", "content": ""},), outcome=outcome,
        reward=Reward(total=score), score=score,
    )  # fmt: skip


def test_episodes_that_were_not_done_in_time_are_counted_and_told() -> None:
    # A policy that is right whenever it comes to its end, on a machine that was too busy for two of three.
    outcomes = (Outcome.FINISHED, Outcome.POLICY_TIMEOUT, Outcome.POLICY_TIMEOUT)
    group = TrajectoryGroup(task=TASK, trajectories=tuple(played(one, place) for place, one in enumerate(outcomes)))
    evaluation = summarize([group], ROW, judge=JUDGE, seconds=1.0, prefix="eval")
    assert evaluation.metrics["eval/policy_timeouts"] == 2.0
    (note,) = [one for one in notes([evaluation], []) if "in time" in one]
    assert "2 of 3 episodes of tuned" in note
    assert "rollout.rollout_timeout" in note


def test_nothing_is_said_of_episodes_that_all_came_to_their_end() -> None:
    group = TrajectoryGroup(task=TASK, trajectories=(played(Outcome.FINISHED, 0), played(Outcome.MAX_TURNS, 1)))
    evaluation = summarize([group], ROW, judge=JUDGE, seconds=1.0, prefix="eval")
    assert not [one for one in notes([evaluation], []) if "in time" in one]


def test_what_all_rows_have_in_common_is_said_once_in_the_title() -> None:
    group = TrajectoryGroup(task=TASK, trajectories=(played(Outcome.FINISHED, 0),))
    served = summarize([group], replace(ROW, group_size=1), judge=JUDGE, seconds=1.0, prefix="eval")
    greedy = summarize([group], replace(ROW, group_size=1, temperature=0.0), judge=JUDGE, seconds=1.0, prefix="eval")
    title, columns, rows = result_table([served, served], title="held-out tasks")
    assert title.startswith("held-out tasks, T 0.8, 1 x 1 episodes, judged by s:score")
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
    evaluation = summarize([group], ROW, judge=JUDGE, seconds=1.0, prefix="eval")
    assert evaluation.metrics["eval/refused_requests"] == 2.0
    assert evaluation.metrics["eval/client_errors"] == 1.0
    (warning,) = [one for one in notes([evaluation], []) if one.startswith("warning")]
    assert "unknown_parameter.depth (2)" in warning
    unrewarded = summarize([replace(group, num_lost=4, num_unrewarded=2)], ROW, judge=JUDGE, seconds=1.0, prefix="eval")
    (note,) = [one for one in notes([unrewarded], []) if "were lost" in one]
    assert (
        "1 to infrastructure, 1 since the gateway refused what their client sent, 2 since the agent gave no reward"
        in note
    )
    lost = replace(group, trajectories=(), num_lost=3, num_client_errors=3)
    with pytest.raises(ServiceError, match=r"refused what their client sent: unknown_parameter\.depth"):
        summarize([lost], ROW, judge=JUDGE, seconds=1.0, prefix="eval")
