"""Reference answers must be knowable, hidden and consistent (rules `data.*` on labels)."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from sparring.checks.evidence.answer_forms import canonical, find_most_frequent, get_text, parse_object
from sparring.checks.evidence.grading_inputs import Aspect
from sparring.checks.evidence.knowable import is_asked_out, is_made_of, read_all
from sparring.checks.evidence.legal_calls import SLOW_SECONDS
from sparring.checks.evidence.legal_calls import leaves as named_leaves
from sparring.checks.evidence.reference_episodes import ReferenceEpisode, ReferenceEpisodes, find_references
from sparring.checks.evidence.scripted_episodes import Episode, clip, get_episodes
from sparring.checks.evidence.scripts import leaves, to_text
from sparring.checks.evidence.subject import EXPERT, Subject
from sparring.checks.rules.prompt import get_prompt
from sparring.checks.rules.tools import collect_answers
from sparring.checks.running.time_budget import OutOfTimeError
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

FEWEST = 8
"""The smallest number of tasks for which a share is meaningful."""
LEAK, SURE_LEAK = 0.2, 0.9
"""A leak is reported if the share of prompts that name their own answer is at least LEAK above chance. The leak is
certain if this share is at least SURE_LEAK."""
PROMPT_SECONDS = 3.0
MANY_LABELS, MANY_LISTED = 12, 50
UNBALANCED, CONSTANT = 0.6, 0.9
"""Shares of the tasks for which one answer is correct. The rule reports the answer from the first share on, and as an
error from the second share on."""
RARE = 0.2
"""Up to this share of the rows, a different type or an empty cell counts as a mistake, not as a kind of answer."""
NUM_SHOWN = 5
CANDIDATES = 2
"""A prompt with this number of other answers lists candidates, and the task is to find the correct one."""
MANY_WORDS = 3
"""A text with more words is written by the policy, not copied from a result."""
_LABEL_WORD = r"(?:answer|label|expected|solution|gold|target|correct|truth)"


async def leak(subject: Subject) -> Iterable[Finding]:
    """The prompt does not name the answer.

    For each part of the answer, the rule counts how often a prompt names its own task's value and how often it names
    the value of another task. It reports a leak if prompts name their own task's value more often. A list of all labels
    in the instructions is therefore not a leak, nor are the candidates of a task. Values that the expert passes in its
    first call count as inputs. Keep ground truth in fields, out of `prompt` and out of the messages of `reset`.
    """
    references = await find_references(subject)
    if references is None or not references.labels():
        return []
    prompts = await _prompts(subject, references)
    known = [
        (reference, prompts[reference.task.id])
        for reference in references.by_task.values()
        if reference.parts and reference.task.id in prompts
    ]
    found, leaked = [], {}
    for name in references.labels():
        disclosed = _measure_leak(
            name,
            [(reference, prompt) for reference, prompt in known if reference.parts and name in reference.parts],
            subject,
        )
        if disclosed is not None:
            leaked[name] = disclosed
    for name, disclosed in leaked.items():
        is_sure = disclosed.share >= SURE_LEAK and (
            disclosed.is_labeled or (bool(subject.tools) and disclosed.num_values <= MANY_LABELS)
        )
        is_whole = len(leaked) == len(references.labels()) and disclosed.share >= SURE_LEAK and bool(subject.tools)
        what = "the answer" if not name else f"{name!r} of the answer"
        found.append(
            Finding(
                rule="data.leak",
                severity=Severity.ERROR if is_sure or is_whole else Severity.WARNING,
                symptom=f"The prompt names {what} in {disclosed.share:.0%} of {disclosed.num} tasks, although "
                f"{disclosed.chance:.0%} would be expected by chance.",
                evidence={"part": name, "share": disclosed.share, "chance": disclosed.chance, "tasks": disclosed.shown},
                change="Remove the answer from the prompt: what the agent must not see belongs in the task's fields. "
                "If the value is an input that the answer has to repeat, leave it in the prompt.",
                confirm="The share is not above chance.",
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Disclosed:
    share: float
    chance: float
    num: int
    num_values: int
    is_labeled: bool
    """True if a word such as `answer:` or the part's own name precedes the value."""
    shown: list[Json]


