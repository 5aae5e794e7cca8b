"""Rule on files: a run must have every file that the recipe's code reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from sparring.checks.evidence.legal_calls import make_policies
from sparring.checks.evidence.subject import Subject, UndecidedError
from sparring.checks.running.opened_files import OpenedFile, OpenedFiles
from sparring.findings import Finding, Severity
from sparring.run_folders.recipe_files import list_files
from sparring.types import Json

NUM_SHOWN = 8
CONFIRM = "Run `sparring check` again: the finding is gone."


async def files(subject: Subject) -> Iterable[Finding]:
    """The files that the recipe's code reads are also in the run folder.

    Each run has a copy of the files in the recipe's folder, and its code reads this copy. Hidden files and folders,
    caches, virtual environments and run folders are not copied. From the copy, a path relative to the working folder
    points elsewhere, so a resumed or evaluated run would fail or read a different file. Build paths from
    `Path(__file__).parent`. The rule does not detect files that other processes or C libraries read.
    """
    opened = subject.shared.get("opened")
    if not isinstance(opened, OpenedFiles):
        return ()
    await _play(subject)
    kept = list_files(subject.recipe, Path(subject.config.run.runs_dir))
    read = [one for one in opened.seen() if one.path.is_file()]
    relative = [one for one in read if one.is_relative]
    below = [one for one in read if not one.is_relative and one.path.is_relative_to(opened.folder)]
    missing = [one for one in below if one.path.relative_to(opened.folder) not in kept]
    return [*_missing(missing), *_relative(relative)]


async def _play(subject: Subject) -> None:
    """Run and grade episodes as far as possible. Other rules report failures."""
    if subject.environment_class is None:
        return
    played = []
    for task in subject.sample:
        with suppress(UndecidedError):
            played += [
                await subject.run_episode(task, policy, graded=False) for policy in await make_policies(subject, task)
            ]
    await subject.grade_ahead(played)
    for one in played:
        with suppress(UndecidedError):
            await subject.grade(one)


def _missing(found: list[OpenedFile]) -> Iterator[Finding]:
    if found:
        yield Finding(
            rule="files.kept",
            severity=Severity.WARNING,
            symptom=f"the recipe's code reads {_named(found)}, which a run folder does not contain.",
            evidence=_evidence(found),
            change="Move each of these files to a place in the recipe's folder that is copied. Hidden files and "
            "folders, caches, virtual environments and run folders are not copied.",
            confirm=CONFIRM,
        )


def _relative(found: list[OpenedFile]) -> Iterator[Finding]:
    if found:
        yield Finding(
            rule="files.kept",
            severity=Severity.WARNING,
            symptom=f"the recipe's code reads {_named(found)} by a path relative to the working folder.",
            evidence=_evidence(found),
            change="Open `Path(__file__).parent / NAME`: this works from every working folder, and a run reads its "
            "copy.",
            confirm=CONFIRM,
        )


def _named(found: list[OpenedFile]) -> str:
    names = list(dict.fromkeys(one.path.name for one in found))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more files" if len(names) > 3 else "")


def _evidence(found: list[OpenedFile]) -> dict[str, Json]:
    return {"files": [{"path": str(one.path), "line": one.line} for one in found[:NUM_SHOWN]]}
