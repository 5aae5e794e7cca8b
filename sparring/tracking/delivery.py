"""Deliver the contents of a run folder to an external receiver, in order, and retry without limit.

The folder itself is the journal, so no data waits in memory. If the receiver cannot be reached, delivery is retried
later and continues where it stopped. Progress is stored in a file after every piece. If a process dies or a request
times out, it is unknown whether the current piece arrived. The piece is then sent again under the same names. For this
reason, names are derived from the content.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sparring.runtime.json_values import parse_json
from sparring.runtime.private_files import write_private
from sparring.tracking.journal import Piece, undelivered

POLL_SECONDS = 1.0
"""Seconds between two checks of the folder for new data."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0
"""First and longest wait before an unreachable receiver is tried again. The wait doubles after each failure."""


class Refused(Exception):
    """Raised when the receiver will never accept this piece, although it may accept others."""


class Receiver(Protocol):
    """The destination of a run's data, such as a tracking server.

    `deliver` calls `open`, then `take` for each piece, then `finish`:

    deliver(run, MlflowReceiver(run, uri=uri, experiment="shop"), record, is_over=..., wait=..., report=print)
    """

    def open(self, kept: dict[str, Any]) -> bool:
        """Connect, at the start and after each outage. The receiver may store values in `kept`, which is saved with the
        progress and passed again next time.

        Returns whether the receiver still has everything that it accepted earlier. Otherwise, everything is delivered
        again.
        """
        ...

    def take(self, piece: Piece) -> None:
        """Accept a piece. A repeated piece must not change anything.

        Raises Refused for a piece that the receiver will never accept, and any other exception if a retry may help.
        """
        ...

    def finish(self) -> None:
        """End the delivery. It is called when the run is over and everything has been delivered."""
        ...


@dataclass
class Record:
    """The progress of a delivery, stored in a file. A receiver at a different address starts with an empty record."""

    path: Path
    address: str
    kept: dict[str, Any] = field(default_factory=dict)
    delivered: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, address: str) -> Record:
        """Read the progress for this address. It is empty if the file is damaged or belongs to another address."""
        try:
            content = parse_json(path.read_text("utf-8"))
            if content["address"] == address:
                return cls(path, address, content["kept"], content["told"])
        except (OSError, ValueError, LookupError, TypeError):
            pass
        return cls(path, address)

    def write(self) -> None:
        """Replace the file in one step, so that readers never see part of it."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        content = {"address": self.address, "kept": self.kept, "told": self.delivered}
        write_private(temporary, json.dumps(content) + "\n")
        temporary.replace(self.path)


def deliver(
    run: Path,
    receiver: Receiver,
    record: Record,
    *,
    is_over: Callable[[], bool],
    wait: Callable[[float], object],
    report: Callable[[str], object],
) -> bool:
    """Deliver the data of a run. Stop when `is_over` is true and either nothing is left or the receiver cannot be
    reached.

    Returns whether everything was delivered. `wait` sleeps but returns early if the run ends. `report` receives a
    message when an outage starts, when it ends, and when the first piece is refused.
    """
    is_open, has_refused, pause = False, False, 0.0
    while True:
        # This is checked before reading, so that everything written before the end of the run is read.
        over = is_over()
        try:
            if not is_open:
                if not receiver.open(record.kept):
                    record.delivered.clear()
                record.write()
                is_open = True
            for piece in undelivered(run, record.delivered):
                try:
                    receiver.take(piece)
                except Refused as error:
                    if not has_refused:
                        has_refused = True
                        report(f"{piece.name} was refused ({error}) and is left out; later refusals are not reported")
                record.delivered[piece.name] = piece.mark
                record.write()
            if over:
                receiver.finish()
        except Exception as error:  # noqa: BLE001 - the run folder has all data, and a retry may help
            is_open = False
            if not pause:
                report(f"the server cannot be reached ({_short(error)}); all data is sent after the outage")
            if over:
                return False
            pause = min(LONGEST_WAIT_SECONDS, 2 * pause or FIRST_WAIT_SECONDS)
            wait(pause)
            continue
        if pause:
            report("the server can be reached again and has received all missing data")
            pause = 0.0
        if over:
            return True
        wait(POLL_SECONDS)


def _short(error: Exception) -> str:
    """Return one line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:199]}…"
