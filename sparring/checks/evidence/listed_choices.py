"""Findings on prompts that list choices: the reference answer is not listed, is listed twice, or is always in the same
place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.field_paths import list_paths
from sparring.checks.evidence.invited_forms import normalize_value
from sparring.checks.evidence.readable_values import get_user_text
from sparring.checks.evidence.reference_episodes import ReferenceEpisodes
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

FEWEST = 2
MOSTLY = 0.6
"""If the answer is one of the choices in at least this share of tasks, the other tasks count as wrong."""
FEWEST_PLACED = 10
"""The minimum number of tasks with the answer in the same place before the rule reports them."""
ALWAYS = 0.9
_LINE = re.compile(r"(?m)^[ \t]*(?:[-*] ?)?\(?([A-Za-z]|\d{1,2})[.):]\)?[ \t]+(\S.*?)[ \t]*$")
_INLINE = re.compile(r"(?<![\w(])\(?([A-H]|[1-9])\)[ ]?(\S.*?)(?=[,;]?\s+\(?(?:[A-H]|[1-9])\)|[.?]?\s*$|\n)")


_ASKS_TO_CHOOSE = re.compile(
    r"\b(?:which|who of|choose|choices?|options?|select|pick|one of|among|candidates?|letter|number of the)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Choices:
    """The choices that a task lists, in order, with their marks if they have any."""

    task: Task
    label: str
    marks: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def place(self) -> int | None:
        """The index of the reference answer among the choices, or None if it is not listed."""
        for known in (self.marks, self.texts):
            found = [index for index, one in enumerate(known) if normalize_value(one) == normalize_value(self.label)]
            if found:
                return found[0]
        return None

    @property
    def shown(self) -> dict[str, Json]:
        listed = (
            [f"{mark}) {text}" for mark, text in zip(self.marks, self.texts, strict=True)]
            if self.marks
            else list(self.texts)
        )
        return {"task": self.task.id, "listed": listed[:12], "reference_answer": self.label}


def find_wrong_choices(references: ReferenceEpisodes) -> list[Finding]:
    """Return findings on the listed choices. Only answers with one part are compared."""
    listed = [
        one
        for reference in references.by_task.values()
        if len(reference.parts or {}) == 1
        for one in _find_choices(reference.task, reference.parts or {})
    ]
    known = [one for one in listed if one.place is not None]
    if len(known) < max(FEWEST, MOSTLY * len(references.by_task)):
        return []
    return [*_find_missing(listed), *_find_doubled(known), *_find_in_one_place(known)]


def _find_choices(task: Task, parts: Mapping[str, Json]) -> Iterator[_Choices]:
    """Yield the choices that the prompt of a task marks. Without marks, yield the values of a field if all of them are
    in the prompt."""
    label, text = str(next(iter(parts.values()))), get_user_text(task)
    if not _ASKS_TO_CHOOSE.search("\n".join(map(get_text, task.messages))):
        return
    for pattern in (_LINE, _INLINE):
        found = _find_sequence(pattern.findall(text))
        if len(found) > 1:
            yield _Choices(task, label, tuple(mark for mark, _ in found), tuple(one for _, one in found))
            return
    for value in list_paths(task).values():
        if (
            isinstance(value, list | tuple)
            and len(value) > 2
            and all(isinstance(one, str | int | float) for one in value)
        ):
            texts = tuple(map(str, value))
            if all(one in text for one in texts) and normalize_value(label) in map(normalize_value, texts):
                yield _Choices(task, label, (), texts)
                return


def _find_sequence(found: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the last sequence of consecutive marks."""
    run: list[tuple[str, str]] = []
    for mark, text in found:
        follows = run and (
            ord(mark) == ord(run[-1][0]) + 1
            if mark.isalpha() and run[-1][0].isalpha()
            else mark.isdigit() and run[-1][0].isdigit() and int(mark) == int(run[-1][0]) + 1
        )
        run = [*run, (mark, text)] if follows else [(mark, text)]
    return run


def _find_missing(listed: Sequence[_Choices]) -> Iterator[Finding]:
    lost = [one for one in listed if one.place is None]
    if len(lost) >= FEWEST:
        yield _make_finding(
            f"The reference answers of {len(lost)} of {len(listed)} tasks are not among the choices that their prompts "
            f"list: {lost[0].label!r} in task {lost[0].task.id}.",
            lost,
            "Number choices and reference answers from the same start, or list the right answer.",
        )


def _find_doubled(known: Sequence[_Choices]) -> Iterator[Finding]:
    twice = [one for one in known if one.marks and _times(one) > 1]
    if twice:
        yield _make_finding(
            f"The right choice is listed twice in {len(twice)} of {len(known)} tasks, but only one of the two is "
            f"marked right, for example in task {twice[0].task.id}.",
            twice,
            "List each choice once.",
        )


def _times(one: _Choices) -> int:
    assert one.place is not None
    return [text.casefold() for text in one.texts].count(one.texts[one.place].casefold())


def _find_in_one_place(known: Sequence[_Choices]) -> Iterator[Finding]:
    """Yield findings on choices without marks. With marks, a fixed place means that the same answer is correct in most
    tasks, which another rule reports."""
    those = [one for one in known if not one.marks and list(one.texts) != sorted(one.texts)]
    for name, places in (
        ("first", [one.place == 0 for one in those]),
        ("last", [one.place == len(one.texts) - 1 for one in those]),
    ):
        if len(those) >= FEWEST_PLACED and sum(places) >= ALWAYS * len(those):
            yield _make_finding(
                f"The right choice is the {name} one in the list in {sum(places)} of {len(those)} tasks.",
                those,
                "Shuffle the choices of each task, with a generator seeded by the task.",
            )


def _make_finding(symptom: str, seen: Sequence[_Choices], change: str) -> Finding:
    return Finding(
        rule="prompt.form",
        severity=Severity.WARNING,
        symptom=symptom,
        evidence={"tasks": [one.shown for one in seen[:4]]},
        change=change,
        confirm="Run `sparring check RECIPE --only prompt` again: the finding is gone.",
    )
