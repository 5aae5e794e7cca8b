"""Measures the cost per step of metrics, files and MLflow, with an MLflow server that answers, does not exist, or
hangs.

Each run trains pointer_chase for some steps in a separate process, synchronously and with the same seed, so that all
runs have the same episodes. The benchmark alternates between the ways of tracking. After that, the numbers and files of
each step are computed again from the stored episodes, to measure their cost alone. CPU seconds count only the trainer's
process, because a separate process with low priority reports to MLflow. `answers` uses a real server, and is skipped if
the full mlflow is not installed."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.report import needs, options, report
from sparring.evaluation.agreement import agreement
from sparring.metering.prices import usage_metrics
from sparring.rollouts.actions import StateVisits
from sparring.rollouts.metrics import rollout_metrics
from sparring.run_folders.stored import read_trajectories
from sparring.tracking.local import LocalTracker
from sparring.tracking.process import lower_priority
from sparring.types import Trajectory, TrajectoryGroup

RECIPE = Path(__file__).parents[1] / "recipes" / "pointer_chase"
OVERRIDES = ("warm_start.steps=40", "schedule.val_every=0", "schedule.save_every=0", "evaluation.val_num_tasks=4")
SMOKE = (
    "warm_start.steps=2",
    "warm_start.num_demonstrations=32",
    "batch.global_batch_size=2",
    "batch.group_size=2",
    "evaluation.allow_zero_baseline=true",
)
START_SECONDS = 120.0
SHARED_MEMORY = Path("/dev/shm")


def train(run: Path, steps: int, overrides: Sequence[str]) -> dict[str, float]:
    """Train in a separate process. Return the CPU seconds and wall-clock seconds per step."""
    command = [sys.executable, "-m", "benchmarks.tracking", "--train", str(run), "--steps", str(steps), *overrides]
    answer = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return json.loads(answer.stdout.splitlines()[-1])


def train_here(run: Path, steps: int, overrides: Sequence[str]) -> dict[str, float]:
    # Imported only in the processes that train.
    from sparring.trainer import MultiTurnRLTrainer

    fixed = [*OVERRIDES, f"schedule.max_steps={steps}", f"run.runs_dir={run.parent}", *overrides]
    trainer = MultiTurnRLTrainer(RECIPE, overrides=fixed, name=run.name, check=False, quiet=True)
    trainer.load()  # Loading is not counted.
    began = time.process_time()
    trainer.train()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    ends = [line["time"] for line in lines if "training/global_step" in line["metrics"]]
    episodes = sum(len(file.read_text("utf-8").splitlines()) for file in (run / "trajectories").glob("train-*.jsonl"))
    return {
        "episodes": episodes,
        "processor": (time.process_time() - began) / steps,
        "wall": (ends[-1] - ends[0]) / (len(ends) - 1),
    }


def smoked(run: Path, steps: int, overrides: Sequence[str]) -> dict[str, float]:
    return train_here(run, steps, [*SMOKE, *overrides])


def alone(run: Path, folder: Path) -> float:
    """Return the CPU seconds for the numbers and files of a step, computed again from its episodes."""
    visits, tracker = StateVisits(), LocalTracker(folder)
    files = sorted((run / "trajectories").glob("train-*.jsonl"))
    steps = [groups_of(read_trajectories(file)) for file in files]
    began = time.process_time()
    for step, groups in enumerate(steps):
        trajectories = [one for group in groups for one in group.trajectories]
        advantages = {one.id: (0.5,) * len(one.turns) for one in trajectories}
        numbers = rollout_metrics(groups, advantages, version=step)
        numbers |= agreement(trajectories, success_threshold=1.0).metrics() | visits.metrics(trajectories)
        numbers |= usage_metrics(computed=1.0, sampled=1.0, trained=1.0, seconds=1.0, prices={"sample": 1.0})
        tracker.log_metrics(step, numbers)
        tracker.log_groups(step, groups, split="train")
    tracker.close()
    return (time.process_time() - began) / len(steps)


def groups_of(trajectories: Sequence[Trajectory]) -> list[TrajectoryGroup]:
    groups: dict[str, list[Trajectory]] = {}
    for one in trajectories:
        groups.setdefault(one.id.rpartition("/")[0], []).append(one)
    return [TrajectoryGroup(task=members[0].task, trajectories=tuple(members)) for members in groups.values()]


@contextmanager
def hanging() -> Iterator[int]:
    """Open a port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        yield listening.getsockname()[1]


