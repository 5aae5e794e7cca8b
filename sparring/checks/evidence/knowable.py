"""The results that a policy can see if the recipe has no expert: the results of calls with every known name."""

from __future__ import annotations

from collections.abc import Sequence

from sparring.checks.evidence.legal_calls import run_calls
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import find_reading_tools, survey_task
from sparring.checks.rules.paging import walk_pages
from sparring.types import Task

TIMES_ASKED = 4
"""The number of times to repeat a call to test whether its result stays the same."""


async def read_all(subject: Subject, task: Task) -> str:
    """Return the text of all results of the read-only tools, including all pages. Without an expert, it is unknown
    which calls give the answer."""
    texts = [one.result.content for one in (await survey_task(subject, task)).results]
    texts += [page.result.content for walk in await walk_pages(subject, task) for page, _ in walk.pages]
    return " ".join(texts)


async def is_asked_out(subject: Subject, task: Task) -> bool:
    """Return True if all read-only tools found something in a task, and return the same result when a call is
    repeated."""
    survey = await survey_task(subject, task)
    for tool in await find_reading_tools(subject):
        found = survey.found(tool)
        if not found:
            return False
        calls = [*survey.opening, *[found[0].call] * TIMES_ASKED]
        if len({one.content for one in (await run_calls(subject, task, calls))[len(survey.opening) :]}) > 1:
            return False
    return True


def is_made_of(value: str, words: Sequence[str]) -> bool:
    """Return True if a policy may have derived a string from words. The string may consist of parts of them (joined,
    reversed, or in another order) or of their first letters, or be a number that was computed."""
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
