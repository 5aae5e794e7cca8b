"""The ledger's tables and the SQL statements that write and read them.

Token ids are blobs of 32-bit integers, and log-probabilities are blobs of 32-bit floats. Both are stored in the row of
their turn, so that a turn is committed as a whole or not at all. A turn with a parent stores only the prompt ids that
follow the parent's prompt and answer.

`events` is the append-only history, and `rollouts` holds the current state. `lineage` lists the checkpoints that the
run published or resumed from. `kept` holds whole episodes that are waiting to be trained on, so that a resumed run need
not repeat them. `digest` is a checksum of its row. For a checkpoint, it is the hash of the checkpoint's manifest. It is
null in rows that were written before format 4. `verification` recomputes the checksums.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparring.chat.messages import json_text
from sparring.errors import DataError, ServiceError, SparringError
from sparring.run_folders.formats import require_format
from sparring.types import Sampling, StopReason, Turn, UntrainedReason

FORMAT = 4
_LOCK_SECONDS = 30.0

_SCHEMA = """
CREATE TABLE rollouts (
    id TEXT PRIMARY KEY, task_id TEXT NOT NULL, attempt INTEGER NOT NULL, split TEXT NOT NULL,
    state TEXT NOT NULL, step INTEGER, reason TEXT, detail TEXT, result TEXT
);
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY, time REAL NOT NULL, rollout_id TEXT NOT NULL, state TEXT NOT NULL,
    step INTEGER, reason TEXT
);
CREATE TABLE turns (
    rollout_id TEXT NOT NULL, id INTEGER NOT NULL, parent INTEGER, branch_reason TEXT,
    new_prompt_ids BLOB NOT NULL, token_ids BLOB NOT NULL, sampled_logprobs BLOB NOT NULL,
    versions TEXT NOT NULL, fingerprint TEXT NOT NULL, stop_reason TEXT NOT NULL, sampling TEXT NOT NULL,
    message TEXT NOT NULL, num_computed_tokens INTEGER NOT NULL, seconds REAL NOT NULL, request_digest TEXT NOT NULL,
    removed_mass REAL NOT NULL, untrained_reason TEXT, policy TEXT, learns INTEGER NOT NULL,
    PRIMARY KEY (rollout_id, id)
) WITHOUT ROWID;
"""
_SCHEMA_SINCE_3 = """
CREATE TABLE lineage (
    sequence INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, step INTEGER NOT NULL, checkpoint TEXT NOT NULL,
    event INTEGER NOT NULL
);
CREATE TABLE kept (rollout_id TEXT PRIMARY KEY, content BLOB NOT NULL);
"""
# In format 2, the existing checkpoints include every trained rollout.
_FROM_2_TO_3 = f"""{_SCHEMA_SINCE_3}
INSERT INTO lineage (time, kind, step, checkpoint, event)
    SELECT max(time), 'published', max(step), '', max(sequence) FROM events WHERE state = 'trained' HAVING max(step) >= 0;
"""


_FROM_3_TO_4 = """
ALTER TABLE rollouts ADD COLUMN num_turns INTEGER;
ALTER TABLE rollouts ADD COLUMN digest INTEGER;
ALTER TABLE turns ADD COLUMN digest INTEGER;
ALTER TABLE lineage ADD COLUMN digest TEXT;
ALTER TABLE kept ADD COLUMN digest INTEGER;
"""

_TURN_COLUMNS = (
    "rollout_id", "id", "parent", "branch_reason", "new_prompt_ids", "token_ids", "sampled_logprobs", "versions", "fingerprint",
    "stop_reason", "sampling", "message", "num_computed_tokens", "seconds", "request_digest", "removed_mass",
    "untrained_reason", "policy", "learns",
)  # fmt: skip
TURN_DIGEST = (
    # All numbers are summed into one, because converting each number to text costs as much as the checksum.
    "crc32(CAST((id + 7 * ifnull(parent, -1) + 31 * num_computed_tokens + CAST(1e6 * seconds AS INTEGER)"
    " + CAST(1e6 * removed_mass AS INTEGER) + 1000003 * learns) || rollout_id || ifnull(branch_reason, '')"
    " || ifnull(policy, '') || versions || fingerprint || stop_reason || sampling || request_digest || message"
    " || sampled_logprobs || token_ids || new_prompt_ids AS BLOB))"
)
"""Checksum of a row of `turns`. It leaves out `untrained_reason`, which may be set later."""
ROLLOUT_DIGEST = (
    "crc32(CAST(id || task_id || attempt || split || ifnull({detail}, '') || ifnull({result}, '') || ifnull({num_turns}, 0)"
    " AS BLOB))"
)
"""Checksum of those columns of a row of `rollouts` that `events` lacks."""
_INSERT_TURN = (
    f"INSERT INTO turns SELECT *, {TURN_DIGEST} FROM (SELECT {', '.join(f'? AS {name}' for name in _TURN_COLUMNS)})"
)
_NUM_TURNS = "(SELECT count(*) FROM turns WHERE rollout_id = rollouts.id)"
_UPDATE_ROLLOUT = (
    "UPDATE rollouts SET state = ?1, step = ?2, reason = ?3, detail = coalesce(?4, detail), result = coalesce(?5, result),"
    f" num_turns = {_NUM_TURNS}, digest = "
    + ROLLOUT_DIGEST.format(detail="coalesce(?4, detail)", result="coalesce(?5, result)", num_turns=_NUM_TURNS)
    + " WHERE id = ?6"
)

_NOT_THE_FILE = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_AUTH,
    }
)
"""Primary result codes for problems with the disk, permissions or another process. The ledger itself may be intact."""


class LineageEntry(NamedTuple):
    """One row of `lineage`.

    `kind` is `announced` (a checkpoint is about to get its final name), `published` (the checkpoint is on disk) or
    `resumed` (the run continued from the checkpoint).
    """

    kind: str
    step: int
    checkpoint: str
    event: int
    """Sequence number of the last event before this row."""
    digest: str | None
    """Hash of the checkpoint's manifest."""


