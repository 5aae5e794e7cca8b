"""The ledger accounts for every rollout and turn, and is durable at one sync a group."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.errors import DataError, ServiceError
from sparring.ledger import DiscardReason, Ledger, RolloutState
from sparring.ledger.attempts import count_attempts
from sparring.ledger.states import FINAL_STATES, TRANSITIONS
from sparring.ledger.verification import read_account
from sparring.types import Sampling, StopReason, Turn

LIFE = [
    RolloutState.LEASED,
    RolloutState.RUNNING,
    RolloutState.FINISHED,
    RolloutState.SCORED,
    RolloutState.ADMITTED,
    RolloutState.CLAIMED,
    RolloutState.TRAINED,
]


ORDINARY = "untrained_reason = NULL, sampling = '[1.0,1.0,8]', versions = '[[3,2]]'"
"""What most turns say, of which the check reads less."""


def turn(id: int, *, parent: int | None = None, prompt: Sequence[int] = (1, 2), branch: str | None = None) -> Turn:
    return Turn(
        id=id, parent=parent, branch_reason=branch, prompt_ids=tuple(prompt), token_ids=(7, 9),
        sampled_logprobs=(-0.5, -0.25), versions=((3, 1), (4, 1)), fingerprint="f", stop_reason=StopReason.STOP,
        sampling=Sampling(temperature=0.5, top_p=0.9, max_tokens=8), message={"role": "assistant", "content": "hi"},
        num_computed_tokens=4, seconds=0.125, removed_mass=0.0005,
    )  # fmt: skip


def live(ledger: Ledger, rollout_id: str, until: RolloutState) -> None:
    """Lead a training rollout through its life up to a state."""
    ledger.plan_nowait(rollout_id, task_id="t", attempt=0)
    for state in LIFE[: LIFE.index(until) + 1]:
        if state is RolloutState.TRAINED:
            ledger.publish_nowait(5, "000005")
        else:
            ledger.advance_nowait(rollout_id, state, step=5 if state is RolloutState.CLAIMED else None)


def test_a_life_ends_trained_and_counts_add_up() -> None:
    with Ledger() as ledger:
        live(ledger, "a", RolloutState.TRAINED)
        live(ledger, "b", RolloutState.SCORED)
        ledger.advance_nowait("b", RolloutState.DISCARDED, reason=DiscardReason.STALE, detail="2 steps late")
        live(ledger, "c", RolloutState.RUNNING)
        counts = ledger.counts()
        assert (counts["trained"], counts["discarded"], counts["discarded/stale"], counts["running"]) == (1, 1, 1, 1)
        assert counts["planned_total"] == 3
        assert ledger.rollouts(state=RolloutState.TRAINED)[0].step == 5
        assert ledger.rollouts(state=RolloutState.DISCARDED)[0].detail == "2 steps late"
        assert ledger.verify() == []


def test_evaluation_rollouts_end_as_evaluated_and_are_never_admitted() -> None:
    with Ledger() as ledger:
        ledger.plan_nowait("e", task_id="t", attempt=0, split="held_out")
        for state in LIFE[:4]:
            ledger.advance_nowait("e", state)
        with pytest.raises(DataError, match="cannot be admitted"):
            ledger.advance_nowait("e", RolloutState.ADMITTED)
        ledger.advance_nowait("e", RolloutState.EVALUATED, result={"score": 1.0})
        assert ledger.rollouts(split="held_out")[0].result == {"score": 1.0}
        assert ledger.counts("train")["planned_total"] == 0
        live(ledger, "t", RolloutState.SCORED)
        with pytest.raises(DataError, match="cannot end as evaluated"):
            ledger.advance_nowait("t", RolloutState.EVALUATED)


@given(st.lists(st.sampled_from(list(RolloutState)), max_size=14))
@settings(max_examples=60, deadline=None)
def test_only_legal_transitions_are_taken(wishes: list[RolloutState]) -> None:
    with Ledger() as ledger:
        ledger.plan_nowait("r", task_id="t", attempt=0)
        now = RolloutState.PLANNED
        for wish in wishes:
            step = 1 if wish in (RolloutState.CLAIMED, RolloutState.TRAINED) else None
            reason = DiscardReason.REWOUND if wish is RolloutState.DISCARDED else None
            if wish in TRANSITIONS[now] and wish is not RolloutState.EVALUATED:
                if wish is RolloutState.TRAINED:
                    ledger.publish_nowait(1, "000001")
                elif now is RolloutState.TRAINED:
                    ledger.rewind_nowait(0, "warm_start")
                else:
                    ledger.advance_nowait("r", wish, step=step, reason=reason)
                now = wish
            else:
                with pytest.raises(DataError, match="Rollout r: "):
                    ledger.advance_nowait("r", wish, step=step, reason=reason)
        assert ledger.state("r") is now
        assert ledger.counts()[now] == 1
        assert ledger.verify() == []


def test_final_states_lead_nowhere_and_all_others_may_be_discarded() -> None:
    for state in RolloutState:
        # What was trained is lost with its checkpoint.
        last = FINAL_STATES - {RolloutState.TRAINED}
        assert (TRANSITIONS[state] == frozenset()) == (state in last)
        assert (RolloutState.DISCARDED in TRANSITIONS[state]) == (state not in last)


@pytest.mark.parametrize(
    ("state", "step", "reason", "message"),
    [
        (RolloutState.LEASED, 1, None, "only the states claimed and trained have a step"),
        (RolloutState.DISCARDED, None, None, "only the state discarded has a reason"),
        (RolloutState.LEASED, None, DiscardReason.STALE, "only the state discarded has a reason"),
        (RolloutState.TRAINED, 1, None, "planned cannot become trained"),
    ],
)
def test_steps_and_reasons_belong_to_their_states(
    state: RolloutState, step: int | None, reason: DiscardReason | None, message: str
) -> None:
    with Ledger() as ledger:
        ledger.plan_nowait("r", task_id="t", attempt=0)
        with pytest.raises(DataError, match=message):
            ledger.advance_nowait("r", state, step=step, reason=reason)


def test_unknown_and_repeated_rollouts_are_refused() -> None:
    with Ledger() as ledger:
        ledger.plan_nowait("r", task_id="t", attempt=0)
        with pytest.raises(DataError, match="already planned"):
            ledger.plan_nowait("r", task_id="t", attempt=1)
        with pytest.raises(DataError, match="plan it first"):
            ledger.advance_nowait("other", RolloutState.LEASED)
        with pytest.raises(DataError, match="recorded while a rollout is running"):
            ledger.record_turn_nowait("r", turn(0))
        with pytest.raises(DataError, match="train, validation, held_out"):
            ledger.plan_nowait("s", task_id="t", attempt=0, split="test")


def test_turns_come_back_token_for_token_after_reopening(tmp_path: Path) -> None:
    turns = (
        turn(0),
        turn(1, parent=0, prompt=(1, 2, 7, 9, 4)),
        turn(2, prompt=(8,), branch="edited_history: message 1"),
        turn(3, parent=1, prompt=(1, 2, 7, 9, 4, 7, 9, 6)),
    )
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        live(ledger, "r", RolloutState.RUNNING)
        for played in turns:
            ledger.record_turn_nowait("r", played)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.load_turns("r") == turns
        assert ledger.state("r") is RolloutState.RUNNING
        assert ledger.verify() == []
        # A child stores only what its parent's prompt and answer do not hold: one id of four bytes.
        with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
            sizes = [size for (size,) in db.execute("SELECT length(new_prompt_ids) FROM turns ORDER BY id")]
    assert sizes == [8, 4, 4, 4]


def test_a_turn_is_on_disk_when_it_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def play() -> int:
        async with Ledger(path) as ledger:
            live(ledger, "r", RolloutState.RUNNING)
            await ledger.record_turn("r", turn(0))
            with sqlite3.connect(path) as reader:
                return reader.execute("SELECT count(*) FROM turns").fetchone()[0]

    assert asyncio.run(play()) == 1


def test_sixty_four_concurrent_turns_share_a_few_commits(tmp_path: Path) -> None:
    async def play() -> int:
        async with Ledger(tmp_path / "ledger.sqlite") as ledger:
            for index in range(64):
                live(ledger, f"r{index}", RolloutState.RUNNING)
            ledger.flush()
            before = ledger.num_commits
            await asyncio.gather(*(ledger.record_turn(f"r{index}", turn(0)) for index in range(64)))
            assert all(len(ledger.load_turns(f"r{index}")) == 1 for index in range(0, 64, 21))
            return ledger.num_commits - before

    # One group is ideal; thread scheduling may split it. Four of these commits are the four reads above.
    assert asyncio.run(play()) <= 4 + 16


def test_a_failed_write_stops_the_ledger() -> None:
    ledger = Ledger()
    live(ledger, "r", RolloutState.RUNNING)
    ledger.record_turn_nowait("r", turn(0))
    doubled = ledger.record_turn_nowait("r", turn(0))
    with pytest.raises(ServiceError, match="could not be written"):
        doubled.result()
    with pytest.raises(ServiceError, match="stopped writing"):
        ledger.flush()
    with pytest.raises(ServiceError):
        ledger.close()


def test_a_cancelled_wait_does_not_cancel_the_write() -> None:
    async def play() -> int:
        with Ledger() as ledger:
            live(ledger, "r", RolloutState.RUNNING)
            waiting = asyncio.create_task(ledger.record_turn("r", turn(0)))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            return len(ledger.load_turns("r"))

    assert asyncio.run(play()) == 1


def test_files_that_are_no_ledgers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, only some long enough text to be read as a header\n" * 3)
    with sqlite3.connect(tmp_path / "other") as db:
        db.execute("PRAGMA user_version = 99")
    for name, problem in (("text", "not a database"), ("other", "format 99")):
        with pytest.raises(DataError, match=f"{problem}.*[Rr]estore "):
            Ledger(tmp_path / name)


def test_a_ledger_that_the_disk_does_not_give_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"unable to open .* It is probably intact and .* Check the disk"):
        Ledger(tmp_path / "nowhere" / "ledger.sqlite")


@pytest.mark.parametrize(
    ("damage", "symptom"),
    [
        ("UPDATE rollouts SET state = 'admitted', step = NULL", "the row is"),
        ("DELETE FROM lineage", "trained for step 5, but the run has no checkpoint"),
        ("UPDATE lineage SET step = 4", "trained for step 5, but the run has its newest checkpoint at step 4"),
        ("UPDATE events SET step = 3 WHERE state = 'claimed'", "claimed for step 3 and trained for step 5"),
        (
            "INSERT INTO lineage (time, kind, step, checkpoint, event) VALUES (0, 'resumed', 4, '', 99),"
            " (0, 'published', 6, '', 99)",
            "trained for step 5, but the run has since been resumed from an earlier checkpoint",
        ),
        ("DELETE FROM events WHERE state = 'planned'", "does not begin with planned"),
        ("DELETE FROM events WHERE state = 'scored'", "finished cannot become admitted"),
        ("DELETE FROM rollouts", "never planned"),
        ("UPDATE turns SET branch_reason = NULL WHERE id = 1", "branch without a reason"),
        ("UPDATE turns SET parent = 5 WHERE id = 1", "parent 5 does not come before"),
        ("UPDATE turns SET token_ids = x'01000000' WHERE id = 0", "1 tokens and 2 log-probabilities"),
        ("UPDATE turns SET versions = '[[0, 9]]' WHERE id = 0", "do not add up"),
        ("UPDATE turns SET sampled_logprobs = x'0000c07f0000c07f' WHERE id = 0", "not finite"),
        (
            "UPDATE turns SET untrained_reason = NULL",
            "temperature 0.5 and top_p 0.9 with 0.0005 of the probability removed",
        ),
        ("UPDATE turns SET untrained_reason = 'dull'", "'dull' is not a known reason"),
        (f"UPDATE turns SET {ORDINARY}, learns = 0", "turn 0 of rollout r: its policy does not learn"),
        (
            f"UPDATE turns SET {ORDINARY}, removed_mass = 0.5",
            "turn 0 of rollout r: sampled at temperature 1.0 and top_p 1.0 with 0.5 of the probability removed",
        ),
        (
            f"UPDATE turns SET {ORDINARY}, sampled_logprobs = x'000080bf'",
            "turn 0 of rollout r: 2 tokens and 1 log-probabilities",
        ),
        (
            f"UPDATE turns SET {ORDINARY}, versions = '[[3,3]]'",
            "turn 0 of rollout r: its versions [[3, 3]] do not add up to 2 tokens",
        ),
        (
            f"UPDATE turns SET {ORDINARY}, versions = '[[3,2]]', fingerprint = id",
            "but version 3 has other weights (0 in rollout r)",
        ),
        (
            f"UPDATE turns SET {ORDINARY}, sampled_logprobs = x'000080bf0000807f' WHERE id = 1",
            "turn 1 of rollout r: a log",
        ),
        ("DELETE FROM rollouts", "turns of rollout r: their rollout was never planned"),
        (
            "UPDATE turns SET untrained_reason = 'not_received', parent = iif(id = 1, 0, NULL)",
            "its parent 0 is recorded as not received",
        ),
    ],
)
def test_damage_is_found(tmp_path: Path, damage: str, symptom: str) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.plan_nowait("r", task_id="t", attempt=0)
        for state in LIFE:
            if state is RolloutState.TRAINED:
                ledger.publish_nowait(5, "000005")
            else:
                ledger.advance_nowait("r", state, step=5 if state is RolloutState.CLAIMED else None)
            if state is RolloutState.RUNNING:
                ledger.record_turn_nowait("r", turn(0))
                ledger.record_turn_nowait("r", turn(1, branch="compacted"))
        assert ledger.verify() == []
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute(damage)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert any(symptom in line for line in ledger.verify()), ledger.verify()


def test_an_evaluation_may_write_to_the_ledger_of_a_run_that_goes_on(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as training, Ledger(tmp_path / "ledger.sqlite") as evaluating:
        for index in range(50):
            for ledger, split in ((training, "train"), (evaluating, "held_out")):
                ledger.plan_nowait(f"{split}/{index}", task_id="t", attempt=0, split=split)
                ledger.advance_nowait(f"{split}/{index}", RolloutState.LEASED)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert len(ledger.rollouts()) == 100


@pytest.mark.parametrize(("rollout", "split"), [("h", "held_out"), ("validation/control-2@7/t/0.0", "validation")])
def test_a_resumed_run_does_not_discard_what_another_process_evaluates(
    tmp_path: Path, rollout: str, split: str
) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as other:
        other.plan_nowait(rollout, task_id="t", attempt=0, split=split)
        for state in LIFE[:2]:
            other.advance_nowait(rollout, state)
        other.flush()
        with Ledger(path) as resumed:
            resumed.plan_nowait("validation/step-2@7/t/0.0", task_id="t", attempt=0, split="validation")
            resumed.rewind_nowait(0, "warm_start")
            assert resumed.counts("validation")["discarded"] == 1
        for state in LIFE[2:4]:
            other.advance_nowait(rollout, state)
        other.advance_nowait(rollout, RolloutState.EVALUATED, result={"score": 1.0})
        other.flush()
        assert other.verify() == []


def test_every_policy_of_an_episode_begins_one_conversation() -> None:
    """The first turn of each is no branch; only later ones are."""
    with Ledger() as ledger:
        live(ledger, "r", RolloutState.RUNNING)
        other = dataclasses.replace(turn(1), policy="customer", learns=False)
        for one in (turn(0), other):
            ledger.record_turn_nowait("r", one)
        assert ledger.load_turns("r") == (turn(0), other)
        assert ledger.verify() == []
        ledger.record_turn_nowait("r", dataclasses.replace(other, id=2))
        assert ledger.verify() == ["turn 2 of rollout r: it starts a branch without a reason"]


def test_every_sampled_token_has_a_fate() -> None:
    whole, part = Sampling(), Sampling(top_p=0.9)
    with Ledger() as ledger:
        for rollout_id, until in [("trained", "trained"), ("late", "running"), ("stale", "scored")]:
            state = RolloutState(until)
            ledger.plan_nowait(rollout_id, task_id="t", attempt=0)
            for passed in LIFE[: LIFE.index(state) + 1]:
                if passed is RolloutState.TRAINED:
                    ledger.publish_nowait(5, "000005")
                    continue
                ledger.advance_nowait(rollout_id, passed, step=5 if passed is RolloutState.CLAIMED else None)
                if passed is RolloutState.RUNNING:
                    for number, sampling in enumerate([whole, whole, part, Sampling(temperature=0.0)]):
                        played = dataclasses.replace(turn(number, branch="repeated"), sampling=sampling)
                        ledger.record_turn_nowait(rollout_id, played)
                    ledger.record_not_received_nowait(rollout_id, [1])
        ledger.advance_nowait("stale", RolloutState.DISCARDED, reason=DiscardReason.STALE)
        ledger.plan_nowait("held", task_id="t", attempt=0, split="held_out")
        for state in LIFE[:2]:
            ledger.advance_nowait("held", state)
        ledger.record_turn_nowait("held", dataclasses.replace(turn(0), sampling=whole))
        for state in [*LIFE[2:4], RolloutState.EVALUATED]:
            ledger.advance_nowait("held", state)
        counts = ledger.token_counts()
        assert counts == {
            "trained": 2,
            "untrained/not_received": 2,
            "untrained/top_p": 2,
            "untrained/greedy": 2,
            "pending": 8,
            "discarded/stale": 8,
            "evaluated": 2,
            "sampled_total": 26,
        }
        assert ledger.token_counts("held_out") == {"trained": 0, "evaluated": 2, "sampled_total": 2}
        assert ledger.verify() == []


@pytest.mark.parametrize("format", [2, 3])
def test_a_ledger_of_an_older_format_is_read_as_it_is_and_brought_up_to_date_when_it_is_opened(
    tmp_path: Path, format: int
) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        live(ledger, "r", RolloutState.TRAINED)
    with closing(sqlite3.connect(path)) as db:
        for table, column in (
            ("rollouts", "num_turns"),
            *((t, "digest") for t in ("rollouts", "turns", "lineage", "kept")),
        ):
            db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        if format == 2:
            db.executescript("DROP TABLE lineage; DROP TABLE kept;")
        db.execute(f"PRAGMA user_version = {format}")
    before = path.read_bytes()
    account = read_account(path)
    assert (account.broken, account.last_step) == ([], 5)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["ledger.sqlite"]
    with Ledger(path) as ledger:
        assert ledger.last_published == 5
        live(ledger, "s", RolloutState.SCORED)
        assert ledger.verify() == []


def test_a_ledger_is_read_without_a_trace_while_it_is_written_and_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    with Ledger(path) as ledger:
        live(ledger, "r", RolloutState.TRAINED)
        ledger.flush()
        before = {one.name: one.read_bytes() for one in tmp_path.glob("ledger*")}
        assert len(before) == 3
        assert read_account(path).last_step == 5
        # The index of the write-ahead log holds the readers that there are.
        assert {name: len(content) for name, content in before.items()} == {
            one.name: one.stat().st_size for one in tmp_path.glob("ledger*")
        }
        for name in ("ledger.sqlite", "ledger.sqlite-wal"):
            (crashed / name).write_bytes(before[name])
    for content in ("without its index", "with its index"):
        if content == "with its index":
            (crashed / "ledger.sqlite-shm").write_bytes(before["ledger.sqlite-shm"])
        was = {one.name: one.read_bytes() for one in crashed.iterdir()}
        assert read_account(crashed / "ledger.sqlite").last_step == 5
        assert {one.name: one.read_bytes() for one in crashed.iterdir()} == was


def test_a_ledger_is_read_at_the_moment_when_its_writer_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer removes the index of its log first, then the log."""
    path, copyfile = tmp_path / "ledger.sqlite", shutil.copyfile
    with Ledger(path) as ledger:
        live(ledger, "r", RolloutState.TRAINED)
        ledger.flush()
        log = (tmp_path / "ledger.sqlite-wal").read_bytes()
    (tmp_path / "ledger.sqlite-wal").write_bytes(log)

    def closing_meanwhile(source: Path, target: Path) -> Path:
        (tmp_path / "ledger.sqlite-wal").unlink(missing_ok=True)
        return copyfile(source, target)

    monkeypatch.setattr(shutil, "copyfile", closing_meanwhile)
    assert read_account(path).last_step == 5


def test_clients_refused_in_a_validation_are_counted_since_that_may_end_a_run(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for place, split in enumerate(("validation", "train", "held_out")):
            ledger.plan_nowait(f"r{place}", task_id="t", attempt=0, split=split)
            for state in (RolloutState.LEASED, RolloutState.RUNNING):
                ledger.advance_nowait(f"r{place}", state)
            reason = DiscardReason.INFRA_ERROR if split == "train" else DiscardReason.CLIENT_ERROR
            ledger.advance_nowait(f"r{place}", RolloutState.DISCARDED, reason=reason, detail=f"{split}: why")
    attempts = count_attempts(tmp_path / "ledger.sqlite")
    assert (attempts.refused, attempts.refusal) == (1, "validation: why")
    assert (attempts.failed, attempts.detail, attempts.played) == ({"infra_error": 1}, "train: why", 0)
