"""Plants faults by kind and severity in four recipes, and runs `sparring diagnose` on each run.

    python -m benchmarks.diagnosis.generator --runs DIR [--half tuning|held_back|fresh|second] [--branches] [--json FILE]
        [--stored] [--smoke] [NAME ...]

Rules are tuned only on the tuning half (the default). Figures come from the held-back half, which `faults.py` drew, and
from the fresh splits of `fresh.py`. If the diagnosis of a broken run is correct, --branches trains a branch with the
proposed change and tests whether the symptom is gone. Completed runs are not repeated, so an interrupted benchmark can
continue. --stored diagnoses the stored runs and trains nothing. --smoke trains two short runs of one recipe, and the
branch of the broken run."""

from __future__ import annotations

import math
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.faults import Cell, cells
from benchmarks.diagnosis.fresh import more_cells
from benchmarks.diagnosis.training import BRANCH, branched, is_whole, trained, warm_model
from benchmarks.report import options, report
from sparring.diagnosis.diagnose import Diagnosis
from sparring.diagnosis.proposal import overrides
from sparring.diagnosis.reading import diagnose_run
from sparring.evaluation.statistics import mean_interval
from sparring.run_folders import RunFolder
from sparring.run_folders.stored import read_metrics

HALVES = ("tuning", "held_back", "fresh", "second", "third")
SMOKE = ("rate_high-x100-number_guess", "healthy-seed-1-number_guess")
SMOKE_OVERRIDES = ("schedule.max_steps=3", "schedule.val_every=0", "evaluation.val_num_tasks=4")
SMOKE_WARM_START = ("warm_start.num_demonstrations=128", "warm_start.steps=8")
SIDES = ("right first change", "branches", "healthy runs")
"""Each of these must count something even in a smoke run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The result of the run with the proposed change."""

    after: Diagnosis
    is_trained: bool
    """Whether the run trained to its end."""
    scores: tuple[float, float]
    """The scores of the last validation of the parent and of the branch."""
    num_tasks: int

    @property
    def is_lower(self) -> bool:
        """Whether the score of the branch is lower than that of the parent by at least two standard errors."""
        before, now = self.scores
        variance = sum(max(0.01, one * (1 - one)) / self.num_tasks for one in self.scores)
        return now < before - 2 * math.sqrt(variance)

    def removes(self, rule: str) -> bool:
        """Return True if the rule does not fire in the branch and the score is not lower."""
        fires = {one.rule for one in (*self.after.findings, *(two.finding for two in self.after.silenced))}
        return self.is_trained and rule not in fires and not self.is_lower


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The diagnosis of a run, and whether it was correct."""

    cell: Cell
    found: Diagnosis
    branch: Branch | None = None
    """The branch of a broken run, if its diagnosis was right and the branch was trained."""

    @property
    def is_gone(self) -> bool:
        return self.branch is not None and self.found.first is not None and self.branch.removes(self.found.first.rule)

    @property
    def is_right(self) -> bool:
        """Whether the diagnosis is correct.

        For a healthy run, the diagnosis must propose no change. For a broken run, the first change must set an expected
        key in the right direction, or be a description in words from an expected rule.
        """
        first, fault = self.found.first, self.cell.fault
        if not self.cell.is_broken:
            return first is None
        if first is None:
            return False
        if not fault.changes:
            return first.rule in fault.shows
        if not set(first.settings) & fault.changes:
            return False
        rate = first.settings.get("optimizer.learning_rate")
        if rate is None or fault.is_rate_lower is None:
            return True
        planted = _rate_of(self.cell)
        return planted is not None and (float(str(rate)) < planted) == fault.is_rate_lower

    def row(self) -> dict[str, Any]:
        first = self.found.first
        return {
            "run": self.cell.name,
            "says": self.found.state if first is None else f"{first.severity.value} {first.rule}",
            "change": "" if first is None else " ".join(overrides(first.settings)) or "in words",
            "right": self.is_right,
            "also": ", ".join(one.rule for one in self.found.findings if one is not first),
            "course": str(self.found.course.get("reward", "")),
            "gone": "" if self.branch is None else self.is_gone,
            "scores": "" if self.branch is None else "{:.2f} to {:.2f}".format(*self.branch.scores),
        }


def _rate_of(cell: Cell) -> float | None:
    """Return the planted learning rate, or None if the fault is a different one."""
    rates = [float(one.partition("=")[2]) for one in cell.overrides if one.startswith("optimizer.learning_rate=")]
    return rates[-1] if rates else None


def with_branch(one: Outcome, runs: Path, more: Sequence[str] = (), *, stored: bool = False) -> Outcome:
    """Return the outcome with its branch, which is trained if it is not complete yet.

    The outcome is unchanged if the diagnosis did not name the fault.
    """
    first = one.found.first
    is_there = is_whole(runs / f"{one.cell.name}{BRANCH}")
    if first is None or not one.cell.is_broken or not one.is_right or (stored and not is_there):
        return one
    branched(one.cell, runs, first, more)
    return replace(one, branch=branch_of(one.cell, runs))


def branch_of(cell: Cell, runs: Path) -> Branch:
    child = runs / f"{cell.name}{BRANCH}"
    ends = [_last_validation(run) for run in (runs / cell.name, child)]
    return Branch(
        after=diagnose_run(child),
        is_trained=RunFolder(child).status()["status"] != "failed",
        scores=(ends[0]["val/score/mean"], ends[1].get("val/score/mean", 0.0)),
        num_tasks=int(ends[0]["val/reward/num_prompts"]),
    )


def _last_validation(run: Path) -> dict[str, float]:
    steps = [one for _, one in sorted(read_metrics(run / "metrics.jsonl")[0].items()) if "val/score/mean" in one]
    return steps[-1] if steps else {}


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    broken = [one for one in outcomes if one.cell.is_broken]
    healthy = [one for one in outcomes if not one.cell.is_broken]
    figures: dict[str, float] = {}
    if broken:
        right = sum(one.is_right for one in broken)
        shown = mean_interval([float(one.is_right) for one in broken])
        figures |= {
            "broken runs": len(broken),
            "kinds": len({one.cell.fault.kind for one in broken}),
            "recipes": len({one.cell.recipe for one in broken}),
            "right first change": right / len(broken),
            "at least": shown.low,
            "at most": shown.high,
            "nothing to change on a broken run": sum(one.found.first is None for one in broken),
        }
    tried = [one for one in broken if one.branch is not None]
    if tried:
        gone = sum(one.is_gone for one in tried)
        shown = mean_interval([float(one.is_gone) for one in tried])
        figures |= {
            "branches": len(tried),
            "symptom gone": gone / len(tried),
            "gone at least": shown.low,
            "gone at most": shown.high,
            "score lower at all": sum(one.branch.scores[1] < one.branch.scores[0] for one in tried if one.branch),
        }
    if healthy:
        figures |= {
            "healthy runs": len(healthy),
            "nothing to change on a healthy run": sum(one.is_right for one in healthy),
        }
    return figures


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", help="rate_high, rate_high-x100-number_guess, ...; default: all")
    parser.add_argument("--runs", type=Path, help="folder that keeps the runs")
    parser.add_argument("--half", choices=HALVES, default="tuning")
    parser.add_argument("--stored", action="store_true", help="only what is in --runs already")
    parser.add_argument("--branches", action="store_true", help="make the proposed changes, and diagnose again")
    parser.add_argument("--train-only", action="store_true", help="train, and do not diagnose the runs")
    arguments = parser.parse_args()
    if arguments.smoke:
        chosen = [one for one in cells() if one.name in SMOKE]
    else:
        chosen = [
            one
            for one in (*cells(), *more_cells())
            if one.half == arguments.half and (not arguments.names or {one.name, one.fault.kind} & set(arguments.names))
        ]
    more = SMOKE_OVERRIDES if arguments.smoke else ()
    with tempfile.TemporaryDirectory() as folder:
        runs = (arguments.runs or Path(folder)).resolve()
        runs.mkdir(parents=True, exist_ok=True)
        if arguments.stored:
            chosen = [one for one in chosen if is_whole(runs / one.name)]
        if arguments.smoke:
            warm_model(chosen[0].recipe, runs, SMOKE_WARM_START)
        folders = {one.name: trained(one, runs, more) for one in chosen}
        if arguments.train_only:
            return 0
        outcomes = [Outcome(cell=one, found=diagnose_run(folders[one.name])) for one in chosen]
        if arguments.branches or arguments.smoke:
            outcomes = [with_branch(one, runs, more, stored=arguments.stored) for one in outcomes]
    figures = figures_of(outcomes)
    missed = Counter(one.cell.fault.kind for one in outcomes if not one.is_right)
    print("missed by kind:", dict(missed))
    targets = {
        "right first change": {"at_least": 0.8},
        "nothing to change on a broken run": {"at_most": 0.0},
        "nothing to change on a healthy run": {"at_least": figures.get("healthy runs", 0.0)},
        "symptom gone": {"at_least": 0.8},
    }
    sides = {name: figures[name] for name in SIDES if name in figures or arguments.smoke}
    return report(
        "generated faults",
        [one.row() for one in outcomes],
        figures=figures,
        targets={key: value for key, value in targets.items() if key in figures},
        path=arguments.json,
        smoke=arguments.smoke,
        sides=sides,
    )


if __name__ == "__main__":
    sys.exit(main())
