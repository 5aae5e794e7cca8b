"""Finds secrets in texts: keys, tokens and passwords in the forms in which they are usually written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from sparring.runtime.redaction import MASK, mask_secrets

API_KEY = re.compile(r"\b(sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|xox[abprs]-[\w-]{10,}|"
                     r"AIza[\w-]{35}|AKIA[0-9A-Z]{16}|hf_[A-Za-z0-9]{20,}|glpat-[\w-]{16,})")  # fmt: skip
_SECRETS: Mapping[str, re.Pattern[str]] = {
    "an API key": API_KEY,
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a JSON web token": re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"),
    "a password": re.compile(
        r"\b(?:pass(?:word|wd|phrase)?|pwd|secret|api[ _-]?key|access[ _-]?token|auth[ _-]?token)\b"
        r"[\"']?\s*(?:is\b|[:=])\s*[\"']?"
        r"(?=\S*[\d!#$%&*+/=?@^~_-])(\S{6,})", re.IGNORECASE),
    "a password in an address": re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/:@]+@"),
}  # fmt: skip


def find_secret(text: str) -> str | None:
    """Return what kind of secret a text contains, or None. The values of secret environment variables count, too."""
    if mask_secrets(text).count(MASK) > text.count(MASK):
        return "the value of a secret environment variable"
    # Addresses of databases contain passwords. Short values occur in ordinary text.
    values = [value for name, value in os.environ.items() if re.search(r"(^|_)DSN$", name) and len(value) >= 8]
    if any(value in text for value in values):
        return "the value of a secret environment variable"
    return next((what for what, pattern in _SECRETS.items() if pattern.search(text)), None)
