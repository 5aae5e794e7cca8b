"""The run that a run was started from: a branch continues a checkpoint, or new training starts from its weights.

The manifest of the child has the entry `origin`, and the first line of its `run.toml` names the parent. Runs are matched
by their ids, so a parent is found after it was renamed or moved, and another run with its name is not taken for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparring.errors import DataError
from sparring.run_folders.run_folder import MANIFEST, RunFolder, write_json
from sparring.types import Json


def record_branch(
    child: RunFolder, parent: RunFolder, step: int, changes: Mapping[str, tuple[Json, Json]], files: Sequence[str]
) -> None:
    """Record the parent run and the step from which a run was branched, and the differences."""
    _record(
        child,
        {
            "run": str(parent.path.resolve()),
            "id": parent.id(),
            "step": step,
            "changes": {key: list(values) for key, values in changes.items()},
            "files": list(files),
        },
    )


def record_weights(child: RunFolder, checkpoint: Path, digest: str) -> None:
    """Record the checkpoint whose weights a run starts from, and its run and step."""
    of_run = checkpoint.parent.name == "checkpoints" and RunFolder.is_run(checkpoint.parents[1])
    _record(
        child,
        {
            "run": str(checkpoint.parents[1] if of_run else checkpoint),
            "id": RunFolder(checkpoint.parents[1]).id() if of_run else None,
            "step": int(checkpoint.name) if checkpoint.name.isdigit() else 0,
            "changes": {},
            "files": [],
            "weights": str(checkpoint),
            "sha256": digest,
        },
    )


def _record(child: RunFolder, origin: Mapping[str, Json]) -> None:
    write_json(child.path / MANIFEST, {**child.manifest(), "origin": dict(origin)})
    how = "starts from the weights" if "weights" in origin else "is a branch"
    # JSON text has no line break, whatever the path contains.
    line = f"# This run {how} of step {origin['step']} of {json.dumps(origin['run'])}, id {origin['id']}.\n"
    child.recipe.write_text(line + child.recipe.read_text("utf-8"), "utf-8")


def read_ids(runs: Iterable[RunFolder]) -> dict[Path, str | None]:
    """Return the id of each run, keyed by its absolute path. It is None if the manifest has none or is damaged."""
    ids: dict[Path, str | None] = {}
    for run in runs:
        try:
            ids[run.path.resolve()] = run.id()
        except (DataError, OSError):
            ids[run.path.resolve()] = None
    return ids


def find_parent(origin: Mapping[str, Any], ids: Mapping[Path, str | None]) -> Path | None:
    """Return the path of the run that an origin names, or None if it is not among the runs whose ids are given.

    An origin from before runs had ids is matched by its path. If a run was copied, the run at the recorded path is taken.
    """
    recorded, known = Path(origin["run"]), origin.get("id")
    same = [path for path, run_id in ids.items() if (run_id == known if known is not None else path == recorded)]
    return recorded if recorded in same else next(iter(same), None)
