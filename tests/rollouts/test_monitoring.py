"""Numbers about play that are watched rather than learned from, each derived by hand."""

from dataclasses import replace
from typing import Any

import pytest

from sparring.engines.load import Load
from sparring.ledger import DiscardReason
from sparring.metering.prices import usage_metrics
from sparring.rollouts.actions import StateVisits, action_metrics
from sparring.rollouts.metrics import quantile, rollout_metrics
from sparring.rollouts.tally import AttemptCounts
from sparring.types import Reward, StopReason, Trajectory, TrajectoryGroup
from tests.tracking.builders import TASK, TRAJECTORY, TURN

CALL = {"id": "a", "function": {"name": "get", "arguments": "{}"}}


def of(*trajectories: Trajectory, advantages: float = 0.0, version: int = 4) -> Any:
    numbered = [replace(one, id=str(index)) for index, one in enumerate(trajectories)]
    group = TrajectoryGroup(task=TASK, trajectories=tuple(numbered))
    return rollout_metrics([group], {one.id: (advantages,) * len(one.turns) for one in numbered}, version=version)


def test_a_quantile_is_the_smallest_value_that_enough_do_not_exceed() -> None:
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.99) == 4.0
    assert quantile([5.0], 0.5) == 5.0


def test_an_episodes_time_is_its_policy_calls_and_the_rest() -> None:
    turns = (replace(TURN, seconds=1.0), replace(TURN, id=1, parent=0, seconds=3.0))
    found = of(replace(TRAJECTORY, turns=turns, seconds=10.0), replace(TRAJECTORY, turns=turns[:1], seconds=2.0))
    names = ("mean", "max", "policy", "environment")
    # policy (4 + 1) / 2; the rest (6 + 1) / 2
    assert [found[f"timing_s/episode/{name}"] for name in names] == [6.0, 10.0, 2.5, 3.5]
    assert (found["timing_s/turn/p50"], found["timing_s/turn/p99"]) == (1.0, 3.0)


def test_trained_tokens_are_counted_by_how_old_they_are() -> None:
    old = replace(TURN, token_ids=(4, 5, 6), sampled_logprobs=(-1.0,) * 3, versions=((2, 1), (3, 2)))
    untrained = replace(TURN, id=1, versions=((0, 2),), is_received=False)
    # TURN has one token of version 3 and one of version 4; `old` one of 2 and two of 3; trained is version 4
    found = of(replace(TRAJECTORY, turns=(TURN,)), replace(TRAJECTORY, turns=(old, untrained)))
    shares = {name: value for name, value in found.items() if name.startswith("training/staleness/")}
    assert shares == {"training/staleness/0": 0.2, "training/staleness/1": 0.6, "training/staleness/2": 0.2}


def test_tokens_that_were_not_computed_again_are_the_hits_of_the_cache() -> None:
    # prompts of 3 and 8 tokens, 2 sampled each; computed 5 (all) and 4 (2 of the prompt): 6 of 15 were cached
    second = replace(TURN, id=1, parent=0, prompt_ids=tuple(range(8)), num_computed_tokens=4)
    assert of(replace(TRAJECTORY, turns=(TURN, second)))["rollout/tokens/cached_share"] == pytest.approx(6 / 15)


def test_computed_tokens_are_compared_with_the_different_histories_of_each_version() -> None:
    turn = replace(TURN, prompt_ids=(1, 2), token_ids=(3, 4), versions=((3, 2),), num_computed_tokens=3)
    other = replace(turn, token_ids=(3, 5), num_computed_tokens=1)
    later = replace(turn, versions=((4, 2),))
    found = of(*(replace(TRAJECTORY, turns=(one,)) for one in (turn, other, later)))
    # 1 2 3 4 and the 5 with version 3, 1 2 3 4 with version 4; 3 + 1 + 3 tokens were computed
    assert found["rollout/tokens/distinct"] == 9
    assert found["rollout/tokens/computed_per_distinct"] == pytest.approx(7 / 9)


def test_tokens_of_the_policy_and_of_the_environment_are_counted_separately() -> None:
    second = replace(TURN, id=1, parent=0, prompt_ids=tuple(range(8)))
    found = of(replace(TRAJECTORY, turns=(TURN, second)))
    # 2 + 2 sampled; the conversation is the last prompt of 8 and its answer of 2
    assert (found["training/action_tokens_mean"], found["training/obs_tokens_mean"]) == (4.0, 6.0)


def test_truncated_episodes_have_a_turn_that_was_cut() -> None:
    cut = replace(TURN, stop_reason=StopReason.LENGTH)
    again = replace(TURN, id=1, parent=0)
    found = of(replace(TRAJECTORY, turns=(cut, again)), replace(TRAJECTORY, turns=(TURN, again)))
    assert (found["rollout/truncated_episodes"], found["rollout/truncated_turns"]) == (0.5, 0.25)


