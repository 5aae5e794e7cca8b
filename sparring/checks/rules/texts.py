"""Rule on texts: policies must be able to understand what the tools return."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator

from sparring.checks.evidence.explore import Explored
from sparring.checks.evidence.legal_calls import leaves
from sparring.checks.evidence.returned_rows import parse_result
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import survey_tasks
from sparring.findings import Finding, Severity
from sparring.types import Json

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
_UNREADABLE = {
    "the address of an object": re.compile(r"<[\w.]+(?: object)? at 0x[0-9a-f]+>"),
    "an empty value of Python or pandas": re.compile(
        r"(?:[:=|(\[]\s*|\bis |\bof |, |^)(?:None|nan|NaN|NaT|<NA>|inf|undefined)(?=\s*(?:[.,;!?)\]|]|$|\n))"
    ),
    "characters that were decoded wrongly": re.compile("�|Ã[\x80-\xbf©¨¤¶¼]|â€[™œ“”\x9d]|Â[\xa0°»«]"),
    "HTML entities": re.compile(r"&(?:amp|lt|gt|quot|nbsp|apos|#\d{2,4});"),
    "escaped characters": re.compile(r"\\u[0-9a-fA-F]{4}|\\n\S"),
    "a placeholder that was not filled in": re.compile(r"(?<![\w${])\{[a-z_][a-z_0-9.]*\}(?!\})|(?<!\w)%[sd](?!\w)"),
    "a traceback": re.compile(r"Traceback \(most recent call last\)|^\s+File \"/", re.MULTILINE),
}
_NAMED = re.compile(r"\b(?:use|call|try|with|via|see|from|as in|using|run)\s+[`'\"]?([a-z]+(?:_[a-z]+)+)\b(?:\(\))?")
ALIKE = 0.5


async def texts(subject: Subject) -> Iterable[Finding]:
    """Tool results and descriptions are readable and name only tools that exist.

    The rule searches results for accidental program output: addresses of objects, `None` and `nan` in place of a value,
    wrongly decoded characters, HTML entities, escaped characters, placeholders, tracebacks, and JSON that is encoded
    twice. If a result or a description refers the policy to a tool, this tool must exist. Each defect costs turns, or
    teaches the policy to repeat it.
    """
    found: dict[tuple[str, str], list[dict[str, Json]]] = {}
    for task, call, content in await _results(subject):
        tool = call.partition("(")[0]
        for what, where in _unreadable(content):
            if where not in call:
                found.setdefault((tool, what), []).append(
                    {"task": task, "call": call, "in": where, "answer": content[:200]}
                )
        for name in _unknown_tools(subject, content):
            found.setdefault((tool, f"the name of the tool {name!r}, which does not exist"), []).append(
                {"task": task, "call": call, "answer": content[:200], "tools": list(subject.tools)}
            )
    findings = [_finding(f"{tool} returns {what}", seen) for (tool, what), seen in found.items()]
    for name, tool in subject.tools.items():
        for other in _unknown_tools(subject, json.dumps(tool.schema, ensure_ascii=False)):
            seen: list[dict[str, Json]] = [
                {"description": tool.schema["function"].get("description"), "tools": list(subject.tools)}
            ]
            findings.append(_finding(f"the description of {name} names the tool {other!r}, which does not exist", seen))
    return findings


def _finding(symptom: str, seen: list[dict[str, Json]]) -> Finding:
    return Finding(
        rule="environment.texts",
        severity=Severity.WARNING,
        symptom=f"{symptom}" + (f", in {len(seen)} calls." if len(seen) > 1 else "."),
        evidence={"seen": seen[:4]},
        change="Write the value as a person would write it, and leave out missing values.",
        confirm=AGAIN,
    )


async def _results(subject: Subject) -> list[tuple[str, str, str]]:
    """Return the task, the call and the content of every tool result so far that is not an error."""
    seen = [(s.task.id, str(one.call), one.result) for s in await survey_tasks(subject) for one in s.results]
    for task in subject.shared.get("explored", {}).values():
        if isinstance(task, Explored):
            seen += [(task.task.id, str(one.call), one.result) for one in task.tried]
    return list(
        {(task, call): (task, call, result.content) for task, call, result in seen if result.error is None}.values()
    )


def _unreadable(content: str) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a result, and the text that shows it."""
    value = parse_result(content)
    if isinstance(value, str) and content[:1] == '"' and isinstance(parse_result(value), dict | list):
        yield "JSON that is encoded twice", value[:60]
    parts = [one for _, one in leaves(value) if isinstance(one, str)]
    for what, pattern in _UNREADABLE.items():
        match = next((match for part in parts if (match := pattern.search(part))), None)
        if match is not None:
            yield what, match[0].strip(" :=|([,")


def _unknown_tools(subject: Subject, text: str) -> Iterator[str]:
    """Yield the names in a string that resemble the name of a tool, but do not match any."""
    known = {*subject.tools, *(name for tool in subject.tools.values() for name in tool.hints)}
    for name in dict.fromkeys(_NAMED.findall(text)):
        if name not in known and difflib.get_close_matches(name, subject.tools, n=1, cutoff=ALIKE):
            yield name
