"""A run folder is self-contained, never overwritten, and states the true status of its run."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparring.config import Config, load_config
from sparring.errors import ConfigError, DataError, UsageError
from sparring.run_folders import RunFolder, list_runs
from sparring.run_folders.inputs import note_input
from sparring.run_folders.recipe_files import LARGE_BYTES, check_links
from sparring.runtime.plugins import load_object

RECIPE = """
[data]
train = "tasks.jsonl"
held_out = "environment:held_out"
[environment]
target = "environment:Shop"
[reward]
reward = "graders.strict:reward"
[warm_start]
demonstrations = "log.jsonl"
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe in `toy/`, seen from the working directory that contains it."""
    folder = tmp_path / "toy"
    (folder / "graders").mkdir(parents=True)
    (folder / "environment.py").write_text("Shop = 1\n")
    (folder / "graders" / "strict.py").write_text("reward = 7\n")
    (folder / "tasks.jsonl").write_text('{"prompt": "hi"}\n')
    (folder / "recipe.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return Path("toy/recipe.toml")


@pytest.fixture(autouse=True)
def nothing_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process read files, too."""
    monkeypatch.setattr("sparring.run_folders.inputs._read", {})


def create(recipe: Path, name: str | None = None, *overrides: str) -> RunFolder:
    return RunFolder.create(load_config(recipe, overrides), recipe, name=name)


def test_the_recipe_of_a_run_loads_again_and_names_its_own_files_or_absolute_ones(recipe: Path) -> None:
    folder = create(recipe, "one", "batch.group_size=4", "rollout.max_steps_off_policy=0")
    again: Config = load_config(folder.recipe, ["batch.group_size=2"])
    assert again.batch.group_size == 2
    assert load_config(folder.recipe).batch.group_size == 4
    assert again.rollout.max_steps_off_policy == 0
    assert again.run.name == "one"
    assert again.data.train == "tasks.jsonl"
    assert (folder.code / "tasks.jsonl").read_text() == Path("toy/tasks.jsonl").read_text()
    assert again.data.held_out == "environment:held_out"
    assert again.warm_start is not None
    assert again.warm_start.demonstrations == str(Path("toy/log.jsonl").resolve())


def test_a_run_keeps_the_defaults_of_the_version_that_made_it(recipe: Path) -> None:
    folder = create(recipe, "one", "batch.group_size=4")
    manifest = json.loads((folder.path / "manifest.json").read_text())
    recorded = manifest["config"]
    recorded["model"] |= {
        "lora_targets": ["q_proj"],
        "max_sequence_length": 64,
        "trained_weights": "of another version",
    }
    recorded["batch"]["group_size"] = 16
    (folder.path / "manifest.json").write_text(json.dumps(manifest))
    config = folder.config()
    assert (config.model.lora_targets, config.model.max_sequence_length) == (("q_proj",), 64)
    # What the recipe sets, an override, and a value that is not valid today.
    assert (config.batch.group_size, config.model.trained_weights) == (4, "lora")
    assert folder.config(["model.max_sequence_length=128"]).model.max_sequence_length == 128
    # A default does not count as set by the user.
    assert "lora_targets" not in config.model.model_fields_set
    assert config.model_copy(update={"model": load_config(folder.recipe).model}) == load_config(folder.recipe)


def test_code_next_to_the_recipe_and_code_that_it_names_travels_with_the_run(recipe: Path) -> None:
    folder = create(recipe)
    recipe.with_name("environment.py").write_text("Shop = 2\n")
    assert load_object("environment:Shop", folder=folder.code) == 1
    assert load_object("graders.strict:reward", folder=folder.code) == 7


