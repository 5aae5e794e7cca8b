"""Seeds that depend on what is played (run, task, attempt, turn), never on when."""

from __future__ import annotations

import hashlib


def episode_seed(run_seed: int, task_id: str, attempt: int) -> int:
    """The seed of one attempt at one task: 63 bits, stable across processes and machines."""
    return _hashed(f"{run_seed}\x00{task_id}\x00{attempt}")


def policy_seed(seed: int, name: str) -> int:
    """The seed of one named policy in an episode that has `seed`: what the others do does not change its draws."""
    return _hashed(f"{seed}\x00policy\x00{name}")


def turn_seed(seed: int, turn: int) -> int:
    """The seed of one turn of an episode that has `seed`."""
    return _hashed(f"{seed}\x00turn\x00{turn}")


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
