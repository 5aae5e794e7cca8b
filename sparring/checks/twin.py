"""The same episodes in a process of their own: other hash seed, other randomness, and by the clock a year later.

Reads one JSON request from standard input, prints {"tasks", "transcripts", "tools"} as one JSON line.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparring.checks.scripted import saying
from sparring.checks.subject import Subject, UndecidedError, transcript
from sparring.config import load_config
from sparring.types import Json, Task

SHIFT_SECONDS = 400 * 86_400 + 5 * 3_600 + 17 * 60 + 11
"""To another year, month, weekday, hour and minute."""


def fingerprint(task: Task) -> str:
    """Of all that a task says."""
    content = json.dumps([task.messages, task.fields, task.seed], sort_keys=True, default=repr)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


async def played(subject: Subject, episodes: Sequence[Mapping[str, Json]], *, backwards: bool) -> dict[str, Json]:
    """What these episodes look like here, played from the first on or from the last: {"task", "policy", "script"} each."""
    by_id = {task.id: task for task in subject.own_tasks}
    transcripts: list[Json] = []
    for one in reversed(episodes) if backwards else episodes:
        task = by_id.get(one["task"])
        if task is None:
            transcripts.append(None)
            continue
        try:
            trajectory = await subject.play(task, saying(one["policy"], one["script"]), judged=False)
        except UndecidedError as error:
            transcripts.append([["failed", str(error)]])
            continue
        transcripts.append([list(line) for line in transcript(trajectory.messages)])
    return {
        "tasks": {one["task"]: fingerprint(by_id[one["task"]]) for one in episodes if one["task"] in by_id},
        "transcripts": transcripts[::-1] if backwards else transcripts,
        "tools": list(subject.tools),
        "offered": [] if subject.environment_class is None else list(subject.environment_class.offered_tools()),
    }


def shift_clock() -> None:
    """Have this process's clocks say a later time, for code that is imported after this."""
    real_time, real_time_ns = time.time, time.time_ns
    shift = datetime.timedelta(seconds=SHIFT_SECONDS)

    class ShiftedDatetime(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return super().now(tz) + shift

        @classmethod
        def utcnow(cls) -> Any:
            return super().now(datetime.UTC).replace(tzinfo=None) + shift

        @classmethod
        def today(cls) -> Any:
            return super().now() + shift

    class ShiftedDate(datetime.date):
        @classmethod
        def today(cls) -> Any:
            return super().today() + shift

    real = {name: getattr(time, name) for name in ("localtime", "gmtime")}
    real_strftime = time.strftime

    def shifted(name: str) -> Any:
        return lambda seconds=None: real[name](time.time() if seconds is None else seconds)

    time.time = lambda: real_time() + SHIFT_SECONDS
    time.time_ns = lambda: real_time_ns() + SHIFT_SECONDS * 10**9
    time.localtime, time.gmtime = shifted("localtime"), shifted("gmtime")
    time.strftime = lambda form, at=None: real_strftime(form, time.localtime() if at is None else at)
    datetime.datetime, datetime.date = ShiftedDatetime, ShiftedDate  # pyright: ignore[reportAttributeAccessIssue]


def main() -> None:
    """Run by `environment.same_elsewhere`."""
    request = json.loads(sys.stdin.readline())
    out = os.dup(1)
    os.dup2(2, 1)
    if request["shifts_clock"]:
        shift_clock()
    recipe = Path(request["recipe"])
    subject = Subject(load_config(recipe, request["overrides"]), recipe)
    result = asyncio.run(played(subject, request["episodes"], backwards=request["backwards"]))
    with os.fdopen(out, "w", encoding="utf-8") as file:
        file.write(json.dumps(result, default=repr) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
