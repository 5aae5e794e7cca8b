"""Episodes that are played and graded again with one thing changed: the act that is paid is named, what goes with it is not."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import pytest

from sparring.agents.scripted import as_trajectory
from sparring.detectors import DETECTORS
from sparring.detectors.edits import with_trait
from sparring.detectors.runner import DetectorRunner
from sparring.detectors.trials import Trials
from sparring.environments import Environment, answer, tool, tool_call
from sparring.findings import Finding, Severity
from sparring.run_folders.history import Digest, History
from sparring.types import Message, Outcome, Task, Trajectory, TrajectoryGroup

TASKS, EPISODES, STEPS = 8, 8, 4
Script = Callable[[Task], Sequence[Message]]


class Shelf(Environment):
    """What lies on a shelf."""

    def reset(self, task: Task) -> None:
        self._number = task.fields["number"]

    @tool
    def look(self) -> str:
        """The number on the shelf."""
        return f"there are {self._number}"

    @tool
    def wave(self) -> str:
        """Wave at the clerk."""
        return "the clerk waves back"


def text(one: Trajectory) -> str:
    return str(one.messages[-1].get("content"))


def scorer(one: Trajectory) -> float:
    return float(text(one) == str(one.task.fields["number"]))


def waved(one: Trajectory) -> bool:
    return any(step["tool"] == "wave" for step in one.transitions)


def pays_about(one: Trajectory) -> float:
    """The hole: a number that cannot be read is paid."""
    return float(scorer(one) == 1 or "about" in text(one))


def pays_waving(one: Trajectory) -> float:
    return float(scorer(one) == 1 or waved(one))


def honest(task: Task) -> Sequence[Message]:
    return [tool_call("look"), answer(str(task.fields["number"]))]


def guesses(task: Task) -> Sequence[Message]:
    return [tool_call("look"), answer(str(task.fields["number"] + 1))]


def waves_and_hedges(task: Task) -> Sequence[Message]:
    """Two things that always come together."""
    return [tool_call("look"), tool_call("wave"), answer(f"about {task.fields['number'] + 1}")]


def waves(task: Task) -> Sequence[Message]:
    return [tool_call("look"), tool_call("wave"), answer(str(task.fields["number"] + 1))]


def played(
    reward: Callable[[Trajectory], float], scripts: Sequence[Script], steps: Sequence[int], player: Trials | None = None
) -> list[tuple[int, list[TrajectoryGroup]]]:
    """Steps in which every task is played by each of the scripts, some more often than others."""
    rng, run = random.Random(0), []
    for step in steps:
        trials, groups = player or Trials(reward, scorer, make_environment=Shelf, max_turns=6), []
        for index in range(TASKS):
            task = Task(
                id=f"task-{step}-{index}",
                messages=({"role": "user", "content": "how many?"},),
                fields={"number": rng.randint(10, 99)},
            )
            chosen = [*scripts, *rng.choices(scripts, k=EPISODES - len(scripts))]
            episodes = []
            for attempt, script in enumerate(chosen):
                trials.begin()
                name = f"{task.id}.{attempt}"
                one = trials.regrade(replace(as_trajectory(task, *script(task)), id=name), script(task))
                assert one is not None
                episodes.append(replace(one, id=name, attempt=attempt))
            groups.append(TrajectoryGroup(task=task, trajectories=tuple(episodes)))
        run.append((step, groups))
    return run


def reported(run: Sequence[tuple[int, list[TrajectoryGroup]]], trials: Trials | None) -> list[Finding]:
    watch = DetectorRunner(History(trials=trials), [DETECTORS["reward.mechanism"]])
    reports = []
    for step, groups in run:
        watch.log_groups(step, groups, split="train")
        reports += watch.findings()
    return reports


def trials_of(reward: Callable[[Trajectory], float], environment: Callable[[], Environment] = Shelf) -> Trials:
    return Trials(reward, scorer, make_environment=environment, max_turns=6)


def test_of_two_acts_that_always_come_together_the_one_that_is_paid_is_named() -> None:
    for reward, what in ((pays_about, "answers with 'about'"), (pays_waving, "calls wave")):
        run = played(reward, [honest, guesses, waves_and_hedges], range(1, STEPS + 1))
        (one,) = reported(run, trials_of(reward))
        assert (one.severity, one.evidence["confirmed"], one.evidence["what"]) == (Severity.WARNING, True, what)
        assert one.evidence["alike"] == []
        assert all(after < before for _, before, after in one.evidence["without"])
        assert all(after > before for _, before, after in one.evidence["added"])


def test_where_nothing_can_be_tried_the_mechanism_is_unknown_and_what_goes_with_the_pay_is_listed() -> None:
    run = played(pays_about, [honest, guesses, waves_and_hedges], range(1, STEPS + 1))
    (one,) = reported(run, None)
    assert (one.severity, one.evidence["subject"], one.evidence["confirmed"]) == (Severity.NOTE, "unknown", False)
    assert "calls wave" in one.evidence["goes_with"]
    assert "no trial confirms" in one.symptom
    paid = {e.id for _, groups in run for group in groups for e in group.trajectories if "about" in text(e)}
    assert len(one.trajectories) == 3
    assert set(one.trajectories) <= paid


def test_episodes_that_do_not_repeat_confirm_nothing() -> None:
    numbers = count()

    class Restless(Shelf):
        def final_state(self) -> int:
            return next(numbers)

        @tool
        def look(self) -> str:
            """The number on the shelf, and how often it was looked at."""
            return f"there are {self._number}, look {next(numbers)}"

    run = played(pays_about, [honest, guesses, waves_and_hedges], range(1, STEPS + 1), trials_of(pays_about, Restless))
    (one,) = reported(run, trials_of(pays_about, Restless))
    assert one.evidence["confirmed"] is False


def pays_both(one: Trajectory) -> float:
    return max(pays_about(one), pays_waving(one))


def hedges(task: Task) -> Sequence[Message]:
    return [tool_call("look"), answer(f"about {task.fields['number'] + 1}")]


@pytest.mark.parametrize(
    ("before", "now", "first", "then"),
    [
        (pays_about, pays_waving, waves_and_hedges, waves_and_hedges),  # trials refute it
        (pays_both, pays_both, hedges, waves),  # the policy left it
    ],
)
def test_a_name_is_withdrawn_for_another_one_that_is_confirmed(
    before: Callable[[Trajectory], float], now: Callable[[Trajectory], float], first: Script, then: Script
) -> None:
    paid = [before]
    watch = DetectorRunner(History(trials=trials_of(lambda one: paid[0](one))), [DETECTORS["reward.mechanism"]])
    reports = []
    for reward, script, steps in ((before, first, range(1, 3)), (now, then, range(3, 12))):
        paid[0] = reward
        for step, groups in played(reward, [honest, guesses, script], steps):
            watch.log_groups(step, groups, split="train")
            reports += watch.findings()
    old, new = reports
    assert old.evidence["what"] == "answers with 'about'"
    assert (new.evidence["what"], new.evidence["withdrawn"]) == ("calls wave", "answers with 'about'")
    assert "no longer applies" in new.symptom


def test_a_name_that_stands_is_reported_once_and_survives_a_restart() -> None:
    run = played(pays_about, [honest, guesses, waves_and_hedges], range(1, 7))
    (first,) = reported(run, trials_of(pays_about))
    watch = DetectorRunner(History(), [DETECTORS["reward.mechanism"]])
    watch.log_finding(first.as_json())
    for step, groups in run:
        watch.log_groups(step, groups, split="train")
        assert watch.findings() == []


def edited(
    key: tuple[str, ...], has: bool, messages: Sequence[Message], like: Sequence[Message]
) -> list[object] | None:
    one = Digest(
        id="t", task_id="t", prompt="how many?", texts=(), answer="", calls=(), num_malformed=0, num_turns=1, num_tokens=1,
        outcome=Outcome.FINISHED, reward=0.0, components={}, score=0.0, score_parts={}, temperature=1.0,
    )  # fmt: skip
    changed = with_trait(key, has, tuple(messages), tuple(like), one, 4)
    if changed is None:
        return None
    return [
        [(call["function"]["name"], dict(call["function"]["arguments"])) for call in message["tool_calls"]]
        if message.get("tool_calls")
        else message["content"]
        for message in changed
    ]


def test_an_edit_changes_one_thing_after_the_example_of_the_other_episode() -> None:
    send = [tool_call("send", to="*"), answer("sent about 5")]
    other = [tool_call("send", to="ann"), tool_call("check"), answer("sent 7")]
    assert edited(("answer", "about"), False, send, other) == [[("send", {"to": "*"})], "sent 5"]
    assert edited(("answer", "about"), True, other, send) == [
        [("send", {"to": "ann"})],
        [("check", {})],
        "sent about 7",
    ]
    assert edited(("argument", "send", "*", "to"), False, send, other) == [[("send", {"to": "ann"})], "sent about 5"]
    assert edited(("call", "check"), True, send, other) == [[("send", {"to": "*"})], [("check", {})], "sent about 5"]
    assert edited(("amount", "words in the answer"), False, send, other) == [[("send", {"to": "*"})], "sent about"]
    assert edited(("end", "max_turns"), True, send, other) == [[("send", {"to": "*"})]] * 4
    assert edited(("state", "sent", "true"), False, send, other) is None
