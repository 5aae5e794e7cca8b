"""What the diagnosis names when a reward stands still or collapses, and which change it proposes."""

import random
from dataclasses import replace

import pytest

from sparring.diagnosis.diagnose import diagnose
from sparring.findings import Finding, Severity
from sparring.run_folders.history import Digest
from tests.diagnosis.runs import diagnose_run, falls, hopeless, number, run


def test_a_collapse_of_twelve_steps_is_named() -> None:
    fallen = run(lambda step, task: 0.6 if step <= 4 else 0.0, steps=12)
    assert diagnose_run(fallen)["stall.collapse"].settings == {"optimizer.learning_rate": 1e-5}


def test_a_collapse_within_the_first_steps_is_one_and_a_lucky_step_is_none() -> None:
    assert "stall.collapse" in diagnose_run(run(lambda step, task: 0.7 if step <= 2 else 0.0))
    assert "stall.collapse" not in diagnose_run(run(lambda step, task: 0.7 if step == 1 else 0.3))


def test_groups_that_agree_on_being_wrong_are_named_though_the_mean_goes_up_and_down() -> None:
    # Of eight tasks one is sometimes right; in every third step three more, which earn all or nothing.
    def luck(step: int, task: int) -> float:
        return 0.5 if task % 8 == 0 else float(step % 3 == 0 and task % 8 < 4)

    found = diagnose_run(run(luck, steps=30, metrics=lambda step: {"training/entropy": 0.5 - 0.005 * step}))
    assert "stall.groups_agree" in found


def test_a_collapse_of_a_loss_without_bounds_asks_for_bounds() -> None:
    observed = run(falls, steps=30, more=["algorithm.loss_fn=cispo"])
    assert diagnose_run(observed)["stall.collapse"].settings == {
        "algorithm.loss_fn": "ppo",
        "algorithm.clip_low_threshold": 0.8,
        "algorithm.clip_high_threshold": 1.2,
    }


def test_the_advice_of_smaller_groups_states_its_expected_effect() -> None:
    # A group of 6 with 3 right ones: 3 of them agree by 2 of C(6, 3) = 20 draws. One of eight groups is such, the others agree.
    observed = run(
        hopeless,
        change=lambda digest, step: (
            replace(digest, reward=1.0, score=1.0)
            if int(digest.task_id[5:]) % 8 == 0 and digest.id[-3] in "024"
            else replace(digest, reward=0.0, score=0.0)
        ),
    )
    at_half = diagnose_run(observed)["stall.groups_agree"].evidence["at_half_the_group_size"]
    assert at_half["groups_without_signal"] == pytest.approx(7 / 8 + (1 / 8) * 2 / 20)
    # 16 groups of 3 instead of 8 of 6: 16 * (1 / 8) * 18 / 20.
    assert at_half["groups_with_signal_a_step_with_twice_the_batch"] == pytest.approx(1.8)


def stands(
    *, entropy: tuple[float, float], at: int = 6, varies: bool = False, more: tuple[str, ...] = ()
) -> Finding | None:
    """A run of which seven of eight groups are right or wrong as a whole, as with cards that only the task determines."""
    first, last = entropy

    def change(digest: Digest, step: int) -> Digest:
        text = f"stand {digest.id}" if varies or number(digest) % 8 == 0 else "stand"
        return replace(digest, texts=(text,), answer=text)

    observed = run(
        lambda step, task: float(task % 2) if task % 8 else 0.5,
        num_tasks=10_000,
        change=change,
        metrics=lambda step: {"training/entropy": first if step < at else last},
        more=["optimizer.learning_rate=5e-4", *more],
    )
    return diagnose_run(observed).get("stall.groups_agree")


def test_groups_of_identical_episodes_of_a_policy_that_stopped_varying_ask_for_a_smaller_learning_rate() -> None:
    found = stands(entropy=(0.08, 0.002))
    assert found is not None
    assert found.settings == {"optimizer.learning_rate": 0.000125}
    assert found.before_step == 6
    assert found.symptom.endswith("all episodes earned the same, because the policy has stopped varying.")
    assert found.evidence["entropy"] == [0.08, 0.002]
    assert found.evidence["identical_of_groups_that_agree"] == 1.0
    assert "In 100% of the groups that agree, all episodes are identical" in found.change
    assert "entropy bonus (algorithm.entropy_coef)" in found.change
    # Nearly the temperature of the policy: a warmer one gives nothing to choose from either.
    cooler = stands(entropy=(0.08, 0.002), more=("sampling.temperature=0.8",))
    less = stands(entropy=(0.13, 0.04))
    for other in (cooler, less):
        assert other is not None
        assert set(other.settings) == {"optimizer.learning_rate"}


