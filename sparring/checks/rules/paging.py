"""Rule on pages: together they must contain every row exactly once."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sparring.checks.evidence.arguments import split_words
from sparring.checks.evidence.explore import Call, explore_task, is_refusal
from sparring.checks.evidence.returned_rows import is_equal, parse_number
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import (
    CallResult,
    Survey,
    get_documentation,
    is_worded_as_writing,
    survey_task,
    survey_tasks,
)
from sparring.environments import Environment, execute
from sparring.environments.base import reset
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
MOST_PAGES = 60
MOST_WALKED = 4
"""The maximum number of combinations of other arguments with which the pages of a tool are read."""
FEWEST_ROWS = 3
"""The minimum number of rows of a page that is the only page."""
FEWEST_TASKS = 2
"""The number of tasks in which pages must be wrong in the same way before the rule reports it."""
_PAGE = {"page"}
_NUMBER = {"number", "no", "nr", "index"}
_OFFSET = {"offset", "skip", "start"}
_CURSOR = {"cursor", "token", "after", "continuation"}
_LIMIT = {"limit", "size", "per", "top", "num", "max", "n"}
_MORE = {"more", "next"}
_COUNTING = {"count", "total", "number", "many", "num"}


@dataclass(frozen=True, slots=True)
class Walk:
    """The pages of one tool, from the first page to the last page that it returned."""

    tool: str
    pages: tuple[tuple[CallResult, tuple[Mapping[str, Json], ...]], ...]
    is_whole: bool
    """True if the walk reached the end."""
    beyond: int = 0
    """The number of new rows after a page that claims to be the last one."""
    limit: int | None = None
    fixed: Mapping[str, Json] = field(default_factory=dict)
    """The other arguments that the tool needs."""

    @property
    def rows(self) -> list[Mapping[str, Json]]:
        return [row for _, rows in self.pages for row in rows]

    @property
    def total(self) -> int | None:
        """The total number of rows that the first page states, or None if it states none."""
        for name, value in self.pages[0][0].fields.items():
            words = set(split_words(name))
            if "total" in words and "page" not in words and isinstance(value, int) and not isinstance(value, bool):
                return value
        return None


@dataclass(slots=True)
class _Seen:
    """One way in which the pages of a tool are wrong."""

    what: str
    evidence: list[dict[str, Json]] = field(default_factory=list)


async def pages(subject: Subject) -> Iterable[Finding]:
    """Pages contain every row exactly once, whatever their size, and the page that claims to be the last one is the
    last.

    If a tool takes a page, an offset or a cursor, or continues when it is called again, the rule calls it until it
    returns no more rows. It compares the rows with the number that a result or another tool states, with the rows of
    pages of another size, and with the task's own list. It compares neighboring pages at their boundaries, and `limit`
    with the number of returned rows. The policy cannot see rows that are not on any page. To fix this, start each page
    at `page * size`, with the actual page size.
    """
    found: dict[str, list[_Seen]] = {}
    with subject.timing.as_far_as_it_goes():
        for survey in await survey_tasks(subject):
            walked = await walk_pages(subject, survey.task)
            for walk in walked:
                same = [other for other in walked if other.tool == walk.tool and other.fixed == walk.fixed]
                for what, evidence in _faults(subject, survey, walk, same):
                    seen = found.setdefault(walk.tool, [])
                    known = next((one for one in seen if one.what == what), None)
                    if known is None:
                        seen.append(known := _Seen(what))
                    known.evidence.append({"task": survey.task.id, **evidence})
    return [
        _report(tool, seen)
        for tool, faults in found.items()
        for seen in faults[:1]
        if len({one["task"] for one in seen.evidence}) >= min(FEWEST_TASKS, len(subject.sample))
    ]


def _report(tool: str, seen: _Seen) -> Finding:
    return Finding(
        rule="environment.pages",
        severity=Severity.WARNING,
        symptom=f"{tool}: {seen.what}, in {len({one['task'] for one in seen.evidence})} tasks.",
        evidence={"tool": tool, "seen": seen.evidence[:4]},
        change="Cut every page at its actual number of rows, and start the next page where this page ended.",
        confirm=AGAIN,
    )


async def walk_pages(subject: Subject, task: Task) -> list[Walk]:
    """Return the pages of each tool that returns pages. The pages of each task are read only once."""
    known: dict[str, list[Walk]] = subject.shared.setdefault("walks", {})
    if task.id not in known:
        known[task.id] = [
            replace(walk, fixed=fixed)
            for name in subject.tools
            if not is_worded_as_writing(subject, name)
            for limit in _limits(subject, name)
            for fixed in await _fixed(subject, task, name, most=MOST_WALKED if limit is None else 1)
            if (walk := await _walk(subject, task, name, limit, fixed)) is not None
        ]
    return known[task.id]


def _parameters(subject: Subject, tool: str) -> Mapping[str, Mapping[str, Json]]:
    return subject.tools[tool].schema["function"].get("parameters", {}).get("properties", {})


def _parameter(subject: Subject, tool: str, named: set[str]) -> str | None:
    """Return the tool's argument whose name contains one of these words, or None if there is no such argument."""
    return next((name for name in _parameters(subject, tool) if named & set(split_words(name))), None)