def open_file(path: Path | str) -> tuple[sqlite3.Connection, list[tuple[str, str, str, int | None]]]:
    """Open or create a ledger. Return its connection, and the (id, state, split, step) of every rollout.

    Raises DataError for a file that is damaged or not a ledger. Raises ServiceError if the disk, permissions or another
    process prevent opening the file.
    """
    try:
        # An evaluation may write during training. Each process waits for the commits of the other.
        db = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False, timeout=_LOCK_SECONDS)
        register_functions(db)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        upgrade(db, path)
        return db, db.execute("SELECT id, state, split, step FROM rollouts").fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # A damaged schema raises UnicodeDecodeError.
        raise unusable(path, error) from error


def register_functions(db: sqlite3.Connection) -> None:
    """Register the SQL functions that compute digests."""
    db.create_function("crc32", 1, zlib.crc32, deterministic=True)


def upgrade(db: sqlite3.Connection, path: Path | str) -> None:
    """Create the tables of an empty file, or upgrade a file of an older format. Raises DataError for an unknown format."""
    found = db.execute("PRAGMA user_version").fetchone()[0]
    if found == FORMAT:
        return
    if found == 0 and not db.execute("SELECT name FROM sqlite_master").fetchall():
        script = f"{_SCHEMA} {_SCHEMA_SINCE_3} {_FROM_3_TO_4}"
    else:
        require_format(path, found, FORMAT, oldest=2, otherwise="restore the run's own file")
        script = f"{_FROM_2_TO_3 if found == 2 else ''} {_FROM_3_TO_4}"
    db.executescript(f"BEGIN; {script} PRAGMA user_version = {FORMAT}; COMMIT;")