def test_other_groups_are_proposed_where_episodes_differ_or_the_policy_varies_as_before() -> None:
    for found in (
        stands(entropy=(0.08, 0.002), varies=True),  # groups agree on the reward alone
        stands(entropy=(0.08, 0.06)),  # as certain before training
        stands(entropy=(0.9, 0.4)),  # still varies much
        stands(entropy=(0.08, 0.002), at=0),  # as certain from the first step on
    ):
        assert found is not None
        assert set(found.settings) == {"batch.refill_groups"}
        assert found.before_step is None
        assert found.symptom.endswith("all episodes earned the same.")


def test_cold_sampling_that_alone_makes_the_entropy_low_asks_for_temperature_1() -> None:
    found = stands(entropy=(0.08, 0.002), more=("sampling.temperature=0.2",))
    assert found is not None
    assert set(found.settings) == {"sampling.temperature"}


def test_tasks_that_never_come_again_ask_for_other_groups_in_their_place() -> None:
    assert set(diagnose_run(run(hopeless, num_tasks=10_000))["stall.groups_agree"].settings) == {"batch.refill_groups"}


def as_tasks_come(step: int, task: int) -> float:
    """All members of a group are right, or none."""
    return float(random.Random(f"{step}/{task}").random() < 0.5)


@pytest.mark.parametrize(("temperature", "asked_for"), [(0.2, "sampling.temperature"), (1.0, "batch.group_size")])
def test_a_reward_that_nothing_was_learned_from_stands_still_whatever_tasks_come(
    temperature: float, asked_for: str
) -> None:
    # Eight groups a step, each right or wrong as a whole: the mean of a step is off by 0.18, too noisy for a course.
    observed = run(
        as_tasks_come, num_tasks=10_000, more=[f"sampling.temperature={temperature}", "batch.refill_groups=8"]
    )
    diagnosis = diagnose("runs/x", observed)
    assert diagnosis.first is not None
    assert diagnosis.first.rule == "stall.groups_agree"
    assert set(diagnosis.first.settings) == {asked_for}
    assert ("system.filtered", "stall.groups_agree") in {(one.finding.rule, one.by) for one in diagnosis.silenced}


def test_a_collapse_under_a_rising_rate_asks_for_the_rate_of_the_peak() -> None:
    # The rate rises by 1e-4 a step, far beyond what the recipe's quarter would be.
    observed = run(
        falls,
        steps=60,
        metrics=lambda step: {"training/learning_rate": 1e-4 * step},
        more=["optimizer.learning_rate=2e-2"],
    )
    found = diagnose_run(observed)["stall.collapse"]
    assert found.confirm_after == 25  # it falls at step 21, however long it lies there
    peak = found.evidence["peak_steps"]
    assert found.settings == {"optimizer.learning_rate": pytest.approx(1e-4 * peak[0])}


def test_tools_that_break_are_no_collapse_of_the_policy() -> None:
    # From step 21 on, as the reward falls, every call raises.
    raised = {"rollout/agent/tool_errors": 1.0, "rollout/agent/tool_errors/tool_raised": 1.0}
    found = diagnose_run(run(falls, steps=30, metrics=lambda step: raised if step > 20 else {}))
    assert found["tools.failing"].severity is Severity.ERROR
    assert "stall.collapse" not in found
    # Calls that the policy writes badly go with its fall.
    garbled = {"rollout/agent/tool_errors": 1.0, "rollout/agent/tool_errors/bad_json": 1.0}
    found = diagnose_run(run(falls, steps=30, metrics=lambda step: garbled if step > 20 else {}))
    assert found["tools.failing"].severity is Severity.WARNING
    assert found["stall.collapse"].severity is Severity.ERROR


