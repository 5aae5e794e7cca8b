"""Rules on datasets: every task appears once, in one split, with the fields that the reward and the scorer need."""

from __future__ import annotations

import difflib
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from sparring.checks.evidence.answer_forms import canonical, parse_object
from sparring.checks.evidence.placed_tasks import (
    SPLITS,
    Placed,
    differ_by_seed,
    get_prompt_text,
    identify,
    place_tasks,
)
from sparring.checks.evidence.reference_episodes import find_references
from sparring.checks.evidence.scripted_episodes import clip
from sparring.checks.evidence.similarity import normalize_text
from sparring.checks.evidence.subject import Subject
from sparring.environments import Environment
from sparring.environments.base import opened, reset
from sparring.errors import SparringError
from sparring.findings import Finding, Severity
from sparring.types import Json

MANY_DUPLICATES = 0.01
RESET_SECONDS = 3.0
NUM_SHOWN = 5
_MOJIBAKE = re.compile("�|Ã[\x80-\xbf©¨¤¶¼]|â€[™œ“”\x9d]|Â[\xa0°»«]|[\x00-\x08\x0b\x0c\x0e-\x1f]")
_UNFILLED = re.compile(r"\{\{?\s*([A-Za-z_]\w*)\s*\}\}?")
_NO_VALUE = re.compile(
    r"(?:[:=]\s*|\b(?:is|item|of|for) )(nan|NaN|None|<NA>|NULL|undefined|\[object Object\])(?=[\s.,;!?]|$)"
)


async def duplicates(subject: Subject) -> Iterable[Finding]:
    """No task appears twice in a split, no two tasks share an id, and no two equal tasks have different answers.

    Repeated tasks get more weight in training, and make confidence intervals too narrow. Without tools or a user who
    replies, the policy cannot know which of two answers to the same prompt is correct. One of the two rows must be
    wrong. Results, histories and comparisons identify tasks by their id.
    """
    found: list[Finding] = []
    everything, by_seed = place_tasks(subject), differ_by_seed(subject)
    for split in SPLITS:
        members = [one for one in everything if one.split == split]
        found += _shared_ids(split, members)
        found += _repeated_tasks(split, members, by_seed=by_seed)
    return [*found, *await _contradictions(subject, everything)]


def _shared_ids(split: str, members: Sequence[Placed]) -> Iterator[Finding]:
    by_id: dict[str, dict[str, Placed]] = defaultdict(dict)
    for one in members:
        by_id[one.task.id].setdefault(identify(one.task, by_prompt=False), one)
    shared = {name: list(those.values()) for name, those in by_id.items() if len(those) > 1}
    if shared:
        name, those = next(iter(shared.items()))
        yield Finding(
            rule="data.duplicates",
            severity=Severity.ERROR,
            symptom=f"Different tasks of {split} have the same id: {len(shared)} ids, among them {name!r}.",
            evidence={
                "split": split,
                "rows": {one: [o.row for o in shared[one]] for one in list(shared)[:NUM_SHOWN]},
                "task": those[0].shown,
            },
            change="Give every task a unique id: results, histories and comparisons use it.",
            confirm="No two different tasks of the split share an id.",
        )


def _repeated_tasks(split: str, members: Sequence[Placed], *, by_seed: bool) -> Iterator[Finding]:
    by_key: dict[str, list[Placed]] = defaultdict(list)
    for one in members:
        by_key[str(one.task.seed) if by_seed else identify(one.task, by_prompt=False)].append(one)
    repeated = [group for group in by_key.values() if len(group) > 1]
    surplus = sum(len(group) - 1 for group in repeated)
    if surplus and surplus >= MANY_DUPLICATES * len(members):
        group = repeated[0]
        yield Finding(
            rule="data.duplicates",
            severity=Severity.WARNING,
            symptom=f"{surplus} of the {len(members)} tasks of {split} repeat another task: rows "
            f"{', '.join(str(one.row) for one in group[:NUM_SHOWN])} are the same.",
            evidence={
                "split": split,
                "repeated": surplus,
                "rows": [[o.row for o in g] for g in repeated[:NUM_SHOWN]],
                "task": group[0].shown,
            },
            change="Keep one of each group of equal tasks. To run tasks more often, raise schedule.max_epochs.",
            confirm="All tasks of the split are different.",
        )


