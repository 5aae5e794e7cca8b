"""Families of runs: trained with the real loop, killed, stopped and continued; compared; what is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparring.checks.running.check_report import CheckReport
from sparring.cli import app
from sparring.config import load_config
from sparring.config.seeds import read_seeds
from sparring.errors import DataError, UsageError
from sparring.evaluation.across_seeds import across_seeds, outlier_sentence, runs_of
from sparring.findings import Finding, Severity
from sparring.report.family import write_family_report
from sparring.run_folders import RunFolder
from sparring.run_folders.family_folder import FamilyFolder
from sparring.runtime.faults import Fault, arm_for_block
from sparring.seeds import TrainedSeeds, evaluate_seeds, train_seeds
from sparring.training import checkpoints
from tests.evaluation.test_claim import AS_GOOD, BEATEN, played, table
from tests.report.stored_family import stored_family
from tests.report.stored_run import StoredRun

RECIPE = Path(__file__).parent / "faults" / "recipe"
SETTINGS = ("schedule.save_every=1", "evaluation.eval_num_tasks=2")


def trained(runs: Path, seeds: str = "2", *more: str, check: bool = False) -> TrainedSeeds:
    return train_seeds(RECIPE, seeds, overrides=[f"run.runs_dir={runs}", *SETTINGS, *more], check=check, quiet=True)


def command(runs: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "sparring", "train", str(RECIPE), "--seeds", "2", "--no-check", *options]
    return subprocess.Popen(
        [*words, f"run.runs_dir={runs}", *SETTINGS],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
    )


def fingerprints(runs: Path) -> list[str]:
    """Of the last weights, the optimizer and the data order of each seed."""
    return [
        (checkpoints.find_newest(run / "checkpoints") / "manifest.json").read_text()
        for run in sorted(runs.glob("*-seed-*"))
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with a family that nothing interrupted."""
    runs = tmp_path_factory.mktemp("whole") / "runs"
    done = trained(runs)
    assert (done.failures, done.is_stopped) == ({}, False)
    return runs


def test_each_seed_has_an_ordinary_run_and_the_family_shows_which_belong_together(whole: Path) -> None:
    family = FamilyFolder(whole / "recipe")
    assert {seed: run.name for seed, run in family.runs.items()} == {0: "recipe-seed-0", 1: "recipe-seed-1"}
    assert [RunFolder(run).config().run.seed for run in family.runs.values()] == [0, 1]
    first, second = fingerprints(whole)
    assert first != second
    found = across_seeds(*runs_of([str(family.path)]))
    assert (len(found.finished), found.is_held_out, list(found.policies)) == (
        2,
        False,
        ["the policy before RL", "tuned"],
    )


