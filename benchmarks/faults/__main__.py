"""Measures what failures cost: the throughput lost to failed and hanging episodes, and the useful time lost to a killed
trainer.

The command trains a recipe with a slow environment in a separate process. The first part runs pairs, with rollouts
ahead of learning: one run without faults, and one in which a tenth of all episodes fail and one episode never returns.
The second part has synchronous steps of at least ten seconds. A kill -9 stops the trainer at the end of a step, before
anything of the step is saved, and the command's supervisor resumes the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import options, report
from sparring.ledger import Ledger, RolloutState

RECIPE = Path(__file__).parent / "recipe" / "recipe.toml"
AHEAD = (
    "rollout.max_steps_off_policy=4",
    "rollout.staleness_window=9",
    "rollout.rollout_timeout=10",
    "environment.options.seconds=4.0",
)
FAILING = "slow.reset=error,share=0.1,times=1000000;slow.hang=error,raises=TimeoutError,at=40"
LIMIT_SECONDS = 1800.0
TARGETS = {
    "throughput with failures beside without": {"at_least": 0.85},
    "share of the time that counts, one kill every 30 steps": {"at_least": 0.9},
}


def train(folder: Path, name: str, *overrides: str, faults: str = "") -> dict[str, float]:
    """Start one run with the command. Return the outcomes of its episodes and the duration of its steps in seconds."""
    environment = {**os.environ, "SPARRING_FAULTS": faults, "SPARRING_FAULTS_LOG": str(folder / f"{name}.faults")}
    command = [
        sys.executable,
        "-m",
        "sparring",
        "train",
        str(RECIPE),
        "--no-check",
        "--name",
        name,
        f"run.runs_dir={folder}",
    ]
    subprocess.run([*command, *overrides], env=environment, check=True, timeout=LIMIT_SECONDS, capture_output=True)
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps: dict[int, dict[str, Any]] = {line["step"]: line for line in lines if "timing_s/step" in line["metrics"]}
    seconds = [line["metrics"]["timing_s/step"] for line in steps.values()]
    # The time since the start of the first step includes everything, also crashes and repeated work.
    began = min(line["time"] - line["metrics"]["timing_s/step"] for line in lines if "timing_s/step" in line["metrics"])
    wall = max(line["time"] for line in steps.values()) - began
    with Ledger(folder / name / "ledger.sqlite") as ledger:
        assert ledger.verify() == []
        counts = ledger.counts()
    restarts = folder / name / "restarts.jsonl"
    trained = counts[RolloutState.TRAINED]
    return {
        "steps": len(steps),
        "trained": trained,
        "failed": counts.get("discarded/infra_error", 0),
        "hung": counts.get("discarded/env_timeout", 0),
        "restarts": len(restarts.read_text("utf-8").splitlines()) if restarts.exists() else 0,
        "seconds": wall,
        "a step": median(seconds),
        "that count": sum(seconds) / wall,
        "episodes/s": trained / wall,
    }


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rounds, steps, long, seconds = (1, 2, 4, 0.2) if arguments.smoke else (arguments.rounds, 100, 31, 10.0)
    ahead = (*AHEAD, f"environment.options.seconds={seconds}") if arguments.smoke else AHEAD
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        pairs = [
            (
                train(folder, f"sound-{number}", *ahead, f"schedule.max_steps={steps}"),
                train(folder, f"failing-{number}", *ahead, f"schedule.max_steps={steps}", faults=FAILING),
            )
            for number in range(rounds)
        ]
        # The kill comes in the middle, when step 16 of 31 is over but nothing of it is written.
        killed = train(
            folder,
            "killed",
            "rollout.max_steps_off_policy=0",
            f"environment.options.seconds={seconds}",
            f"schedule.max_steps={long}",
            faults=f"tracker.logging=kill,at={long // 2 + 1}",
        )
    named = [(name, one) for pair in pairs for name, one in zip(("sound", "failing"), pair, strict=True)]
    rows = [{"run": name, **one} for name, one in [*named, ("killed", killed)]]
    figures = {
        "throughput with failures beside without": median(
            failing["episodes/s"] / sound["episodes/s"] for sound, failing in pairs
        ),
        "share of the time that counts, one kill every 30 steps": killed["that count"],
    }
    sides = {
        "sound": sum(sound["trained"] for sound, _ in pairs),
        "failing": sum(one["trained"] for _, one in pairs),
        "failed episodes": sum(one["failed"] for _, one in pairs),
        "kills": killed["restarts"],
    }
    return report(
        "faults", rows, figures=figures, targets=TARGETS, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