async def _contradictions(subject: Subject, everything: Sequence[Placed]) -> list[Finding]:
    references = await find_references(subject)
    cls = subject.environment_class
    shows_more = subject.tools or (cls is not None and cls.reply is not Environment.reply)
    if references is None or shows_more or subject.config.agent.is_foreign:
        return []  # a conversation may show what the prompt does not
    graded = sorted({path[0] for path in references.read})
    by_prompt: dict[str, dict[str, Placed]] = defaultdict(dict)
    for one in everything:
        expected = canonical([one.task.fields.get(name) for name in graded])
        by_prompt[normalize_text(get_prompt_text(one.task))].setdefault(expected, one)
    torn = [list(group.values()) for group in by_prompt.values() if len(group) > 1]
    if not torn:
        return []
    first, second = torn[0][:2]
    return [
        Finding(
            rule="data.duplicates",
            severity=Severity.ERROR,
            symptom=f"{len(torn)} prompts have two answers: rows {first.row} of {first.split} and {second.row} of "
            f"{second.split}.",
            evidence={
                "judged_by": graded,
                "tasks": [
                    {**o.shown, "fields": {name: o.task.fields.get(name) for name in graded}} for o in (first, second)
                ],
            },
            change="Correct the wrong row, or state in the prompt what distinguishes the tasks.",
            confirm="Every prompt has one answer.",
        )
    ]


async def columns(subject: Subject) -> Iterable[Finding]:
    """Every task has the fields that `reset`, the tools, the expert, the reward and the scorer read.

    The rule records the fields that the reward and the scorer read while they grade a correct answer. A task that lacks
    such a field fails, or is graded without a reference. Fill in the column, or remove the row.
    """
    everything = place_tasks(subject)
    counts = Counter(name for one in everything for name in one.task.fields if isinstance(name, str))
    references = await find_references(subject)
    read = set() if references is None else {path[0] for path in references.read}
    missed = set() if references is None else {path[0] for path in references.missed if len(path) == 1}
    lacking = _lacking_fields(everything, counts, read)
    unknown = _unknown_fields(counts, missed)
    return [*lacking, *unknown, *await _unopened(subject, everything)]


def _lacking_fields(everything: Sequence[Placed], counts: Counter[str], read: set[str]) -> Iterator[Finding]:
    """Yield findings on fields that some tasks lack, if most tasks have the field, or the reward or scorer reads it."""
    for name in sorted(set(counts) | read):
        without = [one for one in everything if name not in one.task.fields]
        if not without or (counts[name] < len(everything) / 2 and name not in read):
            continue
        splits = Counter(one.split for one in without)
        is_read = name in read
        yield Finding(
            rule="data.columns",
            severity=Severity.ERROR if is_read else Severity.WARNING,
            symptom=f"{len(without)} of {len(everything)} tasks lack the field {name!r}"
            f"{', which the reward or the scorer reads' if is_read else ''}: rows "
            f"{', '.join(f'{o.row} of {o.split}' for o in without[:3])}.",
            evidence={"field": name, "lacking": dict(splits), "tasks": [one.shown for one in without[:NUM_SHOWN]]},
            change=f"Give these rows a value for {name!r}, or remove them.",
            confirm=f"Every task has {name!r}.",
        )


def _unknown_fields(counts: Mapping[str, int], missed: set[str]) -> Iterator[Finding]:
    """Yield findings on fields that the reward or scorer reads, but no task has."""
    for name in sorted(missed - set(counts)):
        near = difflib.get_close_matches(name, list(counts), n=1)
        yield Finding(
            rule="data.columns",
            severity=Severity.ERROR if near else Severity.WARNING,
            symptom=f"The reward or the scorer reads the field {name!r}, which no task has"
            f"{f'; there is {near[0]!r}' if near else ''}.",
            evidence={"field": name, "fields": sorted(counts)},
            change=f"Rename the column to {name!r}, or let reward and scorer read the existing column.",
            confirm="Reward and scorer only read existing fields.",
        )


async def _unopened(subject: Subject, everything: Sequence[Placed]) -> list[Finding]:
    """Return findings on tasks whose reset fails."""
    if subject.environment_class is None:
        return []
    failed, num = await _reset_some(subject, everything)
    if not failed or len(failed) == num:
        # If `reset` fails for every task, the defect is in the environment, and the environment rules report it.
        return []
    one, error = failed[0]
    return [
        Finding(
            rule="data.columns",
            severity=Severity.ERROR,
            symptom=f"`reset` fails for {len(failed)} of {num} tasks, for example row {one.row} of {one.split}: {error}",
            evidence={
                "error": str(error),
                "fields": sorted(one.task.fields),
                "tasks": [o.shown for o, _ in failed[:NUM_SHOWN]],
            },
            change="Add the fields that `reset` reads to these rows, or remove the rows.",
            confirm="`reset` succeeds for every task.",
        )
    ]


