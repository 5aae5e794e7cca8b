"""The numbers of a step say what its turns were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparring.rollouts.metrics import rollout_metrics
from sparring.types import Outcome, Reward, Sampling, StopReason, Task, Trajectory, TrajectoryGroup, Turn

TURN = Turn(
    id=0, parent=None, branch_reason=None, prompt_ids=(1,), token_ids=(2,), sampled_logprobs=(-1.0,), versions=((0, 1),),
    fingerprint="f", stop_reason=StopReason.STOP, sampling=Sampling(), message={"role": "assistant", "content": ""},
    num_computed_tokens=2, seconds=0.1,
)  # fmt: skip
TASK = Task(id="t", messages=())


def metrics(*turns: Turn) -> Any:
    trajectory = Trajectory(
        id="a",
        task=TASK,
        attempt=0,
        turns=turns,
        messages=(),
        outcome=Outcome.FINISHED,
        reward=Reward(total=1.0),
        score=None,
    )
    group = TrajectoryGroup(task=TASK, trajectories=(trajectory,))
    return rollout_metrics([group], {"a": (0.0,) * len(turns)}, version=0)


def test_turns_that_are_not_trained_are_counted_and_those_that_a_grammar_overruled_among_them() -> None:
    greedy = replace(TURN, id=1, sampling=Sampling(temperature=0.0))
    overruled = replace(TURN, id=2, removed_mass=0.002)
    followed = replace(TURN, id=3, removed_mass=0.0005)
    found = metrics(TURN, greedy, overruled, followed)
    assert found["rollout/untrained_turns"] == pytest.approx(0.5)
    assert found["rollout/overruled_turns"] == pytest.approx(0.25)


def test_what_a_changed_history_has_rendered_again_is_counted_and_who_changed_it() -> None:
    first = replace(TURN, prompt_ids=(1, 2), token_ids=(3, 4, 5), client="a")
    # The answer 3 4 5 came back as 3 9 5: two of its tokens are rendered again, 6 is new.
    changed = replace(
        TURN, id=1, branch_reason="edited_history: message 1", prompt_ids=(1, 2, 3, 9, 5, 6), token_ids=(7,), client="b"
    )
    repeated = replace(TURN, id=2, branch_reason="repeated", prompt_ids=(1, 2), client="b")
    aside = replace(TURN, id=3, branch_reason="side_request", prompt_ids=(8, 8), client="b")
    found = metrics(first, changed, repeated, aside)
    assert found["rollout/tokens/played_again"] == 2
    assert {name: value for name, value in found.items() if name.startswith("rollout/clients/")} == {
        "rollout/clients/b/breaks/edited_history": 0.25,
        "rollout/clients/b/breaks/repeated": 0.25,
    }
    assert (
        metrics(first, replace(changed, branch_reason="compacted: 1 of 2 messages"))["rollout/tokens/played_again"] == 0
    )


def test_a_sub_score_is_the_mean_over_the_episodes_that_have_it() -> None:
    parts = ({"format": 1.0, "b": 0.25}, {"format": 0.0}, {})
    trajectories = tuple(
        Trajectory(
            id=str(index),
            task=TASK,
            attempt=index,
            turns=(TURN,),
            messages=(),
            outcome=Outcome.FINISHED,
            reward=Reward(total=1.0),
            score=0.5,
            score_parts=part,
        )
        for index, part in enumerate(parts)
    )
    group = TrajectoryGroup(task=TASK, trajectories=trajectories)
    found = rollout_metrics([group], {t.id: (0.0,) for t in trajectories}, version=0)
    shown = {name: value for name, value in found.items() if name.startswith("rollout/score/")}
    assert shown == {"rollout/score/mean": 0.5, "rollout/score/parts/b": 0.25, "rollout/score/parts/format": 0.5}
