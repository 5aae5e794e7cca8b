"""The process that exports a run to a service such as MLflow: `python -m sparring.tracking.exporter_process`.

The process reads only the run folder, so that no service can affect the run. A trainer starts the process and closes its
input when the run is over; the input is also closed if the trainer is killed. The first line of input is JSON,
`{"folder", "service", "address", "options"}`. The process prints one message per line for users, and finally `done` or
`left` (some data was not delivered).
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sparring.runtime.private_files import open_private
from sparring.runtime.redaction import mask_secrets
from sparring.runtime.text_rules import build_redactor
from sparring.tracking.delivery import Receiver, Record, deliver
from sparring.tracking.process import lower_priority
from sparring.tracking.redacted import RedactedReceiver

RECEIVERS = {
    "mlflow": "sparring.tracking.mlflow_receiver:MlflowReceiver",
    "tensorboard": "sparring.tracking.tensorboard_receiver:TensorboardReceiver",
    "wandb": "sparring.tracking.wandb_receiver:WandbReceiver",
}
"""The class that sends to each service, which is called with the run folder and the options. The record of what was
delivered is `<service>.json` in the run folder, and the process that delivers locks `<service>.lock`."""
DONE, LEFT = "done", "left"


def main() -> None:
    warnings.simplefilter("ignore")
    trainer, sys.stdin = sys.stdin, open(os.devnull, encoding="utf-8")  # noqa: SIM115 - no library may ask questions
    messages, sys.stdout = sys.stdout, sys.stderr  # the trainer reads only the messages
    settings = json.loads(trainer.readline())
    if settings["steps_back"]:
        lower_priority()
    folder, service = Path(settings["folder"]), settings["service"]
    over = threading.Event()

    def listen() -> None:
        trainer.read()
        over.set()

    def report(text: str) -> None:
        with suppress(OSError):  # The trainer has ended.
            print(mask_secrets(text), flush=True, file=messages)

    threading.Thread(target=listen, name="sparring-over", daemon=True).start()
    receiver = _load_receiver(service)(folder, **settings["options"])
    with open_private(folder / f"{service}.lock", "w") as lock:
        # The exporter of a killed trainer may still be sending. The system releases the lock when a process dies.
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_complete = deliver(
            folder,
            RedactedReceiver(receiver, build_redactor(settings["redact"])) if settings["redact"] else receiver,
            Record.read(folder / f"{service}.json", settings["address"]),
            is_over=over.is_set,
            wait=over.wait,
            report=report,
        )
    report(DONE if is_complete else LEFT)


def _load_receiver(service: str) -> Callable[..., Receiver]:
    module, name = RECEIVERS[service].split(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    main()
