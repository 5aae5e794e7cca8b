"""Trains pointer_chase on a Ray cluster of one machine, and kills a part of each kind while it trains.

A Ray head is started, and `sparring train --on place.toml` starts the rest on it: two vLLM servers, two learner ranks (gloo) and
two environment workers that connect over TCP. While the run trains, `kill -9` ends a worker, then a rank, then a server. The run
must end by itself with an exact ledger and a policy that has learned. Then `sparring train --resume` continues it on one rank.
The recipe is the file of the repository, and only the place file names the cluster. `make cluster` installs what is needed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.report import needs, options, report
from benchmarks.vllm import LEARNER, POLICIES, RECIPE, read_run

PLACE = """
[engine]
type = "vllm"
num_servers = 2
[learner]
type = "group"
num_ranks = 2
rank_timeout = 120
[environment]
workers = 2
[launch]
on = "ray"
ray_address = "{address}"
num_threads = 1
"""
PARTS = {
    "worker": ("sparring.workers.process",),
    "rank": ("-m", "sparring", "learner"),
    "server": ("vllm", "serve"),
}
"""Words of the command of each part, in the order in which they are killed."""
CPUS = 16
"""The processors that the cluster counts, one for each part. The parts wait for each other most of the time."""
PORT = 6391
LIMIT_SECONDS = 900.0


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=14, help="training steps")
    parser.add_argument("--tasks", type=int, default=64, help="held-out tasks, four episodes of each")
    arguments = parser.parse_args()
    _require()
    steps, tasks = (5, 2) if arguments.smoke else (arguments.steps, arguments.tasks)
    small = ("batch.global_batch_size=2", "batch.group_size=2", "warm_start.steps=2") if arguments.smoke else ()
    with tempfile.TemporaryDirectory() as name, start_cluster() as address:
        folder = Path(name)
        place = folder / "cluster.toml"
        place.write_text(PLACE.format(address=address), "utf-8")
        changes = [
            *LEARNER,
            *small,
            f"run.runs_dir={folder}",
            f"schedule.max_steps={steps}",
            f"schedule.val_every={steps}",
            "schedule.save_every=4",
            "evaluation.val_num_tasks=2",
            "evaluation.allow_zero_baseline=true",
            f"evaluation.eval_num_tasks={tasks}",
        ]
        start_time = time.monotonic()
        run = folder / "killed"
        code, killed = train_and_kill(run, ["--on", str(place), *changes], steps)
        seconds = time.monotonic() - start_time
        row = {"run": "two ranks, with kills", "exit code": code, "seconds": seconds, **killed, **read_run(run)}
        rows: list[dict[str, Any]] = [{**row, "verified": verify(run), **evaluate(run)}]

        more = [f"schedule.max_steps={steps + 2}", "learner.num_ranks=1"]
        start_time = time.monotonic()
        code = train(["--resume", str(run), *more], folder / "resumed.log")
        seconds = time.monotonic() - start_time
        row = {"run": "resumed on one rank", "exit code": code, "seconds": seconds, **read_run(run)}
        rows.append({**row, "verified": verify(run)})
    return report(
        "cluster",
        rows,
        figures={
            "runs that failed": float(sum(row["exit code"] != 0 for row in rows)),
            "parts that were killed": float(len(killed)),
            "problems in a ledger": float(sum(row["problems"] + (not row["verified"]) for row in rows)),
            "gain on held-out tasks": rows[0]["tuned"] - rows[0]["warm_start"],
            "steps after the resumption": float(rows[1]["steps"] - rows[0]["steps"]),
        },
        targets={
            "runs that failed": {"at_most": 0},
            "parts that were killed": {"at_least": len(PARTS)},
            "problems in a ledger": {"at_most": 0},
            "gain on held-out tasks": {"at_least": 0.1},
            "steps after the resumption": {"at_least": 2},
        },
        path=arguments.json,
        sides={row["run"]: row["episodes"] for row in rows},
        smoke=arguments.smoke,
    )


def _require() -> None:
    from importlib.util import find_spec

    from sparring.engines.servers.environment import default_folder, find_vllm
    from sparring.errors import ServiceError

    if find_spec("ray") is None:
        needs("Ray: make cluster")
    try:
        find_vllm(default_folder())
    except ServiceError:
        needs("vLLM: make cluster")


class Cluster:
    """A Ray head on this machine, and further nodes with other loopback addresses."""

    def __init__(self, port: int = PORT, num_cpus: int = CPUS) -> None:
        """Start it, and wait until it answers."""
        self.address = f"127.0.0.1:{port}"
        self._ray = ray = Path(sys.executable).parent / "ray"
        self._nodes: list[subprocess.Popen[bytes]] = []
        options = [
            "--port",
            str(port),
            "--num-cpus",
            str(num_cpus),
            "--include-dashboard=false",
            "--disable-usage-stats",
        ]
        self._folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")  # the paths of its sockets must be short
        self._head = subprocess.Popen(
            [str(ray), "start", "--head", "--block", "--temp-dir", self._folder.name, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 120
        while subprocess.run([str(ray), "health-check", "--address", self.address], capture_output=True).returncode:
            if time.monotonic() > deadline or self._head.poll() is not None:
                self.kill()
                raise SystemExit("the Ray head did not start within 120 s")
            time.sleep(1)

    def add_node(self, host: str, num_cpus: int) -> None:
        options = ["--address", self.address, "--node-ip-address", host, "--num-cpus", str(num_cpus), "--block"]
        self._nodes.append(
            subprocess.Popen(
                [str(self._ray), "start", *options, "--disable-usage-stats"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def kill_node(self, host: str) -> None:
        """End all processes of a node, as if its machine were lost."""
        self._kill_processes(host)

    def kill(self) -> None:
        """End all processes of the head and of all nodes."""
        for process in (self._head, *self._nodes):
            process.kill()
            process.wait()
        self._kill_processes("")
        self._folder.cleanup()

    def _kill_processes(self, host: str) -> None:
        """End the processes that name the folder of the head, and the address of a node, in their arguments."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                arguments = (entry / "cmdline").read_bytes()
                if self._folder.name.encode() in arguments and host.encode() in arguments:
                    os.kill(int(entry.name), signal.SIGKILL)


