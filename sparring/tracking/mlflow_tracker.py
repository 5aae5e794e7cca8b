"""Tells MLflow of a run while it goes on, from a process of its own that reads the run folder.

The trainer only starts that process, passes on its warnings, and waits a while for it at the end. A server that is down,
slow, full or wrong therefore costs a run nothing; what was not told stays in the folder, and the next process of the
run tells it: when it is resumed, or `sparring runs sync` is called.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, final

from sparring.config import Config
from sparring.logs import get_logger
from sparring.tracking.run_folder import RunFolder
from sparring.types import Json, TrajectoryGroup

logger = get_logger(__name__)

CLOSE_SECONDS = 60.0
"""How long the end of a run waits for what MLflow has not been told yet."""
REQUEST_SECONDS = 10
MAX_STARTS = 4
"""Of the process, which the system may kill where memory is short."""
COMMAND = (sys.executable, "-P", "-m", "sparring.tracking.mlflow_process")
_REQUESTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_SECONDS),
    # Asking again is what delivery does, and it says so.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # What the process prints is taken for a warning.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""What MLflow's client reads, unless the user has set it."""


@final
class MlflowTracker:
    """One MLflow run for one run folder, which a resumed run continues."""

    def __init__(self, folder: Path, *, uri: str, experiment: str, command: Sequence[str] = COMMAND) -> None:
        """`command` is what is started; another is a fake in tests."""
        self._folder, self._command = folder, command
        self._settings = json.dumps({"folder": str(folder.resolve()), "uri": uri, "experiment": experiment})
        self._is_closed = False
        self._is_given_up = False
        self._is_done = threading.Event()
        self._lock = threading.Lock()
        """Held where a process is started, ended, or told that the run is over."""
        self._process = self._started()
        self._listener = threading.Thread(target=self._listen, name="sparring-mlflow", daemon=True)
        self._listener.start()

    @classmethod
    def open(cls, config: Config, folder: RunFolder) -> Self:
        """As the recipe says: its server, else a sqlite file in the run folder."""
        section = config.tracking
        uri = section.mlflow_uri or f"sqlite:///{(folder.path / 'mlflow.sqlite').resolve()}"
        return cls(folder.path, uri=uri, experiment=section.mlflow_experiment_name)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing to do, as with all that follows: it stands in the run folder."""

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None: ...

    def log_finding(self, finding: Mapping[str, Json]) -> None: ...

    def log_artifact(self, name: str, content: Json) -> None: ...

    def log_status(self, status: str, *, reason: str | None = None) -> None: ...

    def close(self) -> None:
        """Wait until all was told, for at most a minute. Closing again does nothing."""
        self.finish(CLOSE_SECONDS)

    def finish(self, seconds: float) -> bool:
        """Wait until all was told, for at most so long; whether it was. Later calls do nothing."""
        if self._is_closed:
            return self._is_done.is_set()
        with self._lock:
            self._is_closed = True
            _close_input(self._process)
        self._listener.join(seconds)
        with self._lock:
            self._is_given_up = True
            self._process.kill()
        self._listener.join()
        if not self._is_done.is_set():
            logger.warning(
                "tracking: MLflow has not been told everything; it is all in %s. `sparring runs sync %s` tells the rest.",
                self._folder, self._folder,
            )  # fmt: skip
        return self._is_done.is_set()

    def _started(self) -> subprocess.Popen[str]:
        # A group of its own, so that Ctrl-C is not for it; the same session, so that its low priority is one beside the trainer.
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            encoding="utf-8", env={**_REQUESTS, **os.environ}, process_group=0,
        )  # fmt: skip
        assert process.stdin is not None
        with suppress(OSError):  # it has ended, which the listener says
            process.stdin.write(self._settings + "\n")
            process.stdin.flush()
        return process

    def _listen(self) -> None:
        """Until a process has ended by itself. One that was killed is followed by another, which goes on from what was told."""
        for num_left in reversed(range(MAX_STARTS)):
            self._pass_on_what_it_says()
            code = self._process.wait()
            with self._lock:
                _close_input(self._process)
                if code == 0 or self._is_given_up:
                    return
                if code > 0 or not num_left:
                    logger.warning(
                        "tracking: MLflow: the process that tells it ended with code %d; the run goes on, and all is in its "
                        "folder.", code,
                    )  # fmt: skip
                    return
                logger.warning(
                    "tracking: MLflow: the process that tells it was killed (%d); another one goes on.", -code
                )
                try:
                    self._process = self._started()
                except OSError as error:
                    logger.warning(
                        "tracking: MLflow: no process could be started (%s); the run goes on, and all is in its folder.",
                        error,
                    )
                    return
                if self._is_closed:
                    _close_input(self._process)

    def _pass_on_what_it_says(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                match line.strip():
                    case "done":
                        self._is_done.set()
                    case "left":
                        pass
                    case said:
                        logger.warning("tracking: MLflow: %s", said)


def _close_input(process: subprocess.Popen[str]) -> None:
    """Which tells it that the run is over."""
    assert process.stdin is not None
    with suppress(OSError):  # it ended, and what was written to it last has not been read
        process.stdin.close()
