"""The state of a session's turns: each turn is sampled, then recorded, then received by the client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol, final

from sparring.types import Turn


class TurnLog(Protocol):
    """Stores turns on disk (`sparring.ledger.Ledger`)."""

    def record_turn_nowait(self, rollout_id: str, turn: Turn, *, request_digest: str) -> Future[None]:
        """Queue a turn to be written. Raises an error if this is impossible."""
        ...

    async def committed(self, future: Future[None]) -> None:
        """Wait until a queued turn is on disk. Raises the error that prevented it."""
        ...

    def record_not_received_nowait(self, rollout_id: str, turn_ids: Sequence[int]) -> object:
        """Queue a note that the answers of these turns did not reach the client."""
        ...


@final
class Receipts:
    """Tracks which turns of one session are recorded and received.

    A turn is queued for the log at the moment it becomes part of the session, so a cancellation cannot come between the
    two. It counts as a turn of the episode only once its answer has been received, or once another turn continues it.
    """

    def __init__(self, rollout_id: str, log: TurnLog | None) -> None:
        self._rollout_id = rollout_id
        self._log = log
        self._recording: dict[int, Future[None]] = {}
        self._missing: set[int] = set()
        self._is_closed = False

    def add(self, turn: Turn, *, request_digest: str) -> None:
        """Add a sampled turn and queue it for the log. If the log raises an error, the turn is not added."""
        if self._log is not None:
            self._recording[turn.id] = self._log.record_turn_nowait(
                self._rollout_id, turn, request_digest=request_digest
            )
        self._missing.add(turn.id)

    async def recorded(self, turn_ids: Iterable[int]) -> None:
        """Wait until these turns are on disk. Raises any error of the log."""
        if self._log is not None:
            for turn_id in turn_ids:
                await self._log.committed(self._recording[turn_id])
                del self._recording[turn_id]

    def set_received(self, turn_ids: Iterable[int]) -> None:
        """Mark the answers of these turns as received. This has no effect after the session is closed."""
        if not self._is_closed:
            self._missing.difference_update(turn_ids)

    def is_received(self, turn_id: int) -> bool:
        """Return whether the answer of a turn was received."""
        return turn_id not in self._missing

    def counted(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """Return the turns of the session that count: those that were received or that another turn continues."""
        if not self._missing:
            return tuple(turns)
        continued = {turn.parent for turn in turns}
        return tuple(turn for turn in turns if turn.id not in self._missing or turn.id in continued)

    def close(self, turns: Sequence[Turn]) -> None:
        """End the session and record which of its turns do not count. `turns` are all turns of the session. Closing
        twice is allowed."""
        if self._is_closed:
            return
        self._is_closed = True
        counted = {turn.id for turn in self.counted(turns)}
        lost = [turn.id for turn in turns if turn.id not in counted]
        if lost and self._log is not None:
            self._log.record_not_received_nowait(self._rollout_id, lost)