def test_rewards_of_turns_are_the_mean_at_each_place() -> None:
    turns = (TURN, replace(TURN, id=1, parent=0))
    rewards = (Reward(total=1.0, per_turn={0: 0.25, 1: 0.75}), Reward(total=0.5, per_turn={1: 0.5}), Reward(total=9.0))
    found = of(*(replace(TRAJECTORY, turns=turns, reward=reward) for reward in rewards))
    shown = {name: value for name, value in found.items() if name.startswith("rollout/reward/turn/")}
    assert shown == {"rollout/reward/turn/0": 0.125, "rollout/reward/turn/1": 0.625}


def test_log_probabilities_estimate_the_entropy_and_advantages_are_counted_by_sign() -> None:
    found = of(replace(TRAJECTORY, turns=(TURN,)), advantages=-1.0)
    assert found["rollout/logprob/entropy"] == pytest.approx(0.375)  # -(-0.5 - 0.25) / 2
    assert (found["rollout/advantage/n_positive"], found["rollout/advantage/n_negative"]) == (0.0, 1.0)
    assert found["rollout/logprob/zero_per_group"] == 0.0


def test_calls_and_errors_are_counted_by_tool_and_invented_tools_are_none() -> None:
    log = (
        {"tool": "get", "error": None},
        {"tool": "get", "error": "wrong_type"},
        {"tool": "teleport", "error": "unknown_tool"},
    )
    found = action_metrics([replace(TRAJECTORY, transitions=log), replace(TRAJECTORY, transitions=log[:1])])
    shown = {name: value for name, value in found.items() if name.startswith("rollout/tools/")}
    assert shown == {"rollout/tools/get/calls": 1.5, "rollout/tools/get/errors": 0.5}


def test_turns_are_distinguished_by_the_form_of_their_answer() -> None:
    messages = (
        {"tool_calls": [CALL]},
        {"tool_calls": [CALL], "malformed_tool_calls": [{"problem": "not_json"}]},
        {"content": "4"},
        {"content": "5"},
    )
    turns = tuple(replace(TURN, id=place, message=message) for place, message in enumerate(messages))
    found = action_metrics([replace(TRAJECTORY, turns=turns, transitions=())])
    assert found == {"rollout/format/called": 0.25, "rollout/format/malformed": 0.25, "rollout/format/text": 0.5}


def test_states_are_new_once_and_distinct_by_task_and_answer() -> None:
    visits = StateVisits()
    first = replace(TRAJECTORY, transitions=({"tool": "get", "result": 1}, {"tool": "get", "result": 2}))
    names = ("rollout/states/distinct", "rollout/states/new")
    assert visits.metrics([first, first]) == dict(zip(names, (2.0, 2.0), strict=True))
    other = replace(first, task=replace(TASK, id="t2"), transitions=first.transitions[:1])
    assert visits.metrics([first, other]) == dict(zip(names, (3.0, 1.0), strict=True))
    assert visits.metrics([replace(first, transitions=())]) == {}


def test_a_tally_gives_counts_by_reason_and_mean_waits_and_begins_anew() -> None:
    tally = AttemptCounts()
    for again in (False, False, True, True):
        tally.attempted(again=again)
    tally.discarded(DiscardReason.INFRA_ERROR)
    tally.discarded(DiscardReason.GROUP_INCOMPLETE)
    tally.waited("reward", 2.0)
    found = tally.take()
    assert (found["rollout/attempts"], found["rollout/retries"], found["rollout/failed_attempts"]) == (4.0, 2.0, 1.0)
    assert found["rollout/discarded/group_incomplete"] == 1.0
    assert (found["timing_s/episode/reward"], found["timing_s/episode/queue"]) == (0.5, 0.0)
    assert set(tally.take().values()) == {0.0}


def test_load_is_the_share_of_time_and_of_places_and_begins_anew() -> None:
    load = Load(now=100.0)
    load.worked(2.0)
    load.worked(1.0)
    load.decoded(4)
    load.decoded(2)
    load.preempted()
    # 3 of 4 seconds; 6 turns in 2 batches of 8 places
    expected = {"engine/busy_share": 0.75, "engine/occupancy": 0.375, "engine/preempted_turns": 1.0}
    assert load.take(104.0, capacity=8) == expected
    assert set(load.take(105.0, capacity=8).values()) == {0.0}


def test_usage_is_tokens_by_what_they_were_for_and_costs_what_has_a_price() -> None:
    amounts = {"computed": 3e6, "sampled": 1e6, "trained": 4e6, "seconds": 1800.0}
    free = usage_metrics(**amounts, prices={})
    assert free == {"usage/prefill_tokens": 2e6, "usage/sample_tokens": 1e6, "usage/train_tokens": 4e6}
    # 2 million read at 0.1, half an hour at 3
    assert usage_metrics(**amounts, prices={"prefill": 0.1, "hour": 3.0})["usage/cost"] == pytest.approx(1.7)
