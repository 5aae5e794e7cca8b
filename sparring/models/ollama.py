"""Write an Ollama Modelfile: the chat template in Ollama's own language, the stop tokens and the sampling of the policy.

Ollama reads Go templates, not the Jinja templates of tokenizers. A template that only surrounds each message with fixed
texts, as ChatML does, is translated by rendering conversations and reading these texts from the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparring.types import Message

_TEXTS = {role: f"sparring-{role}" for role in ("system", "user", "assistant", "tool")}


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedTexts:
    """The texts that a chat template puts around the messages."""

    opening: str
    """The beginning of a conversation without a system message, such as a default system prompt."""
    around: Mapping[str, tuple[str, str]]
    """For each role, the texts before and after a message."""
    answer: str
    """The text that asks for an answer."""

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt of a conversation, as Ollama renders it."""
        has_system = any(message["role"] == "system" for message in messages)
        parts = [self.around[one["role"]][0] + one["content"] + self.around[one["role"]][1] for one in messages]
        return ("" if has_system else self.opening) + "".join(parts) + self.answer

    def go_template(self) -> str:
        """Return the same as a Go template over the variables of Ollama."""
        roles = [
            f'{{{{ {"if" if place == 0 else "else if"} eq .Role "{role}" }}}}{before}{{{{ .Content }}}}{after}'
            for place, (role, (before, after)) in enumerate(self.around.items())
        ]
        opening = f"{{{{ if not .System }}}}{self.opening}{{{{ end }}}}" if self.opening else ""
        return f"{opening}{{{{ range .Messages }}}}{''.join(roles)}{{{{ end }}}}{{{{ end }}}}{self.answer}"


def modelfile(tokenizer: Any, *, weights: str, stops: Sequence[str], temperature: float) -> str:
    """Return the Modelfile of a GGUF file in the same folder.

    It has no template if the chat template cannot be translated; Ollama then looks for one that it knows. The settings
    switch off the filters that Ollama applies by default, which the policy was not trained with.
    """
    texts = read_fixed_texts(tokenizer)
    lines = [f"FROM ./{weights}"]
    if texts is not None:
        lines.append(f'TEMPLATE """{texts.go_template()}"""')
    lines += [f'PARAMETER stop "{stop}"' for stop in stops]
    lines += [f"PARAMETER temperature {temperature:g}", "PARAMETER top_k 0", "PARAMETER top_p 1", "PARAMETER min_p 0"]
    return "\n".join([*lines, "PARAMETER repeat_penalty 1"]) + "\n"


def read_fixed_texts(tokenizer: Any) -> FixedTexts | None:
    """Return the texts around messages, or None if the chat template does more than to put texts around messages."""
    try:
        texts = _read(tokenizer)
        right = all(texts.render(one) == _render(tokenizer, one, asks=True) for one in _conversations(texts))
    except Exception:  # noqa: BLE001 (a template may raise any exception)
        return None
    literals = [texts.opening, texts.answer, *(text for pair in texts.around.values() for text in pair)]
    return texts if right and not any(mark in text for text in literals for mark in ("{{", '"""')) else None


def _read(tokenizer: Any) -> FixedTexts:
    user, answered = _render(tokenizer, _talk("user")), _render(tokenizer, _talk("user", "assistant"))
    before_user, after_user = _split(user, "user")
    between, after_answer = _split(_split(answered, "user")[1], "assistant")
    again = _split(_split(_render(tokenizer, _talk("user", "assistant", "user")), "assistant")[1], "user")[0]
    user_head = _without_prefix(again, after_answer)
    around = {
        "user": (user_head, after_user),
        "assistant": (_without_prefix(between, after_user), after_answer),
    }
    system, then = _split(_render(tokenizer, _talk("system", "user")), "system")
    around["system"] = (system, _split(then, "user")[0].removesuffix(user_head))
    try:
        replied = _split(_render(tokenizer, _talk("user", "assistant", "tool")), "assistant")[1]
        before_tool, after_tool = _split(replied, "tool")
        around["tool"] = (_without_prefix(before_tool, after_answer), after_tool)
    except Exception:  # noqa: BLE001 (a template may raise any exception for a role that it does not know)
        around.pop("tool", None)
    asked = _render(tokenizer, _talk("user"), asks=True)
    return FixedTexts(opening=before_user.removesuffix(user_head), around=around, answer=_without_prefix(asked, user))


def _conversations(texts: FixedTexts) -> Iterator[list[Message]]:
    yield _talk("user")
    yield _talk("system", "user")
    yield _talk("system", "user", "assistant", "user", "assistant", "user")
    yield _talk("user", "assistant", "user")
    if "tool" in texts.around:
        yield _talk("system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool")


def _talk(*roles: str) -> list[Message]:
    return [{"role": role, "content": _TEXTS[role]} for role in roles]


def _render(tokenizer: Any, messages: Sequence[Message], *, asks: bool = False) -> str:
    return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=asks))


def _split(text: str, role: str) -> tuple[str, str]:
    """Return the texts before and after the last message of a role. Raises ValueError if the message is not in the text."""
    before, found, after = text.rpartition(_TEXTS[role])
    if not found:
        raise ValueError(f"the message of {role} is not in {text!r}")
    return before, after


def _without_prefix(text: str, prefix: str) -> str:
    if not text.startswith(prefix):
        raise ValueError(f"{text!r} does not start with {prefix!r}")
    return text[len(prefix) :]
