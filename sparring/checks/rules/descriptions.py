"""Rule on descriptions: they must be correct about the default of an argument, the maximum number of rows, and the
digits of a number."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.arguments import fit_to_schema
from sparring.checks.evidence.explore import Call, explore_task, is_refusal
from sparring.checks.evidence.legal_calls import leaves, run_calls
from sparring.checks.evidence.promised_attempts import find_broken_promises, find_promise
from sparring.checks.evidence.returned_rows import count_decimals
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.survey import CallResult, choose_num_tasks, find_reading_tools, survey_steady_tools
from sparring.environments import ToolResult
from sparring.findings import Finding, Severity
from sparring.types import Json, Task

AGAIN = "Run `sparring check RECIPE --only environment` again: the finding is gone."
NUM_TASKS = 3
FEWEST = 2
"""The number of results for which a description must be false before the rule reports it."""
_LEFT_OUT = r"(?:left out|omitted|not (?:given|set|specified|provided)|missing|unset|empty|absent)"
_VALUE = r"[`'\"]?(-?\d+(?:\.\d+)?|true|false|[A-Za-z_][\w-]*)[`'\"]?"
_DEFAULTS = tuple(
    re.compile(rf"(?={pattern})", re.I)
    for pattern in (
        rf"\bdefaults? (?:to|is|value is|value:|of|=)? ?{_VALUE}",
        rf"\bdefault[:=] ?{_VALUE}",
        rf"(?<![\w.-]){_VALUE}(?: \w+)? (?:by default|(?:is|as|being) the default|\(default\))",
        rf"(?<![\w.-]){_VALUE}(?: \w+)? (?:when|if|where) (?:it is |this is )?{_LEFT_OUT}",
        rf"\b(?:when|if|where) (?:it is |this is )?{_LEFT_OUT},? (?:it is |then )?{_VALUE}",
    )
)
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {word: number for number, word in enumerate(_WORDS, 1)}
_NUMBER = rf"(\d+|{'|'.join(_NUMBERS)})"
_MOST = re.compile(
    rf"\b(?:at most|up to|(?:no|not) more than|maximum of|"
    rf"the (?:first|last|top|best|latest|newest|nearest)(?! one\b)) {_NUMBER}\b",
    re.I,
)
_DIGITS = re.compile(
    rf"\b{_NUMBER} (?:decimals?|decimal places|digits after)\b|\b(to the cent|whole cents|to cents)\b", re.I
)
_OTHER_UNITS = r"\s*(?:%|(?:character|letter|word|digit|line|day|hour|minute|week|month|year|km|mile|euro|cent)s?\b)"
_ISO_DAY = re.compile(r"\bYYYY-MM-DD\b|\byear-month-day\b|\bISO 8601\b|\bas \d{4}-\d\d-\d\d\b")
_OTHER_DAY = re.compile(r"\b\d{1,2}[./]\d{1,2}[./]\d{4}\b|\b\d{4}[./]\d{1,2}[./]\d{1,2}\b")
_PERCENT = re.compile(r"\b(?:in|as|a) percent(?:age)?\b|\bin %", re.I)


async def described(subject: Subject) -> Iterable[Finding]:
    """Descriptions are correct about defaults, arguments, the maximum number of rows, digits, dates and percentages.

    A call without an argument must return the same result as a call with the default that the description names (`4
    when left out`). A call that the prompt or a description shows may only use arguments that the tool has. The rule
    counts the items of lists that are described as `at most 5`, and compares numbers with `two decimals` and dates with
    `YYYY-MM-DD`. If numbers are called percentages, they must not all be fractions of 1. If a prompt promises a number
    of guesses, moves or questions (`you have six guesses`), the episode must not end one call earlier or later, and
    `max_turns` must not be smaller. Correct the code or the description, because the policy believes what it reads.
    """
    return [
        *_unknown_arguments(subject),
        *[one async for one in _defaults(subject)],
        *_beyond_turns(subject),
        *await _attempts(subject),
        *await _broken_descriptions(subject),
        *_fractions(subject, [one for survey in await survey_steady_tools(subject) for one in survey.found()]),
    ]


async def _broken_descriptions(subject: Subject) -> list[Finding]:
    """Return findings on results that contradict the description of their tool."""
    broken: dict[tuple[str, str], list[CallResult]] = defaultdict(list)
    num: dict[str, int] = defaultdict(int)
    reading = set(await find_reading_tools(subject))
    for survey in await survey_steady_tools(subject):
        for one in survey.found():
            if one.call.tool in reading:
                num[one.call.tool] += 1
                for what in _broken(_returns(subject, one.call.tool), one):
                    broken[one.call.tool, what].append(one)
    findings = []
    for (tool, what), seen in broken.items():
        if len(seen) >= FEWEST:
            shown = [{"call": str(one.call), "answer": one.result.content[:200]} for one in seen[:3]]
            findings.append(
                _finding(f"{tool} {what}, in {len(seen)} of {num[tool]} results.", {"tool": tool, "seen": shown}, tool)
            )
    return findings


def _finding(symptom: str, evidence: Mapping[str, Json], tool: str) -> Finding:
    return Finding(
        rule="environment.described",
        severity=Severity.WARNING,
        symptom=symptom,
        evidence=evidence,
        change=f"Correct the code of {tool} or its description, so that they agree.",
        confirm=AGAIN,
    )


def _beyond_turns(subject: Subject) -> Iterator[Finding]:
    """Yield a finding if the prompt promises more guesses, moves or turns than an episode has turns."""
    most = subject.config.environment.max_turns
    promise = find_promise(subject.sample[0])
    if promise is not None and promise[1] > most:
        yield _finding(
            f"The prompt promises {promise[0]!r}, but an episode ends after environment.max_turns = {most}.",
            {"promised": promise[1], "max_turns": most},
            "environment.max_turns",
        )


async def _attempts(subject: Subject) -> list[Finding]:
    """Return findings on episodes that end one call earlier or later than the prompt promises."""
    ended = await find_broken_promises(subject)
    if not ended:
        return []
    one = ended[0]
    shown = [{"task": each.task.id, "call": str(each.call), "calls": each.calls} for each in ended]
    symptom = f"the episode is over after {one.calls} calls of {one.call.tool}, but the prompt promises {one.promised}"
    return [_finding(f"{symptom} ({one.promise!r}).", {"tool": one.call.tool, "seen": shown}, one.call.tool)]


def _unknown_arguments(subject: Subject) -> Iterator[Finding]:
    """Yield findings on calls in the prompt and in descriptions with arguments that the tool does not have."""
    texts = {"The prompt": "\n".join(get_text(message) for message in subject.sample[0].messages)}
    texts |= {f"The description of {name}": _written(subject, name) for name in subject.tools}
    for name, tool in subject.tools.items():
        known = tool.schema["function"].get("parameters", {}).get("properties", {})
        for where, text in texts.items():
            shown = re.findall(rf"(?<![\w.]){re.escape(name)}\(([^()\n]{{1,200}})\)", text)
            unknown = {one for call in shown for one in re.findall(r"(?:^|, ?)(\w+) ?=(?!=)", call)} - set(known)
            if unknown:
                yield _finding(
                    f"{where} shows {name} with {', '.join(sorted(unknown))}, which the tool does not take.",
                    {"tool": name, "unknown": sorted(unknown), "arguments": sorted(known)},
                    name,
                )


def _written(subject: Subject, tool: str) -> str:
    """Return the description of a tool and of its arguments."""
    function = subject.tools[tool].schema["function"]
    parts = function.get("parameters", {}).get("properties", {}).values()
    return "\n".join([str(function.get("description", "")), *(str(one.get("description", "")) for one in parts)])


def _returns(subject: Subject, tool: str) -> str:
    """Return the description of a tool without the descriptions of its arguments."""
    return str(subject.tools[tool].schema["function"].get("description", ""))


def _broken(text: str, one: CallResult) -> Iterator[str]:
    """Yield each way in which a result contradicts the description of its tool."""
    most, digits = _MOST.search(text), _DIGITS.search(text)
    rows = list(one.listings.values())
    if most is not None and len(rows) == 1 and _counts_rows(text, most):
        number = _number(most[1])
        if len(rows[0]) > number:
            yield f"returns more than {number} rows, the limit in its description ({most[0]!r})"
    other = _OTHER_DAY.search(one.result.content) if _ISO_DAY.search(text) else None
    if other is not None:
        yield f"returns {other[0]!r}, although its description states {_ISO_DAY.search(text)[0]!r}"  # type: ignore[index]
    if digits is not None:
        number = _number(digits[1]) if digits[1] else 2
        long = [value for _, value in leaves(one.value) if isinstance(value, float) and count_decimals(value) > number]
        if long and not rows:
            yield f"returns {long[0]!r}, although its description states {digits[0]!r}"


def _counts_rows(text: str, match: re.Match[str]) -> bool:
    """Return True if a number counts rows: no unit of length, time or text follows it."""
    after = text[match.end() : match.end() + 20].lower()
    return (
        re.match(
            r"\s*(?:characters?|letters?|words?|digits?|days?|hours?|minutes?|weeks?|months?|years?|km|%|lines?)\b",
            after,
        )
        is None
    )


def _number(text: str) -> int:
    return int(text) if text.isdigit() else _NUMBERS[text.lower()]


def _fractions(subject: Subject, results: Sequence[CallResult]) -> Iterator[Finding]:
    """Yield findings on tools whose numbers are called percentages, but are all fractions of 1."""
    numbers: dict[str, list[tuple[Call, float]]] = defaultdict(list)
    for one in results:
        for name, value in one.fields.items():
            if isinstance(value, float) and (not name or len(one.fields) == 1 or re.search("percent|pct", name)):
                numbers[one.call.tool].append((one.call, value))
    for tool, seen in numbers.items():
        values = {value for _, value in seen}
        if (
            len(values) >= 3
            and _PERCENT.search(_returns(subject, tool))
            and all(0 <= abs(value) <= 1 for value in values)
        ):
            shown = [{"call": str(call), "answer": value} for call, value in seen[:3]]
            yield _finding(
                f"{tool} returns fractions such as {seen[0][1]}, although its description states a percentage.",
                {"tool": tool, "seen": shown},
                tool,
            )


async def _defaults(subject: Subject):
    """Return findings on arguments whose omission has a different effect than the description states."""
    for name, tool in subject.tools.items():
        function = tool.schema["function"]
        parameters = function.get("parameters", {})
        properties = parameters.get("properties", {})
        optional = [one for one in properties if one not in parameters.get("required", ())]
        for argument in optional:
            text = str(properties[argument].get("description", ""))
            text += f" {_returns(subject, name)}" if len(optional) == 1 else ""
            value = _named_default(text, properties[argument])
            if value is not None:
                finding = await _compared(subject, name, argument, value)
                if finding is not None:
                    yield finding


def _named_default(text: str, schema: Mapping[str, Json]) -> Json | None:
    """Return the default that a description names, in the schema's type, or None if it names no default or several."""
    found = {match[1] for pattern in _DEFAULTS for match in pattern.finditer(text)}
    choices = schema.get("enum")
    values = []
    for one in found:
        known = {"true": True, "false": False}.get(one.lower())
        value = known if known is not None and schema.get("type") == "boolean" else fit_to_schema(one, schema)
        is_word = isinstance(value, str) and not re.search(rf"[`'\"]{re.escape(one)}[`'\"]", text)
        if value is not None and not (is_word and (choices is None or value not in choices)):
            values.append(value)
    return values[0] if len(values) == 1 else None


