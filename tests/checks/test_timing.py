"""The time of a check is shared out, and what there is no time for is left out by name."""

import asyncio
from pathlib import Path

import pytest

from sparring.checks.evidence.scripted_episodes import get_episodes
from sparring.checks.evidence.subject import EXPERT, Subject
from sparring.checks.rules.reward import variance
from sparring.checks.running.check_report import Checked
from sparring.checks.running.run import left_out, undecided
from sparring.checks.running.time_budget import OutOfTimeError, Timing
from sparring.config import load_config
from sparring.findings import Severity


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_rule_gets_an_eighth_of_what_is_left_and_one_episode_at_least() -> None:
    clock = Clock()
    timing = Timing(seconds=80, clock=clock)
    timing.begin("environment.plays")
    assert timing.left == 10
    timing.count_episode(20)
    timing.begin("environment.same_twice")
    assert timing.left == 30  # one episode and a half
    clock.now = 70
    timing.begin("environment.leaks")
    with pytest.raises(OutOfTimeError, match=r"an episode takes 20\.0 s on this machine"):
        timing.need()


def test_a_rule_that_saw_an_episode_is_decided_on_it_and_one_that_saw_none_is_left_out() -> None:
    clock = Clock()
    timing = Timing(seconds=80, clock=clock)
    timing.begin("environment.plays")
    with timing.as_far_as_it_goes():
        for _ in range(3):
            timing.need()
            clock.now += 6
            timing.count_episode(6)
    assert timing.cut == ["environment.plays"]
    clock.now = 79
    timing.begin("environment.leaks")
    with pytest.raises(OutOfTimeError), timing.as_far_as_it_goes():
        timing.need()
    assert timing.cut == ["environment.plays"]


def test_a_reward_is_not_called_constant_while_only_the_expert_has_played() -> None:
    recipe = Path(__file__).parent / "clean" / "parcel_desk" / "recipe.toml"
    subject = Subject(load_config(recipe), recipe)
    asyncio.run(get_episodes(subject, EXPERT))
    subject.timing = Timing(seconds=0)
    with pytest.raises(OutOfTimeError, match="only the expert has run"):
        asyncio.run(variance(subject))


def test_processor_time_is_bounded_too() -> None:
    timing = Timing(seconds=80, processor_seconds=0)
    timing.begin("environment.plays")
    with pytest.raises(OutOfTimeError):
        timing.need()


def test_what_was_left_out_is_one_note_that_names_the_option() -> None:
    checked = [
        Checked(name="environment.plays", state="decided", reason="used fewer episodes than usual, for lack of time"),
        Checked(
            name="environment.leaks",
            state="left_out",
            reason="no time was left for the rule: an episode takes 3.0 s on this machine",
        ),
        Checked(
            name="environment.close",
            state="left_out",
            reason="no time was left for the rule: an episode takes 3.1 s on this machine",
        ),
        Checked(name="data.rows", state="decided"),
    ]
    (note,) = left_out(checked, minutes=1.0)
    assert note.severity is Severity.NOTE
    assert note.evidence["left_out"] == ["environment.leaks", "environment.close"]
    assert note.evidence["on_fewer_episodes"] == ["environment.plays"]
    assert "--minutes" in note.change
    assert "an episode takes 3.0 s on this machine" in note.symptom
    assert list(undecided(checked)) == []
    assert list(left_out(checked[-1:], minutes=1.0)) == []


def test_one_cause_is_one_finding_whatever_task_shows_it() -> None:
    reasons = [
        "an episode of task t1 could not be run: Task t1: Desk.reset failed: KeyError('x').",
        "an episode of task t2 could not be run: Task t2: Desk.reset failed: KeyError('x').",
    ]
    names = ["environment.plays", "environment.leaks"]
    checked = [Checked(name=name, state="undecided", reason=one) for name, one in zip(names, reasons, strict=True)]
    (found,) = undecided(checked)
    assert found.evidence["undecided"] == names
