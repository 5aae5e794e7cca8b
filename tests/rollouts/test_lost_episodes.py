"""Losses that gather are reported, and losses at random are not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from sparring.environments import answer, tool_call
from sparring.rollouts.lost_episodes import FALSE_ALARMS, Losses, upper_tail


def test_the_test_is_fishers() -> None:
    # Of 4 attempts 2 were lost: that both of a given pair were, is 1 of the 6 pairs.
    assert upper_tail(2, 2, 2, 4) == pytest.approx(1 / 6)
    assert upper_tail(1, 2, 2, 4) == pytest.approx(5 / 6)
    assert upper_tail(0, 2, 2, 4) == pytest.approx(1.0)
    exact = sum(math.comb(30, k) * math.comb(70, 20 - k) for k in range(12, 21)) / math.comb(100, 20)
    assert upper_tail(12, 20, 30, 100) == pytest.approx(exact)


def played(
    rng: random.Random, outage: Callable[[int, str, str], bool], *, tasks: int = 20, members: int = 16
) -> Losses:
    """A run: three turns an episode, of two tools and an answer; `outage` strikes a turn of a task with a tool and arguments."""
    losses = Losses()
    for task in range(tasks):
        for _ in range(members):
            turns, is_lost = [], False
            for place in range(3):
                name = "answer" if place == 2 else rng.choice(["look", "run"])
                code = rng.choice(["print(1)", "limit(1)", "sort()"])
                turns.append(answer(code) if name == "answer" else tool_call(name, code=code))
                if is_lost := outage(task, name, code):
                    break
            losses.count("train", f"t{task}", turns, is_lost=is_lost)
    return losses


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
def test_outages_at_random_are_reported_in_fewer_runs_than_promised(share: float) -> None:
    rng = random.Random(7)
    num_runs = 200
    num_reported = sum(played(rng, lambda *_: rng.random() < share).finding() is not None for _ in range(num_runs))
    # Asked once it may err in half of FALSE_ALARMS: 1 of 200, and 5 or more have a probability of 0.004.
    assert num_reported < 5
    assert FALSE_ALARMS == 0.01


def test_a_program_that_ends_its_own_box_is_named() -> None:
    rng = random.Random(3)
    losses = played(rng, lambda task, name, code: rng.random() < (0.3 if (name, code) == ("run", "limit(1)") else 0.01))
    found = losses.finding(step=4)
    assert found is not None
    assert (found.rule, found.step, found.evidence["tool"]["value"]) == ("rollouts.lost_together", 4, "run")
    assert found.evidence["action"]["value"].startswith("run ")
    assert "limit(1)" in found.evidence["action"]["value"]
    assert "task" not in found.evidence
    assert losses.finding(step=5) is None, "it is reported once"


def test_a_task_or_a_policy_that_loses_its_episodes_is_named() -> None:
    rng = random.Random(5)
    found = played(rng, lambda task, *_: task == 4 and rng.random() < 0.5).finding()
    assert found is not None
    assert found.evidence["task"]["value"] == "t4"
    losses = Losses()
    for place in range(64):
        losses.count("held_out base", f"t{place % 32}", (), is_lost=False)
        losses.count("held_out tuned", f"t{place % 32}", (), is_lost=place < 12)
    found = losses.finding()
    assert found is not None
    assert list(found.evidence) == ["policy"]
    assert "'held_out tuned': 12 of its 64 attempts were lost, but 0 of the 64 others" in found.symptom


def test_two_lost_episodes_are_no_pattern() -> None:
    losses = Losses()
    for place in range(200):
        losses.count("train", "a" if place < 2 else f"t{place}", (), is_lost=place < 2)
    assert losses.finding() is None


def test_the_death_of_a_worker_is_one_loss_however_many_episodes_of_a_task_it_had() -> None:
    losses, spread = Losses(), Losses()
    for task in range(20):
        for _ in range(16):
            losses.count("train", f"t{task}", (), is_lost=task == 4, death="worker 1" if task == 4 else None)
            spread.count("train", f"t{task}", (), is_lost=task == 4)
    assert losses.finding() is None
    assert spread.finding() is not None, "without the death, the same losses are a pattern"


def test_a_task_that_ends_its_workers_again_and_again_is_reported_with_their_deaths() -> None:
    losses = Losses()
    for task in range(20):
        for member in range(16):
            death = f"worker {member // 2}" if task == 4 else None
            losses.count("train", f"t{task}", (), is_lost=death is not None, death=death)
    found = losses.finding()
    assert found is not None
    assert found.evidence["task"]["value"] == "t4"
    assert found.evidence["task"]["deaths_of_workers"] == found.evidence["task"]["lost"] == 8
    assert "8 of these losses are the death of a worker process." in found.symptom
    assert found.change.startswith("Find out in the log how the worker processes ended")
