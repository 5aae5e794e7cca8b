"""The replay pattern: read-only tools answer what was recorded for their arguments, and never call the live system."""

from __future__ import annotations

import asyncio
import bisect
import functools
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar, final

from sparring.data.files import Row, read_rows
from sparring.environments.base import Environment, opened, reset
from sparring.environments.calls import Observation, ToolError, ToolFailure
from sparring.environments.tools import tool, tools_of
from sparring.errors import DataError, InfrastructureError, UsageError
from sparring.tracking.inputs import note_input
from sparring.types import Json, Task

Method = TypeVar("Method", bound=Callable[..., Any])

RECORDING = Task(id="recording", messages=({"role": "user", "content": "record"},))
"""What a live environment is reset with when calls are recorded that belong to no task."""

_MOST_COMPARED = 128
"""Recorded calls that a miss is compared with, so that it costs a few milliseconds however many there are."""
_LEAST_ALIKE = 0.4
"""From 0 to 1: how much of its neighboring characters arguments share with a call to be told as the nearest."""


class FixtureMiss(ToolFailure):
    """A call that was not recorded; the policy reads its text, unless `ReplayEnvironment.miss` answers."""

    kind = ToolError.FIXTURE_MISS

    def __init__(self, tool: str, arguments: Mapping[str, Json], fixtures: Fixtures) -> None:
        super().__init__(tool, arguments)
        self.tool = tool
        self.arguments = arguments
        self._fixtures = fixtures

    @functools.cached_property
    def nearest(self) -> tuple[Mapping[str, Json], ...]:
        """Recorded arguments that look alike, the nearest first, at most three."""
        # Not before somebody asks: to compare texts takes longer than to answer.
        return self._fixtures._nearest(self.tool, self.arguments)

    def __str__(self) -> str:
        hint = f"; the nearest it knows is {_short(self.nearest[0])}" if self.nearest else ""
        return f"{self.tool} has no answer for {_short(self.arguments)}{hint}"


