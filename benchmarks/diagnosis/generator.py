"""Plants faults by kind and severity in four recipes, and asks `sparring diagnose` about each run.

    python -m benchmarks.diagnosis.generator --runs DIR [--half tuning|held_back] [--json FILE] [--stored] [--smoke] [NAME ...]

Rules are tuned on the tuning half alone (the default); figures are those of the held-back half, which `faults.py` drew before. A
run that is whole is not trained again, so that it goes on where it stopped; --stored diagnoses what is there and trains nothing.
--smoke trains two runs of one recipe, one of them broken, in a minute.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.diagnosis.__main__ import command, environment
from benchmarks.diagnosis.faults import RECIPES, Cell, cells
from benchmarks.learning_matrix import wilson
from benchmarks.report import report
from sparring.diagnosis import Diagnosis, diagnose
from sparring.diagnosis.proposal import overrides
from sparring.tracking import RunFolder

HALVES = ("tuning", "held_back")
SMOKE = ("rate_high-x100-number_guess", "healthy-seed-1-number_guess")
SMOKE_OVERRIDES = ("schedule.max_steps=4", "schedule.val_every=0")
WHOLE = ("completed", "stopped", "failed")
"""How a run stands that need not be trained again. One whose loss is no number any more fails, and is diagnosed as it stands."""
MOST_SECONDS = 600.0
TEMPLATES = {
    "roles": ("<|im_start|>{{ message.role }}\n", "### {{ message.role }}: "),
    "no_end": ("<|im_end|>\n", "\n"),
}
"""What a wrong chat template has in place of something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was said of a run, and whether that was right."""

    cell: Cell
    found: Diagnosis

    @property
    def is_right(self) -> bool:
        """Of a healthy run: nothing is to be changed. Of a broken one: the first change sets a right key in the right direction,
        or is in words and by a right rule."""
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
        }


def _rate_of(cell: Cell) -> float | None:
    """The learning rate that was planted; None where the fault is another."""
    rates = [float(one.partition("=")[2]) for one in cell.overrides if one.startswith("optimizer.learning_rate=")]
    return rates[-1] if rates else None


def sparring(recipe: str, *arguments: str) -> int:
    """Run a command with the recipe's folder on the path, and give its exit code."""
    path = os.pathsep.join([str(RECIPES[recipe]), environment()["PYTHONPATH"]])
    return subprocess.run(
        command(*arguments), check=False, env={**environment(), "PYTHONPATH": path}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, timeout=MOST_SECONDS,
    ).returncode  # fmt: skip


def is_whole(run: Path) -> bool:
    return RunFolder.is_run(run) and RunFolder(run).status().get("status") in WHOLE


def warm_model(recipe: str, runs: Path) -> Path:
    """The recipe's warm-started model, made where it is not there: runs begin from it."""
    run, model = runs / f"warm-{recipe}", runs / f"warm-{recipe}-model"
    if not (model / "config.json").is_file():
        print(f"warm start of {recipe}", file=sys.stderr, flush=True)
        if not is_whole(run):
            shutil.rmtree(run, ignore_errors=True)
            _must(
                recipe, "train", str(RECIPES[recipe]), "--no-check", "--no-supervise", f"run.runs_dir={runs}",
                f"run.name={run.name}", "schedule.max_steps=0", "schedule.val_every=0", "evaluation.val_num_tasks=8",
            )  # fmt: skip
        shutil.rmtree(model, ignore_errors=True)
        _must(recipe, "export", str(run), str(model), "--merge")
    return model


def _must(recipe: str, *arguments: str) -> None:
    code = sparring(recipe, *arguments)
    if code:
        raise SystemExit(f"sparring {' '.join(arguments)} ended with exit code {code}; run it by itself to see why.")


def with_template(model: Path, name: str) -> Path:
    """A copy of the model whose chat template is not the one that it was warm-started with."""
    copy = model.with_name(f"{model.name}-{name}")
    if not copy.is_dir():
        # Without the hashes of what was exported, which a changed template would not fit.
        shutil.copytree(model, copy, ignore=shutil.ignore_patterns("sparring.json"))
        right, wrong = TEMPLATES[name]
        file = copy / "chat_template.jinja"
        text = file.read_text("utf-8")
        if right not in text:
            raise SystemExit(f"{file} has no {right!r}, so that this fault cannot be planted.")
        file.write_text(text.replace(right, wrong), "utf-8")
    return copy


