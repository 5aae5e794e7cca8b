"""The ledger's invariants, checked from the rows alone.

Lives and texts repeat by the thousand, so each different one is judged once: 100,000 rollouts take about two seconds.
"""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from array import array
from contextlib import closing
from functools import cache
from pathlib import Path

from sparring.errors import DataError
from sparring.ledger.rows import FORMAT, select_lineage
from sparring.ledger.states import DiscardReason, RolloutState, broken_rule
from sparring.types import MAX_REMOVED_MASS, UntrainedReason

_CONSUMED = (RolloutState.CLAIMED, RolloutState.TRAINED)


def verify_file(path: Path, *, max_steps_off_policy: int | None = None) -> list[str]:
    """As `Ledger.verify`, of a file that a run may be writing: it is seen as of one moment, and the run does not wait.

    Raises DataError for a file that is no ledger of this format.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)) as db:
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found != FORMAT:
                raise DataError(f"{path} has format {found}, this version reads format {FORMAT}; resume its run once.")
            db.execute("BEGIN")
            return broken_invariants(db, max_steps_off_policy)
    except sqlite3.Error as error:
        raise DataError(f"{path} cannot be read as a ledger: {error}.") from error


def broken_invariants(db: sqlite3.Connection, max_steps_off_policy: int | None = None) -> list[str]:
    """Every broken invariant in words: of rollouts, their histories, the checkpoints they rest on, and turns."""
    return [*_broken_rollouts(db), *_broken_turns(db, max_steps_off_policy)]


def _broken_rollouts(db: sqlite3.Connection) -> list[str]:
    """Each rollout's events must be a legal life that ends where its row says it is, on a checkpoint that still counts."""
    broken: list[str] = []
    # Lives by their number: number 0 is the empty one, and each next event leads to another.
    lives: list[tuple[tuple[str, bool, str | None], ...]] = [()]
    following: dict[tuple[int, str, bool, str | None], int] = {}
    life_of: dict[str, int] = {}
    steps: dict[str, int] = {}
    """Of those whose last event names one."""
    claims: dict[str, tuple[int, int]] = {}
    claimed = str(RolloutState.CLAIMED)
    for sequence, rollout_id, state, step, reason in db.execute(
        "SELECT sequence, rollout_id, state, step, reason FROM events ORDER BY sequence"
    ):
        has_step = step is not None
        key = (life_of.get(rollout_id, 0), state, has_step, reason)
        number = following.get(key)
        if number is None:
            number = following[key] = len(lives)
            lives.append((*lives[key[0]], (state, has_step, reason)))
        life_of[rollout_id] = number
        if has_step:
            steps[rollout_id] = step
            if state == claimed:
                claims[rollout_id] = (sequence, step)

    @cache
    def rules_of(life: int, split: str) -> tuple[str, ...]:
        events = lives[life]
        if not events or events[0] != (RolloutState.PLANNED, False, None):
            return ("its history does not begin with planned",)
        return tuple(
            rule
            for (before, _, _), after in itertools.pairwise(events)
            if (rule := _broken_rule(before, after, split)) is not None
        )

    lineage = select_lineage(db)
    published: list[int] = []
    for kind, step, _, _ in lineage:
        published = [*(one for one in published if one <= step), *([step] if kind == "published" else [])]
    last_published = max(published, default=-1)
    consumed = {str(state) for state in _CONSUMED}
    rewinds = [(event, step) for kind, step, _, event in lineage if kind == "resumed"]
    for rollout_id, split, state, step, reason in db.execute("SELECT id, split, state, step, reason FROM rollouts"):
        life = life_of.pop(rollout_id, 0)
        rules = rules_of(life, split)
        if rules:
            broken += [f"rollout {rollout_id}: {rule}" for rule in rules]
        if life:
            last_state, has_step, last_reason = lives[life][-1]
            last_step = steps[rollout_id] if has_step else None
            if (last_state, last_step, last_reason) != (state, step, reason):
                ended = (last_state, last_step, last_reason)
                broken.append(
                    f"rollout {rollout_id}: the row says {(state, step, reason)}, its history ends with {ended}"
                )
        if step is None or state not in consumed:
            continue
        if (state != claimed) != (step <= last_published):
            newest = "there is none" if last_published < 0 else f"the newest is of step {last_published}"
            broken.append(f"rollout {rollout_id}: {state} for step {step}, but of the run's checkpoints {newest}")
        claimed_at, claimed_for = claims.get(rollout_id, (0, step))
        if claimed_for != step:
            broken.append(f"rollout {rollout_id}: claimed for step {claimed_for} and {state} for step {step}")
        if rewinds and any(claimed_at <= event and step > resumed_at for event, resumed_at in rewinds):
            broken.append(f"rollout {rollout_id}: {state} for step {step}, which the run has gone back behind since")
    return broken + [f"rollout {rollout_id}: it has a history and was never planned" for rollout_id in life_of]


