"""Can the answers be known, are they given away, and are they what they claim to be? (rules `data.*` on labels)"""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from sparring.checks.answers import as_object, canonical, most_frequent, text_of
from sparring.checks.calls import SLOW_SECONDS
from sparring.checks.calls import leaves as named_leaves
from sparring.checks.data import SPLITS, Placed, placed
from sparring.checks.episodes import Episode, clipped, episodes_of
from sparring.checks.golds import Gold, Golds, golds_of
from sparring.checks.graded import Aspect
from sparring.checks.knowable import all_said, is_asked_out, is_made_of
from sparring.checks.prompt import prompt_of
from sparring.checks.registry import check
from sparring.checks.scripts import as_text, leaves
from sparring.checks.subject import EXPERT, Subject
from sparring.checks.timing import OutOfTimeError
from sparring.checks.tools import all_answers
from sparring.findings import Finding, Severity
from sparring.types import Json

FEWEST = 8
"""Tasks from which a share says something."""
LEAK, SURE_LEAK = 0.2, 0.9
"""How much more often than chance a prompt names its own answer: from the first on it is told, from the second on sure."""
PROMPT_SECONDS = 3.0
MANY_LABELS, MANY_LISTED = 12, 50
UNBALANCED, CONSTANT = 0.6, 0.9
"""Share of the tasks that one answer is right for: from the first on told, from the second on an error."""
RARE = 0.2
"""Share of the rows up to which another type or an empty cell is a mistake, not a kind of answer."""
NUM_SHOWN = 5
CANDIDATES = 2
"""From this many other answers in a prompt on, it lists candidates: which of them is right is the question."""
MANY_WORDS = 3
"""A text of more words is written by the policy, not found."""
_NULL_LIKE = {"", "nan", "null", "none", "n/a", "na", "-", "?", "unknown", "undefined", "tbd"}
_LABEL_WORD = r"(?:answer|label|expected|solution|gold|target|correct|truth)"


@check("data.leak", seconds=20)
async def leak(subject: Subject) -> Iterable[Finding]:
    """The prompt does not name the answer.

    For each part of the answer it is counted how often a prompt names its own task's value more often than other prompts do,
    against how often it names another task's value so: a list of all labels in the procedure is no leak, nor are the candidates
    of a task. Values that the expert passes to its first call are inputs. Keep ground truth in fields, out of `prompt` and out of
    what `reset` says.
    """
    golds = await golds_of(subject)
    if golds is None or not golds.labels():
        return []
    prompts = await _prompts(subject, golds)
    known = [(gold, prompts[gold.task.id]) for gold in golds.by_task.values() if gold.parts and gold.task.id in prompts]
    found, leaked = [], {}
    for name in golds.labels():
        told = _told(name, [(gold, prompt) for gold, prompt in known if gold.parts and name in gold.parts], subject)
        if told is not None:
            leaked[name] = told
    for name, told in leaked.items():
        is_sure = told.share >= SURE_LEAK and (
            told.is_labeled or (bool(subject.tools) and told.num_values <= MANY_LABELS)
        )
        is_whole = len(leaked) == len(golds.labels()) and told.share >= SURE_LEAK and bool(subject.tools)
        what = "the answer" if not name else f"{name!r} of the answer"
        found.append(
            Finding(
                rule="data.leak", severity=Severity.ERROR if is_sure or is_whole else Severity.WARNING,
                symptom=f"The prompt names {what} in {told.share:.0%} of {told.num} tasks; by chance it would in "
                f"{told.chance:.0%}.",
                evidence={"part": name, "share": told.share, "chance": told.chance, "tasks": told.shown},
                change="Take it out of the prompt; what the agent is not to see belongs into the task's fields. Where "
                "it is an input "
                "that has to be repeated, leave it.",
                confirm="The share is that of chance.",
            )
        )  # fmt: skip
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    share: float
    chance: float
    num: int
    num_values: int
    is_labeled: bool
    """Whether a word such as `answer:` or the part's own name stands before it."""
    shown: list[Json]


