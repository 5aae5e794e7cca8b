"""Runs everything that needs a GPU on the GPU of this machine, in ten minutes: tests, parity, learning, rates and an 8B
run.

`PYTHON=python3 make gpu` runs every part in a separate process with a deadline. A part that fails or runs out of memory
therefore does not affect the others. The benchmark uses random weights and needs no network. The interpreter must have
torch, transformers, peft, safetensors, pydantic, httpx and the rest of the `train` extra. `--smoke` runs tiny shapes on
the CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import needs, options, report

ROOT = Path(__file__).parents[2]
TESTS = ("tests/gpu", "tests/contracts/test_engines.py", "tests/contracts/test_learners.py")
MAIN_JOB = (
    "schedule.max_steps=5",
    "batch.global_batch_size=8",
    "batch.group_size=8",
    "sampling.sampling_max_tokens=128",
    "model.max_sequence_length=1024",
)
"""The load of a job on a GPU: 64 episodes a step. Weights are random, so most episodes are 128 tokens of noise."""


SHORT_RUN = ("schedule.max_steps=30", "schedule.val_every=30", "evaluation.eval_group_size=1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the benchmark."""

    seconds: int
    """Deadline of the part on a GPU, in seconds. All deadlines together are at most ten minutes."""
    is_smoke: bool = False
    """Whether the part also runs in a smoke run."""


PARTS: Mapping[str, Part] = {
    "job 8B": Part(seconds=115),
    "parity 1B": Part(seconds=40),
    "tests": Part(seconds=95),
    "learning": Part(seconds=105),
    "job SmolLM2": Part(seconds=80),
    "rates 1B": Part(seconds=50),
    "rates 8B": Part(seconds=75),
    "attention 8B": Part(seconds=40),
    "parity tiny": Part(seconds=20, is_smoke=True),
    "job tiny": Part(seconds=20, is_smoke=True),
    "rates tiny": Part(seconds=20, is_smoke=True),
    "attention tiny": Part(seconds=20, is_smoke=True),
}
"""The parts, the most important first, because the time on a GPU may end."""


def measure(part: str, device: str, runs: str) -> list[dict[str, Any]]:
    """Run one part in this process and return its rows."""
    kind, _, shape = part.partition(" ")
    if kind == "tests":
        return run_tests(device)
    if kind == "attention":
        from benchmarks.gpu.attention import measure_attention

        prompt, answer = (1024, 128) if device == "cuda" else (32, 8)
        return measure_attention(shape, device, prompt=prompt, answer=answer)
    if kind == "parity":
        from benchmarks.gpu.parity import measure_parity

        return measure_parity(shape, device, sessions=32 if device == "cuda" else 2, new_tokens=64)
    if kind == "rates":
        from benchmarks.gpu.rates import SMALL, Load, measure_rates

        is_small = device == "cpu"
        return measure_rates(shape, [2] if is_small else [1, 32, 128], device, SMALL if is_small else Load())
    from benchmarks.gpu.training_runs import measure_job, measure_learning

    if kind == "learning":
        return measure_learning(runs, device, SHORT_RUN)
    builder = f"benchmarks.gpu.models:build_{shape.lower()}"
    return measure_job(shape, builder, runs, device, MAIN_JOB if device == "cuda" else ["schedule.max_steps=2"])


def run_tests(device: str) -> list[dict[str, Any]]:
    """Run tests/gpu and the contract tests of engines and learners on the device."""
    began = time.perf_counter()
    # A warning of another version of a library is no failure here.
    command = [sys.executable, "-m", "pytest", "-q", "-n", "4", "-W", "default", "-p", "no:cacheprovider", *TESTS]
    environment = {**os.environ, "SPARRING_TEST_DEVICE": device}
    code = subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=False).returncode
    if code:
        raise SystemExit(f"tests: pytest ended with exit code {code}")
    return [{"what": f"tests: {', '.join(TESTS)}", "seconds": time.perf_counter() - began}]


def run_part(part: str, device: str, folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Run one part in a separate process. Return its rows, or one row with the reason why there are none."""
    result, log = folder / f"{part}.json", folder / f"{part}.log"
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", part, "--device", device, "--json", str(result)]
    with log.open("w") as output:
        try:
            code = subprocess.run(
                command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, timeout=seconds, check=False
            ).returncode
            reason = f"exit code {code}"
        except subprocess.TimeoutExpired:
            reason = f"not done within {seconds:.0f} s"
    if result.is_file():
        rows = json.loads(result.read_text("utf-8"))
        print(f"{part}: {json.dumps(rows)}", file=sys.stderr, flush=True)
        return rows
    text = log.read_text("utf-8", errors="replace").strip()
    print(f"{part}: {reason}\n{text[-3000:]}", file=sys.stderr, flush=True)
    return [{"what": part, "failed": f"{reason}: {(text.splitlines() or ['no output'])[-1][:200]}"}]


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--part", choices=list(PARTS), help="run one part in this process and write its rows to --json")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    if arguments.part is not None:
        with tempfile.TemporaryDirectory() as runs:
            rows = measure(arguments.part, arguments.device, runs)
        arguments.json.write_text(json.dumps(rows), "utf-8")
        return 0
    return run_all(arguments.parts, "cpu" if arguments.smoke else arguments.device, arguments)


def run_all(parts: Sequence[str] | None, device: str, arguments: Any) -> int:
    """Run the parts one after another, print one table and write one file."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        needs("a GPU: torch sees no CUDA device; --smoke tries the program itself on the CPU")
    if parts is None:
        parts = [name for name, part in PARTS.items() if part.is_smoke == (device == "cpu")]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row
            for part in parts
            for row in run_part(part, device, Path(folder), (6 if device == "cpu" else 1) * PARTS[part].seconds)
        ]
    name = torch.cuda.get_device_name() if device == "cuda" else "the CPU, in small: these figures are not of a GPU"
    print(f"{name}, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    figures = dict(_figures(rows))
    failed = sum("failed" in row for row in rows)
    code = report(
        "gpu",
        [{"figure": "device", "value": name}]
        + [{"figure": figure, "value": value} for figure, value in figures.items()]
        + [{"figure": row["what"], "value": row["failed"]} for row in rows if "failed" in row],
        figures={**figures, "failed parts": failed},
        targets={"failed parts": {"at_most": 0}},
        path=arguments.json,
        smoke=arguments.smoke,
        sides=_sides(parts, rows),
    )
    return code or (1 if failed else 0)


def _figures(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    for row in rows:
        for key, value in row.items():
            if isinstance(value, int | float):
                yield ", ".join(filter(None, (row.get("shape"), row["what"], key))), value


def _sides(parts: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    failed = {row["what"] for row in rows if "failed" in row}
    return {part: float(part not in failed) for part in parts}


if __name__ == "__main__":
    sys.exit(main())
