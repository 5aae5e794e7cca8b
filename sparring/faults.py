"""Fault injection: named points in the code at which a test, or you, can have a process die, fail or wait.

    fault_point("shop.charge")                                    # in your environment; does nothing while nothing is armed

    SPARRING_FAULTS="shop.charge=error,share=0.1,times=1000" sparring train recipe.toml
    SPARRING_FAULTS="learner.optimized=kill,at=3" sparring train recipe.toml

    with armed(Fault("shop.charge", "delay", seconds=2.0)): ...   # in a test

Several faults are separated by semicolons. With SPARRING_FAULTS_LOG=FILE each one is written down before it strikes, and what
the file holds already counts: a run that is started again after a kill is not killed a second time.
"""

from __future__ import annotations

import builtins
import difflib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, TypeAlias, final, get_args

from sparring.errors import InfrastructureError, UsageError

Action: TypeAlias = Literal["kill", "exit", "error", "delay"]

FAULTS_VARIABLE, LOG_VARIABLE = "SPARRING_FAULTS", "SPARRING_FAULTS_LOG"

POINTS = {
    "step.claiming": "a batch is complete, and none of its rollouts is claimed yet",
    "step.claimed": "the rollouts of the batch are claimed for the step",
    "learner.forward": "a forward pass is done, its backward pass is not",
    "learner.microbatch": "between two microbatches of a batch",
    "learner.optimizing": "the gradient is complete, the weights are as before",
    "learner.optimized": "the weights have changed, nobody knows of it",
    "engine.loading": "before the engine takes the new weights",
    "engine.loaded": "the engine plays with the new weights",
    "ledger.committing": "a group of changes is written, and not committed",
    "tracker.logging": "the step is over, its metrics are not written",
    "checkpoint.staging": "files of a checkpoint are written under a temporary name",
    "checkpoint.renaming": "a checkpoint is complete under its temporary name",
    "checkpoint.renamed": "a checkpoint has its name, the ledger does not know of it",
    "checkpoint.pruning": "the ledger knows of a checkpoint, older ones still exist",
    "evaluation.playing": "an episode of a validation is over",
    "run.closing": "the last checkpoint is written, the run does not say yet that it is over",
    "environment.reset": "before an environment is reset",
    "environment.tool": "before a tool is called",
    "environment.close": "before an environment is closed",
    "reward.judging": "an episode is over, and not judged",
    "worker.answering": "in a worker process, before each call of an environment, reward or scorer",
}
"""Points of Sparring itself; those of your own code have other names."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at a point: `kill` (as by kill -9), `exit` (the interpreter ends, whatever waits), `error`, `delay`."""

    point: str
    action: Action
    at: int = 1
    """From which time that the point is reached on, counted from 1."""
    times: int = 1
    """How often at most."""
    share: float = 1.0
    """With which probability, each time."""
    seconds: float = 1.0
    """How long a delay is."""
    raises: str = "InfrastructureError"
    """What an error is: that, or the name of one of Python's own exceptions."""

    def __post_init__(self) -> None:
        """Raises UsageError for what cannot strike."""
        if self.action not in get_args(Action):
            raise UsageError(
                f"fault {self.point}={self.action} is no action; use one of {', '.join(get_args(Action))}."
            )
        own = {name.partition(".")[0] for name in POINTS}
        if self.point not in POINTS and self.point.partition(".")[0] in own:
            near = difflib.get_close_matches(self.point, POINTS, n=1)
            raise UsageError(
                f"{self.point!r} is no fault point of Sparring{f'; did you mean {near[0]!r}?' if near else ''} There are "
                f"{', '.join(POINTS)}, and points of your own code under other names."
            )
        if self.at < 1 or self.times < 1 or not 0 < self.share <= 1 or self.seconds < 0:
            raise UsageError(f"{self} would never strike; give at >= 1, times >= 1, 0 < share <= 1 and seconds >= 0.")
        self.exception()

    @classmethod
    def read(cls, text: str) -> Fault:
        """From `POINT=ACTION[,at=N][,times=N][,share=X][,seconds=X][,raises=NAME]`. Raises UsageError."""
        kinds: dict[str, Callable[[str], int | float | str]] = {
            "at": int, "times": int, "share": float, "seconds": float, "raises": str,
        }  # fmt: skip
        first, *more = text.strip().split(",")
        point, _, action = first.partition("=")
        given: dict[str, int | float | str] = {}
        for one in more:
            key, _, value = one.strip().partition("=")
            try:
                given[key] = kinds[key](value)
            except (KeyError, ValueError):
                raise UsageError(
                    f"fault {text!r} has {one!r}; write POINT=ACTION and behind it, separated by commas, any of "
                    f"{', '.join(f'{field.name}=...' for field in fields(cls)[2:])}."
                ) from None
        return cls(point.strip(), action.strip(), **given)  # type: ignore[arg-type]

    def exception(self) -> Exception:
        """What `error` raises. Raises UsageError for a name that is no exception."""
        message = f"fault injected at {self.point}"
        if self.raises == "InfrastructureError":
            return InfrastructureError(f"{message}.")
        found = getattr(builtins, self.raises, None)
        if not (isinstance(found, type) and issubclass(found, Exception)):
            raise UsageError(
                f"fault {self.point} raises {self.raises!r}, which is neither InfrastructureError nor an exception of Python."
            )
        return found(message)


@final
class _Armed:
    """Faults with what they have done so far; points may be reached in any thread."""

    def __init__(self, faults: Sequence[Fault], log: Path | None, seed: int) -> None:
        self._faults, self._log = tuple(faults), log
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._num_reached: Counter[str] = Counter()
        known = log.read_text("utf-8").split() if log is not None and log.exists() else []
        self._num_struck = Counter(known)

    def due(self, point: str) -> Fault | None:
        with self._lock:
            self._num_reached[point] += 1
            for fault in self._faults:
                name = f"{point}={fault.action}"
                if (
                    fault.point == point
                    and self._num_reached[point] >= fault.at
                    and self._num_struck[name] < fault.times
                    and (fault.share == 1 or self._rng.random() < fault.share)
                ):
                    self._num_struck[name] += 1
                    self._note(name)
                    return fault
        return None

    def _note(self, name: str) -> None:
        if self._log is None:
            return
        with self._log.open("a", encoding="utf-8") as file:
            file.write(name + "\n")
            file.flush()
            os.fsync(file.fileno())


_armed: _Armed | None = None


def fault_point(name: str) -> None:
    """A place where an armed fault strikes. Raises what an `error` fault says."""
    fault = None if _armed is None else _armed.due(name)
    if fault is None:
        return
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "exit":
        os._exit(0)  # what no handler sees, and what looks like success to who only reads the exit code
    elif fault.action == "delay":
        time.sleep(fault.seconds)
    else:
        raise fault.exception()


def arm(faults: Sequence[Fault], *, log: Path | None = None, seed: int = 0) -> None:
    """From now on these faults strike in this process, and no others."""
    global _armed
    _armed = _Armed(faults, log, seed) if faults else None


@contextmanager
def armed(*faults: Fault, log: Path | None = None, seed: int = 0) -> Iterator[None]:
    """`arm` for a block."""
    global _armed
    before = _armed
    arm(faults, log=log, seed=seed)
    try:
        yield
    finally:
        _armed = before


def arm_from_environment() -> None:
    """Arm what SPARRING_FAULTS asks for. Raises UsageError for what it cannot mean."""
    text, log = os.environ.get(FAULTS_VARIABLE, ""), os.environ.get(LOG_VARIABLE)
    arm([Fault.read(one) for one in text.split(";") if one.strip()], log=Path(log) if log else None)
