"""What a user gives beside the recipe: production logs, production schemas, reference endpoints, a stored run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparring.checks.subject import Given


def read_given(*, production: str | None, schemas: str | None, reference: Sequence[str], run: str | None) -> Given:
    """Read the files. Raises DataError naming what is wrong with one."""
    return Given(reference=tuple(reference), run=None if run is None else Path(run))
