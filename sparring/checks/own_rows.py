"""Are all rows of the task's own data found by the field by which a tool finds some, and is what comes of that row?"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sparring.checks.arguments import fitted_to
from sparring.checks.calls import SLOW_SECONDS, answers
from sparring.checks.explore import Call
from sparring.checks.subject import Subject
from sparring.checks.survey import Said, Survey, reading_tools, steady_surveys, tells_unknown
from sparring.findings import Finding, Severity
from sparring.types import Json

WILDCARDS = "_%*?."
MOST_ROWS = 40
"""Of one list, that a tool is asked for in one task."""
FEWEST_FOUND = 3
FEWEST_WRONG = 2
_ROWS_OF_A_LIST = 3
_MOSTLY = 0.6
"""Share of the rows that differ in a field, from which it may name them."""
_ONE_OF_SEVERAL = re.compile(
    r"\b(?:first|last|latest|newest|oldest|earliest|recent|current|any|some|best|next|nearest)\b", re.I
)
Row: TypeAlias = Mapping[str, Json]
Place: TypeAlias = tuple[tuple[str, ...], str]
"""Where rows stand in the task's fields, and the field of a row."""

_SPELLINGS: Mapping[str, Callable[[str], bool]] = {
    "accents": lambda text: any(map(unicodedata.combining, unicodedata.normalize("NFKD", text))),
    "letters outside ASCII": lambda text: not text.isascii(),
    "upper case": lambda text: text != text.lower(),
    "lower case": lambda text: text != text.upper(),
    "a zero in front": lambda text: text.startswith("0"),
    "a blank at an end": lambda text: text != text.strip(),
    "a blank": lambda text: " " in text.strip(),
    **{f"the character {mark!r}": lambda text, mark=mark: mark in text for mark in "'’-_./&,+#%:()"},
}
"""What the values that are lost may have in common, and those that are found have not."""


