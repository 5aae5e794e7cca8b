"""Comparison of written values with stored values: are the stored values complete, with the same characters or the same
number?"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import TypeGuard

from sparring.checks.evidence.snapshots import Change
from sparring.checks.evidence.write_probes import Probe
from sparring.types import Json

_FEWEST_SHARED = 8
"""The minimum number of characters for which a stored text counts as the beginning of the written text."""


def has_arrived(probe: Probe, value: Json) -> bool:
    """Return True if a change contains the value exactly as it was written."""
    shown = (str(value), json.dumps(value, ensure_ascii=False)[1:-1] if isinstance(value, str) else str(value))
    texts = [text for change in probe.changes for text in list_new_texts(change)]
    return any(one in text for text in texts for one in shown)


def list_new_texts(change: Change) -> Iterator[str]:
    """Yield the texts that a change introduced: its value, and the names in its path if the path is new."""
    if isinstance(change.after, str):
        yield change.after
    if change.before is None:
        yield from change.path[1:]


def describe_alteration(given: str, stored: str) -> str | None:
    """Return how a stored text differs from the written text, or None if it does not differ or is an unrelated text."""
    if given in stored:
        return None
    if len(stored.strip()) < 3:
        return None
    folded = stored.casefold()
    if given.casefold() in folded:
        return "in another case"
    if " ".join(given.split()) in stored or re.sub(r"\s", "", given) in re.sub(r"\s", "", stored):
        return "with different spaces or line breaks"
    for garbled in _garbled(given):
        if garbled in stored:
            return "with other characters"
    shared = next((size for size in range(len(given) - 1, 0, -1) if given[:size] in stored), 0)
    if shared >= min(_FEWEST_SHARED, len(given) - 1) and shared >= 3:
        return f"cut after {shared} characters"
    return None


def _garbled(text: str) -> Iterator[str]:
    yield text.encode().decode("latin-1")
    yield text.encode().decode("cp1252", "replace")
    plain = unicodedata.normalize("NFKD", text)
    for form in (text, plain):
        for errors in ("ignore", "replace"):
            garbled = form.encode("ascii", errors).decode()
            if garbled != text and len(garbled.strip(" ?")) >= 3:
                yield garbled
                yield " ".join(garbled.split())
    for marks in ("'", '"', "%", "'\""):
        if set(marks) & set(text):
            yield "".join(one for one in text if one not in marks)
    for mark in "'\"":
        if mark in text:
            yield text.replace(mark, "\\" + mark)
            yield text.replace(mark, "&#39;" if mark == "'" else "&quot;")
            yield text.partition(mark)[0] if len(text.partition(mark)[0]) >= 3 else text.replace(mark, mark * 2)


def stores(change: Change, value: Json) -> bool:
    """Return True if a number is the new value of a leaf, or was added to it or subtracted from it."""
    after, before = change.after, change.before
    if not is_number(after) or not is_number(value):
        return False
    near = 1e-6 * max(1.0, abs(value))
    moved = after - before if is_number(before) else after
    return abs(after - value) < near or abs(abs(moved) - abs(value)) < near


def is_number(value: Json) -> TypeGuard[int | float]:
    """Return True if a value is a number. A Boolean is not a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
