"""Measures how the seconds of a training step grow with episodes per step, turns per episode and tokens per episode.

Each of the three varies alone while the other two stay as they are. Every point is a separate process in which a small
model trains synchronously. The conversations are scripted, and no turn ends before its limit of tokens, so the numbers of
turns and tokens are exact. Sessions, engine, ledger and learner are those of any run. A slope is the exponent of the growth
from a least-squares line through the logarithms. It should be 1 at most for episodes and turns, and less than 2 for tokens."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import linear_regression, median

from benchmarks.report import options, report

RECIPE = Path(__file__).parent / "recipe"
GROUP_SIZE, SAMPLED = 8, 4
"""Episodes per group, and sampled tokens per turn."""
MARKERS, LAST = 8, 2
"""Tokens of the chat template for each turn, and those of them that the last turn of an episode does not have."""
PARTS = {
    "seconds": "timing_s/step",
    "rollout, s": "timing_s/rollout",
    "learning, s": "timing_s/training",
}
LARGEST_SLOPES = {"episodes": 1.1, "turns": 1.1, "tokens": 1.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a step."""

    episodes: int = 32
    turns: int = 4
    tokens: int = 512
    """Tokens of an episode, sampled ones included."""

    @property
    def characters(self) -> int:
        """The length of a user message, with which an episode has this number of tokens, or two fewer."""
        return (self.tokens + LAST) // self.turns - SAMPLED - MARKERS


VALUES: Mapping[str, Sequence[int]] = {
    "episodes": (8, 16, 32, 64, 128, 256, 512),
    "turns": (2, 4, 8, 16, 32),
    "tokens": (256, 512, 1024, 2048, 4096),
}
SMOKE: Mapping[str, Sequence[int]] = {"episodes": (8, 16), "turns": (2, 4), "tokens": (128, 256)}


def measure(folder: Path, size: Size, steps: int, *, here: bool) -> dict[str, float]:
    """Return the median cost of a step after the first one, and what it did."""
    folder.mkdir()
    num_groups = size.episodes // GROUP_SIZE
    write_tasks(folder / "tasks.jsonl", num_groups * steps, size)
    overrides = [
        f"run.runs_dir={folder}",
        f"data.train={folder / 'tasks.jsonl'}",
        f"batch.global_batch_size={num_groups}",
        f"sampling.sampling_max_tokens={SAMPLED}",
        f"schedule.max_steps={steps}",
    ]
    if here:
        peak = train_here(overrides)
    else:
        command = [sys.executable, "-m", "benchmarks.growth", "--train", *overrides]
        answer = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        peak = float(answer.stdout.splitlines()[-1])
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    found = [line["metrics"] for line in lines if "timing_s/step" in line["metrics"]][1:]
    for one in found:
        check_size(one, size)
    return {
        **{name: median(one[metric] for one in found) for name, metric in PARTS.items()},
        "peak memory, GB": peak,
        "tokens trained": sum(one["training/total_tokens"] for one in found),
        "tokens sampled": sum(one["rollout/tokens/sampled"] for one in found),
        "computed per distinct, rollout": median(one["rollout/tokens/computed_per_distinct"] for one in found),
        "computed per distinct, training": median(one["training/computed_per_distinct"] for one in found),
    }


def write_tasks(file: Path, num: int, size: Size) -> None:
    rows = (
        {"id": f"task-{index}", "prompt": "!", "turns": size.turns, "characters": size.characters}
        for index in range(num)
    )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def check_size(found: Mapping[str, float], size: Size) -> None:
    """Raise AssertionError if a step had another size. One turn in a hundred thousand may have ended early."""
    tokens = found["training/total_tokens"] / found["training/num_datums"]
    sampled = found["rollout/tokens/sampled"] / (size.episodes * size.turns)
    assert found["training/num_datums"] == size.episodes, found["training/num_datums"]
    assert found["rollout/turns/min"] == found["rollout/turns/max"] == size.turns
    assert abs(tokens - size.tokens) <= LAST + 1, (tokens, size)
    assert abs(sampled / SAMPLED - 1) < 0.01, (sampled, size)


def train_here(overrides: Sequence[str]) -> float:
    """Train, and return the peak memory of this process in GB."""
    # Imported only in the processes that train.
    from sparring.trainer import MultiTurnRLTrainer

    MultiTurnRLTrainer(RECIPE, overrides=overrides, name="run", check=False, quiet=True).train()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    return linear_regression([log(one) for one in sizes], [log(one) for one in costs]).slope


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=3, help="steps of each point; the first one is not measured")
    parser.add_argument("--only", choices=VALUES, nargs="+", default=list(VALUES), help="what to vary")
    parser.add_argument("--most", type=int, default=512, help="most episodes per step, at least 16")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        print(train_here(arguments.overrides))
        return 0
    base = Size(episodes=8, turns=2, tokens=128) if arguments.smoke else Size()
    values, steps = (SMOKE, 2) if arguments.smoke else (VALUES, arguments.steps)
    rows, figures, sides = [], {}, {}
    known: dict[Size, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            varied = [one for one in values[name] if name != "episodes" or one <= arguments.most]
            found = []
            for value in varied:
                size = replace(base, **{name: value})
                if size not in known:
                    known[size] = measure(Path(folder) / str(len(known)), size, steps, here=arguments.smoke)
                found.append(known[size])
                rows.append({"varied": name, "value": value, **known[size]})
            for part in PARTS:
                shown = "slope" if part == "seconds" else f"slope of {part.partition(',')[0]}"
                figures[f"{shown} over {name}"] = slope(varied, [one[part] for one in found])
            sides[name] = sum(one["tokens trained"] for one in found)
    targets = {f"slope over {name}": {"at_most": LARGEST_SLOPES[name]} for name in arguments.only}
    return report(
        "growth", rows, figures=figures, targets=targets, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
