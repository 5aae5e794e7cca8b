"""Measures whether `sparring diagnose` reports faults, proposes changes that help, and reports nothing for healthy
runs.

    python -m benchmarks.diagnosis [--runs DIR] [--json FILE] [--stored] [NAME ...]

The benchmark starts a run for every case, one after the other, and diagnoses the stored run. If a fault was planted, it
also starts a branch of the run with the proposed change, and diagnoses the branch. --runs DIR keeps the runs, and
stored runs are not repeated. --stored skips cases without a stored run. A case that is diagnosed during training runs
again each time, and --stored skips it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.diagnosis.cases import ROOT, Case, Live, all_cases
from benchmarks.report import options, report
from sparring.diagnosis.diagnose import Diagnosis
from sparring.diagnosis.proposal import overrides
from sparring.diagnosis.reading import diagnose_run
from sparring.findings import Finding, Severity
from sparring.run_folders import RunFolder
from sparring.run_folders.stored import read_metrics

SMOKE = ("blind/mistyped_rate", "healthy/number_guess")
SMOKE_OVERRIDES = (
    "warm_start.steps=2",
    "warm_start.num_demonstrations=64",
    "batch.global_batch_size=2",
    "schedule.max_steps=2",
    "schedule.val_every=0",
    "evaluation.val_num_tasks=2",
    "evaluation.allow_zero_baseline=true",
)
WARM = "warm"
"""Value of `model.name` for a model that imitates the log of the recipe in the same folder. It is trained once."""
MOST_SECONDS = 600.0
"""The time limit for the expected step of a run that is diagnosed while it trains."""
SECONDS_TO_END = 20.0
"""Seconds that a process has to end by itself before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The diagnosis of a case, and the diagnosis of the run with the proposed change."""

    case: Case
    found: Diagnosis
    after: Diagnosis | None
    """None for healthy runs, and if the diagnosis named nothing."""

    @property
    def first(self) -> Finding | None:
        """The finding that a user would act on. If the symptom of a case is only a note, this note is the finding."""
        named = next((one for one in self.found.findings if one.rule in self.case.shows), None)
        if named is not None and named.severity is Severity.NOTE and self.found.first is None:
            return named
        return self.found.first

    @property
    def is_named(self) -> bool:
        """Whether the finding to act on first comes from one of the expected rules."""
        return self.first is not None and self.first.rule in self.case.shows

    @property
    def is_right_change(self) -> bool:
        """Whether the change sets one of the expected settings or, if code must be fixed, only describes the fix in
        words."""
        if not self.is_named or self.first is None:
            return False
        return bool(set(self.first.settings) & self.case.changes) if self.case.changes else not self.first.settings

    @property
    def is_gone(self) -> bool:
        """Whether the symptom is absent after the change."""
        return (
            self.after is not None
            and self.first is not None
            and self.first.rule
            not in {one.rule for one in (*self.after.findings, *(silent.finding for silent in self.after.silenced))}
        )

    @property
    def errors(self) -> list[Finding]:
        return [one for one in self.found.findings if one.severity is Severity.ERROR]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sparring", *arguments]


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}


def sparring(*arguments: str) -> None:
    """Run a command in a separate process, because modules of different recipes have the same names.

    Raises CalledProcessError.
    """
    subprocess.run(command(*arguments), check=True, env=environment(), stdout=subprocess.DEVNULL)


def warm_model(case: Case, runs: Path) -> list[str]:
    """Return the override that selects the warm-started model of a case's folder. The model is trained if it is
    missing.

    The list is empty if the folder has no such model.
    """
    recipe = case.recipe.parent / "warm.toml"
    if not recipe.is_file():
        return []
    name = f"{WARM}-{case.recipe.parent.name}"
    model = runs / f"{name}-model"
    if not model.is_dir():
        print(f"training {name}", file=sys.stderr, flush=True)
        if not RunFolder.is_run(runs / name):
            sparring("train", str(recipe), "--no-check", "--no-supervise", f"run.runs_dir={runs}", f"run.name={name}")
        sparring("export", str(runs / name), str(model), "--merge")
    return [f"model.name={model}"]


def trained(case: Case, runs: Path) -> Path:
    """Return the run of a case. It is trained if it is missing."""
    run = runs / case.run_name
    if not RunFolder.is_run(run):
        parent = None if case.warm_from is None else trained(case.warm_from, runs)
        print(f"training {case.name}", file=sys.stderr, flush=True)
        if parent is not None:
            sparring("runs", "branch", str(parent), "--from", "0", "--name", case.run_name, case.overrides[-1])
        else:
            sparring(*training(case, runs))
    _refuse_unfinished(run)
    return run


def training(case: Case, runs: Path) -> list[str]:
    """Return the command that starts the run of a case."""
    return [
        "train",
        str(case.recipe),
        "--no-check",
        "--no-supervise",
        f"run.runs_dir={runs}",
        f"run.name={case.run_name}",
        *warm_model(case, runs),
        *case.overrides,
    ]


def found_live(case: Case, live: Live, runs: Path) -> Diagnosis:
    """Diagnose a run while its process is alive, then terminate the process. An earlier run with the same name is
    deleted.

    Raises SystemExit if the process ends, or the time limit is reached, before the expected step.
    """
    run = runs / case.run_name
    shutil.rmtree(run, ignore_errors=True)
    arguments = training(case, runs)
    print(f"training {case.name}", file=sys.stderr, flush=True)
    process = subprocess.Popen(command(*arguments), env=environment(), stdout=subprocess.DEVNULL)
    try:
        wait_for_step(run, live.after_step, process)
        time.sleep(live.seconds)
        return diagnose_run(run)
    finally:
        end(process)


def end(process: subprocess.Popen[bytes], *, seconds: float = SECONDS_TO_END) -> None:
    """Ask the process to stop, and kill it if it does not exit within `seconds`."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for_step(run: Path, step: int, process: subprocess.Popen[bytes], *, seconds: float = MOST_SECONDS) -> None:
    """Wait until the step is in `metrics.jsonl`. Raises SystemExit if the process ends first, or after `seconds`."""
    metrics, late = run / "metrics.jsonl", time.monotonic() + seconds
    while not (metrics.is_file() and max(read_metrics(metrics)[0], default=-1) >= step):
        if process.poll() is not None:
            raise SystemExit(
                f"{run} ended with exit code {process.returncode} before step {step}; see its output above."
            )
        if time.monotonic() > late:
            raise SystemExit(
                f"{run} had no step {step} after {seconds:g} seconds; specify an earlier one in case.toml."
            )
        time.sleep(0.2)


