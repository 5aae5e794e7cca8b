"""What sets a fault apart from what looks like it: a share of few episodes from one above its bound, wrong references from hard
tasks, a budget from something broken, a wrong template from a policy that has not learned yet."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch

from sparring.algorithms.losses import Tokens
from sparring.algorithms.objective import Objective
from sparring.diagnosis.diagnose import diagnose
from sparring.findings import Severity
from sparring.run_folders.history import Digest
from sparring.types import Json, Outcome
from tests.diagnosis.runs import config, diagnose_run, rises, run

CUT = "budgets.turn_tokens_in_training"
OUT_OF_TURNS = "budgets.turns_in_training"


SAME = rises(0.24, 0.18, 14)
"""A success that does not rise, whatever the draw."""


def of(digest: Digest, member: int) -> bool:
    """Whether it is this member of its group."""
    return digest.id.endswith(f"/{member}.0")


def number(digest: Digest) -> int:
    return int(digest.task_id.split("-")[1])


def first_rule(observed) -> tuple[str | None, Mapping[str, Json]]:
    first = diagnose("runs/x", observed).first
    return (None, {}) if first is None else (first.rule, first.settings)


def test_a_share_of_cut_episodes_speaks_once_it_is_above_its_bound_for_sure() -> None:
    def cut(every: int) -> Callable[[Digest, int], Digest]:
        return lambda digest, step: replace(digest, num_cut=int(of(digest, 0) and number(digest) % every == 0))

    # Of 240 late episodes 20 are cut: 8.3 % +- 1.8 %, within two errors of 5 %. Then 40: 17 %.
    assert CUT not in diagnose_run(run(rises(0.3, 0.7), change=cut(2), num_tasks=64))
    assert CUT in diagnose_run(
        run(rises(0.3, 0.7), change=lambda digest, step: replace(digest, num_cut=int(of(digest, 0))))
    )


@pytest.mark.parametrize("outcome", [Outcome.MAX_TOKENS, Outcome.MAX_TURNS])
def test_where_most_episodes_are_cut_and_none_is_right_the_budget_comes_before_whatever_may_be_broken(
    outcome: Outcome,
) -> None:
    rule, key = {
        Outcome.MAX_TOKENS: (CUT, "sampling.sampling_max_tokens"),
        Outcome.MAX_TURNS: (OUT_OF_TURNS, "environment.max_turns"),
    }[outcome]

    def cut(digest: Digest, step: int) -> Digest:
        is_cut = int(digest.id[-3]) < 4  # four of six
        return replace(digest, num_cut=int(is_cut and rule == CUT), outcome=outcome if is_cut else digest.outcome)

    def observed(entropy: float):
        return run(
            0.0,
            change=cut,
            validations={0: 0.0, 10: 0.0, 20: 0.0},
            metrics=lambda step: {"rollout/logprob/entropy": entropy},
        )

    assert first_rule(observed(0.05)) == (rule, {key: 64 if rule == CUT else 10})
    assert diagnose_run(observed(0.05))[rule].severity is Severity.ERROR
    # Of a policy that is unsure of each token, being cut is a consequence.
    assert diagnose_run(observed(2.0))[rule].severity is Severity.WARNING


def test_episodes_that_go_round_in_circles_do_not_want_turns() -> None:
    def loops(digest: Digest, step: int) -> Digest:
        return replace(digest, calls=digest.calls * 4, num_turns=5, outcome=Outcome.MAX_TURNS)

    observed = run(
        0.0, change=loops, validations={0: 0.0, 20: 0.0}, metrics=lambda step: {"rollout/logprob/entropy": 0.05}
    )
    assert first_rule(observed) == ("evaluation.all_zero", {})


def test_a_policy_that_learned_to_answer_before_its_turns_are_used_up_still_wants_turns() -> None:
    def gives_up(turns: int) -> Callable[[Digest, int], Digest]:
        def change(digest: Digest, step: int) -> Digest:
            is_out = step <= 2 and digest.reward == 0
            ended = Outcome.MAX_TURNS if is_out else Outcome.FINISHED
            return replace(digest, num_turns=5 if is_out else turns, outcome=ended)

        return change

    # Right episodes use all five turns that there are, or three of them.
    assert diagnose_run(run(0.3, change=gives_up(5)))[OUT_OF_TURNS].settings == {"environment.max_turns": 10}
    assert OUT_OF_TURNS not in diagnose_run(run(0.3, change=gives_up(3)))
    assert OUT_OF_TURNS not in diagnose_run(run(0.95, change=gives_up(5)))


def test_hard_tasks_that_end_in_the_same_few_guesses_are_not_wrong_references() -> None:
    def labels(guess: Callable[[Digest], str]) -> Callable[[Digest, int], Digest]:
        """Every other task is never right, though its episodes agree."""

        def change(digest: Digest, step: int) -> Digest:
            is_wrong = number(digest) % 2 == 1
            answer = guess(digest) if is_wrong else f"ans {number(digest)}"
            values = {"reward": 0.0, "score": 0.0} if is_wrong else {}
            return replace(digest, answer=answer, texts=(answer,), **values)

        return change

    assert "tasks.labels" in diagnose_run(run(0.8, change=labels(lambda digest: f"ans {number(digest)}")))
    assert "tasks.labels" not in diagnose_run(run(0.8, change=labels(lambda digest: f"ans {number(digest) % 32}")))


def test_episodes_that_agree_a_little_less_where_nothing_is_right_may_have_wrong_references_all_the_same() -> None:
    def labels(agree: int, turns: int) -> Callable[[Digest, int], Digest]:
        """Every other task is never right; so many of its six episodes agree in three of four groups, and all of them in the
        fourth. Others agree where they are right, five of six on average."""

        def change(digest: Digest, step: int) -> Digest:
            if number(digest) % 2 == 0:
                text = f"ans {number(digest)}" if digest.reward else f"ans {digest.id}"
                return replace(digest, answer=text, texts=(text,))
            is_common = int(digest.id[-3]) < agree or number(digest) % 8 == 1
            text = f"ans {number(digest)}" if is_common else f"ans {digest.id}"
            return replace(digest, answer=text, texts=(text,), reward=0.0, score=0.0, num_turns=turns)

        return change

    # On average 0.63 of a group, 0.69 by two standard errors; four fifths of what the others agree is 0.65.
    assert "tasks.labels" in diagnose_run(run(0.75, change=labels(3, turns=2)))
    assert "tasks.labels" not in diagnose_run(run(0.75, change=labels(2, turns=2)))
    # With twice the turns of the others, or half, they are played otherwise.
    assert "tasks.labels" not in diagnose_run(run(0.75, change=labels(5, turns=4)))
    assert "tasks.labels" not in diagnose_run(run(0.75, change=labels(5, turns=1)))


def test_a_run_without_progress_and_without_other_findings_is_never_called_fine() -> None:
    flat = {"steps": 14, "validations": {0: 0.2, 14: 0.2}}
    first = diagnose("runs/x", run(SAME, **flat)).first
    assert first is not None
    assert first.rule == "stall.no_progress"
    assert "reference answers" in first.change
    # Nothing validates it yet; it was validated some steps ago; it is mostly right; or another rule has something to say.
    assert first_rule(run(SAME, steps=14)) == (None, {})
    assert first_rule(run(SAME, steps=14, validations={0: 0.2, 11: 0.2})) == (None, {})
    assert first_rule(run(0.6, steps=14, validations={0: 0.6, 14: 0.6})) == (None, {})
    assert "stall.no_progress" not in diagnose_run(
        run(SAME, **flat, change=lambda one, step: replace(one, num_cut=int(of(one, 0))))
    )


def test_a_success_that_falls_is_named_though_most_episodes_are_right() -> None:
    found = diagnose_run(run(rises(0.85, 0.6, 14), steps=14, validations={0: 0.85, 14: 0.6}))
    assert found["stall.no_progress"].symptom.startswith("success has fallen in 14 steps")


def test_equal_episodes_that_earn_other_rewards_are_counted() -> None:
    # Of six episodes of a task all say and do the same; they are drawn to be right or wrong.
    found = diagnose_run(run(SAME, steps=14, validations={0: 0.2, 14: 0.2}))["stall.no_progress"]
    assert found.evidence["equal_episodes"] == 4 * 8 * 6
    assert 0.5 < found.evidence["of_these_paid_differently"] / (4 * 8 * 6) < 0.95


def test_a_template_that_contradicts_itself_is_named_in_a_run_that_learns_all_the_same() -> None:
    learns = rises(0.3, 1.0, 10)
    assert diagnose("runs/x", run(learns)).state == "solved"
    first = diagnose(
        "runs/x", run(learns, template_problem="it asks for an answer with '<a>' and begins none so")
    ).first
    assert first is not None
    assert (first.rule, first.severity) == ("format.template", Severity.ERROR)
    assert "'<a>'" in first.symptom


def test_what_a_step_of_a_few_episodes_earns_is_no_collapse() -> None:
    falls = {"rollout/reward/min": 0.0, "analysis/batch_valid_ratio": 0.5}

    def observed(*more: str):
        return run(metrics=lambda step: {**falls, "rollout/reward/mean": 0.6 if step < 8 else 0.0}, more=more)

    assert first_rule(observed())[0] == "stall.collapse"
    rule, settings = first_rule(observed("batch.global_batch_size=1"))
    assert (rule, set(settings)) == ("batch.too_small", {"batch.global_batch_size"})


@pytest.mark.parametrize(("limit", "proposed"), [(1, 4), (2, 4), (3, 6)])
def test_no_budget_is_proposed_that_hardly_a_call_fits_into(limit: int, proposed: int) -> None:
    def out(digest: Digest, step: int) -> Digest:
        return replace(digest, outcome=Outcome.MAX_TURNS, reward=0.0, score=0.0, num_turns=limit, calls=())

    assert first_rule(run(change=out, more=[f"environment.max_turns={limit}"])) == (
        OUT_OF_TURNS,
        {"environment.max_turns": proposed},
    )
    cut = run(change=lambda one, step: replace(one, num_cut=1), more=[f"sampling.sampling_max_tokens={8 * limit}"])
    assert diagnose_run(cut)[CUT].settings == {"sampling.sampling_max_tokens": max(32, 16 * limit)}


def test_hot_sampling_is_seen_by_all_validations_where_the_first_is_too_few_tasks() -> None:
    def observed(validated: float):
        return run(
            0.02,
            validations=dict.fromkeys((0, 5, 10, 15), validated),
            more=["sampling.temperature=1.5"],
        )

    # Of 48 tasks 0.1 +- 0.043 against 0.02 +- 0.02 is no difference; of 192 it is more than two errors.
    assert "sampling.temperature" in diagnose_run(observed(0.1))
    assert "sampling.temperature" not in diagnose_run(observed(0.03))


def test_cold_groups_that_are_equal_word_for_word_ask_for_a_warmer_temperature_though_the_reward_rises() -> None:
    def observed(temperature: float):
        def rate(step: int, task: int) -> float:
            """One group of eight is mixed; of the others ever more are right as a whole."""
            return 0.5 if task % 8 == 0 else float(task * 7 % 10 < step)

        return run(
            rate,
            change=lambda digest, step: replace(digest, texts=("ans c",)),
            steps=10,
            more=[f"sampling.temperature={temperature}"],
        )

    assert first_rule(observed(0.1)) == ("stall.groups_agree", {"sampling.temperature": 1.0})
    assert "stall.groups_agree" not in diagnose_run(observed(0.8))


def test_a_template_that_does_not_continue_what_was_sampled_is_named_whatever_the_success() -> None:
    def observed(refused: float):
        return run(rises(0.3, 0.6), metrics=lambda step: {"rollout/breaks/splice_refused": refused})

    assert first_rule(observed(0.6)) == ("format.template", {})
    assert "format.template" not in diagnose_run(observed(0.1))


@pytest.mark.parametrize(
    ("malformed", "cut", "now", "is_named"),
    [
        (0.6, 0.0, 0.02, True),  # calls that cannot be read, of a policy that is sure of them
        (0.6, 0.6, 0.02, False),  # since they are cut
        (0.6, 0.0, 0.5, False),  # at first; it has learned since
    ],
)
def test_calls_that_cannot_be_read_are_the_template_where_they_were_not_cut_and_are_not_unlearned(
    malformed: float, cut: float, now: float, is_named: bool
) -> None:
    shown = {
        "rollout/format/malformed": malformed,
        "rollout/truncated_turns": cut,
        "rollout/logprob/entropy": 0.1,
    }
    observed = run(lambda step, task: 0.02 if step <= 2 else now, metrics=lambda step: shown)
    assert ("format.template" in diagnose_run(observed)) is is_named


def test_a_reward_that_taught_other_answers_disagrees_though_no_late_episode_is_right_any_more() -> None:
    def change(digest: Digest, step: int) -> Digest:
        """Right ones earn nothing, some wrong ones are paid; after ten steps none is right."""
        is_right = digest.reward == 1 and step <= 10
        return replace(digest, score=float(is_right), reward=0.0 if is_right else float(of(digest, 0)))

    assert "reward.disagrees" in diagnose_run(run(0.5, change=change))


def test_a_reward_that_disagreed_in_the_middle_of_a_run_disagrees_though_its_last_steps_do_not_show_it() -> None:
    def change(digest: Digest, step: int) -> Digest:
        """Two of three tasks have wrong reference answers; of these none is right in the last steps."""
        is_wrong = number(digest) % 3 < 2
        return replace(digest, reward=0.0, **({"score": 0.0} if step > 14 else {})) if is_wrong else digest

    finding = diagnose_run(run(0.5, change=change))["reward.disagrees"]
    assert finding.evidence["steps"] == [1, 20]


def test_what_a_rise_has_left_over_is_harder_than_the_average_and_no_symptom_yet() -> None:
    def gap(step: int) -> dict[str, float]:
        return {"rollout/reward/mean": 0.7, "rollout/reward/valid_mean": 0.7 - 0.02 * step}

    assert "signal.valid_below_mean" in diagnose_run(run(0.7, metrics=gap, steps=24))
    assert "signal.valid_below_mean" not in diagnose_run(run(0.7, metrics=gap, steps=14))


@pytest.mark.parametrize("loss_fn", ["cispo", "importance_sampling"])
@pytest.mark.parametrize("moved", [0.41, 0.93])
def test_what_the_default_mask_leaves_out_of_stale_tokens_is_reported(loss_fn: str, moved: float) -> None:
    more = [f"algorithm.loss_fn={loss_fn}", "rollout.max_steps_off_policy=2"]
    correction = config(*more).off_policy_correction
    assert correction == "geometric_mask"
    # A hundred trajectories of ten tokens; in some of them each token has become likelier by 2 %.
    trajectory = torch.arange(100).repeat_interleave(10)
    sampled = torch.full((1000,), -1.0)
    new = sampled + 0.02 * (trajectory < round(100 * moved))
    tokens = Tokens(logprobs_M=new, old_M=sampled, advantages_M=torch.ones(1000), trajectory_M=trajectory)
    _, metrics = Objective.from_config(loss_fn, {"off_policy_correction": correction})(tokens, sampled_M=sampled)
    shown = {
        f"training/{name}": metrics[name].mean().item() for name in ("correction/weight", "correction/changed_fraction")
    }
    assert shown["training/correction/changed_fraction"] == pytest.approx(moved)
    found = diagnose_run(run(rises(0.3, 0.7), metrics=lambda step: {**shown, "training/staleness_max": 2.0}, more=more))
    assert found["system.stale"].settings == {"rollout.max_steps_off_policy": 1}
    assert found["system.stale"].evidence["changed_by_the_correction"] == pytest.approx(moved, abs=1e-3)


def settles(common: Callable[[int], float]) -> Callable[[Digest, int], Digest]:
    """So many of the wrong episodes of a step end with the same answer, each of the others with its own."""

    def change(digest: Digest, step: int) -> Digest:
        is_common = random.Random(digest.id).random() < common(step)
        return replace(digest, answer="ans b" if digest.reward else "ans x" if is_common else f"ans {digest.id}")

    return change


def test_a_policy_that_settles_on_wrong_answers_is_blamed_on_its_tasks_where_nothing_else_is_amiss() -> None:
    more_and_more = settles(lambda step: step / 20)
    assert "tasks.surer_not_right" in diagnose_run(run(0.08, change=more_and_more))
    # It has always guessed alike; or it settles on guesses for every other task, and learns to solve the others.
    assert "tasks.surer_not_right" not in diagnose_run(run(0.08, change=settles(lambda step: 0.9)))
    half = run(
        lambda step, task: rises(0.0, 0.5)(step, task) if task % 8 < 4 else 0.0,
        change=settles(lambda step: min(1.0, step / 12)),
    )
    assert "tasks.surer_not_right" not in diagnose_run(half)
    failing = {"rollout/agent/tool_errors": 0.4, "rollout/agent/tool_errors/unknown_tool": 0.4}
    found = diagnose_run(run(0.08, change=more_and_more, metrics=lambda step: failing))
    assert "tools.failing" in found
    assert "tasks.surer_not_right" not in found


def test_episodes_that_all_come_to_end_alike_have_settled_on_nothing_where_a_state_is_graded() -> None:
    def done(digest: Digest, step: int) -> Digest:
        return replace(digest, answer="Done." if digest.reward or step > 6 else f"ans {digest.id}")

    assert "tasks.surer_not_right" not in diagnose_run(run(0.08, change=done))
