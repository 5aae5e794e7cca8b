"""Read logs of any of the supported formats into conversations."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from sparring.chat.messages import read_json
from sparring.errors import DataError, UsageError
from sparring.traces.conversation import (
    Conversation,
    LeftOut,
    prefix_digests,
    read_messages,
    read_tools,
    require_strict,
    require_usable,
)
from sparring.traces.marks import Marking, count_likely_marks
from sparring.traces.spans import (
    Span,
    chat_messages,
    is_otel,
    is_trace_export,
    list_evaluations,
    list_spans,
    spans_to_rows,
)

MOST_LIKELY_MARKS = 8
"""The number of fields that are suggested as marks."""

Row: TypeAlias = Mapping[str, Any]
FORMATS = "message lists, request/response pairs, MLflow traces, OpenTelemetry GenAI spans, or a recording of `sparring record`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """The usable conversations of a log, in its order, and the reasons for the others."""

    conversations: tuple[Conversation, ...]
    left_out: Mapping[str, int]
    """The number of conversations that cannot be used, by reason."""
    formats: Mapping[str, int]
    """The number of rows, by format."""
    unread: tuple[str, ...] = ()
    """For each row that cannot be read, where it is and why."""
    likely_marks: Mapping[str, int] = field(default_factory=dict)
    """If no usable conversation is marked: the fields that may be marks, with the number of rows that have them."""

    def require_marks(self, name: str) -> None:
        """Raise UsageError if no conversation is marked by the field that the user named."""
        if self.conversations and all(one.is_good is None for one in self.conversations):
            known = ", ".join(f"{one} ({count} rows)" for one, count in self.likely_marks.items())
            raise UsageError(
                f"no usable conversation has the field {name!r}. Fields that may be marks: {known or 'none'}. Name one of "
                "them with --good-field, or leave it out, so that every complete conversation counts as good."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fragment:
    """What one row has of a conversation. Fragments of a group continue one another."""

    where: str
    messages: Any
    tools: Any = None
    is_good: bool | None = None
    id: str | None = None
    group: str | None = None


def read_traces(path: Path, marking: Marking | None = None) -> Traces:
    """Read a file, a folder of files, or a recording. Rows that cannot be read are left out and listed in `unread`.

    Raises DataError if there are no rows, or if none of them can be read.
    """
    marking, formats = marking or Marking(), Counter[str]()
    unread: list[str] = []
    rows = [(where, row) for file in _list_files(path) for where, row in _rows(file, unread)]
    if not rows and not unread:
        raise DataError(f"{path} contains no rows; give {FORMATS}.")
    left_out = Counter[str]()
    conversations = _joined(_fragments(rows, marking, formats, unread), left_out, unread)
    if unread and not conversations and not left_out:
        raise DataError(f"no row of {path} can be read ({len(unread)} rows). The first: {unread[0]}")
    return Traces(
        conversations=tuple(conversations),
        left_out=dict(left_out),
        formats=dict(formats),
        unread=tuple(unread),
        likely_marks={} if any(one.is_good is not None for one in conversations) else _likely_marks(rows),
    )


def _likely_marks(rows: Sequence[tuple[str, Any]]) -> dict[str, int]:
    """Return the fields that may be marks, the most frequent first. Rows that cannot be read have none."""
    found = Counter[str]()
    for where, row in rows:
        if isinstance(row, Mapping):
            with _listing([], where):
                is_spans = is_trace_export(row) or is_otel(row)
                found += count_likely_marks(list_evaluations(row) if is_spans else [row])
    return dict(found.most_common(MOST_LIKELY_MARKS))


@contextmanager
def _listing(unread: list[str], where: str) -> Iterator[None]:
    """Add to `unread` why the block cannot read a row. Foreign rows can fail in ways that no check foresees."""
    try:
        yield
    except DataError as error:
        unread.append(str(error))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        unread.append(f"{where}: cannot be read ({error!r:.200}).")


def _list_files(path: Path) -> list[Path]:
    """Return the files of a log in order. Raises DataError if there are none."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{path} does not exist; give a file or a folder with {FORMATS}.")
    recorded = (path / "trajectories").glob("recorded-*.jsonl")
    files = sorted(recorded, key=lambda file: (len(file.name), file.name))
    if not files:
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in (".json", ".jsonl", ".ndjson"))
    if not files:
        raise DataError(f"{path} contains no .json or .jsonl file; give a file or a folder with {FORMATS}.")
    return files


