"""The cases: our own cases, cases by authors who had not seen the rules, and healthy runs of other recipes.

README.md describes the format.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
STEPS = 25
"""Number of steps that a branched run trains, unless a case sets another number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The settings for diagnosing a run that is still training."""

    after_step: int
    """The step that must be in `metrics.jsonl`."""
    seconds: float
    """The time to wait after that step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A recipe to train, with the expected diagnosis."""

    name: str
    """`own/groups_agree`"""
    recipe: Path
    overrides: tuple[str, ...] = ()
    shows: frozenset[str] = frozenset()
    """The rules that name the fault; empty for a healthy run."""
    like: str | None = None
    """The symptom that a healthy run resembles."""
    changes: frozenset[str] = frozenset()
    """A right first change sets one of these settings. Empty if code must be fixed."""
    fix: tuple[str, ...] = ()
    """Settings that fix the code (`mend` in case.toml)."""
    more_steps: int = STEPS
    branch_from: int | None = None
    live: Live | None = None
    """None for a run that is diagnosed after its end."""
    warm_from: Case | None = None
    """The first seed of the same recipe. Both seeds share its warm start."""

    @property
    def run_name(self) -> str:
        return self.name.replace("/", "-")

    @property
    def is_planted(self) -> bool:
        return bool(self.shows)


def all_cases() -> list[Case]:
    """Return all cases in the order in which they are trained."""
    own = HERE / "own"
    tables = tomllib.loads((own / "cases.toml").read_text("utf-8"))
    blind = sorted((HERE / "blind").glob("*/case.toml"))
    return [
        *(_case(f"own/{name}", own / table.get("recipe", "recipe.toml"), table) for name, table in tables.items()),
        *(_case(f"blind/{path.parent.name}", path.parent / "recipe.toml", _read(path)) for path in blind),
        *_healthy(),
    ]


def _healthy() -> Iterator[Case]:
    """Yield runs of other recipes, including recipes of the reward-hack benchmark. Paths are relative to the root."""
    for file in (HERE / "healthy.toml", ROOT / "benchmarks" / "hacks" / "healthy" / "runs.toml"):
        for name, table in _read(file).items():
            first: Case | None = None
            for seed in table.get("seeds", [None]):
                case = Case(
                    name=f"healthy/{name}" + ("" if seed is None else f"-seed-{seed}"),
                    recipe=ROOT / table["recipe"],
                    overrides=(*table.get("overrides", ()), *([] if seed is None else [f"run.seed={seed}"])),
                    warm_from=first,
                )
                first = first or case
                yield case


def _case(name: str, recipe: Path, table: Mapping[str, Any]) -> Case:
    return Case(
        name=name,
        recipe=recipe,
        overrides=tuple(table.get("overrides", ())),
        shows=frozenset(table.get("shows", ())),
        like=table.get("like"),
        changes=frozenset(table.get("changes", ())),
        fix=tuple(table.get("mend", ())),
        more_steps=table.get("more_steps", STEPS),
        branch_from=table.get("from"),
        live=Live(**table["live"]) if "live" in table else None,
    )


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))