def _measure_leak(name: str, known: Sequence[tuple[ReferenceEpisode, str]], subject: Subject) -> _Disclosed | None:
    """Return how often prompts name their own task's value of a part, or None if this happens no more often than by
    chance."""
    values = [_spoken((reference.parts or {})[name]) for reference, _ in known]
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
    is_labeled = all(_labeled(name, to_text((reference.parts or {})[name]), prompt) for reference, prompt in first)
    around = [
        sum(value != values[place] and exceeds(place, value) for value in distinct[:MANY_LISTED]) for place in hits[:20]
    ]
    if not is_labeled and median(around) >= CANDIDATES:
        return None
    return _Disclosed(
        share=share,
        chance=chance,
        num=len(known),
        num_values=len(distinct),
        is_labeled=is_labeled,
        shown=[
            {
                "task": reference.task.id,
                "value": (reference.parts or {})[name],
                "prompt": _around(prompt, (reference.parts or {})[name]),
            }
            for reference, prompt in first
        ],
    )


def _labeled(name: str, value: str, prompt: str) -> bool:
    word = f"(?:{_LABEL_WORD}|{re.escape(name)})" if name else _LABEL_WORD
    return bool(re.search(rf"(?i){word}\w*\W{{1,12}}(?:is\W+)?{re.escape(value)}", prompt))


def _is_input(reference: ReferenceEpisode, value: Json) -> bool:
    """Return True if the expert passes the value in its first call, before any tool could have shown it."""
    calls = reference.script[0].get("tool_calls") or ()
    given = {canonical(leaf) for call in calls for leaf in leaves(call["function"]["arguments"])}
    return canonical(value) in given


def _spoken(value: Json) -> str:
    """Return a value as words separated by single spaces, as in a prompt, or "" if it cannot be searched for."""
    return " ".join(re.findall(r"[^\W_]+", to_text(value).casefold())) if isinstance(value, str | int | float) else ""


def _around(prompt: str, value: Json) -> str:
    place = max(0, prompt.casefold().find(to_text(value).casefold()))
    return clip(prompt[max(0, place - 80) : place + 80], 160)


async def unanswerable(subject: Subject) -> Iterable[Finding]:
    """Every scored field can be determined: from the prompt, from a tool, or by a rule that maps known values to it.

    The rule reports an error if tasks with equal prompts and tool results have different answers, or if names or codes
    of the answer appear nowhere. Without an expert, it only warns, and only under two conditions: every read-only tool
    was called with all known names and returned something, and the answer is not computed from other data of the task.
    Let a tool or the prompt provide the information that determines the field, or stop scoring the field.
    """
    references = await find_references(subject)
    played = await get_episodes(subject, EXPERT)
    if references is None or not played:
        return []
    copied = {one.reference.task.id: one for one in await get_episodes(subject, "every tool")}
    evidence = {one.reference.task.id: _evidence(one, copied.get(one.reference.task.id)) for one in played}
    found = [*_undecided(references, played, copied)]
    nowhere = list(_find_missing(references, played, evidence)) if subject.tools else []
    if references.has_expert:
        # Without tools, the recipe may expect the policy to know what is not in the prompt.
        return [*found, *nowhere]
    if not (found or nowhere) or not subject.tools:
        return [replace(one, severity=Severity.WARNING) for one in found]
    return await _without_expert(subject, references, played, evidence, found)


async def _without_expert(
    subject: Subject,
    references: ReferenceEpisodes,
    played: Sequence[Episode],
    evidence: Mapping[str, str],
    undecided: Sequence[Finding],
) -> list[Finding]:
    """Return warnings for a recipe without an expert, whose calls would show where the answer comes from. All read-only
    tools must have been called and have returned something. The answer must come neither from their results nor from
    other data of the task, which other calls may return."""
    if subject.timing.episode_seconds > SLOW_SECONDS:
        return []
    try:
        shown, asked = await _read_results(subject, played, evidence)
    except OutOfTimeError:
        return []
    found = [one for one in undecided if set(one.evidence["tasks"]) <= asked]
    # A value that appears in some result under its name is available with other arguments.
    given = {key for _, _, text in await collect_answers(subject) for key, _ in named_leaves(parse_object(text) or {})}
    graded = {path[0] for path in references.read}
    own = {one.reference.task.id: _list_own_words(one.reference.task, graded) for one in played}

    def is_sure(name: str, one: Episode) -> bool:
        task = one.reference.task.id
        words = [*shown[task].split(), *own[task]]
        return task in asked and not is_made_of(_spoken((one.reference.parts or {}).get(name)), words)

    nowhere = _find_missing(references, played, shown, is_sure)
    found += [one for one in nowhere if one.evidence["part"] not in given]
    return [replace(one, severity=Severity.WARNING) for one in found]


