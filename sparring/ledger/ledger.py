"""The ledger of a run, which records plans, state changes and turns on disk before a call returns."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Self, final

from sparring.chat.messages import without_half_characters
from sparring.errors import DataError
from sparring.ledger import rows
from sparring.ledger.states import CONTROL_LABEL, FINAL_STATES, SPLITS, DiscardReason, RolloutState, broken_rule
from sparring.ledger.verification import broken_invariants
from sparring.ledger.writer import GroupCommitWriter
from sparring.runtime.json_values import parse_json
from sparring.types import Json, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """One planned rollout in the ledger."""

    id: str
    task_id: str
    attempt: int
    split: str
    state: RolloutState
    step: int | None
    reason: DiscardReason | None
    detail: str | None
    result: Json
    """The last `result` that was passed to `advance`: outcome, rewards and metrics."""


@final
class Ledger:
    """One SQLite file (or `":memory:"`), written by one thread with group commit.

    Methods that write end in `_nowait`; they check the change, queue it and return. `plan`, `advance` and `record_turn`
    are coroutines that also wait until the change is on disk. All methods may be called from any thread.

        with Ledger(run / "ledger.sqlite") as ledger:
            await ledger.plan("r0", task_id="t0", attempt=0)
            await ledger.advance("r0", RolloutState.LEASED)
    """

    def __init__(self, path: Path | str = ":memory:", *, clock: Callable[[], float] = time.time) -> None:
        """Open or create `path`; `clock` returns the timestamps of events, in seconds since 1970. Raises the errors of
        `rows.open_file`."""
        self._clock = clock
        connection, known = rows.open_file(path)
        self._writer = GroupCommitWriter(connection)
        # Guards the copies below and the order of the queue, so that a state is checked and its change is queued in one
        # step.
        self._lock = threading.Lock()
        self._states = {id: (RolloutState(state), split) for id, state, split, _ in known}
        self._steps: dict[str, int] = {id: step for id, _, _, step in known if step is not None}
        """Steps of claimed and trained rollouts."""
        self._claimed = {id for id, state, _, step in known if state == RolloutState.CLAIMED and step is not None}
        self._num_ids: dict[str, dict[int, int]] = {}
        """Number of prompt and answer ids of each turn, by running rollout and turn. A turn that continues another turn
        inherits its ids."""

    def plan_nowait(self, rollout_id: str, *, task_id: str, attempt: int, split: str = "train") -> Future[None]:
        """Record a new rollout. Raises DataError for a known id or an unknown split."""
        if split not in SPLITS:
            raise DataError(f"Split {split!r} of rollout {rollout_id} is unknown; use one of {', '.join(SPLITS)}.")
        with self._lock:
            if rollout_id in self._states:
                raise DataError(f"Rollout {rollout_id} is already planned; give every attempt its own id.")
            self._states[rollout_id] = (RolloutState.PLANNED, split)
            now = self._clock()
            return self._writer.submit(lambda db: rows.insert_rollout(db, rollout_id, task_id, attempt, split, now))

    async def plan(self, rollout_id: str, *, task_id: str, attempt: int, split: str = "train") -> None:
        """Call `plan_nowait`, and wait until the change is on disk."""
        await self._writer.committed(self.plan_nowait(rollout_id, task_id=task_id, attempt=attempt, split=split))

    def advance_nowait(
        self,
        rollout_id: str,
        state: RolloutState,
        *,
        step: int | None = None,
        reason: DiscardReason | None = None,
        detail: str | None = None,
        result: Json = None,
    ) -> Future[None]:
        """Move a rollout to its next state. `result` is a JSON value to store with the rollout; None keeps the stored
        value.

        Raises DataError for an unknown rollout and for a transition that `states.broken_rule` forbids.
        """
        text = None if result is None else json.dumps(result)
        detail = None if detail is None else without_half_characters(detail)
        with self._lock:
            before, split = self._known(rollout_id)
            broken = broken_rule(before, state, split=split, step=step, reason=reason)
            if broken is not None:
                raise DataError(f"Rollout {rollout_id}: {broken}.")
            self._enter(rollout_id, state, step)
            if state is not RolloutState.RUNNING:
                self._num_ids.pop(rollout_id, None)
            now = self._clock()
            return self._writer.submit(
                lambda db: rows.update_rollout(db, rollout_id, state, step, reason, detail, text, now)
            )

    async def advance(
        self,
        rollout_id: str,
        state: RolloutState,
        *,
        step: int | None = None,
        reason: DiscardReason | None = None,
        detail: str | None = None,
        result: Json = None,
    ) -> None:
        """Call `advance_nowait`, and wait until the change is on disk."""
        future = self.advance_nowait(rollout_id, state, step=step, reason=reason, detail=detail, result=result)
        await self._writer.committed(future)

    def announce_nowait(self, step: int, checkpoint: str, digest: str) -> Future[None]:
        """Record that a checkpoint of `step` is about to get its final name. `digest` is the hash of its manifest. A
        checkpoint without this record does not belong to this run."""
        now = self._clock()
        return self._writer.submit(lambda db: rows.announce(db, step, checkpoint, digest, now))

    def publish_nowait(self, step: int, checkpoint: str, digest: str | None = None) -> Future[None]:
        """Record that a checkpoint of `step` is on disk. Rollouts that were claimed for `step` or an earlier step
        change to the state `trained`."""
        with self._lock:
            # A search through all rollouts would take longer with each step of a long run.
            claimed = [rollout_id for rollout_id in self._claimed if self._steps[rollout_id] <= step]
            for rollout_id in claimed:
                self._enter(rollout_id, RolloutState.TRAINED, self._steps[rollout_id])
            now = self._clock()
            return self._writer.submit(lambda db: rows.publish(db, claimed, step, checkpoint, digest, now))

    def rewind_nowait(
        self, step: int, checkpoint: str, *, keep: Collection[str] = (), detail: str = "the run was resumed"
    ) -> Future[None]:
        """Record that the run continues from the checkpoint of `step`.

        Unfinished rollouts, and rollouts that were trained on after `step`, are discarded with the reason `rewound`.
        Admitted rollouts in `keep` stay admitted, and claimed rollouts in `keep` become admitted again.

        Evaluations on held-out tasks and of a control are not affected, because they may run at the same time.
        """
        with self._lock:
            changes: list[tuple[str, str]] = []
            for rollout_id, (state, split) in self._states.items():
                is_lost = state is RolloutState.TRAINED and self._steps[rollout_id] > step
                is_elsewhere = split == "held_out" or rollout_id.startswith(f"validation/{CONTROL_LABEL}")
                if is_elsewhere or (state in FINAL_STATES and not is_lost):
                    continue
                if rollout_id not in keep or state not in (RolloutState.ADMITTED, RolloutState.CLAIMED):
                    changes.append((rollout_id, RolloutState.DISCARDED))
                elif state is RolloutState.CLAIMED:
                    changes.append((rollout_id, RolloutState.ADMITTED))
            for rollout_id, state in changes:
                self._enter(rollout_id, RolloutState(state), None)
                self._num_ids.pop(rollout_id, None)
            now = self._clock()
            return self._writer.submit(lambda db: rows.rewind(db, step, checkpoint, changes, detail, now))

    def keep_nowait(self, rollout_id: str, content: bytes) -> Future[None]:
        """Store a whole episode until its rollout is trained on or discarded, so that a resumed run can train on the
        episode."""
        with self._lock:
            self._known(rollout_id)
            return self._writer.submit(lambda db: rows.insert_kept(db, rollout_id, content))

    def kept(self) -> dict[str, bytes]:
        """Return the episodes stored by `keep_nowait` for rollouts that have been neither trained on nor discarded."""
        return dict(self._writer.submit(rows.select_kept).result())

    def record_turn_nowait(self, rollout_id: str, turn: Turn, *, request_digest: str = "") -> Future[None]:
        """Store a turn with all its tokens. Of the prompt, only the ids that are not in the parent turn are stored.

        Raises DataError if the rollout is unknown or not running.
        """
        with self._lock:
            state, _ = self._known(rollout_id)
            if state is not RolloutState.RUNNING:
                raise DataError(
                    f"Rollout {rollout_id} is {state}. Turns can only be recorded while a rollout is running."
                )
            num_ids = self._num_ids.setdefault(rollout_id, {})
            num_inherited = 0 if turn.parent is None else num_ids.get(turn.parent)
            num_ids[turn.id] = len(turn.prompt_ids) + len(turn.token_ids)
            return self._writer.submit(lambda db: rows.insert_turn(db, rollout_id, turn, num_inherited, request_digest))

    async def record_turn(self, rollout_id: str, turn: Turn, *, request_digest: str = "") -> None:
        """Call `record_turn_nowait`, and wait until the turn is on disk."""
        await self.committed(self.record_turn_nowait(rollout_id, turn, request_digest=request_digest))

    async def committed(self, future: Future[None]) -> None:
        """Wait until a change that a `nowait` method queued is on disk. Raises ServiceError if the change could not be
        written."""
        await self._writer.committed(future)

    def record_not_received_nowait(self, rollout_id: str, turn_ids: Sequence[int]) -> Future[None]:
        """Record that the answers of these turns were not received, so that the turns are not part of the rollout.

        Raises DataError for an unknown rollout.
        """
        with self._lock:
            self._known(rollout_id)
            return self._writer.submit(lambda db: rows.update_not_received(db, rollout_id, turn_ids))

    def flush(self) -> None:
        """Wait until everything queued so far is on disk."""
        self._writer.submit(lambda _: None).result()

    # Reads run on the writer's thread, so that a reader sees every write that was queued before.

    def state(self, rollout_id: str) -> RolloutState:
        """Return the current state. Raises DataError for an unknown rollout."""
        with self._lock:
            return self._known(rollout_id)[0]

    def ids(self, state: RolloutState) -> list[str]:
        """Return the ids of the rollouts in a state, oldest first. This method does not wait for the disk."""
        with self._lock:
            return [rollout_id for rollout_id, (now, _) in self._states.items() if now is state]

    def counts(self, split: str | None = None) -> dict[str, int]:
        """Return the number of rollouts in each state and, for discarded rollouts, under "discarded/<reason>".

        "planned_total" is the number of all rollouts.
        """
        counts: dict[str, int] = dict.fromkeys(RolloutState, 0)
        for state, reason, count in self._writer.submit(lambda db: rows.select_counts(db, split)).result():
            counts[state] += count
            if reason is not None:
                counts[f"{state}/{reason}"] = count
        counts["planned_total"] = sum(counts[state] for state in RolloutState)
        return counts

    def token_counts(self, split: str | None = None) -> dict[str, int]:
        """Return the number of sampled tokens for each use of tokens.

        Tokens in a trained rollout are "trained" or "untrained/<reason>". All other tokens are "discarded/<reason>",
        "evaluated" or "pending", depending on the state of their rollout. These numbers add up to "sampled_total".
        """
        counts: Counter[str] = Counter({"trained": 0, "sampled_total": 0})
        found = self._writer.submit(lambda db: rows.select_token_counts(db, split)).result()
        for state, discarded, untrained, num_tokens in found:
            match RolloutState(state):
                case RolloutState.TRAINED:
                    fate = "trained" if untrained is None else f"untrained/{untrained}"
                case RolloutState.DISCARDED:
                    fate = f"discarded/{discarded}"
                case RolloutState.EVALUATED:
                    fate = "evaluated"
                case _:
                    fate = "pending"
            counts[fate] += num_tokens
            counts["sampled_total"] += num_tokens
        return dict(counts)

    def rollouts(self, *, state: RolloutState | None = None, split: str | None = None) -> list[RolloutRecord]:
        """Return all rollouts, or the rollouts in one state or split, in the order in which they were planned."""
        found = self._writer.submit(lambda db: rows.select_rollouts(db, state, split)).result()
        return [
            RolloutRecord(
                id=id,
                task_id=task_id,
                attempt=attempt,
                split=split_,
                state=RolloutState(state_),
                step=step,
                reason=None if reason is None else DiscardReason(reason),
                detail=detail,
                result=None if result is None else parse_json(result),
            )
            for id, task_id, attempt, split_, state_, step, reason, detail, result in found
        ]

    def consumed(self) -> dict[int, list[str]]:
        """Return the rollouts that each step consumed, in order, without those that a resume discarded.

        The initial weights and this order determine the result of training.
        """
        order: dict[int, list[str]] = {}
        for step, rollout_id in self._writer.submit(rows.select_consumed).result():
            order.setdefault(step, []).append(rollout_id)
        return order

    def load_turns(self, rollout_id: str) -> tuple[Turn, ...]:
        """Return the turns of a rollout, ordered by id, with whole prompts. Log-probabilities are 32-bit floats."""
        return self._writer.submit(lambda db: rows.select_turns(db, rollout_id)).result()

    def fingerprints(self) -> dict[int, str]:
        """Return the content hash of the weights for each version of the weights.

        The hashes come from those turns of claimed or trained rollouts that were sampled with a single version.
        """
        found = self._writer.submit(rows.select_fingerprints).result()
        runs = ((parse_json(versions), fingerprint) for versions, fingerprint in found)
        return {versions[0][0]: fingerprint for versions, fingerprint in runs if len(versions) == 1}

    def published(self) -> list[tuple[int, str]]:
        """Return the step and name of each checkpoint in the run's lineage, oldest first.

        Checkpoints that a resume discarded are left out. The files of older checkpoints may have been deleted.
        """
        return sorted(rows.published_in(self._writer.submit(rows.select_lineage).result()).items())

    @property
    def last_published(self) -> int | None:
        """The step of the newest checkpoint in the run's lineage, or None if the lineage is empty."""
        return max((step for step, _ in self.published()), default=None)

    def verify(self, *, max_steps_off_policy: int | None = None) -> list[str]:
        """Return descriptions of the broken invariants.

        The list is empty if every rollout and turn is accounted for, and no trained turn was off-policy by more than
        `max_steps_off_policy` steps.
        """
        return self._writer.submit(lambda db: broken_invariants(db, max_steps_off_policy)).result()

    @property
    def num_commits(self) -> int:
        """The number of transactions so far. Each transaction costs one disk sync."""
        return self._writer.num_commits

    def close(self) -> None:
        """Write queued changes and close the file. Raises ServiceError if a change could not be written."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await asyncio.to_thread(self.close)

    def _enter(self, rollout_id: str, state: RolloutState, step: int | None) -> None:
        self._states[rollout_id] = (state, self._states[rollout_id][1])
        (self._claimed.add if state is RolloutState.CLAIMED else self._claimed.discard)(rollout_id)
        if step is None:
            self._steps.pop(rollout_id, None)
        else:
            self._steps[rollout_id] = step

    def _known(self, rollout_id: str) -> tuple[RolloutState, str]:
        if rollout_id not in self._states:
            raise DataError(f"Rollout {rollout_id} is not in the ledger; plan it first.")
        return self._states[rollout_id]
