"""Measures the cost of every advantage, loss and correction, as a share of a training step.

The step comes from pointer_chase, which has the smallest model in this repository, so the measured shares are upper
bounds. Each function runs separately on the groups and tokens of the last step, forward and backward, in the same
process.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from benchmarks.report import options, report

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "pointer_chase" / "recipe.toml"
TARGET = 0.03
SMOKE = (
    "warm_start.steps=2",
    "warm_start.num_demonstrations=64",
    "batch.global_batch_size=2",
    "batch.group_size=4",
    "reward.reward=environment:shuffled_reward",
)
"""Rewards are random, so that groups differ before anything is learned. The check would refuse such rewards."""


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """Return the median time of a call. The first call is not counted."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times[1:])


def played(recipe: Path, steps: int, more: Sequence[str]) -> tuple[list[Any], list[tuple[Any, Any]], float]:
    """Train a few steps. Return the groups of the last step, the (tokens, sampled_M) of its microbatches, and the
    seconds per step."""
    from sparring import loop
    from sparring.algorithms.objective import Objective
    from sparring.trainer import MultiTurnRLTrainer
    from sparring.training.sequences import build_batch

    groups: list[Any] = []
    tokens: list[tuple[Any, Any]] = []
    call = Objective.__call__

    def remember_groups(*args: Any, **kwargs: Any) -> Any:
        groups[:], tokens[:] = args[0], []
        return build_batch(*args, **kwargs)

    def remember_tokens(objective: Objective, seen: Any, **kwargs: Any) -> Any:
        tokens.append((seen, kwargs["sampled_M"]))
        return call(objective, seen, **kwargs)

    with tempfile.TemporaryDirectory() as folder:
        trainer = MultiTurnRLTrainer(
            recipe,
            quiet=True,
            overrides=[
                f"run.runs_dir={folder}",
                f"schedule.max_steps={steps}",
                "schedule.val_every=0",
                "schedule.save_every=0",
                "evaluation.val_num_tasks=2",
                "evaluation.allow_zero_baseline=true",
                *more,
            ],
            check=not more,
        )
        with (
            mock.patch.object(loop, "build_batch", remember_groups),
            mock.patch.object(Objective, "__call__", remember_tokens),
        ):
            result = trainer.train()
        assert result is not None
        rows = [json.loads(line)["metrics"] for line in (result.run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return groups, tokens, median([row["timing_s/step"] for row in rows if "timing_s/step" in row][1:])


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--steps", type=int, default=6, help="number of training steps; the first is not counted")
    parser.add_argument("--repeats", type=int, default=20, help="number of runs of each function")
    arguments = parser.parse_args()
    steps, repeats = (2, 1) if arguments.smoke else (arguments.steps, arguments.repeats)
    from dataclasses import replace

    import torch

    from sparring.algorithms.choice import FUNCTIONS
    from sparring.algorithms.credit import credit
    from sparring.algorithms.objective import Objective

    groups, microbatches, step = played(arguments.recipe, steps, SMOKE if arguments.smoke else ())
    assert microbatches, "the last step had no signal; train more steps"
    num_tokens = sum(len(sampled_M) for _, sampled_M in microbatches)
    rows: list[dict[str, Any]] = []

    def add(part: str, name: str, cost: float) -> None:
        rows.append({"part": part, "name": name, "ms": 1000 * cost, "percent of a step": 100 * cost / step})

    num_credited = num_learned = 0
    for name, estimator in FUNCTIONS["advantage_method"].items():
        num_credited += sum(map(any, credit(groups, estimator, sums_turn_rewards=None).values()))
        add("advantage", name, seconds(lambda e=estimator: credit(groups, e, sums_turn_rewards=None), repeats))

    def learn(objective: Objective) -> int:
        """Return the number of tokens that received a gradient."""
        found = 0
        for seen, sampled_M in microbatches:
            logprobs_M = seen.logprobs_M.detach().requires_grad_()
            loss_M, _ = objective(replace(seen, logprobs_M=logprobs_M), sampled_M=sampled_M)
            loss_M.sum().backward()
            found += int((logprobs_M.grad != 0).sum())
        return found

    for (loss, correction), ratio in itertools.product(
        itertools.product(FUNCTIONS["loss_fn"], FUNCTIONS["off_policy_correction"]), ("two_policy", "three_policy")
    ):
        objective = Objective.from_config(loss, {"off_policy_correction": correction, "policy_ratio": ratio})
        num_learned += learn(objective)
        add(
            "loss and correction",
            f"{loss}, {correction}, {ratio}",
            seconds(lambda o=objective: learn(o), repeats),
        )

    worst = {
        part: max((row for row in rows if row["part"] == part), key=lambda row: row["ms"])
        for part in ("advantage", "loss and correction")
    }
    shown = [row for row in rows if row["part"] == "advantage" or row["name"].endswith("none, two_policy")]
    shown += [worst["loss and correction"] | {"name": f"dearest: {worst['loss and correction']['name']}"}]
    print(
        f"a step: {step:.2f} s, {sum(len(group.trajectories) for group in groups)} trajectories, {num_tokens} trained "
        f"tokens in {len(microbatches)} microbatches, {torch.get_num_threads()} threads"
    )
    share = sum(row["percent of a step"] for row in worst.values()) / 100
    sides = {"training": num_tokens, "advantages": num_credited, "losses": num_learned}
    name = "share of a step that the dearest advantage, loss and correction take"
    return report(
        "algorithm_cost",
        shown,
        figures={name: share},
        targets={name: {"at_most": TARGET}},
        path=arguments.json,
        sides=sides,
        smoke=arguments.smoke,
    )


if __name__ == "__main__":
    sys.exit(main())