@dataclass(slots=True)
class _Asked:
    """What became of the values of one field when a tool was asked for them."""

    found: dict[str, str] = field(default_factory=dict)
    """By value, the task."""
    lost: dict[str, dict[str, Json]] = field(default_factory=dict)
    right: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By a field of the result and one of the row, how often they had one value that no other row has."""
    wrong: dict[tuple[str, str], list[dict[str, Json]]] = field(default_factory=lambda: defaultdict(list))
    """The same, of another row than was asked for."""
    neither: set[tuple[str, str]] = field(default_factory=set)
    """Those that once had no value of one row."""
    hidden: dict[tuple[str, str], list[dict[str, Json]]] = field(default_factory=lambda: defaultdict(list))
    """The same, where two rows are called alike, and one of the two has the value."""


async def found_in_rows(subject: Subject, known: Collection[Json]) -> list[Finding]:
    """Findings on tools, those in `known` apart, that miss rows of the task by their spelling, answer with another row, or with
    one of two rows that are called alike."""
    asked: dict[tuple[str, Place], _Asked] = defaultdict(_Asked)
    if subject.timing.episode_seconds > SLOW_SECONDS:
        return []
    for survey in await steady_surveys(subject):
        for tool in await reading_tools(subject):
            if tool not in known and len(subject.tools[tool].required) == 1 and tells_unknown(survey, tool):
                await _ask_all(subject, survey, tool, asked)
    findings: dict[str, Finding] = {}
    for (tool, (_, name)), one in asked.items():
        finding = _lost(tool, name, one) or _mixed_up(tool, name, one) or _hidden(subject, tool, name, one)
        if finding is not None:
            findings.setdefault(tool, finding)
    return list(findings.values())


async def _ask_all(subject: Subject, survey: Survey, tool: str, asked: dict[tuple[str, Place], _Asked]) -> None:
    """Ask a tool for all values of each field by which it finds some rows."""
    (argument,) = subject.tools[tool].required
    schema = subject.tools[tool].schema["function"]["parameters"]["properties"].get(argument, {})
    is_text = subject.problem_with(tool, {argument: "text"}) is None
    known = {str(one.call.arguments[argument]) for one in survey.found(tool) if list(one.call.arguments) == [argument]}
    for path, rows in tables(survey.task.fields):
        for name in _identifying(rows):
            values = {str(row[name]): row for row in rows[:MOST_ROWS]}
            # A number has no zeros in front: `0417` can only be passed as 417.
            calls = [Call(tool, {argument: value if is_text else fitted_to(value, schema)}) for value in values]
            if len(values.keys() & known) < FEWEST_WRONG or any(
                subject.problem_with(tool, call.arguments) is not None for call in calls
            ):
                continue
            results = (await answers(subject, survey.task, [*survey.opening, *calls]))[len(survey.opening) :]
            one = asked[tool, (path, name)]
            for (value, row), call, result in zip(values.items(), calls, results, strict=True):
                alike = [other for other in rows if str(other[name]) == value]
                if len(alike) > 1:
                    _note_hidden(survey, one, alike, value, Said(call, result))
                else:
                    _note(survey, one, rows, row, value, Said(call, result))


def _note_hidden(survey: Survey, one: _Asked, alike: Sequence[Row], value: str, said: Said) -> None:
    """Remember which of several rows that are called alike an answer is of."""
    if survey.is_unknown(said):
        return
    for key, stated in said.fields.items():
        for name in alike[0]:
            others = [row for row in alike if str(row.get(name)) != str(stated)]
            if str(stated) != value and 0 < len(others) < len(alike):
                one.hidden[key, name].append({
                    "task": survey.task.id, "call": str(said.call), "answer": said.result.content[:200],
                    "not_found": dict(others[0]),
                })  # fmt: skip


def _note(survey: Survey, one: _Asked, rows: Sequence[Row], row: Row, value: str, said: Said) -> None:
    shown: dict[str, Json] = {"task": survey.task.id, "call": str(said.call), "answer": said.result.content[:200]}
    if survey.is_unknown(said):
        one.lost.setdefault(value, shown)
        return
    one.found.setdefault(value, survey.task.id)
    for key, stated in said.fields.items():
        for name, own in row.items():
            owners = [other for other in rows if str(other.get(name)) == str(stated)]
            if len(owners) != 1 or str(own) == value:
                one.neither.add((key, name))
            elif owners[0] is row:
                one.right[key, name] += 1
            else:
                one.wrong[key, name].append({**shown, "row_asked_for": dict(row), "row_of_the_answer": dict(owners[0])})


def _lost(tool: str, name: str, one: _Asked) -> Finding | None:
    """Rows that are lost by their spelling."""
    lost = {value: shown for value, shown in one.lost.items() if value not in one.found}
    what = in_common(list(lost), list(one.found)) if _are_of_a_kind(one.found, lost) else None
    if what is None or len(lost) < FEWEST_WRONG or len(one.found) < FEWEST_FOUND:
        return None
    return _finding(
        f"{tool} does not find {len(lost)} of {len(lost) + len(one.found)} values of the task's {name or 'names'!r}, all of them "
        f"with {what}, as {next(iter(lost))!r}.",
        {"tool": tool, "not_found": list(lost.values())[:4], "found": list(one.found)[:4]},
        "Compare what is asked for with what is filed in one spelling; codes are texts, since numbers have no zeros in front.",
    )


def in_common(texts: Sequence[str], others: Sequence[str]) -> str | None:
    """What all of these texts have, and none of the others."""
    return next((what for what, has in _SPELLINGS.items() if all(map(has, texts)) and not any(map(has, others))), None)


def _are_of_a_kind(found: Iterable[str], lost: Iterable[str]) -> bool:
    """Whether both are names, or both codes: a code is found by another tool than a name."""
    return {any(map(str.isdigit, one)) for one in found} == {any(map(str.isdigit, one)) for one in lost}


def _mixed_up(tool: str, name: str, one: _Asked) -> Finding | None:
    """Values that are answered with what belongs to another row."""
    for key, wrong in one.wrong.items():
        is_sure = key not in one.neither and one.right[key] >= FEWEST_FOUND
        if is_sure and FEWEST_WRONG <= len(wrong) < one.right[key]:
            marks = [mark for mark in WILDCARDS if all(mark in str(shown["call"]).split("=", 1)[1] for shown in wrong)]
            return _finding(
                f"{tool} answers {len(wrong)} of {len(wrong) + one.right[key]} values of {name or 'names'!r} with another row, "
                f"as {wrong[0]['call']}"
                + (f": all of them have {marks[0]!r}, a wildcard of searches." if marks else "."),
                {"tool": tool, "wrong": list(wrong[:4]), "field": list(key)},
                "Compare whole values as they are, and return the row that has the value.",
            )
    return None


def _hidden(subject: Subject, tool: str, name: str, one: _Asked) -> Finding | None:
    """Rows that cannot be found, since another one is called so."""
    description = str(subject.tools[tool].schema["function"].get("description", ""))
    for key, hidden in () if _ONE_OF_SEVERAL.search(description) else one.hidden.items():
        is_sure = key not in one.neither and not one.wrong.get(key) and one.right[key] >= FEWEST_FOUND
        if is_sure and len(hidden) >= FEWEST_WRONG:
            return _finding(
                f"{tool} finds one of several rows that are alike in {name or 'name'!r}, and never the others, in {len(hidden)} "
                f"calls: {hidden[0]['call']} in task {hidden[0]['task']}.",
                {"tool": tool, "seen": hidden[:4], "field": list(key)},
                "Give each row of a task a name of its own, or return all rows that have the name.",
            )
    return None


def _finding(symptom: str, evidence: dict[str, Json], change: str) -> Finding:
    return Finding(
        rule="environment.found",
        severity=Severity.WARNING,
        symptom=symptom,
        evidence=evidence,
        change=change,
        confirm="Run `sparring check RECIPE --only environment` again: the finding is gone.",
    )


def tables(value: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    """The lists of rows in a task's fields, each with where it stands; objects by name are rows, too."""
    if isinstance(value, Mapping):
        if len(value) >= _ROWS_OF_A_LIST and path and _are_alike(list(value.values())):
            yield path, [{"": key, **_row(one)} for key, one in value.items()]
        for name, item in value.items():
            yield from tables(item, (*path, str(name)))
    elif isinstance(value, list | tuple) and len(value) >= _ROWS_OF_A_LIST and _are_alike(value):
        yield path, [_row(one) for one in value]


def _are_alike(values: Sequence[Json]) -> bool:
    """Whether values are objects with a shared field, lists of one length, or texts."""
    if all(isinstance(one, Mapping) for one in values):
        return bool(set.intersection(*(set(one) for one in values if isinstance(one, Mapping))))
    if all(isinstance(one, list | tuple) for one in values):
        return len({len(one) for one in values if isinstance(one, list | tuple)}) == 1
    return all(isinstance(one, str) for one in values)


def _row(value: Json) -> dict[str, Json]:
    if isinstance(value, Mapping):
        return {str(key): one for key, one in value.items() if isinstance(one, str | int | float)}
    if isinstance(value, list | tuple):
        return {str(index): one for index, one in enumerate(value) if isinstance(one, str | int | float)}
    return {"value": value}


def _identifying(rows: Sequence[Row]) -> list[str]:
    """Fields under which each row has a text of its own, but for a few."""
    names = rows[0]
    return [
        name
        for name in names
        if all(isinstance(row.get(name), str) and row[name] for row in rows)
        and len({row[name] for row in rows}) >= _MOSTLY * len(rows)
    ]