def test_code_in_a_folder_that_a_recipe_or_a_command_names_is_in_the_run(recipe: Path) -> None:
    for file in ("agents/mine.py", "agents/words/reply.py", "estimators/one.py", "programs/play.py", "unused/other.py"):
        path = recipe.parent / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"from pathlib import Path\nHERE = {file!r}\n", "utf-8")
    (recipe.parent / "agents" / "notes.txt").write_text("no code")
    # A file next to it, which it imports by its plain name.
    (recipe.parent / "agents" / "tools_of_this_test.py").write_text("TOOL = 5\n")
    (recipe.parent / "agents" / "mine.py").write_text("from tools_of_this_test import TOOL as play\n")
    recipe.write_text('[agent]\nfunction = "agents.mine:play"\n[data]\ntrain = "tasks.jsonl"\n')
    overrides = ["algorithm.advantage_method=estimators.one:HERE"]
    folder = create(recipe, "one", *overrides)
    shutil.rmtree(recipe.parent / "agents")

    assert load_object("agents.mine:play", folder=folder.code) == 5
    assert load_object("estimators.one:HERE", folder=folder.code) == "estimators/one.py"
    code = {"agents/mine.py", "agents/tools_of_this_test.py", "agents/words/reply.py", "estimators/one.py"}
    assert {str(path.relative_to(folder.code)) for path in folder.code.rglob("*.py")} >= {"environment.py", *code}
    hashed = json.loads((folder.path / "manifest.json").read_text())["sha256"]
    assert {str(recipe.parent.resolve() / file) for file in code} <= hashed.keys()

    recipe.write_text('[agent]\ncommand = ["python", "programs/play.py"]\n[data]\ntrain = "tasks.jsonl"\n')
    assert (create(recipe, "two").code / "programs" / "play.py").is_file()


def test_fixtures_next_to_the_recipe_travel_with_the_run_and_are_hashed(recipe: Path) -> None:
    fixtures = recipe.parent.resolve() / "fixtures"
    small, large = fixtures / "deep" / "small.jsonl", fixtures / "large.csv"
    small.parent.mkdir(parents=True)
    small.write_text("1234")
    with large.open("wb") as file:
        file.truncate(64 * 2**20)
    folder = create(recipe)
    small.write_text("changed")
    assert (folder.code / "fixtures" / "deep" / "small.jsonl").read_text() == "1234"
    assert (folder.code / "fixtures" / "large.csv").readlink() == large
    hashes = json.loads((folder.path / "manifest.json").read_text())["sha256"]
    assert hashes[str(small)] == hashlib.sha256(b"1234").hexdigest()
    assert hashes[str(large)] == hashlib.sha256(bytes(64 * 2**20)).hexdigest()


def test_runs_without_a_name_are_numbered_after_the_recipe_folder(recipe: Path) -> None:
    assert [create(recipe).path.name for _ in range(2)] == ["toy-001", "toy-002"]
    Path("runs/toy-009").mkdir()
    assert create(recipe).path.name == "toy-010"


def test_a_named_run_is_never_overwritten(recipe: Path) -> None:
    create(recipe, "mine")
    with pytest.raises(DataError, match=r"runs/mine exists.*never overwritten.*--resume runs/mine"):
        create(recipe, "mine")


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".."])
def test_a_name_that_leaves_the_runs_folder_is_refused(recipe: Path, name: str) -> None:
    with pytest.raises(DataError, match="not a valid folder name"):
        create(recipe, name)


def test_the_manifest_holds_versions_the_seed_and_hashes_that_follow_the_content(recipe: Path) -> None:
    first = json.loads((create(recipe, None, "run.seed=5").path / "manifest.json").read_text())
    recipe.with_name("tasks.jsonl").write_text('{"prompt": "changed"}\n')
    second = json.loads((create(recipe).path / "manifest.json").read_text())
    assert first["seed"] == 5
    assert first["versions"]["python"].startswith("3.")
    assert first["config"]["batch"]["group_size"] == 8
    changed = {Path(path).name for path in first["sha256"] if first["sha256"][path] != second["sha256"][path]}
    assert changed == {"tasks.jsonl"}
    assert {Path(path).name for path in first["sha256"]} == {
        "recipe.toml",
        "environment.py",
        "strict.py",
        "tasks.jsonl",
    }


