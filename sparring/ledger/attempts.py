"""Counts of finished training attempts, read while another process writes the ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparring.ledger.reading import open_ledger
from sparring.ledger.states import DiscardReason

INFRASTRUCTURE = (DiscardReason.INFRA_ERROR, DiscardReason.ENV_TIMEOUT)
LOST = (*INFRASTRUCTURE, DiscardReason.CLIENT_ERROR, DiscardReason.REWARD_ERROR)
"""Reasons of attempts that are not part of any metric."""
EXTERNAL = (DiscardReason.OPERATOR_CANCEL, DiscardReason.REWOUND)
"""Reasons of attempts that a stop cancelled or a resume discarded. These attempts count neither as completed nor as
failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Counts of training rollouts that have ended. Cancelled rollouts are left out."""

    played: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    """Number of attempts lost to infrastructure errors, by reason."""
    detail: str | None = None
    """Error message of the last lost attempt."""
    refused: int = 0
    """Number of attempts lost because the gateway refused the last request of their client. Validation attempts are
    included because they may end a run before its first step."""
    refusal: str | None = None
    """Reason of the last refusal."""
    stale: int = 0
    """Number of attempts that completed but were discarded because they were older than allowed."""


def count_attempts(path: Path) -> Attempts:
    """Count the attempts in a ledger file. All counts are 0 if the file does not exist. Raises the errors of
    `reading.open_ledger`."""
    if not path.is_file():
        return Attempts()
    with open_ledger(path) as db:
        counts = db.execute(
            "SELECT state, reason, count(*) FROM rollouts WHERE split = 'train' GROUP BY state, reason"
        ).fetchall()
        last = _last_detail(db, "split = 'train'", INFRASTRUCTURE)
        refused_of = "split IN ('train', 'validation')"
        (refused,) = db.execute(
            f"SELECT count(*) FROM rollouts WHERE {refused_of} AND reason = ?", (DiscardReason.CLIENT_ERROR,)
        ).fetchone()
        refusal = _last_detail(db, refused_of, (DiscardReason.CLIENT_ERROR,))
    over = [(state, reason, count) for state, reason, count in counts if reason not in EXTERNAL]
    failed = {str(reason): count for _, reason, count in over if reason in INFRASTRUCTURE}
    return Attempts(
        played=sum(count for state, reason, count in over if reason not in LOST and state in _COMPLETED),
        failed=failed,
        detail=last,
        refused=refused,
        refusal=refusal,
        stale=sum(count for _, reason, count in over if reason == DiscardReason.STALE),
    )


def _last_detail(db: sqlite3.Connection, where: str, reasons: Sequence[str]) -> str | None:
    """Return the detail of the last rollout that matches the SQL condition `where` and was discarded for one of the
    given reasons."""
    places = ", ".join("?" * len(reasons))
    found = db.execute(
        f"SELECT detail FROM rollouts WHERE {where} AND reason IN ({places}) ORDER BY rowid DESC LIMIT 1",
        reasons,
    ).fetchone()
    return None if found is None else found[0]


_COMPLETED = ("scored", "admitted", "claimed", "trained", "discarded")
"""States of a rollout that ran to its end."""


def list_lost_attempts(path: Path, split: str) -> list[tuple[str, str, str]]:
    """Return the id, reason and detail of each attempt of a split that is not part of any metric.

    Raises the errors of `reading.open_ledger`.
    """
    places = ", ".join("?" * len(LOST))
    select = f"SELECT id, reason, detail FROM rollouts WHERE split = ? AND reason IN ({places}) ORDER BY rowid"
    with open_ledger(path) as db:
        return db.execute(select, (split, *LOST)).fetchall()
