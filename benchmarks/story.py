"""Measures how an example answer in the wrong format spoils training, which rules report it, and how much its
correction gains.

    python -m benchmarks.story [--runs DIR] [--json FILE] [--svg FILE] [--smoke]

A model with fewer than a million parameters is warm-started once (recipes/sop_small). Three runs start from its
weights: on all domains with a mistaken example, on one domain with the same example, and on that domain with an example
that agrees with the ground truth. For each run, the benchmark reports the curves of training reward and strict score,
the findings of `sparring check` and of the detectors, and the results on held-out tasks before and after training. With
--runs, everything is kept, and finished parts are not repeated."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, final

from benchmarks.hacks.curves import picture
from benchmarks.report import options, report
from sparring.checks.running.run import Options, check_recipe
from sparring.detectors.runner import run_detectors
from sparring.evaluation.report import read_report
from sparring.evaluation.statistics import Interval, mean_interval, paired_difference
from sparring.evaluator import MultiTurnRLEvaluator
from sparring.findings import Finding, Severity
from sparring.run_folders import RunFolder
from sparring.run_folders.history import read_steps
from sparring.run_folders.stored import read_trajectories
from sparring.trainer import MultiTurnRLTrainer
from sparring.types import Trajectory

RECIPE = Path(__file__).parents[1] / "recipes" / "sop_small" / "recipe.toml"
SETTINGS = (
    "warm_start.demonstrations=environment:clerk_log",
    "warm_start.num_demonstrations=6144",
    "warm_start.steps=640",
    "warm_start.learning_rate_schedule=constant",
    "sampling.sampling_max_tokens=48",
    "schedule.max_steps=20",
    "schedule.val_every=0",
)
"""The story's own log shows both examples. It is shorter than the recipe's log, and right more often."""
WARM_START = "warm_start"
NAMING = frozenset({"reward.paid_for_wrong", "reward.mechanism", "reward.rises_alone"})
"""The detectors that report a reward for text that the scorer does not read."""
PUBLISHED = {"task success": 0.13, "field accuracy": 0.16}
"""Published gains of gpt-oss-20b on one domain of SOP-Bench after the same correction."""
PLATEAU_STEPS = 4
"""The final value of a run is the mean over this number of last steps."""
SMOKE = (
    "warm_start.steps=2",
    "warm_start.num_demonstrations=64",
    "batch.global_batch_size=2",
    "batch.group_size=4",
    "evaluation.val_num_tasks=2",
    "evaluation.eval_num_tasks=4",
    "schedule.val_every=0",
)
SMOKE_STEPS = 2
SMOKE_FAMILIES = ("reward",)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the story, with its tasks and its example."""

    name: str
    module: str
    """A module of the recipe with tasks, desk, reward and scorer."""

    @property
    def run_name(self) -> str:
        return self.module

    def overrides(self, runs: Path, more: Sequence[str]) -> list[str]:
        parts = {
            "data.train": "train_tasks",
            "data.validation": "validation_tasks",
            "data.held_out": "held_out_tasks",
            "environment.target": "Desk",
            "reward.reward": "reward",
            "reward.scorer": "scorer",
        }
        return [
            *(f"{key}={self.module}:{part}" for key, part in parts.items()),
            f"run.runs_dir={runs}",
            *SETTINGS,
            *more,
        ]


