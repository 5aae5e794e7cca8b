"""Whatever clients do, what is trained is what one of them has; and mutants of the code are found."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import sparring.sessions.session as sessions
from sparring.gateway import sending
from sparring.gateway.episode import OpenEpisode
from sparring.sessions import matching
from sparring.sessions.receipts import Receipts
from tests.faults.simulation import VirtualLoop
from tests.gateway import behaviours
from tests.gateway.behaviours import episode

IS_WHOLE = int(os.environ.get("FAULT_SEEDS", "1")) > 1
NUM_SIMULATED = 10_000 if IS_WHOLE else 300
NUM_ON_SOCKETS = 200 if IS_WHOLE else 20
NUM_FOR_MUTANTS = 100


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """A simulated clock; episodes follow each other on it."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        yield runner


@pytest.mark.timeout(1800)
def test_what_is_trained_is_what_a_client_has(loop: asyncio.Runner) -> None:
    for seed in range(NUM_SIMULATED):
        assert loop.run(episode(seed)) == [], f"seed {seed}"


@pytest.mark.timeout(1800)
def test_what_is_trained_is_what_a_client_has_on_sockets() -> None:
    for seed in range(NUM_ON_SOCKETS):
        assert asyncio.run(episode(seed, on_sockets=True)) == [], f"seed {seed}"


def test_the_behaviours_are_met(loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    met: Counter[str] = Counter()

    def count(attempts: Any, turns: Any) -> list[str]:
        numbers = Counter(one.number for one in attempts)
        met["retried"] += sum(count > 1 for count in numbers.values())
        met["cut"] += sum(bool(one.answer) and not one.is_whole for one in attempts)
        met["ended meanwhile"] += sum(one.is_unsure for one in attempts)
        met["heard twice"] += len([one for one in attempts if one.is_whole]) - len(
            {one.answer for one in attempts if one.is_whole}
        )
        continued = {turn.parent for turn in turns}
        received = {one.answer for one in attempts if one.is_whole}
        met["lost"] += sum(not turn.is_received for turn in turns)
        met["two calls"] += sum(len(turn.message.get("tool_calls", ())) == 2 for turn in turns)
        met["lost and continued"] += sum(
            turn.id in continued and behaviours.render_answer(turn.message) not in received for turn in turns
        )
        for turn in turns:
            met[(turn.branch_reason or "none").partition(":")[0]] += 1
        return []

    monkeypatch.setattr(behaviours, "violations", count)
    for seed in range(NUM_FOR_MUTANTS):
        loop.run(episode(seed))
    wanted = ["retried", "cut", "ended meanwhile", "heard twice", "lost", "lost and continued", "two calls", "repeated"]
    assert all(met[name] for name in [*wanted, "edited_history", "side_request"]), met


def count_what_was_sampled(patch: pytest.MonkeyPatch) -> None:
    add = Receipts.add

    def added(self: Any, turn: Any, **options: Any) -> None:
        add(self, turn, **options)
        self.set_received([turn.id])

    patch.setattr(Receipts, "add", added)


def count_what_was_sent_to_a_client_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sending, "_has_hung_up", lambda _: False)


def sample_retries_anew(patch: pytest.MonkeyPatch) -> None:
    deliver = OpenEpisode.deliver

    def delivered(self: Any, *of: Any, is_retry: bool, **options: Any) -> Any:
        return deliver(self, *of, is_retry=False, **options)

    patch.setattr(OpenEpisode, "deliver", delivered)


def lose_what_was_received(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Receipts, "set_received", lambda *_: None)


def take_all_answers_for_equal(patch: pytest.MonkeyPatch) -> None:
    canonical = sessions.canonical_message
    patch.setattr(sessions, "canonical_message", lambda message: (*canonical(message)[:1], "", ()))


def know_answers_only_as_they_were(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(matching, "_is_same_answer", lambda mine, theirs: mine == theirs)


def record_nothing_that_was_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Receipts, "close", lambda *_: None)


@pytest.mark.parametrize(
    ("mutate", "symptom"),
    [
        (count_what_was_sampled, "is trained, and no client has it"),
        (count_what_was_sent_to_a_client_that_is_gone, "is trained, and no client has it"),
        (sample_retries_anew, "answers to . requests are trained"),
        (lose_what_was_received, "was received and is not trained"),
        (take_all_answers_for_equal, "continues"),
        (know_answers_only_as_they_were, "continues"),
        (record_nothing_that_was_lost, "session and ledger disagree|no client has it"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mutant_is_found(
    loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None], symptom: str
) -> None:
    mutate(monkeypatch)
    found: list[str] = []
    for seed in range(NUM_FOR_MUTANTS):
        found += loop.run(episode(seed))
        if any(re.search(symptom, line) for line in found):
            return
    raise AssertionError(f"not found in {NUM_FOR_MUTANTS} episodes; what was: {found[:5]}")
