"""Rules that compare the training environment with production's schemas and logs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from sparring.checks.evidence.explore import list_expert_calls
from sparring.checks.evidence.schema_comparison import compare_schemas, resolve_references
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.user_inputs import list_calls
from sparring.checks.rules.tools import collect_answers
from sparring.environments.tools import fits
from sparring.findings import Finding, Severity
from sparring.types import Json, ToolSchema

FAR_APART = 0.4
"""The smallest total variation between two mixes that the rule reports: the share of the calls that would have to
change."""
SIZE_FACTOR = 3.0
UNSEEN_SHARE = 0.3
AGAIN = "Run `sparring check RECIPE --only environment` with the same file again: the finding is gone."


async def production_schema(subject: Subject) -> Iterable[Finding]:
    """The tools match those of production: they have the same names, and their arguments take the same values.

    If the production tools are provided (`--schemas FILE`: OpenAI, Anthropic or Bedrock tools, an MCP listing, an
    OpenAPI document), the rule compares the two sets of tools as JSON Schemas. It compares types, enumerations, bounds,
    patterns, formats, unions, defaults, `required` and `additionalProperties`, however they are written. A model that
    trains with different schemas learns calls that production refuses. The rule does not report that production states
    no default, or that it allows null for an argument that may be left out. If type hints cannot express what
    production accepts, let the environment's `tools()` return `SchemaTool`s with production's schemas.
    """
    here = {name: tool.schema for name, tool in subject.tools.items()}
    differing = _compare_tools(here, subject.user_inputs.schemas or {})
    return [
        Finding(
            rule="environment.production_schema",
            severity=Severity.ERROR,
            symptom=f"{what}.",
            evidence=evidence,
            change="Give the tool the name and arguments that production has: with type hints and `Bounded`, or with "
            "production's schema in a `SchemaTool` that the environment's `tools()` returns.",
            confirm=AGAIN,
        )
        for what, evidence in sorted(differing, key=lambda one: one[0])
    ]


def _compare_tools(
    here: Mapping[str, ToolSchema], given: Mapping[str, ToolSchema]
) -> list[tuple[str, Mapping[str, Json]]]:
    """Return the differences between the tools of the environment and those of production, with the evidence."""
    differing: list[tuple[str, Mapping[str, Json]]] = []
    for name in given.keys() - here.keys():
        differing.append((f"production has a tool {name}, but the environment does not", {"tools": list(here)}))
    for name in here.keys() - given.keys():
        differing.append((f"the environment has a tool {name}, but production does not", {"production": list(given)}))
    for name in given.keys() & here.keys():
        mine = resolve_references(here[name]["function"]["parameters"], f"tool {name!r} of the environment")
        found = compare_schemas(mine, given[name]["function"]["parameters"])
        differing += [(f"{name}: {one.what}", one.evidence) for one in found]
    return differing


async def representative(subject: Subject) -> Iterable[Finding]:
    """Calls, results and tasks resemble those of production.

    The rule compares a sample of production logs (`--production FILE`) with the expert's episodes: the mix of tools,
    the format of argument values, the keys and the size of results, and the mix of task kinds. The model cannot learn
    what it never sees in training, so add tasks and records of the missing kinds.
    """
    rows = subject.user_inputs.production or ()
    theirs = [call for row in rows for call in list_calls(row)]
    mine = [(call.tool, call.arguments, content) for _, call, content in await collect_answers(subject)]
    played = [call.tool for task in subject.sample for call in await list_expert_calls(subject, task)]
    found = [
        *_unknown_tools(subject, theirs),
        *_tool_mix(played, [tool for tool, _, _ in theirs]),
        *_argument_forms(subject, mine, theirs),
        *_result_shapes(mine, theirs),
        *_task_mix(subject, rows),
    ]
    return [
        Finding(
            rule="environment.representative",
            severity=Severity.WARNING,
            symptom=f"{what}.",
            evidence=evidence,
            change="Generate tasks and records of the kinds in the evidence, in the same proportions as in production.",
            confirm=AGAIN,
        )
        for what, evidence in found
    ]


def _unknown_tools(subject: Subject, theirs: Sequence[tuple]) -> list[tuple[str, dict[str, Json]]]:
    counts = Counter(tool for tool, _, _ in theirs if tool not in subject.tools)
    if not counts:
        return []
    evidence: dict[str, Json] = {"calls_in_production": dict(counts), "of_calls": len(theirs)}
    return [(f"production calls {', '.join(counts)}, which the environment does not have", evidence)]


def _tool_mix(mine: Sequence[str], theirs: Sequence[str]) -> list[tuple[str, dict[str, Json]]]:
    if not mine or not theirs:
        return []
    apart, here, there = _apart(mine, theirs)
    if apart <= FAR_APART:
        return []
    return [
        ("the expert's mix of tools differs from production's", {"apart": apart, "here": here, "production": there})
    ]


def _argument_forms(
    subject: Subject, mine: Sequence[tuple], theirs: Sequence[tuple]
) -> list[tuple[str, dict[str, Json]]]:
    """Return how the types or formats (digits, letters, length) of argument values differ from production."""
    found: list[tuple[str, dict[str, Json]]] = []
    for name, tool in subject.tools.items():
        for key, hint in tool.hints.items():
            there = [arguments[key] for called, arguments, _ in theirs if called == name and key in arguments]
            here = [arguments[key] for called, arguments, _ in mine if called == name and key in arguments]
            refused = [value for value in there if not fits(value, hint)]
            if refused:
                evidence: dict[str, Json] = {"refused": refused[:5], "share": round(len(refused) / len(there), 3)}
                found.append((f"{name} refuses values of {key!r} that production has", evidence))
            known = {_form(value) for value in here}
            unseen = [value for value in there if fits(value, hint) and _form(value) not in known]
            if (
                there
                and len(unseen) / len(there) > UNSEEN_SHARE
                and all(isinstance(one, str) for one in (*here, *there))
            ):
                evidence = {
                    "production": unseen[:5],
                    "here": here[:5],
                    "share_unseen": round(len(unseen) / len(there), 3),
                }
                found.append((f"values of {key!r} of {name} have another form in production", evidence))
    return found


def _result_shapes(mine: Sequence[tuple], theirs: Sequence[tuple]) -> list[tuple[str, dict[str, Json]]]:
    found: list[tuple[str, dict[str, Json]]] = []
    for name in dict.fromkeys(tool for tool, _, _ in theirs):
        here = [content for tool, _, content in mine if tool == name and content is not None]
        there = [content for tool, _, content in theirs if tool == name and content is not None]
        if not here or not there:
            continue
        missing = set().union(*map(_keys, there)) - set().union(*map(_keys, here))
        if missing:
            evidence: dict[str, Json] = {
                "missing": sorted(missing),
                "here": here[0][:200],
                "production": there[0][:200],
            }
            found.append((f"results of {name} lack keys that production's results have", evidence))
        sizes = median(map(len, here)), median(map(len, there))
        if max(sizes) > SIZE_FACTOR * max(1.0, min(sizes)) and max(sizes) > 40:
            evidence = {"median_characters": {"here": sizes[0], "production": sizes[1]}, "results": len(there)}
            found.append((f"results of {name} have a different size than production's", evidence))
    return found


def _task_mix(subject: Subject, rows: Sequence[Mapping[str, Json]]) -> list[tuple[str, dict[str, Json]]]:
    found: list[tuple[str, dict[str, Json]]] = []
    field = subject.config.curriculum.kind_field or "kind"
    here = [str(task.fields[field]) for task in subject.own_tasks if field in task.fields]
    there = [str(row["kind"]) for row in rows if "kind" in row]
    if here and there:
        apart, mine, theirs = _apart(here, there)
        if apart > FAR_APART:
            found.append(
                (
                    "the mix of task kinds differs from production's",
                    {"apart": apart, "here": mine, "production": theirs},
                )
            )
    asked = [_asked(row["messages"]) for row in rows if "messages" in row]
    own = [_asked(task.messages) for task in subject.looked_at]
    sizes = median(own), median(asked) if asked else 0
    if asked and max(sizes) > SIZE_FACTOR * max(1.0, min(sizes)) and max(sizes) > 60:
        evidence: dict[str, Json] = {"median_characters": {"here": sizes[0], "production": sizes[1]}}
        found.append(("the requests of users have another length in production", evidence))
    return found


def _asked(messages: Sequence[Mapping[str, Json]]) -> int:
    """Return the length of the user's first message."""
    return next((len(str(one.get("content") or "")) for one in messages if one.get("role") == "user"), 0)


def _apart(here: Sequence[str], there: Sequence[str]) -> tuple[float, dict[str, float], dict[str, float]]:
    """Return the total variation distance between two samples of names, and the share of each name in both samples."""
    mine, theirs = (
        {name: round(count / len(one), 3) for name, count in Counter(one).most_common()} for one in (here, there)
    )
    return round(sum(abs(mine.get(n, 0) - theirs.get(n, 0)) for n in mine.keys() | theirs.keys()) / 2, 3), mine, theirs


def _form(value: Json) -> str:
    """Return the format of a string, such as `a-9` for `AB-1234`: each sequence of letters or of digits becomes one
    character."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "9", str(value)))


def _keys(content: str) -> set[str]:
    """Return the keys of a JSON result as paths. All items of a list have the same path."""
    try:
        value = json.loads(content)
    except ValueError:
        return set()
    found: set[str] = set()

    def walk(one: Json, path: str) -> None:
        if isinstance(one, dict):
            for key, item in one.items():
                found.add(f"{path}{key}")
                walk(item, f"{path}{key}.")
        elif isinstance(one, list):
            for item in one:
                walk(item, path)

    walk(value, "")
    return found
