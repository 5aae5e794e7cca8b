"""Which cells of the business domains are measured, and what their gains are compared with."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evidence import SMOKE, completed
from benchmarks.report import commit
from benchmarks.sop_learning import (
    CONTROL_DOMAIN,
    MIXED,
    ROOT,
    SEVERAL_SEEDS,
    cells,
    controls,
    find_interrupted,
    find_start,
    gain,
    kept_cells,
    longer_steps,
    settings_of_cell,
    table_by_domain,
    train_control,
    warm_start_of,
)
from sparring.environments.suites import sop
from sparring.errors import DataError
from sparring.run_folders import RunFolder
from sparring.trainer import MultiTurnRLTrainer
from sparring.training_run.control import Control, read_control


def whole_cell(domain: str = CONTROL_DOMAIN, seed: int = 0, **scores: float) -> dict[str, Any]:
    """Return a cell with a warm start of its own. `scores` are those of both tasks of each policy."""
    by_task = {name.replace("_", " "): {"a": score, "b": score} for name, score in scores.items()}
    return {
        "domain": domain,
        "seed": seed,
        "start": seed,
        "random rewards": False,
        "success": by_task,
        "fields": by_task,
    }


def other_cell(seed: int, a: float, b: float, *, is_random: bool = False) -> dict[str, Any]:
    """Return a cell that started from the warm start of seed 0."""
    tuned = {"tuned": {"a": a, "b": b}}
    row = whole_cell(seed=seed)
    return {**row, "start": 0, "random rewards": is_random, "success": tuned, "fields": tuned}


START = whole_cell(base=0.0, warm_start=0.25, warm_start_continued=0.5, tuned=0.75)


def test_cells_of_a_domain_are_neighbors_and_those_with_several_seeds_come_first() -> None:
    found = cells([MIXED, "media_review", *SEVERAL_SEEDS], [0, 1])
    assert found[:4] == [
        (CONTROL_DOMAIN, 0, False),
        (CONTROL_DOMAIN, 1, False),
        (CONTROL_DOMAIN, 0, True),
        (CONTROL_DOMAIN, 1, True),
    ]
    assert found[-2:] == [("media_review", 0, False), (MIXED, 0, False)]
    assert len(found) == 2 * len(SEVERAL_SEEDS) + 2 + 2


def test_the_gain_is_over_the_strongest_control_of_the_shared_warm_start() -> None:
    second = other_cell(1, 1.0, 0.5)
    rows = [START, second]
    assert controls(second, rows, "success") == {"a": 0.5, "b": 0.5}
    over_tasks, over_seeds = gain(rows, rows, "success")
    # (0.25 + 0.5) / 2 for task a, and (0.25 + 0) / 2 for task b.
    assert over_tasks.mean == pytest.approx((0.375 + 0.125) / 2)
    assert over_seeds is not None
    assert over_seeds.mean == pytest.approx(0.25)


def test_random_rewards_are_compared_with_the_warm_start_alone() -> None:
    row = other_cell(0, 0.25, 0.0, is_random=True)
    over_tasks, over_seeds = gain([START, row], [row], "success")
    assert over_tasks.mean == pytest.approx(-0.125)
    assert over_seeds is None


def test_random_rewards_with_an_own_warm_start_are_compared_with_it() -> None:
    row = {**whole_cell(warm_start=0.75, tuned=0.5), "random rewards": True}
    assert controls(row, [START, row], "success") == {"a": 0.75, "b": 0.75}


def test_a_cell_shares_a_warm_start_only_while_its_run_is_there(tmp_path: Path) -> None:
    checkpoint = warm_start_of(CONTROL_DOMAIN, 0, str(tmp_path))
    row = {**START, "warm start sha256": hashlib.sha256(b"{}").hexdigest()}
    assert find_start([row], CONTROL_DOMAIN, str(tmp_path)) is None
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_bytes(b"{}")
    assert find_start([row], CONTROL_DOMAIN, str(tmp_path)) is row
    assert find_start([row], "content_flagging", str(tmp_path)) is None
    assert find_start([other_cell(1, 1.0, 1.0)], CONTROL_DOMAIN, str(tmp_path)) is None
    (checkpoint / "manifest.json").write_bytes(b"{ }")
    assert find_start([row], CONTROL_DOMAIN, str(tmp_path)) is None


def test_an_interrupted_cell_names_the_commit_at_which_it_began(tmp_path: Path) -> None:
    run, note = tmp_path / "cell", tmp_path / "cell.settings.json"
    assert find_interrupted(run, {"seed": 1}) is None
    assert json.loads(note.read_text("utf-8")) == {"seed": 1, "commit": commit()}
    run.mkdir()
    (run / "run.toml").touch()
    note.write_text(json.dumps({"seed": 1, "commit": "28e9a212"}), "utf-8")
    assert find_interrupted(run, {"seed": 1}) == "28e9a212"
    assert find_interrupted(run, {"seed": 2}) is None
    assert not run.exists()


def test_a_resumed_cell_keeps_its_finished_control(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    with pytest.raises(DataError):  # it would train one, but this run has no manifest
        train_control(tmp_path, 2, is_resumed=True)
    (tmp_path / "controls" / "warm_start_continued").mkdir(parents=True)
    state = {"steps": 2, "seconds": 3, "rl_seconds": 3, "validated": {"1": 0.5}, "best_step": 1, "fingerprint": "f"}
    (tmp_path / "controls" / "warm_start_continued" / "state.json").write_text(json.dumps(state), "utf-8")
    for steps in (None, 2):
        assert train_control(tmp_path, steps, is_resumed=True).best_step == 1
    for steps, is_resumed in ((2, False), (3, True)):
        with pytest.raises(DataError):
            train_control(tmp_path, steps, is_resumed=is_resumed)


def test_a_longer_control_takes_longer_than_rl_at_the_same_speed() -> None:
    # 100 steps took 800 s. 100 * 900 / 800 * 1.25 = 140.6.
    short = Control(steps=100, seconds=800, rl_seconds=900, validated={}, best_step=0, fingerprint="")
    assert longer_steps(short) == 141


def test_a_control_that_took_less_time_than_rl_is_replaced_by_a_longer_one(tmp_path: Path) -> None:
    # One supervised step on one conversation, and two RL steps of 16 episodes.
    overrides = [
        f"run.runs_dir={tmp_path}",
        *SMOKE,
        "schedule.max_steps=2",
        "batch.global_batch_size=4",
        "batch.group_size=4",
        "warm_start.batch_size=1",
        "warm_start.control_steps=1",
    ]
    recipe = ROOT / "recipes" / "pointer_chase"
    with MultiTurnRLTrainer(recipe, overrides=overrides, name="run", check=False, quiet=True) as trainer:
        run = completed(trainer)
    assert train_control(run, 1, is_resumed=False).steps == 1, "a number of steps that the user gave is kept"
    control = train_control(run, None, is_resumed=True)
    assert control.steps > 1
    assert read_control(RunFolder(run)) == control


def test_cells_with_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cells.json"
    rows = [{"domain": domain, "settings": settings_of_cell(domain, [], None)} for domain in (CONTROL_DOMAIN, MIXED)]
    assert rows[0]["settings"] != rows[1]["settings"], "the recipes differ"
    path.write_text(json.dumps({"rows": rows}), "utf-8")
    assert kept_cells(path, [], None, resume=True) == rows
    for overrides, steps in ((["run.seed=1"], None), ([], 100)):
        with pytest.raises(ValueError, match="other overrides"):
            kept_cells(path, overrides, steps, resume=True)
    with pytest.raises(ValueError, match="--resume"):
        kept_cells(path, [], None, resume=False)
    path.write_text(json.dumps({"rows": [{**rows[0], "domain": MIXED}]}), "utf-8")
    with pytest.raises(ValueError, match="another recipe"):
        kept_cells(path, [], None, resume=True)


def test_a_mixture_is_shown_by_domain() -> None:
    def scores(first: float, others: float) -> dict[str, float]:
        found = {f"{domain}-held_out-0-{task}": others for domain in sop.DOMAINS for task in (0, 1)}
        return {**found, "aircraft_inspection-held_out-0-0": first}

    policies = {"base": (0, 0), "warm start": (0.5, 0), "warm start continued": (1, 0.5), "tuned": (1, 1)}
    row = {"success": {policy: scores(*values) for policy, values in policies.items()}}
    lines = table_by_domain(row).splitlines()
    assert len(lines) == 2 + len(sop.DOMAINS) + 1
    assert lines[2] == "| `aircraft_inspection` | 2 | 0.00 | 0.25 | 0.75 | 1.00 |"
    # 23 tasks at 0.5 and one at 1.
    assert lines[-1] == "| all | 24 | 0.00 | 0.02 | 0.52 | 1.00 |"
