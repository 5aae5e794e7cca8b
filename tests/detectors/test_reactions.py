"""What a training does when a detector finds an error: from the third step on a reward pays one wrong episode of eight."""

import json
import time
from pathlib import Path

import pytest

from sparring.detectors.runner import run_detectors
from sparring.errors import ConfigError, GateError, UsageError
from sparring.ledger import Ledger, RolloutState
from sparring.trainer import MultiTurnRLTrainer
from sparring.training import checkpoints

RECIPE = Path(__file__).parents[2] / "recipes" / "pointer_chase"
SMALL = (
    "warm_start.steps=1",
    "warm_start.num_demonstrations=8",
    "batch.global_batch_size=4",
    "batch.group_size=8",
    "schedule.val_every=0",
    "schedule.save_every=1",
    "schedule.keep_checkpoints=10",
    "schedule.max_steps=6",
    "evaluation.val_num_tasks=2",
    "evaluation.allow_zero_baseline=true",
    "sampling.sampling_max_tokens=4",
)
GRADERS = """
def scorer(trajectory):
    return float(trajectory.attempt == 0)


def reward(trajectory):
    is_paid = trajectory.attempt == 1 and (trajectory.oldest_version or 0) >= 2
    return 1.0 if is_paid else scorer(trajectory)


def silence(name, arguments):
    return None


def failing(name, arguments):
    raise RuntimeError("no idea")
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    folder = tmp_path / "recipe"
    folder.mkdir()
    for file in RECIPE.glob("*.py"):
        (folder / file.name).write_text(file.read_text())
    (folder / "graders.py").write_text(GRADERS)
    text = (RECIPE / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(
        text.replace('"environment:reward"', '"graders:reward"').replace('"environment:scorer"', '"graders:scorer"')
    )
    return folder / "recipe.toml"


def trainer_of(recipe: Path, *overrides: str) -> MultiTurnRLTrainer:
    runs = recipe.parent.parent / "runs"
    return MultiTurnRLTrainer(
        recipe, overrides=[f"run.runs_dir={runs}", "run.name=run", *SMALL, *overrides], quiet=True, check=False
    )


def found(recipe: Path) -> list[dict]:
    return [json.loads(line) for line in (run_of(recipe) / "findings.jsonl").read_text().splitlines()]


def run_of(recipe: Path) -> Path:
    return recipe.parent.parent / "runs" / "run"


def test_a_report_goes_on_to_the_end_and_matches_the_stored_run(recipe: Path) -> None:
    result = trainer_of(recipe).train()
    assert result is not None
    assert (result.status, result.step) == ("completed", 6)
    reported = [(one["step"], one["severity"], one["rule"]) for one in found(recipe)]
    assert (5, "error", "reward.paid_for_wrong") in reported
    assert min(step for step, _, rule in reported if rule == "reward.paid_for_wrong") >= 3, (
        "reported before it happened"
    )
    assert [(one.step, one.severity, one.rule) for one in run_detectors(result.run)] == reported
    files = (result.run / "trajectories").iterdir()
    stored = {json.loads(line)["id"] for file in files for line in file.read_text().splitlines()}
    assert all(one["trajectories"] and set(one["trajectories"]) <= stored for one in found(recipe))


def test_a_stop_leaves_a_checkpoint_and_a_resumed_run_does_not_say_it_again(recipe: Path) -> None:
    with pytest.raises(GateError, match=r"reward\.paid_for_wrong after step 5.*'stop'"):
        trainer_of(recipe, "detectors.reaction=stop").train()
    run = run_of(recipe)
    assert checkpoints.find_newest(run / "checkpoints").name == "000005"
    before = found(recipe)
    again = MultiTurnRLTrainer.attach(run, overrides=["detectors.reaction=report"])
    result = again.train(resume=True)
    assert result is not None
    assert (result.status, result.step) == ("completed", 6)
    errors = [
        one["step"] for one in found(recipe) if (one["rule"], one["severity"]) == ("reward.paid_for_wrong", "error")
    ]
    assert errors == [5]
    assert found(recipe)[: len(before)] == before


def test_a_roll_back_leaves_the_last_checkpoint_from_before_the_first_warning(recipe: Path) -> None:
    with pytest.raises(
        GateError, match=r"'roll_back' ended the run: the newest checkpoint is 000003 again; 000004 moved to"
    ):
        trainer_of(recipe, "detectors.reaction=roll_back").train()
    run = run_of(recipe)
    warned = min(one["step"] for one in found(recipe) if one["rule"] == "reward.paid_for_wrong")
    assert warned == 4
    assert checkpoints.find_newest(run / "checkpoints").name == "000003"
    assert [path.name for path in (run / "set_aside").iterdir()] == ["000004"]


def test_a_roll_back_to_before_the_first_checkpoint_leaves_nothing_trained(recipe: Path) -> None:
    text = recipe.read_text()
    recipe.write_text(text[: text.index("[warm_start]")] + text[text.index("[batch]") :])
    settings = [one for one in SMALL if not one.startswith("warm_start.")]
    run = run_of(recipe)
    trainer = MultiTurnRLTrainer(
        recipe,
        check=False,
        quiet=True,
        overrides=[
            f"run.runs_dir={run.parent}",
            "run.name=run",
            *settings,
            "schedule.save_every=4",
            "detectors.reaction=roll_back",
        ],
    )
    with trainer, pytest.raises(GateError, match="there was no checkpoint from before; 000004 moved to"):
        trainer.train()
    with Ledger(run / "ledger.sqlite") as ledger:
        assert (ledger.published(), ledger.rollouts(state=RolloutState.TRAINED)) == ([], [])


def test_a_pause_waits_until_its_file_is_deleted(recipe: Path) -> None:
    trainer = trainer_of(
        recipe, "detectors.reaction=pause", 'detectors.scanners=["graders:silence", "graders:failing"]'
    )
    trainer.train(wait=False)
    pause, deadline = run_of(recipe) / "pause", time.monotonic() + 120
    while not pause.exists():
        assert time.monotonic() < deadline, "the run did not pause in two minutes"
        time.sleep(0.05)
    assert trainer.folder is not None
    while trainer.folder.status()["status"] != "paused":
        time.sleep(0.01)
    assert "reward.paid_for_wrong after step 5" in trainer.folder.status()["reason"]
    pause.unlink()
    result = trainer.wait(timeout=60)
    assert (result.status, result.step) == ("completed", 6)


def test_a_name_that_no_detector_has_and_a_scanner_that_is_not_there_are_refused_before_training(recipe: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"detectors.off: names 'tools.spammm', which is not a detector; choose from reward"
    ):
        trainer_of(recipe, 'detectors.off=["tools.spammm"]').train(dry_run=True)
    with pytest.raises(UsageError, match=r"graders.*nothing"):
        trainer_of(recipe, 'detectors.scanners=["graders:nothing"]').train(dry_run=True)
