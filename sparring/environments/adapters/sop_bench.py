"""Environments from the user's SOP-Bench checkout (https://github.com/amazon-science/SOP-Bench), for evaluation.

The benchmark's data and code are licensed under CC BY-NC 4.0, and additional notices in them ask that they not be used
for training. Sparring includes neither the data nor the code.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from sparring.environments.adapters.adapter import Adapter
from sparring.environments.base import EVALUATION_ONLY, REPAIRS, Environment
from sparring.environments.calls import Observation, ToolFailure
from sparring.environments.schema_tools import SchemaTool
from sparring.errors import DataError, InfrastructureError, UsageError
from sparring.rewards import json_fields
from sparring.runtime.json_values import parse_json
from sparring.runtime.logs import get_logger
from sparring.scorers import json_exact
from sparring.types import Json, Task

logger = get_logger(__name__)

_FOLDERS = ("src/amazon_sop_bench/benchmarks/data", "benchmarks/data", ".")
_WORKER = Path(__file__).with_name("sop_bench_worker.py")
_MAX_LINE_BYTES = 16 * 2**20
_LICENCE_CHARACTERS = 1500

reward = json_fields("final_output")
"""The reward for users with training rights: the share of the scored fields that are correct."""

scorer = json_exact("final_output", allows_more=True)
"""The score is 1.0 if the last message contains exactly one <final_output> with every scored field, each with the
correct type and value."""


class SopBench(Adapter):
    """The mock tools of one domain, which run in a separate process for each episode. The tasks come from `tasks`.

    The process has only the variables PATH and HOME, and its printed output is discarded. Parts of a result that JSON
    cannot represent (NaN, a set) are replaced, and the transition lists them in `repairs`. The model sees the
    exceptions that a tool raises. A process that dies or exceeds a time limit causes an InfrastructureError.

    Training is not allowed unless `i_have_training_rights` states in words your permission to train. The run's recipe
    records the statement.
    """

    def __init__(
        self,
        path: str,
        domain: str,
        i_have_training_rights: str | None = None,
        start_seconds: float = 60.0,
        call_seconds: float = 10.0,
    ) -> None:
        """`path` is the checkout, and `domain` is a folder of its data."""
        self._folder = domain_folder(path, domain)
        self._start_seconds = start_seconds
        self._call_seconds = call_seconds
        self._worker: _Worker | None = None

    @classmethod
    def evaluation_only(cls, **options: Any) -> str | None:
        if _is_stated(options.get("i_have_training_rights"), "environment.options.i_have_training_rights"):
            return None
        return (
            f"{_licence(domain_folder(options['path'], options['domain']))}\nUse it for evaluation. If you have the right to "
            'train on it, state why: environment.options.i_have_training_rights = "who allows it, and where".'
        )

    @classmethod
    def with_options(cls, **options: Any) -> type[Environment]:
        if options.get("i_have_training_rights") is not None:
            folder = domain_folder(options["path"], options["domain"])
            logger.warning("%s\nStated right to train: %s", _licence(folder), options["i_have_training_rights"])
        return super().with_options(**options)

    @classmethod
    def list_tools(cls, path: str, domain: str, **_: Any) -> Iterable[SchemaTool]:
        file = domain_folder(path, domain) / "toolspecs.json"
        entries = _read_json(file)
        if not isinstance(entries, list):
            raise DataError(f"{file} is not a list of tools; restore the checkout.")
        return [_tool(entry, file) for entry in entries]

    async def reset(self, task: Task) -> None:
        self._worker = _Worker(self._folder)
        await self._worker.connect()
        answer = await self._worker.answer(self._start_seconds, "to start")
        if "error" in answer:
            raise InfrastructureError(f"{self._folder}/tools.py cannot be used: {answer['error']}")

    async def call_listed(self, name: str, arguments: Mapping[str, Json]) -> Observation:
        assert self._worker is not None, "the environment was not reset"
        self._worker.ask({"tool": name, "arguments": dict(arguments)})
        answer = await self._worker.answer(self._call_seconds, f"to answer {name!r}")
        if "error" in answer:
            raise ToolFailure(f"{name} failed: {answer['error']}")
        return Observation(answer["result"], repairs=answer["repairs"])

    async def close(self) -> None:
        if self._worker is not None:
            await self._worker.kill()


@final
class _Worker:
    """The process of one episode, and a socket to it.

    It does not use asyncio's subprocesses, because in CPython 3.11 a cancellation during their start waits forever."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_WORKER), str(folder)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            )
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=_MAX_LINE_BYTES)

    def ask(self, request: Mapping[str, Json]) -> None:
        assert self._writer is not None, "the worker is not connected"
        self._writer.write(json.dumps(request).encode() + b"\n")

    async def answer(self, seconds: float, what: str) -> dict[str, Json]:
        """Return the next line. Raises InfrastructureError if no line arrives in time."""
        try:
            async with asyncio.timeout(seconds):
                line = await self._reader.readline()
        except TimeoutError as error:
            raise InfrastructureError(f"the tools of {self._folder} took more than {seconds:g} s {what}.") from error
        except (OSError, ValueError) as error:
            raise InfrastructureError(
                f"the tools of {self._folder} sent an invalid response to a request for {what}: {error}."
            ) from error
        if not line:
            raise InfrastructureError(f"the process with the tools of {self._folder} died when requested {what}.")
        return parse_json(line)

    async def kill(self) -> None:
        """End the process and everything that its tools started."""
        if self._writer is None:
            self._socket.close()
        else:
            self._writer.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)


