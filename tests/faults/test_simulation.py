"""Seeded simulations of runs that die and go on break no invariant, and a mutant of each invariant is found."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparring.ledger import DiscardReason, Ledger, RolloutState, rows
from sparring.rollouts import Curriculum, Scheduler
from sparring.rollouts.resumption import Kept
from tests.faults import simulation
from tests.faults.simulation import Conditions, Deadlock, Process, broken

NUM_SIMULATIONS = 2000 if int(os.environ.get("FAULT_SEEDS", "1")) > 1 else 100
NUM_FOR_MUTANTS = 120


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where the system has such a place: what is simulated is the disk."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)


def test_no_invariant_is_broken_in_any_simulation(folder: Path) -> None:
    for seed in range(NUM_SIMULATIONS):
        assert broken(Conditions.of(seed), folder) == [], f"seed {seed}: {Conditions.of(seed)}"


def test_the_simulations_meet_what_they_are_for(folder: Path) -> None:
    met: dict[str, int] = {}
    for seed in range(NUM_FOR_MUTANTS):
        _, disk = simulation.simulate(Conditions.of(seed), folder)
        with Ledger(disk.ledger) as ledger:
            for name, count in ledger.counts().items():
                met[name] = met.get(name, 0) + count
        met["deaths"] = met.get("deaths", 0) + disk.num_processes - 1
    reasons = ("infra_error", "env_timeout", "rewound", "operator_cancel", "group_incomplete")
    assert all(met.get(f"discarded/{reason}", 0) > 0 for reason in reasons), met
    assert met["deaths"] > NUM_FOR_MUTANTS // 2


def _nothing(*_: object, **__: object) -> None:
    pass


def forget_what_is_in_play(patch: pytest.MonkeyPatch) -> None:
    save = Process.save
    patch.setattr(Process, "save", lambda self, step, curriculum, outstanding: save(self, step, curriculum, ()))


def rewind_nothing(patch: pytest.MonkeyPatch) -> None:
    def rewind(db, step, checkpoint, changes, detail, now):  # type: ignore[no-untyped-def]
        rows._insert_lineage(db, "resumed", step, checkpoint, None, now)

    patch.setattr(rows, "rewind", rewind)


def keep_whatever_was_played(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Kept, "_may_be_trained", lambda *_: True)


def keep_and_play_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Kept, "plans", lambda self, plans: (replace(one, keep=self._keep(one.position)) for one in plans))
    patch.setattr(Kept, "close", _nothing)


def publish_before_the_checkpoint(patch: pytest.MonkeyPatch) -> None:
    save = Process.save

    def early(self, step, curriculum, outstanding):  # type: ignore[no-untyped-def]
        self.ledger.publish_nowait(step, str(step)).result()
        self.ledger.flush()
        save(self, step, curriculum, outstanding)

    patch.setattr(Process, "save", early)


def call_trained_what_no_checkpoint_holds(patch: pytest.MonkeyPatch) -> None:
    release = Scheduler.release

    def released(self, version):  # type: ignore[no-untyped-def]
        self._ledger.publish_nowait(version, "")
        release(self, version)

    patch.setattr(Scheduler, "release", released)
    patch.setattr(Ledger, "rewind_nowait", lambda self, *_, **__: self._writer.submit(_nothing))


def start_too_much(patch: pytest.MonkeyPatch) -> None:
    init = Scheduler.__init__

    def started(self, **options):  # type: ignore[no-untyped-def]
        init(self, **options)
        self._num_slots *= 3

    patch.setattr(Scheduler, "__init__", started)
    patch.setattr(Scheduler, "_is_stale", lambda self, group: False)


def leave_running_what_was_given_up(patch: pytest.MonkeyPatch) -> None:
    discard = Process.discard

    def discarded(self, rollout_id, reason):  # type: ignore[no-untyped-def]
        if reason is not DiscardReason.OPERATOR_CANCEL:
            discard(self, rollout_id, reason)

    patch.setattr(Process, "discard", discarded)


def train_what_failed(patch: pytest.MonkeyPatch) -> None:
    def discarded(self, rollout_id, reason):  # type: ignore[no-untyped-def]
        self.disk.failed.add(rollout_id)

    attempt = Process.attempt

    async def played(self, plan, member, number):  # type: ignore[no-untyped-def]
        found = await attempt(self, plan, member, number)
        if found is not None or self.ledger.state(plan.rollout_id(member, number)) is not RolloutState.RUNNING:
            return found
        rollout_id = plan.rollout_id(member, number)
        for state in (RolloutState.FINISHED, RolloutState.SCORED, RolloutState.ADMITTED):
            self.ledger.advance_nowait(rollout_id, state)
        self.disk.contents[rollout_id] = "nothing"
        return simulation.Trajectory(
            id=rollout_id,
            task=plan.task,
            attempt=member,
            turns=(self.turn(0),),
            messages=(),
            outcome=simulation.Outcome.FINISHED,
            reward=simulation.Reward(total=0.0),
            score=None,
        )

    patch.setattr(Process, "discard", discarded)
    patch.setattr(Process, "attempt", played)


def go_back_in_the_data(patch: pytest.MonkeyPatch) -> None:
    restore = Curriculum.restore

    def restored(self, state):  # type: ignore[no-untyped-def]
        restore(self, {**state, "num_played": max(0, state["num_played"] - 1)})

    patch.setattr(Curriculum, "restore", restored)


def claim_in_another_order(patch: pytest.MonkeyPatch) -> None:
    next_batch = Scheduler.next_batch

    async def reversed_(self):  # type: ignore[no-untyped-def]
        return (await next_batch(self))[::-1]

    patch.setattr(Scheduler, "next_batch", reversed_)


def wait_for_what_never_comes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(simulation, "TIMEOUT_SECONDS", None)
    patch.setattr(asyncio, "sleep", _forever_when_long(asyncio.sleep))


def _forever_when_long(sleep: Callable[..., object]) -> Callable[..., object]:
    async def slept(seconds: float) -> None:
        await (asyncio.Event().wait() if seconds >= 1e9 else sleep(seconds))  # type: ignore[misc]

    return slept


@pytest.mark.parametrize(
    ("mutate", "symptom"),
    [
        (forget_what_is_in_play, "was skipped"),
        (rewind_nothing, "resumed from an earlier checkpoint|at the end|was trained twice|was trained in"),
        (keep_whatever_was_played, "has other weights"),
        (keep_and_play_again, "at the end"),
        (publish_before_the_checkpoint, "was published and is not there"),
        (call_trained_what_no_checkpoint_holds, "was trained twice|was trained in|at the end"),
        (start_too_much, "the bound is"),
        (leave_running_what_was_given_up, "at the end"),
        (train_what_failed, "failed, and was trained"),
        (go_back_in_the_data, "was trained in|was trained twice"),
        (claim_in_another_order, "does not lead to these weights"),
        (wait_for_what_never_comes, "Deadlock"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mutant_of_every_invariant_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None], symptom: str
) -> None:
    mutate(monkeypatch)
    found: list[str] = []
    for seed in range(NUM_FOR_MUTANTS):
        try:
            found += broken(Conditions.of(seed), folder)
        except Deadlock:
            found.append("Deadlock")
        except Exception as error:  # noqa: BLE001 - a mutant that ends in an error is found, too, but not by its symptom
            found.append(repr(error))
        if any(re.search(symptom, line) for line in found):
            return
    raise AssertionError(f"not found in {NUM_FOR_MUTANTS} simulations; what was: {found[:5]}")
