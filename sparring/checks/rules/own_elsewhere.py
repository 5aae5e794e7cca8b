"""The rule that an agent of the user's own behaves the same in another process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from sparring.checks.evidence.own_agent import explore_all
from sparring.checks.evidence.subject import Subject, find_first_difference
from sparring.checks.rules.own_agent import AGAIN, same_twice
from sparring.checks.running.second_agent import compared_lines
from sparring.checks.running.time_budget import TimedOutError, UndecidedError
from sparring.findings import Finding, Severity
from sparring.types import Json


async def same_elsewhere(subject: Subject) -> Iterable[Finding]:
    """The same episodes are the same in another process, with another hash seed and in the opposite order.

    A resumed run, and an evaluation tomorrow, play in another process. A difference comes from something that the first
    episodes left behind, such as a cache that is filled once, from the order of sets, from `hash`, or from what is drawn
    when the code is imported.
    """
    if list(await same_twice(subject)):
        return []  # episodes that differ anyway are no evidence
    here = {one.task.id: one for one in await explore_all(subject) if not one.is_failure_of_agent}
    there = await _play_elsewhere(subject, list(reversed(here)))
    for task_id, episode in here.items():
        lines = there.get(task_id)
        differs = None if lines is None else find_first_difference(compared_lines(episode), lines)
        if differs is not None:
            return [
                Finding(
                    rule="agent.same_elsewhere",
                    severity=Severity.ERROR,
                    symptom=f"the episode of task {task_id} differs in another process, where other tasks were played before.",
                    evidence={"task": task_id, **differs},
                    change="Keep nothing between episodes (no cache, no counter), sort what comes from sets, and do not use "
                    "`hash`.",
                    confirm=AGAIN,
                )
            ]
    return []


async def _play_elsewhere(subject: Subject, task_ids: Sequence[str]) -> Mapping[str, Sequence[Sequence[str]] | None]:
    """Return what `second_agent.play_episodes` returns in another process. Raises UndecidedError if it returns nothing."""
    request: dict[str, Json] = {
        "recipe": str(subject.recipe.resolve()),
        "overrides": list(subject.overrides),
        "tasks": list(task_ids),
        "seconds": max(5.0, subject.timing.left),
        "call_seconds": subject.watch.seconds * subject.watch.patience,
        "start_seconds": subject.watch.start_seconds * subject.watch.patience,
    }
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "4321",
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "sparring.checks.running.second_agent",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,
            limit=1 << 26,
        )
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018
        limit = request["seconds"] + 2 * request["start_seconds"]
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            async with asyncio.timeout(limit):
                line = await process.stdout.readline()
        except TimeoutError:
            raise TimedOutError(f"another process did not finish the episodes within {limit:.3g} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if not line:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
            raise UndecidedError(f"another process could not play the agent. Its last output was: {last[0]}")
    return json.loads(line)