def _rows(file: Path, unread: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the location and the value of each row: a line, or an item of a JSON array. Raises DataError for a file that
    cannot be opened."""
    try:
        content = file.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}; give a file that you may read.") from error
    if file.suffix.lower() == ".json":
        yield from _items(file, content, unread)
        return
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            try:
                row = read_json(line)
            except ValueError as error:
                unread.append(f"{file}, line {number}: not JSON ({error}); correct the line, or remove it.")
            else:
                yield f"{file}, line {number}", row


def _items(file: Path, content: bytes, unread: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the location and the value of each item of a file that is one JSON value."""
    try:
        try:
            value = read_json(content)
        except ValueError:
            value = json.loads(content)  # not strict, so that one item does not spoil the others
    except (ValueError, RecursionError) as error:
        unread.append(f"{file}: not JSON ({error}); correct it, or name a file with one row per line .jsonl.")
        return
    items = value if isinstance(value, list) and not _is_messages(value) else [value]
    yield from ((f"{file}, row {number}", item) for number, item in enumerate(items, start=1))


def _fragments(
    rows: Sequence[tuple[str, Any]], marking: Marking, formats: Counter[str], unread: list[str]
) -> list[_Fragment]:
    """Return the fragments of all rows, the spans of a trace together."""
    spans: list[Span] = []
    found: list[_Fragment] = []
    for where, row in rows:
        with _listing(unread, where):
            if isinstance(row, Mapping) and (is_trace_export(row) or is_otel(row)):
                spans += list_spans(row, where, marking)
                formats["MLflow trace" if is_trace_export(row) else "OpenTelemetry"] += 1
                continue
            name, fragment = _fragment(row, where, marking)
            formats[name] += 1
            found.append(fragment)
    for one in spans_to_rows(spans):
        fragment = _Fragment(
            where=one.where,
            messages=chat_messages(one),
            tools=one.tools,
            is_good=one.is_good,
            id=one.group,
            group=one.group,
        )
        found.append(fragment)
    return found


def _fragment(row: Any, where: str, marking: Marking) -> tuple[str, _Fragment]:
    """Return the format of a row, and what it contains. Raises DataError if the format is unknown."""
    if _is_messages(row):
        return "messages", _Fragment(where=where, messages=row)
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: {row!r:.60} is not an object; give {FORMATS}.")
    mark, id = marking.read(row, where), _id_of(row)
    request, response = _decoded(row.get("request")), _decoded(row.get("response"))
    if (isinstance(request, Mapping) and "messages" in request) or "choices" in row:
        asked = request if isinstance(request, Mapping) else row
        return "request and response", _pair(asked, response if response is not None else row, where, mark, id)
    if "messages" not in row:
        keys = ", ".join(map(repr, list(row)[:8])) or "no key"
        raise DataError(f"{where}: a row with {keys} has no known format; give {FORMATS}.")
    if isinstance(row.get("task"), Mapping) and "turns" in row:
        tools = (row["task"].get("fields") or {}).get("tools")
        return "recording", _Fragment(where=where, messages=row["messages"], tools=tools, is_good=mark)
    return "messages", _Fragment(where=where, messages=row["messages"], tools=row.get("tools"), is_good=mark, id=id)


def _pair(request: Row, response: Any, where: str, mark: bool | None, id: str | None) -> _Fragment:
    response = response.get("body", response) if isinstance(response, Mapping) else response  # as in batch files
    choices = response.get("choices") if isinstance(response, Mapping) else None
    asked = request.get("messages")
    if not choices:
        # Without an answer there is nothing to learn from: `require_usable` leaves it out.
        return _Fragment(where=where, messages=asked, tools=request.get("tools"), is_good=mark, group="")
    try:
        message = {key: value for key, value in choices[0]["message"].items() if value is not None}
    except (LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{where}: the response has no choices[0].message; give OpenAI's chat completion.") from error
    messages = [*asked, {"role": "assistant", **message}] if isinstance(asked, list) else asked
    return _Fragment(where=where, messages=messages, tools=request.get("tools"), is_good=mark, id=id, group="")


def _joined(fragments: Iterable[_Fragment], left_out: Counter[str], unread: list[str]) -> list[Conversation]:
    """Return the conversations. A fragment that a later one of its group continues is a part of that one. Counts those
    that cannot be used in `left_out`, and lists those that cannot be read in `unread`."""
    found: list[Conversation | None] = []
    ends: dict[tuple[str, bytes], int] = {}
    for fragment in fragments:
        with _listing(unread, fragment.where):
            try:
                one = _conversation(fragment)
            except LeftOut as reason:
                left_out[str(reason)] += 1
                continue
            if fragment.group is None or not _replace_earlier(one, fragment.group, found, ends):
                found.append(one)
    usable = []
    for one in found:
        try:
            if one is not None:
                require_usable(one.messages)
                usable.append(one)
        except LeftOut as reason:
            left_out[str(reason)] += 1
    return usable


def _conversation(fragment: _Fragment) -> Conversation:
    """Return what a fragment has of a conversation. Raises DataError if it cannot be read, and LeftOut if it cannot be
    used."""
    tools = read_tools(fragment.tools, fragment.where)
    messages = read_messages(fragment.messages, fragment.where)
    require_strict([*messages, *tools], fragment.where)
    return Conversation(where=fragment.where, messages=messages, tools=tools, is_good=fragment.is_good, id=fragment.id)


def _replace_earlier(
    one: Conversation, group: str, found: list[Conversation | None], ends: dict[tuple[str, bytes], int]
) -> bool:
    """Put a conversation in the place of the first earlier fragment that it continues, and take out the other ones. It
    keeps their mark if it has none. Return False if it continues none."""
    digests = list(prefix_digests(one.messages))
    places = [place for digest in digests if (place := ends.pop((group, digest), None)) is not None]
    for place in places:
        earlier = found[place]
        if earlier is not None and one.is_good is None:
            one = replace(one, is_good=earlier.is_good)
        found[place] = None
    ends[group, digests[-1]] = places[0] if places else len(found)
    if places:
        found[places[0]] = one
    return bool(places)


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) and "role" in one for one in value)


def _id_of(row: Row) -> str | None:
    found = next((row[name] for name in ("id", "conversation_id", "custom_id") if row.get(name) is not None), None)
    return None if found is None else str(found)


def _decoded(value: Any) -> Any:
    """Return a value that some loggers store as JSON text."""
    if isinstance(value, str) and value[:1] in "{[":
        try:
            return read_json(value)
        except ValueError:
            return value
    return value