def _pager(subject: Subject, tool: str) -> tuple[str, str] | None:
    """Return the argument that chooses the page and the kind of this argument, or None."""
    for kind, named in (("page", _PAGE), ("cursor", _CURSOR), ("offset", _OFFSET)):
        name = _parameter(subject, tool, named)
        if name is not None and not {"size", "per"} & set(split_words(name)):
            is_number = "integer" in json.dumps(_parameters(subject, tool)[name])
            if is_number or kind != "page":
                return name, "offset" if kind == "cursor" and is_number else kind
    # `page(topic, number)`
    name = _parameter(subject, tool, _NUMBER) if _PAGE & set(split_words(tool)) else None
    return (name, "page") if name is not None and "integer" in json.dumps(_parameters(subject, tool)[name]) else None


def is_paged(subject: Subject, tool: str) -> bool:
    """Return True if an argument of a tool chooses the page, the first row, or the number of rows."""
    return _pager(subject, tool) is not None or _parameter(subject, tool, _LIMIT) is not None


def _limits(subject: Subject, tool: str) -> list[int | None]:
    """Return the page sizes to try: the default size, and small sizes if there is an argument for the size."""
    name = _parameter(subject, tool, _LIMIT)
    if name is None or "integer" not in json.dumps(_parameters(subject, tool)[name]):
        return [None]
    part = _parameters(subject, tool)[name]
    return [None, *(n for n in (1, 2, 3) if part.get("minimum", n) <= n <= part.get("maximum", n))]


def _required(subject: Subject, tool: str) -> frozenset[str]:
    return subject.tools[tool].required


async def _fixed(subject: Subject, task: Task, tool: str, most: int) -> list[dict[str, Json]]:
    """Return at most `most` combinations of the other arguments with which a tool finds something."""
    pager = _pager(subject, tool)
    needed = _required(subject, tool) - ({pager[0]} if pager else set())
    legal = [one.call for one in (await explore_task(subject, task)).legal(tool)]
    found = [one.call for one in (await survey_task(subject, task)).found(tool)] if needed and most > 1 else []
    ways = [{name: value for name, value in one.arguments.items() if name in needed} for one in (*legal, *found)]
    return list({json.dumps(one, sort_keys=True): one for one in ways}.values())[:most] or [{}]


async def _walk(subject: Subject, task: Task, tool: str, limit: int | None, fixed: Mapping[str, Json]) -> Walk | None:
    """Call a tool for page after page, and return the pages, or None if the tool has no pages."""
    pager, survey = _pager(subject, tool), await survey_task(subject, task)
    needed = _required(subject, tool) - ({pager[0]} if pager else set())
    size = _parameter(subject, tool, _LIMIT)
    if limit is not None and size is not None:
        fixed = {**fixed, size: limit}
    goes_on = not needed and not (pager and pager[0] in _required(subject, tool))
    if needed - fixed.keys() or (pager is None and not goes_on and limit is None):
        return None
    own = copy.deepcopy(task)
    async with subject.opened(own) as environment:
        await reset(environment, own)
        for call in survey.opening:
            await execute(environment, call.tool, dict(call.arguments))
        if pager is None:
            return await _asked_again(environment, tool, fixed, limit)
        for first in _starts(subject, tool, *pager):
            walk = await _turned(subject, environment, tool, fixed, pager, first, limit)
            if walk is not None:
                return walk
    return None


