"""The process that tells MLflow of a run: `python -m sparring.tracking.mlflow_process`.

It works from the run folder alone, so that nothing that a server does can reach the run: a trainer starts it and closes
its input when the run is over, which a trainer that is killed does too. Its first line of input is JSON, `{"folder",
"uri", "experiment"}`; what a person should know it prints, a line each, and last `done` or `left` (not all was told).
"""

from __future__ import annotations

import fcntl
import json
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path

from sparring.redaction import masked
from sparring.tracking.delivery import Record, deliver
from sparring.tracking.mlflow_receiver import MlflowReceiver
from sparring.tracking.process import step_back

RECORD = "mlflow.json"
"""In the run folder: which MLflow run it is, and what that was told."""
LOCK = "mlflow.lock"
"""Held by the one process at a time that tells of a run."""
DONE, LEFT = "done", "left"


def main() -> None:
    step_back()
    warnings.simplefilter("ignore")
    settings = json.loads(sys.stdin.readline())
    folder = Path(settings["folder"])
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, name="sparring-over", daemon=True).start()
    with (folder / LOCK).open("w") as lock:
        # That of a trainer which was killed may still be telling the end of it. The system lets go when a process dies.
        fcntl.flock(lock, fcntl.LOCK_EX)
        all_told = deliver(
            folder,
            MlflowReceiver(folder, uri=settings["uri"], experiment=settings["experiment"]),
            Record.read(folder / RECORD, settings["uri"]),
            is_over=over.is_set,
            wait=over.wait,
            tell=_tell,
        )
    _tell(DONE if all_told else LEFT)


def _tell(text: str) -> None:
    with suppress(OSError):  # who started it is gone
        print(masked(text), flush=True)  # noqa: T201 - it reads this


if __name__ == "__main__":
    main()