def tasks(
    path: str | Path,
    domain: str,
    *,
    inputs: Sequence[str] | None = None,
    num: int | None = None,
    i_have_training_rights: str | None = None,
) -> list[Task]:
    """Return the first `num` labeled rows of a domain as tasks.

    `inputs` lists the columns that a task shows. It is for domains whose metadata.json declares no inputs. A task's
    field `inputs` also contains these columns. Scored columns are never shown. Differences between a task and the data
    in the checkout are listed in the task's field `repairs`, which `sparring check` shows.

    Unless `i_have_training_rights` states in words your permission to train, the tasks are marked for evaluation only.
    No run trains on such tasks, regardless of the agent. Raises UsageError if input columns are missing or scored, and
    DataError for invalid files.
    """
    folder = domain_folder(path, domain)
    licence = _licence(folder)
    if _is_stated(i_have_training_rights, "i_have_training_rights"):
        logger.warning("%s\nStated right to train: %s", licence, i_have_training_rights)
        marks = {}
    else:
        marks = {EVALUATION_ONLY: licence}
    procedure = _read(folder / "sop.txt")
    metadata = _read_json(folder / "metadata.json")
    outputs = metadata.get("output_columns") or []
    columns, rows = _rows(folder / "test_set_with_outputs.csv", outputs)
    labelled = [row for row in rows if any(row[name].strip() for name in outputs)]
    declared = metadata.get("input_columns")
    shown = _shown_columns(inputs, declared, outputs, columns, folder)
    repairs = ["The prompt ends with a request for one <final_output> with its fields, which the scorer reads."]
    if len(labelled) < len(rows):
        repairs.append(f"{len(rows) - len(labelled)} of {len(rows)} rows have no label and are left out.")
    if hidden := sorted(set(inputs or declared or ()) - set(shown)):
        repairs.append(f"The columns {hidden} are declared as inputs and scored, so they are not shown.")
    kinds = {name: _kind([row[name] for row in labelled]) for name in outputs}
    return [
        Task(
            id=f"{domain}-{number}",
            messages=({"role": "user", "content": _prompt(procedure, {name: row[name] for name in shown}, kinds)},),
            fields={
                "domain": domain,
                "inputs": {name: row[name] for name in shown},
                "answer": {name: _TYPES[kind](row[name]) for name, kind in kinds.items()},
                REPAIRS: repairs,
                **marks,
            },
            seed=number,
        )
        for number, row in enumerate(labelled[:num])
    ]


def _is_stated(right: object, name: str) -> bool:
    """Return whether the user states a permission to train. Raises UsageError for an empty statement."""
    if right is not None and not (isinstance(right, str) and right.strip()):
        raise UsageError(
            f"{name} = {right!r} does not state a right; write who allows you to train on this data, and where this is written."
        )
    return right is not None


def domain_folder(path: str | Path, domain: str) -> Path:
    """Return the folder of a domain in a checkout. For an unknown domain, raises UsageError, which lists the existing
    domains."""
    for folder in (Path(path) / part for part in _FOLDERS):
        if (folder / domain / "toolspecs.json").is_file():
            return (folder / domain).resolve()
    found = sorted({file.parent.name for part in _FOLDERS for file in (Path(path) / part).glob("*/toolspecs.json")})
    raise UsageError(
        f"{path} contains no SOP-Bench domain {domain!r}; provide the path of a checkout and one of its domains"
        + (
            f": {', '.join(found)}."
            if found
            else ", a folder with sop.txt, toolspecs.json, tools.py and metadata.json."
        )
    )