def branched(case: Case, run: Path, first: Finding) -> Path:
    """Return the run with the proposed change or, if code must be fixed, with the settings that fix it. It is trained
    if it is missing."""
    child = run.with_name(f"{run.name}-changed")
    if RunFolder.is_run(child):
        _refuse_unfinished(child)
        return child
    print(f"branching {case.name}: {first.rule}", file=sys.stderr, flush=True)
    changes = overrides(first.settings) or list(case.fix)
    last = RunFolder(run).status()["step"]
    start = last if case.branch_from is None else case.branch_from
    origin = [] if case.branch_from is None else ["--from", str(case.branch_from)]
    sparring(
        "runs",
        "branch",
        str(run),
        *origin,
        "--name",
        child.name,
        *changes,
        f"schedule.max_steps={max(last, start + case.more_steps)}",
    )
    return child


def _refuse_unfinished(run: Path) -> None:
    status = RunFolder(run).status().get("status")
    if status not in ("completed", "stopped"):
        raise SystemExit(
            f"{run} is {status}, so its curve is incomplete. Wait until it ends, or delete it and start it again."
        )


def measured(case: Case, runs: Path, *, stored: bool) -> Measured:
    run = runs / case.run_name
    found = diagnose_run(trained(case, runs)) if case.live is None else found_live(case, case.live, runs)
    one = Measured(case=case, found=found, after=None)
    first = one.first
    if not one.is_named or first is None or not (first.settings or case.fix):
        return one
    if stored and not RunFolder.is_run(run.with_name(f"{run.name}-changed")):
        return one
    return Measured(case=case, found=found, after=diagnose_run(branched(case, run, first)))