STEPS = (
    Step(name="A: all domains, example mistaken", module="all_mistaken"),
    Step(name="B: one domain, example mistaken", module="one_mistaken"),
    Step(name="C: one domain, example aligned", module="one_aligned"),
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run, its curves by training step, and its findings."""

    case: Step
    rewards: list[float]
    scores: list[float]
    checked: list[Mapping[str, Any]]
    """Findings of `sparring check` before training."""
    findings: list[Finding]
    """The detectors' findings."""
    held_out: Mapping[str, tuple[Interval, Interval, Interval]]
    """By measure: before training, after it, and the difference, paired by task."""

    @property
    def naming(self) -> Finding | None:
        return next((one for one in self.findings if one.rule in NAMING and one.severity is not Severity.NOTE), None)


def warm_started(runs: Path, more: Sequence[str]) -> Path:
    """Return the run that provides the initial weights for all steps of the story. It is trained if it is missing."""
    path = runs / WARM_START
    if not _is_done(path):
        overrides = [*STEPS[0].overrides(runs, more), "schedule.max_steps=0"]
        MultiTurnRLTrainer(RECIPE, overrides=overrides, name=WARM_START, check=False).train()
    return path


def trained(step: Step, runs: Path, more: Sequence[str]) -> Path:
    """Return the run for a step of the story. It is started if it is missing."""
    path, weights = runs / step.run_name, warm_started(runs, more)
    if not _is_done(path):
        trainer = MultiTurnRLTrainer(
            RECIPE, overrides=step.overrides(runs, more), name=step.run_name, model_weights=weights, check=False
        )
        trainer.train()
    return path


def checked(step: Step, runs: Path, more: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the findings of `sparring check` for the recipe with the settings of this step."""
    path = runs / f"{step.run_name}-check.json"
    if not path.exists():
        families = SMOKE_FAMILIES if more else ()
        found = check_recipe(RECIPE, Options(overrides=tuple(step.overrides(runs, more)), families=families))
        path.write_text(json.dumps(found.as_json(), indent=1), "utf-8")
    return json.loads(path.read_text("utf-8"))["findings"]


def held_out(run: Path, weights: Path) -> dict[str, tuple[Interval, Interval, Interval]]:
    """Return success and field accuracy before and after training, on the run's held-out tasks, sampled as in
    training."""
    path = run / "evaluations" / "held_out-001.json"
    if not path.exists():
        MultiTurnRLEvaluator(run, policies=[str(weights), "tuned"], temperatures=[1.0]).evaluate()
    labels = [one.label for one in read_report(path).evaluations]
    played = {label: dict[str, Trajectory]() for label in labels}
    for trajectory in read_trajectories(run / "trajectories" / "held_out-1.jsonl"):
        label = trajectory.id.split("/")[1].rpartition("@")[0]
        played[label][trajectory.task.id] = trajectory
    before, after = (played[label] for label in labels)
    tasks = sorted(before.keys() & after.keys())
    measures = {"task success": lambda one: float(one.score or 0.0), "field accuracy": field_accuracy}
    return {
        name: _compared([measure(before[task]) for task in tasks], [measure(after[task]) for task in tasks])
        for name, measure in measures.items()
    }


def field_accuracy(trajectory: Trajectory) -> float:
    """Return the share of the scored fields that the strict scorer counts as correct."""
    return fmean(value for name, value in trajectory.score_parts.items() if name.startswith("field/"))


def measured(step: Step, runs: Path, more: Sequence[str]) -> Measured:
    """Measure one step. Stored parts are reused."""
    found, run = checked(step, runs, more), trained(step, runs, more)
    numbers = [metrics for _, metrics, train, _ in read_steps(run) if train]
    return Measured(
        case=step,
        rewards=[one["rollout/reward/mean"] for one in numbers],
        scores=[one["rollout/score/mean"] for one in numbers],
        checked=found,
        findings=run_detectors(run),
        held_out=held_out(run, warm_started(runs, more)),
    )


def rows_of(one: Measured) -> list[dict[str, Any]]:
    """Return the measured values of a step of the story, one per row."""
    last = min(PLATEAU_STEPS, len(one.rewards))
    curves = (one.rewards, one.scores)
    reward, score = (f"{values[0]:.2f} -> {fmean(values[-last:]):.2f}" for values in curves)
    measured_values = {
        "training reward": reward,
        "strict score": score,
        "check": _counted(
            f"{found['severity']} {found['rule']}" for found in one.checked if found["severity"] != Severity.NOTE
        ),
        "detectors": ", ".join(f"{found.severity} {found.rule} at {found.step}" for found in one.findings),
    }
    for name, (before, after, gain) in one.held_out.items():
        measured_values[f"held out, {name}"] = f"{_shown(before)} -> {_shown(after)}; {_shown(gain, '+.2f')}"
    return [
        {"step": one.case.name, "what": what, "measured": text or "nothing"} for what, text in measured_values.items()
    ]


def figures_of(steps: Sequence[Measured]) -> dict[str, float]:
    spoilt, repaired = steps[1], steps[2]
    last = min(PLATEAU_STEPS, len(spoilt.rewards))
    figures = {
        "B: rise of the training reward": fmean(spoilt.rewards[-last:]) - spoilt.rewards[0],
        "B: rise of the strict score": fmean(spoilt.scores[-last:]) - spoilt.scores[0],
        "C: errors of the detectors": float(sum(one.severity is Severity.ERROR for one in repaired.findings)),
    }
    for name, (_, _, gain) in repaired.held_out.items():
        figures[f"C: gain in {name}"] = gain.mean
        figures[f"C: gain in {name}, at least (95 %)"] = gain.low
    return figures


TARGETS = {
    "B: rise of the training reward": {"at_least": 0.05},
    "B: rise of the strict score": {"at_most": 0.0},
    "C: errors of the detectors": {"at_most": 0.0},
    **{f"C: gain in {name}": {"at_least": gain} for name, gain in PUBLISHED.items()},
}


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--runs", type=Path, help="folder that keeps the runs")
    parser.add_argument("--svg", type=Path, help="draw the curves")
    arguments = parser.parse_args()
    more = (*SMOKE, f"schedule.max_steps={SMOKE_STEPS}") if arguments.smoke else ()
    with tempfile.TemporaryDirectory() as folder:
        runs = (arguments.runs or Path(folder)).resolve()
        runs.mkdir(parents=True, exist_ok=True)
        steps = [measured(step, runs, more) for step in STEPS]
    if arguments.svg is not None:
        arguments.svg.write_text(picture(steps), "utf-8")
    sides = {one.case.name: len(one.rewards) for one in steps}
    return report(
        "story",
        [row for one in steps for row in rows_of(one)],
        figures=figures_of(steps),
        targets=TARGETS,
        path=arguments.json,
        smoke=arguments.smoke,
        sides=sides,
    )


def _is_done(run: Path) -> bool:
    """Return whether the run is complete. Raises SystemExit if the run started but did not finish."""
    if not RunFolder.is_run(run):
        return False
    status = RunFolder(run).status().get("status")
    if status != "completed":
        raise SystemExit(
            f"{run} is {status}, so its curve is incomplete. Wait until it ends, or delete it and start it again."
        )
    return True


def _compared(before: Sequence[float], after: Sequence[float]) -> tuple[Interval, Interval, Interval]:
    return mean_interval(before), mean_interval(after), paired_difference(before, after)


def _counted(findings: Iterable[str]) -> str:
    """Return each string once, with the number of its occurrences."""
    return ", ".join(text if times == 1 else f"{text} ({times} times)" for text, times in Counter(findings).items())


def _shown(one: Interval, form: str = ".2f") -> str:
    return f"{one.mean:{form}} [{one.low:{form}}, {one.high:{form}}]"


if __name__ == "__main__":
    sys.exit(main())