def _starts(subject: Subject, tool: str, name: str, kind: str) -> list[Json]:
    """Return the values of the page argument that may select the first page."""
    schema = _parameters(subject, tool)[name]
    if kind == "cursor":
        return [None]
    if "minimum" in schema:
        return [schema["minimum"]]
    if isinstance(schema.get("default"), int):
        return [schema["default"]]
    text = get_documentation(subject, tool)
    return [1] if "from 1" in text or "starts at 1" in text else [0] if kind == "offset" or "from 0" in text else [0, 1]


async def _turned(
    subject: Subject,
    environment: Environment,
    tool: str,
    fixed: Mapping[str, Json],
    pager: tuple[str, str],
    first: Json,
    limit: int | None,
) -> Walk | None:
    """Return the pages that an argument selects, starting from `first`, or None if the first page has no rows."""
    (name, kind), at = pager, first
    taken: list[tuple[CallResult, tuple[Mapping[str, Json], ...]]] = []
    is_last, beyond = False, 0
    for _ in range(MOST_PAGES):
        arguments = {**fixed, **({} if at is None else {name: at})}
        if environment.is_done or subject.problem_with(tool, arguments) is not None:
            break
        page = CallResult(Call(tool, arguments), await execute(environment, tool, dict(arguments)))
        rows = _rows(page)
        if is_refusal(page.result) or not rows or (taken and rows == taken[-1][1]):
            return _walk_of(tool, taken, limit, is_whole=True)
        if is_last:
            beyond = sum(row not in [one for _, rows in taken for one in rows] for row in rows)
            return _walk_of(tool, taken, limit, is_whole=True, beyond=beyond)
        taken.append((page, rows))
        is_last = _is_last(page)
        at = _find_next(page, kind, at, len(rows))
        if at is None:
            return _walk_of(tool, taken, limit, is_whole=True)
    return _walk_of(tool, taken, limit, is_whole=is_last)


def _find_next(page: CallResult, kind: str, at: Json, num_rows: int) -> Json:
    """Return the page, offset or cursor that follows, or None if there is no other cursor."""
    if kind == "cursor":
        cursor = next((v for key, v in page.fields.items() if (_CURSOR | {"next"}) & set(split_words(key))), None)
        return None if cursor in ("", False) else cursor
    assert isinstance(at, int), "pages and offsets are numbers"
    return at + (1 if kind == "page" else num_rows)


def _walk_of(tool: str, taken: Sequence, limit: int | None, *, is_whole: bool, beyond: int = 0) -> Walk | None:
    return Walk(tool, tuple(taken), is_whole, beyond, limit) if taken else None


async def _asked_again(
    environment: Environment, tool: str, fixed: Mapping[str, Json], limit: int | None
) -> Walk | None:
    """Return all pages of a tool's result, or its only page if the tool is not paginated."""
    taken: list[tuple[CallResult, tuple[Mapping[str, Json], ...]]] = []
    for _ in range(MOST_PAGES):
        if environment.is_done:
            break
        page = CallResult(Call(tool, fixed), await execute(environment, tool, dict(fixed)))
        rows = _rows(page)
        if is_refusal(page.result) or not rows:
            return _walk_of(tool, taken, limit, is_whole=len(taken) > 1)
        if taken and rows == taken[-1][1]:
            return _walk_of(tool, taken, limit, is_whole=False) if limit is not None else None
        taken.append((page, rows))
    return _walk_of(tool, taken, limit, is_whole=False)


def _rows(page: CallResult) -> tuple[Mapping[str, Json], ...]:
    listings = page.listings
    return tuple(max(listings.values(), key=len)) if listings else ()


def _is_last(page: CallResult) -> bool:
    """Return True if a page claims that no other page follows."""
    flags = [value for name, value in page.fields.items() if _MORE & set(split_words(name))]
    return bool(flags) and all(value in (False, None, "", "false", "no") for value in flags)


