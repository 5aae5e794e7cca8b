"""Plays the same episodes of the recipe's own agent in a second process, in the opposite order and with another hash seed.

The process reads one JSON request from standard input, and prints the lines of each episode, by task, as one JSON line.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sparring.checks.evidence.own_agent import OwnEpisode, get_own_agent
from sparring.checks.evidence.subject import Subject
from sparring.checks.running.deadlines import Watch
from sparring.checks.running.time_budget import OutOfTimeError, Timing
from sparring.config import load_config
from sparring.types import Json

_LONGEST = 2_000


def compared_lines(episode: OwnEpisode) -> list[tuple[str, str]]:
    """Return what must be the same in every process, as (role, text) lines. A long text is cut, and has its hash."""
    lines = [*episode.transcript, *episode.handed_over, ("reward", f"{episode.reward}")]
    return [(role, text if len(text) <= _LONGEST else f"{text[:_LONGEST]} {_hash(text)}") for role, text in lines]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


async def play_episodes(subject: Subject, task_ids: Sequence[str]) -> dict[str, Json]:
    """Return the lines of the explorer's episodes by task id, as many as there is time for."""
    by_id, agent = {task.id: task for task in subject.own_tasks}, get_own_agent(subject)
    lines: dict[str, Json] = {}
    for task_id in task_ids:
        try:
            episode = await agent.explore(by_id[task_id])
        except OutOfTimeError:
            break
        lines[task_id] = None if episode.is_failure_of_agent else compared_lines(episode)
    return lines


def main() -> None:
    """Play the episodes of one request. `agent.same_elsewhere` starts this process."""
    request = json.loads(sys.stdin.readline())
    out = os.dup(1)
    os.dup2(2, 1)
    recipe = Path(request["recipe"])
    watch = Watch(seconds=request["call_seconds"], start_seconds=request["start_seconds"])
    config = load_config(recipe, request["overrides"])
    subject = Subject(config, recipe, watch=watch, timing=Timing(seconds=request["seconds"]))
    lines = asyncio.run(play_episodes(subject, request["tasks"]))
    with os.fdopen(out, "w", encoding="utf-8") as file:
        file.write(json.dumps(lines) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
