"""Starts the runs of the generator's cells and their branches, each in a separate process. Completed runs are not
repeated."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.diagnosis.__main__ import command, environment
from benchmarks.diagnosis.faults import RECIPES, Cell
from sparring.diagnosis.proposal import overrides
from sparring.findings import Finding
from sparring.reproduce.branch import checkpoint_steps
from sparring.run_folders import RunFolder

WHOLE = ("completed", "stopped", "failed")
"""Statuses of runs that need not be repeated. A run with a loss that is not a number fails, and is diagnosed as it
is."""
MOST_SECONDS = 600.0
BRANCH = "-branch"
TEMPLATES = {
    "roles": ("<|im_start|>{{ message.role }}\n", "### {{ message.role }}: "),
    "no_end": ("<|im_end|>\n", "\n"),
    "bare": ("<|im_start|>{{ message.role }}\n", ""),
    "brackets": ("<|im_start|>{{ message.role }}\n", "[{{ message.role }}] "),
    "text_end": ("<|im_end|>\n", "</s>\n"),
    "no_prompt": ("{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", ""),
}
"""The text of the right chat template and its replacement, by the name of the wrong template."""


def sparring(recipe: str, *arguments: str) -> int:
    """Run a command with the recipe's folder on the module search path, and return its exit code."""
    path = os.pathsep.join([str(RECIPES[recipe]), environment()["PYTHONPATH"]])
    return subprocess.run(
        command(*arguments),
        check=False,
        env={**environment(), "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=MOST_SECONDS,
    ).returncode


def is_whole(run: Path) -> bool:
    return RunFolder.is_run(run) and RunFolder(run).status().get("status") in WHOLE


def warm_model(recipe: str, runs: Path, more: Sequence[str] = ()) -> Path:
    """Return the recipe's warm-started model, from which runs start. It is trained if it is missing."""
    run, model = runs / f"warm-{recipe}", runs / f"warm-{recipe}-model"
    if not (model / "config.json").is_file():
        print(f"warm start of {recipe}", file=sys.stderr, flush=True)
        if not is_whole(run):
            shutil.rmtree(run, ignore_errors=True)
            _must(
                recipe,
                "train",
                str(RECIPES[recipe]),
                "--no-check",
                "--no-supervise",
                f"run.runs_dir={runs}",
                f"run.name={run.name}",
                "schedule.max_steps=0",
                "schedule.val_every=0",
                "evaluation.val_num_tasks=8",
                *more,
            )
        shutil.rmtree(model, ignore_errors=True)
        _must(recipe, "export", str(run), str(model), "--merge")
    return model


def _must(recipe: str, *arguments: str) -> None:
    code = sparring(recipe, *arguments)
    if code:
        raise SystemExit(f"sparring {' '.join(arguments)} ended with exit code {code}. Run it separately to see why.")


def with_template(model: Path, name: str) -> Path:
    """Return a copy of the model with a different chat template than in its warm start."""
    copy = model.with_name(f"{model.name}-{name}")
    if not copy.is_dir():
        # The copy has no hashes of the exported files, because a changed template would not match them.
        shutil.copytree(model, copy, ignore=shutil.ignore_patterns("sparring.json"))
        right, wrong = TEMPLATES[name]
        file = copy / "chat_template.jinja"
        text = file.read_text("utf-8")
        if right not in text:
            raise SystemExit(f"{file} does not contain {right!r}, so this fault cannot be planted.")
        file.write_text(text.replace(right, wrong), "utf-8")
    return copy


def trained(cell: Cell, runs: Path, more: Sequence[str] = ()) -> Path:
    """Return the run of a cell. It is trained if it is not complete yet. An interrupted run starts again from the
    beginning."""
    run = runs / cell.name
    if not is_whole(run):
        model = warm_model(cell.recipe, runs)
        if cell.fault.kind == "template":
            model = with_template(model, cell.severity)
        _train(cell, run, model, (*cell.overrides, *more))
    return run


def branched(cell: Cell, runs: Path, first: Finding, more: Sequence[str] = ()) -> Path:
    """Return a run with the proposed change. If it is not complete yet, it is trained for as many steps as the original
    run.

    The run is a branch with the proposed settings, or a new run if no checkpoint is early enough. If the finding
    proposes no settings, the code is corrected: the run starts again with the recipe's own reward, scorer and
    environment, and with the right chat template.
    """
    run, child = runs / cell.name, runs / f"{cell.name}{BRANCH}"
    if is_whole(child):
        return child
    changes = tuple(overrides(first.settings) or corrections(cell))
    steps = [one for one in checkpoint_steps(RunFolder(run)) if first.before_step is None or one < first.before_step]
    if not steps or (cell.fault.kind == "template" and not first.settings):
        _train(cell, child, warm_model(cell.recipe, runs), (*cell.overrides, *more, *changes))
        return child
    _train_from(cell, run, child, steps[-1], changes)
    return child


def corrections(cell: Cell) -> list[str]:
    """Return settings that restore the recipe's own code wherever the cell replaced it."""
    recipe = _recipe(cell.recipe)
    keys = [one.partition("=")[0].partition(".") for one in cell.planted]
    return [
        f"{section}.{key}={recipe[section][key]}"
        for section, _, key in keys
        if section in ("reward", "environment") and isinstance(recipe[section][key], str)
    ]


def _recipe(name: str) -> dict[str, Any]:
    recipe = tomllib.loads((RECIPES[name] / "recipe.toml").read_text("utf-8"))
    del recipe["warm_start"]
    return recipe


def _train(cell: Cell, run: Path, model: Path, settings: Sequence[str]) -> None:
    file = run.parent / "recipes" / run.name / "recipe.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(tomli_w.dumps(_recipe(cell.recipe)), "utf-8")
    shutil.rmtree(run, ignore_errors=True)
    print(f"training {run.name}", file=sys.stderr, flush=True)
    code = sparring(
        cell.recipe,
        "train",
        str(file),
        "--no-check",
        "--no-supervise",
        f"run.runs_dir={run.parent}",
        f"run.name={run.name}",
        f"model.name={model}",
        *settings,
    )
    _refuse_broken_off(run, code)


def _train_from(cell: Cell, run: Path, child: Path, step: int, changes: Sequence[str]) -> None:
    shutil.rmtree(child, ignore_errors=True)
    print(f"branching {run.name}: {' '.join(changes)}", file=sys.stderr, flush=True)
    last = RunFolder(run).status()["step"]
    code = sparring(
        cell.recipe,
        "runs",
        "branch",
        str(run),
        "--from",
        str(step),
        "--name",
        child.name,
        *changes,
        f"schedule.max_steps={step + last}",
    )
    _refuse_broken_off(child, code)


def _refuse_broken_off(run: Path, code: int) -> None:
    if not is_whole(run):
        raise SystemExit(f"{run} ended with exit code {code} and is incomplete. Run its command separately to see why.")
