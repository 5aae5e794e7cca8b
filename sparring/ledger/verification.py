"""Checks of those invariants of the ledger that can be verified from its rows alone.

SQLite concatenates the events of each rollout into one text. Most texts repeat, so each distinct text is checked once.
100,000 rollouts of three turns take two to three seconds (`benchmarks.ledger`). The same queries recompute the
checksums of rows.
"""

from __future__ import annotations

import itertools
import math
import sqlite3
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias, final

from sparring.ledger.reading import open_ledger
from sparring.ledger.rows import (
    ROLLOUT_DIGEST,
    TURN_DIGEST,
    LineageEntry,
    published_in,
    select_lineage,
)
from sparring.ledger.states import DiscardReason, RolloutState, broken_rule
from sparring.runtime.json_values import parse_json
from sparring.types import MAX_REMOVED_MASS, UntrainedReason

_CONSUMED = frozenset({str(RolloutState.CLAIMED), str(RolloutState.TRAINED)})
_REASONS = frozenset(map(str, UntrainedReason))
_ITEM = array("i").itemsize
assert array("f").itemsize == _ITEM

_Event: TypeAlias = tuple[str, str | None, str | None]
"""State, step and reason."""
_Row: TypeAlias = tuple[str, str, str, int | None, str | None, int | None, int]
"""Id, split, state, step, reason and number of turns of a rollout, and 1 if its row is damaged."""


_ROLLOUTS = (
    "SELECT id, split, state, step, reason, num_turns, ifnull(digest <> "
    f"{ROLLOUT_DIGEST.format(detail='detail', result='result', num_turns='num_turns')}, 0) FROM rollouts"
)

_LIVES = (
    "SELECT rollout_id, group_concat(iif(step IS NULL AND reason IS NULL, state, printf('%s/%s/%s', state, step, reason)))"
    " FROM {events} GROUP BY rollout_id"
)
# Nearly all turns are ordinary, and the text of an ordinary turn contains only the version. The text of any other turn
# contains all fields to check. The query uses `printf` because `||` copies the whole text each time, which would take
# most of the time.
_TURNS = f"""
SELECT rollout_id,
    group_concat(
        printf(
            '%d%c%s%c%s%c%s%c%s', id, char(31), parent, char(31), sampling, char(31), fingerprint, char(31), iif(
                branch_reason IS NULL AND policy IS NULL AND untrained_reason IS NULL AND learns
                AND ifnull(digest = {TURN_DIGEST}, 1)
                AND removed_mass <= {MAX_REMOVED_MASS} AND length(sampled_logprobs) = length(token_ids)
                AND substr(versions, instr(versions, ',')) = ',' || (length(token_ids) / {_ITEM}) || ']]',
                substr(versions, 3, instr(versions, ',') - 3),
                json_array(
                    branch_reason IS NOT NULL, policy, untrained_reason, learns, removed_mass, length(token_ids) / {_ITEM},
                    length(sampled_logprobs) / {_ITEM}, json(versions), ifnull(digest <> {TURN_DIGEST}, 0)
                )
            )
        ),
        char(30)
    ),
    CAST(group_concat(sampled_logprobs, '') AS BLOB),
    count(*)
FROM turns GROUP BY rollout_id
"""
_ROLLOUTS_AT_ONCE = 5_000


class Account(NamedTuple):
    """The result of verifying a snapshot of a ledger file."""

    broken: list[str]
    """Descriptions of damage to the file and of broken invariants."""
    lineage: list[LineageEntry]
    last_step: int
    """The newest step that consumed a rollout or has a checkpoint, including lost steps, or 0 if there is none."""


def read_account(path: Path, *, max_steps_off_policy: int | None = None) -> Account:
    """Verify a file that a run may be writing to. The run does not wait, and no file changes.

    Raises the errors of `reading.open_ledger`.
    """
    with open_ledger(path) as db:
        found = [line for (line,) in db.execute("PRAGMA quick_check") if line != "ok"]
        if found:
            return Account([f"the file is damaged: {line}" for line in found], [], 0)
        try:
            broken = broken_invariants(db, max_steps_off_policy)
            lineage = select_lineage(db)
            (claimed,) = db.execute("SELECT ifnull(max(CAST(step AS INTEGER)), 0) FROM events").fetchone()
            return Account(broken, lineage, max([claimed, *(entry.step for entry in lineage)]))
        except (ValueError, TypeError, LookupError) as error:
            return Account([f"a row has content that Sparring never writes: {error!r}"], [], 0)


def verify_file(path: Path, *, max_steps_off_policy: int | None = None) -> list[str]:
    """Return the result of `Ledger.verify` for a file, without changing the file."""
    with open_ledger(path) as db:
        return broken_invariants(db, max_steps_off_policy)