async def _compared(subject: Subject, tool: str, argument: str, value: Json) -> Finding | None:
    """Return a finding if omitting the argument differs from passing the named default in all conclusive tasks."""
    apart: list[dict[str, Json]] = []
    tasks = subject.sample[: choose_num_tasks(subject, NUM_TASKS)]
    for task in tasks:
        tried = next((one for one in (await explore_task(subject, task)).legal(tool) if one.is_informative), None)
        if tried is None:
            continue
        rest = {name: one for name, one in tried.call.arguments.items() if name != argument}
        calls = [Call(tool, rest), Call(tool, {**rest, argument: value})]
        if any(subject.problem_with(tool, one.arguments) is not None for one in calls):
            return None
        results = [await _asked(subject, task, tried.before, one) for one in (*calls, calls[0])]
        if any(map(is_refusal, results)) or results[0].content != results[2].content:
            continue
        if results[0].content == results[1].content:
            # The results may be equal by chance, for example if there is nothing to choose from.
            continue
        apart.append(_show_difference(task, calls, results))
    if len(apart) < min(FEWEST, len(tasks)):
        return None
    return _finding(
        f"{tool} without {argument!r} returns a different result than with {value!r}, which its description names as the "
        f"default.",
        {"tool": tool, "argument": argument, "default": value, "seen": apart},
        tool,
    )


def _show_difference(task: Task, calls: Sequence[Call], results: Sequence[ToolResult]) -> dict[str, Json]:
    return {
        "task": task.id,
        "without": str(calls[0]),
        "gives": results[0].content[:200],
        "with": str(calls[1]),
        "then_gives": results[1].content[:200],
    }


async def _asked(subject: Subject, task: Task, before: Sequence[Call], call: Call) -> ToolResult:
    return (await run_calls(subject, task, [*before, call]))[-1]
