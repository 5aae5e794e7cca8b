"""What a run consumed leads to its weights again, whether play waited for learning or ran ahead; what was changed is found."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sparring.cli import app
from sparring.reproduce.branch import branch
from sparring.trainer import MultiTurnRLTrainer
from tests.faults.training import Training


@pytest.fixture(scope="module", params=[0, 2], ids=lambda bound: f"bound {bound}")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    overrides = (f"rollout.max_steps_off_policy={request.param}",)
    training = Training(tmp_path_factory.mktemp("trained"), overrides)
    assert training.over() == 0
    return training.run


def replayed(run: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["replay", str(run), *arguments, "--training", "--json"])


def test_the_same_rollouts_in_the_same_order_lead_to_the_same_weights(trained: Path) -> None:
    result = replayed(trained)
    assert result.exit_code == 0, result.output
    steps = json.loads(result.stdout)
    # Two groups of three a step, from the warm start's checkpoint to that of step 4, the newest; the best one may be there, too.
    assert [(one["step"], one["num_rollouts"]) for one in steps] == [(0, 0), (1, 6), (2, 6), (3, 6), (4, 6)]
    assert all(set(one["recorded"].values()) <= {one["reached"]} for one in steps)
    assert {one["step"] for one in steps if "checkpoint" in one["recorded"]} >= {0, 4}
    assert steps[0]["reached"] != steps[-1]["reached"]


def test_a_run_that_was_branched_is_learned_again_from_where_it_began(trained: Path, tmp_path: Path) -> None:
    child = branch(trained, ["schedule.max_steps=6", f"run.runs_dir={tmp_path}"], step=4)
    with MultiTurnRLTrainer.attach(child.path) as trainer:
        trainer.train(resume=True)
    result = replayed(child.path)
    assert result.exit_code == 0, result.output
    assert [(one["step"], one["num_rollouts"]) for one in json.loads(result.stdout)] == [(4, 0), (5, 6), (6, 6)]


def test_another_reward_leads_elsewhere_and_that_is_found(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    with sqlite3.connect(run / "ledger.sqlite") as db:
        changed = "UPDATE rollouts SET result = json_set(result, '$.reward', 7.0) WHERE state = 'trained' AND step = 4"
        assert db.execute(f"{changed} AND id LIKE '%/0.0'").rowcount == 2
    result = replayed(run)
    assert result.exit_code == 5
    assert f"step 4 does not lead to {run / 'checkpoints' / '000004'}: " in result.output
    assert "differs by up to" in result.output


def test_weights_that_turns_were_sampled_with_are_compared_too(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    with sqlite3.connect(run / "ledger.sqlite") as db:
        db.execute("UPDATE turns SET fingerprint = 'other' WHERE versions LIKE '[[1,%'")
    result = replayed(run)
    assert result.exit_code == 5
    assert "but the run continued with other" in result.output


def test_an_episode_and_the_training_are_not_replayed_at_once(trained: Path) -> None:
    result = replayed(trained, "train/0/t0/0.0")
    assert result.exit_code == 2
    assert "leave 'train/0/t0/0.0' out" in result.output


@pytest.mark.parametrize("of_kinds", [False, True], ids=["one", "by kind"])
def test_a_run_with_a_teacher_is_learned_again_and_moves_away_from_its_warm_start(
    tmp_path: Path, *, of_kinds: bool
) -> None:
    by_kind = ("algorithm.teacher.even=expert", "algorithm.teacher.odd=expert", "curriculum.kind_field=kind")
    named = by_kind if of_kinds else ("algorithm.teacher=expert",)
    keys = ("policies.expert.weights=warm_start", "algorithm.teacher_coef=0.1", *named)
    training = Training(tmp_path, ("rollout.max_steps_off_policy=0", *keys))
    assert training.over() == 0
    rows = [json.loads(line)["metrics"] for line in (training.run / "metrics.jsonl").read_text().splitlines()]
    divergences = [row["training/teacher_kl"] for row in rows if "training/teacher_kl" in row]
    # The first step is sampled with the teacher's own weights.
    assert len(divergences) == 4
    assert divergences[0] == pytest.approx(0.0, abs=1e-4)
    assert all(abs(one) > 1e-3 for one in divergences[1:])
    result = replayed(training.run)
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)) == 5