def broken_invariants(db: sqlite3.Connection, max_steps_off_policy: int | None = None) -> list[str]:
    """Return descriptions of all broken invariants of rollouts, their histories, their checkpoints and their turns."""
    rollouts = db.execute(_ROLLOUTS).fetchall()
    broken = _broken_rollouts(db, rollouts, dict(db.execute(_LIVES.format(events="events"))))
    if broken:
        # SQLite usually returns the events of a rollout in the order of the table, but only ORDER BY guarantees an
        # order.
        in_order = "(SELECT * FROM events ORDER BY rollout_id, sequence)"
        broken = _broken_rollouts(db, rollouts, dict(db.execute(_LIVES.format(events=in_order))))
    return [*_broken_tables(db), *broken, *_broken_turns(db, rollouts, max_steps_off_policy)]


def _broken_tables(db: sqlite3.Connection) -> Iterator[str]:
    """Yield a description of rows missing from append-only tables, and of stored episodes that have changed."""
    num_events, last = db.execute("SELECT count(*), ifnull(max(sequence), 0) FROM events").fetchone()
    if num_events != last:
        yield f"events: {last - num_events} of {last} are missing"
    for rollout_id, content, digest in db.execute("SELECT rollout_id, content, digest FROM kept"):
        if digest is not None and zlib.crc32(content) != digest:
            yield f"kept episode of rollout {rollout_id}: its content does not match its checksum"


def _broken_rollouts(db: sqlite3.Connection, rollouts: Sequence[_Row], life_of: dict[str, str]) -> list[str]:
    """Check that the events of each rollout are a legal history that ends in the state of its row, and that its
    checkpoint is still part of the run."""
    lineage = select_lineage(db)
    last_published = max(published_in(lineage), default=-1)

    @cache
    def problems(life: str, split: str, state: str, step: int | None, reason: str | None) -> tuple[str, ...]:
        return tuple(_broken_life(life, split, state, step, reason, last_published))

    rewinds = [(entry.event, entry.step) for entry in lineage if entry.kind == "resumed"]
    claimed_at: Mapping[str, int] = {}
    if rewinds:
        claimed_at = dict(
            db.execute("SELECT rollout_id, max(sequence) FROM events WHERE state = 'claimed' GROUP BY rollout_id")
        )
    broken: list[str] = []
    for rollout_id, split, state, step, reason, _, is_damaged in rollouts:
        if is_damaged:
            broken.append(f"rollout {rollout_id}: the checksum of its row is wrong")
        found = problems(life_of.pop(rollout_id, ""), split, state, step, reason)
        if found:
            broken += [f"rollout {rollout_id}: {problem}" for problem in found]
        if rewinds and step is not None and state in _CONSUMED:
            at = claimed_at.get(rollout_id, 0)
            if any(at <= event and step > resumed_at for event, resumed_at in rewinds):
                broken.append(
                    f"rollout {rollout_id}: {state} for step {step}, but the run has since been resumed from an "
                    "earlier checkpoint"
                )
    return broken + [f"rollout {rollout_id}: it has a history and was never planned" for rollout_id in life_of]


def _broken_life(
    life: str, split: str, state: str, step: int | None, reason: str | None, last_published: int
) -> Iterator[str]:
    """Yield each problem in a rollout's events and in its row. `last_published` is the step of the newest checkpoint,
    or a negative number if there is none."""
    events = [_event(text) for text in life.split(",")] if life else []
    if not events or events[0] != (RolloutState.PLANNED, None, None):
        yield "its history does not begin with planned"
    else:
        for (before, _, _), after in itertools.pairwise(events):
            rule = _broken_rule(before, after, split)
            if rule is not None:
                yield rule
    row = (state, None if step is None else str(step), reason)
    if events and events[-1] != row:
        yield f"the row is {row}, and its history ends with {events[-1]}"
    if step is None or state not in _CONSUMED:
        return
    if (state != RolloutState.CLAIMED) != (step <= last_published):
        newest = "no checkpoint" if last_published < 0 else f"its newest checkpoint at step {last_published}"
        yield f"{state} for step {step}, but the run has {newest}"
    claims = [claimed_for for one, claimed_for, _ in events if one == RolloutState.CLAIMED]
    if claims and claims[-1] != str(step):
        yield f"claimed for step {claims[-1]} and {state} for step {step}"


def _event(text: str) -> _Event:
    state, _, rest = text.partition("/")
    step, _, reason = rest.partition("/")
    return state, step or None, reason or None


def _broken_rule(before: str, after: _Event, split: str) -> str | None:
    state, step, reason = after
    try:
        return broken_rule(
            RolloutState(before),
            RolloutState(state),
            split=split,
            step=None if step is None else int(step),
            reason=None if reason is None else DiscardReason(reason),
        )
    except ValueError as error:
        return str(error)


