"""Is the environment the same in another process, in another order, at another time?"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from sparring.checks.calls import players
from sparring.checks.registry import check
from sparring.checks.second_process import fingerprint
from sparring.checks.subject import Subject, first_difference, transcript
from sparring.checks.timing import MOST_PATIENT, OutOfTimeError, TimedOutError, UndecidedError
from sparring.environments.base import CLOSE_SECONDS
from sparring.findings import Finding, Severity
from sparring.types import Json, Task, Trajectory

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
LONGEST_SECONDS = 30.0
"""How long another process may take, on an idle machine."""


@check("environment.same_elsewhere", needs=("environment",), seconds=LONGEST_SECONDS)
async def same_elsewhere(subject: Subject) -> Iterable[Finding]:
    """Tasks, tools and episodes are the same in another process, in another order, with another hash seed, a year later by
    the clock.

    A run that is resumed, a replay and an evaluation next month must meet the same world. Differences come from the order
    of sets, from dates in results, from randomness at import, from what is kept of the episodes before. Take the time of a
    task from the task, sort, and keep nothing.
    """
    episodes = await _episodes(subject)
    later = await _later(subject)
    difference = _difference_elsewhere(subject, episodes, later)
    if difference is None:
        return ()
    when, change = "a year later by the clock", "Take dates and times from the task; `environment.clock` names lines."
    backwards = await _elsewhere(subject, episodes, shifts_clock=False, backwards=True)
    if _difference_elsewhere(subject, episodes, backwards) is not None:
        forwards = await _elsewhere(subject, episodes, shifts_clock=False, backwards=False)
        if _difference_elsewhere(subject, episodes, forwards) is None:
            when, change = (
                "when episodes are played in another order",
                "Keep nothing between episodes: no cache, no counter.",
            )
        else:
            when = "in another process"
            change = "Sort what comes out of sets and directories, and seed what is drawn at import."
    return [
        Finding(
            rule="environment.same_elsewhere",
            severity=Severity.ERROR,
            symptom=f"the same recipe gives {difference.pop('what')} {when}.",
            evidence=difference,
            change=change,
            confirm=AGAIN,
        )
    ]


@check("environment.tool_order", needs=("environment",))
async def tool_order(subject: Subject) -> Iterable[Finding]:
    """The tools are offered in the same order every time.

    The list is part of every prompt. Another order is another prompt for the model, and it ends the reuse of what was
    computed for it. Define tools as methods; if `offered_tools` is overridden, have it return a sorted list.
    """
    cls = subject.environment_class
    assert cls is not None, "the rule needs an environment"
    here = [list(cls.offered_tools()) for _ in range(3)]
    there = (await _later(subject))["offered"]
    orders = [[str(one["function"]["name"]) for one in offered] for offered in (*here, there)]
    if here[0] == here[1] == here[2] == there:
        return ()
    return [
        Finding(
            rule="environment.tool_order",
            severity=Severity.ERROR,
            symptom="the tools that go to the model differ from one time to the next.",
            evidence={"in_this_process": orders[:3], "in_another": orders[3]},
            change="Return the tools in one order, with the same text: sort them by name.",
            confirm=AGAIN,
        )
    ]


async def _episodes(subject: Subject) -> list[tuple[Task, str, Trajectory]]:
    """What the sampled tasks look like here: (task, policy, trajectory)."""
    episodes = []
    with subject.timing.as_far_as_it_goes():
        for task in subject.sample:
            for policy in await players(subject, task):
                episodes.append((task, policy.name, await subject.play(task, policy, judged=False)))
    return episodes


async def _later(subject: Subject) -> dict[str, Json]:
    """What another process says a year later; it is asked once."""
    if "later" not in subject.shared:
        subject.shared["later"] = await _elsewhere(subject, await _episodes(subject), shifts_clock=True, backwards=True)
    return subject.shared["later"]


async def _elsewhere(
    subject: Subject, episodes: Sequence[tuple[Task, str, Trajectory]], *, shifts_clock: bool, backwards: bool
) -> dict[str, Json]:
    """What `second_process.played` returns in a process of its own. Raises UndecidedError when it does not return, and
    TimedOutError or OutOfTimeError when it played no episode."""
    request = {
        "seconds": subject.timing.left,
        "call_seconds": subject.watch.seconds * subject.watch.patience,
        "start_seconds": subject.watch.start_seconds * subject.watch.patience,
        "recipe": str(subject.recipe.resolve()),
        "overrides": list(subject.overrides),
        "shifts_clock": shifts_clock,
        "backwards": backwards,
        "episodes": [
            {"task": task.id, "policy": name, "script": [turn.message for turn in played.turns]}
            for task, name, played in episodes
        ],
    }
    here = os.environ.get("PYTHONHASHSEED", "")
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "4321" if here != "4321" else "1234",
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    with tempfile.TemporaryFile() as errors:
        # Its own group: what it starts ends with it, and may hold its pipe open.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "sparring.checks.second_process", stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=errors, env=environment, start_new_session=True, limit=1 << 26,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018
        limit = min(subject.timing.left, LONGEST_SECONDS * MOST_PATIENT) + subject.watch.limit("reset")
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            async with asyncio.timeout(limit):
                line = await process.stdout.readline()
        except TimeoutError:
            raise TimedOutError(f"another process had not played the episodes after {limit:.3g} s") from None
        except asyncio.CancelledError:
            process.send_signal(signal.SIGINT)  # it closes the environment of the episode under way
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), CLOSE_SECONDS)
            raise
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if not line:
            code = process.returncode or 0
            how = f"signal {-code} ended it" if code < 0 else f"exit code {code}"
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
            raise UndecidedError(f"another process could not play the episodes ({how}), and wrote last: {last[0]}")
    played = json.loads(line)
    late = played["unplayed"]
    if late is not None and not any(played["transcripts"]):
        raise (TimedOutError if late["is_late"] else OutOfTimeError)(late["reason"])
    return played


def _difference_elsewhere(
    subject: Subject, episodes: Sequence[tuple[Task, str, Trajectory]], there: Mapping[str, Json]
) -> dict[str, Json] | None:
    if there["tools"] != list(subject.tools):
        return {"what": "other tools", "here": list(subject.tools), "there": there["tools"]}
    for (task, name, played), lines in zip(episodes, there["transcripts"], strict=True):
        if there["tasks"].get(task.id) != fingerprint(task):
            missing = task.id not in there["tasks"]
            return {
                "what": "other tasks",
                "task": task.id,
                "there": "it is missing" if missing else "its content differs",
            }
        difference = None if lines is None else first_difference(transcript(played.messages), lines)
        if difference is not None:
            return {"what": "another conversation", "task": task.id, "policy": name, **difference}
    return None
