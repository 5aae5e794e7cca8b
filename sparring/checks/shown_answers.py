"""Does a tool show the reference answer itself: under a name such as `answer`, or out of a file that nothing speaks of?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from sparring.checks.answers import text_of
from sparring.checks.arguments import words_of
from sparring.checks.calls import SLOW_SECONDS, answers
from sparring.checks.explore import Call
from sparring.checks.golds import Gold, Golds
from sparring.checks.rows import parsed
from sparring.checks.scripts import as_text, leaves
from sparring.checks.subject import Subject
from sparring.checks.survey import documented, reading_tools, surveyed
from sparring.findings import Finding, Severity
from sparring.types import Json

NUM_TASKS = 4
FEWEST_TASKS = 2
_ASKED = ("answer", "solution", "expected", "task", "gold", "label", ".", ":", '"')
"""Texts that a search is asked for, the names in the answer apart."""
_ANSWERS = {"answer", "solution", "gold", "groundtruth", "truth"}
"""Words of names under which answers are kept."""
_HIDDEN = re.compile(r"(?:^|[\s/\"'(])(\.[A-Za-z_][\w.-]*|__?[a-z][\w.-]*)(?=[:\"'\s)/]|$)")
_OF_A_RECORD = 3
"""Fields of a result that is more than a question and its answer."""
_WINDOW = 160
"""Characters after a name in which the whole answer must stand."""


async def shown_answers(subject: Subject, golds: Golds) -> list[Finding]:
    """Tools that show the whole answer of two tasks or more in a place that was not made for the policy."""
    if subject.timing.episode_seconds > SLOW_SECONDS:
        return []
    seen: dict[tuple[str, str], list[dict[str, Json]]] = {}
    reading = await reading_tools(subject)
    for gold in golds.sampled(subject)[:NUM_TASKS]:
        parts = {name: as_text(value) for name, value in (gold.parts or {}).items()}
        secret = {name: value for name, value in parts.items() if len(value) > 1}
        prompt = "\n".join(text_of(message) for message in gold.task.messages)
        if not secret or all(_stands_in(value, prompt) for value in secret.values()):
            continue
        said = await _said(subject, gold, reading, list(secret))
        for tool, where, call, answer in _shown(subject, said, secret):
            shown: dict[str, Json] = {
                "task": gold.task.id,
                "call": call,
                "answer": answer[:300],
                "reference_answer": secret,
            }
            seen.setdefault((tool, where), []).append(shown)
    return [
        Finding(
            rule="data.leak_in_results",
            severity=Severity.WARNING,
            symptom=f"{tool} shows the reference answer of a task, {where}, as {shown[0]['call']} does.",
            evidence={"tool": tool, "seen": shown[:4]},
            change="Keep the answer in the task's fields, and not in the state or the files that tools read.",
            confirm="No result shows the whole answer under such a name.",
        )
        for (tool, where), shown in seen.items()
        if len({str(one["reference_answer"]) for one in shown}) >= FEWEST_TASKS
    ]


async def _said(
    subject: Subject, gold: Gold, reading: Sequence[str], names: Sequence[str]
) -> dict[str, list[tuple[str, str]]]:
    """What the tools that read return, by tool: to the calls of the survey, and to searches for the answer's names."""
    survey = await surveyed(subject, gold.task)
    said: dict[str, list[tuple[str, str]]] = {}
    for one in survey.said:
        if one.result.error is None:
            said.setdefault(one.call.tool, []).append((str(one.call), one.result.content))
    calls = [
        call
        for tool in reading
        if len(subject.tools[tool].required) == 1
        for text in dict.fromkeys((*_ASKED, *names))
        if subject.problem_with(tool, (call := Call(tool, dict.fromkeys(subject.tools[tool].required, text))).arguments)
        is None
    ]
    results = (await answers(subject, gold.task, [*survey.opening, *calls]))[len(survey.opening) :] if calls else []
    for call, result in zip(calls, results, strict=True):
        if result.error is None:
            said.setdefault(call.tool, []).append((str(call), result.content))
    return said


def _shown(
    subject: Subject, said: Mapping[str, Sequence[tuple[str, str]]], secret: Mapping[str, str]
) -> Iterator[tuple[str, str, str, str]]:
    """Tool, where the answer stands, call and result."""
    for tool, results in said.items():
        text = documented(subject, tool)
        is_described = any(word in text for word in _ANSWERS)
        hidden: dict[str, list[tuple[str, str, str]]] = {}
        for call, content in results:
            value = parsed(content)
            if not is_described and (name := _named(value, secret)) is not None:
                yield tool, f"under the name {name!r}", call, content
                break
            for line in (line for leaf in leaves(value) for line in as_text(leaf).splitlines()):
                for match in _HIDDEN.finditer(line):
                    hidden.setdefault(match[1], []).append((line, call, content))
        for name, lines in hidden.items():
            own = [line for line, _, _ in lines]
            stated = [
                (call, content)
                for line, call, content in lines
                if any(
                    re.search(rf"\b{re.escape(part)}\b\W{{1,6}}{re.escape(value)}(?!\w)", line)
                    for part, value in secret.items()
                    if part
                )
            ]
            if (
                stated
                and name not in text
                and all(any(_stands_in(value, line) for line in own) for value in secret.values())
            ):
                yield tool, f"out of {name!r}, of which nothing speaks", *stated[0]
                break


def _named(value: Json, secret: Mapping[str, str], *, is_inner: bool = False) -> str | None:
    """The name such as `answer` under which a result has the whole answer, what is no more than the result itself apart."""
    if isinstance(value, Mapping):
        for name, item in value.items() if is_inner or len(value) >= _OF_A_RECORD else ():
            text = "\n".join(map(as_text, leaves(item)))
            is_whole = all(_stands_in(one, text) for one in secret.values())
            if set(words_of(str(name))) & _ANSWERS and name not in secret and is_whole:
                return str(name)
    if isinstance(value, Mapping | list):
        inner = value.values() if isinstance(value, Mapping) else value
        return next((found for item in inner if (found := _named(item, secret, is_inner=True)) is not None), None)
    if isinstance(value, str):
        for match in re.finditer(r"\b\w*(?:answer|solution|gold|ground_truth)\w*\b\W{1,8}", value, re.IGNORECASE):
            after = value[match.end() : match.end() + _WINDOW]
            if all(_stands_in(one, after) for one in secret.values()):
                return match[0].strip(" :='\"{[(\\")
    return None


def _stands_in(value: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", text) is not None
