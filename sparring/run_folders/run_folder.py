"""The folder of one run: everything that is needed to load the run again, its origin, and its status.

run.toml        the resolved recipe, which can be loaded again
recipe/         the files of the recipe's folder; large files are links
manifest.json   versions, hardware, seed, every setting, sha256 of the recipe's files (also of files outside its folder) and
                of the inputs of the last training
vocabulary.json the text of each token id, by id
status.json     {"status", "step", "reason", "time", "process": {"pid", "host", "started"}}
stop            exists after a request to stop the run
pause           exists while the run is paused; deleting it lets the run continue
engine/         output and files of the vLLM servers that the run starts
checkpoints/ evaluations/ trajectories/ environment/ metrics.jsonl findings.jsonl ledger.sqlite
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, final

from sparring.config import Config, load_config, recipe_hash, resolved_toml, restore_defaults
from sparring.errors import DataError, UsageError, cut
from sparring.run_folders.encode import encode
from sparring.run_folders.formats import require_format
from sparring.run_folders.inputs import recorded_inputs
from sparring.run_folders.locks import hold_lock
from sparring.run_folders.recipe_files import (
    FOLDER,
    FOLDER_SCHEMES,
    RUN_RECIPE,
    RecipeFiles,
    copy_files,
    find_code_folder,
    list_files,
    sha256,
)
from sparring.runtime.json_values import parse_json
from sparring.runtime.private_files import create_folder, open_private, write_private
from sparring.runtime.redaction import mask_secrets
from sparring.types import Json

RECIPE, MANIFEST, STATUS, STOP, PAUSE = RUN_RECIPE, "manifest.json", "status.json", "stop", "pause"
MANIFEST_FORMAT = 2
_MANIFEST_KINDS: Mapping[str, Any] = {
    "id": str, "recipe": str, "created": int | float, "config": dict, "contents": dict, "files": dict, "linked": dict,
    "origin": dict, "versions": dict, "hardware": dict, "checked": list, "resumed": list, "template_problem": str,
}  # fmt: skip
"""The types of the values in a manifest."""
LEDGER, FINDINGS = "ledger.sqlite", "findings.jsonl"
FAMILY = "family.json"
"""The name of the file that lists runs which differ only in their seed. Its folder is next to theirs."""
VOCABULARY = "vocabulary.json"
"""The file with the text of each token id of the model, by id, for readers without its tokenizer."""
ENGINE = "engine"
"""The folder for files of the servers that a run starts."""
WARM_START = "warm_start"
"""The name of the checkpoint that RL starts from, next to the numbered checkpoints."""
CONTINUED = "warm_start_continued"
"""The name of the control, among `controls`, that continues imitation for as long as RL took."""
UNFINISHED = ".part"
"""The suffix of an unfinished evaluation's folder."""
_PACKAGES = ("sparring", "torch", "transformers", "peft", "renderers", "tokenizers", "numba", "numpy")
_MAX_REASON = 2000
"""The maximum length of a reason in `status.json`, which must fit into one disk block."""
_LONGEST_NAME = 200
"""The length of the longest name of a run in bytes. File systems allow 255, and names of other files begin with it."""
_UNSAFE = re.compile(r"[/\\\x00]|^\.{1,2}$|^$")


