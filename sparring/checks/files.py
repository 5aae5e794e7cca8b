"""Does a run have every file that the recipe's code reads?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from sparring.checks.calls import players
from sparring.checks.opened import OpenedFile, OpenedFiles
from sparring.checks.registry import check
from sparring.checks.subject import Subject, UndecidedError
from sparring.findings import Finding, Severity
from sparring.tracking.recipe_files import files_of
from sparring.types import Json

NUM_SHOWN = 8
CONFIRM = "Run `sparring check` again: the finding is gone."


@check("files.kept")
async def files(subject: Subject) -> Iterable[Finding]:
    """The files that the recipe's code reads are in a run, too.

    Each run has a copy of the files in the recipe's folder, and its code reads those. Hidden files and folders, caches, virtual
    environments and run folders are not copied, and a path relative to the working folder leads elsewhere from there: a run
    that is resumed or evaluated would fail, or read something else. Name files by `Path(__file__).parent`. What other
    processes read, and what a library reads in C, is not seen.
    """
    opened = subject.shared.get("opened")
    if not isinstance(opened, OpenedFiles):
        return ()
    await _play(subject)
    kept = files_of(subject.recipe, Path(subject.config.run.runs_dir))
    read = [one for one in opened.seen() if one.path.is_file()]
    relative = [one for one in read if one.is_relative]
    below = [one for one in read if not one.is_relative and one.path.is_relative_to(opened.folder)]
    missing = [one for one in below if one.path.relative_to(opened.folder) not in kept]
    return [*_missing(missing), *_relative(relative)]


async def _play(subject: Subject) -> None:
    """Episodes and their rewards, as far as they can be played: other rules report what cannot."""
    if subject.environment_class is None:
        return
    played = []
    for task in subject.sample:
        with suppress(UndecidedError):
            played += [await subject.play(task, policy, judged=False) for policy in await players(subject, task)]
    await subject.judge_ahead(played)
    for one in played:
        with suppress(UndecidedError):
            await subject.judge(one)


def _missing(found: list[OpenedFile]) -> Iterator[Finding]:
    if found:
        yield Finding(
            rule="files.kept",
            severity=Severity.WARNING,
            symptom=f"the recipe's code reads {_named(found)}, which a run has no copy of.",
            evidence=_evidence(found),
            change="Move it to a place in the recipe's folder that is copied: hidden files and folders, caches, virtual "
            "environments and run folders are not.",
            confirm=CONFIRM,
        )


def _relative(found: list[OpenedFile]) -> Iterator[Finding]:
    if found:
        yield Finding(
            rule="files.kept",
            severity=Severity.WARNING,
            symptom=f"the recipe's code reads {_named(found)} by a path relative to the working folder.",
            evidence=_evidence(found),
            change="Open `Path(__file__).parent / NAME`: it is found from every working folder, and a run reads its copy.",
            confirm=CONFIRM,
        )


def _named(found: list[OpenedFile]) -> str:
    names = list(dict.fromkeys(one.path.name for one in found))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more files" if len(names) > 3 else "")


def _evidence(found: list[OpenedFile]) -> dict[str, Json]:
    return {"files": [{"path": str(one.path), "line": one.line} for one in found[:NUM_SHOWN]]}
