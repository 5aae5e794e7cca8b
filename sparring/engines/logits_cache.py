"""Logits of the next token after recent histories, so that a later turn with an equal history need not compute them
again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import final

import numpy as np
from torch import Tensor

ENTRY_BYTES = 1024
"""The approximate size of one entry without its logits, in bytes."""

Key = tuple[str, bytes]
"""The fingerprint of the weights, and the digest of the history."""


def history_digest(token_ids: Sequence[int]) -> bytes:
    """Return a digest of a prompt. It has 128 bits, so that two different histories do not have equal digests in practice.
    Equal histories that are divided differently into a prompt and an answer have different digests."""
    return blake2b(np.asarray(token_ids, dtype=np.int64).tobytes(), digest_size=16).digest()


def extend_digest(digest: bytes, token_id: int) -> bytes:
    """Return the digest of a history to which a token was added."""
    return blake2b(digest + token_id.to_bytes(8, "little"), digest_size=16).digest()


@final
class LogitsCache:
    """Keeps logits [V] by weights and history, up to `max_bytes`. The least recently used are dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._logits: OrderedDict[Key, Tensor] = OrderedDict()
        self._fingerprints: set[str] = set()

    def get(self, key: Key) -> Tensor | None:
        """Return the logits, or None if they are not known."""
        found = self._logits.get(key)
        if found is not None:
            self._logits.move_to_end(key)
        return found

    def add(self, key: Key, logits_V: Tensor) -> None:
        """Keep a copy of logits."""
        self._remove(key)
        self._logits[key] = logits_V.clone()
        self._fingerprints.add(key[0])
        self._num_bytes += _size(logits_V)
        while self._num_bytes > self._max_bytes:
            self._remove(next(iter(self._logits)))

    def drop(self, *, besides: frozenset[str] = frozenset()) -> None:
        """Drop the logits of all weights with other fingerprints."""
        if self._fingerprints <= besides:
            return
        for key in [key for key in self._logits if key[0] not in besides]:
            self._remove(key)
        self._fingerprints &= besides

    def _remove(self, key: Key) -> None:
        removed = self._logits.pop(key, None)
        if removed is not None:
            self._num_bytes -= _size(removed)


def _size(logits_V: Tensor) -> int:
    return logits_V.numel() * logits_V.element_size() + ENTRY_BYTES
