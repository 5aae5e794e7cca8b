"""The ledger's invariants, checked from the rows alone."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from array import array

from sparring.ledger.rows import unpacked
from sparring.ledger.states import DiscardReason, RolloutState, broken_rule
from sparring.types import MAX_REMOVED_MASS, UntrainedReason


def broken_invariants(db: sqlite3.Connection) -> list[str]:
    """Every broken invariant in words: of rollouts, their histories, and turns."""
    return [*_broken_rollouts(db), *_broken_turns(db)]


def _broken_rollouts(db: sqlite3.Connection) -> list[str]:
    """Each rollout's events must be a legal life that ends where its row says it is."""
    broken: list[str] = []
    lives: dict[str, list[tuple[str, int | None, str | None]]] = {}
    for rollout_id, state, step, reason in db.execute(
        "SELECT rollout_id, state, step, reason FROM events ORDER BY sequence"
    ):
        lives.setdefault(rollout_id, []).append((state, step, reason))
    for rollout_id, split, *row in db.execute("SELECT id, split, state, step, reason FROM rollouts"):
        life = lives.pop(rollout_id, [])
        if not life or life[0] != (RolloutState.PLANNED, None, None):
            broken.append(f"rollout {rollout_id}: its history does not begin with planned")
            continue
        if tuple(row) != life[-1]:
            broken.append(f"rollout {rollout_id}: the row says {tuple(row)}, its history ends with {life[-1]}")
        for (before, _, _), (after, step, reason) in itertools.pairwise(life):
            try:
                rule = broken_rule(
                    RolloutState(before), RolloutState(after), split=split, step=step,
                    reason=None if reason is None else DiscardReason(reason),
                )  # fmt: skip
            except ValueError as error:
                rule = str(error)
            if rule is not None:
                broken.append(f"rollout {rollout_id}: {rule}")
    return broken + [f"rollout {rollout_id}: it has a history and was never planned" for rollout_id in lives]


def _broken_turns(db: sqlite3.Connection) -> list[str]:
    broken: list[str] = []
    planned = {rollout_id for (rollout_id,) in db.execute("SELECT id FROM rollouts")}
    seen: set[tuple[str, int]] = set()
    begun: set[tuple[str, str | None]] = set()
    lost: set[tuple[str, int]] = set()
    for (
        rollout_id,
        turn_id,
        parent,
        branch_reason,
        token_ids,
        logprobs,
        versions,
        sampling,
        mass,
        untrained,
        policy,
        learns,
    ) in db.execute(
        "SELECT rollout_id, id, parent, branch_reason, token_ids, sampled_logprobs, versions, sampling, removed_mass,"
        " untrained_reason, policy, learns FROM turns ORDER BY rollout_id, id"
    ):
        where = f"turn {turn_id} of rollout {rollout_id}"
        num_tokens = len(token_ids) // array("i").itemsize
        numbers = unpacked("f", logprobs)
        is_first = (rollout_id, policy) not in begun
        if rollout_id not in planned:
            broken.append(f"{where}: its rollout was never planned")
        if parent is not None and (rollout_id, parent) not in seen:
            broken.append(f"{where}: its parent {parent} does not come before it")
        if parent is None and branch_reason is None and not is_first:
            broken.append(f"{where}: it starts a branch without a reason")
        if (rollout_id, parent) in lost:
            broken.append(f"{where}: its parent {parent} is said not to have been received")
        if untrained is not None and untrained not in set(UntrainedReason):
            broken.append(f"{where}: {untrained!r} is no reason for not training it")
        temperature, top_p, _ = json.loads(sampling)
        if untrained is None and not learns:
            broken.append(f"{where}: of a policy that does not learn, and no reason not to train it")
        if untrained is None and (temperature == 0 or top_p < 1 or mass > MAX_REMOVED_MASS):
            broken.append(
                f"{where}: sampled at temperature {temperature} and top_p {top_p} with {mass} of the probability removed, and "
                "no reason not to train it"
            )
        if len(numbers) != num_tokens:
            broken.append(f"{where}: {num_tokens} tokens and {len(numbers)} log-probabilities")
        if sum(count for _, count in json.loads(versions)) != num_tokens:
            broken.append(f"{where}: its versions {versions} do not add up to {num_tokens} tokens")
        if not all(math.isfinite(number) for number in numbers):
            broken.append(f"{where}: a log-probability is not finite")
        seen.add((rollout_id, turn_id))
        if untrained == UntrainedReason.NOT_RECEIVED:
            lost.add((rollout_id, turn_id))
        begun.add((rollout_id, policy))
    return broken
