"""What the logged calls show about the tools: their schemas, which of them write, and which calls can be replayed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparring.chat.messages import canonical_json
from sparring.traces.conversation import Conversation, LoggedCall
from sparring.types import Json, ToolSchema

_READS = frozenset(
    {
        "get", "find", "list", "search", "look", "lookup", "read", "fetch", "query", "show", "check", "describe", "view",
        "count", "calculate", "compute", "retrieve", "load", "browse", "compare", "estimate", "convert", "translate",
        "summarize", "status", "inspect", "validate", "verify", "is", "has", "who", "what", "where", "when", "think",
    }
)  # fmt: skip
_WRITES = frozenset(
    {
        "create", "update", "delete", "remove", "set", "add", "send", "book", "cancel", "refund", "place", "submit",
        "pay", "transfer", "write", "post", "put", "patch", "insert", "modify", "change", "edit", "move", "rename",
        "upload", "reset", "reserve", "buy", "purchase", "order", "exchange", "return", "assign", "close", "open",
        "escalate", "approve", "reject", "confirm", "schedule", "reschedule", "register", "issue", "charge", "save",
        "store", "make", "execute", "run", "apply", "enable", "disable", "grant", "revoke", "log", "fill", "refill",
        "dispense", "dispatch", "restart", "replace", "renew", "notify", "archive", "activate", "deactivate",
    }
)  # fmt: skip
_TYPES: Sequence[tuple[type, str]] = (
    (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"),
    (type(None), "null"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTool:
    """One tool of a log."""

    name: str
    schema: ToolSchema
    is_inferred: bool
    """Whether the schema was inferred from the calls, because the log does not list the tool."""
    num_calls: int
    writes: bool
    """Whether the tool looks as if it changes something."""
    why: str

    def as_json(self) -> dict[str, Json]:
        """Return the row of `tools.json`."""
        return {
            "type": "function", "function": self.schema["function"], "inferred": self.is_inferred, "writes": self.writes,
            "why": self.why,
        }  # fmt: skip


def find_tools(
    conversations: Sequence[Conversation], *, writing: Iterable[str] = (), reading: Iterable[str] = ()
) -> dict[str, LoggedTool]:
    """Return the tools that a log lists or calls, by name. `writing` and `reading` name tools for which the user has
    decided."""
    calls: dict[str, list[LoggedCall]] = defaultdict(list)
    listed: dict[str, Counter[str]] = defaultdict(Counter)
    schemas: dict[str, ToolSchema] = {}
    for conversation in conversations:
        for call in conversation.calls:
            calls[call.tool].append(call)
        for schema in conversation.tools:
            key = canonical_json(dict(schema))
            schemas[key] = schema
            listed[schema["function"]["name"]][key] += 1
    suspects = _changed_by(conversations)
    found = {}
    for name in {**listed, **calls}:
        is_inferred = name not in listed
        schema = infer_schema(name, calls[name]) if is_inferred else schemas[listed[name].most_common(1)[0][0]]
        writes, why = _decide(name, schema, suspects, frozenset(writing), frozenset(reading))
        found[name] = LoggedTool(
            name=name, schema=schema, is_inferred=is_inferred, num_calls=len(calls[name]), writes=writes, why=why
        )
    return found


def infer_schema(name: str, calls: Sequence[LoggedCall]) -> ToolSchema:
    """Return the narrowest schema that all calls of a tool match: the names and types of their arguments. Arguments that
    every call has are required."""
    kinds: dict[str, dict[str, None]] = defaultdict(dict)
    for call in calls:
        for argument, value in call.arguments.items():
            kinds[argument][next(kind for type_, kind in _TYPES if isinstance(value, type_))] = None
    properties: dict[str, Json] = {}
    for argument, found in kinds.items():
        named = [kind for kind in found if not (kind == "integer" and "number" in found)]
        properties[argument] = {"type": named[0] if len(named) == 1 else named}
    required = [argument for argument in properties if all(argument in call.arguments for call in calls)]
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


def with_defaults(call: LoggedCall, tools: Mapping[str, LoggedTool]) -> LoggedCall:
    """Return a call with the defaults of the arguments that it omits, so that equal calls are spelled alike."""
    properties = tools[call.tool].schema["function"]["parameters"].get("properties", {})
    defaults = {name: one["default"] for name, one in properties.items() if "default" in one}
    return replace(call, arguments={**defaults, **call.arguments})


def words_of(name: str) -> list[str]:
    """Return the words of a tool's name, in lower case: `getOrder` and `get_order` have two."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]


def _decide(
    name: str, schema: Mapping[str, Any], suspects: Mapping[str, str], writing: frozenset[str], reading: frozenset[str]
) -> tuple[bool, str]:
    """Return whether a tool looks as if it writes, and why. The strongest evidence comes first."""
    if name in writing or name in reading:
        return name in writing, "you named it"
    hints = schema.get("annotations") or {}
    if isinstance(hints.get("readOnlyHint"), bool):
        return not hints["readOnlyHint"], f"its annotation readOnlyHint is {str(hints['readOnlyHint']).lower()}"
    words = words_of(name)
    first = words[0] if words else ""
    if first in _READS:
        return False, f"its name starts with {first!r}"
    if name in suspects:
        return True, suspects[name]
    if first in _WRITES and len(words) > 1:
        return True, f"its name starts with {first!r}"
    named = next((word for word in words if word in _WRITES), None)
    if named is not None and not set(words) & _READS:
        return True, f"its name contains {named!r}"
    return False, "no other call changed its results, and its name has no verb that writes"


def _changed_by(conversations: Sequence[Conversation]) -> dict[str, str]:
    """Return the tools between two equal calls with different results, when only one tool came between them."""
    found: dict[str, str] = {}
    for conversation in conversations:
        calls = conversation.calls
        last: dict[str, int] = {}
        for place, call in enumerate(calls):
            before = last.get(call.key)
            if before is not None and calls[before].result != call.result:
                between = {one.tool for one in calls[before + 1 : place]} - {call.tool}
                if len(between) == 1:
                    found.setdefault(between.pop(), f"{call.tool} answered the same call differently after it")
            last[call.key] = place
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Which logged calls an environment can answer."""

    shared: tuple[LoggedCall, ...]
    """One call of a tool that reads for each key, if all conversations agree on its result."""
    num_calls: int
    num_shared: int
    """The number of calls that are answered in every task."""
    num_own: int
    """The number of other calls of tools that read, which are answered in their own task only."""
    num_writes: int
    """The number of calls of tools that write."""

    @property
    def share(self) -> float | None:
        """The share of calls that are answered as in the log, without a back end. None without calls."""
        return (self.num_shared + self.num_own) / self.num_calls if self.num_calls else None


def plan_replay(conversations: Sequence[Conversation], tools: Mapping[str, LoggedTool]) -> Replay:
    """Decide which calls are answered in every task. A call without arguments is not: it usually depends on the user."""
    calls = [with_defaults(call, tools) for conversation in conversations for call in conversation.calls]
    reads = [call for call in calls if not tools[call.tool].writes]
    results: dict[str, set[str]] = defaultdict(set)
    for call in reads:
        results[call.key].add(call.result)
    first = {call.key: call for call in reversed(reads) if call.arguments and len(results[call.key]) == 1}
    num_shared = sum(call.key in first for call in reads)
    return Replay(
        shared=tuple(first[key] for key in sorted(first)),
        num_calls=len(calls),
        num_shared=num_shared,
        num_own=len(reads) - num_shared,
        num_writes=len(calls) - len(reads),
    )
