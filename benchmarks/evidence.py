"""Measures whether RL gains more than imitation, per seed: base, warm start, control, tuned, and RL with shuffled
rewards."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.report import commit, options, report
from sparring.evaluation.controls import listed
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.of_run import claim_of_report
from sparring.evaluation.report import EvaluationReport
from sparring.evaluation.seed_intervals import interval_over_seeds
from sparring.evaluator import MultiTurnRLEvaluator
from sparring.tracking.console import interval
from sparring.trainer import MultiTurnRLTrainer
from sparring.training_run.control import continue_warm_start

ROOT = Path(__file__).parents[1]
GAIN, LEAST_GAIN, SHUFFLED_GAIN = 0.3, 0.15, 0.1
STRONGEST, GAINED = "strongest control", "gain over the strongest control"
"""Names of columns."""
POLICIES = ("base", "warm start", "warm start continued", "tuned")
SMOKE = (
    "warm_start.steps=2",
    "schedule.max_steps=1",
    "evaluation.allow_zero_baseline=true",
    "evaluation.eval_num_tasks=4",
    "evaluation.val_num_tasks=2",
)


@contextmanager
def runs_folder(given: Path | None) -> Iterator[str]:
    """Yield the folder of the runs: the given folder, or a temporary one."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield str(given.resolve())
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield folder


