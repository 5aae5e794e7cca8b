"""Policies of every kind as rows of one table, resumed after a kill, and training that does not notice."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from sparring.cli import app
from sparring.errors import DataError
from sparring.evaluation.claim import claim_of
from sparring.evaluation.controls import RunFacts
from sparring.evaluation.of_run import claim_of_report, claim_of_run, is_random_control
from sparring.evaluation.report import read_report
from sparring.ledger import Ledger, RolloutState
from sparring.run_folders import RunFolder
from sparring.trainer import MultiTurnRLTrainer
from sparring.training import checkpoints
from tests.evaluation.test_claim import table
from tests.foreign import EXPERT, ExpertEndpoint, serving

ROOT = Path(__file__).parents[2]
SMALL = (
    "schedule.max_steps=2",
    "schedule.val_every=1",
    "schedule.save_every=1",
    "evaluation.val_num_tasks=3",
    "evaluation.eval_num_tasks=4",
    "batch.global_batch_size=2",
    "batch.group_size=2",
    "evaluation.allow_zero_baseline=true",
    "warm_start.num_demonstrations=4",
    "warm_start.steps=1",
    "warm_start.batch_size=4",
    "warm_start.control_steps=8",
)


def copy_run(run: Path, to: Path, ignore: Callable[..., set[str]] | None = None) -> Path:
    """Copy a run folder. An evaluator of an earlier test may close its ledger meanwhile, which deletes SQLite's own
    files, so the copy is then made again."""
    try:
        return shutil.copytree(run, to, ignore=ignore)
    except shutil.Error:
        shutil.rmtree(to)
        return shutil.copytree(run, to, ignore=ignore)


def sparring(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), terminal_width=200)


def evaluated(*arguments: str) -> dict[str, Any]:
    result = sparring("eval", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "recipes" / "pointer_chase", "toy", ignore=shutil.ignore_patterns("__pycache__"))
    Path("toy/walker.py").write_text(EXPERT, "utf-8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps with a checkpoint each."""
    folder = tmp_path_factory.mktemp("runs")
    overrides = [f"run.runs_dir={folder}", *SMALL]
    result = MultiTurnRLTrainer(
        ROOT / "recipes" / "pointer_chase", overrides=overrides, quiet=True, check=False
    ).train()
    assert result is not None
    return result.run


@pytest.fixture
def endpoint() -> Iterator[str]:
    with serving(ExpertEndpoint(Path("upstream")).start) as served:
        yield served.base_url


def commands(limits: list[str]) -> list[list[str]]:
    """Those that a claim proposes."""
    found = [text for limit in limits for text in re.findall(r"`(sparring [^`]+)`", limit)]
    return [shlex.split(one)[1:] for one in found]


def test_the_command_that_a_claim_proposes_plays_the_control_that_was_missing(trained: Path) -> None:
    """The weights of imitation for as long are kept, so the second time plays the same."""
    better = claim_of(table(("warm start", 10), ("tuned", 100)), RunFacts(name=str(trained), has_warm_start=True))
    (proposed,) = commands(list(better.limits))
    least = ["evaluation.eval_num_tasks=4", "--temperature", "1", "--json"]
    rows = []
    for _ in range(2):
        result = sparring(*proposed, *least)
        assert result.exit_code == 0, result.output
        rows.append({one["name"]: one for one in json.loads(result.stdout)["evaluations"]})
    assert list(rows[0]) == ["base", "warm start", "warm start continued", "tuned"]
    kept = json.loads((trained / "controls" / "warm_start_continued" / "state.json").read_text())
    assert kept["fingerprint"] == rows[0]["warm start continued"]["fingerprint"]
    prints = [one["warm start continued"]["fingerprint"] for one in rows]
    assert prints[0] == prints[1] != rows[0]["warm start"]["fingerprint"]


