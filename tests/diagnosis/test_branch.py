"""A run goes on from a checkpoint with a change: what it refuses, what it keeps, and how the change is evaluated."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from sparring.cli import app
from sparring.config import load_config
from sparring.diagnosis.observed import Lineage, Observed
from sparring.diagnosis.reading import observe
from sparring.errors import ConfigError, DataError, UsageError
from sparring.findings import Finding, Severity
from sparring.reproduce.branch import branch, changed
from sparring.run_folders import RunFolder
from sparring.run_folders.history import History
from sparring.run_folders.lineage import find_parent
from sparring.training import checkpoints
from sparring.training.widening import Adapter, widen
from tests.diagnosis.runs import diagnose_run, rises, run

RECIPE = """
[environment]
target = "environment:Shop"
[reward]
reward = "environment:reward"
[model]
lora_rank = 2
lora_alpha = 4
[schedule]
max_steps = 40
[warm_start]
steps = 1
"""

A, B = "model.layers.0.lora_A.default.weight", "model.layers.0.lora_B.default.weight"


class Stored:
    """What a learner with an adapter of rank 2 is after one step of Adam."""

    def write(self, directory: Path) -> None:
        weights = {A: torch.arange(6.0).reshape(2, 3), B: torch.arange(8.0).reshape(4, 2)}
        save_file(weights, directory / "weights.safetensors")
        moments = {f"{name}/{key}": tensor + 1 for name, tensor in weights.items() for key in ("exp_avg", "exp_avg_sq")}
        save_file(moments | {f"{A}/step": torch.tensor(1.0)}, directory / "optimizer.safetensors")
        (directory / "optimizer.json").write_text("{}", "utf-8")


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "recipe.toml").write_text(RECIPE, "utf-8")
    (recipe / "environment.py").write_text("def reward(trajectory): return 0.0\n", "utf-8")
    config = load_config(recipe / "recipe.toml", [f"run.runs_dir={tmp_path / 'runs'}"])
    folder = RunFolder.create(config, recipe / "recipe.toml", name="first")
    for step in (10, 20):
        checkpoints.save(folder.checkpoints, step, Stored(), {"step": step})
    folder.set_status("completed", step=20)
    return folder.path


def test_a_branch_lies_next_to_its_parent_and_names_its_origin(parent: Path) -> None:
    child = branch(parent, ["batch.group_size=4"], step=10, name="second")
    assert child.path == parent.parent / "second"
    assert child.origin() == {
        "run": str(parent),
        "id": RunFolder(parent).id(),
        "step": 10,
        "changes": {"batch.group_size": [8, 4]},
        "files": [],
    }
    assert [path.name for path in sorted(child.checkpoints.iterdir())] == ["000010"]
    checkpoints.verify(child.checkpoints / "000010")
    assert child.status()["step"] == 10
    assert child.config().batch.group_size == 4
    assert RunFolder(parent).origin() is None


def test_the_settings_of_a_branch_begin_with_the_name_of_its_parent(parent: Path) -> None:
    child = branch(parent, ["batch.group_size=4"], step=10)
    first = child.recipe.read_text("utf-8").splitlines()[0]
    assert first == f'# This run is a branch of step 10 of "{parent}", id {RunFolder(parent).id()}.'
    grandchild = branch(child.path, ["batch.group_size=16"], step=10)
    lines = [line for line in grandchild.recipe.read_text("utf-8").splitlines() if line.startswith("# This run")]
    assert lines == [f'# This run is a branch of step 10 of "{child.path}", id {child.id()}.']


def test_a_parent_is_found_under_a_new_name_and_a_new_run_with_its_name_is_another(parent: Path) -> None:
    branch(parent, ["batch.group_size=4"], step=10, name="second")
    (parent.parent / "second").rename(parent.parent / "renamed")
    parent.rename(parent.parent / "baseline")
    config = RunFolder(parent.parent / "renamed").config()
    RunFolder.create(config, parent.parent.parent / "recipe" / "recipe.toml", name="first")

    def lists() -> dict[str, tuple[str | None, str]]:
        result = CliRunner().invoke(app, ["runs", "list", "--runs-dir", str(parent.parent), "--json"])
        assert result.exit_code == 0, result.output
        return {run["name"]: (run["parent"], run["id"]) for run in json.loads(result.stdout)}

    listed = lists()
    assert {name: found for name, (found, _) in listed.items()} == {
        "baseline": None,
        "renamed": "baseline",
        "first": None,
    }
    assert len({run_id for _, run_id in listed.values()}) == 3
    lineage = observe(parent.parent / "renamed").lineage
    assert lineage is not None
    assert lineage.parent == str(parent.parent / "baseline")

    shutil.copytree(parent.parent / "baseline", parent.parent / "a_copy")
    assert lists()["renamed"][0] in ("a_copy", "baseline")
    shutil.rmtree(parent.parent / "a_copy")
    shutil.rmtree(parent.parent / "baseline")
    assert lists()["renamed"][0] is None
    table = CliRunner().invoke(app, ["runs", "list", "--runs-dir", str(parent.parent)], terminal_width=200).output
    assert "first (not here), step 10" in table


def test_an_origin_from_before_runs_had_ids_is_matched_by_its_path(parent: Path) -> None:
    child = branch(parent, ["batch.group_size=4"], step=10)
    origin = {key: value for key, value in (child.origin() or {}).items() if key != "id"}
    other = Path("/elsewhere") / parent.name
    assert find_parent(origin, {child.path: child.id(), parent: None}) == parent
    assert find_parent(origin, {child.path: child.id(), other: None}) is None


def test_the_newest_checkpoint_is_taken_without_a_step(parent: Path) -> None:
    assert (branch(parent, ["batch.group_size=4"]).origin() or {})["step"] == 20


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (["model.name=other"], UsageError, "a branch cannot change model.name"),
        (["model.lora_rank=1"], UsageError, "cannot lower model.lora_rank from 2 to 1"),
        (["warm_start.steps=9"], UsageError, "from after the warm start"),
        ([], UsageError, "no setting differs"),
        (["batch.group_size=8"], UsageError, "no setting differs"),
        (["schedule.max_steps=20", "batch.group_size=4"], UsageError, "nothing to train"),
        (["batch.groupsize=4"], ConfigError, "batch.group_size"),
        (["engine.type=scripted"], ConfigError, "engine.script"),
    ],
)
def test_what_a_checkpoint_cannot_be_continued_with_is_refused(
    parent: Path, changes: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        branch(parent, changes)
    assert sorted(path.name for path in parent.parent.iterdir()) == ["first"]


def test_a_step_without_checkpoint_names_those_that_there_are(parent: Path) -> None:
    with pytest.raises(DataError, match="no checkpoint of step 15; it has checkpoints of steps 10, 20"):
        branch(parent, ["batch.group_size=4"], step=15)


def test_fixed_code_is_a_separate_change(parent: Path) -> None:
    recipe = parent.parent.parent / "recipe"
    (recipe / "environment.py").write_text("def reward(trajectory): return 1.0\n", "utf-8")
    child = branch(parent, [], recipe=recipe)
    assert (child.origin() or {})["files"] == ["environment.py"]
    assert "return 1.0" in (child.code / "environment.py").read_text("utf-8")


def test_a_wider_adapter_computes_the_same(parent: Path) -> None:
    child = branch(parent, ["model.lora_rank=4", "model.lora_alpha=4"], step=10)
    before, after = (
        load_file(path / "checkpoints" / "000010" / "weights.safetensors") for path in (parent, child.path)
    )
    # B A times alpha / rank: 4 / 2 before, 4 / 4 after.
    torch.testing.assert_close(2 * before[B] @ before[A], 1 * after[B] @ after[A])
    assert (after[A].shape, after[B].shape) == ((4, 3), (4, 4))
    assert after[A][2:].abs().min() > 0  # else the new columns of B would have no gradient either
    moments = load_file(child.path / "checkpoints" / "000010" / "optimizer.safetensors")
    # B was doubled, so its gradient is halved, and the square a quarter.
    torch.testing.assert_close(moments[f"{B}/exp_avg_sq"][:, :2], (before[B] + 1) / 4)
    assert moments[f"{A}/step"] == 1


def test_widening_never_cuts(parent: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        widen(parent / "checkpoints" / "000010", tmp_path / "x", before=Adapter(2, 4), after=Adapter(1, 2), seed=0)


def test_only_settings_in_effect_count_as_changes(parent: Path) -> None:
    config = RunFolder(parent).config()
    assert changed(config, RunFolder(parent).config(["run.name=other", "batch.group_size=8"])) == {}


ADVICE = Finding(
    rule="stall.groups_agree",
    severity=Severity.WARNING,
    symptom="",
    evidence={},
    change="",
    confirm="",
    settings={"curriculum.select": "mixed"},
    confirm_after=15,
)


def evaluate_change(observed: Observed, before: History, **changes: tuple[object, object]) -> Finding:
    lineage = Lineage(
        parent="runs/first",
        step=20,
        changes={key.replace("__", "."): pair for key, pair in changes.items()},
        history=before,
        findings=[ADVICE],
    )
    child = Observed(config=observed.config, history=observed.history, lineage=lineage)
    return diagnose_run(child)["change.judged"]


FLAT = run(lambda step, task: 0.5 if task % 8 == 0 else 0.0)
SELECT = {"curriculum__select": ("all", "mixed")}


def test_a_change_after_which_the_symptom_is_gone_and_the_reward_higher_has_worked() -> None:
    found = evaluate_change(run(rises(0.2, 0.8)), FLAT.history, **SELECT)
    assert found.evidence["verdict"] == "worked"
    assert found.evidence["made_for"] == "stall.groups_agree"
    assert found.severity is Severity.NOTE


def test_a_symptom_that_noise_alone_hides_is_not_called_gone() -> None:
    # All tasks of a step earn 0.1 or 0.9, in turns: too noisy to be called flat, and no better than before.
    noisy = run(lambda step, task: 0.9 if step % 2 else 0.1)
    found = evaluate_change(noisy, noisy.history, **SELECT)
    assert (found.evidence["verdict"], found.evidence["symptom_is_gone"]) == ("unclear", True)


def test_a_change_after_which_the_symptom_is_still_there_has_failed() -> None:
    found = evaluate_change(FLAT, FLAT.history, **SELECT)
    assert (found.evidence["verdict"], found.severity) == ("failed", Severity.WARNING)


def test_a_change_is_not_evaluated_too_early() -> None:
    assert evaluate_change(run(steps=14), FLAT.history, **SELECT).evidence["verdict"] == "too early"


def test_a_run_that_got_worse_than_its_parent_at_the_same_steps_has_failed() -> None:
    found = evaluate_change(run(0.1, steps=16), run(0.8).history, **SELECT)
    assert found.evidence["verdict"] == "failed"
    assert found.evidence["gain"] < -0.5


def test_of_two_simultaneous_changes_neither_is_evaluated() -> None:
    found = evaluate_change(run(rises(0.2, 0.8)), FLAT.history, **SELECT, optimizer__learning_rate=(1e-5, 1e-4))
    assert (found.evidence["verdict"], found.severity) == ("several", Severity.WARNING)


def test_more_steps_alone_are_no_change() -> None:
    lineage = Lineage(parent="runs/first", step=20, changes={"schedule.max_steps": (20, 40)}, history=FLAT.history)
    child = Observed(config=FLAT.config, history=FLAT.history, lineage=lineage)
    assert "change.judged" not in diagnose_run(child)


def test_the_manifest_keeps_its_other_entries(parent: Path) -> None:
    child = branch(parent, ["batch.group_size=4"])
    manifest = json.loads((child.path / "manifest.json").read_text("utf-8"))
    assert {"origin", "versions", "config", "sha256"} <= set(manifest)
