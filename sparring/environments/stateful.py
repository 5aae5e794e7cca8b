"""The stateful pattern: each episode gets its own seeded state, which is removed when the episode ends."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import math
import random
import re
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, final

from sparring.environments.base import Environment
from sparring.errors import InfrastructureError, UsageError
from sparring.runtime.plugins import call
from sparring.types import Json, Message, Task

STARTS = datetime(2025, 1, 6, 9, tzinfo=UTC)
"""The time at which an episode starts, by the episode's own clock: a Monday morning."""

_SQL_TIMES = ("date", "time", "datetime", "julianday", "unixepoch", "strftime")
_SQL_NOW = {"current_date": "date", "current_time": "time", "current_timestamp": "datetime"}

_NOISE = re.compile(
    r"(?P<id>\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\b0x[0-9a-f]{6,16}\b)"
    r"|(?P<time>\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)"
    r"|(?P<path>(?:/private)?(?:/var)?/tmp/[\w.+-]+|(?:/[\w.+-]+)*/(?:sparring-|tmp)[a-z0-9_]{8}\b)"
    r"|(?P<float>(?<![\w.])-?\d+\.\d{7,}(?:[eE][+-]?\d+)?(?![\w.]))"
)
_DIGITS = 9
"""The number of significant digits of a float that are compared. Later digits differ between processors."""


@final
class EpisodeClock:
    """The clock of an episode. The time is fixed until `advance` changes it."""

    def __init__(self, starts: datetime = STARTS) -> None:
        """Create a clock. Raises UsageError for a time without a time zone, since the time would depend on the
        machine."""
        if starts.tzinfo is None:
            raise UsageError(f"{starts} has no time zone; add one, for example tzinfo=datetime.UTC.")
        self._now = starts

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> datetime:
        """Let time pass, and return the new time. Raises ValueError for negative or infinite seconds."""
        if not 0 <= seconds < math.inf:
            raise ValueError(f"time cannot advance by {seconds} s; pass 0 or more seconds")
        self._now += timedelta(seconds=seconds)
        return self._now


@final
class EpisodeState:
    """The state of one episode. Two episodes of the same task start with equal states, and concurrent episodes share
    nothing.

    `rng` and ids depend only on the task's seed and id. Files and rows are removed at the end of the episode.
    """

    def __init__(self, task: Task) -> None:
        origin = json.dumps([task.seed, task.id])
        self.rng = random.Random(origin)
        self.clock = EpisodeClock()
        """The episode's clock. Replace it to start at a different time."""
        self._name = base64.b32encode(hashlib.blake2b(origin.encode(), digest_size=5).digest()).decode().lower()
        self._counts: defaultdict[str, itertools.count[int]] = defaultdict(partial(itertools.count, 1))
        self._cleanups: list[tuple[str, Callable[[], object]]] = []

    def new_id(self, prefix: str) -> str:
        """Return an id that episodes of other tasks do not have, such as `order-k3v7m2qa-1`, then
        `order-k3v7m2qa-2`."""
        return f"{prefix}-{self._name}-{next(self._counts[prefix])}"

    def register(self, description: str, cleanup: Callable[[], Awaitable[object] | object]) -> None:
        """Call `cleanup`, sync or async, when the episode ends, however it ends. The cleanup that was registered last
        is called first."""
        self._cleanups.append((description, cleanup))

    @cached_property
    def directory(self) -> Path:
        """The episode's own folder. It is created at first use, and is then empty. Its name is random, so show tools
        and the policy only paths relative to it."""
        folder = tempfile.TemporaryDirectory(prefix="sparring-")
        self.register(f"folder {folder.name}", folder.cleanup)
        return Path(folder.name)

    @cached_property
    def database(self) -> sqlite3.Connection:
        """An SQLite database in memory, opened at first use. Its `random()` comes from `rng`, and its times, such as
        CURRENT_TIMESTAMP and date('now'), come from `clock`."""
        # Tools may use threads, but an episode uses only one at a time.
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        self.register("database", connection.close)
        # The built-in functions that are replaced below are called on a second connection.
        builtin = sqlite3.connect(":memory:", check_same_thread=False)
        self.register("database of times", builtin.close)
        connection.create_function("random", 0, lambda: self.rng.getrandbits(64) - 2**63)
        connection.create_function("randomblob", 1, lambda size: self.rng.randbytes(max(1, size)))
        for name in _SQL_TIMES:
            connection.create_function(name, -1, partial(self._sql_time, builtin, name))
        for keyword, name in _SQL_NOW.items():
            connection.create_function(keyword, 0, partial(self._sql_time, builtin, name))
        return connection

    def _sql_time(self, builtin: sqlite3.Connection, name: str, *arguments: Any) -> Any:
        if len(arguments) == (1 if name == "strftime" else 0):
            arguments = (*arguments, "now")
        now = self.clock.now().astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        values = [now if isinstance(value, str) and value.lower() == "now" else value for value in arguments]
        return builtin.execute(f"SELECT {name}({', '.join('?' * len(values))})", values).fetchone()[0]

    async def close(self) -> None:
        """Call all registered cleanups, even if one fails. Raises InfrastructureError, which lists the failed cleanups.
        A cancellation waits until all cleanups have been called."""
        failures: list[tuple[str, BaseException]] = []
        while self._cleanups:
            description, cleanup = self._cleanups.pop()
            try:
                await call(cleanup)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (the other cleanups must run)
                failures.append((description, error))
        for _, error in failures:
            if isinstance(error, asyncio.CancelledError):
                raise error
        if failures:
            listed = "; ".join(f"{description}: {error!r}" for description, error in failures)
            raise InfrastructureError(f"the resources of the episode could not be removed: {listed}.") from failures[0][
                1
            ]


