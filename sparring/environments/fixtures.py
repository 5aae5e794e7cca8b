"""Recorded calls to read-only tools. They are read from files or recorded from a live environment, and looked up by
their arguments."""

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, final

from sparring.chat.messages import read_json
from sparring.data.files import each_key_once, read_rows
from sparring.environments.base import Environment, opened, reset
from sparring.environments.calls import Observation, ToolError, ToolFailure
from sparring.environments.tools import Tool, fits, tools_of
from sparring.errors import DataError, InfrastructureError, UsageError
from sparring.run_folders.inputs import note_input
from sparring.runtime.json_values import parse_json
from sparring.types import Json, Task

RECORDING = Task(id="recording", messages=({"role": "user", "content": "record"},))
"""The task with which a live environment is reset for calls that do not belong to any task."""

_MOST_COMPARED = 128
"""The maximum number of recorded calls with which an unrecorded call is compared, so that the comparison takes only a
few milliseconds."""
_LEAST_ALIKE = 0.4
"""The minimum similarity, from 0 to 1, of the arguments of a recorded call that is shown as the nearest."""
_SPELLED = {"True": "true", "False": "false"}
"""The spellings of truth values in tables, with their values in JSON."""


class FixtureMiss(ToolFailure):
    """The error for a call that was not recorded. The policy sees its text, unless `ReplayEnvironment.miss` returns an
    answer."""

    kind = ToolError.FIXTURE_MISS

    def __init__(self, tool: str, arguments: Mapping[str, Json], fixtures: Fixtures) -> None:
        super().__init__(tool, arguments)
        self.tool = tool
        self.arguments = arguments
        self._fixtures = fixtures

    @functools.cached_property
    def nearest(self) -> tuple[Mapping[str, Json], ...]:
        """The recorded arguments that are most similar, nearest first. There are at most three."""
        # The result is computed at first use, because comparing texts takes longer than answering.
        return self._fixtures._nearest(self.tool, self.arguments)

    def __str__(self) -> str:
        hint = f"; the nearest it knows is {_short(self.nearest[0])}" if self.nearest else ""
        return f"{self.tool} has no answer for {_short(self.arguments)}{hint}"


@final
class Fixtures:
    """Recorded results of read-only tools, keyed by tool and arguments. Fixtures are immutable.

        Fixtures([{"tool": "find", "arguments": {"title": "Emma"}, "result": "B3"}]).answer("find", title="Emma")

    Arguments are compared as JSON: the order of keys does not matter, and 1 equals 1.0. The same call may occur twice
    if the result is the same. An environment knows the default arguments of its tools, and compares all arguments of a
    call (`completed`).
    """

    def __init__(self, rows: Iterable[Mapping[str, Json]]) -> None:
        """Each row is {"tool", "arguments", "result"}; other keys are ignored. Raises DataError with the position of an
        invalid row."""
        self._hold(_checked(row, f"row {number}") for number, row in enumerate(rows, start=1))

    @classmethod
    def load(cls, *paths: str | Path) -> Self:
        """Load fixtures from one or more .jsonl, .csv or .parquet files with one call per row.

        The columns are `tool` (by default the file's name without its suffix), `result`, and either `arguments` (an
        object or JSON text) or one column for each argument. The cell of an omitted argument is empty. In a .csv file,
        a result is text that is returned unchanged, and arguments in columns have the types that the tool defines.
        Without an environment, such arguments are compared by their text. The files and their sha256 are listed in the
        manifests of the runs of this process.

        Raises DataError, which identifies the file and the invalid row, and ServiceError if a .parquet file is read
        without pyarrow.
        """
        fixtures = cls(())
        fixtures._hold(recorded for path in map(Path, paths) for recorded in _rows_of(path))
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
        """Run calls against a live environment once, and write the results of its tools as a sorted .jsonl file.

        `calls` are (tool, arguments) pairs, which all run in one environment. For each of `tasks`, the calls of its
        scripted expert (`demonstrate`) run in a separate environment. Omitted arguments are recorded with their
        defaults.

        Raises DataError if a call fails, or if equal calls have different results: the tool is then not read-only, and
        needs `StatefulEnvironment`. In these cases nothing is written.
        """
        target = Path(path)
        if target.suffix != ".jsonl":
            raise UsageError(f"{target}: fixtures are written as JSON lines; use a name that ends in .jsonl.")
        # This runs in a separate thread, because the caller may run inside an event loop (a notebook).
        with ThreadPoolExecutor(max_workers=1) as executor:
            rows = executor.submit(asyncio.run, _recorded(make_environment, list(calls), list(tasks))).result()
        fixtures = cls(())
        fixtures._hold(_checked(row, _call(row["tool"], row["arguments"])) for row in rows)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        temporary.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in fixtures), "utf-8")
        temporary.replace(target)
        return fixtures

    def answer(self, tool: str, /, **arguments: Json) -> Json:
        """Return a copy of the tool's recorded result for these arguments. Raises FixtureMiss."""
        found = self._results.get((tool, _canonical(arguments)))
        if found is None and self._text_tools:
            found = self._results.get((tool, _canonical(_cells(arguments))))
        if found is None:
            raise FixtureMiss(tool, arguments, self)
        return parse_json(found)

    def completed(self, environment_class: type[Environment]) -> Fixtures:
        """Return the same calls with all arguments. Omitted arguments get the defaults of the environment's tool.

        Raises DataError, which identifies the row, for a tool that the environment does not have, for arguments that
        the tool does not accept, and for two rows with the same call but different results.
        """
        if environment_class not in self._completed:
            tools, fixtures = tools_of(environment_class), Fixtures(())
            fixtures._hold(_full(recorded, tools, environment_class.__name__) for recorded in self._rows)
            self._completed[environment_class] = fixtures
        return self._completed[environment_class]

    @functools.cached_property
    def sha256(self) -> str:
        """The sha256 hash of all records. It is the same for any order and file format."""
        lines = (json.dumps([tool, key, result]) for (tool, key), result in sorted(self._results.items()))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[dict[str, Json]]:
        """Iterate over the rows, sorted by tool and arguments."""
        for (name, key), result in sorted(self._results.items()):
            yield {"tool": name, "arguments": parse_json(key), "result": parse_json(result)}

    def _hold(self, rows: Iterable[_Recorded]) -> None:
        self._rows = list(rows)
        self._completed: dict[type[Environment], Fixtures] = {}
        self._text_tools = {recorded.tool for recorded in self._rows if recorded.is_text}
        # Results are stored as text, so that no caller can change the result for the next caller.
        self._results: dict[tuple[str, str], str] = {}
        first: dict[tuple[str, str], _Recorded] = {}
        for recorded in self._rows:
            key = (recorded.tool, recorded.key)
            if self._results.setdefault(key, recorded.result) != recorded.result:
                raise DataError(
                    f"{recorded.place}: {_call(recorded.tool, recorded.arguments)} was answered differently than in "
                    f"{first[key].place}; the result of a replayed tool must depend only on its arguments, including defaults. "
                    "Remove one of the two rows, or use StatefulEnvironment."
                )
            first.setdefault(key, recorded)

    def _nearest(self, tool: str, arguments: Mapping[str, Json]) -> tuple[Mapping[str, Json], ...]:
        keys = self._keys.get(tool, [])
        asked = _canonical(arguments)
        if len(keys) > _MOST_COMPARED:
            # The keys are sorted, so neighbors start with the same text.
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


