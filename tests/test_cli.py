"""The commands do what they say, for people and for machines, and start without torch."""

import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from sparring.cli import app
from sparring.cli.command import report_failures
from sparring.cli.train import _report_training  # pyright: ignore[reportPrivateUsage] - a stop needs a signal
from sparring.config import load_config
from sparring.data import read_tasks, split_tasks
from sparring.environments import record_demonstration
from sparring.errors import RewardError
from sparring.run_folders import RunFolder
from sparring.run_folders.stored import read_trajectories
from sparring.tracking import LocalTracker
from sparring.training_run.following import read_result
from sparring.types import Outcome, Trajectory

CHASE = Path(__file__).parents[1] / "recipes" / "pointer_chase"

SMALL = (
    "evaluation.val_temperature=0",
    "evaluation.eval_temperature=0",
    "evaluation.eval_group_size=1",
    "schedule.max_steps=2",
    "schedule.val_every=1",
    "evaluation.val_num_tasks=3",
    "evaluation.eval_num_tasks=4",
    "batch.global_batch_size=2",
    "batch.group_size=2",
    "evaluation.allow_zero_baseline=true",
    "warm_start.num_demonstrations=4",
    "warm_start.steps=1",
    "warm_start.batch_size=4",
)


def sparring(*arguments: str) -> Result:
    if arguments[0] == "train":
        arguments = (*arguments, "--no-supervise")  # what it prints is read here
    return CliRunner().invoke(app, list(arguments), terminal_width=200)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(CHASE, tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__"))


def test_help_answers_without_importing_torch() -> None:
    code = (
        "import sys; from sparring.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit as end: print({'torch', 'transformers', 'ray'} & set(sys.modules), end.code)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHASE.parents[1])
    assert out.stdout.splitlines()[-1] == "set() 0"
    for command in ("init", "check", "train", "eval", "serve", "export", "runs"):
        assert command in out.stdout


def test_the_version_is_that_of_the_package() -> None:
    done = sparring("--version")
    assert (done.exit_code, done.stdout) == (0, f"sparring {version('sparring')}\n")


def test_a_run_is_trained_shown_evaluated_resumed_and_exported(capsys: pytest.CaptureFixture[str]) -> None:
    trained = sparring("train", "toy", "--no-check", "--name", "one", "--json", *SMALL)
    assert trained.exit_code == 0, trained.output
    result = json.loads(trained.stdout)
    assert (result["run"], result["status"], result["step"]) == ("runs/one", "completed", 2)
    assert list(result["validations"]) == ["0", "1", "2"]
    steps = [json.loads(line) for line in Path("runs/one/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if "rollout/reward/mean" in line["metrics"]] == [1, 2]
    assert len(Path("runs/one/trajectories/train-2.jsonl").read_text().splitlines()) == 4

    # The run is self-contained: its recipe may go.
    shutil.rmtree("toy")
    listed = json.loads(sparring("runs", "list", "--json").stdout)
    assert [(run["name"], run["status"], run["step"]) for run in listed] == [("one", "completed", 2)]

    evaluated = sparring("eval", "one", "--json")
    assert evaluated.exit_code == 0, evaluated.output
    report = json.loads(evaluated.stdout)
    assert [evaluation["name"] for evaluation in report["evaluations"]] == ["base", "warm start", "tuned"]
    assert [len(evaluation["tasks"]) for evaluation in report["evaluations"]] == [4, 4, 4]
    assert [comparison["after"] for comparison in report["comparisons"]] == ["tuned-greedy", "tuned-greedy"]
    shown = json.loads(sparring("runs", "show", "one", "--json").stdout)
    assert [report["path"]] == shown["evaluations"] == ["runs/one/evaluations/held_out-001.json"]
    assert "rollout/reward/mean" in shown["metrics"]
    held_out = read_trajectories(Path("runs/one/trajectories/held_out-1.jsonl"))
    policies = [trajectory.id.split("/")[1].split("@")[0] for trajectory in held_out]
    assert policies == ["base-greedy"] * 4 + ["warm-start-greedy"] * 4 + ["tuned-greedy"] * 4
    for episodes in ("train-2", "held_out-1"):
        replayed = sparring("replay", "one", episodes, "--json")
        assert replayed.exit_code == 0, replayed.output
        assert {row["difference"] for row in json.loads(replayed.stdout)} == {None}

    before = {path: path.stat().st_mtime_ns for path in Path("runs/one").rglob("*")}
    complete = sparring("train", "--resume", "one")
    assert complete.exit_code == 0, complete.output
    assert complete.stdout.splitlines() == [
        "runs/one is complete: it has taken 2 steps, and schedule.max_steps is 2.",
        "to continue it, raise schedule.max_steps: sparring train --resume runs/one schedule.max_steps=4",
        "next: sparring control runs/one, then sparring eval runs/one",
    ]
    complete = json.loads(sparring("train", "--resume", "one", "--json").stdout)
    assert (complete["status"], complete["step"], list(complete["validations"])) == ("completed", 2, ["0", "1", "2"])
    assert {path: path.stat().st_mtime_ns for path in Path("runs/one").rglob("*")} == before

    RunFolder(Path("runs/one")).set_status("stopped")
    _report_training(read_result(RunFolder(Path("runs/one"))), as_json=False)
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "to continue it: sparring train --resume runs/one",
        "next: sparring control runs/one, then sparring eval runs/one",
    ]

    resumed = sparring("train", "--resume", "one", "schedule.max_steps=3", "--json")
    assert resumed.exit_code == 0, resumed.output
    assert json.loads(resumed.stdout)["step"] == 3

    exported = sparring("export", "one", "out", "--merge", "--json")
    assert exported.exit_code == 0, exported.output
    written = json.loads(exported.stdout)
    assert (written["path"], written["kind"]) == ("out", "merged model")
    assert any(Path("out").iterdir())


def test_a_run_continues_from_the_weights_of_another_and_is_listed_below_it() -> None:
    assert sparring("train", "toy", "--no-check", "--name", "one", *SMALL).exit_code == 0
    started = ("train", "toy", "--no-check", "--model-weights", "one@2", "--name")
    result = sparring(*started, "two", *SMALL, "schedule.max_steps=0")
    assert result.exit_code == 0, result.output
    assert "warm start" not in result.stderr
    parent = Path("runs/one").resolve()
    origin = RunFolder(Path("runs/two")).origin()
    assert origin is not None
    assert (origin["run"], origin["step"], origin["weights"]) == (str(parent), 2, str(parent / "checkpoints/000002"))
    before, after = (
        load_file(Path("runs") / path / "weights.safetensors")
        for path in ("one/checkpoints/000002", "two/checkpoints/000000")
    )
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)

    assert (
        sparring(
            "runs", "branch", "two", "batch.group_size=3", "schedule.max_steps=1", "--no-train", "--name", "a"
        ).exit_code
        == 0
    )
    rows = [line.replace("│", " ").split() for line in sparring("runs", "list").stdout.splitlines() if "│" in line]
    assert [row[:-1] for row in rows][1:] == [
        ["└", "two", "completed", "0", "weights", "of", "one,", "step"],
        ["└", "a", "created", "0", "two,", "step"],
    ]
    assert rows[0] == ["one", "completed", "2"]

    for wrong, message in (
        (["--resume", "two", "--model-weights", "one"], "leave one of them out"),
        ([*started[1:4], "nowhere"], "nowhere contains no checkpoint"),
        ([*started[1:4], "one@9"], "has no checkpoint 000009"),
        ([*started[1:4], "nowhere", "--dry-run"], "nowhere contains no checkpoint"),
        (["toy", "--dry-run", "checks.accept=['nope']"], "names 'nope', which is not a check"),
    ):
        refused = sparring("train", *wrong)
        assert refused.exit_code != 0
        assert message in refused.stderr

    shutil.rmtree("runs/one")
    resumed = sparring("train", "--resume", "two", "schedule.max_steps=1")
    assert resumed.exit_code == 0, resumed.output


def test_what_user_code_prints_is_not_in_the_json() -> None:
    with Path("toy/environment.py").open("a") as file:
        file.write("\nprint('loaded')\n")
    evaluated = sparring("eval", "toy", "--policy", "expert", "--json", "evaluation.eval_num_tasks=2")
    assert len(json.loads(evaluated.stdout)["evaluations"]) == 1
    assert "loaded" in evaluated.stderr


def test_a_run_that_is_not_there_is_no_name_of_a_model() -> None:
    served = sparring("serve", "runs/nope")
    assert served.exit_code == 3
    assert "runs/nope does not exist; specify a folder that `sparring train` wrote" in served.stderr


def test_a_checkpoint_is_evaluated_as_a_policy_of_its_run() -> None:
    evaluated = sparring("eval", "one@best")
    assert evaluated.exit_code == 3
    assert "To evaluate a checkpoint, name it as a policy: sparring eval one --policy @best." in evaluated.stderr


def test_people_get_tables_with_intervals_and_the_next_command() -> None:
    trained = sparring("train", "toy", "--no-check", "--name", "one", *SMALL)
    assert "validation, greedy, 3 x 1 episodes, scored by environment:scorer" in trained.stdout
    assert "next: sparring control runs/one, then sparring eval runs/one" in trained.stdout
    assert "step 2/2  reward" in trained.stderr
    evaluated = sparring("eval", "one", "--no-base")
    assert "tuned" in evaluated.stdout
    assert not any("warm start" in line for line in evaluated.stdout.splitlines() if line.startswith("│"))
    # What was left out is not known.
    assert "`sparring eval runs/one --policy base --policy warm_start" in evaluated.stdout
    assert "reward grades itself" not in evaluated.stdout
    shown = sparring("runs", "show", "one").stdout
    assert "runs/one: completed, step 2" in shown
    assert "evaluation: runs/one/evaluations/held_out-001.json" in shown
    assert "completed" in sparring("runs", "list").stdout


def test_without_a_scorer_an_evaluation_reports_that_the_reward_scores_itself() -> None:
    recipe = Path("toy/recipe.toml")
    recipe.write_text(recipe.read_text().replace('scorer = "environment:scorer"', ""))
    trained = sparring("train", "toy", "--no-check", "--name", "one", "--json", *SMALL, "schedule.max_steps=0")
    assert trained.exit_code == 0, trained.output
    evaluated = sparring("eval", "one", "--no-base")
    assert "the training reward grades itself here" in evaluated.stdout
    report = json.loads(Path("runs/one/evaluations/held_out-001.json").read_text())
    assert report["evaluations"][0]["independence"] == "none"


def test_a_damaged_run_does_not_hide_the_others_from_the_list() -> None:
    recipe = Path("toy/recipe.toml")
    for name in ("bad", "good"):
        RunFolder.create(load_config(recipe), recipe, name=name)
    Path("runs/bad/status.json").write_text("[]")
    listed = {run["name"]: run for run in json.loads(sparring("runs", "list", "--json").stdout)}
    assert {name: run["status"] for name, run in listed.items()} == {"bad": "damaged", "good": "created"}
    assert "status.json" in listed["bad"]["reason"]
    assert "damaged" in sparring("runs", "list").stdout


def test_a_dry_run_shows_every_setting_with_its_origin_and_makes_no_run() -> None:
    result = sparring("train", "toy/recipe.toml", "batch.group_size=4", "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    settings = {row["key"]: (row["value"], row["origin"]) for row in json.loads(result.stdout)}
    assert settings["batch.group_size"] == (4, "override")
    assert settings["batch.global_batch_size"] == (16, "recipe")
    assert settings["optimizer.adam_beta1"] == (0.9, "default")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "wrong",
    ["environment.target=environment:Pointer", "reward.scorer=environment:scorr", "data.train=environment:train"],
)
def test_a_dry_run_reports_a_wrong_name_before_it_shows_settings_or_loads_the_model(wrong: str) -> None:
    (Path("toy") / "model.py").write_text("raise RuntimeError('the model was loaded')\n")
    result = sparring("train", "toy", wrong, "--dry-run")
    assert result.exit_code == 2
    assert "did you mean" in result.stderr
    assert "the model was loaded" not in result.output
    assert result.stdout == ""


def test_a_taken_name_is_refused_before_the_recipe_is_checked() -> None:
    (Path("runs") / "one").mkdir(parents=True)
    for flags in (["--no-check"], ["--supervise"]):
        refused = sparring("train", "toy", *flags, "--name", "one", *SMALL)
        assert refused.exit_code == 3, refused.output
        assert "runs/one exists" in refused.output
        assert "checking the recipe" not in refused.output


def test_a_failed_run_has_its_error_in_its_folder() -> None:
    (Path("toy") / "judge.py").write_text("def reward(trajectory):\n    return None\n")
    assert sparring("train", "toy", "--no-check", "--name", "one", "reward.reward=judge:reward", *SMALL).exit_code == 1
    status = RunFolder(Path("runs/one")).status()
    assert status["status"] == "failed"
    assert "not a number" in status["reason"]


def test_code_of_the_user_that_raises_is_named_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    def scorer(text: str) -> float:
        return float(text)

    @report_failures
    def command() -> None:
        try:
            scorer("seven")
        except ValueError as error:
            raise RewardError(f"Scorer 'mine:scorer' raised {error!r} on trajectory a.") from error

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == 1
    errors = capsys.readouterr().err
    line = scorer.__code__.co_firstlineno + 1
    assert f"It was raised in {__file__}, line {line}, in scorer." in errors


def test_a_full_disk_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    @report_failures
    def command() -> None:
        Path("/dev/full").write_text("x")

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == 4
    assert capsys.readouterr().err == (
        "error: [Errno 28] No space left on device. Free up disk space, or write to a different location, and try again.\n"
    )


def test_a_limit_on_the_size_of_files_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    @report_failures
    def command() -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == 4
    assert capsys.readouterr().err == (
        "error: [Errno 27] File too large. Free up disk space, or write to a different location, and try again.\n"
    )


def test_a_file_that_may_not_be_read_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    @report_failures
    def command() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "runs/one/lock")

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == 4
    assert capsys.readouterr().err == (
        "error: [Errno 13] Permission denied: 'runs/one/lock'. Check the disk and the permissions, and try again.\n"
    )


def test_a_bug_is_reported_with_a_file_that_holds_the_traceback() -> None:
    (Path("toy") / "model.py").write_text("def build(seed):\n    return 1 / 0\n")
    result = sparring("train", "toy", "--dry-run", "--json")
    assert result.exit_code == 1
    assert "ZeroDivisionError: division by zero" in result.stderr
    assert "Traceback" not in result.output
    path = Path(result.stderr.rpartition("traceback is in ")[2].strip().rstrip("."))
    assert "return 1 / 0" in path.read_text()
    path.unlink()


def test_ctrl_c_ends_at_once_although_a_thread_is_still_at_work() -> None:
    # A thread that is not stopped would keep an ordinary exit waiting for ever.
    code = """
import sys, threading
import sparring.cli as cli
from sparring.cli import runs

def interrupted(_):
    raise KeyboardInterrupt

runs.list_runs = interrupted
threading.Thread(target=threading.Event().wait).start()
sys.argv = ["sparring", "runs", "list"]
cli.main()
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=CHASE.parents[1])
    assert (out.returncode, out.stdout, out.stderr) == (130, "", "interrupted\n")


def test_metrics_of_a_run_being_written_are_shown_up_to_the_last_whole_line() -> None:
    recipe = Path("toy/recipe.toml")
    folder = RunFolder.create(load_config(recipe), recipe, name="one")
    tracker = LocalTracker(folder.path)
    tracker.log_metrics(1, {"a": 1.0, "b": 1.0})
    tracker.log_metrics(2, {"a": 2.0})
    tracker.close()
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "metr')
    assert json.loads(sparring("runs", "show", "one", "--json").stdout)["metrics"] == {"a": 2.0, "b": 1.0}


def test_the_main_metrics_of_a_run_are_shown_first_and_with_their_digits() -> None:
    recipe = Path("toy/recipe.toml")
    folder = RunFolder.create(load_config(recipe), recipe, name="one")
    tracker = LocalTracker(folder.path)
    tracker.log_metrics(1, {"a/b": 3.0, "training/learning_rate": 5e-4, "rollout/reward/mean": 0.123456})
    tracker.close()

    def shown(*more: str) -> list[list[str]]:
        lines = sparring("runs", "show", "one", *more).stdout.splitlines()
        return [line.replace("│", " ").split() for line in lines if line.startswith("│")]

    assert shown() == [["rollout/reward/mean", "0.1235"], ["training/learning_rate", "0.0005"]]
    assert "1 more metrics: --all" in sparring("runs", "show", "one").stdout
    assert shown("--all") == [*shown(), ["a/b", "3"]]


def test_a_terminal_without_a_letter_shows_its_number() -> None:
    recipe = Path("toy/recipe.toml")
    RunFolder.create(load_config(recipe), recipe, name="\u6771")
    listed = subprocess.run(
        [sys.executable, "-m", "sparring", "runs", "list"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(CHASE.parents[1])},
    )
    assert "\\u6771" in listed.stdout


def test_init_writes_a_recipe_whose_expert_is_right_for_reward_and_scorer() -> None:
    result = sparring("init", "shop", "--json")
    assert result.exit_code == 0, result.output
    names = {Path(name).name for name in json.loads(result.stdout)["files"]}
    assert names == {"Containerfile", "README.md", "environment.py", "recipe.toml", "tasks.jsonl"}
    config = load_config(Path("shop/recipe.toml"))
    tasks = read_tasks(Path("shop") / str(config.data.train))
    splits = split_tasks(tasks, {"validation": 0.2, "held_out": 0.2}, seed=config.run.seed)
    assert len(tasks) == 56
    assert all(splits.values())

    spec = importlib.util.spec_from_file_location("shop_environment", "shop/environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for task in tasks:
        messages = tuple(record_demonstration(module.Shop, task))
        played = Trajectory(
            id="x", task=task, attempt=0, turns=(), messages=messages, outcome=Outcome.FINISHED, reward=None, score=None
        )
        assert module.reward(played) == (1.0, {"right": 1.0, "named_a_total": 1.0})
        assert module.scorer(played) == 1.0
        # A number of more digits than Python reads is no total either.
        for total, paid in (("0", 0.2), ("9" * 5000, 0.0)):
            wrong = (*messages[:-1], {"role": "assistant", "content": f"Total: {total}"})
            missed = Trajectory(
                id="x",
                task=task,
                attempt=0,
                turns=(),
                messages=wrong,
                outcome=Outcome.FINISHED,
                reward=None,
                score=None,
            )
            assert module.reward(missed)[0] == paid
            assert module.scorer(missed) == 0.0


def test_what_init_writes_gives_no_warning_and_its_scorer_is_independent() -> None:
    sparring("init", "shop")
    result = sparring("check", "shop", "--json")
    assert result.exit_code == 0, result.output
    found = {one["rule"]: one["severity"] for one in json.loads(result.stdout)["findings"]}
    assert found == {"budgets.cost": "note"}
