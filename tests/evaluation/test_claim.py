"""Scenarios and what may be claimed: every row of the table in docs/verdicts.md, built and compared word for word."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pytest

from sparring.errors import DataError
from sparring.evaluation.claim import Claim, claim_of, claim_of_validations
from sparring.evaluation.claim_over_seeds import claim_over
from sparring.evaluation.controls import Continued, RunFacts
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.independence import Independence
from sparring.evaluation.of_run import claim_of_report, claim_of_run, claims_of_runs, evaluated, num_shared
from sparring.evaluation.report import EvaluationReport, comparisons, read_report
from sparring.report.reading import read_run
from sparring.report.verdict import build_verdict
from sparring.run_folders import RunFolder
from sparring.trainer import TrainResult
from sparring.types import Json, Outcome, Task
from tests.report.stored_run import RECIPE, StoredRun, episode, evaluation

DOCS = Path(__file__).parents[2] / "docs" / "verdicts.md"
CONTINUED = "warm start continued"
NUM = 100


@cache
def played(
    name: str,
    right: int,
    *,
    tasks: range = range(NUM),
    first: int = 0,
    lost: int = 0,
    temperature: float | None = 1.0,
    independence: Independence = "scorer",
    wrong: tuple[Outcome, int] | None = None,
    each: int = 1,
    reward: float | None = None,
) -> Evaluation:
    """From the task at place `first` on, `right` tasks are right, in all of `each` episodes; the last `lost` are lost.
    `wrong`: how, and how many of, the wrong ones ended otherwise than by themselves. `reward`: of every episode, instead of
    its score."""
    ending, left = wrong or (Outcome.FINISHED, 0)
    episodes = []
    for place, task in enumerate(tasks[: len(tasks) - lost]):
        outcome = ending if right <= place < right + left else Outcome.FINISHED
        score = float(first <= place < first + right)
        paid = score if reward is None else reward
        episodes += [
            episode(f"held_out/{name}@1/h{task}/{member}.0", reward=paid, score=score, outcome=outcome)
            for member in range(each)
        ]
    one = replace(evaluation(name, episodes, temperature=temperature, independence=independence), group_size=each)
    if not lost:
        return one
    shares = {key: share * (len(tasks) - lost) / len(tasks) for key, share in one.metrics.items() if "/outcome/" in key}
    shares["eval/outcome/infrastructure_error"] = lost / len(tasks)
    return replace(one, lost={f"h{task}": 1 for task in tasks[len(tasks) - lost :]}, metrics={**one.metrics, **shares})


@cache
def rated(name: str, *right: int, each: int) -> Evaluation:
    """24 tasks with `each` episodes. The numbers of right ones are those in `right`, repeated."""
    episodes = [
        episode(f"held_out/{name}@1/h{task}/{member}.0", reward=score, score=score)
        for task in range(24)
        for member in range(each)
        for score in [float(member < right[task % len(right)])]
    ]
    return replace(evaluation(name, episodes, temperature=1.0), group_size=each)


def table(*rows: tuple[str, int], **options: object) -> list[Evaluation]:
    return [played(name, right, **options) for name, right in rows]  # pyright: ignore[reportArgumentType]


AS_GOOD = (("base", 0), ("warm start", 36), (CONTINUED, 98), ("tuned", 100))
BEATEN = (("base", 0), ("warm start", 36), (CONTINUED, 50), ("tuned", 100))
BETTER = (("base", 0), ("warm start", 36), (CONTINUED, 90), ("tuned", 60))


SHORT = Continued(steps=400, seconds=20.0, rl_seconds=300.0, fingerprint="f")
WHOLE = replace(SHORT, seconds=300.0)


def of(
    *evaluations: Evaluation,
    has_warm_start: bool = True,
    seen_in_training: int = 0,
    continued: Continued | None = WHOLE,
) -> Claim:
    return claim_of(
        evaluations,
        RunFacts(has_warm_start=has_warm_start, seen_in_training=seen_in_training, continued=continued),
    )


def graded_otherwise(one: Evaluation) -> Evaluation:
    return replace(one, criterion=replace(one.criterion, scorer="environment:another"))


def changed(overrides: Mapping[str, Json], *evaluations: Evaluation) -> list[Evaluation]:
    return [replace(one, overrides=overrides) for one in evaluations]


SCENARIOS: Mapping[str, Callable[[], Claim]] = {
    "imitation_as_good": lambda: of(*table(*AS_GOOD)),
    "imitation_beaten": lambda: of(*table(*BEATEN)),
    "imitation_better": lambda: of(*table(*BETTER)),
    "imitation_equal": lambda: of(*table(("warm start", 36), (CONTINUED, 98), ("tuned", 98))),
    "control_too_short": lambda: of(*table(*BEATEN), continued=SHORT),
    "equal_controls": lambda: of(*table(("base", 0), ("warm start", 36), (CONTINUED, 36), ("tuned", 100))),
    "nothing_solved": lambda: of(*table(("base", 0), ("warm start", 0), (CONTINUED, 0), ("tuned", 0))),
    "everything_solved": lambda: of(*table(("base", NUM), ("warm start", NUM), (CONTINUED, NUM), ("tuned", NUM))),
    "greedy_only": lambda: of(*table(*BEATEN, temperature=0.0)),
    "no_control": lambda: of(played("tuned", 100)),
    "expert_only": lambda: of(played("tuned", 50), played("expert", 100, temperature=None)),
    "only_base": lambda: of(*table(("base", 10), ("tuned", 100)), has_warm_start=False),
    "only_base_of_warm_start": lambda: of(*table(("base", 0), ("tuned", 100))),
    "base_and_warm_start": lambda: of(*table(("base", 0), ("warm start", 36), ("tuned", 100))),
    "random_rewards_as_good": lambda: of(
        played("base", 10),
        replace(played("runs/random", 95), is_random_control=True),
        played("tuned", 97),
        has_warm_start=False,
    ),
    "random_rewards_too_short": lambda: of(
        replace(played("base", 10), policy_version=0),
        replace(played("runs/random@1", 50), is_random_control=True, policy_version=1),
        replace(played("tuned", 97), policy_version=60),
        has_warm_start=False,
    ),
    "another_run": lambda: of(*table(("base", 10), ("runs/other", 50), ("tuned", 97)), has_warm_start=False),
    "other_settings": lambda: of(
        played("warm start", 36),
        replace(played(CONTINUED, 50), overrides={"environment.max_turns": 3}),
        played("tuned", 100),
    ),
    "changed_settings": lambda: of(*changed({"environment.max_turns": 9}, *table(*BEATEN))),
    "changed_settings_of_one_seed": lambda: claim_over(
        {
            0: of(*table(*BEATEN)),
            1: of(*changed({"environment.max_turns": 9, "sampling.top_p": 0.9}, *table(*BEATEN))),
        }
    ),
    "constant_as_good": lambda: of(
        played("base", 10), played("constant:no", 50, temperature=None), played("tuned", 50), has_warm_start=False
    ),
    "nothing_gained": lambda: of(*table(("base", 30), ("warm start", 36), ("tuned", 38))),
    "worse_than_base": lambda: of(*table(("base", 36), ("tuned", 10)), has_warm_start=False),
    "reward_up_score_down": lambda: of(
        played("base", 36, reward=0.3), played("tuned", 10, reward=1.0), has_warm_start=False
    ),
    "seeds_agree": lambda: claim_over({seed: of(*table(*BEATEN)) for seed in range(3)}),
    "seeds_disagree": lambda: claim_over({s: of(*table(*(AS_GOOD if s == 1 else BEATEN))) for s in range(3)}),
    "seeds_opposed": lambda: claim_over({s: of(*table(*(BETTER if s == 2 else BEATEN))) for s in range(3)}),
    "seeds_incomplete": lambda: claim_over(
        {s: of(*table(*(row for row in BEATEN if s != 1 or row[0] != CONTINUED))) for s in range(3)}
    ),
    "seeds_unfinished": lambda: claim_over(
        {seed: of(*table(*BEATEN)) for seed in range(2)}, without={2: "failed: out of memory"}
    ),
    "one_seed_finished": lambda: claim_over({0: of(*table(*BEATEN))}, without={1: "stopped", 2: "stopped"}),
    "tiny_set": lambda: of(*table(("warm start", 0), (CONTINUED, 0), ("tuned", 8), tasks=range(8))),
    "tiny_set_nothing": lambda: of(*table((CONTINUED, 2), ("tuned", 5), tasks=range(5))),
    "few_tasks_many_episodes": lambda: of(*table((CONTINUED, 0), ("tuned", 5), tasks=range(5), each=20)),
    "lost_episodes": lambda: of(played(CONTINUED, 20), played("tuned", 30, lost=10)),
    "lost_episodes_decide": lambda: of(played(CONTINUED, 20, lost=15), played("tuned", 30)),
    "lost_episodes_weaken": lambda: of(played(CONTINUED, 20, lost=9), played("tuned", 30)),
    "scorers_differ": lambda: of(
        played("warm start", 36), graded_otherwise(played(CONTINUED, 50)), played("tuned", 100)
    ),
    "reward_grades_itself": lambda: of(*table(*BEATEN, independence="none")),
    "scorer_shares_code": lambda: of(*table(*BEATEN, independence="shares code with the reward")),
    "trained_on_held_out": lambda: of(*table(*BEATEN), seen_in_training=40),
    "other_tasks": lambda: of(
        played("warm start", 36), played(CONTINUED, 50, tasks=range(NUM, 2 * NUM)), played("tuned", 100)
    ),
    "some_shared_tasks": lambda: of(played(CONTINUED, 20, tasks=range(40)), played("tuned", 100)),
    "shared_tasks_differ": lambda: of(
        played("warm start", 36), played(CONTINUED, 20, tasks=range(40)), played("tuned", 100)
    ),
    "other_temperature": lambda: of(
        played("warm start", 36), played(CONTINUED, 50, temperature=0.5), played("tuned", 100)
    ),
    "greedy_not_shown": lambda: of(
        played(CONTINUED, 98, temperature=0.0),
        played(CONTINUED, 50),
        played("tuned", 100, temperature=0.0),
        played("tuned", 100),
    ),
    "greedy_opposed": lambda: of(
        played(CONTINUED, 90, temperature=0.0),
        played(CONTINUED, 50),
        played("tuned", 20, temperature=0.0),
        played("tuned", 80),
    ),
    "greedy_alone_better": lambda: of(
        played(CONTINUED, 10, temperature=0.0),
        played(CONTINUED, 50),
        played("tuned", 90, temperature=0.0),
        played("tuned", 52),
    ),
    "out_of_turns": lambda: of(played(CONTINUED, 36), played("tuned", 36, wrong=(Outcome.MAX_TURNS, 60))),
    "out_of_tokens": lambda: of(played(CONTINUED, 36), played("tuned", 36, wrong=(Outcome.MAX_TOKENS, 50))),
    "timeouts": lambda: of(played(CONTINUED, 36, wrong=(Outcome.POLICY_TIMEOUT, 30)), played("tuned", 100)),
    "validations": lambda: claim_of_validations(
        {0: played("step 0", 36), 10: played("step 10", 100)}, RunFacts(has_warm_start=True)
    ),
    "baselines": lambda: of(played("base", 10), replace(played("openai:model@url", 50), policy_version=None)),
    "never_evaluated": lambda: of(),
    "few_tasks_some_better": lambda: of(
        *table(("base", 0), (CONTINUED, 2), ("tuned", 5), tasks=range(5), each=20),
    ),
    "few_tasks_worse": lambda: of(*table((CONTINUED, 4), ("tuned", 0), tasks=range(4), each=8)),
    "few_tasks_seeds": lambda: claim_over(
        {s: of(*table((CONTINUED, s), ("tuned", 5), tasks=range(5), each=20)) for s in range(2)}
    ),
    "five_gained": lambda: of(*table((CONTINUED, 36), ("tuned", 41))),
    "gained_and_lost_alike": lambda: of(played(CONTINUED, 40), played("tuned", 50, first=20)),
    "gained_more_than_lost": lambda: of(played(CONTINUED, 35), played("tuned", 50, first=15)),
    "several_episodes": lambda: of(rated(CONTINUED, 0, 1, 2, each=4), rated("tuned", 2, 1, 3, 4, each=4)),
    "several_episodes_not_shown": lambda: of(rated(CONTINUED, 0, 1, 2, each=4), rated("tuned", 1, 2, 0, 2, each=4)),
    "timeouts_decide": lambda: of(
        played(CONTINUED, 40, wrong=(Outcome.POLICY_TIMEOUT, 60)), played("tuned", 90), played("base", 10)
    ),
    "timeouts_of_tuned_decide": lambda: of(
        played(CONTINUED, 60), played("tuned", 40, wrong=(Outcome.POLICY_TIMEOUT, 30))
    ),
    "timeouts_of_tuned": lambda: of(played(CONTINUED, 20), played("tuned", 50, wrong=(Outcome.POLICY_TIMEOUT, 30))),
    "lost_and_timeouts": lambda: of(
        played(CONTINUED, 20, wrong=(Outcome.POLICY_TIMEOUT, 10)), played("tuned", 60, lost=10)
    ),
    "best_checkpoint": lambda: of(*table(("base", 10), ("@10", 40), ("@30", 50), ("@20", 60))),
    "another_checkpoint": lambda: of(*table(("base", 10), ("@10", 70), ("@20", 60))),
    "seeds_all_positive": lambda: claim_over(
        {seed: of(*table((CONTINUED, 36), ("tuned", 39 + seed))) for seed in range(3)}
    ),
    "worse_with_lost_episodes": lambda: of(played(CONTINUED, 60), played("tuned", 20, lost=10)),
    "worse_unless_lost_episodes": lambda: of(played(CONTINUED, 30), played("tuned", 18, lost=15)),
    "seeds_with_lost_episodes": lambda: claim_over(
        {seed: of(played(CONTINUED, 20), played("tuned", 40, lost=5 * seed)) for seed in range(2)}
    ),
    "random_rewards_better": lambda: of(
        played("base", 10),
        replace(played("runs/random", 97), is_random_control=True),
        played("tuned", 90),
        has_warm_start=False,
    ),
    "control_only_greedy": lambda: of(
        played("base", 10),
        played("base", 10, temperature=0.0),
        played(CONTINUED, 90, temperature=0.0),
        played("tuned", 80),
        played("tuned", 20, temperature=0.0),
    ),
    "another_model": lambda: of(
        played("base", 10), replace(played("openai:model@url", 60), policy_version=None), played("tuned", 40)
    ),
    "all_shared_tasks_differ": lambda: of(
        played("warm start", 12, tasks=range(60)), played(CONTINUED, 20, tasks=range(40)), played("tuned", 100)
    ),
}


def rows() -> dict[str, tuple[str, str]]:
    """Claim and limits by name, as the docs have them."""
    cells = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in DOCS.read_text().splitlines()
        if line.startswith("| `")
    ]
    return {name.strip("`"): (claim, limits) for name, _, claim, limits in cells}


def test_every_scenario_of_the_docs_is_built_here() -> None:
    assert set(rows()) == set(SCENARIOS)
    assert len(SCENARIOS) >= 21


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_gets_the_claim_that_the_docs_allow(name: str) -> None:
    found = SCENARIOS[name]()
    assert (found.headline, " ".join(found.limits)) == rows()[name]


def test_play_that_disagrees_is_a_finding_and_a_warning_where_it_is_opposed() -> None:
    severities = {name: [one.severity.value for one in SCENARIOS[name]().findings] for name in SCENARIOS}
    assert severities["greedy_opposed"] == ["warning"]
    assert severities["greedy_not_shown"] == severities["greedy_alone_better"] == ["note"]
    assert not severities["imitation_beaten"]
    assert SCENARIOS["greedy_opposed"]().findings[0].rule == "evaluation.settings_disagree"


def test_files_of_before_have_the_same_claim_but_for_how_episodes_ended(tmp_path: Path) -> None:
    """Without shares of outcomes and without what was seen in training, as format 2 had it at first."""
    rows = [played(CONTINUED, 36), played("tuned", 36, wrong=(Outcome.MAX_TURNS, 60))]
    report = EvaluationReport(
        evaluations=tuple(rows), comparisons=comparisons(rows), path=tmp_path / "held_out-001.json"
    )
    content = report.as_json()
    del content["seen_in_training"]
    for one in content["evaluations"]:
        one["metrics"] = {name: value for name, value in one["metrics"].items() if "/outcome/" not in name}
    report.path.write_text(json.dumps(content))
    found = of(*read_report(report.path).evaluations)
    assert found.headline == SCENARIOS["out_of_turns"]().headline
    assert found.caveats == ("Tuned does not finish in 60 % of its episodes.",)


def test_files_without_the_tasks_of_late_episodes_are_compared_as_they_are(tmp_path: Path) -> None:
    rows = [played(CONTINUED, 40, wrong=(Outcome.POLICY_TIMEOUT, 60)), played("tuned", 90)]
    path = tmp_path / "held_out-001.json"
    report = EvaluationReport(evaluations=tuple(rows), comparisons=comparisons(rows), path=path)
    content = report.as_json()
    path.write_text(json.dumps(content))
    assert read_report(path).comparisons == report.comparisons
    assert "not shown to be better than" in of(*read_report(path).evaluations).headline
    for one in content["evaluations"]:
        del one["timed_out"]
    for one in content["comparisons"]:
        del one["late_bounds"], one["late_p_value"]
    path.write_text(json.dumps(content))
    before = of(*read_report(path).evaluations)
    assert before.headline.endswith(
        "better than imitation for as long as RL (warm start continued) (+0.50 [+0.40, +0.60])."
    )
    assert "60 % of the episodes of warm start continued were not finished in time" in before.limits[0]


def test_episodes_show_a_result_on_few_tasks_alone_and_only_if_they_are_sampled_and_whole() -> None:
    def claim(num: int, each: int, **options: object) -> str:
        old, new = (
            played(name, right, tasks=range(num), each=each, **options)
            for name, right in ((CONTINUED, 0), ("tuned", 5))
        )  # pyright: ignore[reportArgumentType]
        return of(old, new).headline

    assert "better on these 5 tasks" in claim(5, 2)
    assert "better on these 19 tasks (+0.26; better on 5 of 19, 4 episodes each)" in claim(19, 4)
    # One episode per task: 2^5 equally likely exchanges, of which 2 are as extreme. 20 tasks stand for others.
    for num, each, temperature in ((5, 1, 1.0), (20, 4, 1.0), (5, 20, 0.0)):
        assert "on these" not in claim(num, each, temperature=temperature)
    lost = [replace(one, lost={"h0": 1}) for one in table((CONTINUED, 0), ("tuned", 5), tasks=range(5), each=20)]
    assert "on these" not in of(*lost).headline


def test_more_episodes_and_another_speed_leave_evaluations_comparable() -> None:
    overrides = {"evaluation.eval_group_size": 4, "sampling.temperature": 0.5, "engine.max_running": 2}
    rows = [replace(one, overrides=overrides) if one.name == CONTINUED else one for one in table(*BEATEN)]
    assert of(*rows).headline == SCENARIOS["imitation_beaten"]().headline


def test_a_changed_threshold_is_named_and_settings_of_speed_are_not() -> None:
    overrides: Mapping[str, Json] = {"evaluation.success_threshold": 0.5, "evaluation.eval_num_tasks": 9}
    assert of(*changed(overrides, *table(*BEATEN))).headline.startswith(
        "One seed, with evaluation.success_threshold=0.5: better than"
    )
    fast = of(*changed({"rollout.rollout_max_concurrency": 2}, *table(*BEATEN)))
    assert fast.headline == SCENARIOS["imitation_beaten"]().headline


def test_a_control_with_random_rewards_counts_from_as_many_steps_as_tuned_on() -> None:
    def claim(control: int | None, tuned: int | None) -> Claim:
        return of(
            played("base", 10),
            replace(played("runs/random", 50), is_random_control=True, policy_version=control),
            replace(played("tuned", 97), policy_version=tuned),
            has_warm_start=False,
        )

    for steps in (60, 80):
        assert claim(steps, 60).limits == ()
    for control, tuned in ((59, 60), (0, 60), (None, 60), (60, None)):
        found = claim(control, tuned)
        assert found.not_known.controls == ("random rewards",)
        assert "runs/random was trained with random rewards for" in found.limits[0]


def test_a_file_in_which_several_tasks_share_an_id_is_refused(tmp_path: Path) -> None:
    rows = table(("base", 0), ("tuned", 100))
    path = tmp_path / "held_out-001.json"
    content = EvaluationReport(evaluations=tuple(rows), comparisons=comparisons(rows), path=path).as_json()
    content["evaluations"][0]["tasks"][1]["id"] = "h0"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="several tasks are named 'h0'"):
        read_report(path)


def test_a_gain_that_six_tasks_could_show_is_no_ceiling_and_one_of_five_is() -> None:
    """Of six tasks that all turn right, signs at random do as much in 2 of 64 cases; of five in 2 of 32."""
    for right, is_ceiling in ((94, False), (95, True)):
        limits = of(*table((CONTINUED, right), ("tuned", right))).limits
        assert any(f"misses only {NUM - right} of 100 tasks" in limit for limit in limits) is is_ceiling


def test_a_control_that_was_long_enough_with_one_seed_alone_is_not_called_imitation_for_as_long() -> None:
    claim = claim_over({seed: of(*table(*BEATEN), continued=one) for seed, one in enumerate((WHOLE, SHORT))})
    assert "better than the warm start continued, the strongest control evaluated" in claim.headline
    assert [limit for limit in claim.limits if "as long" in limit] == [
        f"With seed 1: {SCENARIOS['control_too_short']().limits[0]}"
    ]


def test_what_no_seed_compared_is_named_once_with_the_command_for_each_run() -> None:
    rows = [row for row in BEATEN if row[0] != "base"]
    claim = claim_over(
        {
            seed: claim_of(table(*rows), RunFacts(name=f"runs/{seed}", has_warm_start=True, continued=WHOLE))
            for seed in range(2)
        }
    )
    assert claim.limits == (
        "Not known: whether tuned is better than the base model; `sparring eval runs/0` evaluates it; "
        "`sparring eval runs/1` evaluates it.",
    )


def test_how_the_control_was_made_is_read_from_the_run(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", 0, "", BEATEN)
    assert claim_of_run(folder).headline == SCENARIOS["imitation_beaten"]().headline
    made(folder, SHORT)
    assert claim_of_run(folder).headline == SCENARIOS["control_too_short"]().headline


def test_a_control_of_unknown_length_is_not_called_imitation_for_as_long(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", 0, "", BEATEN)
    (folder.controls / "warm_start_continued" / "state.json").write_text("{")
    claim = claim_of_run(folder)
    assert "better than the warm start continued, the strongest control evaluated" in claim.headline
    assert claim.limits[0].startswith("It is not known for how long the warm start was continued")


def test_an_evaluation_of_an_earlier_control_is_none_of_the_one_that_was_made_since(tmp_path: Path) -> None:
    """Else a longer control, which was never played, would make the gain over a short one a gain over imitation for as long."""
    folder = stored(tmp_path / "run", 0, "", BEATEN)
    made(folder, replace(WHOLE, fingerprint="another"))
    claim = claim_of_run(folder)
    assert claim.headline == SCENARIOS["base_and_warm_start"]().headline
    assert (
        claim.limits[0]
        == "Not compared with imitation for as long as RL (warm start continued): it was trained again after its evaluation."
    )
    assert claim.not_known.controls == (CONTINUED,)


def test_training_that_went_on_makes_a_control_too_short(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", 0, "", BEATEN)
    lines = [{"step": step, "metrics": {"timing_s/step": 200.0}} for step in (1, 2)]
    (folder.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "continued for 300 s, but RL took 400 s" in claim_of_run(folder).limits[0]


def test_an_evaluation_without_tuned_neither_hides_an_earlier_one_nor_makes_a_claim(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", 0, "", BEATEN)
    for number, names in ((2, ("base", "runs/other")), (3, ("base", "expert"))):
        rows = [played(name, 50) for name in names]
        path = folder.evaluations / f"held_out-{number:03}.json"
        EvaluationReport(evaluations=tuple(rows), comparisons=comparisons(rows), path=path).write([])
        assert claim_of_report(read_report(path)).headline == SCENARIOS["baselines"]().headline
    assert claim_of_run(folder).headline.startswith(
        "One seed: better than imitation for as long as RL (warm start continued)"
    )


def test_a_named_checkpoint_is_named_in_its_claim() -> None:
    assert of(*table(("base", 0), ("@20", 100))).headline == (
        "One seed, checkpoint @20: better than the base model (+1.00 [+0.93, +1.00])."
    )


def test_lost_episodes_count_neither_as_solved_nor_as_unsolved() -> None:
    for right, lost in ((70, 30), (0, 30)):
        claim = of(played("base", 100 if right else 0), played("tuned", right, lost=lost))
        assert claim.headline.startswith("One seed: not shown to be better than the base model (+0.00 [")


def test_few_shared_tasks_are_too_few_to_stand_for_others() -> None:
    (alone, *_) = of(played(CONTINUED, 0, tasks=range(6)), played("tuned", 100)).limits
    assert alone == "6 tasks are too few for conclusions about other tasks."
    (shared, *_) = of(played("base", 0), played(CONTINUED, 0, tasks=range(6)), played("tuned", 100)).limits
    assert shared == (
        "The 6 tasks that imitation for as long as RL (warm start continued) and tuned both ran are too few for "
        "conclusions about other tasks."
    )


def test_a_short_control_that_is_better_than_tuned_needs_no_longer_one() -> None:
    limits = of(*table(*BETTER), continued=SHORT).limits
    assert not any("trains a longer control" in limit for limit in limits)


def stored(folder: Path, seed: int, code: str, rows: Sequence[tuple[str, int]]) -> RunFolder:
    folder.mkdir()
    run = StoredRun(folder, f'{RECIPE}[warm_start]\ndemonstrations = "environment:shown"\nsteps = 1\n', seed=seed)
    (run.folder.code / "environment.py").write_text(code)
    run.evaluated(*((one, []) for one in table(*rows)))
    run.log({1: {"timing_s/step": 300.0}})
    made(run.folder, WHOLE)
    return run.folder


def made(folder: RunFolder, control: Continued) -> None:
    path = folder.controls / "warm_start_continued" / "state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"step": 0, **asdict(control)}))


def test_runs_that_differ_in_their_seed_alone_make_one_claim_and_others_their_own(tmp_path: Path) -> None:
    family = [stored(tmp_path / str(seed), seed, "", AS_GOOD if seed == 1 else BEATEN) for seed in range(3)]
    other = stored(tmp_path / "other", 3, "reward = None", BEATEN)
    (first, claim), (second, alone) = claims_of_runs([*family, other])
    assert (first, second) == (tuple(family), (other,))
    assert claim.headline == SCENARIOS["seeds_disagree"]().headline
    assert alone.headline == SCENARIOS["imitation_beaten"]().headline


def test_tasks_that_stand_in_the_training_split_are_counted_by_what_they_are_and_not_by_their_id() -> None:
    def task(name: str, question: str, answer: str) -> Task:
        return Task(id=name, messages=({"role": "user", "content": question},), fields={"truth": answer})

    trained = [task("a", "1 + 1", "2"), task("b", "1 + 2", "3")]
    assert num_shared([task("h0", "1 + 1", "2"), task("h1", "1 + 2", "4"), task("h2", "2 + 2", "4")], trained) == 1


def test_a_control_that_only_an_earlier_evaluation_has_still_counts(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", 0, "", AS_GOOD)
    newest = table(*(row for row in AS_GOOD if row[0] != CONTINUED))
    path = folder.evaluations / "held_out-002.json"
    report = EvaluationReport(evaluations=tuple(newest), comparisons=comparisons(newest), path=path)
    report.write([])
    expected = SCENARIOS["imitation_as_good"]().headline
    assert claim_of_run(folder).headline == claim_of_report(report).headline == expected
    # Another scorer's grades of the newest say nothing about an evaluation that it did not grade.
    alone = claim_of_report(replace(report, rescored={"episodes": "held_out-2", "scorer": "m:s"}))
    assert alone.headline == SCENARIOS["base_and_warm_start"]().headline


def test_an_evaluation_with_other_settings_is_not_the_headline_of_a_run_that_has_one_with_its_own(
    tmp_path: Path,
) -> None:
    folder = stored(tmp_path / "run", 0, "", BEATEN)
    other = changed({"environment.max_turns": 9}, *table(*AS_GOOD))
    path = folder.evaluations / "held_out-002.json"
    report = EvaluationReport(evaluations=tuple(other), comparisons=comparisons(other), path=path)
    report.write([])
    assert claim_of_run(folder).headline == SCENARIOS["imitation_beaten"]().headline
    assert claim_of_report(report).headline.startswith(
        "One seed, with environment.max_turns=9: better than the warm start"
    )
    # A control that the newest lacks comes from the evaluation with the same settings.
    newest = [one for one in table(*BEATEN) if one.name != CONTINUED]
    path = folder.evaluations / "held_out-003.json"
    EvaluationReport(evaluations=tuple(newest), comparisons=comparisons(newest), path=path).write([])
    assert claim_of_run(folder).headline == SCENARIOS["imitation_beaten"]().headline
    (folder.evaluations / "held_out-001.json").unlink()
    path.unlink()
    assert claim_of_run(folder).headline == claim_of_report(report).headline


def test_report_eval_diagnosis_and_result_show_the_same_claim(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", 0, "", AS_GOOD)
    expected = SCENARIOS["imitation_as_good"]().headline
    report = evaluated(folder).held_out
    assert report is not None
    assert claim_of_report(report).headline == expected
    record = read_run(folder.path)
    assert build_verdict(record, seen_in_training=0).headline.startswith(expected)
    assert record.diagnosis is not None
    assert record.diagnosis.claim is not None
    assert record.diagnosis.claim.headline == expected
    result = TrainResult(run=folder.path, step=2, status="completed", validations={}, train_seconds=1.0)
    assert result.claim.headline == expected