@dataclass(frozen=True, slots=True)
class _Recorded:
    """One recorded call, which comes from a checked row of a file or from Python."""

    place: str
    tool: str
    arguments: Mapping[str, Json]
    result: str
    """The result as JSON text."""
    is_text: bool
    """Whether the arguments are texts from the cells of a table."""

    @property
    def key(self) -> str:
        """A string that is the same for equal arguments."""
        return _canonical(_cells(self.arguments) if self.is_text else self.arguments)


def _rows_of(path: Path) -> Iterator[_Recorded]:
    """Yield the rows of a file. Raises DataError."""
    if not path.is_file():
        raise DataError(
            f"the fixtures file {path} does not exist; keep it in the `fixtures` folder next to the recipe (every run "
            "copies this folder), and specify its path relative to `Path(__file__).parent`."
        )
    note_input(path)
    rows = read_rows(path)
    if not rows:
        raise DataError(
            f"{path} contains no rows, so there is nothing to replay; provide a file with one call per row."
        )
    is_csv, is_parquet = path.suffix.lower() == ".csv", path.suffix.lower() == ".parquet"
    for place, row in rows:
        where = f"{path}, {place}"
        shared = {"tool": path.stem} | {name: row[name] for name in ("tool", "result") if name in row}
        if "arguments" in row:
            arguments = row["arguments"]
            arguments = _parsed(arguments, where) if isinstance(arguments, str) else arguments
            if is_parquet and isinstance(arguments, Mapping):
                # A parquet struct has the arguments of all rows. Those that this row lacks are None.
                arguments = {name: value for name, value in arguments.items() if value is not None}
        elif is_csv or is_parquet:
            left_out = "" if is_csv else None
            arguments = {name: value for name, value in row.items() if name not in shared and value != left_out}
        else:
            raise DataError(f"{where}: there are no 'arguments'; provide them as an object, or {{}} for none.")
        yield _checked({**shared, "arguments": arguments}, where, is_text=is_csv and "arguments" not in row)


def _checked(row: Mapping[str, Json], place: str, *, is_text: bool = False) -> _Recorded:
    """Return the row as a recorded call. Raises DataError for an invalid row."""
    missing = [name for name in ("tool", "arguments", "result") if name not in row]
    if missing:
        raise DataError(f"{place}: there is no {missing[0]!r}; every row needs a tool, arguments and a result.")
    tool, arguments, result = row["tool"], row["arguments"], row["result"]
    if not isinstance(tool, str) or not tool:
        raise DataError(f"{place}: tool = {tool!r} is not the name of a tool; write the name as text.")
    if not isinstance(arguments, Mapping):
        raise DataError(
            f"{place}: arguments = {_short(arguments)} is not an object; write {{name: value}}, or {{}} for none."
        )
    try:
        key, answer = _canonical(arguments), json.dumps(result, ensure_ascii=False, allow_nan=False)
        # JSON can encode a lone surrogate, but it is invalid in text for a tokenizer or a file.
        f"{key}{answer}".encode()
    except (TypeError, ValueError) as error:
        raise DataError(f"{place}: {error}; arguments and result must be JSON, and NaN is not JSON.") from error
    return _Recorded(place, tool, parse_json(key), answer, is_text)


