"""A chat for any tokenizer with a chat template. It renders the prompt once, and after that only new messages."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

from sparring.chat import bracket_calls
from sparring.chat.constraints import AnswerGrammar, Reasoning
from sparring.chat.messages import content_text, json_text, plain
from sparring.chat.tool_calls import parse_assistant, render_assistant, tools_text
from sparring.errors import DataError
from sparring.protocols import SpliceRefused
from sparring.types import AnswerFormat, Constraint, Json, Message, ToolSchema

_ANSWER = "sparring-answer"
"""Replaces the sampled answer when the template is rendered to find out what follows an answer."""


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
    """Describe how the chat template contradicts itself, or return None if it does not. A template contradicts itself
    if its generation prompt starts with a different special token than an answer in the conversation. In that case, the
    model was not trained on one of the two tokens."""
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
    except Exception:  # noqa: BLE001 (a template may raise any exception)
        return None
    if _ANSWER not in given:
        return None
    known = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    before, *both = (
        [one for one in tokenizer.encode(text, add_special_tokens=False) if one in known]
        for text in (closed, asked, given.partition(_ANSWER)[0])
    )
    # The first special token of an answer is the first token after those that it shares with the question.
    begins = [tokenizer.decode(markers[len(before) :][:1], skip_special_tokens=False) for markers in both]
    if begins[0] == begins[1]:
        return None
    shown = [repr(one) if one else "no special token" for one in begins]
    return f"it starts the generation prompt with {shown[0]} but an answer in the conversation with {shown[1]}"


_MOST_CACHED = 65_536
"""The most characters of messages whose ids are cached. Long prompts, which a stranger may send too, would take gigabytes."""


@final
class TemplateChat:
    """Implements `protocols.Chat` with the tokenizer's own template.

    A template that supports tools receives tools and tool calls unchanged. If it shows tools but drops the calls of an
    answer, the calls are written into the answer's text as Hermes tags. For any other template, tools are described in
    the system prompt, and calls are written as Hermes tags. Tool results have the role `tool` if the template accepts
    it, and otherwise the role `user`. The calls of Mistral models are parsed in these models' own format.

    The next prompt is never rendered as a whole. Instead, rendering a placeholder conversation shows which text the
    template puts after an answer, and only that text is tokenized. The text starts with a special token, so no token
    spans the boundary.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Detect the template's behavior from a few small renderings. Raises DataError if the tokenizer has no
        template."""
        if not tokenizer.chat_template:
            raise DataError(
                "This tokenizer has no chat template; use an instruct model, or add a chat template to the tokenizer."
            )
        self._tokenizer = tokenizer
        template = str(tokenizer.chat_template)
        self._has_tools = "tools" in template
        self._has_brackets = bracket_calls.MARK in template
        # The stand-in answer contains reasoning if the template supports reasoning. It shows whether the template drops
        # earlier reasoning.
        self._answer = f"<think>\nreason\n</think>\n\n{_ANSWER}" if "</think>" in template else _ANSWER
        self._drops_calls = self._has_tools and self._calls_are_dropped()
        self._accepts_tool_role = self._has_tools or self._tool_role_is_rendered()
        self._close = self._turn_close()
        close_ids = [] if self._close is None else self._encoded(self._close)
        eos = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self._stop_ids = frozenset([*close_ids, *eos])
        self._default_system = "" if self._has_tools else self._injected_system_prompt()
        self._opens_reasoning = self._reasoning_is_opened()
        # The episodes of a group share prompts and often tool results. Keys are JSON, and results are immutable.
        self._render = functools.lru_cache(maxsize=256)(self._render_uncached)
        self._follow = functools.lru_cache(maxsize=1024)(self._follow_uncached)

    @property
    def stop_ids(self) -> frozenset[int]:
        return self._stop_ids

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return the ids of the whole prompt. Raises DataError if the template rejects the messages."""
        key = json_text([[plain(message) for message in messages], list(tools)])
        return self._render(key) if len(key) <= _MOST_CACHED else self._render_uncached(key)

    def extend(
        self, played: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema], *, stopped: bool
    ) -> tuple[int, ...]:
        """Return the ids that follow. Only the new messages are rendered. Raises SpliceRefused."""
        key = json_text(self._named_as_sampled([plain(message) for message in new], played))
        following = self._follow(key) if len(key) <= _MOST_CACHED else self._follow_uncached(key)
        # An answer that was cut, or that stopped with another id, is closed with the template's own closing token.
        return following[1:] if stopped and played[-1] == following[0] else following

    def answer(self, message: Message, tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return the ids of an assistant message, including its closing tokens. Raises DataError if the template does
        not close answers with a special token."""
        if self._close is None:
            raise DataError(
                "The chat template does not close an answer with a special token; answers cannot be demonstrated."
            )
        if not self._has_tools:
            return tuple(self._encoded(render_assistant(message) + self._close))
        question = {"role": "user", "content": "question"}
        prompt = self._text([question], tools, to_be_answered=True)
        whole = self._text(self._adapted([question, plain(message)], tools), tools, to_be_answered=False)
        end = whole.rfind(self._close) + len(self._close)
        if not whole.startswith(prompt):
            raise DataError(
                "The chat template renders a demonstrated answer differently from a sampled one, so answers cannot be "
                "demonstrated."
            )
        return tuple(self._encoded(whole[len(prompt) : end]))

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Message:
        """Return the assistant message. Text in `<think>` at the start of the answer goes to "reasoning_content", even
        if the prompt contains the opening tag. An answer that was cut off within the reasoning consists only of
        reasoning."""
        end = len(token_ids)
        while end > 0 and token_ids[end - 1] in self._stop_ids:
            end -= 1
        text = self.decode(token_ids[:end])
        parse = bracket_calls.parse_bracketed if self._has_brackets else parse_assistant
        if not self._opens_reasoning and not text.lstrip().startswith("<think>"):
            return parse(text)
        reasoning, _, answer = text.partition("</think>")
        return {**parse(answer), "reasoning_content": reasoning.strip().removeprefix("<think>").strip()}

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def constraint(self, answer_format: AnswerFormat, tools: Sequence[ToolSchema]) -> Constraint | None:
        """Return the grammar of answers in this form, or None if every answer has this form. Raises ConstraintError."""
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
                f"{error}. Send the roles in an order that the template accepts."
            ) from error

    def _follow_uncached(self, key: str) -> tuple[int, ...]:
        """Return the ids that the template puts after an answer, starting with the end of the turn."""
        new: list[dict[str, Json]] = json.loads(key)
        if self._close is None:
            raise SpliceRefused("the template does not close an answer with a special token")
        answer: dict[str, Json] = {"role": "assistant", "content": self._answer}
        results = [message for message in new if message.get("role") == "tool"]
        if self._has_tools and results:
            answer["tool_calls"] = [_stand_in_call(index, result) for index, result in enumerate(results)]
        before = self._adapted([{"role": "user", "content": "question"}, answer], ())
        try:
            short = self._text(before, (), to_be_answered=False)
            long = self._text([*before, *self._adapted(new, ())], (), to_be_answered=True)
        except Exception as error:
            raise SpliceRefused(f"the template refuses the messages that follow the answer: {error}") from error
        close_at = short.rfind(self._close)
        if not long.startswith(short[: close_at + len(self._close)]):
            raise SpliceRefused("the template changes an answer when messages follow it")
        return tuple(self._encoded(long[close_at:]))

    def _adapted(self, messages: list[dict[str, Json]], tools: Sequence[ToolSchema]) -> list[dict[str, Json]]:
        """Return messages that the template accepts. If the template supports tools, the messages are unchanged."""
        if self._has_brackets:
            return bracket_calls.with_short_ids(messages)
        if self._drops_calls:
            return [_with_written_calls(message) for message in messages]
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

    def _named_as_sampled(self, new: list[dict[str, Json]], played: Sequence[int]) -> list[dict[str, Json]]:
        """Return the new messages, with the ids that the policy wrote in its calls as the ids of the tool results."""
        if not self._has_brackets or not any(message.get("role") == "tool" for message in new):
            return new
        return bracket_calls.with_short_ids(new, bracket_calls.sampled_ids(self.decode(played)))

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
        """Return the special token that the template puts directly after an answer."""
        conversation = [{"role": "user", "content": "question"}, {"role": "assistant", "content": self._answer}]
        after = self._text(conversation, (), to_be_answered=False).rpartition(_ANSWER)[2]
        special = frozenset(self._tokenizer.all_special_ids)
        for token_id in self._encoded(after):
            text = self.decode([token_id])
            if text.strip():
                # Gemma's tokenizer does not list the end of a turn among its special ids, but decodes it as one.
                shown = self._tokenizer.decode([token_id], skip_special_tokens=True)
                return text if token_id in special or not shown else None
        return None

    def _reasoning_is_opened(self) -> bool:
        question = [{"role": "user", "content": "question"}]
        return self._text(question, (), to_be_answered=True).rstrip().endswith("<think>")

    def _calls_are_dropped(self) -> bool:
        """Return whether the template renders an answer without its tool calls."""
        question: dict[str, Json] = {"role": "user", "content": "question"}
        answer: dict[str, Json] = {"role": "assistant", "content": ""}
        calling = {**answer, "tool_calls": [_stand_in_call(0, {"tool_call_id": "call00000"})]}
        try:
            without, with_call = (self._text([question, one], (), to_be_answered=False) for one in (answer, calling))
        except Exception:  # noqa: BLE001 (a template may raise any exception)
            return False
        return without == with_call

    def _tool_role_is_rendered(self) -> bool:
        conversation = [
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": "call"},
            {"role": "tool", "content": _ANSWER},
        ]
        try:
            return _ANSWER in self._text(conversation, (), to_be_answered=True)
        except Exception:  # noqa: BLE001 (a template may raise any exception)
            return False

    def _injected_system_prompt(self) -> str:
        """Return the template's default system prompt. It is derived by comparison with a rendering that has a known
        system prompt."""
        question = {"role": "user", "content": "question"}
        try:
            with_system = self._text([{"role": "system", "content": _ANSWER}, question], (), to_be_answered=True)
        except Exception:  # noqa: BLE001 (a template without a system role; `render` then refuses tools)
            return ""
        head, _, tail = with_system.partition(_ANSWER)
        without = self._text([question], (), to_be_answered=True)
        if not (without.startswith(head) and without.endswith(tail) and len(without) > len(head) + len(tail)):
            return ""
        return without[len(head) : len(without) - len(tail)]


def _with_written_calls(message: Mapping[str, Json]) -> dict[str, Json]:
    if not message.get("tool_calls"):
        return dict(message)
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": render_assistant(message, is_spaced=True)}


def _stand_in_call(index: int, result: Mapping[str, Json]) -> dict[str, Json]:
    """Return a tool call that fits a tool result, for templates that need one."""
    function = {"name": content_text(result.get("name")) or "tool", "arguments": {}}
    return {"id": content_text(result.get("tool_call_id")) or f"call_{index}", "type": "function", "function": function}