@final
class RunFolder:
    """An existing run. Raises DataError if `path` is not a run folder."""

    def __init__(self, path: Path) -> None:
        if (path / FAMILY).is_file():
            raise DataError(
                f"{path} is a family of runs, not one run; specify one run, such as {path}-seed-0. `train --seeds`, `eval "
                "--across` and `report` accept the family."
            )
        if not self.is_run(path):
            what = "contains no run.toml, so it is not a run folder" if path.is_dir() else "does not exist"
            if self.is_run(named := Path("runs") / path):
                raise DataError(f"{path} {what}; the run of this name is {named}.")
            raise DataError(
                f"{path} {what}; specify a folder that `sparring train` wrote (`sparring runs list` lists them)."
            )
        self.path = path

    @staticmethod
    def is_run(path: Path) -> bool:
        return (path / RECIPE).is_file()

    @classmethod
    def create(cls, config: Config, recipe: Path, *, name: str | None) -> Self:
        """Create the self-contained folder `<runs_dir>/<name>`. Without a name, it is `<recipe folder>-001` and so on.

        Raises DataError if the named run exists or the folder cannot be created.
        """
        runs_dir = Path(config.run.runs_dir)
        cls.require_new(runs_dir, name)
        try:
            files = list_files(recipe, runs_dir)
            runs_dir.mkdir(parents=True, exist_ok=True)
            path = _create_folder(runs_dir, name, recipe)
            try:
                copies = copy_files(files, path / FOLDER)
                write_json(path / MANIFEST, build_manifest(config, recipe, files, copies))
                _write_recipe(path, config, files)
            except OSError:
                shutil.rmtree(path, ignore_errors=True)
                raise
        except OSError as error:
            raise DataError(
                f"the run cannot be created in {runs_dir}: {error}; set run.runs_dir to a writable folder."
            ) from error
        folder = cls(path)
        folder.set_status("created", step=0)
        return folder

    @staticmethod
    def require_new(runs_dir: Path, name: str | None) -> None:
        """Raise DataError if a new run cannot have this name: it is not a valid folder name, or another run has it."""
        if name is not None and _UNSAFE.search(name):
            raise DataError(f"run name {name!r} is not a valid folder name; choose a name without slashes.")
        if name is not None and len(os.fsencode(name)) > _LONGEST_NAME:
            raise DataError(f"run name {name[:40]!r}... is longer than {_LONGEST_NAME} bytes; choose a shorter one.")
        if name is not None and (runs_dir / name).exists():
            raise _taken(runs_dir / name)

    def absolute(self) -> Self:
        """Return the same run with an absolute path, which remains valid when user code changes the working folder."""
        return type(self)(self.path.absolute())

    @property
    def recipe(self) -> Path:
        """The run's own recipe."""
        return self.path / RECIPE

    @property
    def code(self) -> Path:
        """The folder with the run's copy of the recipe's code and files."""
        return find_code_folder(self.recipe)

    def config(self, overrides: Sequence[str] = ()) -> Config:
        """Return the run's own recipe with overrides, and with the defaults with which the run was created.

        Raises DataError if the recipe is damaged, and ConfigError for an invalid override.
        """
        try:
            config = load_config(self.recipe)
        except UsageError as error:
            raise DataError(
                f"{self.path} cannot be loaded; fix its recipe, or specify another run.\n{error}"
            ) from error
        if overrides:
            config = load_config(self.recipe, overrides)
        return restore_defaults(config, self.manifest().get("config", {}))

    def trained_config(self) -> Config:
        """Return `config()`. Raises UsageError if the run evaluates an endpoint or a script and therefore has no
        trained policy."""
        config = self.config()
        if not config.is_trainable:
            raise UsageError(
                f"{self.path} is a baseline: its engine is {config.engine.type!r}, so nothing was trained and there is "
                "no policy to load. Specify a run that `sparring train` created."
            )
        return config

    def record_checks(self, reports: Sequence[Mapping[str, Json]]) -> None:
        """Record the checks before training. Findings are written to findings.jsonl. Everything else is written to the
        manifest, with the sha256 of the files that the environment read."""
        manifest = self.manifest()
        manifest["checked"] = [
            {key: value for key, value in report.items() if key not in ("findings", "recipe", "format")}
            for report in reports
        ]
        for report in reports:
            manifest["sha256"] |= report["measured"].get("files", {})
        write_json(self.path / MANIFEST, manifest)
        with open_private(self.path / FINDINGS, "a") as file:
            for finding in (one for report in reports for one in report["findings"]):
                file.write(json.dumps({"time": time.time(), **finding}) + "\n")

    def copy_checks(self, other: Self) -> None:
        """Record the checks of another run of the same recipe for this run, so that this run is not checked again."""
        theirs, manifest = other.manifest(), self.manifest()
        if not theirs.get("checked"):
            return
        write_json(self.path / MANIFEST, {**manifest, "checked": theirs["checked"]})
        path = other.path / FINDINGS
        lines = path.read_text("utf-8").splitlines() if path.is_file() else []
        # Findings of detectors have a step.
        own = [line for line in lines if line.strip() and parse_json(line).get("step") is None]
        write_private(self.path / FINDINGS, "".join(f"{line}\n" for line in own))

    def origin(self) -> Mapping[str, Any] | None:
        """Return the entry of `lineage.record_branch` or `record_weights` (which has `weights`), or None if the run has
        no parent. Raises DataError if the manifest is damaged."""
        return self.manifest().get("origin")

    def id(self) -> str | None:
        """Return the id of the run, which stays when its folder is renamed or moved, or None for a run without one.
        Raises DataError if the manifest is damaged."""
        return self.manifest().get("id")

    def manifest(self) -> dict[str, Any]:
        """Return the record of what the run was built from, in the present format. The record is empty if there is no
        manifest. Raises DataError if it is damaged or of a newer format, and OSError if it cannot be read."""
        path = self.path / MANIFEST
        try:
            content: Any = parse_json(path.read_text("utf-8")) if path.exists() else {}
        except ValueError as error:
            raise DataError(f"{path} is not a JSON object ({error}); restore it, or specify another run.") from error
        if not isinstance(content, dict):
            raise DataError(f"{path} is not a JSON object; restore it, or specify another run.")
        require_format(path, content.get("format", MANIFEST_FORMAT), MANIFEST_FORMAT, oldest=1)
        for key, kind in _MANIFEST_KINDS.items():
            if not isinstance(value := content.get(key), kind | None):
                raise DataError(f"{path}: {key} is {cut(repr(value), 60)}, which no run writes; restore the file.")
        return _upgrade(content)

    def record_training(self, inputs: Mapping[str, Json], changes: Mapping[str, tuple[Json, Json]]) -> None:
        """Record in the manifest the inputs of the training that starts now, and their changes since the previous
        training."""
        manifest = {**self.manifest(), **inputs}
        if changes:
            entry = {"time": time.time(), "changes": {key: list(values) for key, values in changes.items()}}
            manifest["resumed"] = [*manifest.get("resumed", []), entry]
        write_json(self.path / MANIFEST, manifest)

    def files(self) -> dict[str, str]:
        """Return the sha256 of the run's copies of the recipe's files, and of code that was added to them, keyed by
        path in `code`."""
        manifest = self.manifest()
        names = set(manifest.get("files", ()))
        if self.code != self.path:
            names |= {str(path.relative_to(self.code)) for path in self.code.rglob("*.py")}
        return {name: sha256(self.code / name) for name in sorted(names) if (self.code / name).is_file()}

    def _record_inputs(self) -> None:
        # The run's own copies are listed as files of the recipe.
        own = str(self.path.resolve()) + os.sep
        read = {path: digest for path, digest in recorded_inputs().items() if not path.startswith(own)}
        if not read:
            return
        manifest = self.manifest()
        recorded = {"sha256": manifest["sha256"] | read}
        if not recorded.items() <= manifest.items():
            write_json(self.path / MANIFEST, manifest | recorded)

    def changed_files(self) -> list[str]:
        """Return the run's copies of the recipe's files that are missing, or that differ from the manifest."""
        present = self.files()
        return [name for name, digest in self.manifest().get("files", {}).items() if present.get(name) != digest]

    def record_revisions(self, commits: Mapping[str, str]) -> None:
        """Record in the manifest the commits of data sets of the hub, by the address that the recipe has."""
        write_json(self.path / MANIFEST, {**self.manifest(), "data_revisions": dict(commits)})

    def write_vocabulary(self, texts: Sequence[str]) -> None:
        """Store the text of each token id, keyed by id."""
        write_private(self.path / VOCABULARY, encode(texts))

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def require_manifest(self) -> None:
        """Raise the errors of `manifest`, and DataError if there is no manifest."""
        if not self.manifest():
            raise DataError(
                f"{self.path / MANIFEST} is missing or empty. Without it, the run's code and files are not found, and "
                "nothing records what the run was trained with. Restore it, or train the recipe again."
            )

    @property
    def ledger(self) -> Path:
        return self.path / LEDGER

    @property
    def controls(self) -> Path:
        """The folder of checkpoints that are only evaluated and never trained further."""
        return self.path / "controls"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    def validation_scores(self) -> dict[int, float]:
        """Return the mean score of each validation, keyed by the step that preceded it. Raises DataError if a file is
        damaged."""
        scores: dict[int, float] = {}
        for path in self.evaluations.glob("validation-*.json"):
            try:
                mean = parse_json(path.read_text("utf-8"))["score"]["mean"]
                if mean is not None:
                    scores[int(path.stem.partition("-")[2])] = float(mean)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{path} is not a valid validation result ({error!r}); delete it, or restore it."
                ) from error
        return scores

    def next_evaluation_path(self, stem: str = "held_out") -> Path:
        """Return the path of the next evaluation: evaluations/held_out-001.json and so on. Unfinished evaluations are
        also included."""
        create_folder(self.evaluations, exist_ok=True)
        numbers = [_next_number(self.evaluations, stem, suffix) for suffix in (".json", UNFINISHED)]
        return self.evaluations / f"{stem}-{max(numbers):03}.json"

    @contextmanager
    def lock_for_training(self) -> Iterator[None]:
        """Lock the run, so that only one process trains it at a time. Raises UsageError if another process has the
        lock."""
        stop = f"stop that training first (`sparring runs stop {self.path}`), or watch it"
        with hold_lock(self.path, UsageError(f"{self.path} is already being trained; {stop}.")):
            yield

    def set_status(self, status: str, *, step: int | None = None, reason: str | None = None) -> None:
        """Record the run's status. Without `step`, the last recorded step is kept. Starting a run deletes an earlier
        stop request.

        This method also records in the manifest the files that the run's environment has read since the last call.
        """
        before = self.status()
        if status == "running" and before.get("status") != "running":
            (self.path / STOP).unlink(missing_ok=True)
        content: Json = {
            "status": status,
            "step": before.get("step", 0) if step is None else step,
            "reason": None if reason is None else mask_secrets(reason)[:_MAX_REASON],
            "time": time.time(),
            "process": {"pid": os.getpid(), "host": platform.node(), "started": _started(os.getpid())},
        }
        try:
            write_json(self.path / STATUS, content)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not before:
                raise
            # The file has its own disk block, even on a full disk.
            with (self.path / STATUS).open("r+", encoding="utf-8") as file:
                file.write(json.dumps(content, indent=1) + "\n")
                file.truncate()
        self._record_inputs()

    def status(self) -> dict[str, Any]:
        """Return the recorded status, or an empty mapping if there is none. If the process of a running or paused run
        has ended, the status is `interrupted`.

        Raises DataError if the file is damaged, and OSError if it cannot be read.
        """
        path = self.path / STATUS
        try:
            status: Any = parse_json(path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise DataError(f"{path} is not JSON ({error}); delete it: the run itself is stored elsewhere.") from error
        is_status = (
            isinstance(status, dict)
            and isinstance(status.get("process", {}), dict)
            and isinstance(status.get("step", 0), int)
        )
        if not is_status:
            raise DataError(f"{path} is not the status of a run; delete it: the run itself is stored elsewhere.")
        if status.get("status") in ("running", "paused") and self._process_of(status) is None:
            status["status"] = "interrupted"
        return status

    def has_process(self) -> bool:
        """Return whether the process that last wrote the status still runs on this machine."""
        return self._process_of(self.status()) is not None

    def request_stop(self) -> bool:
        """Request that the run stops and writes a checkpoint. Return True if a signal was sent to its process.
        Otherwise, the process notices the request after the current step.

        No signal is sent to a process without a handler for it, such as a notebook, because the process would end
        without a checkpoint.
        """
        (self.path / STOP).touch()
        pid = self._process_of(self.status())
        if pid is None or not _catches(pid, signal.SIGTERM):
            return False
        os.kill(pid, signal.SIGTERM)
        return True

    def stop_requested(self) -> bool:
        return (self.path / STOP).exists()

    @property
    def pause(self) -> Path:
        """The file that keeps a run paused. Deleting it lets the run continue."""
        return self.path / PAUSE

    @staticmethod
    def _process_of(status: dict[str, Any]) -> int | None:
        """Return the pid of the process that last wrote the status, if it still runs on this machine."""
        process = status.get("process", {})
        pid = process.get("pid")
        if (
            not isinstance(pid, int)
            or process.get("host") != platform.node()
            or _started(pid) != process.get("started")
        ):
            return None
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return pid


def list_runs(runs_dir: Path) -> list[RunFolder]:
    """Return the runs in a folder, oldest first. The result is empty if the folder does not exist."""
    if not runs_dir.is_dir():
        return []
    runs = [path for path in runs_dir.iterdir() if RunFolder.is_run(path)]
    return [RunFolder(path) for path in sorted(runs, key=lambda path: ((path / RECIPE).stat().st_mtime_ns, path.name))]


def build_manifest(config: Config, recipe: Path, files: RecipeFiles, copies: Mapping[str, Json]) -> dict[str, Json]:
    """Return the manifest of a new run. `copies` is the result of `copy_files` for the recipe's `files`."""
    copied = {str((files.folder / name).resolve()): digest for name, digest in copies["files"].items()}
    linked = {entry["path"]: entry["sha256"] for entry in copies["linked"].values() if "sha256" in entry}
    others = [files.folder / file for keys in _files(config).values() for file in keys.values()]
    others += [recipe, *_option_files(config, files.folder)]
    unread = {str(path.resolve()) for path in others if path.is_file()} - copied.keys() - linked.keys()
    return {
        "format": MANIFEST_FORMAT,
        "id": uuid.uuid4().hex,
        "created": time.time(),
        **describe_machine(),
        "seed": config.run.seed,
        "config": config.model_dump(mode="json"),
        "recipe": str(recipe.resolve()),
        "recipe_sha256": recipe_hash(config),
        **copies,
        "sha256": {**copied, **linked, **{path: sha256(Path(path)) for path in sorted(unread)}},
    }


def _upgrade(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of an earlier format in the present one."""
    if manifest.get("format") == 1:
        # Format 1 listed only the files of the training. They are next to run.toml.
        files = manifest.get("contents", {}).get("files", {})
        return {**manifest, "format": MANIFEST_FORMAT, "files": files}
    return manifest


def describe_machine() -> dict[str, Json]:
    """Return the package `versions` and the `hardware`. Versions are read from metadata, so that no package is
    imported."""
    versions: dict[str, str] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    hardware = {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    return {"versions": versions, "hardware": hardware}


def _taken(path: Path) -> DataError:
    return DataError(
        f"{path} exists; a run is never overwritten. Choose another name, or continue the run with `sparring train "
        f"--resume {path}`."
    )


def _create_folder(runs_dir: Path, name: str | None, recipe: Path) -> Path:
    if name is not None:
        try:
            create_folder(runs_dir / name)
        except FileExistsError:
            raise _taken(runs_dir / name) from None
        return runs_dir / name
    stem = recipe.resolve().parent.name or "run"
    while True:
        path = runs_dir / f"{stem}-{_next_number(runs_dir, stem):03}"
        try:
            create_folder(path)
        except FileExistsError:
            # Another process was faster. The next iteration counts its folder.
            continue
        return path


def _next_number(folder: Path, stem: str, suffix: str = "") -> int:
    pattern = re.compile(rf"{re.escape(stem)}-(\d+){re.escape(suffix)}")
    numbers = [int(match[1]) for path in folder.iterdir() if (match := pattern.fullmatch(path.name))]
    return max(numbers, default=0) + 1


def _write_recipe(path: Path, config: Config, files: RecipeFiles) -> None:
    """Write the resolved recipe. Paths of files that the run contains are relative to its folder; others are
    absolute."""
    updates: dict[str, Any] = {"run": config.run.model_copy(update={"name": path.name})}
    for name, keys in _files(config).items():
        named = {key: files.reference(file) for key, file in keys.items()}
        updates[name] = getattr(config, name).model_copy(update=named)
    if config.is_trainable and Path(config.model.name).is_dir():
        updates["model"] = config.model.model_copy(update={"name": str(Path(config.model.name).resolve())})
    write_private(path / RECIPE, resolved_toml(config.model_copy(update=updates)))


def _files(config: Config) -> dict[str, dict[str, str]]:
    """Return the recipe's fields that name a file or a data set's folder, grouped by section."""
    named = {"data": {key: getattr(config.data, key) for key in ("train", "validation", "held_out")}}
    if config.warm_start is not None and config.warm_start.demonstrations != "expert":
        named["warm_start"] = {"demonstrations": config.warm_start.demonstrations}
    named["engine"] = {"script": config.engine.script}
    return {
        section: {
            key: source
            for key, source in keys.items()
            if source is not None and (":" not in source or source.startswith(FOLDER_SCHEMES))
        }
        for section, keys in named.items()
    }


def _option_files(config: Config, folder: Path) -> list[Path]:
    """Return the files that the environment's options name, such as fixtures and databases."""
    texts = [value for value in config.environment.options.values() if isinstance(value, str) and value]
    return [folder / text for text in texts if (folder / text).is_file()]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _started(pid: int) -> int | None:
    """Return the start time of a process in clock ticks (only on Linux). It shows whether the pid was reused by another
    process. Return None if the process has ended, even if its parent has not waited for it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return None
    # Field 22; the second field is a name in parentheses that may contain any character.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _catches(pid: int, number: int) -> bool:
    """Return whether a process handles a signal, if the system reports it (Linux)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (number - 1) & 1)


def write_json(path: Path, content: Json) -> None:
    """Replace a file so that readers see either the old or the new content, never a part of it."""
    text = json.dumps(content, indent=1) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_private(temporary, text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
