"""Measures whether the suite of business domains is fair, by domain: experts, copying, guessing, leaks and speed."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import options, report
from sparring.environments import execute, opened
from sparring.environments.base import reset
from sparring.environments.suites import sop
from sparring.environments.suites.sop import SopDomain, final_output, worked
from sparring.environments.tools import tools_of
from sparring.types import Json, Message, Outcome, Task, Trajectory
from tests.environments.suites.copying import Copier, Sources, observed

EPISODES = 1000
MOST_GROWTH_MIB = 4.0
"""The largest growth of resident memory, over the last three quarters of the episodes, that the allocator's arenas can
explain."""


def score(domain: SopDomain, task: Task, messages: Sequence[Message]) -> float:
    """Return the strict score of a conversation."""
    trajectory = Trajectory(
        id=task.id,
        task=task,
        attempt=0,
        turns=(),
        messages=tuple(messages),
        outcome=Outcome.FINISHED,
        reward=None,
        score=None,
    )
    return float(domain.scorer(trajectory))  # type: ignore[arg-type]


def measure(domain: SopDomain, num_tokens: Any, num_episodes: int, num_tasks: int) -> dict[str, Any]:
    """Return the table row of a domain, with its figures."""
    known, fresh = domain.train_tasks(80 * num_tasks // 100), domain.held_out_tasks(num_tasks)
    conversations = asyncio.run(work(domain, fresh))
    turns = [sum(message["role"] == "assistant" for message in messages) for messages in conversations]
    copier = Copier(known, asyncio.run(observe(domain, known)))
    copied = [
        score(domain, task, [final_output(**copier.answer(sources))])
        for task, sources in zip(fresh, asyncio.run(observe(domain, fresh)), strict=True)
    ]
    answers = Counter(json.dumps(task.fields["answer"]) for task in domain.train_tasks(400))
    num_tools = len(domain.tool_names(sop.Difficulty()))
    num_distractors = len(tools_of(domain.desk)) - len(domain.tool_names(sop.Difficulty(longer=len(domain.clauses))))
    num_left, growth = leftovers(domain, num_episodes)
    return {
        "domain": domain.name,
        "tools": f"{num_tools} + {num_distractors}",
        "turns": f"{statistics.mean(turns):.1f}, {max(turns)}",
        "prompt": max(num_tokens(task) for task in known[:20]),
        "expert": statistics.mean(score(domain, *pair) for pair in zip(fresh, conversations, strict=True)),
        "copy all": statistics.mean(copied),
        "constant": answers.most_common(1)[0][1] / 400,
        "ms a call": 1000 * asyncio.run(median_seconds(domain, fresh[:50], conversations)),
        "left over": num_left,
        "MiB grown": growth,
    }


async def work(domain: SopDomain, tasks: Sequence[Task]) -> list[list[Message]]:
    return [await worked(domain.desk(), task) for task in tasks]


async def observe(domain: SopDomain, tasks: Sequence[Task]) -> list[Sources]:
    return [await observed(domain, task) for task in tasks]


async def median_seconds(domain: SopDomain, tasks: Sequence[Task], conversations: Sequence[Sequence[Message]]) -> float:
    """Return the median seconds that it takes to check and run a tool call of the expert, and to write the result as
    JSON."""
    seconds = []
    for task, conversation in zip(tasks, conversations, strict=False):
        async with opened(desk := domain.desk(), task):
            await reset(desk, task)
            for message in conversation:
                for call in message.get("tool_calls", ()):
                    function: dict[str, Json] = call["function"]
                    began = time.perf_counter()
                    await execute(desk, function["name"], function["arguments"])
                    seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def leftovers(domain: SopDomain, num_episodes: int) -> tuple[int, float]:
    """Return what these episodes leave behind in addition to what their first quarter left: resources, and resident
    MiB."""
    tasks = domain.train_tasks(num_episodes // 4)
    asyncio.run(work(domain, tasks))
    things_before, memory_before = left()
    for _ in range(3):
        asyncio.run(work(domain, tasks))
    things_after, memory_after = left()
    return sum(max(0, after - before) for after, before in zip(things_after, things_before, strict=True)), (
        memory_after - memory_before
    )


def left() -> tuple[tuple[int, ...], float]:
    """Return the counts of open files, threads, child processes, temporary files and service desks, and the resident
    MiB."""
    gc.collect()
    desks = sum(issubclass(type(found), sop.SopDesk) for found in gc.get_objects())
    children = sum(len((task / "children").read_text().split()) for task in Path("/proc/self/task").iterdir())
    num_files = len(os.listdir(tempfile.gettempdir()))
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return (len(os.listdir("/proc/self/fd")), threading.active_count(), children, num_files, desks), resident


def token_counter() -> Any:
    """Return a function that counts tokens for the embedded model. If the tokenizer was never loaded, the count is a
    quarter of the number of characters."""
    from tokenizers import Tokenizer

    from sparring.models.smollm2 import NAME, cache_directory

    file = cache_directory() / NAME / "tokenizer.json"
    if not file.is_file():
        return lambda task: sum(len(message["content"]) for message in task.messages) // 4
    tokenizer = Tokenizer.from_file(str(file))
    return lambda task: sum(len(tokenizer.encode(message["content"]).ids) for message in task.messages)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--domains", nargs="+", default=list(sop.DOMAINS), choices=list(sop.DOMAINS))
    arguments = parser.parse_args()
    num_tokens = token_counter()
    domains, num_episodes, num_tasks = (
        (arguments.domains[:1], 8, 10) if arguments.smoke else (arguments.domains, EPISODES, 100)
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        # The folder is private, so that files of other programs are not counted.
        tempfile.tempdir = folder
        for name in domains:
            began = time.monotonic()
            rows.append(measure(sop.DOMAINS[name], num_tokens, num_episodes, num_tasks))
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    replayed = [row["ms a call"] for row in rows if sop.DOMAINS[row["domain"]].pattern == "replay"]
    figures = {
        "expert, least": min(row["expert"] for row in rows),
        "copy all, most": max(row["copy all"] for row in rows),
        "constant, most": max(row["constant"] for row in rows),
        "ms a replayed call, most": max(replayed, default=0.0),
        "left over": float(sum(row["left over"] for row in rows)),
        "MiB grown, most": max(row["MiB grown"] for row in rows),
    }
    targets = {
        "expert, least": {"at_least": 1.0},
        "copy all, most": {"at_most": 0.3},
        "constant, most": {"at_most": 0.4},
        "ms a replayed call, most": {"at_most": 1.0},
        "left over": {"at_most": 0.0},
        "MiB grown, most": {"at_most": MOST_GROWTH_MIB},
    }
    sides = {"expert": sum(row["expert"] for row in rows), "constant": sum(row["constant"] for row in rows)}
    return report(
        "sop_suite", rows, figures=figures, targets=targets, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
