"""Chains of one, three and six links, none of which is broken."""

from __future__ import annotations

from benchmarks.diagnosis.blind.chains import chain_log, chains
from sparring.types import Message, Task

HOPS = (1, 3, 6)


def train_tasks(num: int = 512, seed: int = 0) -> list[Task]:
    return chains("train", num, seed, HOPS)


def validation_tasks(num: int = 32, seed: int = 0) -> list[Task]:
    return chains("validation", num, seed, HOPS)


def held_out_tasks(num: int = 64, seed: int = 0) -> list[Task]:
    return chains("held_out", num, seed, HOPS)


def log(num: int = 512, seed: int = 0) -> list[list[Message]]:
    return chain_log(train_tasks(num, seed + 1), seed)
