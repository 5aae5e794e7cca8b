"""`sparring train --seeds` and `sparring eval --across`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparring.cli.command import print_json, say
from sparring.tracking import Console

if TYPE_CHECKING:
    from sparring.evaluation.across_seeds import AcrossSeeds


def train_family(
    recipe: Path,
    seeds: str,
    changes: Sequence[str],
    *,
    name: str | None,
    weights: Path | None,
    check: bool,
    as_json: bool,
) -> None:
    """Train a recipe with several seeds. Exit with the exit code of the first failed seed, or with that of the signal
    that stopped the training."""
    from sparring.runtime.interrupts import exit_code, interruption
    from sparring.seeds import train_seeds

    trained = train_seeds(
        recipe, seeds, overrides=changes, name=name, model_weights=weights, check=check, quiet=as_json
    )
    path = str(trained.family.path)
    if as_json:
        print_json({**trained.across.as_json(), "stopped": trained.is_stopped})
    else:
        show_across(trained.across)
        if trained.is_stopped:
            say("stopped; repeat the command to continue")
        else:
            say(f"next: sparring eval --across {shlex.quote(path)}")
    for error in trained.failures.values():
        sys.exit(error.exit_code)
    if trained.is_stopped:
        sys.exit(exit_code(interruption()))


def evaluate_family(
    sources: Sequence[str], *, policies: Sequence[str] | None, temperatures: Sequence[float] | None, as_json: bool
) -> None:
    from sparring.evaluation.across_seeds import runs_of
    from sparring.evaluation.policies import run_path
    from sparring.run_folders.family_folder import FamilyFolder

    runs_of(sources)  # before torch is imported, so that a mistake is reported at once
    from sparring.seeds import evaluate_seeds

    evaluated = evaluate_seeds(sources, policies=policies, temperatures=temperatures, quiet=as_json)
    if as_json:
        print_json(evaluated.across.as_json())
    else:
        show_across(evaluated.across)
        if FamilyFolder.is_family(run_path(sources[0])):
            say(f"next: sparring report {shlex.quote(sources[0])}")
    for error in evaluated.failures.values():
        sys.exit(error.exit_code)


def show_across(family: AcrossSeeds) -> None:
    from sparring.evaluation.across_seeds import outlier_sentence
    from sparring.evaluation.tables import gains_table, seeds_table

    console = Console()
    console.table(*seeds_table(family))
    if (table := gains_table(family)) is not None:
        console.table(*table)
    for line in (outlier_sentence(family), *family.claim.lines(), *family.notes):
        if line:
            say(line)
