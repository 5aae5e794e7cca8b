"""The policies of one table, as a person names them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sparring.config import endpoint_problems
from sparring.errors import UsageError
from sparring.tracking import RunFolder

SPELLINGS = (
    "base, warm_start, tuned (the newest checkpoint), @STEP, RUN or RUN@STEP (a checkpoint of another run), expert, "
    "constant:TEXT, script:MODULE:FUNCTION, script:FILE.jsonl, openai:MODEL@URL"
)


class PolicyKind(StrEnum):
    """Who plays."""

    BASE = "base"
    CHECKPOINT = "checkpoint"
    GIVEN = "given"
    """Weights that only this process has."""
    EXPERT = "expert"
    CONSTANT = "constant"
    SCRIPT = "script"
    ENDPOINT = "openai"
    ENGINE = "engine"
    """What `[engine]` of the recipe names."""


HAS_WEIGHTS = frozenset({PolicyKind.BASE, PolicyKind.CHECKPOINT, PolicyKind.GIVEN})
"""Those that the recipe's model plays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One row's player."""

    name: str
    """What tables show."""
    kind: PolicyKind
    source: str = ""
    """A checkpoint's folder, or before it is looked up the run and step that were named; what is said; a script; an
    address."""
    model: str = ""
    """At the address."""

    @property
    def has_weights(self) -> bool:
        return self.kind in HAS_WEIGHTS

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_policy(text: str) -> Policy:
    """A policy as the command line spells it. Raises UsageError for anything else, an unknown run among it."""
    kind, _, rest = text.partition(":")
    match kind:
        case "base" | "expert" if not rest:
            return Policy(name=text, kind=PolicyKind(text))
        case "warm_start" | "tuned" if not rest:
            return Policy(name=text.replace("_", " "), kind=PolicyKind.CHECKPOINT, source=text)
        case "constant" | "script" if rest:
            return Policy(name=text, kind=PolicyKind(kind), source=rest)
        case "openai":
            # From the right: a model's name may have an @, an address may not.
            model, _, url = rest.rpartition("@")
            problems = endpoint_problems(base_url=url, api_key_env=None)
            if not model or problems:
                raise UsageError(
                    f"--policy {text!r} names no endpoint; write openai:MODEL@URL, e.g. openai:m@http://127.0.0.1:8000/v1, and "
                    "name the variable that holds its key with --key-env."
                )
            return Policy(name=text, kind=PolicyKind.ENDPOINT, source=url, model=model)
    run, step = run_and_step(text)
    if (step is None or step.isdigit()) and (not run or RunFolder.is_run(run_path(run))):
        return Policy(name=text, kind=PolicyKind.CHECKPOINT, source=text)
    raise UsageError(f"--policy {text!r} is neither a policy nor a run; give one of {SPELLINGS}.")


def run_and_step(text: str) -> tuple[str, str | None]:
    """`RUN@STEP` apart; without @ no step."""
    run, at, step = text.rpartition("@")
    return (run, step) if at else (text, None)


def run_path(run: str | Path) -> Path:
    """A run by path, or by its name in `runs/`."""
    path, named = Path(run), Path("runs") / run
    return named if not path.exists() and named.is_dir() else path
