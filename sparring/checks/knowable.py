"""What a policy may find out in a task whose calls no expert shows: what tools say when they are asked for all that is named."""

from __future__ import annotations

from collections.abc import Sequence

from sparring.checks.calls import answers
from sparring.checks.paging import walks
from sparring.checks.subject import Subject
from sparring.checks.survey import reading_tools, surveyed
from sparring.types import Task

TIMES_ASKED = 4
"""How often a tool is asked the same, to see whether it says the same."""


async def all_said(subject: Subject, task: Task) -> str:
    """What tools say of all that is named, page by page: no expert shows which calls give the answer."""
    said = [one.result.content for one in (await surveyed(subject, task)).said]
    said += [page.result.content for walk in await walks(subject, task) for page, _ in walk.pages]
    return " ".join(said)


async def is_asked_out(subject: Subject, task: Task) -> bool:
    """Whether all tools that read found something in a task, and say it again when they are asked again."""
    survey = await surveyed(subject, task)
    for tool in await reading_tools(subject):
        found = survey.found(tool)
        if not found:
            return False
        calls = [*survey.opening, *[found[0].call] * TIMES_ASKED]
        if len({one.content for one in (await answers(subject, task, calls))[len(survey.opening) :]}) > 1:
            return False
    return True


def is_made_of(value: str, words: Sequence[str]) -> bool:
    """Whether a policy may have made a text of words: of parts of them, joined, reversed, in another order, of their first
    letters, or of numbers that it computed."""
    whole, letters = "".join(words), "".join(value.split())
    parts = {word for word in words if 1 < len(word) <= len(letters)}
    orders = {"".join(sorted(word)) for word in parts}
    ends = {0}
    for end in range(1, len(letters) + 1):
        if any(letters[start:end] in parts for start in ends):
            ends.add(end)
    return (
        letters in whole
        or letters[::-1] in whole
        or "".join(sorted(letters)) in orders
        or len(letters) in ends
        or letters in "".join(word[0] for word in words)
        or all(word.isdecimal() or word in words for word in value.split())
    )