def _broken_turns(db: sqlite3.Connection, rollouts: Sequence[_Row], max_steps_off_policy: int | None) -> list[str]:
    """Return the problems of turns: missing turns, turns that do not fit their rollout, and impossible token data."""
    broken: list[str] = []
    step_of = {id: step for id, _, _, step, *_ in rollouts}
    # While a rollout runs, its turns are not counted yet.
    missing = {id: number for id, _, state, _, _, number, _ in rollouts if number and state != RolloutState.RUNNING}
    checks = _TurnChecks(max_steps_off_policy)
    known: dict[tuple[str, int | None], list[tuple[int, str]]] = {}
    cursor = db.execute(_TURNS)
    while chunk := cursor.fetchmany(_ROLLOUTS_AT_ONCE):
        are_finite = _is_finite(b"".join([logprobs for _, _, logprobs, _ in chunk]))
        for rollout_id, recorded, logprobs, num_turns in chunk:
            if missing.get(rollout_id) == num_turns:
                del missing[rollout_id]
            key = (recorded, step_of.get(rollout_id))
            found = known.get(key)
            if found is None:
                found = known[key] = list(checks.problems(rollout_id, *key))
            if found:
                broken += [f"turn {turn_id} of rollout {rollout_id}: {problem}" for turn_id, problem in found]
            if rollout_id not in step_of:
                broken.append(f"turns of rollout {rollout_id}: their rollout was never planned")
            if not are_finite and not _is_finite(logprobs):
                broken += [
                    f"turn {turn_id} of rollout {rollout_id}: a log-probability is not finite"
                    for turn_id, own in db.execute(
                        "SELECT id, sampled_logprobs FROM turns WHERE rollout_id = ?", (rollout_id,)
                    )
                    if not _is_finite(own)
                ]
    return broken + [f"rollout {id}: not all of its {number} turns are stored" for id, number in missing.items()]


def _is_finite(logprobs: bytes) -> bool:
    """Return whether all 32-bit numbers are finite. A 64-bit sum of finite 32-bit numbers cannot overflow."""
    return math.isfinite(sum(array("f", logprobs[: len(logprobs) // _ITEM * _ITEM])))


@final
class _TurnChecks:
    """Finds the problems of the recorded turns of rollouts."""

    def __init__(self, max_steps_off_policy: int | None) -> None:
        self._bound = max_steps_off_policy
        self._weights_of: dict[int, tuple[str, str]] = {}
        """The fingerprint of each version that consumed rollouts were sampled with, and the first rollout with that
        fingerprint."""

    def problems(self, rollout_id: str, recorded: str, step: int | None) -> Iterator[tuple[int, str]]:
        """Yield each problem with its turn.

        `recorded` is a text from `_TURNS`. `step` is the step that consumed the rollout, or None.
        """
        lost: dict[int, bool] = {}
        begun: set[str | None] = set()
        turns = [turn.split("\x1f") for turn in recorded.split("\x1e")]
        for id, parent, sampling, fingerprint, rest in sorted(turns, key=lambda turn: int(turn[0])):
            is_branch, policy, untrained, learns, mass, num_tokens, num_logprobs, runs, is_damaged = (
                parse_json(rest)
                if rest.startswith("[")
                else (False, None, None, True, 0.0, 0, 0, [[int(rest), 0]], False)
            )
            problems = ["the checksum of its row is wrong"] if is_damaged else list[str]()
            if not parent:
                if not is_branch and policy in begun:
                    problems.append("it starts a branch without a reason")
            elif int(parent) not in lost:
                problems.append(f"its parent {parent} does not come before it")
            elif lost[int(parent)]:
                problems.append(f"its parent {parent} is recorded as not received")
            if untrained is None:
                problems += _untrainable(sampling, mass, is_learning=bool(learns))
                if step is not None and runs:
                    problems += self._wrong_weights(rollout_id, step, runs, fingerprint)
            elif untrained not in _REASONS:
                problems.append(f"{untrained!r} is not a known reason for not training it")
            if num_logprobs != num_tokens:
                problems.append(f"{num_tokens} tokens and {num_logprobs} log-probabilities")
            if sum(count for _, count in runs) != num_tokens:
                problems.append(f"its versions {runs} do not add up to {num_tokens} tokens")
            lost[int(id)] = untrained == UntrainedReason.NOT_RECEIVED
            begun.add(policy)
            for problem in problems:
                yield int(id), problem

    def _wrong_weights(
        self, rollout_id: str, step: int, runs: Sequence[Sequence[int]], fingerprint: str
    ) -> Iterator[str]:
        oldest = min(version for version, _ in runs)
        if len(runs) == 1:
            known, first = self._weights_of.setdefault(oldest, (fingerprint, rollout_id))
            if known != fingerprint:
                yield (
                    f"sampled with weights {fingerprint}, but version {oldest} has other weights ({known} in rollout "
                    f"{first})"
                )
        if self._bound is not None and not 0 <= step - 1 - oldest <= self._bound:
            yield (
                f"sampled with version {oldest} and consumed by step {step}, which trains version {step - 1}: the bound is "
                f"{self._bound}"
            )


def _untrainable(sampling: str, mass: float, *, is_learning: bool) -> Iterator[str]:
    temperature, top_p, _ = parse_json(sampling)
    if not is_learning:
        yield "its policy does not learn, but no reason for not training it is recorded"
    if temperature == 0 or top_p < 1 or mass > MAX_REMOVED_MASS:
        yield (
            f"sampled at temperature {temperature} and top_p {top_p} with {mass} of the probability removed, but no "
            "reason for not training it is recorded"
        )
