"""The sessions of an episode with several policies. The main session contains the other sessions, keyed by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from sparring.errors import InfrastructureError, SparringError, UsageError

Other = TypeVar("Other")


def named(others: Mapping[str, Other], name: str) -> Other:
    """Return the session of a policy. Raises UsageError for a name that the recipe does not define."""
    if name not in others:
        known = f"its policies are {', '.join(map(repr, others))}" if others else "it defines none"
        raise UsageError(
            f"session.of({name!r}): the recipe has no such policy; {known}. Add [policies.{name}], or correct the name."
        )
    return others[name]


def first_failure(failures: Sequence[SparringError | None]) -> SparringError | None:
    """Return the first failure of an episode's policies. An infrastructure failure comes before the failures that it
    caused."""
    known = [failure for failure in failures if failure is not None]
    return next((failure for failure in known if isinstance(failure, InfrastructureError)), next(iter(known), None))
