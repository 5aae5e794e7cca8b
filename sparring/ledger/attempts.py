"""How attempts at training episodes came out, counted beside whoever writes the ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparring.ledger.reading import opened
from sparring.ledger.states import DiscardReason

INFRASTRUCTURE = (DiscardReason.INFRA_ERROR, DiscardReason.ENV_TIMEOUT)
LOST = (*INFRASTRUCTURE, DiscardReason.CLIENT_ERROR, DiscardReason.REWARD_ERROR)
"""Of attempts that are in no number."""
NOBODYS_FAULT = (DiscardReason.OPERATOR_CANCEL, DiscardReason.REWOUND)
"""Ended from outside; neither played nor failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Training rollouts that came to an end; what was cancelled or is in play is not among them."""

    played: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    """Lost to infrastructure, by reason; each attempt counts."""
    detail: str | None = None
    """What the last of these said."""
    refused: int = 0
    """Lost since the gateway refused what their client sent last; those of validations too, which may end a run before its first
    step."""
    refusal: str | None = None
    """What the last of these was refused for."""
    stale: int = 0
    """Played, and thrown away since they were older than allowed."""


def count_attempts(path: Path) -> Attempts:
    """Of a ledger's file, none when there is no file. Raises as `reading.opened`."""
    if not path.is_file():
        return Attempts()
    with opened(path) as db:
        counts = db.execute(
            "SELECT state, reason, count(*) FROM rollouts WHERE split = 'train' GROUP BY state, reason"
        ).fetchall()
        last = _last_detail(db, "split = 'train'", INFRASTRUCTURE)
        refused_of = "split IN ('train', 'validation')"
        (refused,) = db.execute(
            f"SELECT count(*) FROM rollouts WHERE {refused_of} AND reason = ?", (DiscardReason.CLIENT_ERROR,)
        ).fetchone()
        refusal = _last_detail(db, refused_of, (DiscardReason.CLIENT_ERROR,))
    over = [(state, reason, count) for state, reason, count in counts if reason not in NOBODYS_FAULT]
    failed = {str(reason): count for _, reason, count in over if reason in INFRASTRUCTURE}
    return Attempts(
        played=sum(
            count for state, reason, count in over if reason not in LOST and state in _JUDGED
        ),
        failed=failed,
        detail=last,
        refused=refused,
        refusal=refusal,
        stale=sum(count for _, reason, count in over if reason == DiscardReason.STALE),
    )  # fmt: skip


def _last_detail(db: sqlite3.Connection, where: str, reasons: Sequence[str]) -> str | None:
    """The detail of the last rollout, of those `where`, that was discarded for one of these reasons."""
    places = ", ".join("?" * len(reasons))
    found = db.execute(
        f"SELECT detail FROM rollouts WHERE {where} AND reason IN ({places}) ORDER BY rowid DESC LIMIT 1",
        reasons,
    ).fetchone()
    return None if found is None else found[0]


_JUDGED = ("scored", "admitted", "claimed", "trained", "discarded")
"""States of a rollout that was played to its end."""


def lost_attempts(path: Path, split: str) -> list[tuple[str, str, str]]:
    """Id, reason and detail of each attempt of a split that is in no number. Raises as `reading.opened`."""
    places = ", ".join("?" * len(LOST))
    select = f"SELECT id, reason, detail FROM rollouts WHERE split = ? AND reason IN ({places}) ORDER BY rowid"
    with opened(path) as db:
        return db.execute(select, (split, *LOST)).fetchall()
