"""Export a run to a service during training, from a separate process that reads the run folder.

The trainer only starts that process, logs its messages, and waits a limited time for it at the end. Therefore, a service
that is down, slow, full or misconfigured does not affect the run. Undelivered data stays in the folder, and the next
exporter process sends it when the run is resumed or with `sparring runs sync`.
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
from typing import final

from sparring.runtime.logs import get_logger
from sparring.tracking.services import Service
from sparring.types import Json, TrajectoryGroup

logger = get_logger(__name__)

CLOSE_SECONDS = 60.0
"""Time that a run waits for undelivered data when it ends."""
MAX_STARTS = 4
"""Maximum number of starts of the process. The system may kill the process if memory is short."""
COMMAND = (sys.executable, "-P", "-m", "sparring.tracking.exporter_process")


@final
class Exporter:
    """Sends one run folder to one run of a service, which a resumed run continues."""

    def __init__(
        self, folder: Path, service: Service, *, steps_back: bool = True, command: Sequence[str] = COMMAND
    ) -> None:
        """Start the exporter process with `command`, which tests replace with a fake. If it steps back, it computes only while
        nothing else does, as during a run."""
        self._folder, self._service, self._command = folder, service, command
        self._settings = json.dumps(
            {
                "folder": str(folder.resolve()),
                "service": service.key,
                "address": service.address,
                "options": dict(service.options),
                "redact": list(service.redact),
                "steps_back": steps_back,
            }
        )
        self._is_closed = False
        self._is_abandoned = False
        self._is_done = threading.Event()
        self._lock = threading.Lock()
        """Held while a process is started or ended, or its input is closed."""
        self._process = self._start()
        self._listener = threading.Thread(target=self._listen, name=f"sparring-{service.key}", daemon=True)
        self._listener.start()

    @property
    def title(self) -> str:
        """The name of the service in messages."""
        return self._service.title

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Do nothing, like the following methods: the exporter process reads the run folder."""

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None: ...

    def log_finding(self, finding: Mapping[str, Json]) -> None: ...

    def log_artifact(self, name: str, content: Json) -> None: ...

    def log_status(self, status: str, *, reason: str | None = None) -> None: ...

    def close(self) -> None:
        """Wait for the delivery for at most a minute. Closing again does nothing."""
        self.finish(CLOSE_SECONDS)

    def finish(self, seconds: float) -> bool:
        """Wait for the delivery for at most `seconds`, and return whether it is complete. Later calls do nothing."""
        if self._is_closed:
            return self._is_done.is_set()
        with self._lock:
            self._is_closed = True
            _close_input(self._process)
        self._listener.join(seconds)
        with self._lock:
            self._is_abandoned = True
            self._process.kill()
        self._listener.join()
        if not self._is_done.is_set():
            logger.warning(
                "tracking: %s has not received all data; the data is in %s. Run `sparring runs sync %s` to send "
                "the rest.",
                self._service.title,
                self._folder,
                self._folder,
            )
        return self._is_done.is_set()

    def _start(self) -> subprocess.Popen[str]:
        # The process has its own process group, so that Ctrl-C does not reach it. It stays in the same session, where
        # its low priority counts against the trainer.
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env={**self._service.environment, **os.environ},
            process_group=0,
        )
        assert process.stdin is not None
        with suppress(OSError):  # The process has ended, which the listener reports.
            process.stdin.write(self._settings + "\n")
            process.stdin.flush()
        return process

    def _listen(self) -> None:
        """Wait until a process ends by itself. If it was killed, start another process, which continues the
        delivery."""
        for num_left in reversed(range(MAX_STARTS)):
            self._log_messages()
            code = self._process.wait()
            with self._lock:
                _close_input(self._process)
                if code == 0 or self._is_abandoned:
                    return
                if code > 0 or not num_left:
                    logger.warning(
                        "tracking: %s: the exporter process ended with code %d; the run continues, and all data is in its "
                        "folder.",
                        self._service.title,
                        code,
                    )
                    return
                logger.warning(
                    "tracking: %s: the exporter process was killed (%d); another one continues.",
                    self._service.title,
                    -code,
                )
                try:
                    self._process = self._start()
                except OSError as error:
                    logger.warning(
                        "tracking: %s: the exporter process could not be started (%s); all data is in the run folder.",
                        self._service.title,
                        error,
                    )
                    return
                if self._is_closed:
                    _close_input(self._process)

    def _log_messages(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                match line.strip():
                    case "done":
                        self._is_done.set()
                    case "left":
                        pass
                    case message:
                        logger.warning("tracking: %s: %s", self._service.title, message)


def _close_input(process: subprocess.Popen[str]) -> None:
    """Close the input of the process to signal the end of the run."""
    assert process.stdin is not None
    with suppress(OSError):  # The process ended before it read its last input.
        process.stdin.close()
