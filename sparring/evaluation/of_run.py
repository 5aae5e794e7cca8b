"""The evaluations in a run's folder and the claim that they support. The reports, the commands and the Python results
all use this module."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sparring.errors import DataError
from sparring.evaluation.claim import Claim, claim_of, claim_of_validations
from sparring.evaluation.claim_over_seeds import claim_over
from sparring.evaluation.controls import Continued, RunFacts
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.report import EvaluationReport, read_report
from sparring.run_folders import RunFolder
from sparring.run_folders.digests import content_hash
from sparring.run_folders.family_folder import Origin
from sparring.run_folders.run_folder import CONTINUED
from sparring.run_folders.stored import training_seconds
from sparring.runtime.json_values import parse_json
from sparring.types import Task

RANDOM_REWARDS = ("random_reward", "shuffled_reward")
"""Names of functions whose rewards do not depend on the episode, such as `sparring.rewards:random_reward` or one of a
recipe."""
NOT_OF_TRAINING = ("reward.reward", "evaluation.", "detectors.", "tracking.")
"""Prefixes of the settings in which a random control may differ from the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The evaluations of one run on which a claim is based."""

    held_out: EvaluationReport | None
    """The newest report that compares tuned with other policies, else the newest that compares policies, else the
    newest. Reports with the run's own settings come before reports with other settings."""
    validations: Mapping[int, Evaluation]
    """The validation results by step, in ascending order."""
    earlier: tuple[Evaluation, ...] = ()
    """The rows of the other held-out evaluations, newest first. They provide controls that `held_out` lacks."""
    unread: tuple[str, ...] = ()
    """The reasons why files could not be read."""


def evaluated(run: RunFolder) -> Evaluated:
    """Read a run's evaluations from its files, which an older version may have written."""
    unread: list[str] = []
    reports = [report for path in _held_out(run) if (report := _read(path, unread)) is not None]
    read = [(step, _read(path, unread)) for step, path in sorted(_numbered(run.evaluations, "validation"))]
    held_out = max(reports, key=_rank, default=None)
    return Evaluated(
        held_out=held_out,
        earlier=tuple(row for report in reports if report is not held_out for row in report.evaluations),
        validations={step: report.evaluations[0] for step, report in read if report is not None},
        unread=tuple(unread),
    )


def _rank(report: EvaluationReport) -> tuple[bool, bool, bool]:
    has_tuned = any(row.name == "tuned" for row in report.evaluations)
    is_own = not any(row.differs_with for row in report.evaluations)
    return bool(report.comparisons) and has_tuned, is_own, bool(report.comparisons)


def claim_of_run(
    run: RunFolder, found: Evaluated | None = None, *, seen_in_training: int = 0, family: str = ""
) -> Claim:
    """Return the claim that a run supports.

    `found` contains evaluations that were already read. `seen_in_training` is the number of held-out tasks that are
    known to have been used in training, in addition to those that the file states. `family` lists the runs that share
    one claim with this run, in the form that a command accepts.
    """
    found = found or evaluated(run)
    facts = RunFacts(
        name="RUN" if family else named(run.path),
        family=family,
        recipe=named(run.recipe),
        runs=named(run.path.parent),
        has_warm_start=run.config().warm_start is not None,
        continued=_continued(run),
        seen_in_training=max(seen_in_training, 0 if found.held_out is None else found.held_out.seen_in_training),
    )
    if found.held_out is None:
        return claim_of_validations(found.validations, replace(facts, seen_in_training=0))
    rows = found.held_out.evaluations
    known = {row.name for row in rows} | {"tuned"}
    return claim_of([*(row for row in found.earlier if row.name not in known), *rows], facts)


def _continued(run: RunFolder) -> Continued | None:
    """Return the length of the continued warm start, or None if the control does not exist or its files cannot be
    read."""
    try:
        made = parse_json((run.controls / CONTINUED / "state.json").read_text("utf-8"))
        # Training may have continued since the control was trained.
        rl_seconds = max(made["rl_seconds"], training_seconds(run.path / "metrics.jsonl"))
        return Continued(
            steps=made["steps"], seconds=made["seconds"], rl_seconds=rl_seconds, fingerprint=made["fingerprint"]
        )
    except (OSError, ValueError, LookupError, TypeError, DataError):
        return None


def claims_of_runs(runs: Iterable[RunFolder]) -> list[tuple[tuple[RunFolder, ...], Claim]]:
    """Return the claims of runs. Runs that differ only in their seed share one claim."""
    families: list[tuple[Origin, dict[int, RunFolder]]] = []
    for run in runs:
        origin, seed = Origin.of_run(run), run.config().run.seed
        alike = (family for first, family in families if seed not in family and not first.differences(origin))
        family = next(alike, None)
        if family is None:
            families.append((origin, {seed: run}))
        else:
            family[seed] = run
    return [
        (tuple(family.values()), claim_over({seed: claim_of_run(run) for seed, run in sorted(family.items())}))
        for _, family in families
    ]


def claim_of_report(report: EvaluationReport) -> Claim:
    """Return the claim that one evaluation of a run supports, with the controls of the run's other evaluations.

    A rescored evaluation is not combined with others.
    """
    run = RunFolder(report.path.parent.parent)
    others = (
        ()
        if report.rescored is not None
        else tuple(
            row
            for path in _held_out(run)
            if path != report.path and (one := _read(path, []))
            for row in one.evaluations
        )
    )
    return claim_of_run(run, Evaluated(held_out=report, validations={}, earlier=others))


def is_random_control(run: RunFolder, of: RunFolder) -> bool:
    """Return whether a run is the random-reward control of another run: a run with the same recipe except for the
    settings of its reward, evaluation, detectors and tracking. A claim also requires that it was trained for the same
    number of steps."""
    reward = (run.config().reward.reward or "").rpartition(":")[2]
    if run.path.resolve() == of.path.resolve() or reward not in RANDOM_REWARDS:
        return False
    first, second = Origin.of_run(run), Origin.of_run(of)
    # A control that was trained from the other run's `run.toml` has that recipe among its files.
    recipes = (first.recipe.name, second.recipe.name)
    return all(one.startswith(NOT_OF_TRAINING) or one in recipes for one in first.differences(second))


def named(path: Path) -> str:
    """Return a path in the form that a command accepts."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def num_shared(tasks: Iterable[Task], others: Iterable[Task]) -> int:
    """Return how many of `tasks` are also in `others`, compared by content."""
    known = set(map(content_hash, others))
    return sum(content_hash(task) in known for task in tasks)


def _held_out(run: RunFolder) -> list[Path]:
    """Return the files of held-out evaluations, newest first."""
    return [path for _, path in sorted(_numbered(run.evaluations, "held_out"), reverse=True)]


def _numbered(folder: Path, stem: str) -> list[tuple[int, Path]]:
    pattern = re.compile(rf"{stem}-(\d+)\.json")
    found = [(pattern.fullmatch(path.name), path) for path in (folder.iterdir() if folder.is_dir() else ())]
    return [(int(match[1]), path) for match, path in found if match]


def _read(path: Path, unread: list[str]) -> EvaluationReport | None:
    try:
        return read_report(path)
    except DataError as error:
        unread.append(str(error))
        return None
