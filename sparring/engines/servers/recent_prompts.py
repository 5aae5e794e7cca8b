"""Remember which server has which prompts in its prefix cache."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Generic, TypeVar, final

NUM_KEPT = 1024
"""The number of latest prompts that are remembered."""
Server = TypeVar("Server")


@final
class RecentPrompts(Generic[Server]):
    """The servers that answered the latest prompts. Only the length and a digest of a prompt are kept.

    A later turn of a conversation repeats the prompt of an earlier one, also if each turn has a session of its own.
    """

    def __init__(self) -> None:
        self._servers: dict[tuple[int, bytes], tuple[Server, ...]] = {}

    def note(self, prompt_ids: Sequence[int], server: Server) -> None:
        """Remember that a server answered a prompt."""
        key = len(prompt_ids), _digest_of(prompt_ids).digest()
        others = self._servers.pop(key, ())
        self._servers[key] = others if server in others else (*others, server)
        if len(self._servers) > NUM_KEPT:
            del self._servers[next(iter(self._servers))]

    def find(self, prompt_ids: Sequence[int]) -> tuple[Server, ...]:
        """Return the servers that answered the longest prompt that these ids continue. Equal ids do not continue a prompt,
        so that conversations with the same first turn are spread over the servers."""
        found, digest, place = (), _digest_of(()), 0
        for length in sorted({number for number, _ in self._servers if number < len(prompt_ids)}):
            digest.update(array("q", prompt_ids[place:length]))
            place = length
            found = self._servers.get((length, digest.digest()), found)
        return found


def _digest_of(token_ids: Sequence[int]) -> blake2b:
    return blake2b(array("q", token_ids), digest_size=16)
