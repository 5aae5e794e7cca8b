"""Determines whether the client or the policy caused a refused request, and under which name the refusal is counted.

After the first answer, the policy may influence everything that its client sends. If episodes with refused requests
were always left out of training, a policy that makes its client send such requests could discard its own failures. A
refusal therefore counts as caused by the client only if it is very unlikely that the policy's output caused it
(docs/gateway.md, "Who caused a refusal").
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
        "unknown_parameter",
        "unsupported_parameter",
        "unsupported_value",
        "unsupported_media_type",
        "item_not_found",
        "previous_response_not_found",
    }
)
"""The error codes for choices of the client: a field, an option or a reference. Sizes, numbers, texts and bodies that
cannot be read may result from the policy's output."""
UNKNOWN_ROUTE: Final = "unknown_route"
"""The error code of an unknown path or method."""
_NOT_COUNTED: Final = frozenset({401, 409, 429})
"""The error statuses that are not refusals: the request does not belong to any episode, comes after the episode's end,
or is to be repeated."""
_CONVERSATION: Final = frozenset({"messages", "input"})
_OF_AN_ITEM: Final = frozenset({"type", "role", "id"})
"""The fields of a conversation's elements that the client chooses. All others may come from the policy's output."""
_SCHEMA_WORDS: Final = frozenset(
    {
        "additionalProperties", "anyOf", "array", "boolean", "const", "description", "enum", "integer", "items", "name", "null",
        "number", "object", "properties", "required", "schema", "strict", "string", "title", "type",
    }
)  # fmt: skip
"""Keywords of JSON schemas. They do not show who wrote a schema."""


def is_refusal(error: Exception) -> bool:
    """Return whether an error means that a request of an episode cannot be read or answered unchanged."""
    return isinstance(error, ApiError) and 400 <= error.status < 500 and error.status not in _NOT_COUNTED


def reason_of(error: ApiError) -> str:
    """Return the name under which a refusal is counted. It consists of the error code, the field without indices, and
    the unknown type, if there is one."""
    place = [part for part in (error.param or "").split(".") if part and not part.isdecimal()]
    parts = [error.code or "refused", *place, *_texts(error.given if error.is_type else None)]
    return re.sub(r"[^A-Za-z0-9_.-]", "_", ".".join(parts))[:80]


def note(session: AnySession, error: ApiError, turns: Sequence[Turn]) -> None:
    """Attribute a refusal to the client or to the policy. `turns` contains the episode's turns that are used for
    learning.

    A request for an unknown route does not request a turn. Many clients try such a route, and continue if it does not
    exist. Such a refusal therefore makes the episode lost only if no turn was requested."""
    if error.code == UNKNOWN_ROUTE and turns:
        session.refusals.refuse(reason_of(error), None)
        return
    refused_by = f"The gateway refused the last request with {error.status}: {error}"
    is_clients = not turns or (_is_clients_own(error) and not _is_own_text(error.given, turns))
    session.refusals.refuse(reason_of(error), (ClientError if is_clients else OutputRefused)(refused_by))


def _is_clients_own(error: ApiError) -> bool:
    """Return whether a refusal concerns a choice that the client made."""
    if error.code not in _CLIENTS_OWN and not error.is_type:
        return False
    place = (error.param or "").split(".")
    return place[0] not in _CONVERSATION or (len(place) == 3 and place[2] in _OF_AN_ITEM)


def _is_own_text(given: Json, turns: Sequence[Turn]) -> bool:
    """Return whether the policy wrote at least half of the names and texts in the refused value. They must appear as
    whole words, but may be escaped differently. The client may then have copied them from the policy."""
    texts = {_plain(text).strip() for text in set(_texts(given)) - _SCHEMA_WORDS} - {""}
    whole = "\n".join(text for turn in turns for text in _list_texts(turn.message))
    written = f"{_plain(whole)}\n{_plain(re.sub(_CONTROL, ' ', whole))}"
    found = [text for text in texts if text in written and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", written)]
    return bool(texts) and 2 * len(found) >= len(texts)


_CONTROL: Final = re.compile(r"\\+[nrtbf]")
"""An escaped control character, or a backslash before a word."""


def _plain(text: str) -> str:
    """Return a string in lower case, without escapes. Nested escapes (JSON within JSON) are also removed."""
    text = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda escape: chr(int(escape[1], 16)), text)
    return re.sub(r"\\+", " ", text).casefold()


def _list_texts(message: Message) -> Iterator[str]:
    """Yield the texts of an answer that a client sees."""
    yield content_text(message.get("content"))
    yield message.get("reasoning_content") or ""
    for call in message.get("tool_calls") or ():
        yield f'"{call["function"]["name"]}"'
        yield call["function"]["arguments"]


def _texts(value: Json) -> Iterator[str]:
    """Yield the names and texts in a nested value."""
    values: list[Json] = [value]
    while values:
        match values.pop():
            case str() as text if text:
                yield text
            case dict() as found:
                values.extend([*found, *found.values()])
            case list() as found:
                values.extend(found)
