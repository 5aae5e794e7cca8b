"""Erases the content of rollouts. The rows stay, with zeros in place of tokens, so that every rollout is still accounted for."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from sparring.errors import UsageError
from sparring.ledger.reading import open_ledger
from sparring.ledger.rows import (
    ROLLOUT_DIGEST,
    TURN_DIGEST,
    open_file,
    register_functions,
    unpack,
    unusable,
)

ERASED = "[erased]"
"""The detail of an erased rollout, and the content of its answers."""
_IDS = "(SELECT value FROM json_each(?1))"


def find_rollouts(
    path: Path, tasks: Collection[str], matches: Callable[[str], bool], vocabulary: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the (id, task id) of the rollouts of these tasks, and of those with a turn whose answer or decoded tokens match.
    Rollouts that were erased are left out.

    `vocabulary` has the text of each token id. Raises the errors of `open_ledger`.
    """
    with open_ledger(path) as db:
        rollouts = db.execute("SELECT id, task_id FROM rollouts WHERE detail IS NOT ?", (ERASED,)).fetchall()
        for id, task_id in rollouts:
            if task_id in tasks or any(map(matches, _texts(db, id, vocabulary))):
                yield id, task_id


def erase_rollouts(path: Path, ids: Collection[str]) -> None:
    """Replace the tokens, log-probabilities and answers of rollouts, and delete their kept episodes, so that the file no
    longer contains them.

    Raises UsageError if another process uses the file, and the errors of `open_file`.
    """
    db, _ = open_file(path)
    with closing(db):
        try:
            db.execute("PRAGMA busy_timeout=1000")
            db.execute("PRAGMA locking_mode=EXCLUSIVE")
            db.execute("PRAGMA secure_delete=ON")
            db.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            raise UsageError(
                f"{path} is in use by another process. Stop the run, evaluation or recording, and try again."
            ) from error
        try:
            _erase(db, json.dumps(sorted(ids)))
            db.execute("COMMIT")
            # The log and the pages that are free still have the old rows.
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise unusable(path, error) from error


def list_erased(path: Path) -> frozenset[str]:
    """Return the ids of the rollouts that were erased. Raises the errors of `open_ledger`."""
    with open_ledger(path) as db:
        return frozenset(id for (id,) in db.execute("SELECT id FROM rollouts WHERE detail = ?", (ERASED,)))


def _erase(db: sqlite3.Connection, ids: str) -> None:
    register_functions(db)
    blobs = ", ".join(
        f"{name} = zeroblob(length({name}))" for name in ("new_prompt_ids", "token_ids", "sampled_logprobs")
    )
    answer = json.dumps({"role": "assistant", "content": ERASED})
    db.execute(f"UPDATE turns SET {blobs}, message = ?2, request_digest = '' WHERE rollout_id IN {_IDS}", (ids, answer))
    db.execute(f"UPDATE turns SET digest = {TURN_DIGEST} WHERE rollout_id IN {_IDS} AND digest IS NOT NULL", (ids,))
    db.execute(f"UPDATE rollouts SET detail = ?2 WHERE id IN {_IDS}", (ids, ERASED))
    digest = ROLLOUT_DIGEST.format(detail="detail", result="result", num_turns="num_turns")
    db.execute(f"UPDATE rollouts SET digest = {digest} WHERE id IN {_IDS} AND digest IS NOT NULL", (ids,))
    db.execute(f"DELETE FROM kept WHERE rollout_id IN {_IDS}", (ids,))


def _texts(db: sqlite3.Connection, id: str, vocabulary: Sequence[str]) -> Iterator[str]:
    for message, *blobs in db.execute(
        "SELECT message, new_prompt_ids, token_ids FROM turns WHERE rollout_id = ?", (id,)
    ):
        yield message
        if vocabulary:
            for blob in blobs:
                tokens: tuple[int, ...] = unpack("i", blob)
                yield "".join(vocabulary[token] for token in tokens if token < len(vocabulary))
