"""Compares Sparring with TRL on a CPU: trains the same recipe with Sparring, and with TRL's GRPOTrainer and an
environment factory.

Both sides start from the same weights and run the same tasks of the quickstart's inspection desk. They use the same
group size, sampling, limits, adapter, loss, optimizer, precision and number of steps; each round has another seed. The
weights are those of SmolLM2
after a warm start on the quickstart's demonstrations, because the untrained model calls no tool. The sides alternate,
each in a separate process, so that a busy machine slows down both, and peak memory is measured per side.

The benchmark checks that both sides are equal in the prompts (token id by token id), the adapter parameters, and the
turns and sampled tokens per trajectory. Each episode gets a random reward, so that every group is used for training on
both sides. (Sparring skips an episode whose reward equals the mean of its group, because such an episode has no
gradient.) TRL uses a chat template with the same output as Sparring's, and the fastest of several microbatch sizes.
`--checkpointing` enables TRL's default, gradient checkpointing, which takes less memory and more time."""

from __future__ import annotations

import argparse
import importlib.util
import json
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.report import needs, options, report
from sparring.config import read_recipe, resolved_toml, validate

QUICKSTART = Path(__file__).parents[1] / "recipes" / "quickstart"
TARGETS: Mapping[str, Mapping[str, float]] = {
    "trajectories/s": {"at_least": 8.0},
    "peak memory, GiB": {"at_most": 0.6},
    "computed per distinct token, rollout": {"at_most": 1.1},
    "computed per distinct token, training": {"at_most": 1.1},
    # Both sides must do the same work, or the figures above mean nothing.
    "same prompts": {"at_least": 1.0},
    "same precision": {"at_least": 1.0},
    "adapter parameters": {"at_least": 1.0, "at_most": 1.0},
    "turns/trajectory": {"at_least": 0.8, "at_most": 1.25},
    "sampled tokens/trajectory": {"at_least": 0.8, "at_most": 1.25},
    "trained tokens/trajectory": {"at_least": 0.75, "at_most": 1.25},
}
"""Targets for Sparring's figure divided by TRL's, and for Sparring's computed tokens per different token."""
SIDES = {"TRL": "trl_side", "Sparring": "sparring_side"}
SIDE_SECONDS = 3600.0
"""A side that takes longer than this counts as hung."""
SMOKE = (
    "model.max_sequence_length=1500",
    "model.lora_layers=2",
    "sampling.sampling_max_tokens=6",
    "environment.max_turns=2",
    "run.num_threads=1",
)
NO_EVALUATION = ("data.validation=builtins:list", "data.held_out=builtins:list")
"""Empty splits, so that only training episodes run."""


def warm_started_model(folder: Path, steps: int) -> Path:
    """Train SmolLM2 for a few supervised steps on the quickstart's demonstrations. Return a folder that both sides
    load."""
    model = folder / "model"
    overrides = [f"run.runs_dir={folder / 'runs'}", f"warm_start.steps={steps}", *NO_EVALUATION]
    _run("benchmarks.sides.warm_start", str(QUICKSTART), str(model), *overrides)
    return model


def random_model(folder: Path) -> Path:
    """Return a model with random weights, which makes no tool calls, and a tokenizer trained on the recipe's
    conversations."""
    from sparring.models.small import small_model

    read = runpy.run_path(str(QUICKSTART / "environment.py"))
    model, tokenizer = small_model(0, read["clerk_log"](8), vocabulary_size=400, max_positions=2048)
    for part in (model, tokenizer):
        part.save_pretrained(folder / "model")
    return folder / "model"


def write_recipe(folder: Path, model: Path, arguments: argparse.Namespace, *, seed: int) -> Path:
    """Write the quickstart, without warm start and evaluation, as a recipe for both sides."""
    tables = read_recipe(QUICKSTART)
    del tables["warm_start"]
    overrides = [
        f"run.runs_dir={folder / 'runs'}",
        f"run.seed={seed}",
        f"model.name={model.resolve()}",
        "model.device=cpu",
        "reward.reward=environment:shuffled_reward",
        f"batch.global_batch_size={arguments.tasks}",
        f"batch.group_size={arguments.group_size}",
        f"schedule.max_steps={arguments.steps}",
        *NO_EVALUATION,
        *(SMOKE if arguments.smoke else ()),
    ]
    if arguments.threads is not None:
        overrides.append(f"run.num_threads={arguments.threads}")
    recipe = folder / f"recipe-{seed}" / "recipe.toml"
    recipe.parent.mkdir()
    shutil.copy(QUICKSTART / "environment.py", recipe.parent)
    recipe.write_text(resolved_toml(validate(tables, overrides)), "utf-8")
    return recipe


