"""Send a run's data to Weights & Biases. No other module imports wandb.

The library does not report what has arrived at the server. Each time a process starts, it therefore reads the whole run
folder again and leaves out the steps that the server already has. Offline, it writes all data into a new folder, which
replaces the folder of the previous process unless that was uploaded.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, Literal, final

import wandb  # pyright: ignore[reportMissingImports]

from sparring.run_folders.encode import encode
from sparring.run_folders.stored import RESUMED, read_placed_trajectories
from sparring.runtime.private_files import create_folder
from sparring.runtime.redaction import build_masker
from sparring.tracking.episode_text import episode_markdown
from sparring.tracking.journal import Document, Findings, Metrics, Piece
from sparring.types import Json, Trajectory

INIT_SECONDS = 30
"""Time limit for the server's answer when a run is opened."""
EPISODES = 8
"""Episodes of each step and split in a table."""
COLUMNS = ("step", "task", "id", "outcome", "reward", "score", "turns", "sampled_tokens", "messages")
_LEVELS = {"error": "ERROR", "warning": "WARN"}
"""The levels of the findings that cause an alert."""
_MAX_TITLE_LENGTH = 63


@final
class WandbReceiver:
    """Sends one run folder to one run at Weights & Biases, which a resumed run continues."""

    def __init__(self, folder: Path, *, project: str, entity: str | None, mode: Literal["online", "offline"]) -> None:
        self._folder, self._project, self._entity = folder, project, entity
        self._mode: Literal["online", "offline"] = mode
        self._run: Any = None

    def open(self, kept: dict[str, Any]) -> bool:
        """Continue the run that `kept` names, or create one and store its id in `kept`."""
        if self._run is not None:
            # The library's process has ended or does not answer.
            self._run = None
            with suppress(Exception):
                wandb.teardown(exit_code=1)
        self._kept, self._mask = kept, build_masker()
        if self._mode == "offline":
            self._remove_folder(kept.get("offline"))
        # Otherwise, the library would leave the files of tables in the home folder.
        os.environ.setdefault("WANDB_DATA_DIR", str(self._folder / "wandb" / "data"))
        create_folder(self._folder / "wandb", exist_ok=True)
        kept.setdefault("run_id", uuid.uuid4().hex[:12])
        manifest = json.loads((self._folder / "manifest.json").read_text("utf-8"))
        self._run = wandb.init(
            project=self._project,
            entity=self._entity,
            mode=self._mode,
            id=kept["run_id"],
            name=self._folder.name,
            resume="allow" if self._mode == "online" else None,
            dir=str(self._folder),
            config=self._masked(manifest["config"]),
            settings=_settings(),
        )
        if self._mode == "offline":
            kept["offline"] = Path(self._run.dir).parent.name
        else:
            kept["url"] = self._run.url
        self._next_step = int(self._run.starting_step)
        self._row: dict[str, Any] = {}
        """The numbers of the newest step, which further lines may complete."""
        self._row_step = -1
        self._num_findings = 0
        return False

    def take(self, piece: Piece) -> None:
        match piece:
            case Metrics():
                for step, time, numbers in piece.lines:
                    self._add_metrics(step, time, numbers)
            case Findings():
                for finding in piece.findings:
                    self._add_finding(finding)
            case Document():
                self._save(piece)

    def finish(self) -> None:
        """Send the last step, set the status, and wait until the server has received everything."""
        self._log_row()
        status = json.loads((self._folder / "status.json").read_text("utf-8"))["status"]
        self._run.summary["status"] = status
        run, self._run = self._run, None
        run.finish(exit_code=1 if status == "failed" else 0)

    def _add_metrics(self, step: int, time: float, numbers: Mapping[str, float]) -> None:
        # Weights & Biases cannot replace a step. It keeps the first values of a step that a resumed run repeats.
        if RESUMED in numbers:
            self._log_row()
        if step < max(self._next_step, self._row_step):
            return
        if step > self._row_step:
            self._log_row()
            self._row_step = step
        finite = {name: value for name, value in numbers.items() if value is not None and isfinite(value)}
        self._row |= finite | {"_timestamp": time}

    def _log_row(self) -> None:
        if self._row:
            self._run.log({**self._row, **dict(self._tables(self._row_step))}, step=self._row_step, commit=True)
            self._row = {}
            self._next_step = self._row_step + 1

    def _tables(self, step: int) -> Iterator[tuple[str, Any]]:
        """Yield a table of some episodes of each split of a step."""
        for path in sorted((self._folder / "trajectories").glob(f"*-{step}.jsonl")):
            episodes = [trajectory for _, _, trajectory in islice(read_placed_trajectories(path), EPISODES)]
            split = path.stem.rpartition("-")[0]
            yield f"episodes/{split}", wandb.Table(list(COLUMNS), [self._cells(step, one) for one in episodes])

    def _cells(self, step: int, trajectory: Trajectory) -> list[Json]:
        return [
            step,
            trajectory.task.id,
            trajectory.id,
            str(trajectory.outcome),
            None if trajectory.reward is None else trajectory.reward.total,
            trajectory.score,
            len(trajectory.turns),
            trajectory.num_sampled_tokens,
            self._mask(episode_markdown(trajectory)),
        ]

    def _add_finding(self, finding: Mapping[str, Json]) -> None:
        """Store the latest finding of each rule in the summary. Warnings and errors cause an alert, once."""
        after = "" if finding.get("step") is None else f" after step {finding['step']}"
        text = self._mask(f"{finding['severity']}{after}: {finding['symptom']} {finding['change']}")
        self._run.summary[f"findings/{finding['rule']}"] = text
        self._num_findings += 1
        is_new = self._mode == "offline" or self._num_findings > self._kept.get("num_alerted", 0)
        if is_new and (level := _LEVELS.get(str(finding["severity"]))):
            self._run.alert(str(finding["rule"])[:_MAX_TITLE_LENGTH], text, level=level)
        self._kept["num_alerted"] = max(self._num_findings, self._kept.get("num_alerted", 0))

    def _save(self, document: Document) -> None:
        copy = Path(self._run.dir) / document.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(self._mask(document.path.read_text("utf-8")), "utf-8")
        self._run.save(str(copy), base_path=self._run.dir, policy="now", glob=False)

    def _masked(self, content: Json) -> Json:
        return json.loads(self._mask(encode(content).decode("utf-8")))

    def _remove_folder(self, name: str | None) -> None:
        """Remove what an earlier process wrote offline, unless it was uploaded."""
        if name is not None and not list((self._folder / "wandb" / name).glob("*.wandb.synced")):
            shutil.rmtree(self._folder / "wandb" / name, ignore_errors=True)


def _settings() -> wandb.Settings:
    """Return settings that keep the library from reading the user's code and measuring its own process."""
    return wandb.Settings(
        init_timeout=INIT_SECONDS,
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        disable_job_creation=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_save_requirements=False,
    )
