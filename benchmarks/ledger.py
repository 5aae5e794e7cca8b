"""Measures the cost of recording 100,000 rollouts of three turns, and of checking every invariant of the ledger.

The ledger is written with its own methods: groups of eight rollouts run, are admitted, are claimed by a step, and count
as trained at the next checkpoint. One rollout in twenty is lost to an infrastructure failure. Figures are CPU seconds
of this process, including SQLite's work, as medians over the rounds. `verify` alternates with SQLite's `PRAGMA
quick_check` on the same file, so that a slow machine slows down both.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median

from benchmarks.report import options, report
from sparring.ledger import DiscardReason, Ledger, RolloutState, rows
from sparring.ledger.verification import verify_file
from sparring.types import Sampling, StopReason, Turn

NUM_TURNS = 3
ANSWER_TOKENS = (16, 48)
PROMPT_TOKENS = 120
"""Number of tokens before the first answer. The result of a tool between two answers has a quarter of this number."""
GROUP_SIZE, GROUPS_PER_STEP = 8, 16
LOST_SHARE = 0.05
TARGETS = {
    "seconds to verify 100,000 rollouts": {"at_most": 2.0},
    "broken invariants": {"at_most": 0.0},
}
PLAYED = [RolloutState.FINISHED, RolloutState.SCORED, RolloutState.ADMITTED]


def line(drawn: random.Random, version: int) -> list[Turn]:
    """Return the turns of one episode. Each turn continues the previous one."""
    ids: tuple[int, ...] = tuple(drawn.choices(range(50_000), k=PROMPT_TOKENS))
    turns: list[Turn] = []
    for number in range(NUM_TURNS):
        answer = tuple(drawn.choices(range(50_000), k=drawn.randint(*ANSWER_TOKENS)))
        turns.append(
            Turn(
                id=number, parent=number - 1 if number else None, branch_reason=None, prompt_ids=ids, token_ids=answer,
                sampled_logprobs=tuple(-drawn.random() for _ in answer), versions=((version, len(answer)),),
                fingerprint=f"{version:016x}", stop_reason=StopReason.STOP, sampling=Sampling(max_tokens=64),
                message={"role": "assistant", "content": "The reading of part A12 at gauge 7 is 4.2, within its limits."},
                num_computed_tokens=len(answer), seconds=0.5,
            )
        )  # fmt: skip
        ids += answer + tuple(drawn.choices(range(50_000), k=PROMPT_TOKENS // 4))
    return turns


def write(path: Path, num_rollouts: int) -> None:
    drawn = random.Random(0)
    per_step = GROUP_SIZE * GROUPS_PER_STEP
    with Ledger(path) as ledger:
        for first in range(0, num_rollouts, per_step):
            step, admitted = 1 + first // per_step, []
            for number in range(first, min(first + per_step, num_rollouts)):
                id = f"train/{number // GROUP_SIZE}/task-{number // GROUP_SIZE % 500}/{number % GROUP_SIZE}.0"
                ledger.plan_nowait(id, task_id=f"task-{number // GROUP_SIZE % 500}", attempt=0)
                ledger.advance_nowait(id, RolloutState.LEASED)
                ledger.advance_nowait(id, RolloutState.RUNNING)
                for turn in line(drawn, step - 1):
                    ledger.record_turn_nowait(id, turn)
                if drawn.random() < LOST_SHARE:
                    ledger.advance_nowait(id, RolloutState.DISCARDED, reason=DiscardReason.INFRA_ERROR, detail="down")
                    continue
                for state in PLAYED:
                    ledger.advance_nowait(id, state)
                admitted.append(id)
            for id in admitted:
                ledger.advance_nowait(id, RolloutState.CLAIMED, step=step)
            ledger.publish_nowait(step, f"{step:06}")
            ledger.flush()


def verify(path: Path) -> int:
    return len(verify_file(path, max_steps_off_policy=0))


def read_through(path: Path) -> int:
    with closing(rows.open_file(path)[0]) as db:
        try:
            return 0 if db.execute("PRAGMA quick_check").fetchall() == [("ok",)] else 1
        except sqlite3.DatabaseError:
            return 1


def sides_of(path: Path) -> dict[str, float]:
    """Return the number of recorded turns, and what each reader finds if a turn was changed or truncated."""
    with closing(rows.open_file(path)[0]) as db:
        recorded = db.execute("SELECT count(*) FROM turns").fetchone()[0]
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM turns WHERE id = 0")
    found = verify(path)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"x" * 4096)
    return {"record": recorded, "verify": found, "quick_check": read_through(path)}


def seconds(work: Callable[[Path], int], path: Path) -> tuple[float, int]:
    began = time.process_time()
    found = work(path)
    return time.process_time() - began, found


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rollouts, rounds = (256, 1) if arguments.smoke else (arguments.rollouts, arguments.rounds)
    scale = 100_000 / rollouts
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        began = time.process_time()
        write(path, rollouts)
        written = time.process_time() - began
        megabytes = path.stat().st_size / 2**20
        pairs = [(seconds(verify, path), seconds(read_through, path)) for _ in range(rounds)]
        sides = sides_of(path)
    verified = median(mine for (mine, _), _ in pairs)
    rows_ = [
        {"what": "record", "seconds": written, "of 100,000 rollouts": written * scale},
        {"what": "verify", "seconds": verified, "of 100,000 rollouts": verified * scale},
        {"what": "quick_check", "seconds": median(other for _, (other, _) in pairs)},
    ]
    figures = {
        "seconds to verify 100,000 rollouts": verified * scale,
        "verify beside quick_check": median(mine / other for (mine, _), (other, _) in pairs),
        "broken invariants": float(max(found for (_, found), _ in pairs)),
        "megabytes": megabytes,
    }
    return report(
        "ledger", rows_, figures=figures, targets=TARGETS, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