def unusable(path: Path | str, error: Exception) -> SparringError:
    """Return a DataError for a problem with the file, or a ServiceError for a problem with the disk, permissions or
    another process."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _NOT_THE_FILE:
        return ServiceError(
            f"{path} cannot be opened as a ledger: {error}. It is probably intact and was not changed. Check the "
            "disk, its permissions, and other processes that use the file, and try again."
        )
    return DataError(
        f"{path} cannot be read as a ledger: {error}. It is damaged, or it is not a ledger. Restore it from a backup."
    )


def insert_rollout(db: sqlite3.Connection, rollout_id: str, task_id: str, attempt: int, split: str, now: float) -> None:
    db.execute(
        "INSERT INTO rollouts SELECT *, "
        + ROLLOUT_DIGEST.format(detail="detail", result="result", num_turns="num_turns")
        + " FROM (SELECT ? AS id, ? AS task_id, ? AS attempt, ? AS split, 'planned', NULL, NULL, NULL AS detail,"
        " NULL AS result, 0 AS num_turns)",
        (rollout_id, task_id, attempt, split),
    )
    db.execute("INSERT INTO events (time, rollout_id, state) VALUES (?, ?, 'planned')", (now, rollout_id))


def update_rollout(
    db: sqlite3.Connection,
    rollout_id: str,
    state: str,
    step: int | None,
    reason: str | None,
    detail: str | None,
    result: str | None,
    now: float,
) -> None:
    db.execute(_UPDATE_ROLLOUT, (state, step, reason, detail, result, rollout_id))
    db.execute(
        "INSERT INTO events (time, rollout_id, state, step, reason) VALUES (?, ?, ?, ?, ?)",
        (now, rollout_id, state, step, reason),
    )
    if state == "discarded":
        db.execute("DELETE FROM kept WHERE rollout_id = ?", (rollout_id,))


def announce(db: sqlite3.Connection, step: int, checkpoint: str, digest: str, now: float) -> None:
    """Record that a checkpoint is about to get its final name."""
    _insert_lineage(db, "announced", step, checkpoint, digest, now)


def publish(
    db: sqlite3.Connection, claimed: Sequence[str], step: int, checkpoint: str, digest: str | None, now: float
) -> None:
    """Mark claimed rollouts as trained, because a checkpoint of `step` that includes them is on disk."""
    ids = json.dumps(claimed)
    db.execute(
        "INSERT INTO events (time, rollout_id, state, step) SELECT ?, id, 'trained', step FROM rollouts"
        " WHERE id IN (SELECT value FROM json_each(?)) ORDER BY rowid",
        (now, ids),
    )
    db.execute("DELETE FROM kept WHERE rollout_id IN (SELECT value FROM json_each(?))", (ids,))
    db.execute("UPDATE rollouts SET state = 'trained' WHERE id IN (SELECT value FROM json_each(?))", (ids,))
    _insert_lineage(db, "published", step, checkpoint, digest, now)


def rewind(
    db: sqlite3.Connection, step: int, checkpoint: str, changes: Iterable[tuple[str, str]], detail: str, now: float
) -> None:
    """Record that the run continues from `step`. `changes` contains the new state of each affected rollout."""
    for rollout_id, state in changes:
        reason = "rewound" if state == "discarded" else None
        update_rollout(db, rollout_id, state, None, reason, detail if reason else None, None, now)
    _insert_lineage(db, "resumed", step, checkpoint, None, now)


def _insert_lineage(
    db: sqlite3.Connection, kind: str, step: int, checkpoint: str, digest: str | None, now: float
) -> None:
    db.execute(
        "INSERT INTO lineage (time, kind, step, checkpoint, digest, event)"
        " VALUES (?, ?, ?, ?, ?, (SELECT coalesce(max(sequence), 0) FROM events))",
        (now, kind, step, checkpoint, digest),
    )


def select_lineage(db: sqlite3.Connection) -> list[LineageEntry]:
    """Return the rows of `lineage` in the order in which they were written."""
    found = db.execute("SELECT kind, step, checkpoint, event, digest FROM lineage ORDER BY sequence")
    return [LineageEntry(*row) for row in found]


def current_lineage(lineage: Iterable[LineageEntry]) -> list[LineageEntry]:
    """Return the checkpoints that the run is based on or was about to write. Checkpoints that a resume discarded are
    left out."""
    found: list[LineageEntry] = []
    for entry in lineage:
        found = [one for one in found if one.step <= entry.step]
        if entry.kind != "resumed":
            found.append(entry)
    return found


def published_in(lineage: Iterable[LineageEntry]) -> dict[int, str]:
    """Return the names of the checkpoints that the run is based on, keyed by step."""
    return {entry.step: entry.checkpoint for entry in current_lineage(lineage) if entry.kind == "published"}


def select_consumed(db: sqlite3.Connection) -> list[tuple[int, str]]:
    """Return (step, rollout) of claimed and trained rollouts, in the order of their last claim."""
    return db.execute(
        "SELECT rollouts.step, rollouts.id FROM rollouts JOIN events ON events.rollout_id = rollouts.id"
        " WHERE rollouts.state IN ('claimed', 'trained') AND events.state = 'claimed'"
        " GROUP BY rollouts.id ORDER BY max(events.sequence)"
    ).fetchall()


def select_fingerprints(db: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the distinct (versions, fingerprint) of trainable turns in claimed or trained rollouts."""
    return db.execute(
        "SELECT DISTINCT turns.versions, turns.fingerprint FROM turns JOIN rollouts ON rollouts.id = turns.rollout_id"
        " WHERE rollouts.state IN ('claimed', 'trained') AND turns.learns"
    ).fetchall()


def insert_kept(db: sqlite3.Connection, rollout_id: str, content: bytes) -> None:
    db.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", (rollout_id, content, zlib.crc32(content)))


def select_kept(db: sqlite3.Connection) -> list[tuple[str, bytes]]:
    return db.execute("SELECT rollout_id, content FROM kept ORDER BY rowid").fetchall()


def insert_turn(
    db: sqlite3.Connection, rollout_id: str, turn: Turn, num_inherited: int | None, request_digest: str
) -> None:
    """Insert a turn. The parent already stores the first `num_inherited` ids of the prompt.

    `num_inherited` is None if an earlier process recorded the parent.
    """
    if num_inherited is None:
        assert turn.parent is not None
        num_inherited = _num_played(db, rollout_id, turn.parent)
    db.execute(
        _INSERT_TURN,
        (
            rollout_id, turn.id, turn.parent, turn.branch_reason,
            array("i", turn.prompt_ids[num_inherited:]).tobytes(), array("i", turn.token_ids).tobytes(),
            array("f", turn.sampled_logprobs).tobytes(), json_text(turn.versions), turn.fingerprint,
            turn.stop_reason, json_text([turn.sampling.temperature, turn.sampling.top_p, turn.sampling.max_tokens]),
            json_text(turn.message), turn.num_computed_tokens, turn.seconds, request_digest, turn.removed_mass,
            turn.untrained_reason, turn.policy, turn.learns,
        ),
    )  # fmt: skip