async def _read_results(
    subject: Subject, played: Sequence[Episode], evidence: Mapping[str, str]
) -> tuple[dict[str, str], set[str]]:
    """Return the evidence of each task together with the results of all read-only tools, and the tasks in which there
    is nothing more to call. Raises OutOfTimeError."""
    shown = dict(evidence)
    asked: set[str] = set()
    for one in played:
        shown[one.reference.task.id] += f"{_spoken(await read_all(subject, one.reference.task))} "
        if await is_asked_out(subject, one.reference.task):
            asked.add(one.reference.task.id)
    return shown, asked


def _list_own_words(task: Task, graded: set[str]) -> list[str]:
    """Return the words in the fields of a task that are not graded."""
    return [
        word
        for name, field in task.fields.items()
        if name not in graded
        for word in _spoken(json.dumps(field, ensure_ascii=False, default=str)).split()
    ]


def _undecided(
    references: ReferenceEpisodes, played: Sequence[Episode], copied: Mapping[str, Episode]
) -> Iterator[Finding]:
    """Return findings on parts of the answer that differ between tasks that look the same to the policy except for
    names."""
    groups: dict[str, list[ReferenceEpisode]] = defaultdict(list)
    for one in played:
        if one.reference.parts is not None and any(m.get("role") == "tool" for m in one.trajectory.messages):
            seen = [_seen(one), _seen(copied[one.reference.task.id]) if one.reference.task.id in copied else ""]
            groups["\n".join(seen)].append(one.reference)
    shown = {
        one.reference.task.id: "\n".join(get_text(m) for m in one.trajectory.messages if m.get("role") == "tool")
        for one in played
    }
    for name in references.labels():
        for group in groups.values():
            # The policy knows what a tool returns word for word, even if it is then passed to the next tool.
            missing = [
                reference
                for reference in group
                if not _occurs_in((reference.parts or {}).get(name), shown[reference.task.id])
            ]
            distinct = {canonical((reference.parts or {}).get(name)): reference for reference in missing}
            if len(distinct) > 1:
                first, second = list(distinct.values())[:2]
                yield _report_undecided(name, first, second)
                break


def _report_undecided(name: str, first: ReferenceEpisode, second: ReferenceEpisode) -> Finding:
    return Finding(
        rule="data.unanswerable",
        severity=Severity.ERROR,
        symptom=f"{name or 'The answer'!r} cannot be known: tasks {first.task.id} and {second.task.id} "
        f"look the same to the policy, but have different answers ({_shown(first, name)} and "
        f"{_shown(second, name)}).",
        evidence={"part": name, "tasks": {one.task.id: _shown(one, name) for one in (first, second)}},
        change="Let a tool or the prompt provide what the answer follows from, or do not score this part.",
        confirm="Tasks with different answers look different.",
    )


def _occurs_in(value: Json, text: str) -> bool:
    """Return True if an answer's text appears in the tool results. Numbers are ignored, because they may appear by
    chance."""
    return isinstance(value, str) and bool(value) and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def _seen(one: Episode) -> str:
    """Return the prompt and the tool results of an episode. The arguments of calls are masked, because names of items
    are not evidence."""
    messages = one.trajectory.messages
    named = {
        text
        for message in messages
        for call in message.get("tool_calls") or ()
        for text in map(to_text, leaves(call["function"]["arguments"]))
        if text
    }
    text = "\n".join(get_text(message) for message in messages if message.get("role") != "assistant")
    if not named:
        return text
    pattern = "|".join(re.escape(word) for word in sorted(named, key=len, reverse=True))
    return re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", "*", text)


def _find_missing(
    references: ReferenceEpisodes,
    played: Sequence[Episode],
    evidence: Mapping[str, str],
    is_sure: Callable[[str, Episode], bool] = lambda name, one: True,
) -> Iterator[Finding]:
    """Return findings on parts of the answer with many different texts whose words appear nowhere in what the policy
    sees."""
    everywhere = " ".join(evidence.values())
    for name, values in references.labels().items():
        # Numbers, including those in a text, may have been computed from other numbers.
        texts = {value for value in values if isinstance(value, str) and not re.fullmatch(r"[\s$€£%\d.,+-]*", value)}
        if len(texts) < len(set(map(canonical, values))) or not texts:
            continue
        is_label = len(texts) <= max(MANY_LABELS, RARE * len(values))
        missing = []
        for one in played:
            value = _spoken((one.reference.parts or {}).get(name))
            shown = everywhere if is_label else evidence[one.reference.task.id]
            is_missing = len(value.split()) <= MANY_WORDS and not all(f" {word} " in shown for word in value.split())
            if is_missing and is_sure(name, one):
                missing.append(one)
        if not missing or 2 * len(missing) < len(played):
            continue
        is_certain = not is_label and len(missing) == len(played)
        severity = Severity.ERROR if is_certain else Severity.WARNING
        yield _report_missing(name, missing, len(played), severity)