def _faults(
    subject: Subject, survey: Survey, walk: Walk, same: Sequence[Walk]
) -> Iterator[tuple[str, dict[str, Json]]]:
    """Yield the defects of a sequence of pages, and the evidence for them."""
    shown: dict[str, Json] = {"calls": [str(page.call) for page, _ in walk.pages[:4]], "pages": len(walk.pages)}
    first = walk.pages[0][1]
    others = [one for one in same if one is not walk]
    if walk.limit is not None and len(first) != walk.limit:
        asked = [one for one in survey.found(walk.tool) if walk.fixed.items() <= one.call.arguments.items()]
        sizes = [len(one.rows) for one in same] + [len(_rows(one)) for one in asked]
        is_more = any(size > max(walk.limit, len(first)) for size in sizes)
        if is_more:
            yield (
                "its limit differs from the number of returned rows",
                {**shown, "limit": walk.limit, "rows": len(first)},
            )
    if walk.beyond:
        yield "a page that claims to be the last one is followed by another", {**shown, "rows_after_it": walk.beyond}
    if not walk.is_whole:
        return
    missing = _missing_of_task(survey.task, walk)
    if missing:
        yield "rows of the task are on no page", {**shown, "rows": len(walk.rows), "on_no_page": missing[:4]}
    if len(walk.pages) < 2:
        return
    borders = [(one[1][-1], other[1][0]) for one, other in zip(walk.pages, walk.pages[1:], strict=False)]
    if len(borders) > 1 and 2 * sum(one == other for one, other in borders) >= len(borders):
        yield "a page begins with the last row of the previous page", {**shown, "row": dict(borders[0][0])}
    for how, number, where in _stated(subject, survey, walk):
        if number != len(walk.rows):
            what = f"the rows of all pages together differ from what {how}"
            yield what, {**shown, "rows": len(walk.rows), "stated": number, "by": where}
    for other in others:
        if other.is_whole and len(other.rows) != len(walk.rows) and walk.limit is None:
            sizes = [len(walk.pages[0][1]), len(other.pages[0][1])]
            yield (
                "pages of another size have other rows",
                {**shown, "rows": [len(walk.rows), len(other.rows)], "sizes": sizes},
            )


def _stated(subject: Subject, survey: Survey, walk: Walk) -> Iterator[tuple[str, int, str]]:
    """Yield the number of rows according to the pages themselves, and according to tools that count rows."""
    if walk.total is not None:
        yield "its own total states", walk.total, walk.tool
    if subject.tools[walk.tool].required - {(_pager(subject, walk.tool) or ("",))[0]}:
        return
    about = set(split_words(get_documentation(subject, walk.tool)))
    for one in survey.found():
        named = set(split_words(one.call.tool))
        number = parse_number(one.fields.get("")) if one.call.tool != walk.tool and not one.call.arguments else None
        if number is None or not _COUNTING & (named | set(split_words(get_documentation(subject, one.call.tool)))):
            continue
        nouns = (named | set(split_words(get_documentation(subject, one.call.tool)))) - _COUNTING - _PLAIN
        if nouns & about and len(walk.rows) / 2 < number[0] < 2 * len(walk.rows):
            yield f"{one.call.tool} states", int(number[0]), one.call.tool


_PLAIN = set(
    split_words(
        "the a of all how there are in is an and type function name description parameters object properties required "
        "additional false true page pages each by to from for with"
    )
)


def _missing_of_task(task: Task, walk: Walk) -> list[Json]:
    """Return the rows of the task's own list that are not on any page, if the pages leave them out at their boundaries
    or at the end. A single page must contain the first rows in their original order, because other rows may have been
    left out on purpose."""
    for items in _lists(task.fields):
        places = [next((i for i, item in enumerate(items) if _is_row_of(row, item)), None) for row in walk.rows]
        if len(items) < 4 or None in places or len(set(places)) < len(items) / 2:
            continue
        missing = [items[i] for i in range(len(items)) if i not in places]
        size, count = len(walk.pages[0][1]), len(walk.pages)
        is_full = all(len(rows) == size for _, rows in walk.pages)
        is_at_borders = count > 2 and count - 1 <= len(missing) <= count
        if count == 1 and (places != list(range(size)) or size < FEWEST_ROWS):
            continue
        if missing and (is_at_borders or (is_full and len(missing) == len(items) % size)):
            return missing
    return []


def _lists(value: Json) -> Iterator[list[Json]]:
    for item in value.values() if isinstance(value, Mapping) else ():
        if isinstance(item, list):
            yield item
        elif isinstance(item, Mapping) and not any(isinstance(one, Mapping | list) for one in item.values()):
            yield [[key, value] for key, value in item.items()]
        yield from _lists(item)


def _is_row_of(row: Mapping[str, Json], item: Json) -> bool:
    own = list(item.values()) if isinstance(item, Mapping) else list(item) if isinstance(item, list) else [item]
    return bool(row) and all(any(is_equal(value, one) for one in own) for value in row.values())