def _full(recorded: _Recorded, tools: Mapping[str, Tool], environment: str) -> _Recorded:
    """Return the call with all arguments of the tool, each converted to its type. Raises DataError for an argument that
    the tool does not accept."""
    tool, arguments = tools.get(recorded.tool), recorded.arguments
    if tool is None:
        raise DataError(
            f"{recorded.place}: {environment} has no tool {recorded.tool!r}; its tools are {', '.join(tools) or 'none'}. "
            "Correct the name, remove the row, or mark the tool @replayed."
        )
    if recorded.is_text:
        arguments = {name: _read_cell(str(cell), tool.hints.get(name, str)) for name, cell in arguments.items()}
    problem = tool.problem_with(arguments)
    if problem is not None:
        raise DataError(f"{recorded.place}: {problem}, so this call is never made; correct the row, or remove it.")
    left_out = {name: default for name, default in tool.defaults.items() if name not in arguments}
    return replace(recorded, arguments={**arguments, **left_out}, is_text=False)


def _read_cell(cell: str, hint: Any) -> Json:
    """Return a table cell as a value of the hinted type, or as text if the conversion fails."""
    with suppress(ValueError):
        value = _plain(read_json(_SPELLED.get(cell, cell)))
        if fits(value, hint):
            return value
    return cell


def _parsed(text: str, where: str) -> Json:
    try:
        return parse_json(text, object_pairs_hook=each_key_once(where))
    except ValueError as error:
        raise DataError(f"{where}: the arguments {_short(text)} are not JSON ({error}); correct them.") from error


async def _recorded(
    make_environment: Callable[[], Environment], calls: list[tuple[str, Mapping[str, Json]]], tasks: list[Task]
) -> list[dict[str, Json]]:
    rows = await _answers(make_environment(), RECORDING, calls) if calls else []
    for task in tasks:
        rows += await _answers(make_environment(), task, None)
    if not rows:
        raise UsageError("there are no calls to record; pass `calls`, or tasks with an expert that makes calls.")
    return rows


async def _answers(
    environment: Environment, task: Task, calls: list[tuple[str, Mapping[str, Json]]] | None
) -> list[dict[str, Json]]:
    """Run calls and return them with their results. By default, these are the calls of the task's scripted expert."""
    try:
        async with opened(environment, task):
            await reset(environment, task)
            to_record = _expert_calls(environment, task) if calls is None else calls
            return [await _record_call(environment, name, arguments) for name, arguments in to_record]
    except InfrastructureError as error:
        raise DataError(f"{error} Nothing was recorded; fix the environment, and then record again.") from error


async def _record_call(environment: Environment, name: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    offered = environment.tools()
    problem = f"there is no tool {name!r}" if name not in offered else offered[name].problem_with(arguments)
    if problem is not None:
        raise DataError(f"{_call(name, arguments)} cannot be recorded: {problem}; correct the call.")
    if name in tools_of(type(environment)):  # other tools, such as a server's, apply their defaults themselves
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
        raise DataError(f"{_call(name, arguments)} failed: {error!r}; fix the tool, or remove the call.") from error


def _expert_calls(environment: Environment, task: Task) -> list[tuple[str, Mapping[str, Json]]]:
    functions = [one["function"] for message in environment.demonstrate(task) for one in message.get("tool_calls", ())]
    return [(function["name"], function["arguments"]) for function in functions]


def _canonical(arguments: Mapping[str, Json]) -> str:
    """Return the same string for equal arguments. Raises ValueError or TypeError for a value that is not JSON."""
    return json.dumps(_plain(arguments), ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Json) -> Json:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _cells(arguments: Mapping[str, Json]) -> dict[str, str]:
    return {name: _cell(value) for name, value in arguments.items()}


def _cell(value: Json) -> str:
    """Return an argument as the text of a table cell, with one spelling for equal numbers and truth values."""
    if isinstance(value, str):
        try:
            value = parse_json(_SPELLED.get(value, value))
        except ValueError:
            return value
    return json.dumps(_plain(value), separators=(",", ":"))


def _pairs(arguments: Mapping[str, Json]) -> frozenset[str]:
    """Return the character pairs of the values, with a space at either end, for comparing texts."""
    texts = (f" {_cell(value).lower()} " for value in arguments.values())
    return frozenset(text[index : index + 2] for text in texts for index in range(len(text) - 1))


def _alike(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Dice coefficient of two sets."""
    return 2 * len(one & other) / max(1, len(one) + len(other))


def _call(tool: str, arguments: Json) -> str:
    return f"{tool}({_short(arguments)})"


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=repr)
    return text if len(text) <= 200 else f"{text[:197]}..."