@pytest.mark.parametrize(
    ("rates", "asked_for"),
    [
        ({"easy": 1.0, "fair": 0.25}, {"curriculum.select", "schedule.max_epochs"}),
        ({"fair": 0.25, "hard": 0.0}, {"curriculum.select", "schedule.max_epochs"}),
        ({"fair": 0.25, "good": 0.5}, {"batch.refill_groups"}),
        ({"hard": 0.0, "harder": 0.0}, {"batch.refill_groups"}),
        # One of eight groups is of a kind that never succeeds.
        ({**{f"fair{number}": 0.25 for number in range(7)}, "hard": 0.0}, {"batch.refill_groups"}),
    ],
)
def test_kinds_without_a_signal_ask_for_a_selection_though_no_task_comes_again(
    rates: dict[str, float], asked_for: set[str]
) -> None:
    def metrics(step: int) -> dict[str, float]:
        success = {f"rollout/kind/{kind}/success": rate for kind, rate in rates.items()}
        return success | {f"rollout/kind/{kind}/num_groups": 8 / len(rates) for kind in rates}

    kinds = ["curriculum.kind_field=kind", "schedule.max_epochs=1"]
    found = diagnose_run(run(hopeless, num_tasks=10_000, more=kinds, metrics=metrics))["stall.groups_agree"]
    assert set(found.settings) == asked_for
    assert ("use tasks of their kinds more often" in found.change) == ("curriculum.select" in asked_for)


def test_a_kind_that_failed_in_few_groups_shows_nothing() -> None:
    def metrics(step: int) -> dict[str, float]:
        # In each step, another kind fails.
        new = {f"rollout/kind/new{step}/success": 0.0, f"rollout/kind/new{step}/num_groups": 3.0}
        return new | {"rollout/kind/fair/success": 0.25, "rollout/kind/fair/num_groups": 5.0}

    found = diagnose_run(run(hopeless, num_tasks=10_000, more=["curriculum.kind_field=kind"], metrics=metrics))
    assert set(found["stall.groups_agree"].settings) == {"batch.refill_groups"}


def selected(step: int) -> dict[str, float]:
    """The metrics of a policy that succeeds in a tenth of the offered tasks throughout, while those that never succeed rest
    more and more."""
    shown, offered = min(0.9, 0.1 + 0.06 * step), 0.1 + 0.02 * (step % 3 - 1)
    means = {f"rollout/{what}/mean": shown for what in ("reward", "score")}
    return means | {f"rollout/{what}/offered_mean": offered for what in ("reward", "score")}


def test_a_selection_of_tasks_that_raises_the_reward_is_not_progress() -> None:
    validations = dict.fromkeys((0, 10, 20), 0.1)
    more = ["curriculum.select=mixed"]
    observed = run(hopeless, metrics=selected, validations=validations, more=more)
    # Validation does not lag behind training: neither has risen.
    assert "stall.validation_flat" not in diagnose_run(observed)
    found = diagnose("runs/x", observed)
    assert found.course["reward"] == [pytest.approx(0.1), pytest.approx(0.1, abs=0.02)]
    alone = run(
        hopeless,
        validations=validations,
        metrics=lambda step: {"rollout/reward/mean": selected(step)["rollout/reward/mean"]},
    )
    assert "stall.validation_flat" in diagnose_run(alone)


def test_a_rise_that_a_selection_hides_is_not_a_stall() -> None:
    def metrics(step: int) -> dict[str, float]:
        means = {f"rollout/{what}/mean": 0.5 + 0.02 * (step % 3 - 1) for what in ("reward", "score")}
        return means | {f"rollout/{what}/offered_mean": 0.2 + 0.025 * step for what in ("reward", "score")}

    observed = run(0.5, steps=24, metrics=metrics, more=["curriculum.select=frontier"])
    found = diagnose("runs/x", observed)
    assert found.state == "fine"
    assert "the reward rises (0.23 at first, 0.75 now)" in found.headline
    assert found.course["reward"] == [0.225, 0.75]


def test_a_run_whose_offered_tasks_are_solved_is_solved_though_the_selected_ones_are_not() -> None:
    """Solved tasks rest, so most episodes are of those that are not."""
    solved = {f"rollout/{what}/offered_mean": 0.97 for what in ("reward", "score")}
    observed = run(0.5, steps=24, metrics=lambda step: solved, more=["curriculum.select=frontier"])
    assert diagnose("runs/x", observed).state == "solved"
    assert diagnose("runs/x", run(0.5, steps=24)).state != "solved"