def kept(folder: str, name: str, settings: Sequence[str], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the stored row for these settings and this commit, or measure it now."""
    path = Path(folder) / f"{name}.json"
    asked = {"commit": commit(), "settings": list(settings)}
    if path.is_file():
        found = json.loads(path.read_text("utf-8"))
        if found.pop("asked") == asked:
            return found
    shutil.rmtree(Path(folder) / name, ignore_errors=True)  # left by an interrupted run
    row = measure()
    path.write_text(json.dumps({"asked": asked, **row}), "utf-8")
    return row


def run(
    recipe: Path, seed: int, overrides: Sequence[str], control_steps: int | None, folder: str, *, check: bool = True
) -> dict[str, Any]:
    """Start one run and train its control, and evaluate them like `sparring eval`."""
    began = time.monotonic()
    settings = [f"run.runs_dir={folder}", f"run.seed={seed}", *overrides]
    with MultiTurnRLTrainer(recipe, overrides=settings, name=f"seed-{seed}", check=check, quiet=True) as trainer:
        trained = completed(trainer)
    control = continue_warm_start(trained, steps=control_steps, quiet=True)
    found = MultiTurnRLEvaluator(trained, quiet=True).evaluate()
    row = {
        "seed": seed,
        "seconds": round(time.monotonic() - began),
        "RL seconds": round(control.rl_seconds, 2),
        "control steps": control.steps,
        "control seconds": round(control.seconds, 2),
        "control validated": dict(control.validated),
        "in words": {"claim": list(claim_of_report(found).lines())},
        **_measured(found),
    }
    gain = row[GAINED]
    print(
        f"seed {seed}: {row['warm start']['sampled']:.3f}, control {row['warm start continued']['sampled']:.3f}, tuned "
        f"{row['tuned']['sampled']:.3f}, gain over {row[STRONGEST]} {gain[0]:.3f} [{gain[1]:.3f}, {gain[2]:.3f}], "
        f"{row['seconds']} s",
        file=sys.stderr,
        flush=True,
    )
    return row


def shuffled(recipe: Path, seed: int, overrides: Sequence[str], folder: str) -> dict[str, Any]:
    """Train with rewards that do not depend on the episode. Success must not rise."""
    settings = [f"run.runs_dir={folder}", f"run.seed={seed}", "reward.reward=environment:shuffled_reward", *overrides]
    with MultiTurnRLTrainer(recipe, overrides=settings, name=f"shuffled-{seed}", check=False, quiet=True) as trainer:
        trained = completed(trainer)
    found = MultiTurnRLEvaluator(trained, policies=["warm_start", "tuned"], quiet=True).evaluate()
    measured = _measured(found)
    print(f"seed {seed}, shuffled rewards: {measured['tuned']['sampled']:.3f}", file=sys.stderr, flush=True)
    return {"seed": seed, "warm start": measured["warm start"], "tuned": measured["tuned"]}


def completed(trainer: MultiTurnRLTrainer, *, resume: bool = False) -> Path:
    """Train to the end, and return the folder of the run. Exits if the run stopped before its end."""
    result = trainer.train(resume=resume)
    if result is None or result.status != "completed":
        raise SystemExit(
            f"{trainer.folder and trainer.folder.path}: the run stopped before its end, so nothing was measured"
        )
    return result.run


def _measured(found: EvaluationReport) -> dict[str, Any]:
    """Return each policy's success (sampled and greedy), completion and turns, and the gain of the tuned policy over
    the strongest control (sampled). The claim determines which control is the strongest."""
    sampled = {one.name: one for one in found.evaluations if one.temperature != 0}
    greedy = {one.name: one for one in found.evaluations if one.temperature == 0}
    row: dict[str, Any] = {name: _policy(sampled[name], greedy[name]) for name in sampled}
    row["temperature"], row["tasks"] = found.evaluations[-1].temperature, len(found.evaluations[-1].task_ids)
    strongest = claim_of_report(found).strongest
    if strongest is not None and strongest.comparison is not None:
        gain = strongest.comparison.difference
        row |= {STRONGEST: strongest.control, GAINED: [gain.mean, gain.low, gain.high]}
    return row


def _policy(sampled: Evaluation, greedy: Evaluation) -> dict[str, float]:
    return {
        "sampled": sampled.success.mean,
        "greedy": greedy.success.mean,
        "completion": fmean(sampled.completions),
        "turns": fmean(sampled.turns),
    }


def table(content: Mapping[str, Any]) -> str:
    """Return the README table of the stored results."""
    rows, control = content["rows"], [row for row in content["rows"] if "warm start continued" in row]
    temperature = f"T = {control[0].get('temperature', 1.0):g}"
    lines = [
        f"| policy | success at {temperature} [95% over seeds] | greedy, by seed | completion | turns |",
        "|---|---|---|---|---|",
    ]
    for name in POLICIES:
        found = [row[name] for row in control]
        greedy = ", ".join(f"{one['greedy']:.2f}" for one in found)
        shown = f"{_interval([one['sampled'] for one in found])} | {greedy}"
        line = f"{name} | {shown} | {_mean(found, 'completion')} | {_mean(found, 'turns', 1)} |"
        lines.append(f"| **{name}** |{line.removeprefix(name + ' |')}" if name == "tuned" else f"| {line}")
    drawn = [row["tuned"] for row in rows if "warm start continued" not in row]
    if drawn:
        greedy = ", ".join(f"{one['greedy']:.2f}" for one in drawn)
        lines.append(
            f"| RL on shuffled rewards | {_interval([one['sampled'] for one in drawn])} | {greedy} | "
            f"{_mean(drawn, 'completion')} | {_mean(drawn, 'turns', 1)} |"
        )
    gains = [row[GAINED] for row in control]
    least = min(gains, key=lambda one: one[1])
    paired = f"{least[0]:.2f} [{least[1]:.2f}, {least[2]:.2f}]"
    if len(control) == 1:
        shown = f"{paired} at {temperature}, paired by task. One seed"
    else:
        shown = (
            f"{_interval([one[0] for one in gains], -1.0)} at {temperature}; paired by task, the gain of the seed with the "
            f"lowest bound is {paired}. {len(control)} seeds"
        )
    note = f" ({content['provenance']})" if "provenance" in content else ""
    lines += [
        "",
        f"Tuned minus the strongest control ({_strongest(control)}): {shown}; commit {content['commit']}{note}, "
        f"{content['machine']}.",
    ]
    return "\n".join(lines)


def _strongest(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the strongest control, or one name per seed if they differ."""
    names = dict.fromkeys(row[STRONGEST] for row in rows)
    if len(names) == 1:
        return next(iter(names))
    by_name = {name: [str(row["seed"]) for row in rows if row[STRONGEST] == name] for name in names}
    return ", ".join(
        f"{name} with {'seed' if len(seeds) == 1 else 'seeds'} {listed(seeds)}" for name, seeds in by_name.items()
    )


def _interval(values: Sequence[float], lowest: float = 0.0) -> str:
    """Format the interval of values between `lowest` and 1. For one seed, format only the value."""
    found = interval_over_seeds(values, least=lowest)
    return f"{fmean(values):.2f}" if found is None else interval(found)


def _mean(found: Sequence[Mapping[str, float]], name: str, digits: int = 2) -> str:
    return f"{fmean(one[name] for one in found):.{digits}f}"


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("recipe", nargs="?", default="pointer_chase", help="folder in recipes/")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--shuffled", type=int, default=2, help="number of these seeds that also get shuffled rewards")
    parser.add_argument("--control-steps", type=int)
    parser.add_argument(
        "--runs", type=Path, metavar="FOLDER", help="folder that keeps the runs, so that none is trained twice"
    )
    parser.add_argument(
        "--table", type=Path, metavar="JSON", help="print the table of stored results without running anything"
    )
    arguments = parser.parse_args()
    if arguments.table is not None:
        print(table(json.loads(arguments.table.read_text("utf-8"))))
        return 0
    recipe, overrides, steps = ROOT / "recipes" / arguments.recipe, arguments.overrides, arguments.control_steps
    seeds, num_shuffled = arguments.seeds, arguments.shuffled
    if arguments.smoke:
        overrides, steps, seeds, num_shuffled = [*SMOKE, *overrides], 4, [0], 1
    settings = [arguments.recipe, f"control {steps}", *overrides]
    with runs_folder(arguments.runs) as folder:
        rows = [
            kept(folder, f"seed-{seed}", settings, partial(run, recipe, seed, overrides, steps, folder))
            for seed in seeds
        ]
        drawn = [
            kept(folder, f"shuffled-{seed}", settings, partial(shuffled, recipe, seed, overrides, folder))
            for seed in seeds[:num_shuffled]
        ]
    gains = [row[GAINED] for row in rows]
    figures = {
        "least gain over the strongest control": min(gain[0] for gain in gains),
        "least lower bound of it": min(gain[1] for gain in gains),
    }
    targets = {
        "least gain over the strongest control": {"at_least": GAIN},
        "least lower bound of it": {"at_least": LEAST_GAIN},
    }
    sides = {
        "RL": sum(row["RL seconds"] for row in rows),
        "control": sum(row["control steps"] for row in rows),
    }
    if num_shuffled:
        sides["shuffled rewards"] = len(drawn)
        gained = max(row["tuned"]["sampled"] - row["warm start"]["sampled"] for row in drawn)
        figures["most gain from shuffled rewards"] = gained
        targets["most gain from shuffled rewards"] = {"at_most": SHUFFLED_GAIN}
    return report(
        f"evidence of {arguments.recipe}",
        [*rows, *drawn],
        figures=figures,
        targets=targets,
        path=arguments.json,
        smoke=arguments.smoke,
        sides=sides,
    )


if __name__ == "__main__":
    sys.exit(main())