def test_a_folder_without_recipe_is_no_run(tmp_path: Path) -> None:
    assert not RunFolder.is_run(tmp_path)
    with pytest.raises(DataError, match=r"contains no run\.toml"):
        RunFolder(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        RunFolder(tmp_path / "none")


def test_a_damaged_recipe_is_another_error_than_a_wrong_override(recipe: Path) -> None:
    folder = create(recipe)
    assert folder.config(["batch.group_size=2"]).batch.group_size == 2
    with pytest.raises(ConfigError, match=r"batch\.group_size"):
        folder.config(["batch.group_size=0"])
    folder.recipe.write_text(folder.recipe.read_text() + "[bach]\n")
    with pytest.raises(DataError, match=r"toy-001 cannot be loaded; fix its recipe(.|\n)*bach"):
        folder.config()


def test_status_keeps_the_last_step_until_a_new_one_comes(recipe: Path) -> None:
    folder = create(recipe)
    assert folder.status()["status"] == "created"
    folder.set_status("running", step=3)
    folder.set_status("failed", reason="no disk")
    status = folder.status()
    assert (status["status"], status["step"], status["reason"]) == ("failed", 3, "no disk")
    assert status["process"]["pid"] == os.getpid()


def test_a_running_run_whose_process_is_gone_reads_interrupted(recipe: Path) -> None:
    folder = create(recipe)
    folder.set_status("running", step=1)
    assert folder.status()["status"] == "running"
    status = json.loads((folder.path / "status.json").read_text())
    # The same pid, but another process: it started at another time.
    status["process"]["started"] += 1
    (folder.path / "status.json").write_text(json.dumps(status))
    assert folder.status()["status"] == "interrupted"


def test_a_stop_request_reaches_the_process_and_is_forgotten_by_the_next_start(recipe: Path) -> None:
    folder = create(recipe)
    folder.set_status("running", step=0)
    received: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        assert folder.request_stop()
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert received == [signal.SIGTERM]
    assert folder.stop_requested()
    folder.set_status("stopped")
    assert folder.stop_requested()
    folder.set_status("running")
    assert not folder.stop_requested()


def test_a_process_without_a_handler_is_asked_by_the_file_and_not_ended(recipe: Path) -> None:
    folder = create(recipe)
    folder.set_status("running", step=0)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        status = json.loads((folder.path / "status.json").read_text())
        # Field 22 of /proc/PID/stat, after a name in brackets: when the process started.
        started = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
        status["process"] |= {"pid": child.pid, "started": started}
        (folder.path / "status.json").write_text(json.dumps(status))
        assert folder.status()["status"] == "running"
        assert not folder.request_stop()
        assert folder.stop_requested()
    assert child.returncode == 0


def test_evaluations_are_numbered_and_none_is_replaced(recipe: Path) -> None:
    folder = create(recipe)
    assert folder.next_evaluation_path().name == "held_out-001.json"
    folder.next_evaluation_path().write_text("{}")
    assert folder.next_evaluation_path().name == "held_out-002.json"


def test_runs_are_listed_oldest_first_and_other_folders_are_passed_over(recipe: Path) -> None:
    assert list_runs(Path("runs")) == []
    create(recipe, "b")
    create(recipe, "a")
    os.utime("runs/b/run.toml", ns=(1, 1))
    Path("runs/notes").mkdir()
    assert [folder.path.name for folder in list_runs(Path("runs"))] == ["b", "a"]


def test_a_run_is_trained_by_one_at_a_time(recipe: Path) -> None:
    folder = create(recipe)
    with folder.lock_for_training():
        second = RunFolder(folder.path).lock_for_training()
        with pytest.raises(UsageError, match="is already being trained"):
            second.__enter__()
    with RunFolder(folder.path).lock_for_training():
        pass


def test_the_manifest_lists_files_outside_the_recipe_that_its_code_reads(recipe: Path, tmp_path: Path) -> None:
    folder = create(recipe)
    outside = tmp_path / "shared" / "answers.jsonl"
    outside.parent.mkdir()
    outside.write_text("{}\n")
    note_input(outside)
    note_input(tmp_path / "missing.jsonl")
    folder.set_status("running")
    outside.write_text("changed while the run goes on\n")
    hashes = json.loads((folder.path / "manifest.json").read_text())["sha256"]
    assert hashes[str(outside)] == hashlib.sha256(b"{}\n").hexdigest()
    assert str(tmp_path / "missing.jsonl") not in hashes
    note_input(outside)
    folder.set_status("completed")
    hashes = json.loads((folder.path / "manifest.json").read_text())["sha256"]
    assert hashes[str(outside)] == hashlib.sha256(b"changed while the run goes on\n").hexdigest()


def test_a_run_has_the_files_of_the_recipes_folder_at_any_depth_and_their_hashes(recipe: Path) -> None:
    folder = recipe.parent.resolve()
    outside = folder.parent / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "word.txt").write_text("linked folder")
    (outside / "one.txt").write_text("linked file")
    for name in ("prompts/x.txt", "pkg/__init__.py", "pkg/data/table.csv", "metrics.jsonl", "environment/notes.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "words").symlink_to(outside / "deep")
    (folder / "one.txt").symlink_to(outside / "one.txt")
    (folder / "round").symlink_to(folder)
    (folder / "nowhere").symlink_to(folder / "absent")
    left_out = (
        ".env",
        ".git/config",
        "venv/lib.py",
        "venv/pyvenv.cfg",
        "__pycache__/x.pyc",
        "old/run.toml",
        "old/log.jsonl",
    )
    for name in left_out:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)

    run = create(recipe, None, "run.runs_dir=toy/kept")
    again = create(recipe, None, "run.runs_dir=toy/kept")
    shutil.rmtree(folder.parent / "outside")

    found = {str(path.relative_to(again.code)) for path in again.code.rglob("*") if path.is_file()}
    assert found == {
        "recipe.toml",
        "environment.py",
        "graders/strict.py",
        "tasks.jsonl",
        "prompts/x.txt",
        "pkg/__init__.py",
        "pkg/data/table.csv",
        "metrics.jsonl",
        "environment/notes.md",
        "words/word.txt",
        "one.txt",
    }
    assert (run.code / "words" / "word.txt").read_text() == "linked folder"
    assert (run.code / "one.txt").read_text() == "linked file"
    files = run.manifest()["files"]
    assert files.keys() == found
    assert files["prompts/x.txt"] == hashlib.sha256(b"prompts/x.txt").hexdigest()


