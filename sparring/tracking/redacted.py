"""Redacts what a receiver gets: the texts of episodes, findings and evaluations."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from sparring.run_folders.encode import encode
from sparring.runtime.json_values import parse_json
from sparring.runtime.text_rules import redact_json
from sparring.tracking.delivery import Receiver
from sparring.tracking.journal import Document, Episodes, Findings, Piece
from sparring.types import Trajectory, Turn

_SETTINGS = ("run.toml", "manifest.json")
_PAGE = "report.html"


@final
class RedactedReceiver:
    """Passes the pieces of a run on to a receiver, with their texts redacted.

    Recipe and manifest contain settings and are passed on as they are. The page of the report contains episodes in a form that
    cannot be redacted, so it is left out.
    """

    def __init__(self, receiver: Receiver, redact: Callable[[str], str]) -> None:
        self._receiver, self._redact = receiver, redact

    def open(self, kept: dict[str, Any]) -> bool:
        return self._receiver.open(kept)

    def take(self, piece: Piece) -> None:
        match piece:
            case Findings():
                found: Any = redact_json(piece.findings, self._redact)
                self._receiver.take(replace(piece, findings=tuple(found)))
            case Episodes():
                redacted = tuple(redact_trajectory(one, self._redact) for one in piece.trajectories)
                self._receiver.take(replace(piece, trajectories=redacted))
            case Document() if piece.file == _PAGE:
                pass
            case Document() if piece.file not in _SETTINGS:
                self._take_document(piece)
            case _:
                self._receiver.take(piece)

    def finish(self) -> None:
        self._receiver.finish()

    def _take_document(self, piece: Document) -> None:
        text = piece.path.read_text("utf-8")
        is_lines = piece.path.suffix == ".jsonl"
        # The last line of a file that grows may be incomplete.
        rows = [parse_json(row) for row in text.split("\n")[:-1]] if is_lines else [parse_json(text)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / piece.path.name
            path.write_bytes(
                b"".join(encode(redact_json(row, self._redact), indent=not is_lines) + b"\n" for row in rows)
            )
            self._receiver.take(replace(piece, path=path))


def redact_trajectory(trajectory: Trajectory, redact: Callable[[str], str]) -> Trajectory:
    """Return an episode with the texts of its task, messages, turns, results and logs redacted. Tokens are not changed."""

    def walk(value: Any) -> Any:
        return redact_json(value, redact)

    def walk_turns(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        return tuple(replace(turn, message=walk(turn.message)) for turn in turns)

    task, reward = trajectory.task, trajectory.reward
    return replace(
        trajectory,
        id=_redact_id(trajectory.id, redact),
        task=replace(task, id=redact(task.id), messages=tuple(walk(task.messages)), fields=walk(task.fields)),
        messages=tuple(walk(trajectory.messages)),
        turns=walk_turns(trajectory.turns),
        other_turns=walk_turns(trajectory.other_turns),
        error=None if trajectory.error is None else redact(trajectory.error),
        reward=None if reward is None else replace(reward, record=walk(reward.record)),
        final_state=walk(trajectory.final_state),
        artifacts=walk(trajectory.artifacts),
        transitions=tuple(walk(trajectory.transitions)),
    )


def _redact_id(id: str, redact: Callable[[str], str]) -> str:
    """Return the redacted id of an episode, which differs from those of other episodes."""
    redacted = redact(id)
    return id if redacted == id else f"{redacted}#{hashlib.sha256(id.encode()).hexdigest()[:8]}"
