"""Rule on complete data: tools show texts up to their end, and all rows that match the request."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sparring.checks.evidence.arguments import split_words
from sparring.checks.evidence.explore import Call
from sparring.checks.evidence.legal_calls import SLOW_SECONDS, run_calls
from sparring.checks.evidence.own_data import collect_own_data, find_texts
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import (
    CallResult,
    Survey,
    find_reading_tools,
    get_documentation,
    survey_steady_tools,
)
from sparring.checks.evidence.task_rows import Row, find_tables
from sparring.checks.rules.paging import is_paged
from sparring.findings import Finding, Severity
from sparring.types import Json

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
FEWEST = 2
SHORTEST = 24
"""The minimum number of characters of a string that counts as the beginning of another string."""
FEWEST_ROWS = 3
"""The minimum number of rows of a list that may be truncated."""
MOST_WORDS = 6
"""The maximum number of words of one field with which a search is called in each task."""
_STATES_CUT = re.compile(
    r"\b(?:first|begin\w*|start\w*|preview|summar\w*|snippet|excerpt|cut|short\w*|head|tail|last|truncat\w*|characters|chars|"
    r"lines?|limit\w*|at most|up to|no more than|maximum|max|some|few|sample|next|random\w*)\b"
)
"""Words of a description that announce that not everything is returned."""
_STATES_SOME = re.compile(
    r"\b(?:page|top|newest|latest|recent|best|worst|most|least|cheapest|nearest|closest|largest|smallest|highest|lowest|longest|"
    r"shortest|oldest|earliest|biggest|fastest|any|free|available|open|unread|due|without|except|only|\d+|two|three|four|five|"
    r"six|seven|eight|nine|ten)\b"
)
"""Words of a description that announce that a list may leave out some rows."""
_MARKS = re.compile(r"(?:\.\.\.|…|truncated|more\)?\]?|cut)\W*$", re.I)
_STATES = frozenset(("total", "more", "next", "truncated", "remaining", "pages", "page", "has", "cursor", "omitted"))


@dataclass(slots=True)
class _Cut:
    """A tool's results for long texts, truncated and in full."""

    cut: dict[str, dict[str, Json]] = field(default_factory=dict)
    """For each truncated text, the evidence with the call that returned it."""
    sizes: set[tuple[int, int]] = field(default_factory=set)
    """Pairs of the number of characters and the number of lines of a result."""


@dataclass(slots=True)
class _Listed:
    """The lists that one tool returned, with the number of returned rows and the number of rows that match the
    request."""

    short: list[dict[str, Json]] = field(default_factory=list)
    complete: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Searched:
    """Rows that contain a word in only one field, and whether a search for this word finds them."""

    found: int = 0
    lost: list[dict[str, Json]] = field(default_factory=list)


async def whole(subject: Subject) -> Iterable[Finding]:
    """Tools show the task's data completely, or state that they do not.

    The rule compares the results of read-only tools with the data that `reset` received and created: fields, JSON in
    fields, and tables. The rule warns in three cases. Several results are only the beginnings of longer texts, all
    truncated at the same number of characters or lines. A list never has more than a certain number of rows, although
    more rows have the requested value. A search finds nothing by a field that its description includes, although it
    finds rows by another field. The rule accepts a description that mentions a beginning, a limit or a page. It also
    accepts a mark such as `...` in the result, a stated total, and an argument that requests the rest. A policy assumes
    that the data it reads is complete.
    """
    if subject.timing.episode_seconds > SLOW_SECONDS:
        return []
    cuts: dict[str, _Cut] = defaultdict(_Cut)
    lists: dict[str, _Listed] = defaultdict(_Listed)
    searches: dict[str, dict[str, _Searched]] = defaultdict(dict)
    with subject.timing.as_far_as_it_goes():
        reading = await find_reading_tools(subject)
        for survey in await survey_steady_tools(subject):
            data = await collect_own_data(subject, survey.task)
            rows = [table for _, table in find_tables(data)]
            shown = "\n".join(one.result.content for one in survey.results)
            texts = {text for text in find_texts(data) if len(text) > SHORTEST}
            for one in survey.found():
                tool = one.call.tool
                description = _description_of(subject, tool)
                if tool not in reading or is_paged(subject, tool) or _STATES_CUT.search(description):
                    continue
                _note_cut(survey, one, texts, shown, cuts[tool])
                if not _STATES_SOME.search(description):
                    _note_list(survey, one, rows, lists[tool])
            for tool in reading:
                await _search(subject, survey, tool, rows, searches[tool])
    findings = {tool: one for tool, seen in cuts.items() if (one := _cut_finding(tool, seen))}
    findings |= {tool: one for tool, seen in lists.items() if (one := _list_finding(tool, seen))}
    findings |= {tool: one for tool, seen in searches.items() if (one := _search_finding(tool, seen))}
    return list(findings.values())


