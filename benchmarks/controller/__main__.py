"""Measures how the processor time of the controlling process grows with the number of concurrent sessions.

The process is that of `sparring train` with everything that it does itself: sessions, scheduler, tools, rewards, the
ledger on disk, advantages, batches, metrics, detectors and the files of a run. The engine is a script that answers after
about a second, and the learner computes nothing, because both would run elsewhere; each batch is dealt to ten ranks. All
sessions run at the same time, an episode has four turns, and a step has half as many episodes as there are sessions, so
that the work is proportional to their number. Time is counted between updates, when all sessions run. With `gateway`, the
agents come over HTTP: workers in a process of their own lease the episodes. The slope is that of a line through the
logarithms."""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.controller.agents import work
from benchmarks.controller.recipe.archive import encode_turn
from benchmarks.growth.__main__ import slope
from benchmarks.report import options, report
from benchmarks.vllm_controller import servers

RECIPE = Path(__file__).parent / "recipe" / "recipe.toml"
WAYS = ("tool loop", "gateway", "servers")
SESSIONS, SMOKE = (256, 1024, 4096), (16, 32)
LARGEST_SLOPE = 1.1
LATENCY = (0.5, 1.5)
SMOKE_LATENCY = (0.01, 0.03)
"""The shortest and the longest duration of a turn, in seconds."""
LOGPROB = -1.0
NUM_SERVERS = 2
NUM_RANKS = 10
"""Each batch is dealt to this number of learners, and encoded for them."""
KEY = "benchmark"
THREADS = {"sparring-loop": "event loop", "ledger-writer": "ledger", "sparring-local files": "files"}
"""The names of the threads of which each has a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What the process has done and used up to one update."""

    processor: float
    wall: float
    threads: Mapping[str, float]
    """Processor seconds by thread."""
    turns: int
    commits: int


def control(folder: Path, way: str, sessions: int, steps: int, urls: Sequence[str], *, smoke: bool) -> dict[str, float]:
    """Train in this process. Return what was used between the first and the last update."""
    # Imported only in the processes that train.
    from sparring.assembly import TrainingParts, load_training_parts
    from sparring.assembly.user_code import load_user_code
    from sparring.config import load_config
    from sparring.engines.scripted import ScriptedEngine
    from sparring.ledger import Ledger
    from sparring.protocols import Engine
    from sparring.rollouts import Collector, EpisodeAgent, Grading, MainPolicy, RolloutLimits
    from sparring.runtime import event_loop
    from sparring.runtime.plugins import load_object
    from sparring.runtime.remote import dumps, to_json
    from sparring.tracking import Console
    from sparring.training.packing import deal
    from sparring.training_run.lifecycle import TrainRequest, run_training
    from sparring.training_run.loading import RunLoader
    from sparring.types import Completion, SampleRequest, TrainingBatch

    port, latency = free_port(), SMOKE_LATENCY if smoke else LATENCY
    archive = [
        "environment.target=archive:Archive",
        "environment.max_turns=4",
        "reward.reward=archive:reward",
        "reward.scorer=archive:scorer",
    ]
    addresses = ", ".join(f'"{url}"' for url in urls)
    source = {
        "tool loop": archive,
        "gateway": ["agent.pull=true", f"agent.gateway_port={port}"],
        "servers": [
            *archive,
            "engine.type=vllm",
            f"engine.base_urls=[{addresses}]",
            f"engine.max_running={sessions}",
            "model.trained_weights=lora",
        ],
    }
    overrides = [
        f"run.runs_dir={folder}",
        f"batch.global_batch_size={max(1, sessions // 16)}",
        f"rollout.rollout_max_concurrency={sessions}",
        f"schedule.max_steps={steps}",
        *source[way],
    ]
    marks: list[Mark] = []
    requests = 0

    class IdleLearner:
        """A learner that deals each batch as a group of learners does, computes nothing, and notes the time of each
        update."""

        def __init__(self, parts: TrainingParts) -> None:
            self._parts = parts

        def __getattr__(self, name: str) -> Any:
            return getattr(self._parts.learner, name)

        def forward_backward(self, batch: TrainingBatch, *_: Any) -> dict[str, float]:
            for share in deal(batch, NUM_RANKS):
                dumps({"batch": to_json(share.batch)})
            marks.append(mark(requests, self._parts.ledger.num_commits))
            return {}

        def optim_step(self, _: float) -> dict[str, float]:
            return {}

        def logprobs(self, batch: TrainingBatch) -> list[float]:
            return [LOGPROB] * batch.num_trained_tokens

    class CountedEngine:
        """An engine that counts the turns. It scores no ids, because the servers compute nothing."""

        def __init__(self, engine: Engine) -> None:
            self._engine = engine
            self.capabilities = replace(engine.capabilities, scores_given_ids=False)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._engine, name)

        async def sample(self, request: SampleRequest, on_token: Any = None) -> Completion:
            nonlocal requests
            requests += 1
            return await self._engine.sample(request, on_token)

    def load(config: Any, recipe_dir: Path, ledger: Ledger, *, announce: Any, folder: Path | None) -> TrainingParts:
        parts = load_training_parts(config, recipe_dir, ledger, announce=announce, folder=folder)
        engine: Any = CountedEngine(parts.engine if urls else build_script(parts, recipe_dir))
        if not urls:
            event_loop.submit(parts.engine.close()).result()
        code = load_user_code(config, recipe_dir, announce)
        collector = Collector(
            agent=EpisodeAgent(code.agent, code.close),
            policy=MainPolicy(engine, parts.chat),
            grading=Grading(reward=code.reward, scorer=code.scorer),
            ledger=ledger,
            seed=0,
            limits=RolloutLimits(timeout_seconds=600, max_concurrency=sessions),
        )
        idle: Any = IdleLearner(parts)
        return replace(parts, engine=engine, collector=collector, learner=idle)

    def build_script(parts: TrainingParts, recipe_dir: Path) -> ScriptedEngine:
        messages_of = load_object("archive:messages_of", folder=recipe_dir)
        num_turns: int = load_object("archive:NUM_TURNS", folder=recipe_dir)
        answers = [[parts.chat.answer(one, ()) for one in messages_of(turn)] for turn in range(num_turns)]

        def answer(request: SampleRequest) -> Sequence[int]:
            engine.requests.clear()
            return random.Random(request.seed).choice(answers[request.order[-1]])

        engine = ScriptedEngine(
            answer,
            logprob=LOGPROB,
            max_context_tokens=1024,
            seconds=lambda request: random.Random(request.seed + 1).uniform(*latency),
        )
        return engine

    os.environ["SPARRING_WORKER_KEY"] = KEY
    config = load_config(RECIPE, overrides)
    with RunLoader(load, RECIPE, config, console=Console(quiet=True), name="run") as loader:
        request = TrainRequest(
            overrides=tuple(overrides), is_checked=False, model_weights=None, resume=False, allow_changed=()
        )
        with workers(way, port, sessions, smoke=smoke):
            event_loop.submit(run_training(loader, request, Console(quiet=True), asyncio.Event())).result()
    return {**used_between(marks[0], marks[-1]), **size_of(folder / "run", requests)}


