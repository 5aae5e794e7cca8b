"""Tells somebody outside what a run folder holds: in order, each piece once, for as long as it takes.

The folder itself is the journal, so nothing waits in memory. Somebody who cannot be reached is asked again later, and
then told all that happened since. What was told is kept in a file after every piece. When a process dies, or a request
outlasts its deadline, nobody knows whether that one piece arrived: it is told again, under the same names, which is
why those follow from what is told.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sparring.tracking.journal import Piece, untold

POLL_SECONDS = 1.0
"""How often the folder is looked at for something new."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0
"""Until somebody who could not be reached is asked again; doubles each time."""


class Refused(Exception):
    """This piece will never be taken; others may be."""


class Receiver(Protocol):
    """Who is told."""

    def open(self, kept: dict[str, Any]) -> None:
        """Make ready for pieces. `kept` is what this receiver left there before, and is stored with what was told."""
        ...

    def take(self, piece: Piece) -> None:
        """Take a piece; one that comes again changes nothing. Raises Refused for one that it will never take, anything
        else when asking again may help."""
        ...

    def finish(self) -> None:
        """The run is over, and everything was told."""
        ...


@dataclass
class Record:
    """What was told, in a file. Who is told anew (another address) begins with an empty one."""

    path: Path
    address: str
    kept: dict[str, Any] = field(default_factory=dict)
    told: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, address: str) -> Record:
        """What is kept of this address; nothing when the file is of another one, or damaged."""
        try:
            content = json.loads(path.read_text("utf-8"))
            if content["address"] == address:
                return cls(path, address, content["kept"], content["told"])
        except (OSError, ValueError, LookupError, TypeError):
            pass
        return cls(path, address)

    def write(self) -> None:
        """Replace the file, so that whoever reads it sees all of it."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        content = {"address": self.address, "kept": self.kept, "told": self.told}
        temporary.write_text(json.dumps(content) + "\n", "utf-8")
        temporary.replace(self.path)


def deliver(
    run: Path,
    receiver: Receiver,
    record: Record,
    *,
    is_over: Callable[[], bool],
    wait: Callable[[float], object],
    tell: Callable[[str], object],
) -> bool:
    """Tell the receiver all of a run until `is_over` and nothing is left, or the receiver cannot be reached then.

    Whether everything was told. `wait` sleeps, and returns earlier when the run is over; `tell` says what a person
    should know: once when an outage begins and when it ends, once for pieces that are refused.
    """
    is_open, has_refused, pause = False, False, 0.0
    while True:
        # Asked before looking: what was written before the end is then seen.
        over = is_over()
        try:
            if not is_open:
                receiver.open(record.kept)
                record.write()
                is_open = True
            for piece in untold(run, record.told):
                try:
                    receiver.take(piece)
                except Refused as error:
                    if not has_refused:
                        has_refused = True
                        tell(
                            f"it will not take {piece.name} ({error}); that is left out, and so is what it refuses later"
                        )
                record.told[piece.name] = piece.mark
                record.write()
            if over:
                receiver.finish()
        except Exception as error:  # noqa: BLE001 - whatever it was, the run has it all, and asking again may help
            if not pause:
                tell(f"it cannot be reached ({_short(error)}); it is told everything when it can")
            if over:
                return False
            pause = min(LONGEST_WAIT_SECONDS, 2 * pause or FIRST_WAIT_SECONDS)
            wait(pause)
            continue
        if pause:
            tell("it can be reached again, and was told what it had missed")
            pause = 0.0
        if over:
            return True
        wait(POLL_SECONDS)


def _short(error: Exception) -> str:
    """A line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:199]}…"