@cache
def _broken_rule(before: str, after: tuple[str, bool, str | None], split: str) -> str | None:
    state, has_step, reason = after
    try:
        return broken_rule(
            RolloutState(before), RolloutState(state), split=split, step=1 if has_step else None,
            reason=None if reason is None else DiscardReason(reason),
        )  # fmt: skip
    except ValueError as error:
        return str(error)


def _broken_turns(db: sqlite3.Connection, max_steps_off_policy: int | None) -> list[str]:
    broken: list[str] = []

    @cache
    def tokens_and_oldest(versions: str) -> tuple[int, int | None]:
        runs = json.loads(versions)
        return sum(count for _, count in runs), min((version for version, _ in runs), default=None)

    @cache
    def asked_for(sampling: str) -> tuple[float, float]:
        temperature, top_p, _ = json.loads(sampling)
        return temperature, top_p

    @cache
    def only_version(versions: str) -> int | None:
        runs = json.loads(versions)
        return runs[0][0] if len(runs) == 1 else None

    rollouts: dict[str, int | None] = dict(db.execute("SELECT id, step FROM rollouts"))
    weights_of: dict[int, tuple[str, str]] = {}
    """Of each version that something consumed was sampled with, its fingerprint, and the first turn that says so."""
    reasons = {str(reason) for reason in UntrainedReason}
    not_received = str(UntrainedReason.NOT_RECEIVED)
    problems: list[str]
    current: str | None = None
    seen: set[int] = set()
    lost: set[int] = set()
    begun: set[str | None] = set()
    item = array("i").itemsize
    for (
        rollout_id, turn_id, parent, branch_reason, num_bytes, logprobs, versions, sampling, mass, untrained, policy, learns,
        fingerprint,
    ) in db.execute(
        "SELECT rollout_id, id, parent, branch_reason, length(token_ids), sampled_logprobs, versions, sampling, removed_mass,"
        " untrained_reason, policy, learns, fingerprint FROM turns ORDER BY rollout_id, id"
    ):  # fmt: skip
        if rollout_id != current:
            current, seen, lost, begun = rollout_id, set(), set(), set()
        problems = []
        numbers = array("f", logprobs)
        num_tokens = num_bytes // item
        num_versioned, oldest = tokens_and_oldest(versions)
        if rollout_id not in rollouts:
            problems.append("its rollout was never planned")
        if parent is None:
            if branch_reason is None and policy in begun:
                problems.append("it starts a branch without a reason")
        elif parent not in seen:
            problems.append(f"its parent {parent} does not come before it")
        elif parent in lost:
            problems.append(f"its parent {parent} is said not to have been received")
        if untrained is None:
            temperature, top_p = asked_for(sampling)
            if not learns:
                problems.append("of a policy that does not learn, and no reason not to train it")
            if temperature == 0 or top_p < 1 or mass > MAX_REMOVED_MASS:
                problems.append(
                    f"sampled at temperature {temperature} and top_p {top_p} with {mass} of the probability removed, and no "
                    "reason not to train it"
                )
            step = rollouts.get(rollout_id)
            version = None if step is None else only_version(versions)
            if version is not None:
                known, first = weights_of.setdefault(version, (fingerprint, rollout_id))
                if known != fingerprint:
                    problems.append(
                        f"sampled with weights {fingerprint}, which are not those of version {version} ({known} in rollout "
                        f"{first})"
                    )
            if (
                max_steps_off_policy is not None
                and step is not None
                and oldest is not None
                and not 0 <= step - 1 - oldest <= max_steps_off_policy
            ):
                problems.append(
                    f"sampled with version {oldest} and consumed by step {step}, which trains version {step - 1}: the bound is "
                    f"{max_steps_off_policy}"
                )
        elif untrained not in reasons:
            problems.append(f"{untrained!r} is no reason for not training it")
        if len(numbers) != num_tokens:
            problems.append(f"{num_tokens} tokens and {len(numbers)} log-probabilities")
        if num_versioned != num_tokens:
            problems.append(f"its versions {versions} do not add up to {num_tokens} tokens")
        # Finite 32-bit numbers cannot add up to anything else.
        if not math.isfinite(sum(numbers)):
            problems.append("a log-probability is not finite")
        seen.add(turn_id)
        begun.add(policy)
        if untrained == not_received:
            lost.add(turn_id)
        if problems:
            broken += [f"turn {turn_id} of rollout {rollout_id}: {problem}" for problem in problems]
    return broken