def trained(cell: Cell, runs: Path, more: Sequence[str] = ()) -> Path:
    """The run of a cell, trained unless it is whole. One that was broken off begins anew."""
    run = runs / cell.name
    if is_whole(run):
        return run
    model = warm_model(cell.recipe, runs)
    if cell.fault.kind == "template":
        model = with_template(model, cell.severity)
    recipe = tomllib.loads((RECIPES[cell.recipe] / "recipe.toml").read_text("utf-8"))
    del recipe["warm_start"]
    file = runs / f"{cell.name}.toml"
    file.write_text(tomli_w.dumps(recipe), "utf-8")
    shutil.rmtree(run, ignore_errors=True)
    print(f"training {cell.name}", file=sys.stderr, flush=True)
    code = sparring(
        cell.recipe, "train", str(file), "--no-check", "--no-supervise", f"run.runs_dir={runs}", f"run.name={run.name}",
        f"model.name={model}", *cell.overrides, *more,
    )  # fmt: skip
    if not is_whole(run):
        raise SystemExit(f"{cell.name} ended with exit code {code} and no whole run; train {file} to see why.")
    return run


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    broken = [one for one in outcomes if one.cell.is_broken]
    healthy = [one for one in outcomes if not one.cell.is_broken]
    figures: dict[str, float] = {}
    if broken:
        right = sum(one.is_right for one in broken)
        low, high = wilson(right / len(broken), len(broken))
        figures |= {
            "broken runs": len(broken), "kinds": len({one.cell.fault.kind for one in broken}),
            "recipes": len({one.cell.recipe for one in broken}), "right first change": right / len(broken),
            "at least": low, "at most": high,
            "nothing to change on a broken run": sum(one.found.first is None for one in broken),
        }  # fmt: skip
    if healthy:
        figures |= {
            "healthy runs": len(healthy), "nothing to change on a healthy run": sum(one.is_right for one in healthy),
        }  # fmt: skip
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="rate_high, rate_high-x100-number_guess, ...; all without")
    parser.add_argument("--runs", type=Path, help="folder that keeps the runs")
    parser.add_argument("--half", choices=(*HALVES, "both"), default="tuning")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--stored", action="store_true", help="only what is in --runs already")
    parser.add_argument("--train-only", action="store_true", help="train, and say nothing of the runs")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if arguments.smoke:
        chosen = [one for one in cells() if one.name in SMOKE]
    else:
        chosen = [
            one
            for one in cells()
            if (arguments.half == "both" or one.is_held_back == (arguments.half == "held_back"))
            and (not arguments.names or {one.name, one.fault.kind} & set(arguments.names))
        ]
    more = SMOKE_OVERRIDES if arguments.smoke else ()
    with tempfile.TemporaryDirectory() as folder:
        runs = (arguments.runs or Path(folder)).resolve()
        runs.mkdir(parents=True, exist_ok=True)
        if arguments.stored:
            chosen = [one for one in chosen if is_whole(runs / one.name)]
        folders = {one.name: trained(one, runs, more) for one in chosen}
        if arguments.train_only:
            return 0
        outcomes = [Outcome(cell=one, found=diagnose(folders[one.name])) for one in chosen]
    figures = figures_of(outcomes)
    missed = Counter(one.cell.fault.kind for one in outcomes if not one.is_right)
    print("missed by kind:", dict(missed))
    targets = {
        "right first change": {"at_least": 0.8}, "nothing to change on a broken run": {"at_most": 0.0},
        "nothing to change on a healthy run": {"at_least": figures.get("healthy runs", 0.0)},
    }  # fmt: skip
    return report(
        "generated faults", [one.row() for one in outcomes], figures=figures,
        targets={} if arguments.smoke else {key: value for key, value in targets.items() if key in figures},
        path=arguments.json,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