@contextmanager
def start_cluster(port: int = PORT) -> Iterator[str]:
    """Start a Ray head on this machine, and yield its address."""
    cluster = Cluster(port)
    try:
        yield cluster.address
    finally:
        cluster.kill()


def train_and_kill(run: Path, arguments: Sequence[str], steps: int) -> tuple[int, dict[str, Any]]:
    """Train a run, and kill one of each kind of part after a share of the steps. Return the exit code, and the step after
    which each part was killed."""
    command = [sys.executable, "-m", "sparring", "train", str(RECIPE), "--name", run.name, "--no-check", *arguments]
    killed: dict[str, Any] = {}
    with (run.parent / f"{run.name}.log").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + LIMIT_SECONDS
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.terminate()
            left = [part for part in PARTS if f"killed: {part}" not in killed]
            done = count_steps(run)
            if left and done >= (len(PARTS) - len(left) + 1) * steps // (len(PARTS) + 2):
                victim = find_part(left[0])
                os.kill(victim, signal.SIGKILL)
                killed[f"killed: {left[0]}"] = f"after step {done}"
            time.sleep(0.2)
    if process.returncode:
        print(output_end(run.parent / f"{run.name}.log"))
    return process.returncode, killed


def train(arguments: Sequence[str], log: Path) -> int:
    with log.open("w") as output:
        command = [sys.executable, "-m", "sparring", "train", *arguments]
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=LIMIT_SECONDS).returncode
    if code:
        print(output_end(log))
    return code


def count_steps(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    if not metrics.exists():
        return 0
    return metrics.read_text("utf-8").count('"training/num_trajectories"')


def find_part(part: str) -> int:
    """Return the id of a process of this kind."""
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda one: int(one.name)):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        names = [Path(word).name for word in words]
        if all(word in words or word in names for word in PARTS[part]):
            return int(entry.name)
    raise SystemExit(f"no {part} runs")


def output_end(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", errors="replace").splitlines()[-40:])


def verify(run: Path) -> bool:
    found = subprocess.run([sys.executable, "-m", "sparring", "verify", str(run)], capture_output=True, text=True)
    if found.returncode:
        print(found.stdout, found.stderr)
    return found.returncode == 0


def evaluate(run: Path) -> dict[str, float]:
    """Return the success of the warm start and of the tuned policy on held-out tasks at temperature 1. The engine of this
    process samples."""
    from sparring import MultiTurnRLEvaluator

    found = MultiTurnRLEvaluator(
        run, policies=POLICIES, temperatures=[1.0], overrides=["engine.type=torch"], quiet=True
    ).evaluate()
    return {policy: one.success.mean for policy, one in zip(POLICIES, found.evaluations, strict=True)}


if __name__ == "__main__":
    sys.exit(main())