def test_a_large_file_is_linked_and_refused_once_it_is_missing_or_another(recipe: Path) -> None:
    large = recipe.parent / "weights" / "large.bin"
    large.parent.mkdir()
    with large.open("wb") as file:
        file.truncate(LARGE_BYTES)
    run = create(recipe)
    linked = run.code / "weights" / "large.bin"
    assert linked.readlink() == large.resolve()
    check_links(run.code)

    os.utime(large)
    check_links(run.code)
    with large.open("r+b") as file:
        file.write(b"1")
    with pytest.raises(
        DataError, match=r"large\.bin.*its content has changed since then; restore the content with sha256"
    ):
        check_links(run.code)
    large.unlink()
    with pytest.raises(DataError, match=r"large\.bin.*is now missing; restore it"):
        check_links(run.code)
    # A run that was moved can be given the file itself.
    linked.unlink()
    with linked.open("wb") as file:
        file.truncate(LARGE_BYTES)
    check_links(run.code)


def test_a_subfolder_with_too_many_files_is_linked_as_a_whole(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparring.run_folders.recipe_files.MOST_FILES", 5)
    images = recipe.parent / "images"
    images.mkdir()
    for number in range(6):
        (images / f"{number}.png").write_bytes(b"")
    run = create(recipe)
    assert (run.code / "images").readlink() == images.resolve()
    assert (run.code / "tasks.jsonl").is_file()
    assert run.manifest()["linked"] == {"images": {"path": str(images.resolve())}}


def test_a_run_that_cannot_be_written_leaves_no_folder(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(DataError, match="No space left on device"):
        create(recipe)
    assert list(Path("runs").iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="whether a process is a zombie is read in /proc")
def test_a_process_that_ended_and_was_not_waited_for_does_not_run(recipe: Path) -> None:
    folder = create(recipe)
    folder.set_status("running", step=3)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        stat = Path(f"/proc/{child.pid}/stat")
        status = folder.status()
        # Field 22, after a name in brackets: when the process started.
        status["process"] |= {"pid": child.pid, "started": int(stat.read_text().rpartition(")")[2].split()[19])}
        (folder.path / "status.json").write_text(json.dumps(status))
        assert folder.status()["status"] == "running"
        child.kill()
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        assert folder.status()["status"] == "interrupted"
        assert not folder.request_stop()