def _told(name: str, known: Sequence[tuple[Gold, str]], subject: Subject) -> _Told | None:
    """How often prompts name their own value of a part, where that is more than chance."""
    values = [_spoken((gold.parts or {})[name]) for gold, _ in known]
    distinct = sorted({value for value in values if value})
    if len(known) < 4 or len(distinct) < 2:
        return None
    prompts = [f" {_spoken(prompt)} " for _, prompt in known]
    rng = subject.rng(f"leak/{name}")

    def exceeds(place: int, value: str) -> bool:
        others = [p for p, own in zip(prompts, values, strict=True) if own != value]
        usual = median(p.count(f" {value} ") for p in others[:: max(1, len(others) // 40)])
        return prompts[place].count(f" {value} ") > usual

    hits = [place for place, value in enumerate(values) if value and exceeds(place, value)]
    if len(hits) < max(3, LEAK * len(known)):
        return None
    drawn = [rng.choice([value for value in distinct if value != values[place]]) for place in range(len(known))]
    chance = fmean(exceeds(place, value) for place, value in enumerate(drawn))
    share = len(hits) / len(known)
    inputs = sum(_is_input(known[place][0], (known[place][0].parts or {})[name]) for place in hits)
    if share - chance < LEAK or (len(known) < FEWEST and share < 1) or inputs >= 0.8 * len(hits):
        return None
    first = [known[place] for place in hits[:NUM_SHOWN]]
    is_labeled = all(_labeled(name, as_text((gold.parts or {})[name]), prompt) for gold, prompt in first)
    beside = [
        sum(value != values[place] and exceeds(place, value) for value in distinct[:MANY_LISTED]) for place in hits[:20]
    ]
    if not is_labeled and median(beside) >= CANDIDATES:
        return None
    return _Told(
        share=share, chance=chance, num=len(known), num_values=len(distinct), is_labeled=is_labeled,
        shown=[
            {"task": gold.task.id, "value": (gold.parts or {})[name], "prompt": _around(prompt, (gold.parts or {})[name])}
            for gold, prompt in first
        ],
    )  # fmt: skip


def _labeled(name: str, value: str, prompt: str) -> bool:
    word = f"(?:{_LABEL_WORD}|{re.escape(name)})" if name else _LABEL_WORD
    return bool(re.search(rf"(?i){word}\w*\W{{1,12}}(?:is\W+)?{re.escape(value)}", prompt))


def _is_input(gold: Gold, value: Json) -> bool:
    """Whether the expert gives the value to its first call, before any tool could have told it."""
    calls = gold.script[0].get("tool_calls") or ()
    given = {canonical(leaf) for call in calls for leaf in leaves(call["function"]["arguments"])}
    return canonical(value) in given


def _spoken(value: Json) -> str:
    """A value as words apart by single spaces, as it would stand in a prompt; "" for what cannot be looked for."""
    return " ".join(re.findall(r"[^\W_]+", as_text(value).casefold())) if isinstance(value, str | int | float) else ""


def _around(prompt: str, value: Json) -> str:
    place = max(0, prompt.casefold().find(as_text(value).casefold()))
    return clipped(prompt[max(0, place - 80) : place + 80], 160)


@check("data.unanswerable", seconds=20)
async def unanswerable(subject: Subject) -> Iterable[Finding]:
    """Every scored field can be known: from the prompt, a tool, or a rule that maps them to it.

    An error where tasks whose prompt and tool results are the same have different answers, and where names or codes of the
    answer are said nowhere. Without an expert a warning, and only where every tool that reads was asked for all that is named
    and found something, and the answer is not made of other data of the task. Let a tool or the prompt give what the field
    follows from, or stop scoring it.
    """
    golds = await golds_of(subject)
    played = await episodes_of(subject, EXPERT)
    if golds is None or not played:
        return []
    copied = {one.gold.task.id: one for one in await episodes_of(subject, "every tool")}
    evidence = {one.gold.task.id: _evidence(one, copied.get(one.gold.task.id)) for one in played}
    found = [*_undecided(golds, played, copied)]
    nowhere = list(_said_nowhere(golds, played, evidence)) if subject.tools else []
    if golds.has_expert:
        # Without tools the policy may be meant to know what is not said.
        return [*found, *nowhere]
    if not (found or nowhere) or not subject.tools:
        return [replace(one, severity=Severity.WARNING) for one in found]
    return await _without_expert(subject, golds, played, evidence, found)


async def _without_expert(
    subject: Subject,
    golds: Golds,
    played: Sequence[Episode],
    evidence: Mapping[str, str],
    undecided: Sequence[Finding],
) -> list[Finding]:
    """Warnings, where no expert shows which calls give the answer: only when all tools that read were asked and found something,
    and the answer is made neither of what they said nor of other data of the task, which other calls may give."""
    if subject.timing.episode_seconds > SLOW_SECONDS:
        return []
    said = dict(evidence)
    asked: set[str] = set()
    try:
        for one in played:
            said[one.gold.task.id] += f"{_spoken(await all_said(subject, one.gold.task))} "
            if await is_asked_out(subject, one.gold.task):
                asked.add(one.gold.task.id)
    except OutOfTimeError:
        return []
    found = [one for one in undecided if set(one.evidence["tasks"]) <= asked]
    # What stands in some result under its name is given by other arguments.
    given = {key for _, _, text in await all_answers(subject) for key, _ in named_leaves(as_object(text) or {})}
    judged = {path[0] for path in golds.read}
    own = {
        one.gold.task.id: [
            word
            for name, field in one.gold.task.fields.items() if name not in judged
            for word in _spoken(json.dumps(field, ensure_ascii=False, default=str)).split()
        ]
        for one in played
    }  # fmt: skip

    def is_sure(name: str, one: Episode) -> bool:
        task = one.gold.task.id
        words = [*said[task].split(), *own[task]]
        return task in asked and not is_made_of(_spoken((one.gold.parts or {}).get(name)), words)

    nowhere = _said_nowhere(golds, played, said, is_sure)
    found += [one for one in nowhere if one.evidence["part"] not in given]
    return [replace(one, severity=Severity.WARNING) for one in found]


def _undecided(golds: Golds, played: Sequence[Episode], copied: Mapping[str, Episode]) -> Iterator[Finding]:
    """Parts that differ between tasks of which all that can be seen is equal, what the tasks are called apart."""
    groups: dict[str, list[Gold]] = defaultdict(list)
    for one in played:
        if one.gold.parts is not None and any(m.get("role") == "tool" for m in one.trajectory.messages):
            seen = [_seen(one), _seen(copied[one.gold.task.id]) if one.gold.task.id in copied else ""]
            groups["\n".join(seen)].append(one.gold)
    said = {
        one.gold.task.id: "\n".join(text_of(m) for m in one.trajectory.messages if m.get("role") == "tool")
        for one in played
    }
    for name in golds.labels():
        for group in groups.values():
            # What a tool says word for word is known, also where it is passed on to the next tool.
            untold = [gold for gold in group if not _is_told((gold.parts or {}).get(name), said[gold.task.id])]
            distinct = {canonical((gold.parts or {}).get(name)): gold for gold in untold}
            if len(distinct) > 1:
                first, second = list(distinct.values())[:2]
                yield Finding(
                    rule="data.unanswerable", severity=Severity.ERROR,
                    symptom=f"{name or 'The answer'!r} cannot be known: tasks {first.task.id} and {second.task.id} "
                    f"show the policy the "
                    f"same and have different answers ({_shown(first, name)} and {_shown(second, name)}).",
                    evidence={"part": name, "tasks": {one.task.id: _shown(one, name) for one in (first, second)}},
                    change="Have a tool or the prompt give what it follows from, or do not score it.",
                    confirm="Tasks with different answers look different.",
                )  # fmt: skip
                break


def _is_told(value: Json, said: str) -> bool:
    """Whether a text of an answer stands in what the tools said; a number may stand there by chance."""
    return isinstance(value, str) and bool(value) and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", said) is not None


def _seen(one: Episode) -> str:
    """Prompt and tool results of an episode, with what is passed to tools masked: names of things are no evidence."""
    messages = one.trajectory.messages
    named = {
        text for message in messages for call in message.get("tool_calls") or ()
        for text in map(as_text, leaves(call["function"]["arguments"])) if text
    }  # fmt: skip
    text = "\n".join(text_of(message) for message in messages if message.get("role") != "assistant")
    if not named:
        return text
    pattern = "|".join(re.escape(word) for word in sorted(named, key=len, reverse=True))
    return re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", "*", text)


def _said_nowhere(
    golds: Golds,
    played: Sequence[Episode],
    evidence: Mapping[str, str],
    is_sure: Callable[[str, Episode], bool] = lambda name, one: True,
) -> Iterator[Finding]:
    """Parts with many different texts whose words are in nothing that the policy sees."""
    everywhere = " ".join(evidence.values())
    for name, values in golds.labels().items():
        # Numbers, also those in a text, may have been computed: from other numbers.
        texts = {value for value in values if isinstance(value, str) and not re.fullmatch(r"[\s$€£%\d.,+-]*", value)}
        if len(texts) < len(set(map(canonical, values))) or not texts:
            continue
        is_label = len(texts) <= max(MANY_LABELS, RARE * len(values))
        missing = []
        for one in played:
            value = _spoken((one.gold.parts or {}).get(name))
            said = everywhere if is_label else evidence[one.gold.task.id]
            is_missing = len(value.split()) <= MANY_WORDS and not all(f" {word} " in said for word in value.split())
            if is_missing and is_sure(name, one):
                missing.append(one)
        if not missing or 2 * len(missing) < len(played):
            continue
        yield Finding(
            rule="data.unanswerable",
            severity=Severity.WARNING if is_label or len(missing) < len(played) else Severity.ERROR,
            symptom=f"{name or 'The answer'!r} is said nowhere in {len(missing)} of {len(played)} tasks: "
            f"{_shown(missing[0].gold, name)} stands in no prompt and no tool result of task {missing[0].gold.task.id}.",
            evidence={"part": name, "tasks": {o.gold.task.id: (o.gold.parts or {}).get(name) for o in missing[:NUM_SHOWN]}},
            change="Have a tool return it, name the labels in the prompt, or do not score it.",
            confirm="Its values stand in a prompt or a tool result.",
        )  # fmt: skip


def _evidence(one: Episode, copied: Episode | None) -> str:
    messages = [*one.trajectory.messages, *(() if copied is None else copied.trajectory.messages)]
    return f" {_spoken(' '.join(text_of(message) for message in messages if message.get('role') != 'assistant'))} "


@check("data.imbalance")
async def imbalance(subject: Subject) -> Iterable[Finding]:
    """No single answer is right for most tasks.

    The best constant answer is a policy, and training finds it first. Its share of the training tasks and its score, played
    through the tool loop, are given. Draw tasks by answer, or judge success by class.
    """
    golds = await golds_of(subject)
    # Where only what was done is graded, no last message is right or wrong.
    if golds is None or not golds.by_task or Aspect.MESSAGE not in golds.graded:
        return []
    said = [canonical(dict(gold.parts)) if gold.parts else text_of(gold.answer) for gold in golds.by_task.values()]
    best, count = most_frequent(said)
    share = count / len(said)
    scores = [one.score for one in await episodes_of(subject, "most frequent answer") if one.score is not None]
    score = fmean(scores) if scores else None
    if len(said) < FEWEST or share < UNBALANCED or score == 0:
        return []
    shares = {name: most_frequent(values) for name, values in golds.labels().items()}
    return [
        Finding(
            rule="data.imbalance", severity=Severity.ERROR if share >= CONSTANT else Severity.WARNING,
            symptom=f"One answer is right for {share:.0%} of {len(said)} training tasks: {clipped(str(best), 80)}; "
            f"saying it always "
            f"scores {'-' if score is None else f'{score:.2f}'}.",
            evidence={
                "answer": best, "share": share, "score": score, "tasks": len(said),
                "answers": dict(Counter(said).most_common(10)),
                "parts": {name: {"value": value, "share": num / len(said)} for name, (value, num) in shares.items()},
            },
            change="Give every answer about the same number of tasks, in training and in evaluation.",
            confirm=f"The best constant answer is right for less than {UNBALANCED:.0%}.",
        )
    ]  # fmt: skip


@check("data.schema")
async def schema(subject: Subject) -> Iterable[Finding]:
    """The ground truth keeps to one schema: a type for each field, no empty cells, no value but those that the prompt names.

    A strict scorer compares types and spelling: "3" is not 3, and `Gold ` is not `gold`. Clean the rows in the evidence.
    """
    golds = await golds_of(subject)
    if golds is None or not golds.labels():
        return []
    columns = _label_columns(subject, golds)
    prompt = await prompt_of(subject, next(iter(golds.by_task.values())).task)
    found: list[Finding] = []
    for name, cells in columns.items():
        found += [*_mixed_types(name, cells), *_empty_cells(name, cells), *_spelled_twice(name, cells)]
        found += _outside_the_list(name, cells, prompt)
    return found


def _label_columns(subject: Subject, golds: Golds) -> dict[str, list[tuple[Placed, Json]]]:
    """The ground truth of all tasks, by name: what the expert says, and the fields that hold the same."""
    paths: dict[str, tuple[str, ...]] = {}
    known = [gold for gold in golds.by_task.values() if gold.parts]
    for path in sorted(golds.read, key=len):
        for name in golds.labels():
            agree = [_at(gold.task.fields, path) == (gold.parts or {}).get(name) for gold in known]
            is_named = path[-1] == name or (not name and _at(known[0].task.fields, path) is not None)
            if name not in paths and is_named and fmean(agree) > 0.5:
                paths[name] = path
    everything = placed(subject)
    columns: dict[str, list[tuple[Placed, Json]]] = {}
    for name in golds.labels():
        if name in paths:
            columns[name] = [(one, _at(one.task.fields, paths[name])) for one in everything]
        else:
            columns[name] = [
                (one, (golds.by_task[one.task.id].parts or {}).get(name)) for one in everything
                if one.split == SPLITS[0] and golds.by_task.get(one.task.id) is not None
            ]  # fmt: skip
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
        rule="data.schema", severity=Severity.ERROR,
        symptom=f"The ground truth {name!r} is {usual} in {kinds[usual]} tasks and {_kind(odd[0][1])} in {len(odd)}: "
        f"rows {_rows(odd)}.",
        evidence={"field": name, "types": dict(kinds), "tasks": [_cell(one, value) for one, value in odd[:NUM_SHOWN]]},
        change=f"Write {name!r} as {usual} everywhere.",
        confirm="The field has one type.",
    )  # fmt: skip


def _empty_cells(name: str, cells: Sequence[tuple[Placed, Json]]) -> Iterator[Finding]:
    empty = [(one, value) for one, value in cells if _is_empty(value)]
    if not empty or len(empty) > RARE * len(cells) + 1:
        return
    is_broken = any(value == "" or isinstance(value, float) for _, value in empty)
    yield Finding(
        rule="data.schema", severity=Severity.ERROR if is_broken else Severity.WARNING,
        symptom=f"The ground truth {name!r} is empty in {len(empty)} of {len(cells)} tasks: rows {_rows(empty)}.",
        evidence={"field": name, "tasks": [_cell(one, value) for one, value in empty[:NUM_SHOWN]]},
        change="Fill the cells in, or remove the rows; where nothing is the right answer, say so in the prompt and "
        "write null.",
        confirm="No cell is empty.",
    )  # fmt: skip


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
                rule="data.schema", severity=Severity.ERROR,
                symptom=f"The ground truth {name!r} spells one value in several ways: {', '.join(map(repr, variants))}.",
                evidence={"field": name, "spellings": dict(variants), "tasks": [_cell(one, v) for one, v in odd[:NUM_SHOWN]]},
                change=f"Write {usual.strip()!r} everywhere, as the prompt does.",
                confirm="Every value has one spelling.",
            )  # fmt: skip


def _outside_the_list(name: str, cells: Sequence[tuple[Placed, Json]], prompt: str) -> list[Finding]:
    """Values that the prompt does not know, where a sentence of it lists more of the others."""
    counts = Counter(value for _, value in cells if isinstance(value, str) and not _is_empty(value))
    listed = _listed(name, set(counts), prompt) if len(counts) <= MANY_LISTED else set()
    if len(listed) < 2:
        return []
    unknown = {value for value in counts if not _stands_in(value, prompt)}
    outside = [(one, value) for one, value in cells if isinstance(value, str) and value in unknown]
    if not outside or len(unknown) >= len(listed):
        return []
    return [
        Finding(
            rule="data.schema", severity=Severity.ERROR,
            symptom=f"The ground truth {name!r} is {outside[0][1]!r} in row {_rows(outside[:1])}; the prompt allows "
            f"{', '.join(sorted(listed)[:8])}.",
            evidence={"field": name, "allowed": sorted(listed), "tasks": [_cell(*one) for one in outside[:NUM_SHOWN]]},
            change="Correct these rows, or name the value in the prompt.",
            confirm="Every value is one that the prompt names.",
        )
    ]  # fmt: skip


def _listed(name: str, values: Iterable[str], prompt: str) -> set[str]:
    """The values that one sentence lists: with the field's name in it, or `one of` and its like."""
    word = f"{re.escape(name)}|" if name else ""
    lists = [
        sentence for sentence in re.split(r"\n|;|\.(?=\s|$)", prompt)
        if re.search(rf"(?i)(?<!\w)(?:{word}one of|either|labels?|must be|allowed)(?!\w)", sentence)
    ]  # fmt: skip
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


def _shown(gold: Gold, name: str) -> str:
    return json.dumps((gold.parts or {}).get(name), ensure_ascii=False, default=str)


async def _prompts(subject: Subject, golds: Golds) -> dict[str, str]:
    """Opening texts by task id: of all that are looked at, or as many as some seconds allow."""
    began, prompts = time.monotonic(), {}
    shuffled = random.Random(0).sample(list(golds.by_task.values()), min(200, len(golds.by_task)))
    with subject.timing.as_far_as_it_goes():
        for gold in shuffled:
            if len(prompts) >= FEWEST and time.monotonic() - began > PROMPT_SECONDS:
                break
            prompts[gold.task.id] = await prompt_of(subject, gold.task)
    return prompts
