"""Loading a run: its folder and its objects, once, with or without a learner."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sparring.assembly import TrainingParts, load_rollout_parts, load_training_parts
from sparring.config import load_config
from sparring.errors import DataError, ServiceError
from sparring.run_folders.presence import explaining_loss
from sparring.runtime import event_loop
from sparring.tracking import Console
from sparring.training_run.loading import LoadParts, RunLoader

RECIPE = Path(__file__).parents[1] / "faults" / "recipe" / "recipe.toml"


def loader_of(runs_dir: Path, load: LoadParts = load_training_parts) -> RunLoader:
    return RunLoader(
        load, RECIPE, load_config(RECIPE, [f"run.runs_dir={runs_dir}"]), console=Console(quiet=True), name="run"
    )


class Writers:
    """Counts the ledgers' threads that started since the test began."""

    def __init__(self) -> None:
        self._earlier = set(threading.enumerate())

    def count(self) -> int:
        return sum(thread.name.startswith("ledger-writer") for thread in {*threading.enumerate()} - self._earlier)


@pytest.fixture
def writers() -> Writers:
    return Writers()


def test_a_run_is_loaded_once_until_it_is_closed(tmp_path: Path, writers: Writers) -> None:
    with loader_of(tmp_path) as loader:
        first = event_loop.submit(loader.load()).result()
        assert first.path == tmp_path / "run"
        assert event_loop.submit(loader.load()).result() is first
        assert writers.count() == 1
    # Closed when `close` returns, not some time later.
    assert writers.count() == 0
    again = event_loop.submit(loader.load()).result()
    assert again is not first
    assert again.folder.path == first.folder.path
    loader.close()


def test_a_run_that_is_only_evaluated_has_no_learner(tmp_path: Path) -> None:
    with loader_of(tmp_path, load_rollout_parts) as loader:
        parts = event_loop.submit(loader.load()).result().parts
        assert not isinstance(parts, TrainingParts)
        assert parts.engine.fingerprint == parts.initial_weights.fingerprint


def test_a_folder_is_created_without_loading_anything(tmp_path: Path) -> None:
    loader = loader_of(tmp_path)
    folder = loader.open_folder()
    assert folder.status()["status"] == "created"
    assert not loader.is_loaded
    assert loader.open_folder() is folder


@pytest.mark.parametrize("load", [load_training_parts, load_rollout_parts])
def test_wrong_data_leaves_no_new_run_and_does_not_delete_an_existing_one(
    tmp_path: Path, load: LoadParts, writers: Writers
) -> None:
    settings = [f"run.runs_dir={tmp_path}", "data.train=missing.jsonl", "data.held_out=missing.jsonl"]
    wrong = RunLoader(load, RECIPE, load_config(RECIPE, settings), console=Console(quiet=True), name="run")
    with pytest.raises(DataError, match=r"missing.jsonl does not exist"):
        event_loop.submit(wrong.load()).result()
    assert wrong.folder is None
    assert list(tmp_path.iterdir()) == []
    assert writers.count() == 0

    wrong.use_folder(loader_of(tmp_path).open_folder())
    with pytest.raises(DataError, match=r"missing.jsonl does not exist"):
        event_loop.submit(wrong.load()).result()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda file: file.write_text("import"), lambda file: shutil.rmtree(file.parent)]
)
def test_a_run_that_was_copied_in_part_is_named_as_the_cause(
    tmp_path: Path, damage: Callable[[Path], object], writers: Writers
) -> None:
    loader = loader_of(tmp_path)
    folder = loader.open_folder()
    loader.config = load_config(folder.recipe, ["data.train=missing.jsonl"])
    with pytest.raises(DataError, match=r"missing.jsonl does not exist"):
        event_loop.submit(loader.load()).result()

    damage(folder.code / "tiny.py")
    with pytest.raises(DataError, match=r"run is incomplete or was changed: .* Copy the run again.*The error was: "):
        event_loop.submit(loader.load()).result()
    assert folder.path.is_dir()

    def lose() -> None:
        with explaining_loss(folder):
            shutil.rmtree(folder.path)
            raise ValueError

    with pytest.raises(ServiceError, match=r"folder .*run is gone .*Bring it back, and run the command again"):
        lose()
    assert writers.count() == 0


@pytest.mark.parametrize("load", [load_training_parts, load_rollout_parts])
def test_a_run_without_its_manifest_is_refused_before_its_model_is_loaded(
    tmp_path: Path, load: LoadParts, writers: Writers
) -> None:
    folder = loader_of(tmp_path).open_folder()
    (folder.path / "manifest.json").unlink()
    loader = loader_of(tmp_path, load)
    loader.use_folder(folder)
    with pytest.raises(DataError, match=r"manifest.json is missing or empty"):
        event_loop.submit(loader.load()).result()
    assert writers.count() == 0
