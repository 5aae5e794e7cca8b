"""Branches: new runs that start from a checkpoint of another run. The change and the step are recorded."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparring.config import Config
from sparring.diagnosis.next_command import checkpoint_steps
from sparring.errors import DataError, UsageError
from sparring.ledger import Ledger
from sparring.run_folders import RunFolder
from sparring.run_folders.lineage import record_branch
from sparring.run_folders.recipe_files import RecipeFiles, list_files, sha256
from sparring.run_folders.run_folder import WARM_START
from sparring.training import checkpoints
from sparring.training.checkpoint_files import list_newest_first
from sparring.training.widening import Adapter, widen
from sparring.types import Json

FIXED: Mapping[str, str] = {
    "model.name": "the checkpoint contains weights of the parent's model",
    "model.trained_weights": "the checkpoint contains the weights that the parent trained",
    "model.lora_layers": "the checkpoint contains the layers that the parent adapted",
    "model.lora_targets": "the checkpoint contains the matrices that the parent adapted",
    "warm_start": "the checkpoint is from after the warm start",
    "run.name": "--name names the new run",
}
"""The settings that a branch cannot change, with the reasons."""


def branch(
    run: Path, changes: Sequence[str], *, step: int | None = None, name: str | None = None, recipe: Path | None = None
) -> RunFolder:
    """Create a run next to `run` that starts from one of its checkpoints with changed settings (`KEY=VALUE`).

    Afterwards, `sparring train --resume` starts the new run. `step` is the step of a checkpoint (0 is before the first
    step); by default, it is the newest. `recipe` is a folder whose code replaces the run's own code; the settings
    remain those of the run.

    Raises UsageError if the checkpoint cannot be continued with a change, or if neither a change nor a step is given.
    Raises DataError if the checkpoint is missing or damaged, and ConfigError if settings are invalid.
    """
    parent = RunFolder(run)
    before = parent.trained_config()
    given = [change.partition("=")[0].strip() for change in changes]
    runs_dir = [] if "run.runs_dir" in given else [f"run.runs_dir={run.resolve().parent}"]
    after = parent.config([*changes, *runs_dir])
    different = changed(before, after)
    _refuse(before, after, different)
    code = _recipe_file(recipe) if recipe is not None else parent.recipe
    files = (
        _changed_files(list_files(parent.recipe, run.parent), list_files(code, run.parent))
        if recipe is not None
        else ()
    )
    if not different and not files and step is None:
        raise UsageError(
            f"no setting differs from {run}; give KEY=VALUE, or the step to go back to (--from STEP), or continue the "
            f"run itself with `sparring train --resume {run}`."
        )
    checkpoint = _checkpoint(parent, step)
    at = int(checkpoint.name) if checkpoint.name.isdigit() else 0
    if at >= after.schedule.max_steps:
        raise UsageError(
            f"step {at} is the last step that schedule.max_steps = {after.schedule.max_steps} allows, so there is "
            f"nothing to train; branch from an earlier step, or add schedule.max_steps={at + 25}."
        )
    child = RunFolder.create(after, code, name=name)
    record_branch(child, parent, at, different, files)
    sizes = [Adapter(one.model.lora_rank, one.model.lora_alpha) for one in (before, after)]
    for one in {checkpoint, *(path for path in [parent.checkpoints / WARM_START] if path.is_dir())}:
        if before.model.trained_weights == "lora" and sizes[0] != sizes[1]:
            widen(one, child.checkpoints, before=sizes[0], after=sizes[1], seed=after.run.seed)
        else:
            shutil.copytree(one, child.checkpoints / one.name)
    with Ledger(child.ledger) as ledger:
        for one in list_newest_first(child.checkpoints):
            if one.name != checkpoint.name:  # the warm start, which the run only stores
                ledger.announce_nowait(0, one.name, checkpoints.hash_checkpoint(one))
        ledger.publish_nowait(at, checkpoint.name, checkpoints.hash_checkpoint(child.checkpoints / checkpoint.name))
    child.set_status("created", step=at)
    return child


def changed(before: Config, after: Config) -> dict[str, tuple[Json, Json]]:
    """Return the settings that differ, except for the run's location, as (before, after) keyed by key path."""
    old, new = _flat(before), _flat(after)
    return {
        key: (old.get(key), new.get(key))
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and key not in ("run.name", "run.runs_dir")
    }


def _flat(config: Config) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for section, values in config.model_dump(mode="json").items():
        if isinstance(values, dict):
            found |= {f"{section}.{key}": value for key, value in values.items()}
    return found


def _refuse(before: Config, after: Config, different: Mapping[str, tuple[Json, Json]]) -> None:
    for key, (old, new) in different.items():
        why = FIXED.get(key) or FIXED.get(key.partition(".")[0])
        if why is not None:
            raise UsageError(
                f"a branch cannot change {key} from {old!r} to {new!r}: {why}. Leave this change out, or train the "
                "recipe with it from the start."
            )
    if before.model.trained_weights == "lora" and after.model.lora_rank < before.model.lora_rank:
        raise UsageError(
            f"a branch cannot lower model.lora_rank from {before.model.lora_rank} to {after.model.lora_rank}: what the "
            "adapter has learned needs its rank. Raise the rank, or train the recipe with the lower one from the "
            "start."
        )


def _checkpoint(parent: RunFolder, step: int | None) -> Path:
    if step is None:
        return checkpoints.find_newest(parent.checkpoints)
    has_warm_start = (parent.checkpoints / WARM_START).is_dir()
    path = parent.checkpoints / (WARM_START if step == 0 and has_warm_start else checkpoints.format_name(step))
    if not path.is_dir():
        steps = checkpoint_steps(parent)
        has = f"it has checkpoints of steps {', '.join(map(str, steps))}" if steps else "it has no checkpoint"
        more = " To keep more checkpoints, set schedule.keep_checkpoints and schedule.save_every." if steps else ""
        raise DataError(f"{parent.path} has no checkpoint of step {step}; {has}.{more}")
    checkpoints.verify(path)
    return path


def _recipe_file(recipe: Path) -> Path:
    path = recipe / "recipe.toml" if recipe.is_dir() else recipe
    if not path.is_file():
        raise UsageError(f"there is no recipe at {path}; specify the recipe.toml with the code to use, or its folder.")
    return path


def _changed_files(before: RecipeFiles, after: RecipeFiles) -> tuple[str, ...]:
    """Return the files that differ between two recipes, as paths within the recipe's folder. Settings are compared
    separately."""
    old, new = (
        {str(path): sha256(files.folder / path) for path in files.copied if path.suffix != ".toml"}
        for files in (before, after)
    )
    return tuple(sorted(name for name in {*old, *new} if old.get(name) != new.get(name)))
