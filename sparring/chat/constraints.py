"""Grammars that constrain answers to calls of the allowed tools in the model's own format, or to JSON.

The format of a call is derived from a call that the chat renders. It is used only if the chat parses the rendered text
back to the same call. Any amount of whitespace is allowed around and within JSON, up to a limit. A grammar therefore
removes little probability from a policy that would have answered in this form anyway.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from sparring.errors import ConstraintError
from sparring.protocols import Chat
from sparring.types import AnswerFormat, Constraint, Json, Message, ToolSchema

Reasoning: TypeAlias = Literal["never", "may_come", "begun"]
"""Whether an answer starts with reasoning: never, only if the answer opens a `<think>`, or always, since the prompt
opens it."""

_SPACE = r"[ \t\r\n]{1,20}"
"""A regular expression for spacing. Without a bound, a weak policy could write spaces until its answer is cut."""

_SPELLINGS = {"whitespace_pattern": _SPACE, "json_allow_general_unicode_escapes": True}
"""Options for JSON. Only escapes of whole characters are allowed, since half a character could not be sent to a
client."""

_TERMINALS = rf"""
SPACE: /{_SPACE}/
ANY: /(?s:.*)/
"""

_NAME, _ARGUMENTS = "stand_in", {"key": "value"}
_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Stands in.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
_CALL = {
    "id": "call_0",
    "type": "function",
    "function": {"name": _NAME, "arguments": json.dumps(_ARGUMENTS)},
}
_TEXT = "sparring-answer"


@dataclass(frozen=True, slots=True)
class _CallFormat:
    """A format in which a call is a JSON object between two fixed texts. The object contains first the name, then the
    arguments."""

    opening: str
    arguments_key: str
    closing: str


@final
class AnswerGrammar:
    """Builds the grammars for answers in the format of one chat."""

    def __init__(
        self, chat: Chat, *, reasoning: Reasoning, added_tokens: Mapping[str, int], end_of_reasoning: Sequence[int]
    ) -> None:
        """`added_tokens` maps the text of each added token to its id; text is split at these tokens before it is
        tokenized. `end_of_reasoning` contains the ids of `</think>`."""
        self._before = tuple(end_of_reasoning) if reasoning == "begun" else ()
        self._chat = chat
        self._reasoning = reasoning
        self._added_tokens = added_tokens

    def constraint(self, answer_format: AnswerFormat, tools: Sequence[ToolSchema]) -> Constraint | None:
        """Return the constraint that `protocols.Chat.constraint` describes."""
        if answer_format.tool_choice == "required":
            return self._calling(answer_format, tools, content=None)
        can_call = bool(tools) and answer_format.tool_choice == "auto"
        if answer_format.schema is not None:
            if self._text_shown != (_TEXT, _TEXT):
                raise ConstraintError(
                    "A JSON schema cannot constrain answers in this model's format: the format writes the text "
                    f"{_TEXT!r} as {self._text_shown[0][:200]!r}. Describe the form in the prompt instead."
                )
            content = _schema_text(answer_format.schema)
            return self._calling(answer_format, tools if can_call else (), content=content)
        if not tools or (can_call and answer_format.parallel_tool_calls):
            return None
        return self._saying(may_call=can_call)

    def _calling(self, answer_format: AnswerFormat, tools: Sequence[ToolSchema], *, content: str | None) -> Constraint:
        """Return the grammar of one or more tool calls, or of content if content is allowed."""
        rules: list[str] = []
        schemas: list[tuple[str, str]] = []
        forms: list[str] = []
        if content is not None:
            forms.append("@content")
            schemas.append(("content", content))
        named = [
            (index, tool["function"])
            for index, tool in enumerate(tools)
            if answer_format.tool_name in (None, tool["function"]["name"])
        ]
        if not named and content is None:
            wanted = "a tool" if answer_format.tool_name is None else f"the tool {answer_format.tool_name!r}"
            raise ConstraintError(
                f"The answer must call {wanted}, but the tools of this request are "
                f"{[tool['function']['name'] for tool in tools]}. Add the tool, or let the model "
                "choose whether to call one."
            )
        if named:
            call_format = self._call_format
            is_one = answer_format.tool_name is not None or not answer_format.parallel_tool_calls
            forms.append("call" if is_one else "call (SPACE? call)*")
            rules.append("call: " + " | ".join(f"call_{index}" for index, _ in named))
        for index, function in named:
            rules.append(f"call_{index}: {self._call(call_format, function['name'], f'@arguments_{index}')}")
            schemas.append((f"arguments_{index}", _arguments_schema(function, f"arguments_{index}")))
        return self._constraint(["answer: " + " | ".join(forms), *rules], "SPACE? answer SPACE?", schemas)

    def _call(self, call_format: _CallFormat, name: str, arguments: str) -> str:
        key = _literal(json.dumps(call_format.arguments_key))
        # A name may contain any character. JSON may write it with or without escapes, as the policy saw it in its
        # prompt.
        spellings = {_literal(json.dumps(name, ensure_ascii=is_ascii)) for is_ascii in (False, True)}
        parts = [
            self._literal_or_token(call_format.opening),
            '"{"',
            _literal('"name"'),
            '":"',
            f"({' | '.join(sorted(spellings))})",
            '","',
            key,
            '":"',
            arguments,
            '"}"',
            self._literal_or_token(call_format.closing),
        ]
        return " SPACE? ".join(part for part in parts if part)

    def _saying(self, *, may_call: bool) -> Constraint:
        """Return the grammar of free text without calls, or with at most one call."""
        call_format = self._call_format
        opening = _literal(call_format.opening)
        rules = [f"TEXT: ANY & ~(ANY {opening} ANY)"]
        body = "TEXT"
        if may_call and self._is_token(call_format.opening):
            closing = self._literal_or_token(call_format.closing)
            body = f"TEXT ({self._literal_or_token(call_format.opening)} TEXT ({closing} TEXT)?)?"
        elif may_call:
            rules = [f"TEXT: ANY & ~(ANY {opening} ANY {opening} ANY)"]
        return self._constraint(rules, body, [])

    def _constraint(self, rules: Sequence[str], body: str, schemas: Sequence[tuple[str, str]]) -> Constraint:
        thought, rule = {
            "never": ("", ""),
            "may_come": ("reasoning?", "reasoning: {opened} thought"),
            "begun": ("reasoning", "reasoning: thought"),
        }[self._reasoning]
        if thought:
            closed = self._literal_or_token("</think>")
            is_token = self._is_token("</think>")
            rules = [*rules, rule.format(opened=self._literal_or_token("<think>"))]
            rules.append(f"thought: ANY {closed}" if is_token else f"thought[lazy]: ANY {closed}")
        lines = [f"start: {thought} {body}", *rules]
        return Constraint(grammar="\n".join(lines) + _TERMINALS, schemas=tuple(schemas))

    def _is_token(self, text: str) -> bool:
        return text in self._added_tokens

    def _literal_or_token(self, text: str) -> str:
        """Return a string as part of a grammar rule. Added tokens are written as ids, and everything else as a
        literal."""
        names = sorted(self._added_tokens, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        return " ".join(
            f"<[{self._added_tokens[part]}]>" if part in self._added_tokens else _literal(part)
            for part in parts
            if part
        )

    @functools.cached_property
    def _call_format(self) -> _CallFormat:
        """Return the format of a call. Raises ConstraintError if a rendered call is not JSON between two texts, or is
        not parsed back to the same call."""
        text, message = self._shown({"role": "assistant", "content": "", "tool_calls": [_CALL]})
        calls = [call["function"] for call in message.get("tool_calls", ())]
        start, end, keys = _call_in(text)
        opening, closing = text[:start].strip(), text[end:].strip()
        if len(calls) != 1 or json.loads(calls[0]["arguments"]) != _ARGUMENTS or len(keys) != 2 or not opening:
            raise ConstraintError(
                f"Tool calls in this model's format cannot be forced or forbidden. A call looks like {text[:200]!r}, "
                'but only JSON with "name" and arguments after an opening tag can be constrained. Leave tool_choice at '
                '"auto".'
            )
        return _CallFormat(opening, keys[1], closing)

    @functools.cached_property
    def _text_shown(self) -> tuple[str, str]:
        """Return a text answer as the format renders it, and the content that the chat parses from it."""
        text, message = self._shown({"role": "assistant", "content": _TEXT})
        return text, message["content"]

    def _shown(self, message: Message) -> tuple[str, Message]:
        """Return the text of a message, without reasoning and stop id, and the message that the chat parses from this
        text."""
        try:
            ids = list(self._chat.answer(message, [_TOOL]))
        except Exception as error:  # (a template may raise any exception)
            raise ConstraintError(f"Answers in this model's format cannot be constrained: {error}") from error
        while ids and ids[-1] in self._chat.stop_ids:
            ids.pop()
        text = self._chat.decode(ids)
        return text.rpartition("</think>")[2].strip(), self._chat.parse([*self._before, *ids], [_TOOL])


def _call_in(text: str) -> tuple[int, int, Sequence[str]]:
    """Return the start and end of the first JSON object in a string, and the keys of that object if it is the sample
    call."""
    start = text.find("{")
    try:
        value, end = json.JSONDecoder().raw_decode(text, max(start, 0))
    except ValueError:
        return 0, 0, ()
    is_call = isinstance(value, dict) and list(value.values()) == [_NAME, _ARGUMENTS] and next(iter(value)) == "name"
    return start, end, list(value) if is_call else ()


def _arguments_schema(function: Mapping[str, Json], name: str) -> str:
    """Return the schema of a tool's parameters, as a schema of an object. Raises ConstraintError if the schema has
    another type."""
    parameters: Mapping[str, Json] = function.get("parameters") or {}
    kind = parameters.get("type", "object")
    if kind != "object":
        raise ConstraintError(
            f"The parameters of {function['name']!r} are of type {json.dumps(kind)}, but arguments are always an object.",
            schema=name,
        )
    return _schema_text({**parameters, "type": "object"})


def _schema_text(schema: Mapping[str, Json]) -> str:
    return json.dumps({**schema, "x-guidance": _SPELLINGS}, ensure_ascii=False)


def _literal(text: str) -> str:
    """Return a string as a quoted literal for a grammar."""
    return json.dumps(text, ensure_ascii=False)
