"""The first screen: whether held-out success rose, and every reason not to trust it."""

from pathlib import Path

import pytest

from sparring.report.episodes import episodes
from sparring.report.page import page
from sparring.report.reading import read_run
from sparring.report.verdict import Rise, State, Verdict, build_verdict, worst_first
from tests.report.stored_run import RECIPE, StoredRun, episode, evaluation, finding, held_out

LOW, HIGH = [1.0] * 6 + [0.0] * 24, [1.0] * 27 + [0.0] * 3
"""Of 30 tasks: 20 % right, and 90 %."""


def verdict_of(run: StoredRun) -> Verdict:
    record = read_run(run.path)
    return build_verdict(record, seen_in_training=episodes(record).seen_in_training)


def evaluated(run: StoredRun, before: list[float], after: list[float], **options: list[float]) -> None:
    first, last = held_out("base-0", before), held_out("tuned-0", after, **options)
    run.evaluated((evaluation("base", first), first), (evaluation("tuned", last), last))


def states(one: Verdict) -> dict[str, State]:
    return {look.name: look.state for look in one.looks}


def test_a_rise_that_an_independent_scorer_saw_and_nothing_speaks_against_is_trusted(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.log({1: {"rollout/reward/mean": 0.5}, 2: {"rollout/reward/mean": 0.6}})
    evaluated(run, LOW, HIGH)
    one = verdict_of(run)
    assert (one.rise, one.trust, one.is_held_out) == (Rise.ROSE, State.GOOD, True)
    assert one.comparison is not None
    # 21 of 30 tasks turn right: 27/30 - 6/30.
    assert one.comparison.difference.mean == pytest.approx(0.7)
    assert len(one.comparison.fixed) == 21
    assert one.headline == "One seed, greedily: better than the base model (+0.70 [+0.51, +0.83])."


def test_a_difference_of_one_task_is_no_rise_and_the_mirror_of_a_rise_is_a_fall(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    run = StoredRun(tmp_path / "a")
    evaluated(run, LOW, [1.0] * 7 + [0.0] * 23)
    assert verdict_of(run).rise is Rise.NOT_SHOWN
    (tmp_path / "b").mkdir()
    run = StoredRun(tmp_path / "b")
    evaluated(run, HIGH, LOW)
    one = verdict_of(run)
    assert one.rise is Rise.FELL
    assert one.headline == "One seed, greedily: worse than the base model (-0.70 [-0.83, -0.51])."


def test_a_wrong_answer_that_is_paid_is_a_doubt_and_more_than_one_in_twenty_bad(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    run = StoredRun(tmp_path / "a")
    evaluated(run, LOW, HIGH, rewards=[1.0] * 28 + [0.0] * 2)
    assert states(verdict_of(run))["Reward and scorer, held out"] is State.DOUBT  # 1 of 30
    (tmp_path / "b").mkdir()
    run = StoredRun(tmp_path / "b")
    evaluated(run, LOW, HIGH, rewards=[1.0] * 29 + [0.0])
    one = verdict_of(run)  # 2 of 30
    assert states(one)["Reward and scorer, held out"] is State.BAD
    assert one.trust is State.BAD
    assert one.headline == (
        "One seed, greedily: better than the base model (+0.70 [+0.51, +0.83]). Do not trust these numbers: 1 reason below."
    )


def test_a_reward_that_scored_itself_is_bad_and_shared_code_a_doubt(tmp_path: Path) -> None:
    for name, independence, state in (
        ("a", "none", State.BAD),
        ("b", "shares code with the reward", State.DOUBT),
        ("c", "scorer", State.GOOD),
    ):
        (tmp_path / name).mkdir()
        run = StoredRun(tmp_path / name)
        first, last = held_out("base-0", LOW), held_out("tuned-0", HIGH)
        run.evaluated(
            (evaluation("base", first, independence=independence), first),
            (evaluation("tuned", last, independence=independence), last),
        )
        assert states(verdict_of(run))["Independent scorer"] is state


def test_findings_of_training_count_and_advice_before_it_does_not(tmp_path: Path) -> None:
    for name, found, state in (
        ("a", [finding("budgets.max_turns", "warning", None)], State.GOOD),
        ("b", [finding("data.leak", "warning", None)], State.DOUBT),
        ("c", [finding("behavior.calls", "warning", 2)], State.DOUBT),
        ("d", [finding("budgets.max_turns", "error", None)], State.BAD),
        ("e", [finding("behavior.calls", "note", 2)], State.GOOD),
    ):
        (tmp_path / name).mkdir()
        run = StoredRun(tmp_path / name)
        run.log(findings=found)
        evaluated(run, LOW, HIGH)
        one = verdict_of(run)
        assert states(one)["Findings"] is state
        assert worst_first(one.looks)[0].state is (State.UNKNOWN if state is State.GOOD else state)


def test_a_warning_that_does_not_hold_any_more_counts_no_more_and_an_error_does(tmp_path: Path) -> None:
    for severity, state in (("warning", State.GOOD), ("error", State.BAD)):
        (tmp_path / severity).mkdir()
        run = StoredRun(tmp_path / severity)
        # A detector that reports nothing about the run as it stands, which has no episodes.
        run.log({1: {}, 2: {}}, findings=[finding("reward.paid_for_wrong", severity, 2)])
        evaluated(run, LOW, HIGH)
        look = next(one for one in verdict_of(run).looks if one.name == "Findings")
        assert look.state is state
        assert ("after step 2" in look.text) == (state is State.BAD)


def test_requests_that_the_gateway_refused_are_a_doubt_with_their_reasons(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    refused = "unknown_field.audio"
    run.log({1: {f"rollout/refused/{refused}": 2.0}, 2: {f"rollout/refused/{refused}": 1.0, "val/refused/other": 4.0}})
    evaluated(run, LOW, HIGH)
    one = verdict_of(run)
    assert states(one)["Refused requests"] is State.DOUBT
    look = next(look for look in one.looks if look.name == "Refused requests")
    assert "7 requests" in look.text
    assert "other 4, unknown_field.audio 3" in look.text


def test_held_out_tasks_that_were_trained_on_word_for_word_are_bad(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    evaluated(run, LOW, HIGH)
    leaked = held_out("tuned-0", HIGH)[0]
    same = episode("train/0/other/0.0", reward=1.0, score=1.0, messages=leaked.messages, fields=leaked.task.fields)
    # Another id, the same messages and fields.
    object.__setattr__(same.task, "messages", leaked.task.messages)
    run.log(played={"train-1": [same]})
    one = verdict_of(run)
    assert states(one)["Tasks"] is State.BAD
    assert next(look.text for look in one.looks if look.name == "Tasks").startswith("1 of 30")


def test_without_held_out_tasks_validations_are_compared_and_doubted(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.validated(0, evaluation("step 0", held_out("a", LOW)))
    run.validated(2, evaluation("step 2", held_out("a", HIGH)))
    one = verdict_of(run)
    assert (one.rise, one.is_held_out, states(one)["Tasks"]) == (Rise.ROSE, False, State.DOUBT)


def test_a_run_that_nothing_was_evaluated_of_is_unknown_and_one_that_failed_a_doubt(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.folder.set_status("failed", reason="the disk is full")
    one = verdict_of(run)
    assert (one.rise, states(one)["Status"]) == (Rise.UNKNOWN, State.DOUBT)
    assert "the disk is full" in next(look.text for look in one.looks if look.name == "Status")
    assert one.headline == "Nothing was evaluated, so it is not known whether the policy improved."


def test_an_older_policy_few_tasks_and_lost_episodes_are_doubts(tmp_path: Path) -> None:
    run = StoredRun(tmp_path, RECIPE.replace("max_steps = 2", "max_steps = 5"))
    run.log({5: {"rollout/reward/mean": 0.5}})
    evaluated(run, [0.0] * 8, [1.0] * 8)
    found = states(verdict_of(run))
    assert found["Newest policy"] is State.DOUBT  # of step 2
    assert found["Tasks"] is State.DOUBT  # 8


def test_the_finding_of_the_headline_is_in_the_box_in_the_list_and_in_the_verdict(tmp_path: Path) -> None:
    # A detector finds this in the whole run, and no file has it: the run ended before the detector ran.
    run = StoredRun(tmp_path)
    written = {True: '<tool_call>{"name": "look", "arguments": {}}</tool_call>', False: "the answer is 7"}
    played = {
        f"train-{step}": [
            episode(
                f"train/{step}/{place // 2}/0.{place % 2}", reward=place % 2, score=place % 2, text=written[step > 5]
            )
            for place in range(8)
        ]
        for step in range(1, 11)
    }
    run.log({step: {"rollout/reward/mean": 0.5} for step in range(1, 11)}, played)
    evaluated(run, LOW, HIGH)
    record = read_run(run.path)
    assert record.first is not None
    assert record.first.rule == "tools.format_drift"
    one = build_verdict(record, seen_in_training=0)
    look = next(look for look in one.looks if look.name == "Findings")
    assert look.state is State.DOUBT
    assert record.first.symptom in look.text
    whole = page(record, episodes(record), one, {})
    sections = {name: whole.split(f'id="{name}"')[1].split("</section>")[0] for name in ("diagnosis", "findings")}
    assert all("</span> tools.format_drift" in section for section in sections.values())
    assert record.first.symptom in sections["diagnosis"].split("<article")[0]
