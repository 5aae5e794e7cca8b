"""Whose doing it is that a request was refused, and under which name it is counted.

Whatever an episode's client sends after the policy's first answer, the policy may have led it to. Could it make its
client send what is refused, and were such an episode left out, it could void its failures. So a refusal is the client's
own only where the policy's output can hardly be what was refused (docs/gateway.md, "Whose refusal it is").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from sparring.chat.messages import content_text
from sparring.errors import ClientError, OutputRefused
from sparring.gateway.request import ApiError
from sparring.sessions import AnySession
from sparring.types import Json, Message, Turn

_CLIENTS_OWN: Final = frozenset(
    {
        "unknown_parameter", "unsupported_parameter", "unsupported_value", "unsupported_media_type", "item_not_found",
        "previous_response_not_found",
    }
)  # fmt: skip
"""Codes of what a client chooses: a field, an option, a reference. Sizes, numbers, texts and bodies that cannot be read
follow from what the policy says."""
UNKNOWN_ROUTE: Final = "unknown_route"
"""Code of a path or a method that there is not."""
_NOT_COUNTED: Final = frozenset({401, 409, 429})
"""Of no episode; after its end; to be sent again."""
_CONVERSATION: Final = frozenset({"messages", "input"})
_OF_AN_ITEM: Final = frozenset({"type", "role", "id"})
"""What of an element of the conversation is the client's choice; all else may be something that the policy said or did."""
_SCHEMA_WORDS: Final = frozenset(
    {
        "additionalProperties", "anyOf", "array", "boolean", "const", "description", "enum", "integer", "items", "name", "null",
        "number", "object", "properties", "required", "schema", "strict", "string", "title", "type",
    }
)  # fmt: skip
"""Of JSON schemas, which tell nothing of who wrote one."""


def is_refusal(error: Exception) -> bool:
    """Whether an error says that a request of an episode cannot be read or honored as it is."""
    return isinstance(error, ApiError) and 400 <= error.status < 500 and error.status not in _NOT_COUNTED


def reason_of(error: ApiError) -> str:
    """The name under which a refusal is counted: its code, the place without the numbers of elements, an unknown type."""
    place = [part for part in (error.param or "").split(".") if part and not part.isdecimal()]
    parts = [error.code or "refused", *place, *_texts(error.given if error.is_type else None)]
    return re.sub(r"[^A-Za-z0-9_.-]", "_", ".".join(parts))[:80]


def note(session: AnySession, error: ApiError, turns: Sequence[Turn]) -> None:
    """Put a refusal down to the client or to the policy; `turns` are those of the episode that learn.

    An unknown route asks for no turn: many clients try one and go on without it, whatever becomes of the episode. So it loses
    only episodes whose policy was never asked."""
    if error.code == UNKNOWN_ROUTE and turns:
        session.refusals.refuse(reason_of(error), None)
        return
    refused_by = f"The gateway refused the last request with {error.status}: {error}"
    is_clients = not turns or (_is_clients_own(error) and not _is_said(error.given, turns))
    session.refusals.refuse(reason_of(error), (ClientError if is_clients else OutputRefused)(refused_by))


def _is_clients_own(error: ApiError) -> bool:
    """Whether a refusal points to what a client chooses."""
    if error.code not in _CLIENTS_OWN and not error.is_type:
        return False
    place = (error.param or "").split(".")
    return place[0] not in _CONVERSATION or (len(place) == 3 and place[2] in _OF_AN_ITEM)


def _is_said(given: Json, turns: Sequence[Turn]) -> bool:
    """Whether the policy said half or more of the names and texts of what was refused, as whole words and in any notation: its
    client may have them from there."""
    texts = {_plain(text).strip() for text in set(_texts(given)) - _SCHEMA_WORDS} - {""}
    whole = "\n".join(said for turn in turns for said in _said(turn.message))
    said = f"{_plain(whole)}\n{_plain(re.sub(_CONTROL, ' ', whole))}"
    found = [text for text in texts if text in said and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", said)]
    return bool(texts) and 2 * len(found) >= len(texts)


_CONTROL: Final = re.compile(r"\\+[nrtbf]")
"""A control character in a notation; or a backslash before a word."""


def _plain(text: str) -> str:
    """A text without what notations add to it: escapes, also of escapes as in JSON within JSON, and upper case."""
    text = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda escape: chr(int(escape[1], 16)), text)
    return re.sub(r"\\+", " ", text).casefold()


def _said(message: Message) -> Iterator[str]:
    """What a client sees of an answer."""
    yield content_text(message.get("content"))
    yield message.get("reasoning_content") or ""
    for call in message.get("tool_calls") or ():
        yield f'"{call["function"]["name"]}"'
        yield call["function"]["arguments"]


def _texts(value: Json) -> Iterator[str]:
    """Names and texts in a value, however deep."""
    values: list[Json] = [value]
    while values:
        match values.pop():
            case str() as text if text:
                yield text
            case dict() as found:
                values.extend([*found, *found.values()])
            case list() as found:
                values.extend(found)
