"""Reward and scorer on the same episodes: counts, ranks, and what is at fault where they differ."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.evaluation.agreement import Agreement, agreement
from sparring.types import Outcome, Reward, Task, Trajectory


def episode(
    reward: float | None,
    score: float | None,
    *,
    id: str = "",
    task: str = "t",
    components: Mapping[str, float] = {},
    parts: Mapping[str, float] = {},
    text: str = "",
    outcome: Outcome = Outcome.FINISHED,
) -> Trajectory:
    return Trajectory(
        id=id or f"{task}-{reward}-{score}",
        task=Task(id=task, messages=()),
        attempt=0,
        turns=(),
        messages=({"role": "assistant", "content": text},),
        outcome=outcome,
        reward=None if reward is None else Reward(total=reward, components=components),
        score=score,
        score_parts=parts,
    )


def compared(*episodes: Trajectory) -> Agreement:
    return agreement(episodes, success_threshold=1.0)


def counts(found: Agreement) -> tuple[int, int, int, int]:
    return found.both_right, found.both_wrong, found.paid_wrong, found.unpaid_right


def test_partial_credit_for_a_wrong_answer_is_no_disagreement() -> None:
    found = compared(episode(1.0, 1.0), episode(0.7, 0.0), episode(0.0, 0.0))
    assert counts(found) == (1, 2, 0, 0)
    assert (found.share, found.num_pairs, found.num_inverted) == (1.0, 2, 0)


def test_a_wrong_answer_paid_like_a_right_one_is_one_and_so_is_a_right_one_paid_less_than_a_wrong_one() -> None:
    found = compared(episode(1.0, 1.0), episode(1.0, 0.0), episode(0.2, 1.0), episode(0.2, 0.0))
    # Pairs of different scores: four. (1, 0.2) is in order; equal rewards and (0.2, 1) are not.
    assert counts(found) == (1, 1, 1, 1)
    assert (found.num_pairs, found.num_inverted) == (4, 3)
    assert [one.kind for one in found.disagreements] == ["paid_wrong", "unpaid_right"]
    assert "which is wrong, earned 1;" in found.disagreements[1].fault


def test_a_right_answer_that_costs_steps_is_right_all_the_same() -> None:
    found = compared(episode(0.95, 1.0), episode(0.9, 1.0), episode(0.1, 0.0), episode(0.93, 0.0, task="u"))
    assert counts(found) == (2, 2, 0, 0)
    # No right answer earns 1: the best of them sets from where on a wrong one is paid like it.
    assert found.paid_from == 0.95
    assert counts(compared(episode(0.95, 1.0), episode(0.95, 0.0), episode(0.1, 0.0))) == (1, 1, 1, 0)


def test_right_answers_that_earn_nothing_are_unpaid_though_no_wrong_one_is_there() -> None:
    found = compared(*(episode(0.0, 1.0, id=str(i)) for i in range(6)))
    assert counts(found) == (0, 0, 0, 6)
    assert (found.share, found.paid_from) == (0.0, 1.0)
    assert counts(compared(episode(0.95, 1.0), episode(0.9, 1.0), episode(0.0, 1.0))) == (2, 0, 0, 1)
    # A reward of penalties orders them: 0 is its best, and wrong ones earn less.
    assert counts(compared(*(episode(0.0, 1.0, id=str(i)) for i in range(5)), episode(-1.0, 0.0))) == (5, 1, 0, 0)


def test_a_reward_that_reads_another_tag_than_the_scorer_is_seen_from_both_sides() -> None:
    read = episode(
        1.0, 0.0, text="<final_response>{}</final_response>", components={"format": 0.1}, parts={"format": 0.0}
    )
    unread = episode(
        0.0, 1.0, text="<final_output>{}</final_output>", components={"format": 0.0}, parts={"format": 1.0}
    )
    found = compared(read, unread)
    assert counts(found) == (0, 0, 1, 1)
    assert found.rank_correlation == pytest.approx(-1.0)
    assert found.culprits == {"component format": 2, "tag final_response": 1}
    assert "<final_response> x1" in found.disagreements[0].fault


def test_components_and_parts_are_named_by_field() -> None:
    wrong = episode(
        1.0, 0.0, components={"part": 0.5, "grade": 0.5}, parts={"field/part": 1.0, "field/grade": 0.0, "tool_use": 0.5}
    )
    (one,) = compared(wrong).disagreements
    assert one.culprits == ("component grade",)
    assert one.fault == "the reward pays for grade (0.5); the scorer denies field/grade (0)"
    (cut,) = compared(episode(1.0, 0.0, outcome=Outcome.MAX_TURNS)).disagreements
    assert "ended as max_turns" in cut.fault
    assert "return a Reward with components and a Score with parts" in cut.fault


def test_rank_correlation_is_spearmans_with_mean_ranks_for_ties() -> None:
    # Ranks of rewards 1, 2.5, 2.5, 4 and of scores 1.5, 1.5, 3.5, 3.5 (from 1): products 3, squares 4.5 and 4.
    found = compared(episode(0.1, 0.0), episode(0.5, 0.0), episode(0.5, 1.0), episode(0.9, 1.0))
    assert found.rank_correlation == pytest.approx(3 / (4.5 * 4) ** 0.5)
    assert compared(episode(0.5, 0.0), episode(0.5, 1.0)).rank_correlation is None


def test_without_a_scorer_there_is_nothing_to_compare() -> None:
    found = compared(episode(1.0, None), episode(None, 1.0))
    assert (found.num, found.share, found.metrics()) == (0, None, {})
    assert "no episode has both" in found.summary()


def test_the_summary_and_the_metrics_are_shares_of_the_same_counts() -> None:
    found = compared(episode(1.0, 1.0), episode(1.0, 0.0), episode(0.0, 0.0), episode(0.0, 0.0))
    assert found.summary() == (
        "reward and scorer agree on 3 of 4 episodes (75%): 1 wrong but paid, 0 right but unpaid; 1 of 3 pairs inverted"
    )
    metrics = found.metrics()
    assert (metrics["share"], metrics["paid_wrong"], metrics["inverted_pairs"]) == (0.75, 0.25, pytest.approx(1 / 3))
    stored: Any = found.as_json()
    assert stored["disagreements"][0]["trajectory_id"] == "t-1.0-0.0"


VALUES = st.sampled_from([-1.0, 0.0, 0.3, 1.0, 1.2])


@given(st.lists(st.tuples(VALUES, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from("ab"))))
def test_every_episode_is_counted_once_and_each_disagreement_is_listed(cases: list[tuple[float, float, str]]) -> None:
    found = compared(*(episode(r, s, task=task, id=str(i)) for i, (r, s, task) in enumerate(cases)))
    assert found.num == len(cases)
    assert len(found.disagreements) == found.paid_wrong + found.unpaid_right
    right = {str(i) for i, (_, s, _) in enumerate(cases) if s >= 1}
    assert all((one.trajectory_id in right) == (one.kind == "unpaid_right") for one in found.disagreements)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from("ab")), min_size=1))
def test_a_reward_that_is_the_score_never_disagrees(cases: list[tuple[float, str]]) -> None:
    found = compared(*(episode(score, score, task=task) for score, task in cases))
    assert (found.share, found.num_inverted) == (1.0, 0)
