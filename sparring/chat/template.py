"""Chat for any tokenizer with a chat template: renders the prompt once, and later only new messages."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

from sparring.chat.constraints import AnswerGrammar, Reasoning
from sparring.chat.messages import content_text, json_text, plain
from sparring.chat.tool_calls import parse_assistant, render_assistant, tools_text
from sparring.errors import DataError
from sparring.protocols import SpliceRefused
from sparring.types import AnswerFormat, Constraint, Json, Message, ToolSchema

_ANSWER = "sparring-answer"
"""Stands for the sampled answer where the template is rendered to learn what follows it."""


class Tokenizer(Protocol):
    """The methods of a Hugging Face tokenizer that Sparring uses."""

    @property
    def eos_token_id(self) -> Any: ...

    @property
    def all_special_ids(self) -> Sequence[int]: ...

    @property
    def chat_template(self) -> Any: ...

    def get_added_vocab(self) -> Mapping[str, int]: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **options: Any) -> Any: ...


def inconsistency(tokenizer: Tokenizer) -> str | None:
    """Return how the chat template contradicts itself, None if it does not: its generation prompt begins with another special
    token than an answer in the conversation, so that the model was not trained on one of the two."""
    question = {"role": "user", "content": "question"}
    renderings = (
        ([question], False),
        ([question], True),
        ([question, {"role": "assistant", "content": _ANSWER}], False),
    )
    try:
        closed, asked, given = (
            str(tokenizer.apply_chat_template(messages, add_generation_prompt=is_asked, tokenize=False))
            for messages, is_asked in renderings
        )
    except Exception:  # noqa: BLE001 (templates refuse messages by raising whatever they like)
        return None
    if _ANSWER not in given:
        return None
    known = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    before, *both = (
        [one for one in tokenizer.encode(text, add_special_tokens=False) if one in known]
        for text in (closed, asked, given.partition(_ANSWER)[0])
    )
    # Of the special tokens of an answer's beginning the first: what comes after those of the question.
    begins = [tokenizer.decode(markers[len(before) :][:1], skip_special_tokens=False) for markers in both]
    if begins[0] == begins[1]:
        return None
    shown = [repr(one) if one else "no special token" for one in begins]
    return f"it asks for an answer with {shown[0]} and begins an answer in the conversation with {shown[1]}"


@final
class TemplateChat:
    """Implements `protocols.Chat` with the tokenizer's own template.

    A template with tools gets tools and tool calls unchanged. For any other, tools are described in the system prompt, calls
    are written as Hermes tags, and tool results have the role `tool` if the template accepts it, else `user`.

    The next prompt is never rendered whole: a stand-in conversation shows which text the template puts after an
    answer, and only that text is tokenized. It begins with a special token, so that no token spans the boundary.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Learn the template's behavior from a few small renderings. Raises DataError when there is no template."""
        if not tokenizer.chat_template:
            raise DataError("This tokenizer has no chat template; use an instruct model, or give the tokenizer one.")
        self._tokenizer = tokenizer
        template = str(tokenizer.chat_template)
        self._has_tools = "tools" in template
        # A template that drops earlier reasoning must show it: then the stand-in's answer holds some.
        self._answer = f"<think>\nreason\n</think>\n\n{_ANSWER}" if "</think>" in template else _ANSWER
        self._accepts_tool_role = self._has_tools or self._tool_role_is_rendered()
        self._close = self._turn_close()
        close_ids = [] if self._close is None else self._encoded(self._close)
        eos = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self._stop_ids = frozenset([*close_ids, *eos])
        self._default_system = "" if self._has_tools else self._injected_system_prompt()
        self._opens_reasoning = self._reasoning_is_opened()
        # The episodes of a group share prompts and often tool results; keys are JSON, results are immutable.
        self._render = functools.lru_cache(maxsize=256)(self._render_uncached)
        self._follow = functools.lru_cache(maxsize=1024)(self._follow_uncached)

    @property
    def stop_ids(self) -> frozenset[int]:
        return self._stop_ids

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """The whole prompt. Raises DataError when the template refuses the messages."""
        return self._render(json_text([[plain(message) for message in messages], list(tools)]))

    def extend(
        self, played: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema], *, stopped: bool
    ) -> tuple[int, ...]:
        """Return the ids that follow; renders only the new messages. Raises SpliceRefused."""
        following = self._follow(json_text([plain(message) for message in new]))
        # An answer that was cut, or stopped with another id, is closed as the template closes it.
        return following[1:] if stopped and played[-1] == following[0] else following

    def answer(self, message: Message, tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return the ids of an assistant message, closed. Raises DataError when the template does not close an answer."""
        if self._close is None:
            raise DataError(
                "The chat template does not close an answer with a special token; it cannot be demonstrated."
            )
        if not self._has_tools:
            return tuple(self._encoded(render_assistant(message) + self._close))
        question = {"role": "user", "content": "question"}
        prompt = self._text([question], tools, to_be_answered=True)
        whole = self._text([question, plain(message)], tools, to_be_answered=False)
        end = whole.rfind(self._close) + len(self._close)
        if not whole.startswith(prompt):
            raise DataError(
                "The chat template renders a given answer unlike a prompted one; it cannot be demonstrated."
            )
        return tuple(self._encoded(whole[len(prompt) : end]))

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Message:
        """Return the assistant message. Text in `<think>` at its beginning goes to "reasoning_content", also where the prompt
        has the opening tag; an answer that was cut there is only reasoning."""
        end = len(token_ids)
        while end > 0 and token_ids[end - 1] in self._stop_ids:
            end -= 1
        text = self.decode(token_ids[:end])
        if not self._opens_reasoning and not text.lstrip().startswith("<think>"):
            return parse_assistant(text)
        reasoning, _, answer = text.partition("</think>")
        return {**parse_assistant(answer), "reasoning_content": reasoning.strip().removeprefix("<think>").strip()}

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def constraint(self, answer_format: AnswerFormat, tools: Sequence[ToolSchema]) -> Constraint | None:
        """The grammar of answers in this form, None if all are. Raises ConstraintError."""
        return self._answer_grammar.constraint(answer_format, tools)

    @functools.cached_property
    def _answer_grammar(self) -> AnswerGrammar:
        reasoning: Reasoning = "never"
        if "</think>" in str(self._tokenizer.chat_template):
            begun = self._text([{"role": "user", "content": "question"}], (), to_be_answered=True).rpartition("<think>")
            reasoning = "may_come" if not begun[1] else "never" if "</think>" in begun[2] else "begun"
        return AnswerGrammar(
            self,
            reasoning=reasoning,
            added_tokens=self._tokenizer.get_added_vocab(),
            end_of_reasoning=self._encoded("</think>"),
        )

    def _render_uncached(self, key: str) -> tuple[int, ...]:
        messages, tools = json.loads(key)
        try:
            return tuple(self._encoded(self._text(self._adapted(messages, tools), tools, to_be_answered=True)))
        except Exception as error:
            raise DataError(
                f"The chat template refuses these messages (roles: {[message.get('role') for message in messages]}): "
                f"{error}. Send an order of roles that the model knows."
            ) from error

    def _follow_uncached(self, key: str) -> tuple[int, ...]:
        """Return the ids that the template puts after an answer, from the close of the turn on."""
        new: list[dict[str, Json]] = json.loads(key)
        if self._close is None:
            raise SpliceRefused("the template does not close an answer with a special token")
        answer: dict[str, Json] = {"role": "assistant", "content": self._answer}
        results = [message for message in new if message.get("role") == "tool"]
        if self._has_tools and results:
            answer["tool_calls"] = [_stand_in_call(index, result) for index, result in enumerate(results)]
        before = [{"role": "user", "content": "question"}, answer]
        try:
            short = self._text(before, (), to_be_answered=False)
            long = self._text([*before, *self._adapted(new, ())], (), to_be_answered=True)
        except Exception as error:
            raise SpliceRefused(f"the template refuses what follows the answer: {error}") from error
        close_at = short.rfind(self._close)
        if not long.startswith(short[: close_at + len(self._close)]):
            raise SpliceRefused("the template changes an answer when messages follow it")
        return tuple(self._encoded(long[close_at:]))

    def _adapted(self, messages: list[dict[str, Json]], tools: Sequence[ToolSchema]) -> list[dict[str, Json]]:
        """Return messages that the template accepts: the same messages where it supports tools."""
        if self._has_tools:
            return messages
        result: list[dict[str, Json]] = []
        for message in messages:
            role, content = message.get("role"), message["content"]
            if role == "assistant":
                result.append({"role": role, "content": render_assistant(message)})
            elif role != "tool" or self._accepts_tool_role:
                result.append({"role": role, "content": content})
            elif result and result[-1].get("is_result") is True:
                result[-1]["content"] += f"\n<tool_response>{content}</tool_response>"
            else:
                result.append(
                    {"role": "user", "content": f"<tool_response>{content}</tool_response>", "is_result": True}
                )
        return self._with_tools(result, tools) if tools else result

    def _with_tools(self, messages: list[dict[str, Json]], tools: Sequence[ToolSchema]) -> list[dict[str, Json]]:
        has_system = bool(messages) and messages[0].get("role") == "system"
        system = messages[0]["content"] if has_system else self._default_system
        described = {"role": "system", "content": f"{system}\n\n{tools_text(tools)}".lstrip()}
        return [described, *messages[1:]] if has_system else [described, *messages]

    def _text(
        self, messages: Sequence[Mapping[str, Json]], tools: Sequence[ToolSchema], *, to_be_answered: bool
    ) -> str:
        options = {"tools": list(tools) or None} if self._has_tools else {}
        return self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=to_be_answered, tokenize=False, **options
        )

    def _encoded(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _turn_close(self) -> str | None:
        """Return the special token that the template puts right after an answer."""
        conversation = [{"role": "user", "content": "question"}, {"role": "assistant", "content": self._answer}]
        after = self._text(conversation, (), to_be_answered=False).rpartition(_ANSWER)[2]
        special = frozenset(self._tokenizer.all_special_ids)
        for token_id in self._encoded(after):
            text = self.decode([token_id])
            if token_id in special:
                return text
            if text.strip():
                return None
        return None

    def _reasoning_is_opened(self) -> bool:
        question = [{"role": "user", "content": "question"}]
        return self._text(question, (), to_be_answered=True).rstrip().endswith("<think>")

    def _tool_role_is_rendered(self) -> bool:
        conversation = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": "call"},
            {"role": "tool", "content": _ANSWER},
        ]
        try:
            return _ANSWER in self._text(conversation, (), to_be_answered=True)
        except Exception:  # noqa: BLE001 (templates refuse a role by raising whatever they like)
            return False

    def _injected_system_prompt(self) -> str:
        """Return the template's default system prompt, found by comparison with a rendering of a known prompt."""
        question = {"role": "user", "content": "question"}
        try:
            with_system = self._text([{"role": "system", "content": _ANSWER}, question], (), to_be_answered=True)
        except Exception:  # noqa: BLE001 (a template without system role; tools then raise in render)
            return ""
        head, _, tail = with_system.partition(_ANSWER)
        without = self._text([question], (), to_be_answered=True)
        if not (without.startswith(head) and without.endswith(tail) and len(without) > len(head) + len(tail)):
            return ""
        return without[len(head) : len(without) - len(tail)]


def _stand_in_call(index: int, result: Mapping[str, Json]) -> dict[str, Json]:
    """Return a tool call that fits a tool result, for templates that need one."""
    function = {"name": content_text(result.get("name")) or "tool", "arguments": {}}
    return {"id": content_text(result.get("tool_call_id")) or f"call_{index}", "type": "function", "function": function}