@final
class Fixtures:
    """Recorded answers of read-only tools by tool and arguments. Immutable.

        Fixtures([{"tool": "find", "arguments": {"title": "Emma"}, "result": "B3"}]).answer("find", title="Emma")

    Arguments are equal when they are as JSON: in any order of keys, 1 as 1.0. The same call may be there twice with
    the same result.
    """

    def __init__(self, rows: Iterable[Mapping[str, Json]]) -> None:
        """`rows` are {"tool", "arguments", "result"}; what else they say is not read. Raises DataError naming the row."""
        self._read((f"row {number}", False, row) for number, row in enumerate(rows, start=1))

    @classmethod
    def load(cls, *paths: str | Path) -> Self:
        """Fixtures of one or more .jsonl, .csv or .parquet files, one call a row.

        Columns are `tool` (by default the file's name without its suffix), `result`, and either `arguments` (an
        object, or JSON text) or one column for each argument, empty where it is left out. In a .csv a result is text,
        told as it is, and arguments in columns are compared by their text. The files are in the manifests of the runs
        of this process, with their sha256.

        Raises DataError naming file and row, and ServiceError when a .parquet is read without pyarrow.
        """
        fixtures = cls(())
        fixtures._read(entry for path in map(Path, paths) for entry in _rows_of(path))
        return fixtures

    @classmethod
    def record(
        cls,
        make_environment: Callable[[], Environment],
        path: str | Path,
        *,
        calls: Iterable[tuple[str, Mapping[str, Json]]] = (),
        tasks: Iterable[Task] = (),
    ) -> Self:
        """Run calls against a live environment once, and write what its tools answered as .jsonl, sorted.

        `calls` are (tool, arguments), all in one environment; of each of `tasks` the calls of its expert
        (`demonstrate`) are run in an environment of its own. Defaults are recorded with the rest.

        Raises DataError when a call fails, or when equal calls are answered differently: such a tool is not
        read-only, and needs `StatefulEnvironment`. Then nothing is written.
        """
        target = Path(path)
        if target.suffix != ".jsonl":
            raise UsageError(f"{target}: fixtures are written as JSON lines; give a name that ends in .jsonl.")
        # A thread of its own, because the caller may run inside an event loop (a notebook).
        with ThreadPoolExecutor(max_workers=1) as executor:
            rows = executor.submit(asyncio.run, _recorded(make_environment, list(calls), list(tasks))).result()
        fixtures = cls(())
        fixtures._read((_call(row["tool"], row["arguments"]), False, row) for row in rows)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        temporary.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in fixtures), "utf-8")
        temporary.replace(target)
        return fixtures

    def answer(self, tool: str, /, **arguments: Json) -> Json:
        """What the tool answered to these arguments, a fresh copy. Raises FixtureMiss."""
        found = self._results.get((tool, _canonical(arguments)))
        if found is None and self._text_tools:
            found = self._results.get((tool, _canonical({name: _cell(value) for name, value in arguments.items()})))
        if found is None:
            raise FixtureMiss(tool, arguments, self)
        return json.loads(found)

    @functools.cached_property
    def sha256(self) -> str:
        """Of everything recorded, in whatever order and form of file it was given."""
        lines = (json.dumps([tool, key, result]) for (tool, key), result in sorted(self._results.items()))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[dict[str, Json]]:
        """The rows, sorted by tool and arguments."""
        for (name, key), result in sorted(self._results.items()):
            yield {"tool": name, "arguments": json.loads(key), "result": json.loads(result)}

    def _read(self, rows: Iterable[tuple[str, bool, Mapping[str, Json]]]) -> None:
        """`rows` come with their place and whether their arguments are texts."""
        # As text, so that no caller can change what the next one gets.
        self._results: dict[tuple[str, str], str] = {}
        self._text_tools: set[str] = set()
        places: dict[tuple[str, str], str] = {}
        for place, is_text, row in rows:
            key, result = _checked(row, place)
            first = places.setdefault(key, place)
            if self._results.setdefault(key, result) != result:
                raise DataError(
                    f"{place}: {_call(key[0], row['arguments'])} was answered differently than in {first}; a replayed "
                    "tool must follow from its arguments: remove one of the two, or use StatefulEnvironment."
                )
            if is_text:
                self._text_tools.add(key[0])

    def _nearest(self, tool: str, arguments: Mapping[str, Json]) -> tuple[Mapping[str, Json], ...]:
        keys = self._keys.get(tool, [])
        asked = _canonical(arguments)
        if len(keys) > _MOST_COMPARED:
            # Sorted, so neighbors begin alike.
            middle = bisect.bisect(keys, asked)
            first = max(0, min(middle - _MOST_COMPARED // 2, len(keys) - _MOST_COMPARED))
            keys = keys[first : first + _MOST_COMPARED]
        asked_pairs = _pairs(arguments)
        known = [(_alike(asked_pairs, _pairs(recorded)), recorded) for recorded in map(json.loads, keys)]
        best = sorted(known, key=lambda one: -one[0])[:3]
        return tuple(recorded for alike, recorded in best if alike >= _LEAST_ALIKE)

    @functools.cached_property
    def _keys(self) -> dict[str, list[str]]:
        """The recorded arguments of each tool, sorted."""
        keys: dict[str, list[str]] = {}
        for name, key in sorted(self._results):
            keys.setdefault(name, []).append(key)
        return keys


class ReplayEnvironment(Environment):
    """Tools marked `@replayed` answer from `fixtures`, and so do those of the live environment that the class replays.

        class Weather(ReplayEnvironment, replays=LiveWeather):
            fixtures = Fixtures.load(Path(__file__).parent / "fixtures" / "weather.jsonl")

    `fixtures` is the class's, or is set by `reset` where each task has a world of its own. A call that was not recorded
    is told to the policy as `fixture_miss` (see `miss`); nothing of the live environment is ever run. Further methods
    marked `@tool` run as they are written.
    """

    fixtures: Fixtures

    def __init_subclass__(cls, *, replays: type[Environment] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if replays is None:
            return
        if "describe_tools" not in vars(cls):
            cls.describe_tools = replays.describe_tools
        for name in tools_of(replays):
            if name not in vars(cls):
                setattr(cls, name, replayed(inspect.getattr_static(replays, name)))

    def miss(self, error: FixtureMiss) -> Json:
        """What a tool answers when nothing was recorded. Raises the error; override it to answer as the live tool would."""
        raise error

    def _replay(self, tool: str, arguments: Mapping[str, Json], defaults: Mapping[str, Json]) -> Json:
        fixtures = getattr(self, "fixtures", None)
        if fixtures is None:
            raise InfrastructureError(
                f"{type(self).__name__} has no fixtures; set `fixtures` in the class or in `reset`."
            )
        try:
            return fixtures.answer(tool, **arguments)
        except FixtureMiss as error:
            # Rows from a log may leave out what was left at its default.
            given = {
                name: value for name, value in arguments.items() if name not in defaults or value != defaults[name]
            }
            if len(given) < len(arguments):
                with suppress(FixtureMiss):
                    return fixtures.answer(tool, **given)
            return self.miss(error)


def replayed(method: Method) -> Method:
    """Mark a method of a ReplayEnvironment as a tool that answers from its fixtures; its body is never run.

    @replayed
    def forecast(self, city: str, days: int = 1):
        "The weather of a city."
    """
    signature = inspect.signature(method)
    defaults = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.default is not parameter.empty
    }

    @functools.wraps(method)
    def answer(self: ReplayEnvironment, *positional: Json, **named: Json) -> Json:
        bound = signature.bind(self, *positional, **named)
        bound.apply_defaults()
        arguments = dict(list(bound.arguments.items())[1:])
        return self._replay(method.__name__, arguments, defaults)

    return tool(answer)  # type: ignore[return-value]


def _rows_of(path: Path) -> Iterator[tuple[str, bool, Row]]:
    """The rows of a file with their place and whether their arguments are texts."""
    if not path.is_file():
        raise DataError(
            f"the fixtures {path} do not exist; keep them in the folder `fixtures` next to the recipe, which every run takes "
            "along, and name them from `Path(__file__).parent`."
        )
    note_input(path)
    rows = read_rows(path)
    if not rows:
        raise DataError(f"{path} holds no rows, so there is nothing to answer; give a file with one call a row.")
    is_csv, is_parquet = path.suffix.lower() == ".csv", path.suffix.lower() == ".parquet"
    for place, row in rows:
        where = f"{path}, {place}"
        shared = {"tool": path.stem} | {name: row[name] for name in ("tool", "result") if name in row}
        if "arguments" in row:
            arguments = row["arguments"]
            arguments = _parsed(arguments, where) if isinstance(arguments, str) else arguments
            if is_parquet and isinstance(arguments, Mapping):
                # A struct has the arguments of all rows.
                arguments = {name: value for name, value in arguments.items() if value is not None}
        elif is_csv or is_parquet:
            left_out = "" if is_csv else None
            arguments = {name: value for name, value in row.items() if name not in shared and value != left_out}
            arguments = {name: _cell(value) for name, value in arguments.items()} if is_csv else arguments
        else:
            raise DataError(f"{where}: there are no 'arguments'; give them as an object, {{}} for none.")
        yield where, is_csv and "arguments" not in row, {**shared, "arguments": arguments}


def _checked(row: Mapping[str, Json], place: str) -> tuple[tuple[str, str], str]:
    """The key of a row, and its result as JSON. Raises DataError."""
    missing = [name for name in ("tool", "arguments", "result") if name not in row]
    if missing:
        raise DataError(f"{place}: there is no {missing[0]!r}; give every row a tool, arguments and a result.")
    tool, arguments, result = row["tool"], row["arguments"], row["result"]
    if not isinstance(tool, str) or not tool:
        raise DataError(f"{place}: tool = {tool!r} is not the name of one; give it as text.")
    if not isinstance(arguments, Mapping):
        raise DataError(f"{place}: arguments = {_short(arguments)} is no object; give {{name: value}}, {{}} for none.")
    try:
        key, told = _canonical(arguments), json.dumps(result, ensure_ascii=False, allow_nan=False)
        # Half a character, which JSON can say, is in no text that a tokenizer or a file can take.
        f"{key}{told}".encode()
    except (TypeError, ValueError) as error:
        raise DataError(f"{place}: {error}; arguments and result must be JSON, and NaN is none.") from error
    return (tool, key), told


def _parsed(text: str, where: str) -> Json:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: the arguments {_short(text)} are not JSON ({error}); write them again.") from error


async def _recorded(
    make_environment: Callable[[], Environment], calls: list[tuple[str, Mapping[str, Json]]], tasks: list[Task]
) -> list[dict[str, Json]]:
    rows = await _answers(make_environment(), RECORDING, calls) if calls else []
    for task in tasks:
        rows += await _answers(make_environment(), task, None)
    if not rows:
        raise UsageError("there are no calls to record; give `calls`, or tasks whose expert makes some.")
    return rows


async def _answers(
    environment: Environment, task: Task, calls: list[tuple[str, Mapping[str, Json]]] | None
) -> list[dict[str, Json]]:
    """Run calls, those of the task's expert when None is given, and keep what was answered."""
    try:
        async with opened(environment, task):
            await reset(environment, task)
            asked = _expert_calls(environment, task) if calls is None else calls
            return [await _answered(environment, name, arguments) for name, arguments in asked]
    except InfrastructureError as error:
        raise DataError(f"{error} Nothing was recorded; mend the environment, and record again.") from error


async def _answered(environment: Environment, name: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    offered = environment.tools()
    problem = f"there is no tool {name!r}" if name not in offered else offered[name].problem_with(arguments)
    if problem is not None:
        raise DataError(f"{_call(name, arguments)} cannot be recorded: {problem}; correct the call.")
    if name in tools_of(type(environment)):  # others, of a server say, know their defaults alone
        bound = inspect.signature(getattr(environment, name)).bind(**arguments)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
    try:
        result = await environment.call_tool(name, arguments)
        return {
            "tool": name,
            "arguments": arguments,
            "result": result.content if isinstance(result, Observation) else result,
        }
    except InfrastructureError:
        raise
    except Exception as error:
        raise DataError(f"{_call(name, arguments)} failed: {error!r}; mend the tool, or leave the call out.") from error


def _expert_calls(environment: Environment, task: Task) -> list[tuple[str, Mapping[str, Json]]]:
    functions = [one["function"] for message in environment.demonstrate(task) for one in message.get("tool_calls", ())]
    return [(function["name"], function["arguments"]) for function in functions]


def _canonical(arguments: Mapping[str, Json]) -> str:
    """One text for equal arguments. Raises ValueError or TypeError for what is no JSON."""
    return json.dumps(_plain(arguments), ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Json) -> Json:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _cell(value: Json) -> str:
    """An argument as a table says it: numbers and truth values in one spelling, whoever wrote them."""
    if isinstance(value, str):
        spelled = {"True": "true", "False": "false"}.get(value, value)
        try:
            value = json.loads(spelled)
        except ValueError:
            return value
    return json.dumps(_plain(value), separators=(",", ":"))


def _pairs(arguments: Mapping[str, Json]) -> frozenset[str]:
    """Neighboring characters of the values, their ends included: what is common to texts that look alike."""
    texts = (f" {_cell(value).lower()} " for value in arguments.values())
    return frozenset(text[index : index + 2] for text in texts for index in range(len(text) - 1))


def _alike(one: frozenset[str], other: frozenset[str]) -> float:
    """The Dice coefficient of two sets."""
    return 2 * len(one & other) / max(1, len(one) + len(other))


def _call(tool: str, arguments: Json) -> str:
    return f"{tool}({_short(arguments)})"


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=repr)
    return text if len(text) <= 200 else f"{text[:197]}..."
