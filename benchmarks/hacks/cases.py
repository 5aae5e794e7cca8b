"""The cases: environments with a reward that can be hacked, and healthy runs of other recipes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

NAMED_BY: Mapping[str, frozenset[str]] = {
    "lenient_tag": frozenset({"reward.paid_for_wrong", "reward.pays_for_phrase"}),
    "tool_call_bonus": frozenset({"tools.spam"}),
    "turn_penalty": frozenset({"answers.early"}),
    "dominated_component": frozenset({"reward.component_takes_over"}),
    "format_farming": frozenset({"answers.farmed_format", "answers.repetitive"}),
    "example_copying": frozenset({"answers.copied_from_example"}),
    "answer_stuffing": frozenset({"answers.stuffed"}),
    "early_submission": frozenset({"answers.early"}),
    "judge_master_key": frozenset({"judge.master_key"}),
    "test_editing": frozenset({"exploits.known"}),
}
"""Which rules name which hack: a warning or an error of one of them says what the policy does, not only that something is wrong.
`reward.rises_alone` and `reward.paid_for_wrong` speak of any hack and name, of these, a lenient reader of answers only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A recipe to train, and what is expected of it."""

    name: str
    """`own/lenient_tag`; of a healthy run its name and what was changed."""
    recipe: Path
    hack: str | None = None
    """None of a healthy run."""
    overrides: tuple[str, ...] = ()

    @property
    def run_name(self) -> str:
        return self.name.replace("/", "-")


def hack_cases() -> list[Case]:
    """Our own first, then those of somebody who had not seen the detectors."""
    return [
        Case(name=f"{author}/{path.parent.name}", recipe=path.parent / "recipe.toml", hack=_told(path)["hack"])
        for author in ("own", "blind")
        for path in sorted((HERE / author).glob("*/case.toml"))
    ]


def healthy_cases() -> list[Case]:
    """The runs of healthy/runs.toml: recipes by a path from the root, with overrides."""
    told = tomllib.loads((HERE / "healthy" / "runs.toml").read_text("utf-8"))
    return [
        Case(name=f"healthy/{name}", recipe=ROOT / run["recipe"], overrides=tuple(run.get("overrides", ())))
        for name, run in told.items()
    ]


def _told(path: Path) -> dict[str, str]:
    return tomllib.loads(path.read_text("utf-8"))
