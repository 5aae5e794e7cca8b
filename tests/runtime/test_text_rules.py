"""Rules for texts that leave a run: what they replace, and which are refused."""

from __future__ import annotations

import pytest

from sparring.runtime.text_rules import build_redactor, redact_json

TEXTS = (
    ("email", "write to alice.b+x@mail.example.com, please", "write to [email], please"),
    ("phone", "call +49 30 1234567 today", "call [phone] today"),
    ("iban", "pay to DE89 3704 0044 0532 0130 00", "pay to [iban]"),
    ("api_key", "key sk-abcdefghijklmnop1234", "key [api_key]"),
    (r"\bACME-\d{4}\b", "order ACME-1234 of ACME", "order [redacted] of ACME"),
)


@pytest.mark.parametrize(("rule", "text", "redacted"), TEXTS)
def test_a_rule_replaces_what_it_matches_and_nothing_else(rule: str, text: str, redacted: str) -> None:
    assert build_redactor([rule])(text) == redacted
    assert build_redactor([])(text) == text


def test_all_texts_of_a_value_are_redacted_and_its_numbers_stay() -> None:
    value = {"a@b.org": [1.5, "a@b.org", {"of": ("a@b.org", None)}], "n": 3}
    assert redact_json(value, build_redactor(["email"])) == {
        "[email]": [1.5, "[email]", {"of": ["[email]", None]}],
        "n": 3,
    }


@pytest.mark.parametrize(
    ("rule", "problem"),
    [("emial", "did you mean email"), ("names", "is not a ready name"), ("(", "not a regular"), ("a*", "empty text")],
)
def test_a_rule_that_would_do_nothing_or_everything_is_refused(rule: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        build_redactor([rule])
