"""Write a run's data to an event file for TensorBoard. No other module imports tensorboard.

All data is in one file, which follows from the run folder alone: events carry the times at which their data was
measured. The record states the length of the file, so what a killed process wrote after its last record is cut off and
written again with the same bytes.
"""

# The library is optional, and builds its messages at run time.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, final

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from sparring.run_folders.stored import RESUMED
from sparring.runtime.private_files import create_folder, open_private
from sparring.runtime.redaction import build_masker
from sparring.tracking.episode_text import episode_markdown
from sparring.tracking.journal import Document, Episodes, Findings, Metrics, Piece
from sparring.types import Json

FOLDER = "tensorboard"
"""Folder in the run folder with the event file. TensorBoard shows it as the run `NAME/tensorboard`."""
EPISODES = 2
"""Episodes of each step and split that are written as text."""


@final
class TensorboardReceiver:
    """Writes one event file, which a resumed run continues."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None

    def open(self, kept: dict[str, Any]) -> bool:
        """Open the file as it was at the last record. If it is missing or shorter, start a new one."""
        self.finish()
        self._kept, self._mask = kept, build_masker()
        manifest = json.loads((self._folder / "manifest.json").read_text("utf-8"))
        self._created = float(manifest["created"])
        path = self._folder / FOLDER / f"events.out.tfevents.{int(self._created)}.sparring"
        length = kept.get("bytes", 0)
        has_all = length > 0 and path.is_file() and path.stat().st_size >= length
        create_folder(path.parent, exist_ok=True)
        # The buffer is larger than a piece, so that a reader rarely sees part of an event.
        file = self._file = open_private(path, "r+b" if has_all else "wb", buffering=2**20)
        self._writer = RecordWriter(file)
        if has_all:
            file.truncate(length)
            file.seek(length)
        else:
            kept.pop("config", None)
            self._add(Event(wall_time=self._created, file_version="brain.Event:2"))
            self._flush()
        return has_all

    def take(self, piece: Piece) -> None:
        match piece:
            case Metrics():
                for step, time, numbers in piece.lines:
                    self._add_metrics(step, time, numbers)
            case Findings():
                for finding in piece.findings:
                    self._add_finding(finding)
            case Episodes() if piece.start == 0:
                for number, trajectory in enumerate(piece.trajectories[:EPISODES], start=1):
                    began = trajectory.began if trajectory.began is not None else piece.stored
                    self._add_text(f"episodes/{piece.split} {number}", piece.step, began, episode_markdown(trajectory))
            case Document(file="manifest.json"):
                self._add_config(json.loads(piece.path.read_text("utf-8"))["config"])
        self._flush()

    def finish(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add_metrics(self, step: int, time: float, numbers: Mapping[str, float]) -> None:
        if RESUMED in numbers:
            # Readers drop what earlier attempts wrote for the steps that are repeated now.
            self._add(Event(wall_time=time, step=step + 1, session_log=SessionLog(status=SessionLog.START)))
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in numbers.items()
            if value is not None and isfinite(value)
        ]
        if values:
            self._add(Event(wall_time=time, step=step, summary=Summary(value=values)))

    def _add_finding(self, finding: Mapping[str, Json]) -> None:
        text = f"**{finding['severity']}**: {finding['symptom']} {finding['change']}"
        time = float(finding.get("time") or self._created)
        self._add_text(f"findings/{finding['rule']}", finding.get("step") or 0, time, text)

    def _add_config(self, config: Mapping[str, Any]) -> None:
        """Write the settings as hyperparameters and as text, once for each content."""
        settings = {
            f"{section}.{key}": value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for section, fields in config.items()
            for key, value in (fields or {}).items()
            if value is not None
        }
        masked = {key: self._mask(value) if isinstance(value, str) else value for key, value in settings.items()}
        digest = hashlib.sha256(json.dumps(masked, sort_keys=True).encode()).hexdigest()
        if self._kept.get("config") == digest:
            return
        parameters = hparams_pb(masked, trial_id=self._folder.name, start_time_secs=self._created)
        self._add(Event(wall_time=self._created, summary=parameters))
        rows = "\n".join(f"| {key} | `{str(value).replace('|', '∣')}` |" for key, value in masked.items())
        self._add_text("settings", 0, self._created, f"| setting | value |\n| --- | --- |\n{rows}")
        self._kept["config"] = digest

    def _add_text(self, tag: str, step: int, time: float, text: str) -> None:
        self._add(Event(wall_time=time, step=step, summary=text_pb(tag, self._mask(text))))

    def _add(self, event: Event) -> None:
        self._writer.write(event.SerializeToString(deterministic=True))

    def _flush(self) -> None:
        assert self._file is not None
        self._file.flush()
        self._kept["bytes"] = self._file.tell()
