"""An episode of several policies: one session for each, known to the main one by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from sparring.errors import InfrastructureError, SparringError, UsageError
from sparring.types import Turn


class HasTurns(Protocol):
    """What of a session is told for the whole episode."""

    @property
    def turns(self) -> tuple[Turn, ...]: ...


Other = TypeVar("Other")


def named(others: Mapping[str, Other], name: str) -> Other:
    """The session of a policy. Raises UsageError for a name that the recipe does not have."""
    if name not in others:
        known = f"there are {', '.join(map(repr, others))}" if others else "it names none"
        raise UsageError(
            f"session.of({name!r}): the recipe has no such policy, {known}. Add [policies.{name}], or correct the name."
        )
    return others[name]


def turns_of(sessions: Iterable[HasTurns]) -> tuple[Turn, ...]:
    """The turns of all policies of an episode, by id."""
    return tuple(sorted((turn for session in sessions for turn in session.turns), key=lambda turn: turn.id))


def first_failure(failures: Sequence[SparringError | None]) -> SparringError | None:
    """Of those of an episode's policies: an outage comes before whatever it led to."""
    known = [failure for failure in failures if failure is not None]
    return next((failure for failure in known if isinstance(failure, InfrastructureError)), next(iter(known), None))
