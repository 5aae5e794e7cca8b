"""Fault injection: named points in the code where a process can be made to die, fail or wait.

    fault_point("shop.charge")                                    # in your environment; does nothing unless a fault is armed

    SPARRING_FAULTS="shop.charge=error,share=0.1,times=1000" sparring train recipe.toml
    SPARRING_FAULTS="learner.optimized=kill,at=3" sparring train recipe.toml

    with arm_for_block(Fault("shop.charge", "delay", seconds=2.0)): ...   # in a test

Separate several faults with semicolons. With SPARRING_FAULTS_LOG=FILE, each fault is logged before it happens, and the
faults that the file already lists count as having happened. Therefore, a run that is restarted after a kill is not
killed again.
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
    "step.claiming": "a batch is complete, but none of its rollouts is claimed yet",
    "step.claimed": "the rollouts of the batch are claimed for the step",
    "learner.forward": "a forward pass is done, but its backward pass is not",
    "learner.microbatch": "between two microbatches of a batch",
    "learner.optimizing": "the gradient is complete, but the weights have not changed",
    "learner.optimized": "the weights have changed, but the change is not recorded yet",
    "engine.loading": "before the engine loads the new weights",
    "engine.loaded": "the engine samples with the new weights",
    "ledger.committing": "a group of changes is written, but not committed",
    "tracker.logging": "the step is over, but its metrics are not written",
    "checkpoint.staging": "files of a checkpoint are written under a temporary name",
    "checkpoint.renaming": "a checkpoint is complete under its temporary name",
    "checkpoint.renamed": "a checkpoint has its final name, but the ledger does not list it yet",
    "checkpoint.pruning": "the ledger lists a checkpoint, but older checkpoints still exist",
    "evaluation.playing": "an episode of a validation is over",
    "run.closing": "the last checkpoint is written, but the run's status is not updated yet",
    "environment.reset": "before an environment is reset",
    "environment.tool": "before a tool is called",
    "environment.close": "before an environment is closed",
    "reward.judging": "an episode is over, but not graded yet",
    "copy.staged": "the files of a copy are staged, except for the ledger",
    "copy.sending": "before a block of a copy is written",
    "copy.fetching": "before a block of a copy is read",
    "copy.publishing": "all blocks of a copy are written, but not its list of files",
    "worker.answering": "in a worker process, before each call of an environment, reward or scorer",
}
"""Sparring's own points. Points in user code need other names."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An injected fault: `kill` (like kill -9), `exit` (the interpreter exits at once), `error` or `delay`."""

    point: str
    action: Action
    at: int = 1
    """Number of the first visit of the point at which the fault may happen, counted from 1."""
    times: int = 1
    """Maximum number of times that the fault happens."""
    share: float = 1.0
    """Probability that the fault happens at each visit."""
    seconds: float = 1.0
    """Length of a delay, in seconds."""
    raises: str = "InfrastructureError"
    """Exception of an `error` fault: InfrastructureError, or the name of a built-in exception."""

    def __post_init__(self) -> None:
        """Raise UsageError for a fault that can never happen."""
        if self.action not in get_args(Action):
            raise UsageError(
                f"{self.action!r} of fault {self.point}={self.action} is not an action; use one of "
                f"{', '.join(get_args(Action))}."
            )
        own = {name.partition(".")[0] for name in POINTS}
        if self.point not in POINTS and self.point.partition(".")[0] in own:
            near = difflib.get_close_matches(self.point, POINTS, n=1)
            raise UsageError(
                f"{self.point!r} is not a fault point of Sparring{f'; did you mean {near[0]!r}?' if near else '.'} Its "
                "points are "
                f"{', '.join(POINTS)}. Points in your own code need other names."
            )
        if self.at < 1 or self.times < 1 or not 0 < self.share <= 1 or self.seconds < 0:
            raise UsageError(f"{self} can never happen; use at >= 1, times >= 1, 0 < share <= 1 and seconds >= 0.")
        self.exception()

    @classmethod
    def read(cls, text: str) -> Fault:
        """Parse `POINT=ACTION[,at=N][,times=N][,share=X][,seconds=X][,raises=NAME]`. Raises UsageError."""
        kinds: dict[str, Callable[[str], int | float | str]] = {
            "at": int,
            "times": int,
            "share": float,
            "seconds": float,
            "raises": str,
        }
        first, *more = text.strip().split(",")
        point, _, action = first.partition("=")
        options: dict[str, int | float | str] = {}
        for one in more:
            key, _, value = one.strip().partition("=")
            try:
                options[key] = kinds[key](value)
            except (KeyError, ValueError):
                raise UsageError(
                    f"fault {text!r} contains {one!r}. Write POINT=ACTION, followed by any of "
                    f"{', '.join(f'{field.name}=...' for field in fields(cls)[2:])}."
                ) from None
        return cls(point.strip(), action.strip(), **options)  # type: ignore[arg-type]

    def exception(self) -> Exception:
        """Return the exception of an `error` fault. Raises UsageError if `raises` is not the name of an exception."""
        message = f"fault injected at {self.point}"
        if self.raises == "InfrastructureError":
            return InfrastructureError(f"{message}.")
        kind = getattr(builtins, self.raises, None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise UsageError(
                f"fault {self.point} raises {self.raises!r}, which is neither InfrastructureError nor a built-in exception."
            )
        return kind(message)


@final
class _Armed:
    """The armed faults, and how often each one has happened. Fault points may be reached in any thread."""

    def __init__(self, faults: Sequence[Fault], log: Path | None, seed: int) -> None:
        self._faults, self._log = tuple(faults), log
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._num_reached: Counter[str] = Counter()
        known = log.read_text("utf-8").split() if log is not None and log.exists() else []
        self._num_happened = Counter(known)

    def due(self, point: str) -> Fault | None:
        with self._lock:
            self._num_reached[point] += 1
            for fault in self._faults:
                name = f"{point}={fault.action}"
                if (
                    fault.point == point
                    and self._num_reached[point] >= fault.at
                    and self._num_happened[name] < fault.times
                    and (fault.share == 1 or self._rng.random() < fault.share)
                ):
                    self._num_happened[name] += 1
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
    """Mark a place where an armed fault can happen. Raises the exception of an `error` fault."""
    fault = None if _armed is None else _armed.due(name)
    if fault is None:
        return
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "exit":
        os._exit(0)  # No handler runs, and the exit code looks like success.
    elif fault.action == "delay":
        time.sleep(fault.seconds)
    else:
        raise fault.exception()


def arm(faults: Sequence[Fault], *, log: Path | None = None, seed: int = 0) -> None:
    """Arm these faults in this process. They replace all faults that were armed before."""
    global _armed
    _armed = _Armed(faults, log, seed) if faults else None


@contextmanager
def arm_for_block(*faults: Fault, log: Path | None = None, seed: int = 0) -> Iterator[None]:
    """Arm faults for the duration of a block."""
    global _armed
    before = _armed
    arm(faults, log=log, seed=seed)
    try:
        yield
    finally:
        _armed = before


def arm_from_environment() -> None:
    """Arm the faults in SPARRING_FAULTS. Raises UsageError for a value that cannot be parsed."""
    text, log = os.environ.get(FAULTS_VARIABLE, ""), os.environ.get(LOG_VARIABLE)
    arm([Fault.read(one) for one in text.split(";") if one.strip()], log=Path(log) if log else None)
