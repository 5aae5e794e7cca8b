"""The policies of one table, in command-line notation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sparring.config import endpoint_problems
from sparring.errors import DataError, UsageError
from sparring.run_folders import RunFolder
from sparring.run_folders.links import refuse_foreign_files
from sparring.training.checkpoint_files import find_best, find_newest, format_name, list_numbered, verify

SPELLINGS = (
    "base, warm_start, warm_start_continued (the control: imitation for as long as RL took), tuned (the newest "
    "checkpoint), @STEP, @best (by validation), RUN, RUN@STEP or RUN@best (a checkpoint of another run), expert, "
    "constant:TEXT, script:MODULE:FUNCTION, script:FILE.jsonl, openai:MODEL@URL"
)


BEST = "best"
"""The word that names, after @, the checkpoint with the best validation instead of a step."""


class PolicyKind(StrEnum):
    """The kinds of policies that can be evaluated."""

    BASE = "base"
    CHECKPOINT = "checkpoint"
    EXPERT = "expert"
    CONSTANT = "constant"
    SCRIPT = "script"
    ENDPOINT = "openai"
    ENGINE = "engine"
    """The engine that `[engine]` of the recipe names."""


HAS_WEIGHTS = frozenset({PolicyKind.BASE, PolicyKind.CHECKPOINT})
"""The kinds that the recipe's model runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The policy in one row of the table."""

    name: str
    """The name in tables."""
    kind: PolicyKind
    source: str = ""
    """A checkpoint's folder (before the lookup, the given run and step), a constant text, a script, or an address."""
    model: str = ""
    """The name of the model at the address."""

    @property
    def has_weights(self) -> bool:
        """Whether the recipe's model runs this policy."""
        return self.kind in HAS_WEIGHTS

    def as_json(self) -> dict[str, Any]:
        """Return the content as JSON data."""
        return asdict(self)


def read_policy(text: str) -> Policy:
    """Parse a policy in command-line notation. Raises UsageError for anything else, such as an unknown run."""
    kind, _, rest = text.partition(":")
    match kind:
        case "base" | "expert" if not rest:
            return Policy(name=text, kind=PolicyKind(text))
        case "warm_start" | "warm_start_continued" | "tuned" if not rest:
            return Policy(name=text.replace("_", " "), kind=PolicyKind.CHECKPOINT, source=text)
        case "constant" | "script" if rest:
            return Policy(name=text, kind=PolicyKind(kind), source=rest)
        case "openai":
            # Split from the right: a model's name may contain an @, but an address may not.
            model, _, url = rest.rpartition("@")
            problems = endpoint_problems(base_url=url, api_key_env=None)
            if not model or problems:
                raise UsageError(
                    f"--policy {text!r} does not name an endpoint; write openai:MODEL@URL, e.g. "
                    "openai:m@http://127.0.0.1:8000/v1, and name the environment variable with its key in --key-env."
                )
            return Policy(name=text, kind=PolicyKind.ENDPOINT, source=url, model=model)
    run, step = run_and_step(text)
    if (step is None or step == BEST or step.isdigit()) and (not run or RunFolder.is_run(run_path(run))):
        return Policy(name=text, kind=PolicyKind.CHECKPOINT, source=text)
    raise UsageError(f"--policy {text!r} is neither a policy nor a run; choose one of {SPELLINGS}.")


def run_and_step(text: str) -> tuple[str, str | None]:
    """Split `RUN@STEP` into run and step. Without @, the step is None."""
    run, at, step = text.rpartition("@")
    return (run, step) if at else (text, None)


def checkpoint_of(folder: RunFolder, step: str | None) -> Path:
    """Return the checkpoint of a step. BEST selects the checkpoint with the best validation, and None the newest one.

    Raises DataError if it is missing or damaged. A different checkpoint is never used instead.
    """
    if step is None:
        _refuse_damaged(folder, list_numbered(folder.checkpoints))
        return find_newest(folder.checkpoints)
    if step == BEST:
        found = find_best(folder.checkpoints, folder.validation_scores())
        if found is None:
            raise DataError(
                f"no checkpoint of {folder.path} was validated, so the best one is not known; specify a step, or train "
                "with a schedule.val_every that coincides with schedule.save_every."
            )
    else:
        found = folder.checkpoints / (format_name(int(step)) if step.isdigit() else step)
        if not found.is_dir():
            there = ", ".join(sorted(path.name for path in folder.checkpoints.glob("[!.]*"))) or "none"
            raise DataError(
                f"{folder.path} has no checkpoint {found.name}; it has {there} (schedule.save_every, keep_checkpoints)."
            )
    verify(found)
    return found


def _refuse_damaged(folder: RunFolder, steps: Sequence[Path]) -> None:
    """Raise DataError for a damaged checkpoint. `steps` are the numbered checkpoints, newest first."""
    whole: list[str] = []
    problem: DataError | None = None
    for index, path in enumerate(steps):
        try:
            verify(path)
        except DataError as error:
            problem = error if index == 0 else problem
        else:
            whole.append(f"{folder.path}@{int(path.name)}")
        if problem is None:
            return
    if problem is not None:
        older = f"To use an older one, name it: {', '.join(whole)}." if whole else "No older one is intact."
        raise DataError(f"the newest checkpoint of {folder.path} is damaged: {problem} {older}")


def named_checkpoint(run: str | Path) -> tuple[RunFolder, str | None]:
    """Return a run and the step (or BEST) that follows it: RUN or RUN@STEP.

    Raises DataError if it is not a run, and UsageError if the text after @ is neither a step nor BEST.
    """
    return find_checkpoint(run) or (RunFolder(run_path(run)), None)


def find_checkpoint(text: str | Path) -> tuple[RunFolder, str | None] | None:
    """Do the same as `named_checkpoint`, but return None if the text does not name a run."""
    whole, (path, step) = run_path(text), run_and_step(str(text))
    if RunFolder.is_run(whole):
        return RunFolder(whole), None
    if step is None or not RunFolder.is_run(run_path(path)):
        return None
    if step != BEST and not step.isdigit():
        raise UsageError(f"{text} does not name a checkpoint; write a step after @, or {BEST}.")
    return RunFolder(run_path(path)), step


def run_path(run: str | Path) -> Path:
    """Return the folder of a run. `run` is its path, or its name in `runs/`. Raises DataError if a run contains links to
    other places."""
    path, named = Path(run), Path("runs") / run
    found = named if not path.exists() and named.is_dir() else path
    if RunFolder.is_run(found):
        refuse_foreign_files(found)
    return found
