"""Reference answers must have one type, one spelling and no gaps (rule `data.schema`)."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from sparring.checks.evidence.placed_tasks import SPLITS, Placed, place_tasks
from sparring.checks.evidence.reference_episodes import ReferenceEpisodes, find_references
from sparring.checks.evidence.subject import Subject
from sparring.checks.rules.ground_truth import MANY_LABELS, MANY_LISTED, NUM_SHOWN, RARE
from sparring.checks.rules.prompt import get_prompt
from sparring.findings import Finding, Severity
from sparring.types import Json

MOST_CONFIRMED = 20
"""The maximum number of values that are compared with the prompt of their own task."""
_NULL_LIKE = {"", "nan", "null", "none", "n/a", "na", "-", "?", "unknown", "undefined", "tbd"}


async def schema(subject: Subject) -> Iterable[Finding]:
    """The ground truth follows one schema: it has one type per field, no empty cells, and only values that the prompt
    names.

    A strict scorer compares types and spelling: "3" is not 3, and `Late ` is not `late`. Correct the rows that the
    evidence lists.
    """
    references = await find_references(subject)
    if references is None or not references.labels():
        return []
    columns = _label_columns(subject, references)
    prompt = await get_prompt(subject, next(iter(references.by_task.values())).task)
    found: list[Finding] = []
    for name, cells in columns.items():
        found += [*_mixed_types(name, cells), *_empty_cells(name, cells), *_spelled_twice(name, cells)]
        found += await _outside_the_list(subject, name, cells, prompt)
    return found


def _label_columns(subject: Subject, references: ReferenceEpisodes) -> dict[str, list[tuple[Placed, Json]]]:
    """Return the ground truth of all tasks, keyed by name: the expert's answers, and the fields with the same
    values."""
    paths: dict[str, tuple[str, ...]] = {}
    known = [reference for reference in references.by_task.values() if reference.parts]
    for path in sorted(references.read, key=len):
        for name in references.labels():
            agree = [_at(reference.task.fields, path) == (reference.parts or {}).get(name) for reference in known]
            is_named = path[-1] == name or (not name and _at(known[0].task.fields, path) is not None)
            if name not in paths and is_named and fmean(agree) > 0.5:
                paths[name] = path
    everything = place_tasks(subject)
    columns: dict[str, list[tuple[Placed, Json]]] = {}
    for name in references.labels():
        if name in paths:
            columns[name] = [(one, _at(one.task.fields, paths[name])) for one in everything]
        else:
            columns[name] = [
                (one, (references.by_task[one.task.id].parts or {}).get(name))
                for one in everything
                if one.split == SPLITS[0] and references.by_task.get(one.task.id) is not None
            ]
    return columns


def _at(fields: Mapping[str, Json], path: Sequence[str]) -> Json:
    value: Json = fields
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _mixed_types(name: str, cells: Sequence[tuple[Placed, Json]]) -> Iterator[Finding]:
    kinds = Counter(_kind(value) for _, value in cells if not _is_empty(value))
    if len(kinds) < 2:
        return
    usual = kinds.most_common(1)[0][0]
    odd = [(one, value) for one, value in cells if not _is_empty(value) and _kind(value) != usual]
    yield Finding(
        rule="data.schema",
        severity=Severity.ERROR,
        symptom=f"The ground truth {name!r} is {usual} in {kinds[usual]} tasks and {_kind(odd[0][1])} in {len(odd)}: "
        f"rows {_rows(odd)}.",
        evidence={"field": name, "types": dict(kinds), "tasks": [_cell(one, value) for one, value in odd[:NUM_SHOWN]]},
        change=f"Write {name!r} as {usual} everywhere.",
        confirm="The field has one type.",
    )


def _empty_cells(name: str, cells: Sequence[tuple[Placed, Json]]) -> Iterator[Finding]:
    empty = [(one, value) for one, value in cells if _is_empty(value)]
    if not empty or len(empty) > RARE * len(cells) + 1:
        return
    is_broken = any(value == "" or isinstance(value, float) for _, value in empty)
    yield Finding(
        rule="data.schema",
        severity=Severity.ERROR if is_broken else Severity.WARNING,
        symptom=f"The ground truth {name!r} is empty in {len(empty)} of {len(cells)} tasks: rows {_rows(empty)}.",
        evidence={"field": name, "tasks": [_cell(one, value) for one, value in empty[:NUM_SHOWN]]},
        change="Fill in the cells, or remove the rows. If the right answer may be empty, state this in the prompt "
        "and write null.",
        confirm="No cell is empty.",
    )


def _spelled_twice(name: str, cells: Sequence[tuple[Placed, Json]]) -> Iterator[Finding]:
    spellings: dict[str, Counter[str]] = defaultdict(Counter)
    for _, value in cells:
        if isinstance(value, str) and not _is_empty(value):
            spellings[re.sub(r"[\s_-]+", " ", value).strip().casefold()][value] += 1
    if len(spellings) > RARE * len(cells) + MANY_LABELS:
        return
    for variants in spellings.values():
        if len(variants) > 1 or any(value != value.strip() for value in variants):
            usual = variants.most_common(1)[0][0]
            odd = [
                (one, value) for one, value in cells if value in variants and (value != usual or value != value.strip())
            ]
            yield Finding(
                rule="data.schema",
                severity=Severity.ERROR,
                symptom=f"The ground truth {name!r} spells one value in several ways: "
                f"{', '.join(map(repr, variants))}.",
                evidence={
                    "field": name,
                    "spellings": dict(variants),
                    "tasks": [_cell(one, v) for one, v in odd[:NUM_SHOWN]],
                },
                change=f"Write {usual.strip()!r} everywhere, as the prompt does.",
                confirm="Every value has one spelling.",
            )


async def _outside_the_list(
    subject: Subject, name: str, cells: Sequence[tuple[Placed, Json]], prompt: str
) -> list[Finding]:
    """Return findings on values that the prompt of their task does not name, although one of its sentences lists most
    of the other values. `prompt` is the prompt of one task; other tasks may have other prompts."""
    counts = Counter(value for _, value in cells if isinstance(value, str) and not _is_empty(value))
    listed = _listed(name, set(counts), prompt) if len(counts) <= MANY_LISTED else set()
    if len(listed) < 2:
        return []
    unknown = {value for value in counts if not _stands_in(value, prompt)}
    outside = [(one, value) for one, value in cells if isinstance(value, str) and value in unknown]
    if not outside or len(unknown) >= len(listed):
        return []
    confirmed = []
    for one, value in outside[:MOST_CONFIRMED]:
        own = await get_prompt(subject, one.task)
        if listed <= _listed(name, set(counts), own) and not _stands_in(value, own):
            confirmed.append((one, value))
    if not confirmed:
        return []
    return [_report_outside(name, listed, confirmed)]


def _report_outside(name: str, listed: set[str], confirmed: Sequence[tuple[Placed, Json]]) -> Finding:
    return Finding(
        rule="data.schema",
        severity=Severity.ERROR,
        symptom=f"The ground truth {name!r} is {confirmed[0][1]!r} in row {_rows(confirmed[:1])}, but the prompt only "
        f"allows {', '.join(sorted(listed)[:8])}.",
        evidence={
            "field": name,
            "allowed": sorted(listed),
            "tasks": [_cell(*one) for one in confirmed[:NUM_SHOWN]],
        },
        change="Correct these rows, or name the value in the prompt.",
        confirm="Every value is one that the prompt names.",
    )


def _listed(name: str, values: Iterable[str], prompt: str) -> set[str]:
    """Return the values that one sentence lists, if the sentence contains the field's name, `one of` or a similar
    phrase."""
    word = f"{re.escape(name)}|" if name else ""
    lists = [
        sentence
        for sentence in re.split(r"\n|;|\.(?=\s|$)", prompt)
        if re.search(rf"(?i)(?<!\w)(?:{word}one of|either|labels?|must be|allowed)(?!\w)", sentence)
    ]
    return max(({value for value in values if _stands_in(value, one)} for one in lists), key=len, default=set())


def _stands_in(value: str, text: str) -> bool:
    return bool(re.search(rf"(?i)(?<!\w){re.escape(value.strip())}(?!\w)", text))


def _kind(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else type(value).__name__


def _is_empty(value: Json) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return True
    return value is None or (isinstance(value, str) and value.strip().casefold() in _NULL_LIKE - {"unknown", "none"})


def _cell(one: Placed, value: Json) -> dict[str, Json]:
    is_json = not (isinstance(value, float) and not math.isfinite(value))
    return {"split": one.split, "row": one.row, "task": one.task.id, "value": value if is_json else str(value)}


def _rows(cells: Sequence[tuple[Placed, Json]]) -> str:
    return ", ".join(f"{one.row} of {one.split}" for one, _ in cells[:NUM_SHOWN])
