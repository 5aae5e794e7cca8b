"""Saving while training continues: a save writes the state at its start, and one that fails costs nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sparring.config import ScheduleSection
from sparring.errors import DiskError
from sparring.ledger import Ledger
from sparring.run_folders import RunFolder
from sparring.runtime.faults import Fault, arm_for_block
from sparring.trainer import MultiTurnRLTrainer
from sparring.training import checkpoints
from sparring.training.learner import TorchLearner
from sparring.training.sequences import build_demonstration_batch
from sparring.training.state import AdamWState
from sparring.training_run.checkpoint_writer import Saver
from sparring.types import Weights

LESSON = build_demonstration_batch([([1, 2, 3, 4], [False, False, True, True])])
TINY = Path(__file__).parents[1] / "faults" / "recipe"


class Gated:
    """A learner whose states are written when `gate` is open, and no sooner."""

    def __init__(self, learner: TorchLearner) -> None:
        self.learner, self.gate = learner, threading.Event()

    def export_weights(self) -> Weights:
        return self.learner.export_weights()

    def export_state(self) -> GatedState:
        return GatedState(self.learner.export_state(), self.gate)


class GatedState:
    def __init__(self, state: AdamWState, gate: threading.Event) -> None:
        self._state, self._gate = state, gate

    def write(self, directory: Path) -> None:
        assert self._gate.wait(60)
        self._state.write(directory)


@pytest.fixture
def gated(tiny_policy: Callable[..., object]) -> Gated:
    learner = TorchLearner(tiny_policy(("q_proj",)))  # pyright: ignore[reportArgumentType]
    step(learner)
    return Gated(learner)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run.toml").touch()
    return RunFolder(tmp_path)


def step(learner: TorchLearner) -> None:
    learner.forward_backward(LESSON, "cross_entropy", {})
    learner.optim_step(0.01)


def saver_of(gated: Gated, ledger: Ledger, folder: RunFolder, **schedule: int) -> Saver:
    return Saver(gated, ledger, folder, schedule=ScheduleSection(**schedule), say=pytest.fail)  # pyright: ignore[reportArgumentType]


def names(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in folder.checkpoints.glob("[!.]*"))


def test_what_is_written_is_what_was_learned_at_that_step_although_the_learner_goes_on(
    gated: Gated, folder: RunFolder
) -> None:
    async def run(ledger: Ledger) -> None:
        async with saver_of(gated, ledger, folder) as saver:
            await saver.begin(1, {"step": 1})
            step(gated.learner)
            assert names(folder) == []
            assert ledger.last_published is None
            gated.gate.set()
        # Leaving waits for the save, and the ledger has it.
        assert names(folder) == ["000001"]
        assert ledger.last_published == 1

    before = gated.learner.export_weights().fingerprint
    moments = {name: one.clone() for name, one in gated.learner.export_state().moments.items()}
    with Ledger(folder.path / "ledger.sqlite") as ledger:
        asyncio.run(run(ledger))
    assert gated.learner.export_weights().fingerprint != before
    gated.learner.load_state(folder.checkpoints / "000001")
    assert gated.learner.export_weights().fingerprint == before
    restored = gated.learner.export_state().moments
    assert moments.keys() == restored.keys()
    assert all(one.equal(restored[name]) for name, one in moments.items())


def test_a_save_waits_for_the_one_before(gated: Gated, folder: RunFolder) -> None:
    async def run(ledger: Ledger) -> None:
        async with saver_of(gated, ledger, folder) as saver:
            await saver.begin(1, {"step": 1})
            second = asyncio.create_task(saver.begin(2, {"step": 2}))
            done, _ = await asyncio.wait({second}, timeout=0.05)
            assert not done
            gated.gate.set()
            await second
            assert "000001" in names(folder)

    with Ledger(folder.path / "ledger.sqlite") as ledger:
        asyncio.run(run(ledger))
    assert names(folder) == ["000001", "000002"]


def test_an_error_of_the_training_does_not_cost_the_save_under_way(gated: Gated, folder: RunFolder) -> None:
    async def run(ledger: Ledger) -> None:
        async with saver_of(gated, ledger, folder) as saver:
            await saver.begin(1, {"step": 1})
            asyncio.get_running_loop().call_later(0.05, gated.gate.set)
            raise ZeroDivisionError

    with Ledger(folder.path / "ledger.sqlite") as ledger:
        with pytest.raises(ZeroDivisionError):
            asyncio.run(run(ledger))
        assert ledger.last_published == 1


def test_who_is_canceled_does_not_wait_for_the_disk(gated: Gated, folder: RunFolder) -> None:
    async def train(ledger: Ledger) -> None:
        async with saver_of(gated, ledger, folder) as saver:
            await saver.begin(1, {"step": 1})
            await asyncio.Event().wait()

    async def run(ledger: Ledger) -> None:
        training = asyncio.create_task(train(ledger))
        await asyncio.sleep(0.05)
        training.cancel()
        done, _ = await asyncio.wait({training}, timeout=30)
        assert done
        assert names(folder) == []
        gated.gate.set()

    with Ledger(folder.path / "ledger.sqlite") as ledger:
        asyncio.run(run(ledger))


@pytest.mark.parametrize(("at", "expected"), [(2, ["000003", "000004"]), (3, None)], ids=["at step 2", "at the end"])
def test_a_save_that_fails_is_reported_and_tried_again_and_the_last_one_must_succeed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at: int, expected: list[str] | None
) -> None:
    # Four steps, saved after the second and the fourth; the first time is the warm start's. Step 3 takes longer than a save that
    # fails: the third gradient after the two of the warm start.
    overrides = [f"run.runs_dir={tmp_path}", "schedule.keep_checkpoints=9"]
    faults = (
        Fault("checkpoint.staging", "error", at=at, times=1 if expected else 2, raises="OSError"),
        Fault("learner.optimizing", "delay", at=5, seconds=1.0),
    )
    with (
        MultiTurnRLTrainer(TINY, overrides=overrides, name="run", quiet=True, check=False) as trainer,
        arm_for_block(*faults),
    ):
        if expected is None:
            # After the last step there is no next one: it is tried once more, and then raised as what ended the run.
            with pytest.raises(Exception, match="000004 could not be written: fault injected"):
                trainer.train()
        else:
            trainer.train()
    assert "could not be written: fault injected at checkpoint.staging" in capsys.readouterr().err
    assert names(RunFolder(tmp_path / "run")) == [*(expected or ["000002"]), "warm_start"]
    assert checkpoints.find_newest(tmp_path / "run" / "checkpoints").name == (expected or ["000002"])[-1]


def test_older_checkpoints_that_cannot_be_deleted_now_go_with_the_next_save(gated: Gated, folder: RunFolder) -> None:
    async def run(ledger: Ledger) -> None:
        gated.gate.set()
        async with saver_of(gated, ledger, folder, keep_checkpoints=1) as saver:
            await saver.save(1, {"step": 1})
            with arm_for_block(Fault("checkpoint.pruning", "error", raises="OSError")):
                await saver.save(2, {"step": 2})
            assert names(folder) == ["000001", "000002"]
            assert ledger.last_published == 2
            await saver.save(3, {"step": 3})
        assert names(folder) == ["000003"]

    with Ledger(folder.path / "ledger.sqlite") as ledger:
        asyncio.run(run(ledger))


def test_a_save_for_which_there_is_no_room_is_not_begun_and_is_due(
    gated: Gated, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []

    async def run(ledger: Ledger) -> None:
        async with Saver(gated, ledger, folder, schedule=ScheduleSection(), say=messages.append) as saver:  # pyright: ignore[reportArgumentType]
            with monkeypatch.context() as full:
                full.setattr("sparring.training_run.checkpoint_writer.measure_free_bytes", lambda _: 999)
                await saver.begin(1, {"step": 1})
                assert (saver.is_due, names(folder)) == (True, [])
                with pytest.raises(DiskError, match="has 999 bytes free"):
                    await saver.save(1, {"step": 1})
                # Reported once, until there is room again.
                assert [saver.shortage(at) is None for at in (1, 2)] == [False, True]
            assert [saver.shortage(at) is None for at in (3, 4)] == [True, True]
            await saver.begin(2, {"step": 2})
            await saver.settled()
            assert (saver.is_due, names(folder)) == (False, ["000002"])

    gated.gate.set()
    with Ledger(folder.path / "ledger.sqlite") as ledger:
        asyncio.run(run(ledger))
    assert len(messages) == 1
    assert messages[0].endswith("The run continues and tries again after the next step.")
