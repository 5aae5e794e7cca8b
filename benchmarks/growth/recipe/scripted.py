"""Conversations with exact numbers of turns and tokens, and a policy that never ends a turn by itself."""

from __future__ import annotations

import random
from typing import Any

from sparring import Message, Task
from sparring.models.small import END, small_model
from sparring.protocols import SessionLike

CHARACTERS = "!#$%&*+=?@^~"
"""Characters that the tokenizer never merges, so that each is one token."""
LOGIT_SCALE = 4.0
"""Makes a logit of 0, as the token that ends a turn always has, as likely as one in a million."""


async def play(task: Task, session: SessionLike) -> float:
    """Run a conversation in which every user message has the same length, and return a random reward."""
    rng = random.Random(session.id)
    messages: list[Message] = []
    for _ in range(task.fields["turns"]):
        content = "".join(rng.choices(CHARACTERS, k=task.fields["characters"]))
        messages.append({"role": "user", "content": content})
        messages.append(await session.chat(messages))
    return rng.random()


def build(seed: int) -> tuple[Any, Any]:
    model, tokenizer = small_model(seed, ["user\n", "assistant\n"], width=64, layers=2, max_positions=8192)
    model.model.norm.weight.data.fill_(LOGIT_SCALE)
    embeddings: Any = model.get_input_embeddings()
    embeddings.weight.data[tokenizer.convert_tokens_to_ids(END)] = 0.0
    return model, tokenizer


def validation_tasks() -> list[Task]:
    return [_task("validation")]


def held_out_tasks() -> list[Task]:
    return [_task("held-out")]


def _task(name: str) -> Task:
    messages = ({"role": "user", "content": "!"},)
    return Task(id=name, messages=messages, fields={"turns": 1, "characters": 1})