def mark(turns: int, commits: int) -> Mark:
    clocks = {
        thread.name: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
        if thread.ident is not None
    }
    return Mark(processor=time.process_time(), wall=time.perf_counter(), threads=clocks, turns=turns, commits=commits)


def used_between(first: Mark, last: Mark) -> dict[str, float]:
    turns, seconds = last.turns - first.turns, last.processor - first.processor
    parts = {
        f"{shown}, ms": 1000 * (last.threads[name] - first.threads.get(name, 0.0)) / turns
        for name, shown in THREADS.items()
    }
    return {
        "turns": turns,
        "processor, s": seconds,
        "a turn, ms": 1000 * seconds / turns,
        **parts,
        "turns/s possible": turns / seconds,
        "turns/s": turns / (last.wall - first.wall),
        "commits/s": (last.commits - first.commits) / (last.wall - first.wall),
        "turns/commit": turns / (last.commits - first.commits),
    }


def size_of(run: Path, turns: int) -> dict[str, float]:
    return {
        "ledger, bytes a turn": (run / "ledger.sqlite").stat().st_size / turns,
        "peak memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


@contextmanager
def workers(way: str, port: int, sessions: int, *, smoke: bool) -> Iterator[None]:
    """Run the workers that the gateway needs, in a separate process."""
    if way != "gateway":
        yield
        return
    # A smoke run forks, because importing everything again would take longer than the measurement.
    context: Any = multiprocessing.get_context("fork" if smoke else "spawn")
    process = context.Process(target=work, args=(port, sessions, KEY), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def measure(way: str, sessions: int, steps: int, *, smoke: bool) -> dict[str, float]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        urls: list[str] = []
        if way == "servers":
            latency = SMOKE_LATENCY if smoke else LATENCY
            tokens = encode_turn()
            urls = stack.enter_context(servers(NUM_SERVERS, tokens, sum(latency) / 2))
        if smoke:
            return control(Path(folder), way, sessions, steps, urls, smoke=True)
        words = [folder, way, str(sessions), str(steps), *urls]
        answer = subprocess.run(
            [sys.executable, "-m", "benchmarks.controller", "--control", *words],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    return json.loads(answer.stdout.splitlines()[-1])


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="rounds; the figures are medians")
    parser.add_argument(
        "--steps", type=int, default=5, help="updates, an odd number; the time before the first one is not counted"
    )
    parser.add_argument("--only", choices=WAYS, nargs="+", default=list(WAYS), help="the ways in which agents come")
    parser.add_argument("--sessions", type=int, nargs="+", default=list(SESSIONS), help="numbers of sessions")
    parser.add_argument("--control", nargs="+", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.control is not None:
        folder, way, size, steps, *urls = arguments.control
        print(json.dumps(control(Path(folder), way, int(size), int(steps), urls, smoke=False)))
        return 0
    sizes, steps = (SMOKE, 3) if arguments.smoke else (arguments.sessions, arguments.steps)
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(1 if arguments.smoke else arguments.rounds):
        for way in arguments.only:
            for size in sizes:
                one = measure(way, size, steps, smoke=arguments.smoke)
                found.setdefault((way, size), []).append(one)
                print(f"{way}, {size} sessions: {one['a turn, ms']:.2f} ms a turn", file=sys.stderr, flush=True)
    rows: list[dict[str, Any]] = [
        {"agents": way, "sessions": size, **{key: median(one[key] for one in runs) for key in runs[0]}}
        for (way, size), runs in found.items()
    ]
    figures, targets, sides = {}, {}, {}
    for way in arguments.only:
        mine = [row for row in rows if row["agents"] == way]
        if len(mine) > 1:
            figures[f"slope of processor time, {way}"] = slope(sizes, [row["processor, s"] for row in mine])
            targets[f"slope of processor time, {way}"] = {"at_most": LARGEST_SLOPE}
        figures[f"turns/s that the process can serve, {way}"] = min(row["turns/s possible"] for row in mine)
        sides[way] = sum(row["turns"] for row in mine)
    return report(
        "controller", rows, figures=figures, targets=targets, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
