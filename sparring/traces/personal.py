"""Personal data that patterns find in conversations. Names and addresses have no pattern, so a log without findings may
contain personal data too."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from sparring.runtime.secret_texts import find_secret
from sparring.runtime.text_rules import EMAIL, IBAN, PHONE
from sparring.traces.conversation import Conversation

_PATTERNS = {"e-mail addresses": EMAIL, "phone numbers": PHONE, "account numbers (IBAN)": IBAN}
_CARD = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w.-])")


def count_personal_data(conversations: Sequence[Conversation]) -> dict[str, int]:
    """Return the number of conversations that contain each kind of personal data, without the kinds that none has."""
    texts = [json.dumps(list(one.messages), ensure_ascii=False) for one in conversations]
    counts = {kind: sum(bool(pattern.search(text)) for text in texts) for kind, pattern in _PATTERNS.items()}
    counts["keys or passwords"] = sum(find_secret(text) is not None for text in texts)
    counts["card numbers"] = sum(any(map(_passes_luhn, _CARD.findall(text))) for text in texts)
    return {kind: count for kind, count in counts.items() if count}


def _passes_luhn(text: str) -> bool:
    """Return whether the check digit of a card number is right (ISO/IEC 7812-1, the Luhn algorithm)."""
    digits = [int(letter) for letter in reversed(text) if letter.isdigit()]
    return sum(digits[::2]) % 10 == -sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2]) % 10
