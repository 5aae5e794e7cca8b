"""Is the suite of business domains fair and clean? Experts, copying, guessing, leaks and speed, for each domain."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import report
from sparring.environments import execute, opened
from sparring.environments.base import reset
from sparring.environments.suites import sop
from sparring.environments.suites.sop import SopDomain, final_output, worked
from sparring.environments.tools import tools_of
from sparring.types import Json, Message, Outcome, Task, Trajectory
from tests.environments.suites.copying import Copier, observed

EPISODES = 1000
MOST_GROWTH_MIB = 4.0
"""Of resident memory over the last three quarters of the episodes: what the allocator's arenas come to."""


def score(domain: SopDomain, task: Task, messages: Sequence[Message]) -> float:
    """The strict score of a conversation."""
    trajectory = Trajectory(
        id=task.id, task=task, attempt=0, turns=(), messages=tuple(messages), outcome=Outcome.FINISHED, reward=None,
        score=None,
    )  # fmt: skip
    return float(domain.scorer(trajectory))  # type: ignore[arg-type]


async def measure(domain: SopDomain, num_tokens: Any) -> dict[str, Any]:
    """One row: the domain by its figures."""
    began = time.monotonic()
    known, fresh = domain.train_tasks(80), domain.held_out_tasks(100)
    conversations = [await worked(domain.desk(), task) for task in fresh]
    turns = [sum(message["role"] == "assistant" for message in messages) for messages in conversations]
    copier = Copier(known, [await observed(domain, task) for task in known])
    copied = [score(domain, task, [final_output(**copier.answer(await observed(domain, task)))]) for task in fresh]
    answers = Counter(json.dumps(task.fields["answer"]) for task in domain.train_tasks(400))
    return {
        "domain": domain.name,
        "pattern": domain.pattern,
        "tools": len(domain.tool_names(sop.Knobs())),
        "distractors": len(tools_of(domain.desk)) - len(domain.tool_names(sop.Knobs(longer=len(domain.clauses)))),
        "outputs": len(domain.answer_form),
        "turns": statistics.mean(turns),
        "most turns": max(turns),
        "prompt tokens": max(num_tokens(task) for task in known[:20]),
        "expert": statistics.mean(score(domain, *pair) for pair in zip(fresh, conversations, strict=True)),
        "copy all": statistics.mean(copied),
        "constant": answers.most_common(1)[0][1] / 400,
        "ms a call": 1000 * await median_seconds(domain, fresh[:50], conversations),
        **await leftovers(domain),
        "seconds": time.monotonic() - began,
    }


async def median_seconds(domain: SopDomain, tasks: Sequence[Task], conversations: Sequence[Sequence[Message]]) -> float:
    """Of the expert's tool calls, checked, run and written as JSON."""
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


async def leftovers(domain: SopDomain) -> dict[str, Any]:
    """What EPISODES episodes leave: open files, threads, processes and folders more than after the first quarter."""
    tasks = domain.train_tasks(50)
    before, left = None, (0, 0.0)
    for number in range(EPISODES):
        await worked(domain.desk(), tasks[number % len(tasks)])
        if number == EPISODES // 4:
            before = things()
    assert before is not None
    after = things()
    left = sum(max(0, more - less) for more, less in zip(after[0], before[0], strict=True)), after[1] - before[1]
    return {"left over": left[0], "MiB grown": left[1]}


def things() -> tuple[tuple[int, ...], float]:
    """Open files, threads, child processes, temporary folders, desks; and resident MiB."""
    gc.collect()
    desks = sum(issubclass(type(found), sop.SopDesk) for found in gc.get_objects())
    children = sum(len((task / "children").read_text().split()) for task in Path("/proc/self/task").iterdir())
    folders = sum(name.startswith("sparring-") for name in os.listdir(os.environ.get("TMPDIR", "/tmp")))
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return (len(os.listdir("/proc/self/fd")), threading.active_count(), children, folders, desks), resident


def token_counter() -> Any:
    """Tokens of a task's messages for the embedded model; a fourth of the characters where it was never loaded."""
    from tokenizers import Tokenizer

    from sparring.models.smollm2 import NAME, cache_directory

    file = cache_directory() / NAME / "tokenizer.json"
    if not file.is_file():
        return lambda task: sum(len(message["content"]) for message in task.messages) // 4
    tokenizer = Tokenizer.from_file(str(file))
    return lambda task: sum(len(tokenizer.encode(message["content"]).ids) for message in task.messages)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--domains", nargs="+", default=list(sop.DOMAINS), choices=list(sop.DOMAINS))
    arguments = parser.parse_args()
    num_tokens = token_counter()
    rows = []
    for name in arguments.domains:
        rows.append(asyncio.run(measure(sop.DOMAINS[name], num_tokens)))
        print(f"{name}: {rows[-1]['seconds']:.0f} s", file=sys.stderr, flush=True)
    figures = {
        "expert, least": min(row["expert"] for row in rows),
        "copy all, most": max(row["copy all"] for row in rows),
        "constant, most": max(row["constant"] for row in rows),
        "ms a replayed call, most": max((row["ms a call"] for row in rows if row["pattern"] == "replay"), default=0.0),
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
    return report("sop_suite", rows, figures=figures, targets=targets, path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
