"""Implements `protocols.Chat` with the `renderers` library, for the models whose format the library supports."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, final

from openai_harmony import HarmonyError
from renderers import create_renderer
from renderers.base import MODEL_RENDERER_MAP, ParsedToolCall, ToolCallParseStatus
from renderers.configs import config_from_name

from sparring.chat.constraints import AnswerGrammar, Reasoning
from sparring.chat.control_tokens import ControlTokens
from sparring.chat.harmony import provide_vocabulary
from sparring.chat.messages import json_text, plain, read_json
from sparring.chat.tool_calls import Problem, arguments_text
from sparring.errors import DataError
from sparring.protocols import SpliceRefused
from sparring.runtime.json_values import is_too_deep
from sparring.types import AnswerFormat, Constraint, Json, Message, ToolSchema

_PROBLEMS: dict[ToolCallParseStatus, Problem] = {
    ToolCallParseStatus.UNCLOSED_BLOCK: "not_closed",
    ToolCallParseStatus.INVALID_JSON: "not_json",
    ToolCallParseStatus.MALFORMED_STRUCTURE: "not_json",
    ToolCallParseStatus.MISSING_NAME: "no_name",
}
"""An unknown tool is not a format problem: the environment responds to the call."""


def renderer_name(model_name: str) -> str | None:
    """Return the name of the renderer for a model that the library lists under exactly this name, or None."""
    return MODEL_RENDERER_MAP.get(model_name)


@final
class RendererChat:
    """Implements `protocols.Chat` over one renderer of the library."""

    def __init__(self, tokenizer: Any, renderer_name: str) -> None:
        """`renderer_name` is a name in the library's registry, such as "qwen3" or "llama-3". Raises ValueError for any
        other name, and DataError if the tokenizer lacks a token of the format."""
        self._tokenizer = tokenizer
        self._control_tokens = ControlTokens(tokenizer)
        # OpenAI's library tokenizes all messages as ordinary text (openai/harmony, `render_text_into` in src/encoding.rs).
        self._hides = renderer_name != "gpt-oss"
        self._renderer = _create(_PlainTextTokenizer(tokenizer, self._control_tokens), renderer_name)
        self._stop_ids = frozenset(self._renderer.get_stop_token_ids())
        question: list[Any] = [{"role": "user", "content": "question"}]
        with_prompt = self._renderer.render_ids(question, add_generation_prompt=True)
        self._generation_ids = with_prompt[len(self._renderer.render_ids(question)) :]

    @property
    def stop_ids(self) -> frozenset[int]:
        return self._stop_ids

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return the ids of the whole prompt."""
        shown, offered = self._hidden(messages, tools)
        return tuple(self._renderer.render_ids(shown, tools=offered, add_generation_prompt=True))

    def extend(
        self, played: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema], *, stopped: bool
    ) -> tuple[int, ...]:
        """Return the ids that follow, as the renderer's own bridge computes them. Raises SpliceRefused if the renderer
        has no bridge."""
        ids = list(played)
        answer_at = self._answer_start(ids)
        shown, offered = self._hidden(new, tools)
        bridged = self._renderer.bridge_to_next_turn(ids[:answer_at], ids[answer_at:], shown, tools=offered)
        if bridged is None:
            raise SpliceRefused("the model's format cannot append these messages (renderers.bridge_to_next_turn)")
        if bridged.token_ids[: len(ids)] != ids:
            raise SpliceRefused("the model's format does not keep every token of the answer")
        return tuple(bridged.token_ids[len(ids) :])

    def answer(self, message: Message, tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return the ids of an assistant message, including its closing tokens. Raises DataError if the format renders
        the message differently from a sampled one."""
        question: list[Any] = [{"role": "user", "content": "question"}]
        shown = plain(message)
        if self._hides and self._control_tokens.occur_in(json_text(shown)):
            shown = self._control_tokens.hide_in_answer(shown)
        offered = self._hidden((), tools)[1]
        prompt = self._renderer.render_ids(question, tools=offered, add_generation_prompt=True)
        whole = self._renderer.render_ids([*question, shown], tools=offered)
        stops = [index for index, token_id in enumerate(whole) if token_id in self._stop_ids]
        if whole[: len(prompt)] != prompt or not stops or stops[-1] < len(prompt):
            raise DataError(
                "The model's format renders a demonstrated answer differently from a sampled one, so answers cannot be "
                "demonstrated."
            )
        return tuple(whole[len(prompt) : stops[-1] + 1])

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Message:
        """Return the assistant message as the library parses it, with the reasoning in a separate field."""
        try:
            # The prompt shows whether it already opened the reasoning with which the answer starts.
            parsed = self._renderer.parse_response(
                list(token_ids), tools=_tools(tools), prompt_ids=self._generation_ids
            )
        except Exception:  # noqa: BLE001 (any text of the policy is an answer, readable or not)
            # The library's JSON parser fails on a number of 4,300 digits and on a thousand levels of nesting.
            text = self.decode([token_id for token_id in token_ids if token_id not in self._stop_ids])
            return {
                "role": "assistant",
                "content": text,
                "malformed_tool_calls": [{"text": text, "problem": "not_json"}],
            }
        message: dict[str, Json] = {"role": "assistant", "content": parsed.content or ""}
        if parsed.reasoning_content:
            message["reasoning_content"] = parsed.reasoning_content
        calls = [_call(call, index) for index, call in enumerate(parsed.tool_calls)]
        if good := [call for call in calls if "problem" not in call]:
            message["tool_calls"] = good
        if malformed := [call for call in calls if "problem" in call]:
            message["malformed_tool_calls"] = malformed
            message["content"] = "\n".join(filter(None, [message["content"], *(call["text"] for call in malformed)]))
        return message

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def constraint(self, answer_format: AnswerFormat, tools: Sequence[ToolSchema]) -> Constraint | None:
        """Return the grammar of answers in this form, or None if every answer has this form. Raises ConstraintError."""
        return self._answer_grammar.constraint(answer_format, tools)

    @functools.cached_property
    def _answer_grammar(self) -> AnswerGrammar:
        added_tokens = self._tokenizer.get_added_vocab()
        _, tag, begun = self.decode(self._generation_ids).rpartition("<think>")
        reasoning: Reasoning = "may_come" if "<think>" in added_tokens else "never"
        if tag:
            reasoning = "never" if "</think>" in begun else "begun"
        end = self._tokenizer.encode("</think>", add_special_tokens=False)
        return AnswerGrammar(self, reasoning=reasoning, added_tokens=added_tokens, end_of_reasoning=end)

    def _hidden(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[list[dict[str, Json]], list[Any] | None]:
        """Return messages and tools with placeholders for the names of control tokens."""
        shown, offered = [plain(message) for message in messages], _tools(tools)
        if not self._hides or not self._control_tokens.occur_in(json_text([shown, offered])):
            return shown, offered
        return self._control_tokens.hide_in_messages(shown), self._control_tokens.hide(offered)

    def _answer_start(self, ids: list[int]) -> int:
        """Return the position where the last answer starts, which is after the last generation prompt."""
        length = len(self._generation_ids)
        for start in range(len(ids) - length, -1, -1):
            if ids[start : start + length] == self._generation_ids:
                return start + length
        raise SpliceRefused("the earlier tokens contain no prompt to answer")


class _PlainTextTokenizer:
    """A tokenizer that tokenizes hidden names as ordinary text."""

    def __init__(self, tokenizer: Any, control_tokens: ControlTokens) -> None:
        self._tokenizer = tokenizer
        self._control_tokens = control_tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **options: Any) -> list[int]:
        if not self._control_tokens.are_hidden_in(text):
            return self._tokenizer.encode(text, **options)
        return self._control_tokens.encode(text)

    def __call__(self, text: str, **options: Any) -> Any:
        """Return ids and offsets. Renderers use the offsets to mark the content of messages, and Sparring does not use
        these marks. Therefore, all offsets of text with hidden names are 0."""
        if not self._control_tokens.are_hidden_in(text):
            return self._tokenizer(text, **options)
        ids = self._control_tokens.encode(text)
        return {"input_ids": ids, "offset_mapping": [(0, 0)] * len(ids)}


def _create(tokenizer: Any, name: str) -> Any:
    config = config_from_name(name)
    try:
        if name != "gpt-oss":
            return create_renderer(tokenizer, config)  # pyright: ignore[reportArgumentType]
        with provide_vocabulary(tokenizer):
            return create_renderer(tokenizer, config)  # pyright: ignore[reportArgumentType]
    except (AssertionError, HarmonyError) as error:
        raise DataError(
            f"The model's chat format is {name!r}, and its tokenizer does not fit that format: {error}. Use the tokenizer "
            "that belongs to the model."
        ) from error


def _call(call: ParsedToolCall, index: int) -> dict[str, Json]:
    if problem := _PROBLEMS.get(call.status):
        return {"text": call.raw, "problem": problem}
    if not isinstance(call.name, str):
        return {"text": call.raw, "problem": "no_name"}
    arguments = {} if call.arguments is None else call.arguments
    try:
        # The library's JSON may contain numbers that are not finite and lone surrogates, even in the name.
        arguments = read_json((arguments or "{}") if isinstance(arguments, str) else arguments_text(arguments))
        read_json(json.dumps(call.name))
    except (ValueError, RecursionError):
        return {"text": call.raw, "problem": "not_json"}
    if not isinstance(arguments, dict):
        return {"text": call.raw, "problem": "arguments_not_object"}
    if is_too_deep(arguments, call.raw):
        return {"text": call.raw, "problem": "not_json"}
    function = {"name": call.name, "arguments": arguments_text(arguments)}
    return {"id": call.id or f"call_{index}", "type": "function", "function": function}


def _tools(tools: Sequence[ToolSchema]) -> list[Any] | None:
    """Return the complete OpenAI definitions of the tools. Models were trained on this form. Renderers of other formats
    unwrap it."""
    return [dict(tool) for tool in tools] or None
