"""What became of a session's turns: each is sampled, then recorded, then received."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol, final

from sparring.types import Turn


class TurnLog(Protocol):
    """Keeps turns (`sparring.ledger.Ledger`)."""

    def record_turn_nowait(self, rollout_id: str, turn: Turn, *, request_digest: str) -> Future[None]:
        """Queue a turn. Raises what makes it impossible."""
        ...

    async def committed(self, future: Future[None]) -> None:
        """Wait until what was queued is on disk. Raises what kept it from getting there."""
        ...

    def record_not_received_nowait(self, rollout_id: str, turn_ids: Sequence[int]) -> object: ...


@final
class Receipts:
    """The turns of one session, as the log has them.

    A turn is queued for the log in the moment it becomes part of the session, so that no cancellation comes between the
    two. It counts as the policy's play once its answer is received, or another turn continues it; until then it does not,
    however its delivery ends.
    """

    def __init__(self, rollout_id: str, log: TurnLog | None) -> None:
        self._rollout_id = rollout_id
        self._log = log
        self._recording: dict[int, Future[None]] = {}
        self._missing: set[int] = set()
        self._is_closed = False

    def add(self, turn: Turn, *, request_digest: str) -> None:
        """Take a turn that was sampled. Raises what the log raises; then the turn is not taken."""
        if self._log is not None:
            self._recording[turn.id] = self._log.record_turn_nowait(
                self._rollout_id, turn, request_digest=request_digest
            )
        self._missing.add(turn.id)

    async def recorded(self, turn_ids: Iterable[int]) -> None:
        """Wait until these turns are on disk. Raises what the log raises."""
        if self._log is not None:
            for turn_id in turn_ids:
                await self._log.committed(self._recording[turn_id])
                del self._recording[turn_id]

    def set_received(self, turn_ids: Iterable[int]) -> None:
        """The answers of these turns arrived. After the end of the session that changes nothing."""
        if not self._is_closed:
            self._missing.difference_update(turn_ids)

    def is_received(self, turn_id: int) -> bool:
        """Whether its answer arrived."""
        return turn_id not in self._missing

    def counted(self, turns: Sequence[Turn]) -> tuple[Turn, ...]:
        """Of all turns of the session those that are the policy's play."""
        if not self._missing:
            return tuple(turns)
        continued = {turn.parent for turn in turns}
        return tuple(turn for turn in turns if turn.id not in self._missing or turn.id in continued)

    def close(self, turns: Sequence[Turn]) -> None:
        """The session is over, and these were all its turns: record which of them do not count. Closing twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        counted = {turn.id for turn in self.counted(turns)}
        lost = [turn.id for turn in turns if turn.id not in counted]
        if lost and self._log is not None:
            self._log.record_not_received_nowait(self._rollout_id, lost)
