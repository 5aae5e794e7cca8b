"""Seeds that depend only on the run, task, attempt and turn, and never on time or order."""

from __future__ import annotations

import hashlib


def episode_seed(run_seed: int, task_id: str, attempt: int) -> int:
    """Return the seed of one attempt at one task. It has 63 bits and is equal in every process and on every machine."""
    return _hashed(f"{run_seed}\x00{task_id}\x00{attempt}")


def policy_seed(seed: int, name: str) -> int:
    """Return the seed of one named policy in an episode with `seed`. The policy's samples therefore do not
    depend on the other policies."""
    return _hashed(f"{seed}\x00policy\x00{name}")


def turn_seed(seed: int, turn: int) -> int:
    """Return the seed of one turn of an episode with `seed`."""
    return _hashed(f"{seed}\x00turn\x00{turn}")


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
