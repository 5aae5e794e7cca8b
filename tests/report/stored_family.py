"""Families of stored runs for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sparring.config import load_config
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.report import EvaluationReport, comparisons
from sparring.run_folders.family_folder import FamilyFolder, Origin
from tests.report.stored_run import RECIPE, StoredRun

FAMILY_RECIPE = f"{RECIPE}\n[warm_start]\nsteps = 2\n"


def stored_family(folder: Path, seeds: Mapping[int, Sequence[Evaluation]], *, recipe: str = FAMILY_RECIPE) -> Path:
    """`runs/f` in a folder, with a completed run a seed and its held-out evaluation; nothing was evaluated of an empty one."""
    runs = {seed: StoredRun(folder, recipe, seed=seed, name=f"f-seed-{seed}") for seed in seeds}
    path = folder / "recipe" / "recipe.toml"
    family = FamilyFolder.create(folder / "runs" / "f", Origin.of_recipe(path, load_config(path)))
    family.add(list(seeds))
    for seed, run in runs.items():
        evaluations = tuple(seeds[seed])
        if evaluations:
            file = run.path / "evaluations" / "held_out-001.json"
            EvaluationReport(evaluations=evaluations, comparisons=comparisons(evaluations), path=file).write([])
    return family.path