async def _reset_some(subject: Subject, everything: Sequence[Placed]) -> tuple[list[tuple[Placed, SparringError]], int]:
    """Reset tasks from all splits evenly for some seconds. Return the tasks whose reset fails, with the errors, and the
    number of tasks that were reset."""
    began, failed, num = time.monotonic(), [], 0
    step = max(1, len(everything) // 300)
    for one in everything[::step]:
        if time.monotonic() - began > RESET_SECONDS:
            break
        num += 1
        try:
            async with opened(subject.make_environment(), one.task) as environment:
                await reset(environment, one.task)
        except SparringError as error:
            failed.append((one, error))
    return failed, num


async def rows(subject: Subject) -> Iterable[Finding]:
    """No row is damaged or unusual: truncated, with unfilled placeholders, wrongly encoded, far longer or shorter than
    the others, or of a different type.

    A faulty export produces such rows. The evidence gives the row numbers in the file, counted from 1. Rows that cannot
    be parsed at all are rejected before any check, and the error gives the line number.
    """
    everything = place_tasks(subject)
    names = {name for one in everything for name in one.task.fields}
    texts = [get_prompt_text(one.task) for one in everything]
    odd: dict[str, list[tuple[Placed, Json]]] = defaultdict(list)
    for one, text in zip(everything, texts, strict=True):
        for why, what in _odd_parts(text, names):
            odd[why].append((one, what))
    for why, places in _odd_lengths(texts) + _odd_ends(texts):
        if places:
            odd[why] += [(everything[place], clip(texts[place], 80)) for place in places]
    for why, picked in _odd_cells(everything):
        odd[why] += picked
    return [_report_odd(why, found, len(everything)) for why, found in odd.items()]


def _report_odd(why: str, found: Sequence[tuple[Placed, Json]], num_tasks: int) -> Finding:
    return Finding(
        rule="data.rows",
        severity=Severity.ERROR
        if why.startswith(("a placeholder", "the prompt is blank", "a cell"))
        else Severity.WARNING,
        symptom=f"{why[0].upper()}{why[1:]} in {len(found)} of {num_tasks} tasks: rows "
        f"{', '.join(f'{one.row} of {one.split}' for one, _ in found[:NUM_SHOWN])}.",
        evidence={"tasks": [{**one.shown, "odd": what} for one, what in found[:NUM_SHOWN]]},
        change="Correct these rows, or remove them.",
        confirm="The rows in the evidence look like the others.",
    )


def _odd_parts(text: str, names: set[str]) -> Iterator[tuple[str, Json]]:
    """Yield each defect of a prompt, and the part of its text that shows it. `names` are the fields of the tasks."""
    unfilled = [name for name in _UNFILLED.findall(text) if name in names]
    value, mojibake = _NO_VALUE.search(text), _MOJIBAKE.search(text)
    if unfilled:
        yield "a placeholder was not filled in", unfilled
    if value:
        yield "an empty value was printed", value[0]
    if mojibake:
        yield "characters were decoded wrongly", mojibake[0]
    if not text.strip():
        yield "the prompt is blank", text


def _odd_lengths(texts: Sequence[str]) -> list[tuple[str, list[int]]]:
    lengths = [len(text) for text in texts]
    usual = median(lengths)
    if len(texts) < 10:
        return []
    short = [place for place, length in enumerate(lengths) if length * 5 < usual and usual >= 40]
    long = [place for place, length in enumerate(lengths) if length > 20 * max(usual, 40)]
    return [("the prompt is far shorter than the others", short), ("the prompt is far longer than the others", long)]


def _odd_ends(texts: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Return the prompts that stop in the middle of a sentence although nearly all others do not."""
    ends = [bool(re.search(r"[.?!:)\]}>\"'`]\s*$", text)) for text in texts]
    cut = [place for place, end in enumerate(ends) if not end]
    is_rare = len(texts) >= 20 and len(cut) <= 0.05 * len(texts)
    return [("the prompt stops within a sentence", cut if is_rare else [])]


def _odd_cells(everything: Sequence[Placed]) -> list[tuple[str, list[tuple[Placed, Json]]]]:
    """Return the cells whose type is rare in their column, and the texts that contain broken JSON."""
    cells: dict[str, list[tuple[Placed, Json]]] = defaultdict(list)
    for one in everything:
        for name, value in one.task.fields.items():
            cells[name].append((one, value))
    odd = []
    for name, column in cells.items():
        types = Counter(type(value).__name__ for _, value in column if value is not None)
        rare = {kind for kind, count in types.items() if count <= 0.05 * len(column)}
        if len(column) >= 20 and types.keys() - rare and not {"int", "float"} >= set(types):
            odd.append(
                (f"the cell of {name!r} has another type", [(o, v) for o, v in column if type(v).__name__ in rare])
            )
        texts = [(one, value) for one, value in column if isinstance(value, str) and value.lstrip()[:1] == "{"]
        broken = [(one, clip(value, 80)) for one, value in texts if parse_object(value) is None]
        if texts and len(broken) * 5 <= len(texts):
            odd.append((f"the JSON in a cell of {name!r} cannot be parsed", broken))
    return [(why, found) for why, found in odd if found]