def _report_missing(name: str, missing: Sequence[Episode], num_tasks: int, severity: Severity) -> Finding:
    return Finding(
        rule="data.unanswerable",
        severity=severity,
        symptom=f"{name or 'The answer'!r} is shown nowhere in {len(missing)} of {num_tasks} tasks: "
        f"{_shown(missing[0].reference, name)} appears in no prompt and no tool result of task "
        f"{missing[0].reference.task.id}.",
        evidence={
            "part": name,
            "tasks": {o.reference.task.id: (o.reference.parts or {}).get(name) for o in missing[:NUM_SHOWN]},
        },
        change="Let a tool return the value, name the possible values in the prompt, or do not score this part.",
        confirm="The values appear in a prompt or a tool result.",
    )


def _evidence(one: Episode, copied: Episode | None) -> str:
    messages = [*one.trajectory.messages, *(() if copied is None else copied.trajectory.messages)]
    return f" {_spoken(' '.join(get_text(message) for message in messages if message.get('role') != 'assistant'))} "


async def imbalance(subject: Subject) -> Iterable[Finding]:
    """No single answer is correct for 60 % or more of the tasks.

    The best constant answer is a policy, and training finds it first. The rule reports the share of the training tasks
    for which this answer is correct, and its score, measured with the tool loop. Balance the tasks by their answers, or
    measure success separately for each answer.
    """
    references = await find_references(subject)
    # If only actions are graded, no last message is right or wrong.
    if references is None or not references.by_task or Aspect.MESSAGE not in references.graded:
        return []
    expected = [
        canonical(dict(reference.parts)) if reference.parts else get_text(reference.answer)
        for reference in references.by_task.values()
    ]
    _, count = find_most_frequent(expected)
    share = count / len(expected)
    scores = [one.score for one in await get_episodes(subject, "most frequent answer") if one.score is not None]
    score = fmean(scores) if scores else None
    if len(expected) < FEWEST or share < UNBALANCED or score == 0:
        return []
    return [_report_imbalance(references, expected, share, score)]


def _report_imbalance(
    references: ReferenceEpisodes, expected: Sequence[str], share: float, score: float | None
) -> Finding:
    best, _ = find_most_frequent(expected)
    shares = {name: find_most_frequent(values) for name, values in references.labels().items()}
    return Finding(
        rule="data.imbalance",
        severity=Severity.ERROR if share >= CONSTANT else Severity.WARNING,
        symptom=f"One answer is right for {share:.0%} of {len(expected)} training tasks: {clip(str(best), 80)}; "
        f"always giving this answer "
        f"scores {'-' if score is None else f'{score:.2f}'}.",
        evidence={
            "answer": best,
            "share": share,
            "score": score,
            "tasks": len(expected),
            "answers": dict(Counter(expected).most_common(10)),
            "parts": {name: {"value": value, "share": num / len(expected)} for name, (value, num) in shares.items()},
        },
        change="Use about the same number of tasks for every answer, in training and in evaluation.",
        confirm=f"The best constant answer is right for less than {UNBALANCED:.0%}.",
    )


def _shown(reference: ReferenceEpisode, name: str) -> str:
    return json.dumps((reference.parts or {}).get(name), ensure_ascii=False, default=str)


async def _prompts(subject: Subject, references: ReferenceEpisodes) -> dict[str, str]:
    """Return the prompts of the sampled tasks, keyed by task id, for as many tasks as can be reset in a few seconds."""
    began, prompts = time.monotonic(), {}
    shuffled = random.Random(0).sample(list(references.by_task.values()), min(200, len(references.by_task)))
    with subject.timing.as_far_as_it_goes():
        for reference in shuffled:
            if len(prompts) >= FEWEST and time.monotonic() - began > PROMPT_SECONDS:
                break
            prompts[reference.task.id] = await get_prompt(subject, reference.task)
    return prompts
