"""Each rule on a run that shows its symptom, with the change it proposes, and on one that looks like it and is healthy."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from sparring.config import validate
from sparring.config.recipe import tables
from sparring.diagnosis import SYMPTOMS
from sparring.diagnosis.course import difference
from sparring.diagnosis.diagnose import diagnose
from sparring.diagnosis.observed import Observed, Progress
from sparring.diagnosis.proposal import overrides
from sparring.findings import Finding, Severity
from sparring.ledger.attempts import Attempts
from sparring.run_folders.history import Digest, RecordedCall
from sparring.types import Outcome
from tests.diagnosis.runs import changed, diagnose_run, falls, hopeless, number, rises, run

GET = RecordedCall(name="get", arguments='{"key": "b"}')


def attempts(total: float, *, failed: float) -> dict[str, float]:
    """Of a step, as they are counted."""
    return {
        "rollout/attempts": total,
        "rollout/failed_attempts": failed,
        "rollout/discarded/infra_error": failed,
        "rollout/discarded/env_timeout": 0.0,
    }


def unpaid(digest: Digest, step: int) -> Digest:
    """But for one episode, so that the reward is not constant."""
    return digest if digest.id == "train/2/task-16/0.0" else replace(digest, reward=0.0)


def updated(**values: Callable[[int], float]) -> Callable[[int], Mapping[str, float]]:
    """Metrics of training by their last name, each a function of the step."""
    names = {"entropy": "rollout/logprob/entropy"}
    return lambda step: {names.get(name, f"training/{name}"): value(step) for name, value in values.items()}


def destroyed(step: int, task: int) -> float:
    """By the first update."""
    return 0.4 if step == 1 else 0.0


def unpaid_tasks(digest: Digest, step: int) -> Digest:
    """The reward has wrong reference answers for every other task, the scorer has the right ones."""
    return replace(digest, reward=0.0) if number(digest) % 2 else digest


def wrong_labels(digest: Digest, step: int) -> Digest:
    """Reward and scorer have wrong reference answers for every other task; the policy answers these like the others."""
    text = f"ans {digest.task_id}" if digest.reward or number(digest) % 2 else f"ans {digest.id[-3]}"
    is_wrong = number(digest) % 2
    return replace(digest, answer=text, texts=(text,), **({"reward": 0.0, "score": 0.0} if is_wrong else {}))


def guesses(digest: Digest, step: int) -> Digest:
    """Every other task is too hard: each of its episodes ends with another answer."""
    if number(digest) % 2 == 0:
        return wrong_labels(digest, step)
    text = f"ans {digest.id}"
    return replace(digest, answer=text, texts=(text,), reward=0.0, score=0.0)


def settles(digest: Digest, step: int) -> Digest:
    """Of the wrong episodes of a step, `step` in 20 end with the same answer; each of the others with its own."""
    is_common = random.Random(digest.id).random() < step / 20
    text = "ans b" if digest.reward else "ans x" if is_common else f"ans {digest.id}"
    return replace(digest, answer=text, texts=(text,))


def cut(share: int) -> Callable[[Digest, int], Digest]:
    """One of so many tasks is cut in every episode."""
    return lambda digest, step: replace(digest, num_cut=int(int(digest.task_id.split("-")[1]) % share == 0))


def stuck(digest: Digest, step: int) -> Digest:
    """Even tasks use up their turns, and are wrong."""
    if int(digest.task_id.split("-")[1]) % 2:
        return digest
    return replace(digest, num_turns=5, outcome=Outcome.MAX_TURNS, reward=0.0, score=0.0, calls=(GET, GET))


def loops(digest: Digest, step: int) -> Digest:
    return replace(digest, calls=(GET,) * 4, reward=0.0, score=0.0, num_turns=5)


def straggles(digest: Digest, step: int) -> Digest:
    """The first episode of every step waits three seconds for its environment."""
    is_slow = digest.task_id == f"task-{step * 8 % 64}" and digest.id.endswith("/0.0")
    return replace(digest, seconds=3.1) if is_slow else digest


def slow(digest: Digest, step: int) -> Digest:
    return replace(digest, seconds=1.0, policy_seconds=0.2)


def rewritten(played_again: float) -> Callable[[int], Mapping[str, float]]:
    """Of 1,000 tokens a step."""
    return lambda step: {
        "rollout/tokens/of_episodes": 1000.0,
        "rollout/tokens/played_again": played_again,
        "rollout/breaks/edited_history": 0.4,
        "rollout/breaks/dropped_text": 0.1,
        "rollout/clients/asyncopenai-python/breaks/edited_history": 0.3,
        "rollout/clients/node/breaks/edited_history": 0.1,
        "rollout/clients/node/breaks/dropped_text": 0.1,
    }


def leak(step: int) -> Mapping[str, float]:
    return {"system/memory_rss_bytes": 2**30 + step * 2**26}


ALREADY = {
    "metrics": lambda step: {"training/entropy": 0.5 - 0.01 * step, "rollout/logprob/nz_mean": -0.5 + 0.01 * step}
}

PLANTED: dict[str, tuple[Observed, set[str], Severity]] = {
    "optimizer.updates_too_large": (
        run(
            destroyed, steps=3,
            metrics=lambda step: {
                "rollout/logprob/entropy": 0.14 if step == 1 else 1.85, **({"training/update_size": 0.45} if step == 1 else {}),
            },
            change=lambda digest, step: digest if step == 1 else replace(digest, num_cut=1, outcome=Outcome.MAX_TOKENS),
        ),
        {"optimizer.learning_rate"}, Severity.ERROR,
    ),
    "batch.too_small": (
        run(0.5, metrics=lambda step: {"analysis/batch_valid_ratio": 0.5},
        more=["batch.global_batch_size=2", "batch.group_size=2"]), {"batch.global_batch_size"}, Severity.WARNING,
    ),
    "format.template": (
        run(
            rises(0.02, 0.2),
            metrics=lambda step: {
                "rollout/format/malformed": 0.4 / step, "rollout/truncated_turns": 0.3 / step, "rollout/logprob/entropy": 0.7,
            },
            change=lambda digest, step: replace(digest, num_cut=int(digest.reward == 0)),
        ),
        set(), Severity.WARNING,
    ),
    "reward.constant": (run(0.4, change=changed(reward=0.5)), set(), Severity.ERROR),
    "reward.disagrees": (run(rises(0.3, 0.9), change=unpaid_tasks), set(), Severity.ERROR),
    "tasks.labels": (run(rises(0.3, 0.9), change=wrong_labels), set(), Severity.WARNING),
    "sampling.temperature": (
        run(rises(0.1, 0.5), validations={0: 0.8, 10: 0.8}, more=["sampling.temperature=2.0"]), {"sampling.temperature"},
        Severity.WARNING,
    ),
    "stall.flat_from_start": (run(0.3, change=unpaid), set(), Severity.ERROR),
    "stall.groups_agree": (run(hopeless), {"curriculum.select"}, Severity.WARNING),
    "stall.validation_flat": (
        run(rises(0.2, 0.9), change=changed(score=0.0), validations={0: 0.2, 10: 0.2, 20: 0.2}), set(), Severity.ERROR,
    ),
    "stall.collapse": (
        run(falls, steps=30, more=["rollout.max_steps_off_policy=3"]), {"rollout.max_steps_off_policy"}, Severity.ERROR,
    ),
    "stall.nothing_moves": (run(0.4, seed=3, more=["optimizer.learning_rate=1e-5"]), {"optimizer.learning_rate"},
    Severity.WARNING),
    "tasks.surer_not_right": (run(0.08, change=settles), set(), Severity.WARNING),
    "stall.capacity": (
        run(lambda step, task: 0.3 if step < 5 else 0.6, steps=40, **ALREADY), {"model.lora_rank", "model.lora_alpha"},
        Severity.WARNING,
    ),
    "stall.no_progress": (run(rises(0.24, 0.18, 14), steps=14, validations={0: 0.2, 14: 0.2}), set(), Severity.WARNING),
    "signal.valid_below_mean": (
        run(
            lambda step, task: 0.5 if step < 7 else 1.0 if task % 2 else 0.4, steps=30, num_tasks=10_000,
            metrics=lambda step: {"training/entropy": 0.5 / step},
        ),
        {"batch.refill_groups"}, Severity.WARNING,
    ),
    "budgets.turn_tokens_in_training": (run(change=cut(8)), {"sampling.sampling_max_tokens"}, Severity.WARNING),
    "budgets.turns_in_training": (
        run(rises(0.3, 0.6), change=lambda digest, step: replace(digest,
        outcome=Outcome.MAX_TURNS) if not digest.reward else digest),
        {"environment.max_turns"}, Severity.WARNING,
    ),
    "budgets.context_in_training": (
        run(rises(0.3, 0.6), change=lambda digest, step: replace(digest,
        outcome=Outcome.MAX_TOKENS) if not digest.reward else digest),
        {"model.max_sequence_length"}, Severity.WARNING,
    ),
    "tools.failing": (
        run(metrics=lambda step: {"rollout/agent/tool_errors": 0.4, "rollout/agent/tool_errors/unknown_tool": 0.4}), set(),
        Severity.WARNING,
    ),
    "episodes.looping": (run(change=loops), set(), Severity.WARNING),
    "evaluation.all_zero": (
        run(0.0, validations={0: 0.0, 20: 0.0}), set(), Severity.ERROR,
    ),
    "evaluation.uneven_turns": (run(0.9, change=stuck), set(), Severity.WARNING),
    "evaluation.confidently_wrong": (
        run(hopeless, metrics=lambda step: {"rollout/logprob/nz_mean": -0.02, "training/entropy": 0.01}),
        {"algorithm.entropy_coef"}, Severity.WARNING,
    ),
    "evaluation.completion": (run(0.15, **ALREADY, more=["model.trained_weights=full"]), set(), Severity.NOTE),
    "difficulty.calibration": (run(lambda step, task: rises(0.1, 0.8)(step, task) if task % 5 < 2 else 0.0), set(),
    Severity.NOTE),
    "clients.refused": (
        run(
            metrics=lambda step: {
                "rollout/refused/unknown_parameter.thread": 12.0, "val/refused/unknown_parameter.thread": 1.0,
                "rollout/outcome/client_error": 0.25,
            }
        ),
        set(), Severity.ERROR,
    ),
    "environment.failures": (
        # Of 50 attempts a step, 2 fail: 10 of the last 250.
        run(metrics=lambda step: attempts(50.0, failed=2.0)), set(), Severity.WARNING,
    ),
    "system.stalled": (
        run(progress=Progress(status="running", seconds_since_last=300.0)), set(), Severity.ERROR,
    ),
    "system.mismatch": (
        run(metrics=lambda step: {"training/logprob_difference_mean": 0.1}, more=["model.precision=bf16"]),
        {"model.precision"}, Severity.ERROR,
    ),
    "system.stale": (
        run(
            metrics=lambda step: {"training/staleness_max": 4.0, "training/effective_sample_size": 0.2},
            more=["rollout.max_steps_off_policy=4"],
        ),
        {"rollout.max_steps_off_policy"}, Severity.WARNING,
    ),
    "system.filtered": (run(0.002, steps=8), {"batch.group_size"}, Severity.WARNING),
    "system.stragglers": (
        run(change=straggles, metrics=lambda step: {"timing_s/rollout": 3.5, "timing_s/step": 4.5}),
        {"rollout.max_steps_off_policy", "rollout.staleness_window"}, Severity.WARNING,
    ),
    "system.starved": (
        run(
            change=slow, metrics=lambda step: {"timing_s/rollout": 6.0, "timing_s/step": 7.0},
            more=["rollout.rollout_max_concurrency=8"],
        ),
        {"rollout.rollout_max_concurrency"}, Severity.WARNING,
    ),
    "system.window": (
        run(more=["rollout.max_steps_off_policy=1", "rollout.staleness_window=2"]),
        {"rollout.max_steps_off_policy"}, Severity.WARNING,
    ),
    "system.memory": (run(steps=30, metrics=leak), set(), Severity.WARNING),
    "histories.changed": (run(metrics=rewritten(150.0)), set(), Severity.WARNING),
}  # fmt: skip

HEALTHY: dict[str, Observed] = {
    "optimizer.updates_too_large": run(
        rises(0.4, 0.8), metrics=updated(update_size=lambda step: 0.08, entropy=lambda step: 0.5 / step**0.3)
    ),
    "batch.too_small": run(0.5, metrics=lambda step: {"analysis/batch_valid_ratio": 0.3}),
    "format.template": run(
        rises(0.3, 0.6), metrics=lambda step: {"rollout/format/malformed": 0.2 / step, "rollout/logprob/entropy": 0.7}
    ),
    "reward.constant": run(1.0),
    "reward.disagrees": run(rises(0.3, 0.9), change=lambda digest, step: replace(digest, reward=0.5 * digest.reward)),
    "tasks.labels": run(rises(0.3, 0.9), change=guesses),
    "sampling.temperature": run(rises(0.8, 0.85), validations={0: 0.8, 10: 0.8}, more=["sampling.temperature=1.5"]),
    "stall.flat_from_start": run(rises(0.02, 0.5)),
    "stall.groups_agree": run(0.99),
    "stall.validation_flat": run(rises(0.2, 0.9), validations={0: 0.2, 10: 0.5, 20: 0.8}),
    "stall.collapse": run(rises(0.2, 0.9), steps=30, more=["rollout.max_steps_off_policy=3"]),
    "stall.nothing_moves": run(0.4, **ALREADY),
    # The same answers, of a policy that gets better.
    "tasks.surer_not_right": run(rises(0.02, 0.6), change=settles),
    "stall.capacity": run(lambda step, task: 0.3 if step < 5 else 0.97, steps=40, **ALREADY),
    "stall.no_progress": run(rises(0.2, 0.5, 14), steps=14, validations={0: 0.2, 14: 0.4}),
    "signal.valid_below_mean": run(
        lambda step, task: (0.5 if step < 7 else 1.0) if task % 2 else min(1.0, 0.1 + step / 26),
        steps=24,
        num_tasks=10_000,
    ),
    "budgets.turn_tokens_in_training": run(change=cut(64)),
    "budgets.turns_in_training": run(rises(0.3, 0.6), change=changed(num_turns=5)),
    "budgets.context_in_training": run(rises(0.3, 0.6), change=changed(num_tokens=250)),
    "tools.failing": run(metrics=lambda step: {"rollout/agent/tool_errors": 0.8 - 0.03 * step}),
    "episodes.looping": run(0.95, change=changed(calls=(GET,) * 4)),
    "evaluation.all_zero": run(0.3, validations={0: 0.0, 20: 0.3}),
    "evaluation.uneven_turns": run(0.5, change=changed(num_turns=5)),
    "evaluation.confidently_wrong": run(0.97, metrics=lambda step: {"rollout/logprob/nz_mean": -0.02}),
    "evaluation.completion": run(rises(0.05, 0.6)),
    "difficulty.calibration": run(rises(0.2, 0.6)),
    # A third was lost until step 15, and nothing since.
    "environment.failures": run(
        metrics=lambda step: attempts(60.0, failed=20.0 if step <= 15 else 0.0),
        attempts=Attempts(played=960, failed={"infra_error": 300}),
    ),
    # Refused until step 15, and nothing since.
    "clients.refused": run(
        metrics=lambda step: {"rollout/refused/unknown_parameter.thread": 12.0} if step <= 15 else {},
        attempts=Attempts(played=480, refused=160, refusal="thread: this field is not known here"),
    ),
    "system.stalled": run(progress=Progress(status="running", seconds_since_last=30.0)),
    "system.mismatch": run(
        metrics=lambda step: {"training/logprob_difference_mean": 0.01}, more=["model.precision=bf16"]
    ),
    "system.stale": run(
        metrics=lambda step: {"training/staleness_max": 4.0, "training/effective_sample_size": 0.95},
        more=["rollout.max_steps_off_policy=4"],
    ),
    "system.filtered": run(0.99, steps=12),
    "system.stragglers": run(change=changed(seconds=3.1), metrics=lambda step: {"timing_s/rollout": 3.5}),
    "system.starved": run(
        change=changed(seconds=1.0, policy_seconds=0.99), metrics=lambda step: {"timing_s/rollout": 6.0}
    ),
    "histories.changed": run(metrics=rewritten(50.0)),
    "system.window": run(more=["rollout.max_steps_off_policy=2", "rollout.staleness_window=2"]),
    "system.memory": run(metrics=lambda step: {"system/memory_rss_bytes": 2**30 + min(step, 8) * 2**27}),
}


def test_every_rule_has_a_planted_and_a_healthy_run_here() -> None:
    assert set(PLANTED) == set(HEALTHY) == set(SYMPTOMS) - {"change.judged"}
    assert all(len(one.meaning) > 40 for one in SYMPTOMS.values())


@pytest.mark.parametrize("rule", PLANTED)
def test_a_planted_symptom_is_named_with_its_change(rule: str) -> None:
    observed, settings, severity = PLANTED[rule]
    diagnosis = diagnose("runs/x", observed)
    found = {one.rule: one for one in diagnosis.findings}
    assert rule in found, list(found)
    assert found[rule].severity is severity
    assert set(found[rule].settings) == settings
    assert found[rule].evidence
    if settings:  # a proposal is a recipe that works, and differs
        assert validate(tables(observed.config), overrides(found[rule].settings)) != observed.config
    first = diagnosis.first
    assert severity is Severity.NOTE or (first is not None and first.rule == rule)


@pytest.mark.parametrize("rule", HEALTHY)
def test_what_only_looks_like_it_is_not_named_and_has_no_error(rule: str) -> None:
    found = diagnose_run(HEALTHY[rule])
    assert rule not in found
    assert not [one.rule for one in found.values() if one.severity is Severity.ERROR]


@pytest.mark.parametrize("score", [True, False])
def test_the_rate_is_named_after_the_first_update_that_destroyed_the_policy(score: bool) -> None:
    """Of a policy that was right in 40 % of 48 episodes and is right in none of the next 48."""
    observed = run(
        destroyed,
        steps=2,
        metrics=updated(
            update_size=lambda step: 0.45 if step == 1 else 0.0, entropy=lambda step: 0.14 if step == 1 else 1.9
        ),
        change=lambda digest, step: digest if score else replace(digest, score=None),
        more=["optimizer.learning_rate=0.05"],
    )
    first = diagnose("runs/x", observed).first
    assert first is not None
    assert first.rule == "optimizer.updates_too_large"
    assert first.settings == {"optimizer.learning_rate": 6e-4}  # 0.05 * 0.005 / 0.45
    assert first.before_step == 1


def test_a_policy_that_is_sure_of_turns_that_are_all_cut_needs_more_tokens_and_is_not_broken() -> None:
    cut_short = run(
        0.0,
        validations={0: 0.0, 20: 0.0},
        change=changed(num_cut=1, outcome=Outcome.MAX_TOKENS),
        metrics=lambda step: {"rollout/logprob/entropy": 0.001, "rollout/truncated_turns": 1.0},
    )
    found = diagnose("runs/x", cut_short)
    assert found.first is not None
    assert found.first.rule == "budgets.turn_tokens_in_training"
    assert "evaluation.all_zero" in {one.finding.rule for one in found.silenced}


def test_what_validation_contradicts_is_not_solved() -> None:
    cold = run(0.99, validations={0: 0.3, 20: 0.5}, more=["sampling.temperature=0.1", "evaluation.val_temperature=1.0"])
    assert not cold.is_solved
    assert run(0.99, validations={0: 0.3, 20: 0.95}).is_solved
    assert run(0.99, validations={0: 0.3, 10: 0.5}).is_solved  # of a step long ago, in a run that trains


def test_memory_that_grows_in_a_short_run_is_no_leak_yet() -> None:
    assert "system.memory" not in diagnose_run(run(steps=20, metrics=leak))


def test_large_updates_that_gain_nothing_are_a_warning() -> None:
    large = updated(update_size=lambda step: 0.1, entropy=lambda step: 0.3)
    first = diagnose("runs/x", run(0.4, steps=8, seed=1, metrics=large)).first
    assert first is not None
    assert (first.rule, first.severity) == ("optimizer.updates_too_large", Severity.WARNING)


@pytest.mark.parametrize(
    ("size", "rule"), [(0.7, "optimizer.updates_too_large"), (0.1, "budgets.turn_tokens_in_training")]
)
def test_an_update_that_left_nothing_of_a_weak_policy_comes_before_the_turns_without_an_end_that_follow(
    size: float, rule: str
) -> None:
    # Of 48 episodes 3 were right, too few for a loss of 3 standard errors; then every turn is cut.
    observed = run(
        lambda step, task: 0.06 if step == 1 else 0.0,
        steps=8,
        metrics=updated(update_size=lambda step: size, entropy=lambda step: 0.07),
        change=lambda digest, step: replace(digest, num_cut=int(step > 1)),
    )
    first = diagnose("runs/x", observed).first
    assert first is not None
    assert first.rule == rule


def test_updates_that_leave_every_log_probability_are_named_with_what_holds_them_back() -> None:
    def still(*more: str, rate: float = 4e-5) -> Mapping[str, object]:
        moved = updated(probe_change=lambda step: 1e-6, update_size=lambda step: 1e-7, learning_rate=lambda step: rate)
        first = diagnose("runs/x", run(0.4, steps=5, metrics=moved, more=more)).first
        assert first is not None
        assert first.rule == "stall.nothing_moves"
        return first.settings

    assert still("schedule.max_steps=2000000", "optimizer.warmup_steps=1000000", rate=1e-9) == {
        "optimizer.warmup_steps": 10
    }
    assert still("optimizer.adam_eps=1000") == {"optimizer.adam_eps": 1e-8}
    assert still("optimizer.adam_grad_clip_norm=1e-12") == {"optimizer.adam_grad_clip_norm": 1.0}
    assert still() == {"optimizer.learning_rate": 1.0}  # 4e-5 * 0.005 / 1e-7 is 2, and above 1 is refused


def test_the_client_that_changes_histories_is_named_with_the_reason() -> None:
    found = diagnose_run(PLANTED["histories.changed"][0])["histories.changed"]
    assert found.symptom.startswith("asyncopenai-python sends changed histories back (edited_history: 40%")
    assert "15% of the episodes' tokens" in found.symptom
    assert found.evidence["clients"] == {"asyncopenai-python": 0.3, "node": 0.1}


def test_tokens_that_the_correction_leaves_out_are_stale_though_the_others_count() -> None:
    def weighing(weight: float) -> Observed:
        shown = {
            "training/staleness_max": 4.0,
            "training/effective_sample_size": 0.95,
            "training/correction/weight": weight,
        }
        return run(metrics=lambda step: shown, more=["rollout.max_steps_off_policy=4"])

    assert diagnose_run(weighing(0.7))["system.stale"].evidence["left_out_by_the_correction"] == pytest.approx(0.3)
    assert "system.stale" not in diagnose_run(weighing(0.9))


def test_rounding_may_move_a_certain_policy_by_less() -> None:
    # A twentieth of the entropy: 0.005 of 0.1, and of 1.0 the most that is allowed, 0.05.
    def rounded(entropy: float) -> dict[str, Finding]:
        shown = {"training/logprob_difference_mean": 0.01, "training/entropy": entropy}
        return diagnose_run(run(metrics=lambda step: shown, more=["model.precision=bf16"]))

    assert "system.mismatch" in rounded(0.1)
    assert "system.mismatch" not in rounded(1.0)


def test_groups_that_differ_and_give_no_advantage_ask_for_another_method() -> None:
    silent = {"training/steps_without_signal": 1.0, "analysis/batch_valid_ratio": 0.0, "analysis/zero_adv_groups": 8.0}
    found = diagnose_run(run(0.5, metrics=lambda step: silent, more=["algorithm.advantage_method=grpo_passk"]))
    assert found["system.filtered"].settings == {"algorithm.advantage_method": "group_based"}
    assert "stall.groups_agree" not in found


def test_steps_whose_turns_a_form_overruled_ask_to_teach_the_form_and_no_other_method() -> None:
    shown = {"training/steps_without_signal": 1.0, "analysis/batch_valid_ratio": 1.0, "rollout/untrained_turns": 1.0}

    def found(overruled: float) -> Finding:
        measured = {**shown, "rollout/overruled_turns": overruled}
        return diagnose_run(run(0.5, metrics=lambda step: measured))["system.filtered"]

    assert "none of their turns may be trained" in found(1.0).symptom
    assert found(1.0).settings == {}
    assert "form" in found(1.0).change
    assert "temperature" in found(0.0).change


def test_a_window_is_reported_before_the_first_step() -> None:
    more = ["rollout.max_steps_off_policy=1", "rollout.staleness_window=2"]
    assert "system.window" in diagnose_run(run(steps=0, more=more))


def test_training_does_not_run_ahead_of_an_environment_that_takes_nearly_all_of_a_step() -> None:
    def starved(rollout: float, *more: str) -> Finding:
        shown = {"timing_s/rollout": rollout, "timing_s/step": 7.0}
        return diagnose_run(run(change=slow, metrics=lambda step: shown, more=more))["system.starved"]

    assert starved(6.0).settings == {"rollout.max_steps_off_policy": 1}
    assert starved(6.8).settings == {"engine.deterministic": False}
    for chosen in ("engine.deterministic=true", "engine.deterministic=false"):
        assert starved(6.8, chosen).settings == {}


def test_what_only_costs_time_comes_after_what_affects_learning() -> None:
    shown = {"timing_s/rollout": 6.0, "timing_s/step": 7.0}
    found = diagnose("runs/x", run(hopeless, change=slow, metrics=lambda step: shown))
    rules = [one.rule for one in found.findings if one.severity is Severity.WARNING]
    assert len(rules) > 1
    assert rules[-1] == "system.starved", rules
    assert "system.starved" not in found.headline


def test_the_wait_for_an_agent_of_the_user_is_not_called_an_environment() -> None:
    shown = {"timing_s/rollout": 6.0, "timing_s/step": 7.0}
    observed = run(change=slow, metrics=lambda step: shown)
    own = replace(
        observed, config=validate({"agent": {"function": "agent:play"}, "rollout": {"max_steps_off_policy": 0}})
    )
    assert "for their environment" in diagnose_run(observed)["system.starved"].symptom
    assert "for your agent's code, client and tools" in diagnose_run(own)["system.starved"].symptom


def test_tasks_that_go_on_and_on_are_read_before_they_get_more_turns() -> None:
    def endless(others: int) -> Finding | None:
        """Even tasks use up their five turns on ever new calls; others are right after so many."""

        def play(digest: Digest, step: int) -> Digest:
            if int(digest.task_id.split("-")[1]) % 2:
                return replace(digest, num_turns=others, reward=1.0, score=1.0)
            asked = tuple(RecordedCall(name="get", arguments=str(turn)) for turn in range(5))
            return replace(digest, num_turns=5, outcome=Outcome.MAX_TURNS, reward=0.0, score=0.0, calls=asked)

        return diagnose("runs/x", run(change=play)).first

    with_room, without = endless(others=3), endless(others=4)
    assert with_room is not None
    assert (with_room.rule, with_room.settings) == ("evaluation.uneven_turns", {})
    assert without is not None
    assert (without.rule, without.settings) == ("budgets.turns_in_training", {"environment.max_turns": 10})


def test_a_proposed_rate_is_written_as_a_person_would() -> None:
    def proposed(rate: str) -> list[str]:
        return overrides(
            diagnose_run(run(0.4, seed=3, more=[f"optimizer.learning_rate={rate}"]))["stall.nothing_moves"].settings
        )

    # Tenfold, or what takes weights by 0.001 in 20 steps.
    assert proposed("1.1e-5") == ["optimizer.learning_rate=0.00011"]
    assert proposed("5e-7") == ["optimizer.learning_rate=5e-05"]


def test_a_run_that_has_not_begun_is_early() -> None:
    assert diagnose("runs/x", run(steps=0)).state == "early"


def test_an_alarm_of_the_system_silences_the_advice_that_it_explains() -> None:
    observed = run(hopeless, progress=Progress(status="running", seconds_since_last=999.0))
    found = diagnose("runs/x", observed)
    assert [one.rule for one in found.findings] == ["system.stalled"]
    assert ("stall.groups_agree", "system.stalled") in {(one.finding.rule, one.by) for one in found.silenced}


def test_a_run_that_never_finished_a_step_is_diagnosed_by_its_ledger() -> None:
    lost = Attempts(played=10, failed={"infra_error": 60, "env_timeout": 30}, detail="no connection")
    found = diagnose_run(replace(run(steps=0), attempts=lost))["environment.failures"]
    # 90 of 100.
    assert found.severity is Severity.ERROR
    assert found.symptom.startswith("90.0% of the last 100 attempts")
    assert found.evidence["last"] == "no connection"


def test_a_trend_within_a_part_is_no_noise() -> None:
    # Neighbors lie 0.1 apart, half of its square is 0.005: sqrt(2 * 0.005 / 4).
    change = difference([0.0, 0.1, 0.2, 0.3], [0.4, 0.5, 0.6, 0.7])
    assert (change.value, change.error) == (pytest.approx(0.4), pytest.approx(0.05))


def test_a_hacked_reward_asks_to_go_back_to_where_validation_was_best() -> None:
    observed = run(
        rises(0.2, 0.9), change=lambda digest, step: replace(digest, score=0.2), validations={0: 0.3, 10: 0.35, 20: 0.1}
    )
    assert "the checkpoint of step 10" in diagnose_run(observed)["stall.validation_flat"].change