def _description_of(subject: Subject, tool: str) -> str:
    """Return the words of a tool's name, and its description in lower case."""
    description = str(subject.tools[tool].schema["function"].get("description", "")).lower()
    plain = re.sub(r"\b(?:first|last) names?\b", "", description)
    return f"{' '.join(split_words(tool))} {plain}"


def _note_cut(survey: Survey, one: CallResult, texts: Iterable[str], shown: str, seen: _Cut) -> None:
    """Record texts in a result that are the beginning of a longer text whose end no tool shows."""
    for content in find_texts(one.value):
        text = content.rstrip()
        if len(text) < SHORTEST or _MARKS.search(text):
            continue
        longer = [whole for whole in texts if whole.startswith(text) and len(whole.rstrip()) > len(text)]
        if longer and not any(whole.rstrip()[-SHORTEST:] in shown for whole in longer) and content not in texts:
            rest = longer[0][len(text) :][:80]
            seen.cut[longer[0]] = {"task": survey.task.id, "call": str(one.call), "ends": text[-40:], "goes_on": rest}
            seen.sizes.add((len(content), content.count("\n")))


def _cut_finding(tool: str, seen: _Cut) -> Finding | None:
    lengths, lines = ({size[part] for size in seen.sizes} for part in (0, 1))
    if len(seen.cut) < FEWEST or (len(lengths) > 1 and (len(lines) > 1 or lines == {0})):
        return None
    after = f"{lengths.pop()} characters" if len(lengths) == 1 else f"{lines.pop() + 1} lines"
    return _finding(
        f"{tool} cuts texts after {after} and does not report this, for example "
        f"{next(iter(seen.cut.values()))['call']}.",
        {"tool": tool, "cut": list(seen.cut.values())[:4], "texts": len(seen.cut)},
        "Return the whole text, or report that it is cut and offer the rest on request.",
    )


def _note_list(survey: Survey, one: CallResult, all_rows: Sequence[Sequence[Row]], seen: _Listed) -> None:
    """Record the number of rows in a list, and the number of existing rows that match the request."""
    if any(_STATES & set(split_words(name)) for name in one.fields):
        return
    for listed in one.listings.values():
        for rows in all_rows:
            there = _belonging(one.call, listed, rows)
            if there is None:
                continue
            if len(there) > len(listed) >= FEWEST_ROWS:
                missing = [row for row in there if not any(_is_row(shown, row) for shown in listed)]
                seen.short.append(
                    {
                        "task": survey.task.id,
                        "call": str(one.call),
                        "rows": len(listed),
                        "there_are": len(there),
                        "missing": [dict(row) for row in missing[:2]],
                    }
                )
            elif len(there) == len(listed):
                seen.complete.append(len(listed))
            break


def _belonging(call: Call, listed: Sequence[Mapping[str, Json]], rows: Sequence[Row]) -> list[Row] | None:
    """Return the rows that match a call in the same way as all returned rows do, or None if this cannot be
    determined."""
    if not listed or len(listed) > len(rows):
        return None
    own = [[row for row in rows if _is_row(one, row)] for one in listed]
    if any(len(those) != 1 for those in own):
        return None
    came, fits = [those[0] for those in own], list(rows)
    for value in call.arguments.values():
        wanted = str(value).casefold()
        columns = [name for name in rows[0] if all(str(row.get(name)).casefold() == wanted for row in came)]
        if not columns:
            return None
        fits = [row for row in fits if any(str(row.get(name)).casefold() == wanted for name in columns)]
    return fits