def test_the_temperatures_of_a_policy_share_the_tokens_that_their_episodes_have_in_common(trained: Path) -> None:
    def read(*temperatures: str) -> tuple[list[Any], int, set[tuple[int, ...]]]:
        """Return the scores and the tokens of an evaluation, the computed tokens, and the different histories."""
        options = [option for one in temperatures for option in ("--temperature", one)]
        report = evaluated(str(trained), "--policy", "tuned", *options)
        path = trained / "trajectories" / f"held_out-{int(Path(report['path']).stem.rpartition('-')[2])}.jsonl"
        episodes = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        turns = [turn for episode in episodes for turn in episode["turns"]]
        texts = [(*turn["prompt_ids"], *turn["token_ids"]) for turn in turns]
        results = [
            [[one["temperature"], one["tasks"]] for one in report["evaluations"]],
            sorted(
                (one["task"]["id"], one["attempt"], str([turn["token_ids"] for turn in one["turns"]]))
                for one in episodes
            ),
        ]
        different = {text[:end] for text in texts for end in range(1, len(text) + 1)}
        return results, sum(turn["num_computed_tokens"] for turn in turns), different

    together, computed, different = read("0", "1")
    (greedy, num_greedy, _), (sampled, num_sampled, _) = read("0"), read("1")
    assert together == [greedy[0] + sampled[0], sorted(greedy[1] + sampled[1])]
    assert computed < 1.02 * len(different) < num_greedy + num_sampled


def test_the_control_with_random_rewards_is_trained_and_played_by_the_commands_that_a_claim_proposes(
    tmp_path: Path,
) -> None:
    recipe = Path("toy/recipe.toml")
    text = recipe.read_text()
    begin = text.index("[warm_start]")
    end = text.find("\n[", begin + 1)
    recipe.write_text(text[:begin] + (text[end + 1 :] if end >= 0 else ""))
    small = [one for one in SMALL if not one.startswith("warm_start")]
    trainer = MultiTurnRLTrainer("toy", overrides=["schedule.max_steps=1", *small[1:]], quiet=True, check=False)
    result = trainer.train()
    assert result is not None
    name, claim = str(result.run), evaluated(str(result.run), "--no-base")["claim"]
    assert claim["claim"].endswith("not compared with any control.")
    assert "whether tuned is better than the base model and training with random rewards" in " ".join(claim["limits"])
    # What is proposed where the tuned policy beats base, its one control.
    better = claim_of(
        table(("base", 10), ("tuned", 100)),
        RunFacts(
            name=name, recipe=str(RunFolder(result.run).recipe), runs=str(result.run.parent), has_warm_start=False
        ),
    )
    train, play = commands(list(better.limits))
    for command in ([*train, "--no-supervise"], play):
        done = sparring(*command)
        assert done.exit_code == 0, done.output
    assert "random" in done.output
    report = json.loads((result.run / "evaluations" / "held_out-002.json").read_text())
    assert {one["name"]: one["is_random_control"] for one in report["evaluations"]} == {
        "base": False,
        "runs/random": True,
        "tuned": False,
    }
    compared = claim_of_run(RunFolder(result.run))
    assert "training with random rewards (runs/random)" in compared.headline
    assert "random rewards" not in compared.not_known.controls


def test_another_run_is_no_control_with_random_rewards(trained: Path, tmp_path: Path) -> None:
    """One with its own reward is none, nor one that differs in more than the reward."""
    run, other = RunFolder(trained), RunFolder(copy_run(trained, tmp_path / "other"))
    assert not is_random_control(other, run)
    text = other.recipe.read_text()
    other.recipe.write_text(text.replace('reward = "environment:reward"', 'reward = "environment:shuffled_reward"'))
    assert is_random_control(other, run)
    other.recipe.write_text(other.recipe.read_text().replace("max_turns = 5", "max_turns = 6"))
    assert not is_random_control(other, run)


