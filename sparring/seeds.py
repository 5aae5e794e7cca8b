"""Train a recipe with several seeds, one after another in one process, and evaluate the runs together.

trained = train_seeds("recipes/pointer_chase", "3")
evaluated = evaluate_seeds([str(trained.family.path)])
evaluated.across.claim.headline
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparring.assembly import refuse_training
from sparring.assembly.policies import find_checkpoint
from sparring.config import Config, load_config, untrainable
from sparring.config.seeds import read_seeds
from sparring.errors import DataError, ServiceError, SparringError, UsageError
from sparring.evaluation.across_seeds import AcrossSeeds, across_seeds, runs_of
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.lost_episodes import refuse_lost
from sparring.evaluation.of_run import evaluated
from sparring.evaluation.policies import checkpoint_of, read_policy
from sparring.evaluator import MultiTurnRLEvaluator
from sparring.run_folders import RunFolder
from sparring.run_folders.family_folder import FamilyFolder, Origin, join_names
from sparring.run_folders.recipe_files import find_code_folder
from sparring.run_folders.run_folder import CONTINUED, UNFINISHED, WARM_START
from sparring.tracking import Console
from sparring.trainer import MultiTurnRLTrainer, TrainResult
from sparring.training.checkpoint_files import hash_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSeeds:
    """The result of `train_seeds`."""

    family: FamilyFolder
    across: AcrossSeeds
    failures: Mapping[int, SparringError]
    """The errors, by seed. Training continued with the other seeds."""
    is_stopped: bool
    """True if a stop was requested before all seeds were trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSeeds:
    """The result of `evaluate_seeds`."""

    across: AcrossSeeds
    failures: Mapping[int, SparringError]
    """The errors, by seed: a damaged checkpoint, or more lost episodes than the recipe allows. Evaluation continued
    with the other seeds."""


def family_path(recipe: Path, config: Config, name: str | None) -> Path:
    """Return the folder of a recipe's family. Its name is `name`, or the name of the recipe's folder."""
    return Path(config.run.runs_dir) / (name or config.run.name or recipe.resolve().parent.name or "family")


def train_seeds(
    recipe: str | Path,
    seeds: str,
    *,
    overrides: Sequence[str] = (),
    name: str | None = None,
    model_weights: str | Path | None = None,
    check: bool = True,
    quiet: bool = False,
) -> TrainedSeeds:
    """Train a recipe with several seeds, one after another, each in its own run folder. Block until all are done.

    `seeds` has the format that `read_seeds` accepts. `model_weights` is a run or a checkpoint whose weights every seed starts
    from. The recipe is checked once. A second call continues: completed
    seeds are not repeated, others are resumed, and new ones are added. If a seed fails, the other seeds are still
    trained.

    Raises UsageError if the family was started with a different recipe or different settings, or if it is being
    trained. Any error that prevents the first seed from starting is raised.
    """
    path = Path(recipe)
    path = path / "recipe.toml" if path.is_dir() else path
    config = load_config(path, list(overrides))
    if not config.is_trainable:
        raise untrainable(config, str(path))
    refuse_training(config, find_code_folder(path))
    wanted = read_seeds(seeds, config, overrides)
    weights = None if model_weights is None else find_checkpoint(model_weights).resolve()
    family = _opened(path, config, name, weights)
    with family.lock():
        _refuse_taken(family, wanted)
        family.add(wanted)
        try:
            failures, is_stopped = _train_each(
                family, wanted, path, overrides, weights=weights, check=check, console=Console(quiet)
            )
        finally:
            if not any(run.exists() for run in family.runs.values()):
                shutil.rmtree(family.path)  # nothing was trained, so the name becomes free again
    return TrainedSeeds(
        family=family, across=across_seeds(*runs_of([str(family.path)])), failures=failures, is_stopped=is_stopped
    )