def update_not_received(db: sqlite3.Connection, rollout_id: str, turn_ids: Sequence[int]) -> None:
    db.executemany(
        "UPDATE turns SET untrained_reason = ? WHERE rollout_id = ? AND id = ?",
        [(UntrainedReason.NOT_RECEIVED, rollout_id, turn_id) for turn_id in turn_ids],
    )


def _num_played(db: sqlite3.Connection, rollout_id: str, turn_id: int) -> int:
    """Return the number of a turn's prompt and answer ids, summed over its ancestors."""
    # This is one statement because the connection releases and reacquires the interpreter lock for each statement.
    (num_bytes,) = db.execute(
        "WITH RECURSIVE line (parent, bytes) AS ("
        " SELECT parent, length(new_prompt_ids) + length(token_ids) FROM turns WHERE rollout_id = ?1 AND id = ?2"
        " UNION ALL SELECT turns.parent, length(turns.new_prompt_ids) + length(turns.token_ids)"
        " FROM turns JOIN line ON turns.rollout_id = ?1 AND turns.id = line.parent"
        ") SELECT sum(bytes) FROM line",
        (rollout_id, turn_id),
    ).fetchone()
    return num_bytes // array("i").itemsize


def select_counts(db: sqlite3.Connection, split: str | None) -> list[tuple[str, str | None, int]]:
    return db.execute(
        "SELECT state, reason, count(*) FROM rollouts WHERE ?1 IS NULL OR split = ?1 GROUP BY state, reason", (split,)
    ).fetchall()


def select_rollouts(db: sqlite3.Connection, state: str | None, split: str | None) -> list[tuple[Any, ...]]:
    return db.execute(
        "SELECT id, task_id, attempt, split, state, step, reason, detail, result FROM rollouts"
        " WHERE (?1 IS NULL OR state = ?1) AND (?2 IS NULL OR split = ?2) ORDER BY rowid",
        (state, split),
    ).fetchall()


def select_token_counts(db: sqlite3.Connection, split: str | None) -> list[tuple[str, str | None, str | None, int]]:
    """Return rows of (state, reason for discarding, reason for not training, number of sampled tokens)."""
    return db.execute(
        f"SELECT state, reason, untrained_reason, sum(length(token_ids)) / {array('i').itemsize} FROM turns"
        " JOIN rollouts ON rollouts.id = rollout_id WHERE ?1 IS NULL OR split = ?1 GROUP BY 1, 2, 3",
        (split,),
    ).fetchall()


def select_turns(db: sqlite3.Connection, rollout_id: str) -> tuple[Turn, ...]:
    turns: dict[int, Turn] = {}
    for (
        id, parent, branch_reason, new_prompt_ids, token_ids, logprobs, versions, fingerprint, stop_reason, sampling,
        message, num_computed_tokens, seconds, removed_mass, untrained_reason, policy, learns,
    ) in db.execute(
        "SELECT id, parent, branch_reason, new_prompt_ids, token_ids, sampled_logprobs, versions, fingerprint,"
        " stop_reason, sampling, message, num_computed_tokens, seconds, removed_mass, untrained_reason, policy, learns"
        " FROM turns"
        " WHERE rollout_id = ? ORDER BY id",
        (rollout_id,),
    ):  # fmt: skip
        inherited = () if parent is None else turns[parent].prompt_ids + turns[parent].token_ids
        temperature, top_p, max_tokens = json.loads(sampling)
        turns[id] = Turn(
            id=id,
            parent=parent,
            branch_reason=branch_reason,
            prompt_ids=inherited + unpack("i", new_prompt_ids),
            token_ids=unpack("i", token_ids),
            sampled_logprobs=unpack("f", logprobs),
            versions=tuple((version, count) for version, count in json.loads(versions)),
            fingerprint=fingerprint,
            stop_reason=StopReason(stop_reason),
            sampling=Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens),
            message=json.loads(message),
            num_computed_tokens=num_computed_tokens,
            seconds=seconds,
            removed_mass=removed_mass,
            is_received=untrained_reason != UntrainedReason.NOT_RECEIVED,
            policy=policy,
            learns=bool(learns),
        )
    return tuple(turns.values())


def unpack(typecode: str, blob: bytes) -> tuple[Any, ...]:
    """Return the numbers that a blob contains. `typecode` is "i" or "f"."""
    numbers: Sequence[Any] = array(typecode, blob)
    return tuple(numbers)