def measure_trl(recipe: Path, folder: Path, sizes: Sequence[int], flags: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Run TRL with each microbatch size, and return the fastest result with its size."""
    found = []
    for size in sizes:
        output = folder / f"TRL-{recipe.parent.name}-{size}.json"
        found.append((measure("TRL", recipe, output, "--batch-size", str(size), *flags), size))
        print(f"TRL, {size} episodes per microbatch: {sum(found[-1][0]['step_seconds']):.0f} s", file=sys.stderr)
    return min(found, key=lambda pair: sum(pair[0]["step_seconds"]))


def measure(side: str, recipe: Path, output: Path, *options: str) -> dict[str, Any]:
    """Run one side in a separate process, and return its result (`sides.measured.Measured`)."""
    print(f"{side} ...", file=sys.stderr, flush=True)
    _run(f"benchmarks.sides.{SIDES[side]}", str(recipe), str(output), *options)
    return json.loads(output.read_text("utf-8"))


def quantities(measured: Mapping[str, Any]) -> dict[str, float]:
    """Return the table values of one side in one round."""
    seconds, trajectories = sum(measured["step_seconds"]), measured["num_trajectories"]
    return {
        "trajectories": trajectories,
        "seconds": seconds,
        "trajectories/s": trajectories / seconds,
        "sampled tokens/s": measured["num_sampled_tokens"] / seconds,
        "trained tokens/s": measured["num_trained_tokens"] / seconds,
        "tokens through the model/trajectory": measured["num_computed_tokens"] / trajectories,
        "sampled tokens/trajectory": measured["num_sampled_tokens"] / trajectories,
        "trained tokens/trajectory": measured["num_trained_tokens"] / trajectories,
        "turns/trajectory": fmean(measured["num_turns"]),
        "adapter parameters": measured["num_adapter_parameters"],
        "peak memory, GiB": measured["peak_memory_gib"],
    }


def table(rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return one row per quantity: the medians over rounds for both sides, their ratio, and the spread of the ratio."""
    shown = [{side: quantities(measured) for side, measured in both.items()} for both in rounds]
    rows = []
    for name in shown[0]["TRL"]:
        # There is no ratio if a side did nothing.
        ratios = [both["Sparring"][name] / (both["TRL"][name] or nan) for both in shown]
        rows.append(
            {
                "quantity": name,
                **{side: median(both[side][name] for both in shown) for side in SIDES},
                "Sparring / TRL": median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
            }
        )
    return rows


def markdown(content: Mapping[str, Any]) -> str:
    """Return the table of a stored result for the docs."""
    trl = f"TRL {content['versions']['trl']}"
    lines = [f"| | {trl} | Sparring | ratio | least and greatest |", "|---|---|---|---|---|"]
    for row in content["rows"]:
        if row["quantity"] in ("trajectories", "adapter parameters"):
            continue
        name = "seconds for the step" if row["quantity"] == "seconds" else row["quantity"]
        cells = [f"{row[side]:,.4g}" for side in SIDES]
        ratios = [f"{row[key]:.2f}" for key in ("Sparring / TRL", "lowest", "highest")]
        lines.append(f"| {name} | {' | '.join(cells)} | {ratios[0]} | {ratios[1]}, {ratios[2]} |")
    return "\n".join(lines)


def shared_prompts(both: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the share of trajectories that start with the same prompt ids on both sides."""
    ours, theirs = (Counter(map(tuple, both[side]["prompts"])) for side in ("Sparring", "TRL"))
    return (ours & theirs).total() / max(ours.total(), theirs.total())


def work_of(rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """Return each side's sampled tokens, computed tokens and steps, and the share of identical prompts."""
    work = {
        f"{side}, {what}": sum(both[side][what] for both in rounds)
        for side in SIDES
        for what in ("num_trajectories", "num_sampled_tokens", "num_trained_tokens", "num_computed_tokens")
    }
    return work | {"prompts of both": min(shared_prompts(both) for both in rounds)}


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--tasks", type=int, default=4, help="tasks per step")
    parser.add_argument("--group-size", type=int, default=8, help="episodes per task")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="the number of seeds")
    parser.add_argument(
        "--batch-sizes",
        type=int,
        nargs="+",
        default=[4, 8, 16],
        help="TRL's microbatch sizes in episodes; rounds after the first use the fastest",
    )
    parser.add_argument("--threads", type=int, help="CPU threads of torch on both sides")
    parser.add_argument("--checkpointing", action="store_true", help="give TRL gradient checkpointing")
    parser.add_argument("--model", type=Path, help="folder of a warm-started model; without it, one is trained")
    parser.add_argument("--warm-start-steps", type=int, default=24)
    arguments = parser.parse_args()
    if importlib.util.find_spec("trl") is None:
        needs("TRL: make .venv/benchmarks")
    if arguments.smoke:
        arguments.tasks, arguments.group_size, arguments.rounds, arguments.batch_sizes = 2, 2, 1, [2]
    rounds: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if arguments.smoke:
            model = random_model(folder)
        else:
            model = arguments.model or warm_started_model(folder, arguments.warm_start_steps)
        sizes = arguments.batch_sizes
        for seed in range(arguments.rounds):
            recipe = write_recipe(folder, model, arguments, seed=seed)
            theirs, fastest = measure_trl(recipe, folder, sizes, ["--checkpointing"] if arguments.checkpointing else [])
            sizes = [fastest]
            rounds.append({"TRL": theirs, "Sparring": measure("Sparring", recipe, folder / f"Sparring-{seed}.json")})
    rows = table(rounds)
    figures = {row["quantity"]: row["Sparring / TRL"] for row in rows}
    figures["same prompts"] = min(shared_prompts(both) for both in rounds)
    figures["same precision"] = float(len({side["precision"] for both in rounds for side in both.values()}) == 1)
    for what in ("rollout", "training"):
        figures[f"computed per distinct token, {what}"] = max(
            both["Sparring"]["computed_per_distinct"][what] for both in rounds
        )
    sides = work_of(rounds) | {"TRL, episodes per microbatch": float(fastest)}
    return report(
        "train_vs_trl", rows, figures=figures, targets=TARGETS, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


def _run(module: str, *arguments: str) -> None:
    """Run a module as a program, and send its output to stderr. Raises CalledProcessError or TimeoutExpired."""
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, timeout=SIDE_SECONDS, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
