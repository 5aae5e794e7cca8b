"""Server-sent events that contain JSON (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparring.types import Json

# The JSON stays ASCII, since some clients end a line at U+2028 and similar characters.


def unnamed_event(content: Mapping[str, Json]) -> bytes:
    """Return an event without a name."""
    return f"data: {json.dumps(content, allow_nan=False)}\n\n".encode()


def named_event(content: Mapping[str, Json]) -> bytes:
    """Return an event whose name is the type of its content."""
    return f"event: {content['type']}\ndata: {json.dumps(content, allow_nan=False)}\n\n".encode()
