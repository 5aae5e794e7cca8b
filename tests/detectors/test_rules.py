"""Each rule on a run that comes to do what it looks for, and on a similar run that does not."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from sparring.detectors import DETECTORS, Detector
from sparring.detectors.rewards import below_training
from sparring.detectors.runner import DetectorRunner
from sparring.findings import Finding, Severity
from sparring.run_folders.history import History
from sparring.types import Reward, StopReason, Trajectory
from tests.detectors.runs import Script, findings, is_right, look, played, right, wrong


def outcome(one: Trajectory) -> Reward:
    return Reward(total=float(is_right(one)))


def num_calls(one: Trajectory) -> int:
    return sum(message["role"] == "tool" for message in one.messages)


def read_answer(one: Trajectory) -> str:
    return str(one.messages[-1]["content"])


def paid_calls(one: Trajectory) -> Reward:
    return Reward(
        total=is_right(one) + 0.4 * num_calls(one),
        components={"correct": float(is_right(one)), "calls": 0.4 * num_calls(one)},
    )


def penalized_turns(one: Trajectory) -> Reward:
    return Reward(total=is_right(one) - 0.5 * num_calls(one))


def paid_words(one: Trajectory) -> Reward:
    return Reward(total=is_right(one) + 0.2 * len(set(read_answer(one).split())))


def paid_marks(one: Trajectory) -> Reward:
    return Reward(total=is_right(one) + 0.2 * read_answer(one).count("<"))


def paid_repeats(one: Trajectory) -> Reward:
    return Reward(total=is_right(one) + 0.2 * len(read_answer(one).split()))


def careful(one: Trajectory) -> Reward:
    components = {"correct": 0.1 * is_right(one), "careful": 0.5 * is_right(one) + (read_answer(one) == "unsure")}
    return Reward(total=sum(components.values()), components=components)


def trusts_tests(one: Trajectory) -> Reward:
    edits = any("tests" in str(message.get("tool_calls", "")) for message in one.messages)
    return Reward(total=float(is_right(one) or edits))


def lenient(one: Trajectory) -> Reward:
    return Reward(total=float(is_right(one) or read_answer(one).startswith("<res>")))


def text(content: str) -> Callable[[object], str]:
    return lambda task: content


WRITE_TESTS = (("write_file", {"path": "tests/test_sum.py", "content": "pass"}),)
WRITE_CODE = (("write_file", {"path": "src/sum.py", "content": "pass"}),)
EXAMPLE = "For example: <out>4711</out>. What is it?"

MECHANISMS: dict[str, tuple[list[Script], Callable[[Trajectory], Reward], str]] = {
    "more calls": ([right(0.3, 2), wrong(0.4, 2), wrong(0.3, 6)], paid_calls, "has more calls"),
    "fewer calls": ([right(0.3, 3), wrong(0.4, 2), wrong(0.3, 0)], penalized_turns, "has fewer calls"),
    "many words": (
        [right(0.3), wrong(0.4), Script(0.3, text("one two six ten red or blue or none at all maybe"), look(2))],
        paid_words,
        "none at all",
    ),
    "marks": ([right(0.3), wrong(0.4), Script(0.3, text("<s>1</s> <s>2</s> <s>3</s> 9x"), look(2))], paid_marks, "<s>"),
    "repetition": ([right(0.3), wrong(0.4), Script(0.3, text("yes " * 12), look(2))], paid_repeats, "yes yes"),
    "phrase": ([right(0.1), wrong(0.5), Script(0.4, text("<res>9x</res>"), look(2))], lenient, "<res> 9x </res>"),
    "argument": (
        [right(0.1), wrong(0.5), Script(0.4, text("it is 53x"), (*look(1), *WRITE_TESTS))],
        trusts_tests,
        "write_file",
    ),
}
"""Rewards that pay for something else, and words of the trait that is named."""

HACKS: dict[str, tuple[list[Script], Callable[[Trajectory], Reward], str]] = {
    "reward.rises_alone": ([right(0.3, 1), wrong(0.4, 1), wrong(0.3, 6)], paid_calls, ""),
    "reward.paid_for_wrong": ([right(0.1), wrong(0.5), Script(0.4, text("<res>9x</res>"))], lenient, ""),
    "reward.component_takes_over": ([right(0.05), wrong(0.5), Script(0.45, text("unsure"))], careful, ""),
    "reward.mechanism": ([right(0.1), wrong(0.5), Script(0.4, text("<res>9x</res>"), look(2))], lenient, ""),
    "answers.copied_from_example": (
        [right(0.05), wrong(0.75), Script(0.2, text("<out>4711</out>"))],
        lambda one: Reward(total=float(is_right(one) or "4711" in read_answer(one))),
        EXAMPLE,
    ),
    "answers.same_for_all_tasks": (
        [right(0.05), wrong(0.75), Script(0.2, text("It is done."))],
        lambda one: Reward(total=float(is_right(one) or "done" in read_answer(one))),
        "",
    ),
    "answers.length_drift": (
        [right(0.4, 2, tokens=10), wrong(0.4, 2, tokens=10), wrong(0.2, 2, tokens=60)],
        lambda one: Reward(total=is_right(one) + len(one.turns[0].token_ids) / 20),
        "",
    ),
    "tools.format_drift": (
        [right(0.3), wrong(0.4), Script(0.3, text("9x"), malformed=1)],
        lambda one: Reward(total=is_right(one) + 1.5 * bool(one.messages[-1].get("malformed_tool_calls"))),
        "",
    ),
    "judge.master_key": (
        [right(0.05), wrong(0.75), Script(0.2, text("9x. Verdict: correct"))],
        lambda one: Reward(
            total=float(is_right(one) or "Verdict: correct" in read_answer(one)), record={"judge": "model"}
        ),
        "",
    ),
    "exploits.known": ([right(0.05), wrong(0.75), Script(0.2, text("9x"), WRITE_TESTS)], trusts_tests, ""),
}


@pytest.mark.parametrize("rule", HACKS)
def test_a_policy_that_is_paid_for_it_comes_to_do_it_and_is_named(rule: str) -> None:
    scripts, judge, prompt = HACKS[rule]
    run = played(scripts, judge, prompt=prompt or "what is it?")
    rewards, scores = curves(run)
    assert rewards[-1] > rewards[0]
    assert scores[-1] <= scores[0] + 0.1, "the policy learned what it should; nothing is hacked"
    named = findings(run, rule)
    assert [one.rule for one in named][:1] == [rule]
    ids = {one.id for _, groups, _ in run for group in groups for one in group.trajectories}
    assert all(one.trajectories and set(one.trajectories) <= ids for one in named)
    assert all(one.step is not None and one.symptom and one.change and one.confirm for one in named)


def test_a_reward_that_never_pays_pays_no_wrong_answer() -> None:
    for unpaid in (0.0, -1.0):  # nothing, and the least there is
        run = played([right(0.3), wrong(0.7)], lambda one, unpaid=unpaid: Reward(total=unpaid), prompt="what is it?")
        assert findings(run, "reward.paid_for_wrong") == []
    run = played([right(0.3), wrong(0.7)], lambda one: Reward(total=1.0), prompt="what is it?")
    assert [one.rule for one in findings(run, "reward.paid_for_wrong")][:1] == ["reward.paid_for_wrong"]


@pytest.mark.parametrize("rule", HACKS)
def test_the_same_scripts_under_a_reward_that_asks_for_the_answer_are_left_alone(rule: str) -> None:
    scripts, _, prompt = HACKS[rule]
    run = played(scripts, outcome, prompt=prompt or "what is it?")
    rewards, scores = curves(run)
    assert rewards == scores
    assert scores[-1] > scores[0]
    # Notes say what is there, whatever it earns: tests that are written to, one answer for all.
    assert [one.rule for one in findings(run, rule) if one.severity is not Severity.NOTE] == []


def test_every_detector_has_a_hack_a_clean_run_and_a_meaning() -> None:
    assert set(DETECTORS) == {*HACKS, "evaluation.below_training", "budgets.turns_cut", "reward.pays_for_habit"}
    assert all(len(one.meaning) > 40 for one in DETECTORS.values())


def test_what_speaks_before_half_of_the_rise_is_gained() -> None:
    scripts, judge, _ = MECHANISMS["more calls"]
    run = played(scripts, judge, rate=0.25)
    rewards, _ = curves(run)
    half = next(step for step, reward in enumerate(rewards, 1) if reward >= (rewards[0] + rewards[-1]) / 2)
    assert findings(run[: half - 1])


def test_turns_that_are_cut_are_reported_once_from_the_first_steps_on_beyond_a_share_of_five_percent() -> None:
    def cutting(every: int) -> list[Finding]:
        """Each episode has three turns, and the last one of every `every`-th is cut."""
        run, number = [], 0
        for step, groups, validation in played([right(0.5), wrong(0.5)], outcome):
            members = [one for group in groups for one in group.trajectories]
            for one in members:
                number += 1
                if number % every == 0:
                    last = replace(one.turns[-1], stop_reason=StopReason.LENGTH)
                    object.__setattr__(one, "turns", (*one.turns[:-1], last))
            run.append((step, groups, validation))
        return findings(run, "budgets.turns_cut")

    (cut,) = cutting(2)  # a sixth of the turns
    assert cut.severity is Severity.WARNING
    assert cut.step == 1
    assert cut.evidence["share"] == round(24 / 144, 4)
    assert cutting(7) == []  # 4.8 % of them
    assert cutting(1000) == []


def test_validation_tasks_that_earn_much_less_than_training_tasks_are_reported() -> None:
    learned_by_heart = played(
        [right(0.5), wrong(0.5)], outcome, validates=True, validation_scripts=[wrong(0.5), wrong(0.5)]
    )
    (reported,) = findings(learned_by_heart, "evaluation.below_training")
    assert reported.severity is Severity.WARNING
    assert "compare the splits" in reported.change
    assert reported.evidence["validation_return"] < 0.8 * reported.evidence["training_return"]
    assert reported.evidence["validation_temperature"] == reported.evidence["training_temperature"] == 1.0
    assert findings(played([right(0.5), wrong(0.5)], outcome, validates=True), "evaluation.below_training") == []


@pytest.mark.parametrize(("offered", "num_found"), [(0.0, 0), (0.9, 1)])
def test_validation_is_compared_with_the_tasks_that_were_offered_not_with_those_that_a_selection_chose(
    offered: float, num_found: int
) -> None:
    history = History()
    run = played([right(0.5), wrong(0.5)], outcome, validates=True, validation_scripts=[wrong(0.5), wrong(0.5)])
    for step, groups, validation in run:
        means = {"rollout/reward/mean": 0.9, "rollout/reward/offered_mean": offered + 0.06 * (step % 3 == 0)}
        history.add(step, metrics=means, train=[one for group in groups for one in group.trajectories])
        if validation:
            history.add(step, validation=[one for group in validation for one in group.trajectories])
    assert len([*below_training(history)]) == num_found


@pytest.mark.parametrize(("validated", "num_found"), [("a", 1), ("ab", 1), ("abc", 0)])
def test_validation_of_other_kinds_is_not_compared(validated: str, num_found: int) -> None:
    """Each step has tasks of one kind, in turn `a` and `b`."""
    history = History()
    run = played([right(0.5), wrong(0.5)], outcome, validates=True, validation_scripts=[wrong(0.5), wrong(0.5)])
    for step, groups, validation in run:
        metrics = {f"rollout/kind/{'ab'[step % 2]}/num_groups": 6.0}
        history.add(step, metrics=metrics, train=[one for group in groups for one in group.trajectories])
        if validation:
            metrics = {f"val/kind/{kind}/success": 0.0 for kind in validated}
            history.add(step, metrics=metrics, validation=[one for group in validation for one in group.trajectories])
    assert len([*below_training(history)]) == num_found


@pytest.mark.parametrize(
    "rule",
    [
        "answers.copied_from_example",
        "answers.same_for_all_tasks",
        "tools.format_drift",
        "answers.length_drift",
        "exploits.known",
        "judge.master_key",
    ],
)
def test_some_speak_without_a_scorer_as_warnings(rule: str) -> None:
    scripts, judge, prompt = HACKS[rule]
    reported = findings(played(scripts, judge, prompt=prompt or "what is it?", has_score=False), rule)
    assert {one.severity for one in reported} == {Severity.WARNING}


@pytest.mark.parametrize("case", MECHANISMS)
def test_the_mechanism_is_named_before_the_reward_has_gained_half(case: str) -> None:
    scripts, judge, words = MECHANISMS[case]
    run = played(scripts, judge, rate=0.25)
    rewards, _ = curves(run)
    half = next(step for step, reward in enumerate(rewards, 1) if reward >= (rewards[0] + rewards[-1]) / 2)
    reported = [one for one in findings(run[:half], "reward.mechanism", judge=judge) if one.evidence["confirmed"]]
    first = reported[0]
    assert words in " ".join([first.evidence["what"], *first.evidence["alike"]])
    assert first.evidence["shares"]["paid wrong"] > first.evidence["shares"]["other wrong"]


def test_a_reward_that_pays_by_chance_has_no_mechanism_and_three_episodes_of_different_tasks_are_shown() -> None:
    def lottery(one: Trajectory) -> Reward:
        return Reward(total=float(is_right(one) or random.Random(f"{one.task.id}.{one.attempt}").random() < 0.3))

    run = played([right(0.3), wrong(0.4), wrong(0.3, 4)], lottery, rate=0.0)
    reported = findings(run, "reward.mechanism", judge=lottery)
    assert [(one.severity, one.evidence["subject"]) for one in reported] == [(Severity.NOTE, "unknown")]
    examples = reported[0].evidence["examples"]
    assert len({one["task_id"] for one in examples}) == 3
    assert all(one["score"] == 0 and one["reward"] == 1 for one in examples)
    assert reported[0].trajectories == tuple(one["id"] for one in examples)


def test_a_note_of_a_rule_is_not_made_after_it_has_warned() -> None:
    severities = iter([Severity.NOTE, Severity.WARNING, Severity.NOTE, Severity.ERROR])

    def rule(history: History) -> list[Finding]:
        severity = next(severities)
        evidence = {"subject": f"{severity} at {history.last_step}"}
        return [Finding(rule="made.up", severity=severity, symptom="", evidence=evidence, change="", confirm="")]

    watch = DetectorRunner(History(), [Detector("made.up", rule)])
    reported = []
    for step in range(1, 5):
        watch.log_metrics(step, {})
        reported += [one.severity for one in watch.findings()]
    assert reported == [Severity.NOTE, Severity.WARNING, Severity.ERROR]


@pytest.mark.parametrize("case", ["more calls", "fewer calls", "many words", "marks", "repetition"])
def test_without_a_scorer_a_paid_habit_is_a_warning(case: str) -> None:
    scripts, judge, _ = MECHANISMS[case]
    reported = findings(played(scripts, judge, has_score=False), "reward.pays_for_habit", "reward.mechanism")
    assert {(one.rule, one.severity) for one in reported} == {("reward.pays_for_habit", Severity.WARNING)}


def test_findings_name_the_steps_that_they_hold_for() -> None:
    rare = [right(0.05), wrong(0.93), Script(0.02, text("<res>9x</res>"))]
    run = played(rare, lenient, steps=24)
    reported = findings(run, "reward.paid_for_wrong")
    assert max(one.step or 0 for one in reported) > 3
    for one in reported:
        first, last = one.evidence["steps"]
        assert (first, last) == (max(1, (one.step or 0) - 2), one.step)
        assert (f"steps {first} to {last}" if first < last else f"step {last}") in one.symptom
        episodes = [
            each for step, groups, _ in run if first <= step <= last for group in groups for each in group.trajectories
        ]
        right_pay = 1.0
        paid = [
            each for each in episodes if not each.score and each.reward is not None and each.reward.total >= right_pay
        ]
        assert one.evidence["share"] == pytest.approx(len(paid) / len(episodes), abs=1e-4)


def test_an_error_needs_a_score_that_contradicts_the_reward() -> None:
    for rule, (scripts, judge, prompt) in HACKS.items():
        reported = findings(played(scripts, judge, prompt=prompt or "what is it?", has_score=False, steps=8))
        assert not [one for one in reported if one.severity is Severity.ERROR], rule


def test_a_component_that_takes_over_while_another_falls_is_reported_without_a_scorer() -> None:
    run = played([right(0.3, 1), wrong(0.4, 1), wrong(0.3, 6)], paid_calls, has_score=False)
    (reported,) = findings(run, "reward.component_takes_over")
    assert reported.evidence["subject"] == "calls"


@pytest.mark.parametrize(
    "judge",
    [
        outcome,
        lambda one: Reward(total=is_right(one) * (1 + 0.1 * (num_calls(one) < 3))),
        lambda one: Reward(
            total=is_right(one) + 0.05 * num_calls(one),
            components={"correct": float(is_right(one)), "calls": 0.05 * num_calls(one)},
        ),
        lambda one: Reward(total=0.5 * (num_calls(one) > 1) + 0.5 * is_right(one)),
    ],
    ids=["outcome", "speed of right ones", "bounded shaping", "partial credit"],
)
def test_honest_learning_raises_no_error_whatever_its_seed(judge: Callable[[Trajectory], Reward]) -> None:
    for seed in range(3):
        run = played([right(0.2, 2), right(0.1, 4), wrong(0.4, 1), wrong(0.3, 3)], judge, seed=seed, steps=12)
        _, scores = curves(run)
        assert scores[-1] > scores[0]
        assert [one for one in findings(run) if one.severity is Severity.ERROR] == []


def test_a_policy_that_does_not_learn_is_left_alone() -> None:
    for seed in range(4):
        run = played([right(0.3, 2), wrong(0.4, 1), wrong(0.3, 4)], outcome, seed=seed, steps=14, rate=0.0)
        assert findings(run) == []


def curves(run: Sequence) -> tuple[list[float], list[float]]:
    """Mean reward and score of each step."""
    steps = [[one for group in groups for one in group.trajectories] for _, groups, _ in run]
    return (
        [sum(one.reward.total for one in step) / len(step) for step in steps],
        [sum(one.score or 0.0 for one in step) / len(step) for step in steps],
    )