def _is_row(shown: Mapping[str, Json], row: Row) -> bool:
    """Return True if a returned object is this row: it has all the values that are unique to the row."""
    values, own = [str(one) for one in shown.values() if one is not None], [str(one) for one in row.values()]
    return bool(values) and all(value in own for value in values)


def _list_finding(tool: str, seen: _Listed) -> Finding | None:
    sizes = {int(str(one["rows"])) for one in seen.short}
    is_steady = len(sizes) == 1 and all(size <= max(sizes) for size in seen.complete)
    is_seen = len({one["call"] for one in seen.short}) >= FEWEST
    totals = {str(one["there_are"]) for one in seen.short}
    if not is_steady or not is_seen or (not seen.complete and len(totals) < FEWEST):
        return None
    first = seen.short[0]
    return _finding(
        f"{tool} never returns more than {max(sizes)} rows and does not report this: {first['call']} has "
        f"{first['there_are']} in task {first['task']}.",
        {"tool": tool, "cut": seen.short[:4], "in_full": len(seen.complete)},
        "Return all rows, or report that there are more and offer them on request.",
    )


async def _search(
    subject: Subject, survey: Survey, tool: str, all_rows: Sequence[Sequence[Row]], seen: dict[str, _Searched]
) -> None:
    """Call a search tool with words that rows contain in only one of the fields that its description names."""
    required = sorted(subject.tools[tool].required)
    described = set(split_words(get_documentation(subject, tool)))
    if len(required) != 1 or subject.problem_with(tool, {required[0]: "text"}) is not None:
        return
    for rows in all_rows:
        columns = [name for name in rows[0] if set(split_words(name)) and set(split_words(name)) <= described]
        if len(columns) < FEWEST:
            continue
        asked = [(name, word, row) for name in columns for word, row in _own_words(rows, name)]
        calls = [Call(tool, {required[0]: word}) for _, word, _ in asked]
        came = (await run_calls(subject, survey.task, [*survey.opening, *calls]))[len(survey.opening) :]
        results = [CallResult(call, result) for call, result in zip(calls, came, strict=True)]
        if not any(any(_is_row(shown, row) for row in rows) for one in results for shown in _rows_of(one)):
            continue
        for (name, _, row), one in zip(asked, results, strict=True):
            searched = seen.setdefault(name, _Searched())
            if any(_is_row(shown, row) for shown in _rows_of(one)):
                searched.found += 1
            else:
                searched.lost.append(
                    {
                        "task": survey.task.id,
                        "call": str(one.call),
                        "answer": one.result.content[:120],
                        "not_found": dict(row),
                    }
                )


def _rows_of(one: CallResult) -> Iterator[Mapping[str, Json]]:
    for listed in one.listings.values():
        yield from listed


def _own_words(rows: Sequence[Row], name: str) -> list[tuple[str, Row]]:
    """Return the words that only one row contains, and only in this field, each with its row."""
    found: list[tuple[str, Row]] = []
    words = [{key: set(re.findall(r"[^\W\d_]{4,}", str(value).lower())) for key, value in row.items()} for row in rows]
    for index, row in enumerate(rows):
        elsewhere = {
            word
            for i, one in enumerate(words)
            for key, those in one.items()
            for word in those
            if (i, key) != (index, name)
        }
        own = sorted(words[index].get(name, set()) - elsewhere)
        found += [(own[0], row)] if own else []
    return found[:MOST_WORDS]


def _search_finding(tool: str, seen: Mapping[str, _Searched]) -> Finding | None:
    finding = [name for name, one in seen.items() if one.found >= FEWEST_ROWS and not one.lost]
    blind = [name for name, one in seen.items() if not one.found and len(one.lost) >= FEWEST_ROWS]
    if not finding or not blind:
        return None
    return _finding(
        f"{tool} finds rows by {finding[0]!r}, but never by {blind[0]!r}, which its description also names.",
        {"tool": tool, "not_found": seen[blind[0]].lost[:4]},
        f"Search {blind[0]!r} as well, or leave it out of the description.",
    )


def _finding(symptom: str, evidence: dict[str, Json], change: str) -> Finding:
    return Finding(
        rule="environment.whole",
        severity=Severity.WARNING,
        symptom=symptom,
        evidence=evidence,
        change=change,
        confirm=AGAIN,
    )
