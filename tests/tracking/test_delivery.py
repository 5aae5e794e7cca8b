"""A run folder is delivered in order, each piece once, whatever the receiver does; what fails is delivered later."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparring.tracking.delivery import Record, Refused, deliver
from sparring.tracking.journal import Document, Episodes, Findings, Metrics, Piece, undelivered
from sparring.tracking.local import LocalTracker
from tests.tracking.builders import GROUP


class Receiver:
    """Takes pieces, but fails at those of `failures`: which attempt (from 0), and with what."""

    def __init__(self, failures: dict[int, Exception] | None = None) -> None:
        self.taken: list[str] = []
        self.steps: list[int] = []
        self.is_finished = False
        self.has_lost_all = False
        self._failures = failures or {}
        self._num_attempts = 0

    def open(self, kept: dict[str, Any]) -> bool:
        kept.setdefault("run", "one")
        return not self.has_lost_all

    def take(self, piece: Piece) -> None:
        attempt, self._num_attempts = self._num_attempts, self._num_attempts + 1
        if attempt in self._failures:
            raise self._failures[attempt]
        self.taken.append(piece.name)
        if isinstance(piece, Metrics):
            self.steps += [step for step, _, _ in piece.lines]

    def finish(self) -> None:
        self.is_finished = True


def stored_run(path: Path, *, steps: int = 2) -> Path:
    tracker = LocalTracker(path, clock=lambda: 5.0)
    for step in range(1, steps + 1):
        tracker.log_metrics(step, {"a": float(step)})
        tracker.log_groups(step, [GROUP], split="train")
    tracker.log_finding({"rule": "x", "severity": "note"})
    tracker.log_artifact("evaluations/validation-0.json", {"score": 1})
    tracker.close()
    return path


def delivered(
    run: Path, receiver: Receiver, *, over_after: int = 0, wait: Callable[[float], object] | None = None
) -> tuple[bool, list[str]]:
    """Deliver until the run is over, which it is when that was asked `over_after` times."""
    messages: list[str] = []
    asked = iter(range(10**6))
    record = Record.read(run / "record.json", "here")
    done = deliver(
        run,
        receiver,
        record,
        is_over=lambda: next(asked) >= over_after,
        wait=wait or (lambda _: None),
        report=messages.append,
    )
    return done, messages


PIECES = [
    "metrics.jsonl",
    "findings.jsonl",
    "trajectories/train-1.jsonl",
    "trajectories/train-2.jsonl",
    "findings.jsonl whole",
    "evaluations/validation-0.json whole",
]


def test_all_of_a_run_is_delivered_in_order_and_never_again(tmp_path: Path) -> None:
    run, first, second = stored_run(tmp_path), Receiver(), Receiver()
    assert delivered(run, first) == (True, [])
    assert (first.taken, first.steps, first.is_finished) == (PIECES, [1, 2], True)
    assert delivered(run, second) == (True, [])
    assert second.taken == []


def test_a_receiver_that_has_lost_what_it_accepted_receives_everything_again(tmp_path: Path) -> None:
    run, first, second = stored_run(tmp_path), Receiver(), Receiver()
    delivered(run, first)
    second.has_lost_all = True
    assert delivered(run, second) == (True, [])
    assert second.taken == PIECES


def test_pieces_hold_what_the_folder_does(tmp_path: Path) -> None:
    by_kind = {type(piece): piece for piece in undelivered(stored_run(tmp_path), {})}
    metrics, findings = by_kind[Metrics], by_kind[Findings]
    assert isinstance(metrics, Metrics)
    assert metrics.lines == ((1, 5.0, {"a": 1.0}), (2, 5.0, {"a": 2.0}))
    assert isinstance(findings, Findings)
    assert findings.findings[0]["rule"] == "x"
    episodes = by_kind[Episodes]
    assert isinstance(episodes, Episodes)
    assert (episodes.split, episodes.step) == ("train", 2)
    assert [one.id for one in episodes.trajectories] == ["train/0/t1/0.0"]
    assert [one["tool"] for one in episodes.trajectories[0].transitions] == ["get", "put"]
    document = by_kind[Document]
    assert isinstance(document, Document)
    assert document.file == "evaluations/validation-0.json"


def test_what_was_added_or_replaced_is_delivered_then(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    delivered(run, Receiver())
    tracker = LocalTracker(run)
    tracker.log_metrics(3, {"a": 3.0})
    tracker.log_groups(2, [GROUP], split="train")
    tracker.close()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "ti')  # being written
    again = Receiver()
    delivered(run, again)
    assert (again.taken, again.steps) == (["metrics.jsonl", "trajectories/train-2.jsonl"], [3])


def test_an_outage_is_reported_once_waited_out_longer_and_longer_and_nothing_is_lost(tmp_path: Path) -> None:
    waits: list[float] = []
    # The third attempt fails eight times: pieces 0 and 1 are taken, then piece 2 is asked for at attempts 2 to 9.
    receiver = Receiver({attempt: ConnectionError("refused") for attempt in range(2, 10)})
    done, messages = delivered(stored_run(tmp_path), receiver, over_after=20, wait=waits.append)
    assert done
    assert receiver.taken == PIECES
    assert waits[:8] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert messages == [
        "the server cannot be reached (refused); all data is sent after the outage",
        "the server can be reached again and has received all missing data",
    ]


def test_a_run_that_is_over_does_not_wait_for_who_cannot_be_reached_and_a_later_process_goes_on(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    waits: list[float] = []
    first = Receiver({1: TimeoutError()})
    done, messages = delivered(run, first, wait=waits.append)
    assert (done, waits, first.is_finished) == (False, [], False)
    assert messages == ["the server cannot be reached (TimeoutError); all data is sent after the outage"]
    second = Receiver()
    assert delivered(run, second)[0]
    assert first.taken + second.taken == PIECES


def test_what_is_refused_is_left_out_and_the_rest_is_delivered(tmp_path: Path) -> None:
    receiver = Receiver({0: Refused("too long"), 2: Refused("too long")})
    done, messages = delivered(stored_run(tmp_path), receiver)
    assert done
    assert receiver.taken == [PIECES[1], *PIECES[3:]]
    assert messages == ["metrics.jsonl was refused (too long) and is left out; later refusals are not reported"]


def test_a_process_that_dies_between_sending_and_recording_sends_that_one_piece_again(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    whole = Receiver()
    delivered(run, whole)
    content = json.loads((run / "record.json").read_text())
    del content["told"]["trajectories/train-2.jsonl"]
    (run / "record.json").write_text(json.dumps(content))
    again = Receiver()
    delivered(run, again)
    assert again.taken == ["trajectories/train-2.jsonl"]


def test_another_address_and_a_damaged_record_begin_anew(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    delivered(run, Receiver())
    assert Record.read(run / "record.json", "here").kept == {"run": "one"}
    assert Record.read(run / "record.json", "elsewhere").delivered == {}
    (run / "record.json").write_text('{"addr')
    assert Record.read(run / "record.json", "here").delivered == {}
