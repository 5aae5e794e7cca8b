"""Rules on formats: answers in the requested format are rewarded, and held-out tasks resemble the training tasks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, InvalidOperation

from sparring.checks.evidence.answer_forms import canonical, get_text
from sparring.checks.evidence.grading_inputs import replace_last_message
from sparring.checks.evidence.invited_forms import find_refused_forms
from sparring.checks.evidence.listed_choices import find_wrong_choices
from sparring.checks.evidence.placed_tasks import EVALUATED
from sparring.checks.evidence.readable_values import get_user_text
from sparring.checks.evidence.reference_episodes import ReferenceEpisodes, find_references
from sparring.checks.evidence.scripted_episodes import Episode, clip, get_episodes, grade_episode
from sparring.checks.evidence.subject import EXPERT, Subject
from sparring.checks.rules.prompt import find_example, get_prompt
from sparring.environments import answer
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

MOST_TASKS = 12
FEWEST = 2
MOST_LABELS = 12
"""The maximum number of different answers in training tasks that still count as a list of answers, if most of them
occur several times."""
_COUNTS = {"no": 0, "one": 1, "two": 2, "three": 3, "four": 4}
_DIGITS = re.compile(r"\b(no|one|two|three|four|\d) (?:decimals?\b|decimal places?|digits after)", re.I)
_TO_CENTS = re.compile(r"\b(?:to the cent|to cents|whole cents|with (?:the )?cents)\b(?! where)", re.I)
_WHOLE = re.compile(
    r"\b(?:to the nearest (?:integer|whole)|to (?:whole numbers|an integer)|as an? (?:integer|whole number))", re.I
)
_SHOWN = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?")
_LOWER = re.compile(r"\b(?:in|all) (?:lower[ -]?case|small letters)\b", re.I)
_UPPER = re.compile(r"\b(?:in|all) (?:upper[ -]?case|capitals|capital letters|block letters)\b", re.I)
_DAY = re.compile(r"\bYYYY-MM-DD\b|\byear-month-day\b")
_CLOCK = re.compile(r"\bhh:mm\b", re.I)
Rewrite = Callable[[str], str | None]


async def form(subject: Subject) -> Iterable[Finding]:
    """The correct answer is rewarded when it is written as the prompt requests.

    The prompt may specify a format (`two decimals`, `to the cent`, `to the nearest integer`, `in lower case`,
    `YYYY-MM-DD`, `hh:mm`), or show a number in its example of an answer (`EUR 1,284.50`). The rule then writes correct
    answers in that format and grades them. It warns if the scorer rejects them, because a policy that follows the
    prompt is then graded as wrong. It also warns if the prompt lists the answers (`red, green or blue`) and a reference
    answer is not one of them. In addition, it warns if the prompt requests a percentage although all reference answers
    are fractions of 1. The rule also grades variants of the correct answers: after a line of reasoning, in a different
    order or case if the prompt allows this, and in the spelling of the tools if they show only one. Write the reference
    answers in the format that the prompt requests, or compare numbers as numbers.
    """
    references = await find_references(subject)
    right = await get_episodes(subject, EXPERT) if references is not None else []
    if references is None or not right or not references.labels():
        return []
    others: list[Finding] = [*await _not_offered(subject, references), *await _fractions(subject, references)]
    found = await _find_rejected(subject, references, right[:MOST_TASKS])
    others += [
        *find_wrong_choices(references),
        *await _contradicted(subject, references),
        *await find_refused_forms(subject, references, right),
    ]
    return others + [_report_rejected(phrase, shown) for phrase, shown in found.items() if len(shown) >= FEWEST]


async def _find_rejected(
    subject: Subject, references: ReferenceEpisodes, right: Sequence[Episode]
) -> dict[str, list[dict[str, Json]]]:
    """Return evidence on right answers in a requested form that the scorer rejects, keyed by the words of the prompt
    that request the form."""
    found: dict[str, list[dict[str, Json]]] = {}
    for one in right:
        prompt = await get_prompt(subject, one.reference.task)
        for phrase, rewrite in (*_forms(prompt), *_as_shown(prompt, references)):
            shown = await _rejected(subject, references, one, rewrite)
            if shown is not None:
                found.setdefault(phrase, []).append(shown)
    return found


def _report_rejected(phrase: str, shown: Sequence[dict[str, Json]]) -> Finding:
    return Finding(
        rule="prompt.form",
        severity=Severity.WARNING,
        symptom=f"The prompt requests {phrase!r}, but the scorer rejects right answers in this form: "
        f"{clip(str(shown[0]['written']), 80)!r} although {clip(str(shown[0]['right']), 80)!r} is right.",
        evidence={"asked_for": phrase, "tasks": shown[:4]},
        change="Write the reference answers in the form of the prompt, compare numbers as numbers, or change the "
        "prompt.",
        confirm="A right answer in the form of the prompt scores 1.",
    )


_LIST = re.compile(r"[\w-]+(?: [\w-]+)?(?:, ?[\w-]+(?: [\w-]+)?)+,? (?:or|and) [\w-]+", re.I)
_PERCENT = re.compile(r"(?:\bper ?cents?\b|\bpercentages?\b|%)", re.I)
_NEAR = 40
"""The maximum number of characters between the name of a part and its description in the prompt."""


async def _not_offered(subject: Subject, references: ReferenceEpisodes) -> list[Finding]:
    """Return a finding on reference answers that the prompt does not list although it lists all other answers."""
    findings = []
    for part, values in references.labels().items():
        labels = Counter(value.casefold() for value in values if isinstance(value, str))
        if len(labels) < 3 or len(labels) > MOST_LABELS or sum(labels.values()) < len(values):
            continue
        prompt = await get_prompt(subject, subject.sample[0])
        for found in _LIST.finditer(" ".join(prompt.split())):
            offered = re.split(r",? (?:or|and) |, ?", found[0].casefold())
            # The first item may include preceding words of the sentence.
            offered += [one.rpartition(" ")[2] for one in offered[:1]]
            missing = [one for one in labels if one not in offered]
            known = [one for one in labels if one in offered]
            if missing and len(known) >= max(2, len(missing) * 2) and len(known) >= len(offered) - 2:
                findings.append(_report_not_offered(part, found[0], labels, missing))
                break
    return findings


def _report_not_offered(part: str, listed: str, labels: Mapping[str, int], missing: Sequence[str]) -> Finding:
    shown = f"{labels[missing[0]]} tasks have the answer {missing[0]!r}"
    return Finding(
        rule="prompt.form",
        severity=Severity.WARNING,
        symptom=f"The prompt lists the answers, {clip(listed, 80)!r}, and {shown}, which the list lacks.",
        evidence={
            "part": part,
            "listed": listed,
            "answers": dict(labels),
            "not_listed": list(missing),
        },
        change=f"Name {missing[0]!r} in the prompt, or give these tasks an answer that it names.",
        confirm="Every reference answer is one that the prompt lists.",
    )


async def _fractions(subject: Subject, references: ReferenceEpisodes) -> list[Finding]:
    """Return a finding on answers that the prompt calls percentages, but that are all fractions of 1."""
    findings = []
    prompt = " ".join((await get_prompt(subject, subject.sample[0])).split())
    for part, values in references.labels().items():
        try:
            numbers = {float(value) for value in values if isinstance(value, str | int | float)}
        except ValueError:
            continue
        is_asked = any(_PERCENT.search(one) for one in _find_mentions(part, prompt)) and not re.search(
            r"(?i)fraction|between 0 and 1|0 to 1", prompt
        )
        if is_asked and len(numbers) > 2 and all(0 <= one <= 1 for one in numbers):
            findings.append(
                Finding(
                    rule="prompt.form",
                    severity=Severity.WARNING,
                    symptom=f"The prompt requests a percentage, but all reference "
                    f"answers{f' of {part!r}' if part else ''} are "
                    f"fractions of 1, such as {max(numbers)!r}.",
                    evidence={"part": part, "answers": sorted(numbers)[:6]},
                    change="Multiply the reference answers by 100, or request a fraction.",
                    confirm="Reference answers have the unit that the prompt names.",
                )
            )
    return findings


def _find_mentions(part: str, prompt: str) -> list[str]:
    """Return the passages of a prompt that describe one field of the answer, or the whole answer if there is no field."""
    if part:
        named = re.finditer(rf"\b{re.escape(part)}\b", prompt)
        return [prompt[found.start() : found.end() + _NEAR * 2] for found in named]
    return re.findall(r"(?i)[^.?!]*\b(?:answer|reply|finish|end|what|how)\b[^?!]*", prompt)


def _forms(prompt: str) -> Iterator[tuple[str, Rewrite]]:
    """Yield the formats that a prompt names. Each format comes with a function that rewrites a string in this format,
    or returns None."""
    digits = {match[0]: _COUNTS.get(match[1].lower()) for match in _DIGITS.finditer(prompt)}
    digits |= {match[0]: 2 for match in _TO_CENTS.finditer(prompt)}
    numbers = {int(phrase.split()[0]) if number is None else number for phrase, number in digits.items()}
    if len(numbers) == 1:
        (number,) = numbers
        yield next(iter(digits)), lambda text: _rounded(text, number)
    for pattern, rewrite in (
        (_WHOLE, lambda text: _rounded(text, 0)),
        (_LOWER, str.lower),
        (_UPPER, str.upper),
        (_DAY, _as_day),
        (_CLOCK, _as_clock),
    ):
        match = pattern.search(prompt)
        if match is not None and not (pattern is _LOWER and _UPPER.search(prompt)):
            yield match[0], rewrite


async def _contradicted(subject: Subject, references: ReferenceEpisodes) -> list[Finding]:
    """Return a finding on an example answer that is not in the format requested by the prompt."""
    prompt = await get_prompt(subject, subject.sample[0])
    shown = find_example([{"role": "user", "content": prompt}], references)
    parts = None if shown is None else references.form.parts(answer(shown))
    found = []
    for phrase, rewrite in _forms(prompt):
        for value in (parts or {}).values():
            written = rewrite(value) if isinstance(value, str) else None
            if written is not None and written != value and not re.search(r"\.\.\.|[<{\[]", value):
                found.append(
                    Finding(
                        rule="prompt.form",
                        severity=Severity.WARNING,
                        symptom=f"The prompt requests {phrase!r}, but its own example of an answer is {value!r}, "
                        f"which should be "
                        f"{written!r}.",
                        evidence={"asked_for": phrase, "example": shown, "in_the_form": written},
                        change="Write the example in the form that the prompt requests.",
                        confirm="The example in the prompt has the form that the prompt requests.",
                    )
                )
    return found[:1]


def _as_shown(prompt: str, references: ReferenceEpisodes) -> Iterator[tuple[str, Rewrite]]:
    """Yield the format of the number in the example of an answer: the text around the number and between its digits."""
    shown = find_example([{"role": "user", "content": prompt}], references)
    parts = None if shown is None or references.form.is_json else references.form.parts(answer(shown))
    body = str((parts or {}).get("", ""))
    numbers = list(_SHOWN.finditer(body))
    if len(numbers) == 1:
        number = numbers[0]
        yield body, lambda text: _written_like(text, number)


def _written_like(text: str, shown: re.Match[str]) -> str | None:
    """Return a number written like another number: with the same decimals, thousands separators and surrounding
    text."""
    if not re.fullmatch(r"-?\d+(?:\.\d+)?", text):
        return None
    digits, own = (len(one.partition(".")[2]) for one in (shown[0], text))
    number = Decimal(text)
    if digits and (own > digits and number != round(number, digits)):
        return None
    places = digits if shown[0].endswith("0") and digits else own  # the prompt does not require more decimals
    written = f"{number:{',' if ',' in shown[0] else ''}.{places}f}"
    return shown.string[: shown.start()] + written + shown.string[shown.end() :]


def _rounded(text: str, digits: int) -> str | None:
    if not re.fullmatch(r"-?\d+(?:\.\d+)?", text):
        return None
    try:
        number, step = Decimal(text), Decimal(1).scaleb(-digits)
        up, even = (number.quantize(step, rounding=one) for one in (ROUND_HALF_UP, ROUND_HALF_EVEN))
    except InvalidOperation:
        return None
    return f"{up:f}" if up == even else None


def _as_day(text: str) -> str | None:
    match = re.fullmatch(r"(\d{4})[/.](\d\d?)[/.](\d\d?)", text) or re.fullmatch(r"(\d{4})-(\d\d?)-(\d\d?)", text)
    return None if match is None else f"{match[1]}-{int(match[2]):02}-{int(match[3]):02}"


def _as_clock(text: str) -> str | None:
    match = re.fullmatch(r"(\d\d?):(\d\d)(?::00)?", text)
    return None if match is None else f"{int(match[1]):02}:{match[2]}"


async def _rejected(
    subject: Subject, references: ReferenceEpisodes, one: Episode, rewrite: Rewrite
) -> dict[str, Json] | None:
    """Return the correct answer in the format that the prompt requests, if its text differs and the scorer rejects
    it."""
    parts = one.reference.parts or {}
    written: dict[str, Json] = {}
    for name, value in parts.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            continue
        changed = rewrite(str(value))
        if changed is not None and changed != str(value):
            written[name] = changed if isinstance(value, str) else float(changed) if "." in changed else int(changed)
    if (
        not written
        or one.score is None
        or one.score < 1.0
        or all(canonical(written[key]) == canonical(parts[key]) for key in written)
    ):
        return None
    message = references.form.message({**parts, **written})
    again = await grade_episode(
        subject, references, "form", one.reference, replace_last_message(one.trajectory, message)
    )
    if again.score is None or again.score >= 1.0:
        return None
    return {
        "task": one.reference.task.id,
        "written": get_text(message) or canonical(written),
        "right": get_text(one.reference.answer),
    }


async def split(subject: Subject) -> Iterable[Finding]:
    """Validation and held-out tasks are of the same kinds as the training tasks.

    The rule warns if the answers come from a small set of labels, and evaluated tasks have labels that no training task
    has. It also warns if the prompts of all evaluated tasks have words that no training prompt has, and vice versa. The
    evaluation then measures the effect of splitting the tasks by order or by kind, and not what was learned. Draw the
    splits at random from each kind of task.
    """
    train = [*subject.tasks.train]
    references = await find_references(subject)
    findings = []
    for name in EVALUATED:
        tasks = list(getattr(subject.tasks, name))
        if len(train) < 8 or len(tasks) < 4:
            continue
        findings += [*_other_answers(references, name, train, tasks), *_other_words(name, train, tasks)]
    return findings


def _other_answers(
    references: ReferenceEpisodes | None, name: str, train: Sequence[Task], tasks: Sequence[Task]
) -> Iterator[Finding]:
    """Return a finding on answers that no training task has, if the answers come from a small set of labels."""
    graded_by = sorted({path[0] for path in references.read}) if references is not None else []
    for field in graded_by:
        for key, known in _labels(train, field).items():
            is_list = len(known) <= MOST_LABELS and sum(known.values()) >= 4 * len(known)
            others = Counter(
                {label: n for label, n in _labels(tasks, field).get(key, Counter()).items() if label not in known}
            )
            if is_list and sum(others.values()) >= FEWEST and len(others) <= MOST_LABELS / 2:
                yield Finding(
                    rule="data.split",
                    severity=Severity.WARNING,
                    symptom=f"{sum(others.values())} of the {len(tasks)} tasks of {name} have answers that no "
                    f"training task has: "
                    f"{', '.join(list(others)[:3])}.",
                    evidence={
                        "split": name,
                        "field": field,
                        "part": key,
                        "answers": dict(others),
                        "trained": dict(known),
                    },
                    change="Draw the splits at random from tasks with every answer.",
                    confirm="Each answer of the evaluated tasks is also the answer of a training task.",
                )


def _labels(tasks: Sequence[Task], field: str) -> dict[str, Counter[str]]:
    """Count, for each part of the field, how often each text is its value. Names of items in the task's data are left
    out."""
    found: dict[str, Counter[str]] = {}
    for task in tasks:
        value = task.fields.get(field)
        data = canonical([one for name, one in task.fields.items() if name != field])
        for key, one in value.items() if isinstance(value, Mapping) else [("", value)]:
            if isinstance(one, str) and not any(map(str.isdigit, one)) and one not in data:
                found.setdefault(str(key), Counter())[one] += 1
    return found


def _other_words(name: str, train: Sequence[Task], tasks: Sequence[Task]) -> Iterator[Finding]:
    """Yield a finding if all prompts of a split have words that no training prompt has, or vice versa."""
    own, trained = (
        [set(re.findall(r"[^\W\d_]{3,}", get_user_text(task).lower())) for task in those] for those in (tasks, train)
    )
    only_own = set.intersection(*own) - set.union(*trained)
    only_trained = set.intersection(*trained) - set.union(*own)
    if len(only_own) >= FEWEST and len(only_trained) >= FEWEST:
        yield Finding(
            rule="data.split",
            severity=Severity.WARNING,
            symptom=f"The prompts of {name} are worded differently from the training prompts: all contain "
            f"{', '.join(sorted(only_own)[:4])}, and none contains {', '.join(sorted(only_trained)[:4])}.",
            evidence={"split": name, "prompt": clip(get_user_text(tasks[0])), "trained": clip(get_user_text(train[0]))},
            change="Draw the splits at random from tasks of every wording, unless you want to measure another wording.",
            confirm="Prompts of both splits share their words.",
        )