def _train_each(
    family: FamilyFolder,
    seeds: Sequence[int],
    recipe: Path,
    overrides: Sequence[str],
    *,
    weights: Path | None,
    check: bool,
    console: Console,
) -> tuple[dict[int, SparringError], bool]:
    """Return the errors by seed, and whether training was stopped."""
    failures: dict[int, SparringError] = {}
    last_took: float | None = None
    for place, seed in enumerate(seeds, start=1):
        path = family.run_path(seed)
        if RunFolder.is_run(path) and RunFolder(path).status().get("status") == "completed":
            console.announced(f"seed {seed} ({place} of {len(seeds)}): {path} is complete")
            continue
        took = "" if last_took is None else f"; the last seed took {last_took / 60:.1f} min"
        how = "continues in" if _is_begun(path) else "is trained in"
        console.announced(f"seed {seed} ({place} of {len(seeds)}) {how} {path}{took}")
        began = time.monotonic()
        try:
            result = _train_one(family, seed, recipe, overrides, weights=weights, check=check, console=console)
        except SparringError as error:
            if not _is_begun(path):
                # Nothing was trained: the cause is the recipe, which the other seeds share.
                shutil.rmtree(path, ignore_errors=True)
                raise
            failures[seed] = error
            console.announced(f"seed {seed} failed: {error}")
            continue
        last_took = time.monotonic() - began
        if result.status == "stopped":
            return failures, True
    return failures, False


def _train_one(
    family: FamilyFolder,
    seed: int,
    recipe: Path,
    overrides: Sequence[str],
    *,
    weights: Path | None,
    check: bool,
    console: Console,
) -> TrainResult:
    path = family.run_path(seed)
    if _is_begun(path):
        with MultiTurnRLTrainer.attach(path, quiet=console.is_quiet) as trainer:
            result = trainer.train(resume=True)
    else:
        if RunFolder.is_run(path):
            shutil.rmtree(path)  # left by a process that was killed before it trained
        checked = next((run for run in _runs(family) if run.manifest().get("checked")), None)
        with MultiTurnRLTrainer(
            recipe,
            overrides=[*overrides, f"run.seed={seed}"],
            name=path.name,
            model_weights=weights,
            check=check and checked is None,
            quiet=console.is_quiet,
        ) as trainer:
            if check and checked is not None:
                with console.phase("loading the model"):
                    trainer.load().copy_checks(checked)
            result = trainer.train()
    assert result is not None, "only a dry run returns no result"
    return result


def _is_begun(path: Path) -> bool:
    """Return whether a run has started to train. The creation of its folder does not count."""
    return RunFolder.is_run(path) and RunFolder(path).status().get("status", "created") != "created"


def _runs(family: FamilyFolder) -> Iterator[RunFolder]:
    return (RunFolder(path) for path in family.runs.values() if RunFolder.is_run(path))


def _opened(recipe: Path, config: Config, name: str | None, weights: Path | None) -> FamilyFolder:
    path = family_path(recipe, config, name)
    origin = Origin.of_recipe(recipe, config, weights=None if weights is None else hash_checkpoint(weights))
    if not path.exists():
        RunFolder.require_new(path.parent, path.name)
    if not FamilyFolder.is_family(path):
        return FamilyFolder.create(path, origin)
    family = FamilyFolder(path)
    if different := family.origin.differences(origin):
        raise UsageError(
            f"{path} was started with a different recipe or different settings: {join_names(different)}. Its runs would "
            "differ in more than their seed; restore these settings, or give the new family another name (--name)."
        )
    return family


def _refuse_taken(family: FamilyFolder, seeds: Sequence[int]) -> None:
    """Raise UsageError, before any training, if a seed's folder already exists or is being trained."""
    for seed in seeds:
        path = family.run_path(seed)
        if seed not in family.runs and path.exists():
            raise UsageError(
                f"{path} exists and is not a run of {family.path}; give the family another name (--name), or move "
                f"{path} away."
            )
        if RunFolder.is_run(path) and RunFolder(path).status().get("status") in ("running", "paused"):
            raise UsageError(
                f"{path} is already being trained; stop that training first (`sparring runs stop {path}`)."
            )


