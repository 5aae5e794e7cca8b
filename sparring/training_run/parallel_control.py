"""Train the control of a run in a second process, on cores that the training of the run leaves idle."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, final

from sparring.config import Config
from sparring.errors import SparringError
from sparring.models.precision import resolve_device
from sparring.run_folders import RunFolder
from sparring.runtime.machine import available_bytes, granted_processors
from sparring.runtime.server_process import start_in_keeper
from sparring.tracking import Console
from sparring.tracking.process import resident_bytes
from sparring.training_run.control import Control, read_control

POLL_SECONDS: Final = 0.2
STOP_SECONDS: Final = 10.0
OUTPUT: Final = "control.txt"
"""The file in the run folder with the output of the second process."""
SPARE_MEMORY: Final = 4
"""A second process starts only if this many times the memory of the loaded run is free: its model has gradients and the state of
an optimizer, too, and the run itself will need as much."""


@final
class ParallelControl:
    """A process that trains the control while a trainer trains its run, where the machine has room for both.

        with ParallelControl(trainer.config, lambda: trainer.folder, console) as parallel:
            trainer.train()
            control = parallel.wait() or continue_warm_start(trainer.folder.path)

    The process ends with the `with` block.
    """

    def __init__(self, config: Config, find_folder: Callable[[], RunFolder | None], console: Console) -> None:
        """`find_folder` returns the run folder, or None before it is created."""
        self._config, self._find_folder, self._console = config, find_folder, console
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparring-control", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()  # the keeper then kills the command and all its processes
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def wait(self) -> Control | None:
        """Wait until the control of the trained run is complete. Return None if no process trained it, or if the process
        failed, which is announced."""
        folder = self._find_folder()
        if self._process is None:
            self._close()  # nothing starts from now on
        if folder is None or (process := self._process) is None:
            return None
        with self._console.phase("control: the end of its training in the second process"):
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
        control = read_control(folder) if process.returncode == 0 else None
        if control is None:
            self._console.announced(
                f"the second process ended with exit code {process.returncode}, so the control is trained now; the cause is in "
                f"{folder.path / OUTPUT}"
            )
        return control

    def _close(self) -> None:
        """End the thread. If it has started a process, the keeper ends that process, too."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        """Wait until the run is loaded, start the process if there is room for it, and live as long as it may: the keeper ends
        with the thread that started it."""
        try:
            while not self._is_over.wait(POLL_SECONDS):
                folder = self._find_folder()
                if folder is not None and folder.status().get("status") == "running":
                    if has_idle_cores(self._config) and available_bytes() > SPARE_MEMORY * resident_bytes():
                        self._process = _open_process(folder)
                        self._console.announced("a second process trains the control at the same time")
                    break
        except (OSError, SparringError) as error:
            self._console.announced(f"no second process trains the control: {error}")
        self._is_over.wait()


def _open_process(folder: RunFolder) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "sparring", "control", str(folder.path), "--during-training", "--json"]
    return start_in_keeper(command, os.environ, folder.path / OUTPUT)


def has_idle_cores(config: Config) -> bool:
    """Return whether a run leaves as many cores idle as it uses. This is known for a run that samples and learns in its own
    process, on a limited number of cores."""
    threads, is_here = config.run.num_threads, config.engine.type == "torch" and config.learner.type == "here"
    if threads is None or not is_here or resolve_device(config.model.device) != "cpu":
        return False
    return granted_processors() >= 2 * threads
