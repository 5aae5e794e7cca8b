"""The watchdog names what a run that does not get on is waiting for, and ends a process that never will."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparring.ledger import Ledger, RolloutState
from sparring.supervision.watchdog import Patience, Watchdog


def code_that_does_not_come_back(seconds: float) -> None:
    time.sleep(seconds)


def watched(
    tmp_path: Path, ledger: Ledger, messages: list[str], *, learned: Callable[[], int] = lambda: 0, **times: Any
) -> Watchdog:
    times = {"blocked_seconds": 60.0, "quiet_seconds": 60.0, "deadly_seconds": None, "poll_seconds": 0.02, **times}
    loop = asyncio.get_running_loop()
    return Watchdog(
        loop, ledger, tmp_path / "stalls.txt", say=messages.append, patience=Patience(**times), learned=learned
    )


def test_code_that_blocks_the_event_loop_is_named_once(tmp_path: Path) -> None:
    async def main(messages: list[str]) -> None:
        with Ledger() as ledger, watched(tmp_path, ledger, messages, blocked_seconds=0.3):
            await asyncio.sleep(0.2)
            code_that_does_not_come_back(1.0)
            await asyncio.sleep(0.2)

    messages: list[str] = []
    asyncio.run(main(messages))
    assert len(messages) == 1
    assert "the event loop has been blocked" in messages[0]
    assert "code_that_does_not_come_back" in (tmp_path / "stalls.txt").read_text()


def test_a_run_that_records_nothing_names_the_episodes_in_play(tmp_path: Path) -> None:
    async def main(messages: list[str]) -> None:
        with Ledger() as ledger:
            for number in range(7):
                ledger.plan_nowait(f"r{number}", task_id="t", attempt=0)
                for state in (RolloutState.LEASED, RolloutState.RUNNING):
                    ledger.advance_nowait(f"r{number}", state)
            ledger.flush()
            with watched(tmp_path, ledger, messages, quiet_seconds=0.3):
                await never_answered()

    async def never_answered() -> None:
        await asyncio.sleep(1.0)

    messages: list[str] = []
    asyncio.run(main(messages))
    assert len(messages) == 1
    assert "running episodes: r0, r1, r2, r3, r4 and 2 more" in messages[0]
    assert "never_answered" in (tmp_path / "stalls.txt").read_text()


def test_a_run_that_learns_without_recording_gets_on_until_it_no_longer_does(tmp_path: Path) -> None:
    async def main(messages: list[str]) -> None:
        learned = 0
        with Ledger() as ledger, watched(tmp_path, ledger, messages, quiet_seconds=1.0, learned=lambda: learned):
            for learned in range(40):  # noqa: B007  the watchdog reads it
                await asyncio.sleep(0.05)
            assert messages == []
            await asyncio.sleep(1.5)

    messages: list[str] = []
    asyncio.run(main(messages))
    assert len(messages) == 1
    assert "nothing was recorded or learned for 1 s" in messages[0]


def test_a_run_that_gets_on_is_left_alone(tmp_path: Path) -> None:
    async def main(messages: list[str]) -> None:
        with (
            Ledger() as ledger,
            watched(tmp_path, ledger, messages, blocked_seconds=2.0, quiet_seconds=2.0, deadly_seconds=4.0),
        ):
            for number in range(10):
                ledger.plan_nowait(f"r{number}", task_id="t", attempt=0)
                await asyncio.sleep(0.05)

    messages: list[str] = []
    asyncio.run(main(messages))
    assert messages == []


def _block_for_good(folder: Path) -> None:
    async def main() -> None:
        with Ledger() as ledger, watched(folder, ledger, [], blocked_seconds=0.2, deadly_seconds=0.5):
            code_that_does_not_come_back(60)

    asyncio.run(main())


def test_an_event_loop_that_never_turns_again_ends_the_process(tmp_path: Path) -> None:
    process = multiprocessing.get_context("forkserver").Process(target=_block_for_good, args=(tmp_path,))
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGABRT
    assert "the process is now terminated" in (tmp_path / "stalls.txt").read_text()