def planted_row(one: Measured) -> dict[str, Any]:
    first = one.first
    verdict = next((two for two in one.after.findings if two.rule == "change.judged"), None) if one.after else None
    return {
        "case": one.case.name,
        "named": "nothing" if first is None else f"{first.severity.value} {first.rule}",
        "rightly": one.is_named,
        "change": "" if first is None else " ".join(overrides(first.settings)) or "in words",
        "right change": one.is_right_change,
        "symptom gone": one.is_gone if one.after is not None else "not tried",
        "judged": "" if verdict is None else str(verdict.evidence["verdict"]),
        "also": ", ".join(two.rule for two in one.found.findings if two is not first),
    }


def healthy_row(one: Measured) -> dict[str, Any]:
    return {
        "case": one.case.name,
        "like": one.case.like or "",
        "says": ", ".join(f"{two.severity.value} {two.rule}" for two in one.found.findings) or one.found.state,
        "errors": len(one.errors),
        "named all the same": one.case.like is not None and one.case.like in {two.rule for two in one.found.findings},
    }


def figures_of(planted: Sequence[Measured], healthy: Sequence[Measured]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for who in ("own", "blind"):
        of_these = [one for one in planted if one.case.name.startswith(f"{who}/")]
        if of_these:
            figures |= {
                f"named rightly, {who}": fmean(one.is_named for one in of_these),
                f"right change, {who}": fmean(one.is_right_change for one in of_these),
            }
        alike = [one for one in healthy if one.case.like is not None and one.case.name.startswith(f"{who}/")]
        if alike:
            figures[f"look-alikes not named, {who}"] = fmean(
                not healthy_row(one)["named all the same"] for one in alike
            )
    if planted:
        figures["named rightly"] = fmean(one.is_named for one in planted)
        figures["planted cases"] = float(len(planted))
        figures["symptom gone after the change"] = fmean(one.is_gone for one in planted)
    if healthy:
        figures["healthy runs"] = float(len(healthy))
        figures["healthy runs with an error"] = float(sum(bool(one.errors) for one in healthy))
        figures["recipes of healthy runs"] = float(len({one.case.recipe for one in healthy}))
    return figures


TARGETS = {
    "named rightly": {"at_least": 0.9},
    "symptom gone after the change": {"at_least": 0.8},
    "healthy runs with an error": {"at_most": 0.0},
}


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", help="own/groups_agree, healthy/quickstart, ...; default: all")
    parser.add_argument("--runs", type=Path, help="folder that keeps the runs")
    parser.add_argument("--stored", action="store_true", help="use only the runs that are already in --runs")
    arguments = parser.parse_args()
    names = SMOKE if arguments.smoke else arguments.names
    with tempfile.TemporaryDirectory() as folder:
        runs = (arguments.runs or Path(folder)).resolve()
        chosen = [one for one in all_cases() if not names or one.name in names]
        if arguments.smoke:
            chosen = [replace(one, overrides=(*one.overrides, *SMOKE_OVERRIDES), more_steps=1) for one in chosen]
        if arguments.stored:
            chosen = [one for one in chosen if one.live is None and RunFolder.is_run(runs / one.run_name)]
        everything = [measured(case, runs, stored=arguments.stored) for case in chosen]
    planted = [one for one in everything if one.case.is_planted]
    healthy = [one for one in everything if not one.case.is_planted]
    figures = figures_of(planted, healthy)
    sides = {one.case.name: one.found.step or 0 for one in everything}
    return report(
        "diagnosis",
        [*map(planted_row, planted), *map(healthy_row, healthy)],
        figures=figures,
        targets={key: target for key, target in TARGETS.items() if key in figures},
        path=arguments.json,
        smoke=arguments.smoke,
        sides=sides,
    )


if __name__ == "__main__":
    sys.exit(main())