def test_every_seed_starts_from_the_given_weights_and_other_weights_are_refused(whole: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    started = ["train", str(RECIPE), "--no-check", "--no-supervise", f"run.runs_dir={runs}", *SETTINGS]
    weights = ["--seeds", "2", "--model-weights", str(whole / "recipe-seed-0"), "schedule.max_steps=1"]
    done = CliRunner().invoke(app, [*started, *weights])
    assert done.exit_code == 0, done.output
    parent = RunFolder(whole / "recipe-seed-0")
    members = [RunFolder(run) for run in FamilyFolder(runs / "recipe").runs.values()]
    origins = [run.origin() or {} for run in members]
    assert [origin["id"] for origin in origins] == [parent.id()] * 2
    assert len({origin["sha256"] for origin in origins}) == 1

    for source in (["--model-weights", str(whole / "recipe-seed-1")], []):
        refused = CliRunner().invoke(app, [*started, "--seeds", "3", *source, "schedule.max_steps=1"])
        assert refused.exit_code == 2, refused.output
        assert "different settings: --model-weights" in refused.output


def test_completed_seeds_are_not_trained_again_and_new_ones_are_added(whole: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(whole, runs)
    before = {path: path.stat().st_mtime_ns for path in runs.glob("*-seed-*/metrics.jsonl")}
    done = trained(runs, "3")
    assert list(done.family.runs) == [0, 1, 2]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [one.status for one in done.across.seeds] == ["completed"] * 3


def test_a_seed_that_is_killed_is_resumed_and_the_others_stay_as_they_are(whole: Path, tmp_path: Path) -> None:
    # Two steps of the warm start and at most four of RL a seed: the tenth is of the second seed.
    done = command(
        tmp_path, SPARRING_FAULTS="learner.optimizing=kill,at=10", SPARRING_FAULTS_LOG=str(tmp_path / "faults")
    )
    out, err = done.communicate(timeout=300)
    assert done.returncode == 0, err
    assert "died of SIGKILL" in err
    assert "recipe-seed-0 is complete" in err
    assert "continues in" in err
    assert not (tmp_path / "recipe-seed-0" / "restarts.jsonl").exists()
    assert len((tmp_path / "recipe-seed-1" / "restarts.jsonl").read_text().splitlines()) == 1
    assert fingerprints(tmp_path) == fingerprints(whole)
    assert "2 seeds" in out


def test_ctrl_c_stops_the_family_and_the_same_again_goes_on(whole: Path, tmp_path: Path) -> None:
    log = tmp_path / "faults"
    begun = command(
        tmp_path,
        "--no-supervise",
        SPARRING_FAULTS="learner.optimizing=delay,at=10,seconds=5",
        SPARRING_FAULTS_LOG=str(log),
    )
    deadline = time.monotonic() + 200
    while not log.exists():
        assert begun.poll() is None, begun.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    begun.send_signal(signal.SIGINT)
    out, err = begun.communicate(timeout=60)
    assert begun.returncode == 130, err
    assert "repeat the command to continue" in out
    assert "The claim leaves out seed 1 (stopped)" in out.replace("\n", " ")
    assert [RunFolder(run).status()["status"] for run in sorted(tmp_path.glob("*-seed-*"))] == ["completed", "stopped"]
    assert not trained(tmp_path).is_stopped
    assert fingerprints(tmp_path) == fingerprints(whole)


def test_a_seed_that_fails_leaves_the_others_and_decides_the_exit_code(tmp_path: Path) -> None:
    words = ["train", str(RECIPE), "--seeds", "3", "--no-check", "--no-supervise", "--json", f"run.runs_dir={tmp_path}"]
    # Two steps of the warm start and at most four of RL a seed: the ninth is of the second seed.
    with arm_for_block(Fault("learner.optimizing", "error", at=9)):
        result = CliRunner().invoke(app, [*words, *SETTINGS])
    assert result.exit_code == 1, result.output
    seeds = json.loads(result.stdout)["seeds"]
    assert [one["status"] for one in seeds] == ["completed", "failed", "completed"]
    assert "learner.optimizing" in seeds[1]["reason"]
    assert json.loads(result.stdout)["claim"]["claim"].startswith("2 seeds (of 3; 1 failed), greedily")


def test_the_recipe_is_checked_once_and_every_seed_has_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Finding(
        rule="data.few", severity=Severity.WARNING, symptom="few.", evidence={}, change="More.", confirm="More."
    )
    asked: list[Path] = []

    def check(recipe: Path, *_: object) -> CheckReport:
        asked.append(recipe)
        return CheckReport.of(str(recipe), [found], [], seconds=0.1)

    monkeypatch.setattr("sparring.checks.running.gate.check_unloaded", check)
    runs = trained(tmp_path, check=True).family.runs.values()
    assert len(asked) == 1
    for run in map(RunFolder, runs):
        assert run.manifest()["checked"]
        rules = [json.loads(line)["rule"] for line in (run.path / "findings.jsonl").read_text().splitlines()]
        assert rules.count("data.few") == 1


def test_what_keeps_the_first_seed_from_being_begun_leaves_nothing(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "a", "prompt": []}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl"):
        trained(tmp_path / "runs", "2", f"data.train={rows}", check=True)
    assert list((tmp_path / "runs").iterdir()) == []


def test_what_is_missing_is_played_and_nothing_twice(whole: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(whole, runs)
    family = runs / "recipe"
    first = evaluate_seeds([str(family)], quiet=True)
    assert first.failures == {}
    assert first.across.is_held_out
    assert list(first.across.policies) == ["base", "warm start", "tuned"]
    files = [sorted(path.name for path in run.glob("evaluations/held_out-*")) for run in sorted(runs.glob("*-seed-*"))]
    assert files == [["held_out-001.json"]] * 2
    # Only the policy that is new is played; the claim is over all of them.
    again = evaluate_seeds([str(family)], policies=["base", "warm_start", "warm_start_continued"], quiet=True)
    assert list(again.across.policies) == ["base", "warm start", "warm start continued", "tuned"]
    second = json.loads((runs / "recipe-seed-1" / "evaluations" / "held_out-002.json").read_text())
    assert {one["name"] for one in second["evaluations"]} == {"warm start continued"}
    result = CliRunner().invoke(app, ["eval", "--across", *map(str, sorted(runs.glob("*-seed-*"))), "--json"])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert [one["seed"] for one in shown["seeds"]] == [0, 1]
    assert not (runs / "recipe-seed-0" / "evaluations" / "held_out-003.json").exists()


def test_the_table_has_the_mean_with_both_intervals_and_the_claim_names_the_family(tmp_path: Path) -> None:
    path = stored_family(tmp_path, {seed: table(*BEATEN) for seed in (0, 1, 2)})
    found = across_seeds(*runs_of([str(path)]))
    tuned, gain = found.policies["tuned"], found.gains["warm start continued"]
    assert (tuned.mean, found.policies["base"].mean, gain.mean) == (1.0, 0.0, 0.5)
    assert gain.seeds is not None
    assert gain.seeds_and_tasks is not None
    # All seeds alike: another seed gives the same, other tasks need not. Half of 100 tasks: 0.1 around 0.5.
    assert (gain.seeds.low, gain.seeds.high) == (0.5, 0.5)
    assert gain.seeds_and_tasks.low == pytest.approx(0.4, abs=0.03)
    assert found.claim.headline.startswith("3 seeds: better than ")
    assert outlier_sentence(found) == "No seed is an outlier."


def test_the_outlier_is_named_with_what_looks_for_the_cause(tmp_path: Path) -> None:
    rows = {
        seed: table(("base", 0), ("warm start", 10), ("tuned", right)) for seed, right in ((0, 90), (4, 85), (7, 20))
    }
    path = stored_family(tmp_path, rows)
    found = across_seeds(*runs_of([str(path)]))
    assert outlier_sentence(found) == (
        "Seed 7 is an outlier: it has 0.20, and the others have 0.85 to 0.90 (success of tuned, held-out tasks, T 1). "
        f"`sparring diagnose {path}-seed-7` searches for the cause."
    )
    # What is to be played is played with all of the seeds.
    assert f"`sparring eval --across {path} --policy base" in found.claim.limits[-1]


def test_an_unfinished_seed_and_one_without_an_evaluation_are_named(tmp_path: Path) -> None:
    path = stored_family(tmp_path, {0: table(*BEATEN), 1: table(*AS_GOOD), 2: ()})
    run = RunFolder(path.parent / "f-seed-2")
    run.set_status("failed", step=1, reason="out of memory")
    found = across_seeds(*runs_of([str(path)]))
    assert found.claim.headline.startswith("2 seeds (of 3; 1 failed): ")
    assert "The claim leaves out seed 2 (failed: out of memory): what it would show is not known." in found.claim.limits
    shutil.rmtree(run.path)
    assert across_seeds(*runs_of([str(path)])).seeds[2].missing == "not begun"


def test_where_one_seed_has_no_held_out_evaluation_all_are_compared_by_validation(tmp_path: Path) -> None:
    path = stored_family(tmp_path, {0: table(*BEATEN), 1: ()})
    for seed in (0, 1):
        for step, right in ((0, 36), (2, 90)):
            one = played(f"step {step}", right)
            file = path.parent / f"f-seed-{seed}" / "evaluations" / f"validation-{step}.json"
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps({"format": 2, **one.as_json()}))
    found = across_seeds(*runs_of([str(path)]))
    assert (found.is_held_out, found.policies["tuned"].mean) == (False, 0.9)
    assert found.notes[0].startswith("Seeds without a held-out evaluation: 1")


def test_the_page_has_bands_a_line_a_seed_and_the_outlier(tmp_path: Path) -> None:
    rows = {
        seed: table(("base", 0), ("warm start", 10), ("tuned", right)) for seed, right in ((0, 90), (1, 85), (2, 20))
    }
    path = stored_family(tmp_path, rows)
    for seed in rows:
        lines = [{"step": step, "metrics": {"rollout/reward/mean": step / (3 + seed)}} for step in (1, 2, 3)]
        (path.parent / f"f-seed-{seed}" / "metrics.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines)
        )
    result = CliRunner().invoke(app, ["report", str(path)])
    assert result.exit_code == 0, result.output
    page = (path / "report.html").read_text("utf-8")
    assert page.count('<polyline class="outlier"') == 2  # the curve, and its key
    assert page.count('<polyline class="seed"') == 4
    assert page.count('<polygon class="one"') == 1
    assert page.count('<path class="outlier"') == 3  # base, warm start and tuned
    assert "Seed 2 is an outlier: it has 0.20" in page
    assert (
        "Of 100 tasks that all seeds ran, tuned solved 20 in every episode with every seed, and 10 with no seed; 70 are"
        in page
    )
    with pytest.raises(UsageError, match="cannot be written"):
        write_family_report(path, tmp_path / "no" / "page.html")


@pytest.mark.parametrize(
    ("seeds", "why"),
    [
        ("1", "is too few for a family of runs"),
        ("0", "is too few for a family of runs"),
        ("3,", "neither a number"),
        ("a", "neither a number"),
        ("-1,2", "neither a number"),
        ("0,4,4", "names 4 more than once"),
    ],
)
def test_seeds_that_are_none_are_refused(seeds: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_seeds(seeds, load_config(RECIPE / "recipe.toml"))


def test_a_number_of_seeds_begins_at_the_recipes() -> None:
    assert read_seeds("3", load_config(RECIPE / "recipe.toml", ["run.seed=5"])) == (5, 6, 7)
    assert read_seeds("0,4,7", load_config(RECIPE / "recipe.toml")) == (0, 4, 7)
    with pytest.raises(UsageError, match=r"leave run\.seed out"):
        read_seeds("0,4", load_config(RECIPE / "recipe.toml", ["run.seed=5"]), ["run.seed=5"])


def test_other_settings_other_code_and_other_runs_do_not_mix(whole: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(whole, runs)
    with pytest.raises(UsageError, match=r"different settings: batch\.group_size\. .*--name"):
        trained(runs, "3", "batch.group_size=2")
    recipe = tmp_path / "recipe"
    shutil.copytree(RECIPE, recipe)
    (recipe / "tiny.py").write_text((RECIPE / "tiny.py").read_text() + "\n# changed\n")
    with pytest.raises(UsageError, match=r"different settings: tiny\.py"):
        train_seeds(recipe, "3", overrides=[f"run.runs_dir={runs}", *SETTINGS], check=False, quiet=True)
    with pytest.raises(DataError, match="a run; give the family another name"):
        train_seeds(RECIPE, "2", overrides=[f"run.runs_dir={runs}"], name="recipe-seed-0", quiet=True, check=False)
    (runs / "recipe-seed-7").mkdir()
    with pytest.raises(UsageError, match="is not a run of"):
        trained(runs, "0,7")
    with FamilyFolder(runs / "recipe").lock(), pytest.raises(UsageError, match="already being trained"):
        trained(runs)
    with pytest.raises(DataError, match="is a family of runs, not one run"):
        RunFolder(runs / "recipe")


def test_runs_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    path = stored_family(tmp_path, {0: table(*BEATEN), 1: table(*BEATEN)})
    one, other = path.parent / "f-seed-0", path.parent / "f-seed-1"
    (tmp_path / "else").mkdir()
    unlike = StoredRun(tmp_path / "else", seed=3).path
    shutil.copytree(one, path.parent / "copy")
    for sources, why in (
        ((one,), "is only one run, so it has only one seed"),
        ((one, unlike), r"differ in more than their seed: .*warm_start"),
        ((one, path.parent / "copy"), "both have seed 0"),
        ((path, one), "is already a family of runs"),
    ):
        with pytest.raises(UsageError, match=why):
            runs_of(list(map(str, sources)))
    with pytest.raises(DataError, match="does not exist"):
        runs_of([str(tmp_path / "nothing")])
    RunFolder(other).set_status("stopped")
    with pytest.raises(UsageError, match="seed 0 is completed, but a comparison across seeds needs two"):
        evaluate_seeds([str(path)])
    (path / "family.json").write_text("{}")
    with pytest.raises(DataError, match="cannot be read"):
        FamilyFolder(path)
    (path / "family.json").write_text('{"format": 9}')
    with pytest.raises(DataError, match=r"has format 9, but Sparring .* reads format 1"):
        FamilyFolder(path)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["train", "--resume", "RUN", "--seeds", "3"], "not a family of runs"),
        (["train", str(RECIPE), "--seeds", "1"], "is too few for a family of runs"),
        (["eval", "--across", "FAMILY", "--compare"], "--across does not read --compare"),
        (["eval", "--across", "FAMILY", "--resume"], "--across does not read --resume"),
        (["eval", "--across", "FAMILY", "evaluation.eval_num_tasks=2"], "cannot be applied"),
        (["report", "FAMILY", "--price", "hour=1"], "the page of a family shows no cost"),
        (["eval", "FAMILY"], "is a family of runs; evaluate it with `sparring eval --across"),
    ],
)
def test_options_that_do_not_go_together_say_so(tmp_path: Path, words: list[str], why: str) -> None:
    path = stored_family(tmp_path, {0: (), 1: ()})
    result = CliRunner().invoke(app, [{"FAMILY": str(path), "RUN": f"{path}-seed-0"}.get(word, word) for word in words])
    assert result.exit_code in (2, 3), result.output
    assert why in result.output.replace("\n", " ")