@contextmanager
def answering(folder: Path) -> Iterator[int]:
    port = free_port()
    command = [
        sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{folder / 'server.sqlite'}", "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    server = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, **quiet},
        preexec_fn=_lower_priority,
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(port):
            assert time.monotonic() < deadline, f"the MLflow server did not start within {START_SECONDS:g} s"
            time.sleep(0.5)
        yield port
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _lower_priority() -> None:
    """Give the trainer priority over the server, because a real server would not share its machine.

    If Linux divides CPU time by session first, niceness has no effect between sessions.
    """
    lower_priority()
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).is_success
    except httpx.HTTPError:
        return False


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def mlflow_at(port: int) -> list[str]:
    return ["tracking.mlflow=true", f"tracking.mlflow_uri=http://127.0.0.1:{port}"]


def measure(
    folder: Path, steps: int, rounds: int, *, only: str | None, play: Callable[..., dict[str, float]], smoke: bool
) -> tuple[list[dict[str, Any]], dict[str, float], dict[str, float]]:
    with ExitStack() as stack:
        ways: dict[str, list[str]] = {
            "files": [],
            "MLflow is not there": mlflow_at(free_port()),
            "MLflow hangs": mlflow_at(stack.enter_context(hanging())),
        }
        if not smoke and importlib.util.find_spec("sqlalchemy") is not None:
            # The database is in memory if possible, because a real server would not use the disk of the run.
            memory = SHARED_MEMORY if SHARED_MEMORY.is_dir() else folder
            kept = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory)))
            ways["MLflow answers"] = mlflow_at(stack.enter_context(answering(kept)))
        ways = {way: overrides for way, overrides in ways.items() if only is None or way == "files" or only in way}
        seen: dict[str, list[Mapping[str, float]]] = {way: [] for way in ways}
        own: list[float] = []
        for number in range(rounds):
            # The order alternates, so that a machine that becomes slower or faster favors no side.
            for way, overrides in list(ways.items())[:: 1 if number % 2 == 0 else -1]:
                run = folder / f"{way.replace(' ', '-')}-{number}"
                seen[way].append(play(run, steps, overrides))
                if way == "files":
                    (folder / f"again-{number}").mkdir()
                    own.append(alone(run, folder / f"again-{number}"))
    rows: list[dict[str, Any]] = []
    for way, found in seen.items():
        ratios = {
            key: median(one[key] / files[key] for one, files in zip(found, seen["files"], strict=True))
            for key in ("processor", "wall")
        }
        rows.append(
            {
                "tracked by": way,
                "processor seconds a step": median(one["processor"] for one in found),
                "to files": ratios["processor"],
                "wall seconds a step": median(one["wall"] for one in found),
                "wall, to files": ratios["wall"],
                "rounds": " ".join(
                    f"{one['processor'] / files['processor']:.2f}"
                    for one, files in zip(found, seen["files"], strict=True)
                ),
            }
        )
    share = median(cost / files["processor"] for cost, files in zip(own, seen["files"], strict=True))
    figures = {"metrics and files, share of a step": share}
    figures |= {f"{row['tracked by']}, to files": row["to files"] for row in rows[1:]}
    sides = {way: sum(one["episodes"] for one in found) for way, found in seen.items()}
    return rows, figures, sides


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", metavar="WAY", default=None, help="in addition to files: answers, hangs, or not there"
    )
    parser.add_argument("--train", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        print(json.dumps(train_here(arguments.train, arguments.steps, arguments.overrides)))
        return 0
    if importlib.util.find_spec("mlflow") is None:
        needs("MLflow: make mlflow")
    with tempfile.TemporaryDirectory() as name:
        if arguments.smoke:
            # This runs in the same process, because importing everything again would take longer than the steps.
            rows, figures, sides = measure(Path(name), 2, 1, only=arguments.only, play=smoked, smoke=True)
        else:
            rows, figures, sides = measure(
                Path(name), arguments.steps, arguments.rounds, only=arguments.only, play=train, smoke=False
            )
    most = {"metrics and files, share of a step": 0.03, "MLflow answers, to files": 1.03}
    targets = {figure: {"at_most": most.get(figure, 1.05)} for figure in figures}
    return report(
        "tracking", rows, figures=figures, targets=targets, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
