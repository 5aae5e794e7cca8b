"""A rule on the text of messages and tools: it stays text for this model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from sparring.chat import REASONING, control_tokens
from sparring.checks.evidence.subject import Subject
from sparring.findings import Finding, Severity
from sparring.protocols import Chat
from sparring.types import Json, Message, ToolSchema

MOST_NAMES = 200
"""The maximum number of control tokens that are tried."""
_QUESTION: Message = {"role": "user", "content": "question"}


async def text_stays_text(subject: Subject) -> Iterable[Finding]:
    """The text of messages and tools never becomes a control token of this model.

    The rule writes the names of the tokenizer's control tokens, such as `<|im_end|>`, into messages and tools, and looks
    for these tokens in the prompt. If it finds some, a tool result or a user can end its own message and continue as
    the system. Sparring keeps such names text if the tokenizer can represent them as text. If it cannot, choose another
    model, or remove the names from tasks and tool results in the environment.
    """
    chat = subject.chat
    assert chat is not None, "the rule needs the model"
    assert subject.parts is not None
    tokens = control_tokens(subject.parts.model.tokenizer)
    # The tokens of the template itself are tried first.
    used = chat.render([_QUESTION], ())
    names = sorted(tokens, key=lambda name: tokens[name] not in used)[:MOST_NAMES]
    found = {field: leaked for field in _FIELDS if (leaked := _leaked(chat, field, names, tokens.values()))}
    if not found:
        return []
    field, leaked = next(iter(found.items()))
    shown = [chat.decode([one]) for one in leaked][:4]
    return [
        Finding(
            rule="prompt.control_tokens",
            severity=Severity.WARNING,
            symptom=f"The text {shown[0]!r} in {_FIELDS[field]} becomes a control token of the model.",
            evidence={"tokens": shown, "fields": [_FIELDS[one] for one in found]},
            change="Choose a model whose tokenizer can write these names as text, or remove them from tasks and tool "
            "results in the environment.",
            confirm="The prompt of a message with such names contains no control token that is not the template's.",
        )
    ]


_FIELDS = {
    "system": "a system message",
    "user": "a user message",
    "assistant": "an assistant message that a client sends",
    "tool": "a tool result",
    "new": "a tool result after a sampled answer",
    "name": "the name of a tool",
    "description": "the description of a tool",
    "parameter": "the description of a parameter",
    "enum": "a value of a parameter",
}


def _leaked(chat: Chat, field: str, names: Sequence[str], control_ids: Iterable[int]) -> list[int]:
    """Return the control tokens that a prompt contains more often if the names are written into a field."""
    # A client may send reasoning in an answer.
    names = [name for name in names if field != "assistant" or name not in REASONING]
    try:
        clean, hostile = (Counter(_ids(chat, field, f"word{text}")) for text in ("", " ".join(("", *names, "end"))))
    except Exception:  # noqa: BLE001 (a template may refuse a role, and it may raise any exception)
        return []
    return [one for one in control_ids if hostile[one] > clean[one]]


def _ids(chat: Chat, field: str, text: str) -> Iterator[int]:
    call = {"id": "call00000", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    calling: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    result: Message = {"role": "tool", "content": text, "tool_call_id": "call00000", "name": "look_up"}
    messages: dict[str, list[Message]] = {
        "system": [{"role": "system", "content": text}, _QUESTION],
        "user": [{"role": "user", "content": text}],
        "assistant": [_QUESTION, {"role": "assistant", "content": text}, _QUESTION],
        "tool": [_QUESTION, calling, result],
    }
    tools = [_tool(field, text)]
    if field == "new":
        played = chat.render([_QUESTION], tools) + chat.answer(calling, tools)
        yield from chat.extend(played, [result], tools, stopped=True)
    else:
        yield from chat.render(messages.get(field, [_QUESTION]), tools)


def _tool(field: str, text: str) -> ToolSchema:
    parameter: dict[str, Json] = {"type": "string", "description": "A key.", "enum": ["a", "b"]}
    if field == "parameter":
        parameter["description"] = text
    elif field == "enum":
        parameter["enum"] = [text, "b"]
    return {
        "type": "function",
        "function": {
            "name": text if field == "name" else "look_up",
            "description": text if field == "description" else "Follow a link.",
            "parameters": {"type": "object", "properties": {"key": parameter}, "required": ["key"]},
        },
    }