def test_tasks_that_share_an_id_are_refused_before_anything_is_played() -> None:
    recipe = Path("toy/recipe.toml")
    recipe.write_text(
        recipe.read_text().replace('held_out = "environment:held_out_tasks"', 'held_out = "doubled:tasks"')
    )
    Path("toy/doubled.py").write_text(
        "from environment import held_out_tasks\n\ndef tasks():\n    return [*held_out_tasks(2), *held_out_tasks(1)]\n"
    )
    refused = sparring("eval", "toy", "--policy", "expert")
    assert refused.exit_code == 3
    assert "several tasks of held_out have the id" in refused.output.replace("\n", " ")
    assert not list(Path("runs").glob("*"))


def test_settings_that_an_evaluation_was_given_are_stored_and_not_taken_for_the_runs_own(trained: Path) -> None:
    # Without the evaluations that other tests stored in this run.
    run = copy_run(trained, Path("run"), ignore=shutil.ignore_patterns("evaluations"))
    first = evaluated(
        str(run), "--policy", "base", "--policy", "tuned", "--temperature", "1", "environment.max_turns=3"
    )
    assert [one["overrides"] for one in first["evaluations"]] == [{"environment.max_turns": 3}] * 2
    then = evaluated(str(run), "--policy", "tuned", "--temperature", "1", "evaluation.eval_num_tasks=3")
    assert then["evaluations"][0]["overrides"] == {"evaluation.eval_num_tasks": 3}
    limits = " ".join(claim_of_report(read_report(run / "evaluations" / "held_out-002.json")).limits)
    assert "Not compared with the base model: environment.max_turns differed." in limits


