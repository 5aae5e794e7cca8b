"""Runs the same episodes in a second process, with different randomness and, on request, with a different order, clock
and working folder.

The process reads one JSON request from standard input and prints the result of `run_episodes` as one JSON line.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import time_machine

from sparring.agents.scripted import saying
from sparring.checks.evidence.answer_forms import canonical
from sparring.checks.evidence.subject import Subject, UndecidedError, write_transcript
from sparring.checks.running.deadlines import Watch
from sparring.checks.running.time_budget import OutOfTimeError, TimedOutError, Timing
from sparring.config import load_config
from sparring.types import Json, Task

SHIFT_SECONDS = 400 * 86_400 + 5 * 3_600 + 17 * 60 + 11
"""The number of seconds by which the clock is shifted. The shift changes the year, month, weekday, hour and minute."""


def fingerprint(task: Task) -> str:
    """Return a hash of the whole content of a task."""
    content = canonical([task.messages, task.fields, task.seed])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]


async def run_episodes(subject: Subject, episodes: Sequence[Mapping[str, Json]], *, backwards: bool) -> dict[str, Json]:
    """Run the episodes in order or `backwards`, and return their transcripts. Each episode is {"task", "policy",
    "script"}.

    A transcript is None if there was no time for the episode or a call timed out. `unplayed` contains the reason.
    """
    by_id = {task.id: task for task in subject.own_tasks}
    transcripts: list[Json] = []
    unplayed: dict[str, Json] | None = None
    for one in reversed(episodes) if backwards else episodes:
        task = by_id.get(one["task"])
        if task is None:
            transcripts.append(None)
            continue
        try:
            trajectory = await subject.run_episode(task, saying(one["policy"], one["script"]), graded=False)
        except (OutOfTimeError, TimedOutError) as error:
            unplayed = {"reason": str(error), "is_late": isinstance(error, TimedOutError)}
            transcripts.append(None)
            continue
        except UndecidedError as error:
            transcripts.append([["failed", str(error)]])
            continue
        transcripts.append([list(line) for line in write_transcript(trajectory.messages)])
    return {
        "tasks": {one["task"]: fingerprint(by_id[one["task"]]) for one in episodes if one["task"] in by_id},
        "transcripts": transcripts[::-1] if backwards else transcripts,
        "unplayed": unplayed,
        "tools": list(subject.tools),
        "offered": [] if subject.environment_class is None else list(subject.environment_class.offered_tools()),
    }


def main() -> None:
    """Run the episodes of one request. `environment.same_elsewhere` starts this process."""
    request = json.loads(sys.stdin.readline())
    out = os.dup(1)
    os.dup2(2, 1)
    # This does not replace the classes of `datetime`, because C libraries rely on them.
    moved = time_machine.travel(time.time() + SHIFT_SECONDS) if request["shifts_clock"] else nullcontext()
    timing = Timing(seconds=request["seconds"])
    if request["other_folder"]:
        os.chdir(tempfile.gettempdir())
    with moved:
        recipe = Path(request["recipe"])
        watch = Watch(seconds=request["call_seconds"], start_seconds=request["start_seconds"])
        config = load_config(recipe, request["overrides"])
        subject = Subject(config, recipe, watch=watch, timing=timing)
        result = asyncio.run(run_episodes(subject, request["episodes"], backwards=request["backwards"]))
    with os.fdopen(out, "w", encoding="utf-8") as file:
        file.write(json.dumps(result, default=repr) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