def evaluate_seeds(
    sources: Sequence[str],
    *,
    policies: Sequence[str] | None = None,
    temperatures: Sequence[float] | None = None,
    quiet: bool = False,
) -> EvaluatedSeeds:
    """Run the missing held-out evaluations of a family, or of several runs that differ only in their seed.
    Block until all are done.

    By default, `policies` are the base model, the warm start, the control if a run has one, and the tuned policy. By
    default, `temperatures` are 0 (greedy) and the recipe's serving temperature. If a run already has an evaluation of
    its newest checkpoint, the evaluation is not repeated. Incomplete runs are left out, and their names are reported.

    Raises UsageError if the runs do not belong together, or if fewer than two are completed.
    """
    name, runs = runs_of(sources)
    console = Console(quiet)
    completed = {
        seed: run.absolute()
        for seed, run in runs.items()
        if run is not None and run.status().get("status") == "completed"
    }
    if len(completed) < 2:
        done = "seed " + ", ".join(map(str, completed)) if completed else "none"
        raise UsageError(
            f"of {name}, {done} is completed, but a comparison across seeds needs two completed seeds; repeat "
            "`sparring train RECIPE --seeds ...` to train the others."
        )
    wanted = _usual(completed.values()) if policies is None else list(policies)
    wanted = [*(one for one in wanted if one != "tuned"), "tuned"]
    failures: dict[int, SparringError] = {}
    for place, (seed, run) in enumerate(completed.items(), start=1):
        shown = f"seed {seed} ({place} of {len(completed)}): {run.path}"
        if any(run.evaluations.glob(f"held_out-*{UNFINISHED}/job.json")):
            console.announced(f"{shown}: continues an evaluation that was interrupted")
            MultiTurnRLEvaluator(run.path, resume=True, quiet=quiet).evaluate()
        try:
            missing = _missing(run, wanted, temperatures)
            if not missing:
                console.announced(f"{shown}: all of {', '.join(wanted)} are already evaluated")
                continue
            console.announced(f"{shown}: evaluates {', '.join(missing)}")
            evaluator = MultiTurnRLEvaluator(run.path, policies=missing, temperatures=temperatures, quiet=quiet)
            refuse_lost(evaluator.evaluate(), evaluator.config.rollout.max_lost_share)
        except (DataError, ServiceError) as error:
            failures[seed] = error
            console.announced(f"seed {seed} failed: {error}")
    return EvaluatedSeeds(across=across_seeds(name, runs), failures=failures)


def _usual(runs: Iterable[RunFolder]) -> list[str]:
    known = list(runs)
    has_warm_start = any((run.checkpoints / WARM_START).is_dir() for run in known)
    has_control = any((run.controls / CONTINUED).is_dir() for run in known)
    return ["base", *([WARM_START] if has_warm_start else []), *([CONTINUED] if has_control else [])]


def _missing(run: RunFolder, wanted: Sequence[str], temperatures: Sequence[float] | None) -> list[str]:
    """Return the policies that have not been evaluated at these temperatures. Return all policies if tuned is one of
    them, so that one evaluation compares them all."""
    found = evaluated(run)
    rows = [*(() if found.held_out is None else found.held_out.evaluations), *found.earlier]
    asked = {0.0, run.config().serving_temperature} if temperatures is None else set(temperatures)
    checkpoint = checkpoint_of(run, None).name
    step = int(checkpoint) if checkpoint.isdigit() else 0
    newest = [one for one in rows if one.name != "tuned" or one.policy_version == step]
    missing = [one for one in wanted if not _has(newest, one, asked)]
    return list(wanted) if "tuned" in missing else missing


def _has(rows: Sequence[Evaluation], spelling: str, temperatures: set[float]) -> bool:
    policy = read_policy(spelling)
    played = {one.temperature for one in rows if one.name == policy.name}
    return temperatures <= played if policy.has_weights else bool(played)
