"""What a run's folder has of evaluations, and what they let one claim: the one place that reports, commands and results ask."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sparring.errors import DataError
from sparring.evaluation.claim import Claim, claim_of, claim_of_validations, claim_over
from sparring.evaluation.controls import Continued, RunFacts
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.report import EvaluationReport, read_report
from sparring.tracking import RunFolder
from sparring.tracking.family_folder import Origin
from sparring.tracking.run_folder import CONTINUED
from sparring.tracking.stored import training_seconds
from sparring.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The evaluations of one run that a claim is about."""

    held_out: EvaluationReport | None
    """The newest that compares tuned with others; else the newest that compares policies, else the newest of all."""
    validations: Mapping[int, Evaluation]
    """By step, in order."""
    earlier: tuple[Evaluation, ...] = ()
    """Rows of the other held-out evaluations, the newest first: controls count that `held_out` lacks."""
    unread: tuple[str, ...] = ()
    """Why some file is not in here."""


def evaluated(run: RunFolder) -> Evaluated:
    """From the files, which may be of an older version."""
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


def _rank(report: EvaluationReport) -> tuple[bool, bool]:
    has_tuned = any(row.name == "tuned" for row in report.evaluations)
    return bool(report.comparisons) and has_tuned, bool(report.comparisons)


def claim_of_run(
    run: RunFolder, found: Evaluated | None = None, *, seen_in_training: int = 0, family: str = ""
) -> Claim:
    """What a run may claim. `found`: evaluations that were read already. `seen_in_training`: how many of the held-out tasks are
    known to have been trained on, beside what the file has. `family`: as a command spells the runs that make one
    claim with it."""
    found = found or evaluated(run)
    facts = RunFacts(
        name="RUN" if family else named(run.path), family=family, recipe=named(run.recipe), runs=named(run.path.parent),
        has_warm_start=run.config().warm_start is not None, continued=_continued(run),
        seen_in_training=max(seen_in_training, 0 if found.held_out is None else found.held_out.seen_in_training),
    )  # fmt: skip
    if found.held_out is None:
        return claim_of_validations(found.validations, replace(facts, seen_in_training=0))
    rows = found.held_out.evaluations
    known = {row.name for row in rows} | {"tuned"}
    return claim_of([*(row for row in found.earlier if row.name not in known), *rows], facts)


def _continued(run: RunFolder) -> Continued | None:
    """None where the control was not made, or where its files cannot be read."""
    try:
        made = json.loads((run.controls / CONTINUED / "state.json").read_text("utf-8"))
        # Training may have gone on since the control was made.
        rl_seconds = max(made["rl_seconds"], training_seconds(run.path / "metrics.jsonl"))
        return Continued(
            steps=made["steps"], seconds=made["seconds"], rl_seconds=rl_seconds, fingerprint=made["fingerprint"]
        )  # fmt: skip
    except (OSError, ValueError, LookupError, TypeError, DataError):
        return None


def claims_of_runs(runs: Iterable[RunFolder]) -> list[tuple[tuple[RunFolder, ...], Claim]]:
    """Runs that differ in their seed alone make one claim together."""
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
    """What one evaluation of a run shows, beside the controls of the others; one that was graded anew stands alone."""
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


def named(path: Path) -> str:
    """As a command spells it."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def content_of(task: Task) -> str:
    """Equal for tasks that are the same word for word."""
    return json.dumps([task.messages, task.fields], sort_keys=True, default=str)


def num_shared(tasks: Iterable[Task], others: Iterable[Task]) -> int:
    """How many of `tasks` are among the others, word for word."""
    known = set(map(content_of, others))
    return sum(content_of(task) in known for task in tasks)


def _held_out(run: RunFolder) -> list[Path]:
    """The newest first."""
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
