"""A run folder that changes as a training changes it, without a model."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sparring.config import load_config
from sparring.copies.copier import Copier, Pace
from sparring.copies.ownership import claim
from sparring.copies.store import Store
from sparring.ledger import Ledger
from sparring.run_folders import RunFolder
from sparring.training import checkpoint_files
from tests.faults.training import RECIPE

QUICK = Pace(pause=0.01, poll=0.01, idle=2.0, behind=0.5)


class Run:
    """Takes steps: each writes a checkpoint, its records and files that grow and that are replaced."""

    def __init__(self, runs_dir: Path, *, name: str = "run", keep: int = 1) -> None:
        config = load_config(RECIPE, [f"run.runs_dir={runs_dir}"])
        self.folder = RunFolder.create(config, RECIPE, name=name)
        self.ledger = Ledger(self.folder.ledger)
        self.keep, self.step = keep, 0

    def advance(self, *, size: int = 1000) -> None:
        self.step += 1
        digests: list[str] = []

        def announce(name: str, digest: str) -> None:
            self.ledger.announce_nowait(self.step, name, digest).result()
            digests.append(digest)

        def fill(folder: Path) -> None:
            (folder / "weights.safetensors").write_bytes(os.urandom(size))
            (folder / "state.json").write_text(json.dumps({"step": self.step}))

        checkpoint = checkpoint_files.write(self.folder.checkpoints, self.step, fill, announce=announce)
        self.ledger.publish_nowait(self.step, checkpoint.name, digests[0]).result()
        checkpoint_files.prune(self.folder.checkpoints, self.step, keep=self.keep)
        with (self.folder.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": self.step, "time": 0.0, "metrics": {"a": 1.0}}) + "\n")
        self.folder.set_status("running", step=self.step)

    def claim_in(self, url: str, *, is_resumed: bool = False, operation_seconds: float = 60.0) -> Copier:
        store = Store(f"{url}/{self.folder.path.name}", operation_seconds=operation_seconds)
        return Copier(
            self.folder,
            store,
            claim(store, self.folder, is_resumed=is_resumed, say=print, lease_seconds=1.0),
            pace=QUICK,
        )

    def copy(self, url: str, *, is_resumed: bool = False) -> None:
        assert self.claim_in(url, is_resumed=is_resumed).close()


def contents(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return the files of a run folder that a copy has, except for the ledger, with their times and their owner's permissions."""
    left_out = ("lock", "copy.json", "ledger.sqlite")
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode & 0o700)
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(left_out)
    }
