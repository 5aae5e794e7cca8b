"""Scripted policies that need no model: guesses, copies and cheats that a good grader detects."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from sparring.agents.scripted import Asked, ScriptedPolicy
from sparring.checks.evidence.answer_forms import AnswerForm, find_most_frequent, get_text, parse_object
from sparring.environments import answer, tool_call
from sparring.types import Json, Message, Task, ToolSchema

_WORD = re.compile(r"[A-Za-z0-9][\w.:/@-]*\w|\w")


def answer_at_once(name: str, message_of: Callable[[Task], Message]) -> ScriptedPolicy:
    """Return a policy that answers in its first turn."""
    return ScriptedPolicy(name, lambda asked: message_of(asked.task))


def make_never_answering() -> ScriptedPolicy:
    """Return a policy that calls tools until it has no turns left."""

    def act(asked: Asked) -> Message:
        if not asked.tools:
            return answer("Let me think.")
        return _calls(asked.tools[:1], _Known(asked.messages, random.Random(0)))

    return ScriptedPolicy("never answers", act)


def make_busy(name: str, script: Sequence[Message], *, times: int) -> ScriptedPolicy:
    """Return a policy that follows a script, but repeats the calls of the first turn within that turn, so that each is
    made `times` times."""
    first, *rest = script
    repeated = {**first, "tool_calls": [*(first.get("tool_calls") or ())] * times}
    played = [repeated, *rest]
    return ScriptedPolicy(name, lambda asked: played[asked.turn] if asked.turn < len(played) else answer(""))


def make_guessing(name: str, form: AnswerForm, labels: Mapping[str, Sequence[Json]], seed: str) -> ScriptedPolicy:
    """Return a policy that makes up to two calls with random arguments. Its answer consists of parts drawn from the
    answers of all tasks."""

    def act(asked: Asked) -> Message:
        rng = random.Random(f"{seed}/{asked.task.id}")
        num_calls = rng.randint(0, 2)
        if asked.turn < num_calls and asked.tools:
            chosen = rng.choices([tool for tool in asked.tools if _name(tool) != form.tool] or asked.tools, k=num_calls)
            return _calls(chosen[asked.turn : asked.turn + 1], _Known(asked.messages, rng))
        return form.message({part: rng.choice(values) for part, values in labels.items()})

    return ScriptedPolicy(name, act)


def make_copying(name: str, form: AnswerForm, labels: Mapping[str, Sequence[Json]], max_turns: int) -> ScriptedPolicy:
    """Return a policy that calls every tool with values from the prompt, calls every tool again with values from the
    results, and then answers with values from the results.

    Each part of the answer is the value with the part's name in a result. If there is no such value, it is the result
    of the tool with the most similar name, or else the most frequent correct value.
    """

    def act(asked: Asked) -> Message:
        tools = [tool for tool in asked.tools if _name(tool) != form.tool]
        known = _Known(asked.messages, random.Random(0))
        if tools and asked.turn < min(2, max_turns - 1):
            return _calls(tools, known)
        return form.message({part: known.best(part, values) for part, values in labels.items()})

    return ScriptedPolicy(name, act)


class _Known:
    """The values in a conversation so far: the words of the prompt, the results of each tool, and every named value in
    them."""

    def __init__(self, messages: Sequence[Message], rng: random.Random) -> None:
        self._rng = rng
        names = {
            call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()
        }
        self.results: dict[str, str] = {}
        self.named: dict[str, Json] = {}
        prompt = [get_text(message) for message in messages if message.get("role") in ("system", "user")]
        for text in prompt:
            self.named.update(re.findall(r"(\w+)\"?\s*[:=]\s*\"?([^\s\"',;]+)", text))
        for message in messages:
            tool = names.get(message.get("tool_call_id", ""))
            text = get_text(message)
            if message.get("role") == "tool" and tool is not None and not text.startswith("error:"):
                self.results[tool] = text
                self.named.update(_leaves(parse_object(text)))
        words = [word for text in reversed(prompt) for word in reversed(_WORD.findall(text))]
        # A word with a digit or in capitals is more likely to be a name. The task's own text comes last.
        self.words = sorted(words, key=lambda word: not (any(map(str.isdigit, word)) or word.isupper()))

    def argument(self, name: str, schema: Mapping[str, Json], tool: str) -> Json:
        """Return a value of the schema's type. If a value with the name of the argument or of the tool is known, return
        that value."""
        for choice in schema.get("anyOf", ()):
            return self.argument(name, choice, tool)
        if "enum" in schema:
            return self._rng.choice(schema["enum"])
        kind = schema.get("type")
        known = self.named.get(name, self.named.get(tool))
        if kind in ("integer", "number"):
            numbers = [word for word in [str(known), *self.words] if re.fullmatch(r"-?\d+(\.\d+)?", word)]
            value = float(numbers[0]) if numbers else 1.0
            return int(value) if kind == "integer" or value.is_integer() else value
        if kind == "boolean":
            return True
        if kind == "array":
            return [self.argument(name, schema.get("items", {"type": "string"}), tool)]
        if kind == "object":
            return {}
        if isinstance(known, str):
            return known
        return self.words[0] if self.words else "a"

    def best(self, part: str, values: Sequence[Json]) -> Json:
        """Return the most likely value of one part of the answer."""
        if part in self.named:
            return self.named[part]
        if not part:
            last = list(self.results.values())[-1:]
            texts = [value for text in last for value in (list(_leaves(parse_object(text)).values()) or [text])]
            return texts[-1] if texts else find_most_frequent(values)[0]
        nearest = max(self.results, key=lambda tool: SequenceMatcher(None, tool, part).ratio(), default=None)
        if nearest is not None and SequenceMatcher(None, nearest, part).ratio() >= 0.5:
            inner = list(_leaves(parse_object(self.results[nearest])).values())
            return inner[-1] if inner else self.results[nearest]
        return find_most_frequent(values)[0]


def _calls(tools: Sequence[ToolSchema], known: _Known) -> Message:
    calls = []
    for tool in tools:
        parameters = tool["function"]["parameters"]
        required = parameters.get("required", ())
        arguments = {name: known.argument(name, parameters["properties"][name], tool=_name(tool)) for name in required}
        calls.extend(tool_call(_name(tool), **arguments)["tool_calls"])
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _leaves(value: Json, name: str = "") -> dict[str, Json]:
    """Return the scalars in a value, each keyed by the nearest key above it."""
    if isinstance(value, Mapping):
        found: dict[str, Json] = {}
        for key, item in value.items():
            found.update(_leaves(item, key))
        return found
    return {} if value is None and not name else {name: value}


def _name(tool: ToolSchema) -> str:
    return tool["function"]["name"]


def leaves(value: Json) -> Iterator[Json]:
    """Yield every scalar in a JSON value. Values that JSON cannot represent, such as dates, are converted to text."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        yield value if isinstance(value, str | int | float) else str(value)


def to_text(value: Json) -> str:
    """Return a string unchanged, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
