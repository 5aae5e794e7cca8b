"""What the loop promises beyond learning: same log-probabilities on both sides, resumption, stopping, wrong data refused."""

import gc
import json
import re
import shutil
import time
import weakref
from pathlib import Path

import pytest
from safetensors.torch import load_file

from sparring.assembly import TrainingParts
from sparring.errors import GateError, RewardError
from sparring.ledger import DiscardReason, Ledger, RolloutState
from sparring.ledger.states import FINAL_STATES
from sparring.run_folders.stored import read_trajectories
from sparring.runtime import event_loop
from sparring.trainer import MultiTurnRLTrainer
from sparring.training import checkpoints
from sparring.training_run.loading import LoadedRun
from sparring.types import Sampling

RECIPE = Path(__file__).parents[2] / "recipes" / "pointer_chase" / "recipe.toml"
SMALL = (
    "warm_start.steps=8",
    "warm_start.num_demonstrations=256",
    "batch.global_batch_size=4",
    "batch.group_size=4",
    "schedule.val_every=0",
    "schedule.save_every=1",
    "schedule.keep_checkpoints=10",
    "evaluation.val_num_tasks=4",
    "evaluation.allow_zero_baseline=true",
)


def trainer_of(tmp_path: Path, *overrides: str, recipe: Path = RECIPE) -> MultiTurnRLTrainer:
    return MultiTurnRLTrainer(
        recipe, overrides=[f"run.runs_dir={tmp_path}", *SMALL, *overrides], quiet=True, check=False
    )