def _prompt(procedure: str, shown: Mapping[str, str], kinds: Mapping[str, str]) -> str:
    case = "\n".join(f"{name}: {value}" for name, value in shown.items())
    fields = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
    return (
        f"Carry out this procedure for the case below, with the tools.\n<sop>\n{procedure.strip()}\n</sop>\n\n"
        f"The case:\n{case}\n\n"
        "End with one message that holds the result as a JSON object in one <final_output>. Its fields are "
        f"{fields}; null for one that has no value."
    )


def _rows(file: Path, outputs: Sequence[str]) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and the rows. Raises DataError, which gives the position of the row, if a row has too few or
    too many cells."""
    lines = list(csv.reader(_read(file).splitlines(keepends=True)))
    columns = lines[0] if lines else []
    missing = [name for name in outputs if name not in columns]
    if not outputs or missing:
        raise DataError(
            f"{file} has no columns {missing}, which metadata.json names as scored; restore the checkout."
            if missing
            else f"{file.with_name('metadata.json')} names no output_columns, so there is nothing to score; restore "
            "the checkout."
        )
    for number, line in enumerate(lines[1:], start=1):
        if line and len(line) != len(columns):
            raise DataError(
                f"{file}, row {number} has {len(line)} cells for {len(columns)} columns; correct or remove it."
            )
    return columns, [dict(zip(columns, line, strict=True)) for line in lines[1:] if line]


def _shown_columns(
    chosen: Sequence[str] | None,
    declared: Sequence[str] | None,
    outputs: Sequence[str],
    columns: Sequence[str],
    folder: Path,
) -> list[str]:
    shown = list(chosen or declared or ())
    if not shown:
        raise UsageError(
            f"{folder / 'metadata.json'} declares no input columns, and a task must not show the values that its tools look up; "
            f"choose with tasks(..., inputs=[...]) among {[name for name in columns if name not in outputs]}."
        )
    unknown = [name for name in shown if name not in columns]
    scored = [name for name in chosen or () if name in outputs]
    if unknown or scored:
        raise UsageError(
            f"inputs = {shown}: {unknown or scored} "
            + (f"are not columns of {folder}." if unknown else "are scored, so showing them would reveal the answer.")
            + " Choose other columns."
        )
    return [name for name in shown if name not in outputs]


def _kind(cells: Iterable[str]) -> str:
    """Return the type of a scored column. In a CSV file, all cells are text."""
    filled = [cell for cell in cells if cell.strip()]
    for kind in ("true or false", "number"):
        try:
            for cell in filled:
                _TYPES[kind](cell)
        except (KeyError, ValueError):
            continue
        return kind
    return "text"


def _boolean(cell: str) -> bool | None:
    return {"true": True, "false": False, "": None}[cell.strip().lower()]


def _number(cell: str) -> float | None:
    number = float(cell) if cell.strip() else None
    if number is not None and not (number - number == 0 and "_" not in cell):
        raise ValueError(cell)
    return number


def _text(cell: str) -> str | None:
    return cell if cell.strip() else None


_TYPES: Mapping[str, Callable[[str], Json]] = {"true or false": _boolean, "number": _number, "text": _text}


def _tool(entry: Json, file: Path) -> SchemaTool:
    """Return a tool from its entry in Bedrock's format, which may be wrapped in `toolSpec`."""
    try:
        inner = entry.get("toolSpec", entry)
        return SchemaTool(inner["name"], inner.get("description", ""), inner["inputSchema"]["json"])
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{file} has an entry that is not a tool: {str(entry)[:200]}; restore the checkout.") from error


def _licence(folder: Path) -> str:
    """Return the checkout's license notes: the first lines of its LICENSE, and the domain's own notice."""
    notices = [
        file for parent in (folder, *folder.parents) for file in sorted(parent.glob("LICENSE*")) if file.is_file()
    ][:2]
    shown = [
        f"{file}:\n{file.read_text('utf-8', 'replace').strip()[:_LICENCE_CHARACTERS]}" for file in reversed(notices)
    ]
    return "\n".join(["SOP-Bench is licensed CC BY-NC 4.0, and its notices ask you not to train models on it.", *shown])


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}; restore the checkout.") from error


def _read_json(file: Path) -> Json:
    try:
        return parse_json(_read(file))
    except ValueError as error:
        raise DataError(f"{file} is not JSON: {error}; restore the checkout.") from error