class StatefulEnvironment(Environment):
    """An environment in which tools change state. Each episode has its own `self.state`.

        class Orders(StatefulEnvironment):
            def reset(self, task):
                super().reset(task)
                self.state.database.executescript(SCHEMA)

    Register everything else that an episode creates with `self.state.register`. It is then removed when the episode
    ends, whether the episode was answered, truncated, failed or cancelled, or its `reset` was incomplete.
    """

    persists: ClassVar[tuple[str, ...]] = ()
    """Attributes of the class that are meant to outlive an episode, such as a cache. All other attributes must stay
    unchanged."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        unknown = [name for name in cls.persists if not hasattr(cls, name)]
        if unknown:
            raise UsageError(
                f"{cls.__name__}.persists lists {unknown[0]!r}, but the class has no such attribute; define it in the class."
            )
        if cls.close is not StatefulEnvironment.close:
            raise UsageError(
                f"{cls.__name__} has a `close` that overrides the `close` of StatefulEnvironment; call "
                "`self.state.register(description, cleanup)` for each resource that it closes, and name "
                "StatefulEnvironment first among the base classes."
            )

    @property
    def state(self) -> EpisodeState:
        """The episode's state. Raises InfrastructureError before `reset` creates it."""
        state = vars(self).get("_state")
        if state is None:
            raise InfrastructureError(
                f"{type(self).__name__} has no state yet; call `super().reset(task)` first in its `reset`."
            )
        return state

    def reset(self, task: Task) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """Create the episode's state. Call this method first in your own `reset`."""
        before, self._state = vars(self).get("_state"), EpisodeState(task)
        if before is not None:
            self._state.register("the state before", before.close)
        return super().reset(task)

    @final
    async def close(self) -> None:
        """Remove everything that the episode created."""
        try:
            if "_state" in vars(self):
                await self._state.close()
        finally:
            await call(super().close)


def normalized(observation: Json) -> Json:
    """Return a tool's result without the parts that differ between two equal runs. The function is pure and idempotent.

    Keys are sorted, floats are rounded to nine significant digits, and whole floats become integers. In texts, UUIDs
    and addresses of objects become `<id-1>`, dates with a time of day become `<time-1>`, and temporary folders become
    `<path-1>`. They are numbered in order of first appearance, so that equal values stay equal. Text that is a JSON
    object or array is treated as JSON.
    """
    return _normalized(observation, {})


def _normalized(value: Json, seen: dict[str, str]) -> Json:
    """Return the value with its noisy parts replaced. `seen` contains the replacement of each noisy text so far."""
    if isinstance(value, str):
        return _normalized_text(value, seen)
    if isinstance(value, float) and math.isfinite(value):
        rounded = float(f"{value:.{_DIGITS}g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
    if isinstance(value, Mapping):
        return {key: _normalized(value[key], seen) for key in sorted(value, key=str)}
    return [_normalized(item, seen) for item in value] if isinstance(value, list | tuple) else value


def _normalized_text(text: str, seen: dict[str, str]) -> str:
    if text[:1] in ("{", "["):
        try:
            return json.dumps(_normalized(json.loads(text), seen), ensure_ascii=False, separators=(",", ":"))
        except (ValueError, RecursionError):
            pass

    def placed(match: re.Match[str]) -> str:
        kind, found = str(match.lastgroup), match[0]
        if kind == "float":
            return json.dumps(_normalized(float(found), seen))
        if found not in seen:
            seen[found] = f"<{kind}-{sum(name.startswith(f'<{kind}-') for name in seen.values()) + 1}>"
        return seen[found]

    return _NOISE.sub(placed, text)
