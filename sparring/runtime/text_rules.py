"""Rules that replace parts of texts, such as e-mail addresses, before the texts leave a run.

A rule is a ready name in READY or a regular expression. Names of persons and postal addresses have no pattern.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence

from sparring.runtime.secret_texts import API_KEY
from sparring.types import Json

EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w")
PHONE = re.compile(r"(?<![\w.])\+\d{1,3}[ .-]?\(?\d{1,4}\)?[ .-]?\d{2,4}[ .-]?\d{2,4}(?:[ .-]?\d{2,4})?(?!\w)")
IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b")
READY: Mapping[str, re.Pattern[str]] = {"email": EMAIL, "phone": PHONE, "iban": IBAN, "api_key": API_KEY}


def build_redactor(rules: Sequence[str]) -> Callable[[str], str]:
    """Return a function that replaces what the rules match: by `[email]` for the ready name `email`, by `[redacted]` for a
    regular expression. Raises ValueError for a rule that `check_rule` refuses."""
    for rule in rules:
        check_rule(rule)
    patterns = [(READY[rule], f"[{rule}]") if rule in READY else (re.compile(rule), "[redacted]") for rule in rules]

    def redact(text: str) -> str:
        for pattern, mark in patterns:
            text = pattern.sub(mark, text)
        return text

    return redact


def check_rule(rule: str) -> str:
    """Return the rule. Raises ValueError for an unknown ready name, a text that is not a regular expression, and one that
    matches the empty text."""
    if rule in READY:
        return rule
    if re.fullmatch(r"[A-Za-z_]+", rule):
        nearest = difflib.get_close_matches(rule, READY, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"the names are {', '.join(READY)}."
        raise ValueError(f"{rule!r} is not a ready name; {hint} To replace a word, write it as \\b{rule}\\b")
    try:
        is_empty = re.compile(rule).search("") is not None
    except re.error as error:
        raise ValueError(f"{rule!r} is not a regular expression: {error}") from error
    if is_empty:
        raise ValueError(f"{rule!r} matches the empty text, so it would match everywhere")
    return rule


def redact_json(value: Json, redact: Callable[[str], str]) -> Json:
    """Return a JSON value with all its texts redacted, keys of objects included."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact(key): redact_json(part, redact) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [redact_json(part, redact) for part in value]
    return value
