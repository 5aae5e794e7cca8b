"""Text for a terminal. What a policy, a file or a server wrote may contain sequences that a terminal carries out."""

from __future__ import annotations

import re

_CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, line separators, overrides of the direction of text, and half characters."""


def visible(text: str) -> str:
    """Return a text with control characters in their written form, such as `\\x1b`, so that a terminal shows them."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
