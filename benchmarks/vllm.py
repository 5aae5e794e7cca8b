"""Trains the same recipe in one process and through vLLM, and compares what the policies learned on held-out tasks.

pointer_chase trains an adapter of a model with heads of 64, asynchronously with a staleness bound of 2. One side samples
in the process of the learner. The other side runs the same recipe in a place that starts two vLLM servers, which get a
new adapter after each step while turns run. Both sides have the same seeds, tasks and steps. Each tuned policy runs the
held-out tasks at temperature 1 on its own side, and the policy that was trained through vLLM also runs them in the
process of the learner, so that the sampler alone can be compared. Asynchronous runs with the same seed differ, and less so
when success hardly rises any more, so the default is 40 steps. `make vllm-learn` installs vLLM and runs this benchmark.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.report import needs, options, report

RECIPE = Path(__file__).parents[1] / "recipes" / "pointer_chase"
LEARNER = (
    "model.name=model:build_wide",
    "model.trained_weights=lora",
    "model.lora_rank=8",
    "model.lora_alpha=32",
    "rollout.max_steps_off_policy=2",
)
PLACES = {"in one process": "", "vLLM": '[engine]\ntype = "vllm"\nnum_servers = 2\n'}
"""The place file of each side."""
POLICIES = ("warm_start", "tuned")
LARGEST_DIFFERENCE = 0.05
"""The largest difference of held-out success that counts as equal."""


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds")
    parser.add_argument("--steps", type=int, default=40, help="training steps")
    parser.add_argument("--tasks", type=int, default=128, help="held-out tasks, four episodes of each")
    arguments = parser.parse_args()
    _require_vllm()
    small = (
        "batch.global_batch_size=2",
        "batch.group_size=2",
        "warm_start.steps=2",
        "evaluation.allow_zero_baseline=true",
    )
    seeds, steps, tasks = (1, 2, 2) if arguments.smoke else (arguments.seeds, arguments.steps, arguments.tasks)
    fixed = [*LEARNER, f"schedule.max_steps={steps}", f"evaluation.eval_num_tasks={tasks}"]
    fixed += [f"schedule.val_every={steps}", f"schedule.save_every={steps}", *(small if arguments.smoke else ())]
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row
            for seed in range(seeds)
            for name in PLACES
            for row in train_and_evaluate(Path(folder), name, [*fixed, f"run.seed={seed}"])
        ]
    return report(
        "vllm",
        rows,
        figures=_figures(rows),
        targets={
            "difference between the sides after training": {"at_most": LARGEST_DIFFERENCE},
            "difference between the samplers with the same weights": {"at_most": LARGEST_DIFFERENCE},
            "least gain through vLLM": {"at_least": 0.1},
            "problems in a ledger": {"at_most": 0},
        },
        path=arguments.json,
        sides={name: sum(row["episodes"] for row in rows if row["trained"] == name) for name in PLACES},
        smoke=arguments.smoke,
    )


def _require_vllm() -> None:
    from sparring.engines.servers.environment import default_folder, find_vllm
    from sparring.errors import ServiceError

    try:
        find_vllm(default_folder())
    except ServiceError:
        needs("vLLM: make vllm-learn")


def train_and_evaluate(folder: Path, name: str, overrides: list[str]) -> list[dict[str, Any]]:
    """Train one run and evaluate it in its own place and, if this is another one, in the process of the learner."""
    from sparring import MultiTurnRLEvaluator, MultiTurnRLTrainer
    from sparring.config import read_place

    place = folder / "place.toml"
    place.write_text(PLACES[name], "utf-8")
    settings = [f"run.runs_dir={folder}", *overrides]
    settings = [*read_place(place).overrides(RECIPE / "recipe.toml", settings), *settings]
    start_time = time.monotonic()
    with MultiTurnRLTrainer(RECIPE, overrides=settings, check=False, quiet=True) as trainer:
        result = trainer.train()
        assert result is not None
        seconds = time.monotonic() - start_time
        own = MultiTurnRLEvaluator(trainer, policies=POLICIES, temperatures=[1.0], quiet=True).evaluate()
    run = read_run(result.run)
    row = {"trained": name, "seed": overrides[-1].partition("=")[2], "seconds": seconds, **run}
    rows = [{**row, "sampled": name, **_success(own)}]
    if PLACES[name]:
        again = MultiTurnRLEvaluator(
            result.run, policies=POLICIES, temperatures=[1.0], overrides=["engine.type=torch"], quiet=True
        ).evaluate()
        rows.append({**row, "sampled": next(iter(PLACES)), **_success(again)})
    return rows


def _success(found: Any) -> dict[str, float]:
    """Return the rate of success of each policy at temperature 1."""
    return {policy: one.success.mean for policy, one in zip(POLICIES, found.evaluations, strict=True)}


def read_run(run: Path) -> dict[str, Any]:
    """Return what the ledger and the metrics of a run contain."""
    import json

    from sparring.ledger import Ledger

    lines = [json.loads(line)["metrics"] for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [one for one in lines if "training/num_trajectories" in one]
    with Ledger(run / "ledger.sqlite") as ledger:
        problems = ledger.verify(max_steps_off_policy=2)
        consumed = dict(ledger.consumed())
        ages = Counter(
            step - 1 - number
            for step, ids in consumed.items()
            for id in ids
            for turn in ledger.load_turns(id)
            for number, _ in turn.versions
        )
    return {
        "steps": len(steps),
        "episodes": sum(map(len, consumed.values())),
        "oldest": max(ages),
        "stale turns": 1 - ages[0] / sum(ages.values()),
        "probe": max(one.get("training/probe_difference", 0.0) for one in steps),
        "step, s": fmean(one["timing_s/step"] for one in steps),
        "problems": len(problems),
    }


def _figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    process, vllm = PLACES
    own = {side: [row for row in rows if row["trained"] == row["sampled"] == side] for side in PLACES}
    crossed = [row for row in rows if row["trained"] != row["sampled"]]
    after = [(one["tuned"], other["tuned"]) for one, other in zip(own[process], own[vllm], strict=True)]
    samplers = [
        [one[policy] - other[policy] for one, other in zip(own[vllm], crossed, strict=True)] for policy in POLICIES
    ]
    return {
        "difference between the sides after training": abs(fmean(a - b for a, b in after)),
        "largest difference of one seed": max(abs(a - b) for a, b in after),
        "difference between the samplers with the same weights": max(abs(fmean(one)) for one in samplers),
        "least gain through vLLM": min(row["tuned"] - row["warm_start"] for row in own[vllm]),
        "least gain in one process": min(row["tuned"] - row["warm_start"] for row in own[process]),
        "problems in a ledger": float(sum(row["problems"] for row in rows)),
    }


if __name__ == "__main__":
    sys.exit(main())
