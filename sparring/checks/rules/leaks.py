"""Rules on resources that episodes leak, and on whether `close` works in all cases."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from sparring.agents.scripted import Asked, ScriptedPolicy
from sparring.checks.evidence.leaked_resources import count_resources, find_kept_globals, measure_sizes
from sparring.checks.evidence.legal_calls import make_policies, make_stranger
from sparring.checks.evidence.observed_effects import Observed
from sparring.checks.evidence.subject import Subject
from sparring.checks.running.time_budget import OutOfTimeError, TimedOutError, UndecidedError
from sparring.errors import InfrastructureError
from sparring.findings import Finding, Severity
from sparring.types import Json, Message, Task

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
NUM_LEAK_EPISODES = 4
SETTLE_SECONDS = 0.5
"""Resources that are released by themselves, such as the threads of a server, must be released within this number of
seconds."""
Play: TypeAlias = Callable[[Subject, Task, ScriptedPolicy], Awaitable[None]]
PolicyOf: TypeAlias = Callable[[Subject, Task], Awaitable[ScriptedPolicy]]


async def leaks(subject: Subject) -> Iterable[Finding]:
    """Episodes leak no resources, whether they finish, are cut short by an error, time out, or end after failed calls.

    The rule counts threads, processes, file handles, SQLite connections, asyncio tasks, files, and module globals
    before and after a few episodes of different tasks. Growth that happens only once, such as filling the cache of a
    library, is not a leak. The leaks of a thousand episodes can crash a run. Release resources in `close`, which is
    always called. A `StatefulEnvironment` closes everything that is registered with it. List a cache that is meant to
    grow in the class's `persists`.
    """
    num = next((num for num in (NUM_LEAK_EPISODES, 2) if subject.timing.has_time_for(1 + 2 * num)), 0)
    if not num:
        subject.timing.need(5)
    findings: list[Finding] = []
    for how, play, policy_of in (
        ("finish", _finished, _player),
        ("fail", _crashed, _player),
        ("time out", _timed_out, _player),
        ("request unknown items from tools", _finished, make_stranger),
    ):
        with subject.timing.as_far_as_it_goes():
            findings += await _left_by(subject, how, play, policy_of, num)
        if findings or subject.timing.rule in subject.timing.cut:
            break  # episodes that end in other ways mostly leak the same resources
    return findings


async def _left_by(subject: Subject, how: str, play: Play, policy_of: PolicyOf, num: int) -> list[Finding]:
    """Return findings on the resources that episodes leak if they end in a certain way."""
    tasks = [subject.sample[index % len(subject.sample)] for index in range(2 * num + 1)]
    sizes = [await _run_window(subject, play, policy_of, tasks[:1])]  # resources that are created once are not a leak
    before = count_resources()
    with Observed(subject) as effects:
        sizes.append(await _run_window(subject, play, policy_of, tasks[1 : num + 1]))
    if count_resources().more_than(before):
        await asyncio.sleep(SETTLE_SECONDS)
    left: dict[str, Json] = {**count_resources().more_than(before)}
    files = [one for one in effects.of("written") if _is_left(one.what)]
    if files:
        left["files"] = [one.as_json() for one in files[:8]]
    grown = _grown(sizes, num)
    if grown:
        # Containers that are filled once, such as the cache of a table, do not grow further.
        sizes.append(await _run_window(subject, play, policy_of, tasks[num + 1 :]))
        grown = [name for name in grown if name in _grown(sizes[1:], num)]
    if grown:
        left["globals (references before, after)"] = {name: [sizes[0][name], sizes[-1][name]] for name in grown}
    if not left:
        return []
    counts = [count for count in left.values() if isinstance(count, int)]
    is_error = grown or max(counts, default=0) >= num or len({one.what for one in files}) >= num
    severity = Severity.ERROR if is_error else Severity.WARNING
    return [_report(how, severity, tasks[1], num * (2 if grown else 1), left)]


def _report(how: str, severity: Severity, task: Task, num_episodes: int, left: Mapping[str, Json]) -> Finding:
    return Finding(
        rule="environment.leaks",
        severity=severity,
        symptom=f"{num_episodes} episodes that {how} leave {', '.join(left)} behind.",
        evidence={"task": task.id, "episodes": num_episodes, **left},
        change="Release these resources in `close`, and create nothing that outlives the object. List a cache that "
        "is meant to grow in `persists`.",
        confirm=AGAIN,
    )


async def _run_window(subject: Subject, play: Play, policy_of: PolicyOf, tasks: Iterable[Task]) -> dict[str, int]:
    """Run an episode of each task, and return the size of each global afterwards."""
    for task in tasks:
        await play(subject, task, await policy_of(subject, task))
    return measure_sizes(find_kept_globals(subject))


def _grown(sizes: Sequence[dict[str, int]], num: int) -> list[str]:
    """Return the globals that gained at least one reference per episode between the first two measurements."""
    before, after = sizes[:2]
    return [name for name, size in after.items() if name in before and size >= before[name] + num]


async def _player(subject: Subject, task: Task) -> ScriptedPolicy:
    return (await make_policies(subject, task))[0]


async def close(subject: Subject) -> Iterable[Finding]:
    """`close` works in all cases: after a full episode, after an episode that was cut short, and after a failed
    `reset`.

    `close` is always called, even if `reset` never ran or stopped halfway. Attributes that only `reset` creates may
    then be missing. Set such attributes in the class or in `__init__`.
    """
    task = subject.sample[0]
    policy = (await make_policies(subject, task))[0]
    found = []
    ways = (("`reset` never ran", _unopened), ("the episode failed", _crashed), ("the episode timed out", _timed_out))
    with subject.timing.as_far_as_it_goes():
        for how, play in ways:
            try:
                await play(subject, task, policy)
            except (OutOfTimeError, TimedOutError):
                raise
            except (InfrastructureError, UndecidedError) as error:
                found.append({"when": how, "error": str(error)})
    if not found:
        return ()
    return [
        Finding(
            rule="environment.close",
            severity=Severity.ERROR,
            symptom=f"`close` fails when {found[0]['when']}.",
            evidence={"task": task.id, "failures": found},
            change="Let `close` only release what exists: it may be called before `reset` has finished.",
            confirm=AGAIN,
        )
    ]


async def _finished(subject: Subject, task: Task, policy: ScriptedPolicy) -> None:
    await subject.run_new_episode(task, policy)


async def _crashed(subject: Subject, task: Task, policy: ScriptedPolicy) -> None:
    """Run an episode whose policy fails halfway."""
    last = len((await subject.run_episode(task, policy, graded=False)).turns) // 2

    async def act(asked: Asked) -> Message:
        if asked.turn >= last:
            raise _CutShort
        message = policy.act(asked)
        return await message if isinstance(message, Awaitable) else message

    await _cut_short(subject, task, ScriptedPolicy("crashing", act))


async def _timed_out(subject: Subject, task: Task, policy: ScriptedPolicy) -> None:
    """Run an episode that is canceled halfway, while its policy is sampling."""
    last = len((await subject.run_episode(task, policy, graded=False)).turns) // 2
    is_waiting = asyncio.Event()

    async def act(asked: Asked) -> Message:
        if asked.turn >= last:
            is_waiting.set()
            await asyncio.Event().wait()
        message = policy.act(asked)
        return await message if isinstance(message, Awaitable) else message

    playing = asyncio.ensure_future(subject.run_new_episode(task, ScriptedPolicy("waiting", act)))
    waiting = asyncio.ensure_future(is_waiting.wait())
    await asyncio.wait([playing, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    playing.cancel()
    with suppress(asyncio.CancelledError):
        await playing


async def _unopened(subject: Subject, task: Task, policy: ScriptedPolicy) -> None:
    """Create an environment and close it before it is reset."""
    async with subject.opened(task):
        pass


async def _cut_short(subject: Subject, task: Task, policy: ScriptedPolicy) -> None:
    try:
        await subject.run_new_episode(task, policy)
    except UndecidedError as error:
        if not isinstance(error.__cause__, _CutShort):
            raise


class _CutShort(Exception):
    """The error that a failing policy raises."""


def _is_left(path: str) -> bool:
    """Return True if a file that an episode created still exists. Devices and compiled code do not count."""
    return os.path.exists(path) and not path.startswith("/dev/") and "__pycache__" not in path