def metrics_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line)["metrics"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("bound", [0, 2])
def test_sampled_and_recomputed_logprobs_agree_at_every_trained_token(tmp_path: Path, bound: int) -> None:
    # Synchronous: the ratio compares the weights with themselves, so what differs is only how it was computed.
    trainer = trainer_of(tmp_path, "schedule.max_steps=4", f"rollout.max_steps_off_policy={bound}")
    result = trainer.train()
    assert result is not None
    steps = [row for row in metrics_of(result.run) if "training/logprob_difference_max" in row]
    assert steps
    assert all(row["training/staleness_max"] <= bound for row in steps)
    if bound == 0:
        assert max(row["training/logprob_difference_max"] for row in steps) <= 1e-4


CURRICULUM = (
    "curriculum.kind_field=hops",
    "curriculum.kind_weights.3=2",
    "curriculum.select=frontier",
    "batch.refill_groups=2",
)


@pytest.mark.parametrize("order", [(), CURRICULUM], ids=["epochs", "curriculum"])
def test_a_resumed_run_reaches_the_weights_of_the_uninterrupted_one_bit_for_bit(
    tmp_path: Path, order: tuple[str, ...]
) -> None:
    # Six tasks, so that four steps of four come back to each with a history.
    (tmp_path / "recipe").mkdir()
    for file in RECIPE.parent.iterdir():
        if file.is_file():
            (tmp_path / "recipe" / file.name).write_text(file.read_text())
    (tmp_path / "recipe" / "few.py").write_text(
        "import environment\n\n\ndef tasks():\n    return list(environment.train_tasks())[:6]\n"
    )

    def trainer(name: str) -> MultiTurnRLTrainer:
        recipe = tmp_path / "recipe" / "recipe.toml"
        return trainer_of(tmp_path / name, "schedule.max_steps=4", "data.train=few:tasks", *order, recipe=recipe)

    whole, part = trainer("whole").train(), trainer("part").train()
    assert whole is not None
    assert part is not None
    # As after a crash behind step 2: the later checkpoints never happened.
    for step in (3, 4):
        for file in (part.run / "checkpoints" / checkpoints.format_name(step)).iterdir():
            file.unlink()
    resumed = MultiTurnRLTrainer.attach(part.run).train(resume=True)
    assert resumed is not None
    assert resumed.step == 4
    expected = load_file(whole.run / "checkpoints" / checkpoints.format_name(4) / "weights.safetensors")
    found = load_file(part.run / "checkpoints" / checkpoints.format_name(4) / "weights.safetensors")
    assert all((expected[name] == found[name]).all() for name in expected)
    if order:
        steps = [row for row in metrics_of(whole.run) if "rollout/curriculum/passed_over" in row]
        assert steps[-1]["rollout/curriculum/passed_over"] > 0
        assert sum(row.get("rollout/kind/3/num_groups", 0) for row in steps) >= 4
        # What the selection knows of earlier results is in the checkpoint.
        again = [row for row in metrics_of(part.run) if "rollout/curriculum/passed_over" in row]
        offered = [[row["rollout/reward/offered_mean"] for row in rows[-2:]] for rows in (steps, again)]
        assert offered[0] == offered[1]


def test_a_run_that_is_killed_again_before_its_next_checkpoint_can_still_be_resumed(tmp_path: Path) -> None:
    result = trainer_of(tmp_path, "schedule.max_steps=2").train()
    assert result is not None
    for kill in range(2):
        # As after a kill behind step 1: what was played since is in the ledger, and in no checkpoint.
        with Ledger(result.run / "ledger.sqlite") as ledger:
            ledger.plan_nowait(f"killed/{kill}", task_id="t", attempt=0)
            ledger.advance_nowait(f"killed/{kill}", RolloutState.LEASED)
        for file in (result.run / "checkpoints" / checkpoints.format_name(2)).iterdir():
            file.unlink()
        resumed = MultiTurnRLTrainer.attach(result.run).train(resume=True)
        assert resumed is not None
        assert resumed.step == 2
    with Ledger(result.run / "ledger.sqlite") as ledger:
        rollouts = ledger.rollouts()
    assert {rollout.state for rollout in rollouts} <= FINAL_STATES
    rewound = [rollout.id for rollout in rollouts if rollout.reason is DiscardReason.REWOUND]
    # What was in play, and the 16 episodes of step 2, whose checkpoint was lost each time.
    assert {"killed/0", "killed/1"} < set(rewound)
    assert len(rewound) == 2 + 2 * 16


def test_a_run_that_failed_right_after_its_warm_start_resumes_from_it(tmp_path: Path) -> None:
    strict = ("schedule.max_steps=1", "evaluation.allow_zero_baseline=false", "warm_start.steps=1")
    trainer = trainer_of(tmp_path, *strict)
    with pytest.raises(GateError, match=r"The warm start of 1 steps was not enough: raise warm_start.steps") as refused:
        trainer.train()
    assert "add a [warm_start]" not in str(refused.value)
    assert trainer.folder is not None
    advised = f"sparring train --resume {trainer.folder.path} "
    *_, overrides = str(refused.value).partition(advised)
    again = MultiTurnRLTrainer.attach(trainer.folder.path, overrides=overrides.split())
    result = again.train(resume=True)
    assert result is not None
    assert (result.status, result.step) == ("completed", 1)


def test_no_success_before_training_stops_the_run_and_reports_why(tmp_path: Path) -> None:
    shutil.copytree(RECIPE.parent, tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__"))
    recipe = tmp_path / "toy" / "recipe.toml"
    recipe.write_text(re.sub(r"(?s)\[warm_start\].*?(?=\[batch\])", "", recipe.read_text("utf-8")), "utf-8")
    small = [one for one in SMALL if not one.startswith("warm_start.")]
    strict = ("evaluation.allow_zero_baseline=false", "schedule.max_steps=1", "evaluation.val_temperature=0")
    overrides = [f"run.runs_dir={tmp_path}", *small, *strict]
    trainer = MultiTurnRLTrainer(recipe, overrides=overrides, quiet=True, check=False)
    expected = r"none of 4 validation episodes succeeded.*Validation is greedy.*add a \[warm_start\]"
    with pytest.raises(GateError, match=expected):
        trainer.train()


def test_validation_has_limits_of_its_own_and_counts_its_prompts(tmp_path: Path) -> None:
    settings = ("evaluation.val_temperature=0.7", "evaluation.val_top_p=0.9", "evaluation.val_max_tokens=3")
    result = trainer_of(tmp_path, "schedule.max_steps=0", "warm_start.steps=1", *settings).train()
    assert result is not None
    turns = [
        turn for one in read_trajectories(result.run / "trajectories" / "validation-0.jsonl") for turn in one.turns
    ]
    assert {turn.sampling for turn in turns} == {Sampling(temperature=0.7, top_p=0.9, max_tokens=3)}
    assert max(len(turn.token_ids) for turn in turns) == 3
    expected = sum(len(turn.prompt_ids) for turn in turns) / len(turns)
    assert metrics_of(result.run)[-1]["val/tokens/prompt_mean"] == pytest.approx(expected)

    # What a notebook shows of the result.
    first, second = repr(result).splitlines()
    assert first.startswith(f"<TrainResult {result.run}: completed after step 0, ")
    assert second.startswith("  <Evaluation step 0 (T 0.7): success 0.")
    shown = result._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert "<h3>validation, T 0.7, 4 x 1 episodes" in shown
    assert result.claim.headline in shown


def test_a_reward_that_is_not_a_number_ends_the_run_and_names_function_and_trajectory(tmp_path: Path) -> None:
    folder = tmp_path / "recipe"
    folder.mkdir()
    for file in RECIPE.parent.glob("*.py"):
        (folder / file.name).write_text(file.read_text())
    (folder / "recipe.toml").write_text(
        RECIPE.read_text().replace('reward = "environment:reward"', 'reward = "broken:nan"')
    )
    (folder / "broken.py").write_text("def nan(trajectory):\n    return float('nan')\n")
    trainer = trainer_of(tmp_path / "runs", "schedule.max_steps=1", recipe=folder / "recipe.toml")
    with pytest.raises(RewardError, match=r"nan.*validation/"):
        trainer.train()
    with Ledger(next((tmp_path / "runs").iterdir()) / "ledger.sqlite") as ledger:
        assert ledger.verify() == []
        assert ledger.counts()["trained"] == 0


def test_stop_ends_with_a_checkpoint_that_resumes(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "schedule.max_steps=1000", "schedule.max_epochs=100", "schedule.save_every=0")
    trainer.train(wait=False)
    deadline = time.monotonic() + 120
    while trainer.folder is None or trainer.folder.status()["step"] < 1:
        assert time.monotonic() < deadline, "the run did not reach its first step in two minutes"
        time.sleep(0.05)
    trainer.stop()
    result = trainer.wait(timeout=60)
    assert result.status == "stopped"
    assert 0 < result.step < 1000
    assert checkpoints.find_newest(result.run / "checkpoints").name == checkpoints.format_name(result.step)


def test_a_warm_start_that_was_stopped_leaves_no_checkpoint_and_is_done_anew_on_resume(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "warm_start.steps=100000", "schedule.max_steps=1")
    assert trainer.train(wait=False) is None
    while trainer.folder is None or not (trainer.folder.path / "ledger.sqlite").exists():
        time.sleep(0.05)
    time.sleep(2)
    trainer.stop()
    stopped = trainer.wait()
    assert (stopped.status, stopped.step) == ("stopped", 0)
    assert not list((stopped.run / "checkpoints").glob("*"))
    resumed = MultiTurnRLTrainer.attach(stopped.run, overrides=["warm_start.steps=2"])
    assert resumed.train(resume=True).step == 1
    assert (stopped.run / "checkpoints" / "warm_start").is_dir()


def loaded(trainer: MultiTurnRLTrainer) -> LoadedRun[TrainingParts]:
    return event_loop.submit(trainer._loader.load()).result()


def test_a_trainer_that_is_dropped_keeps_no_engine(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    engine = weakref.ref(loaded(trainer).parts.engine)
    del trainer
    deadline = time.monotonic() + 20
    while engine() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert engine() is None, "its thread holds the cache of keys and values"


def test_a_trainer_is_closed_twice_as_well_as_once(tmp_path: Path) -> None:
    with trainer_of(tmp_path) as trainer:
        assert loaded(trainer).parts.engine.policy_version == 0
        trainer.close()
    trainer.close()