def test_the_expert_constants_scripts_and_endpoints_are_rows_of_one_table_without_torch(endpoint: str) -> None:
    policies = ["expert", "constant:ans a", "script:walker:act", f"openai:walker@{endpoint}"]
    named = [
        "--json",
        "evaluation.eval_num_tasks=24",
        "evaluation.eval_temperature=1.0",
        *(word for policy in policies for word in ("--policy", policy)),
    ]
    code = (
        f"import sys; from sparring.cli import app\ntry: app(['eval', 'toy', *{named}])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules, file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert out.stderr.splitlines()[-1] == "0 False", out.stderr
    report = json.loads(out.stdout)
    rows = {(one["name"], one["temperature"]): one for one in report["evaluations"]}
    # Who samples does so greedily and as served; a script samples nothing.
    assert list(rows) == [
        ("expert", None),
        ("constant:ans a", None),
        ("script:walker:act", None),
        (f"openai:walker@{endpoint}", 0.0),
        (f"openai:walker@{endpoint}", 1.0),
    ]
    assert rows["expert", None]["success"]["mean"] == 1.0
    constant = rows["constant:ans a", None]
    right = [task["id"] for task in constant["tasks"] if task["successes"]]
    stored = lines(Path(report["path"]).parents[1] / "trajectories" / "held_out-1.jsonl")
    answers = {one["task"]["id"]: one["task"]["fields"]["answer"] for one in stored}
    assert right == [task_id for task_id, answer in answers.items() if answer == "a"]
    # The last one, right everywhere, against the constant: what that had wrong is fixed.
    (comparison,) = [
        one for one in report["comparisons"] if one["before"] == constant["label"] and one["after"].endswith("greedy")
    ]
    assert comparison["fixed"] == [task_id for task_id in answers if task_id not in right]
    assert (comparison["broken"], comparison["unchanged"]) == ([], right)


def test_policies_that_there_are_not_are_refused_with_what_there_is(trained: Path) -> None:
    for policy, message in (
        ("besst", "choose one of base, warm_start"),
        ("@7", "it has 000001, 000002, warm_start"),
        ("openai:m", "openai:MODEL@URL"),
        ("constant:", "choose one of base"),
    ):
        refused = sparring("eval", str(trained), "--policy", policy)
        assert refused.exit_code in (2, 3)
        assert message in " ".join(refused.output.split())
    twice = sparring("eval", str(trained), "--policy", "tuned", "--policy", "tuned")
    assert (twice.exit_code, "each only once" in twice.output) == (2, True)
    hot = sparring("eval", str(trained), "--temperature", "3")
    assert (hot.exit_code, "between 0 (greedy) and 2" in hot.output) == (2, True)
    recipe = sparring("eval", "toy", "--policy", "tuned")
    assert (recipe.exit_code, "is a recipe" in recipe.output) == (2, True)
    unread = sparring("eval", str(trained), "--scorer", "a:b")
    assert (unread.exit_code, "does not read --scorer" in unread.output) == (2, True)


def test_an_evaluation_of_a_recipe_that_is_refused_before_it_plays_leaves_no_run_and_its_name_free() -> None:
    arguments = ("eval", "toy", "--policy", "expert", "run.name=once", "evaluation.eval_num_tasks=2")
    refused = sparring(*arguments, "data.held_out=environment:train_tasks")
    assert (refused.exit_code, list(Path("runs").iterdir())) == (3, []), refused.output
    assert sparring(*arguments).exit_code == 0


def test_checkpoints_of_several_runs_play_side_by_side_at_chosen_temperatures(trained: Path) -> None:
    Path("runs").mkdir()
    other = Path("runs/other")
    copy_run(trained, other, ignore=shutil.ignore_patterns("evaluations", "trajectories"))
    report = evaluated(
        str(trained), "--policy", "base", "--policy", "@1", "--policy", "other@2", "--policy", "tuned", "--temperature", "0.5",
        "evaluation.eval_group_size=3",
    )  # fmt: skip
    rows = {one["name"]: one for one in report["evaluations"]}
    assert [(name, row["policy_version"]) for name, row in rows.items()] == [
        ("base", 0),
        ("@1", 1),
        ("other@2", 2),
        ("tuned", 2),
    ]
    assert {(row["temperature"], row["group_size"]) for row in rows.values()} == {(0.5, 3)}
    # The same weights on the same tasks and seeds do the same, whatever they are called.
    assert rows["other@2"]["fingerprint"] == rows["tuned"]["fingerprint"] != rows["base"]["fingerprint"]
    assert rows["other@2"]["tasks"] == rows["tuned"]["tasks"]
    # pass@k for every k up to the episodes a task, and no other.
    names = [name for name in rows["tuned"]["metrics"] if "pass_at" in name]
    assert names == [f"eval/reward/pass_at_{k}" for k in (1, 2, 3)]
    refused = sparring("eval", str(trained), "evaluation.pass_k_values=[4]", "evaluation.eval_group_size=3")
    assert (refused.exit_code, "pass@4 is not defined" in refused.output) == (2, True)


SLOW_RECIPE = """
[data]
held_out = "shop:tasks"
[environment]
target = "shop:Shop"
[reward]
reward = "shop:reward"
scorer = "shop:scorer"
[evaluation]
eval_group_size = 8
[rollout]
rollout_max_concurrency = 32
[engine]
type = "scripted"
script = "shop:act"
"""
SLOW_SHOP = """
import asyncio, hashlib
from sparring.environments import Environment
from sparring.types import Task

class Shop(Environment):
    pass

def tasks():
    return [Task(id=f"t{n}", messages=({"role": "user", "content": f"{n}?"},)) for n in range(200)]

async def act(messages):
    await asyncio.sleep(0.002)
    return "yes"

def reward(trajectory):
    return scorer(trajectory) / 2

def scorer(trajectory):
    # Right or wrong as task and member say: of eight members each task has others right.
    drawn = hashlib.sha256(f"{trajectory.task.id}/{trajectory.attempt}".encode()).digest()[0]
    return float(drawn < 64 + 16 * trajectory.attempt)
"""


def test_an_evaluation_that_is_killed_at_any_moment_goes_on_without_repeating_an_episode(tmp_path: Path) -> None:
    Path("slow").mkdir()
    Path("slow/recipe.toml").write_text(SLOW_RECIPE, "utf-8")
    Path("slow/shop.py").write_text(SLOW_SHOP, "utf-8")
    whole = evaluated("slow")
    run = Path("runs/killed")
    shutil.copytree(Path(whole["path"]).parents[1], run, ignore=shutil.ignore_patterns("eval*", "traj*", "ledger*"))
    rng, command = random.Random(11), [sys.executable, "-m", "sparring", "eval", str(run), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    episodes = run / "evaluations" / "held_out-001.part" / "episodes.jsonl"
    num_before = 0
    for attempt in range(3):
        again = command if attempt == 0 else [*command, "--resume"]
        process = subprocess.Popen(again, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        limit = num_before + rng.randint(1, 450)
        while process.poll() is None and num_lines(episodes) < limit:
            time.sleep(0.001)
        # Not the command, which only watches: the process that plays would stop in order.
        os.kill(int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()), signal.SIGKILL)
        assert process.wait() == 1
        num_before = num_lines(episodes)
    assert 0 < num_before < 1600
    with episodes.open("ab") as file:  # half a line, as the system may leave one
        file.write(b'{"label": "scrip')
    report = evaluated(str(run), "--resume")
    assert not episodes.parent.exists()
    assert without_times(report) == without_times(whole)
    with Ledger(run / "ledger.sqlite") as ledger:
        assert ledger.verify() == []
        played = Counter((one.task_id, one.attempt) for one in ledger.rollouts(state=RolloutState.EVALUATED))
        unfinished = [
            one for one in ledger.rollouts() if one.state not in (RolloutState.EVALUATED, RolloutState.DISCARDED)
        ]
    assert len(played) == 1600
    assert set(played.values()) == {1}
    assert unfinished == []
    nothing = sparring("eval", str(run), "--resume")
    assert (nothing.exit_code, "no interrupted evaluation" in nothing.output) == (2, True)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def without_times(report: dict[str, Any]) -> dict[str, Any]:
    """Log-probabilities are the same up to the rounding of batches of another size."""
    rows = [
        {
            **{key: value for key, value in row.items() if key != "seconds"},
            "metrics": {name: round(value, 4) for name, value in row["metrics"].items()},
        }
        for row in report["evaluations"]
    ]
    return {"evaluations": rows, "comparisons": report["comparisons"]}


DYING_SCORER = """
import os
from environment import scorer as judge

left = int(os.environ.get("SCORES_LEFT", "1000"))

def scorer(trajectory):
    global left
    left -= 1
    if left < 0:
        os._exit(9)
    return judge(trajectory)
"""


def test_a_models_evaluation_that_was_interrupted_ends_as_the_uninterrupted_one(trained: Path) -> None:
    run = Path("interrupted")
    copy_run(trained, run)
    (run / "recipe" / "dying.py").write_text(DYING_SCORER, "utf-8")
    chosen = (
        str(run),
        "--policy",
        "base",
        "--policy",
        "tuned",
        "evaluation.eval_group_size=4",
        "evaluation.eval_temperature=0.8",
        "reward.scorer=dying:scorer",
    )
    whole = evaluated(*chosen)
    died = subprocess.run(
        [sys.executable, "-m", "sparring", "eval", *chosen],
        env={**os.environ, "PYTHONPATH": str(ROOT), "SCORES_LEFT": "31"},  # of 40: in the last part, inside a group
        capture_output=True,
        check=False,
    )
    assert (died.returncode, b"left the interpreter (exit code 9)" in died.stderr) == (1, True)
    given = sparring("eval", str(run), "--resume", "--policy", "base")
    assert (given.exit_code, "resumes with its original settings" in given.output) == (2, True)
    resumed = evaluated(str(run), "--resume")
    assert without_times(resumed) == without_times(whole)
    texts = [
        [[message["content"] for message in one["messages"]] for one in lines(run / "trajectories" / name)]
        for name in (
            f"held_out-{int(Path(report['path']).stem.rpartition('-')[2])}.jsonl" for report in (whole, resumed)
        )
    ]
    assert len(texts[0]) == 40
    assert texts[0] == texts[1]
    # Nor does it matter which episodes run at the same time.
    narrow = evaluated(*chosen, "rollout.rollout_max_concurrency=4")
    assert [row.pop("overrides") for row in narrow["evaluations"]] != [
        row.pop("overrides") for row in whole["evaluations"]
    ]
    assert without_times(narrow) == without_times(whole)


def test_a_checkpoint_that_changed_under_an_interrupted_evaluation_is_refused(trained: Path) -> None:
    from sparring.evaluation.job import Job, Plan
    from sparring.evaluation.policies import read_policy
    from sparring.run_folders import RunFolder

    run = Path("changed")
    copy_run(trained, run)
    plan = Plan(overrides=(), policies=(read_policy("tuned"),), temperatures=None, api_key_env=None)
    job = Job.new(RunFolder(run), plan)
    with Ledger() as ledger:
        job.begin((), ledger)
    job.plays("tuned", "one")
    with pytest.raises(DataError, match="was started with one"):
        job.plays("tuned", "another")
    (job.folder / "episodes.jsonl").write_text("{}\n")
    job.close()


def test_validation_leaves_the_sampling_of_training_as_it_is_bit_for_bit(tmp_path: Path) -> None:
    def trained_with(name: str, *overrides: str) -> Path:
        settings = [
            *SMALL,
            "run.runs_dir=.",
            "schedule.max_steps=3",
            "warm_start.steps=10",
            "batch.group_size=4",
            *overrides,
        ]
        result = MultiTurnRLTrainer("toy", overrides=settings, name=name, quiet=True, check=False).train()
        assert result is not None
        return result.run

    often = trained_with(
        "often",
        "schedule.val_every=1",
        "evaluation.val_num_tasks=9",
        "evaluation.val_group_size=3",
        "evaluation.val_temperature=0.9",
    )
    never = trained_with("never", "schedule.val_every=0", "evaluation.val_num_tasks=1")
    for step in (1, 2, 3):
        played = [
            [
                (one["id"], [(turn["token_ids"], turn["sampled_logprobs"]) for turn in one["turns"]])
                for one in lines(run / "trajectories" / f"train-{step}.jsonl")
            ]
            for run in (often, never)
        ]
        assert played[0] == played[1]
    weights = [
        load_file(run / "checkpoints" / checkpoints.format_name(3) / "weights.safetensors") for run in (often, never)
    ]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


def test_a_run_under_way_is_evaluated_from_another_process(tmp_path: Path) -> None:
    trainer = MultiTurnRLTrainer(
        "toy",
        overrides=[*SMALL, "schedule.max_steps=100000", "schedule.val_every=0", "run.runs_dir=."],
        name="going",
        quiet=True,
        check=False,
    )
    trainer.train(wait=False)
    run, deadline = Path("going"), time.monotonic() + 120
    while not (run / "checkpoints" / "000002").is_dir():
        assert time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.05)
    command = [sys.executable, "-m", "sparring", "eval", "going", "--policy", "tuned", "--temperature", "0", "--json"]
    command.append("evaluation.eval_group_size=1")
    out = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    trainer.stop()
    result = trainer.wait()
    assert out.returncode == 0, out.stderr
    (row,) = json.loads(out.stdout)["evaluations"]
    assert 2 <= row["policy_version"] <= result.step
    assert len(row["tasks"]) == 4
    with Ledger(run / "ledger.sqlite") as ledger:
        assert ledger.verify() == []
        assert ledger.counts("held_out")["evaluated"] == 4
