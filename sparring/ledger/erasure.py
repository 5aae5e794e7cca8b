"""Erases the content of rollouts. The rows stay, with zeros in place of tokens, so that every rollout is still accounted for."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

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
from sparring.runtime.json_values import parse_json

ERASED = "[erased]"
"""The detail of an erased rollout, and the content of its answers."""
_IDS = "(SELECT value FROM json_each(?1))"


def find_rollouts(
    path: Path,
    tasks: Collection[str],
    contains: Callable[[Any], bool],
    matches_tokens: Callable[[str], bool],
    vocabulary: Sequence[str],
) -> Iterator[tuple[str, str]]:
    """Yield the (id, task id) of the rollouts of these tasks, of those whose detail, answers or kept episode `contains` accepts
    as JSON values, and of those with a turn whose decoded tokens match. Rollouts that were erased are left out.

    `vocabulary` has the text of each token id. Raises the errors of `open_ledger`.
    """
    with open_ledger(path) as db:
        rollouts = db.execute("SELECT id, task_id, detail FROM rollouts WHERE detail IS NOT ?", (ERASED,)).fetchall()
        for id, task_id, detail in rollouts:
            if (
                task_id in tasks
                or any(map(contains, (detail, *_values(db, id))))
                or any(map(matches_tokens, _token_texts(db, id, vocabulary)))
            ):
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


def _values(db: sqlite3.Connection, id: str) -> Iterator[Any]:
    """Yield the answers and the kept episode of a rollout as JSON values, or as text if they are damaged."""
    for statement in (
        "SELECT message FROM turns WHERE rollout_id = ?",
        "SELECT CAST(content AS TEXT) FROM kept WHERE rollout_id = ?",
    ):
        for (text,) in db.execute(statement, (id,)):
            try:
                yield parse_json(text)
            except ValueError:
                yield text


def _token_texts(db: sqlite3.Connection, id: str, vocabulary: Sequence[str]) -> Iterator[str]:
    if not vocabulary:
        return
    for blobs in db.execute("SELECT new_prompt_ids, token_ids FROM turns WHERE rollout_id = ?", (id,)):
        for blob in blobs:
            tokens: tuple[int, ...] = unpack("i", blob)
            yield "".join(vocabulary[token] for token in tokens if token < len(vocabulary))
