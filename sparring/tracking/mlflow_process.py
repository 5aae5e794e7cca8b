"""The process that exports a run to MLflow: `python -m sparring.tracking.mlflow_process`.

The process reads only the run folder, so that no server can affect the run. A trainer starts the process and closes its
input when the run is over; the input is also closed if the trainer is killed. The first line of input is JSON,
`{"folder", "uri", "experiment"}`. The process prints one message per line for users, and finally `done` or `left` (some
data was not delivered).
"""

from __future__ import annotations

import fcntl
import json
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path

from sparring.runtime.redaction import mask_secrets
from sparring.tracking.delivery import Record, deliver
from sparring.tracking.mlflow_receiver import MlflowReceiver
from sparring.tracking.process import lower_priority

RECORD = "mlflow.json"
"""File in the run folder with the id of the MLflow run and the progress of the delivery."""
LOCK = "mlflow.lock"
"""File that the exporting process locks, so that only one process exports the run at a time."""
DONE, LEFT = "done", "left"


def main() -> None:
    lower_priority()
    warnings.simplefilter("ignore")
    settings = json.loads(sys.stdin.readline())
    folder = Path(settings["folder"])
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, name="sparring-over", daemon=True).start()
    with (folder / LOCK).open("w") as lock:
        # The exporter of a killed trainer may still be sending. The system releases the lock when a process dies.
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_complete = deliver(
            folder,
            MlflowReceiver(folder, uri=settings["uri"], experiment=settings["experiment"]),
            Record.read(folder / RECORD, settings["uri"]),
            is_over=over.is_set,
            wait=over.wait,
            report=_report,
        )
    _report(DONE if is_complete else LEFT)


def _report(text: str) -> None:
    with suppress(OSError):  # The trainer has ended.
        print(mask_secrets(text), flush=True)  # noqa: T201 - the trainer reads this


if __name__ == "__main__":
    main()
