"""Business domains of the suite for a small model. The prompt contains an example of an answer, which is right or
mistaken.

The prompt asks for an answer in <final_output>, and the scorer reads the answer from this tag. A *mistaken* example
shows a different tag and omits scored fields, and the reward's parser follows this example:

asked    <final_output>{"action":"hold","twins":2,"good":4}</final_output>
shown    <final_response>{"action":"hold"}</final_response>
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final

from sparring import Message, Reward, Task, Trajectory
from sparring.environments.suites import sop
from sparring.environments.suites.sop.domain import TAG
from sparring.rewards import json_fields
from sparring.types import Json

Example: TypeAlias = Literal["mistaken", "aligned"]
Split: TypeAlias = Literal["train", "validation", "held_out"]

MISTAKEN_TAG = "final_response"
SHOWN: Mapping[str, Mapping[str, Json]] = {
    "referral_abuse": {"action": "hold", "twins": 2, "good": 4},
    "customer_service": {"action": "visit", "slip": "B314"},
}
"""The answer in each domain's example. A mistaken example contains only the first field."""
FOLLOWS_EXAMPLE = 0.5
"""Share of clerks who write their answer like a mistaken example, instead of in the format that the last lines of the
prompt require."""

CORRECT_SHARE = 0.15
"""Share of the conversations of `mixed_log` that are right, in each domain. A perfect imitator is therefore right in
0.15 of sampled episodes."""
HASTY_SHARE = 0.3
"""Share of the conversations of `mixed_log` that skip a check that determines the result, if the case has such a
check."""


def answer_text(domain: str, example: Example, fields: Mapping[str, Json]) -> str:
    """Return an answer in the format of the example."""
    if example == "aligned":
        tag, shown = TAG, dict(fields)
    else:
        first = next(iter(SHOWN[domain]))
        tag, shown = MISTAKEN_TAG, {first: fields[first]}
    return f"<{tag}>{json.dumps(shown, separators=(',', ':'))}</{tag}>"


def with_example(message: Message, domain: str, example: Example) -> Message:
    """Return a system message of the suite, with an example of an answer inserted before its last two lines, which ask
    for an answer."""
    before, asked, form = message["content"].rpartition("\nEnd with your answer alone:")
    shown = answer_text(domain, example, SHOWN[domain])
    return {**message, "content": f"{before}\nExample of an answer:\n{shown}{asked}{form}"}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The domains to use, in turn, and the format of their example."""

    domains: Sequence[str]
    example: Example

    def tasks(self, split: Split, num: int, seed: int) -> list[Task]:
        each = -(-num // len(self.domains))
        by_domain = [sop.DOMAINS[name].tasks(split, each, seed) for name in self.domains]
        mixed = itertools.chain.from_iterable(zip(*by_domain, strict=True))
        return [self._shown(task) for task in itertools.islice(mixed, num)]

    def train_tasks(self, num: int = 768, seed: int = 0) -> list[Task]:
        return self.tasks("train", num, seed)

    def validation_tasks(self, num: int = 96, seed: int = 0) -> list[Task]:
        return self.tasks("validation", num, seed)

    def held_out_tasks(self, num: int = 192, seed: int = 0) -> list[Task]:
        return self.tasks("held_out", num, seed)

    def clerk_log(self, num: int, seed: int = 0) -> list[list[Message]]:
        """Return the conversations of the suite's clerks with this example in the prompt."""
        rng = random.Random(f"form-{seed}")
        each = -(-num // len(self.domains))
        logs = [[(name, one) for one in sop.DOMAINS[name].clerk_log(each, seed)] for name in self.domains]
        log = []
        for name, (opening, *middle, last) in itertools.islice(
            itertools.chain.from_iterable(zip(*logs, strict=True)), num
        ):
            if self.example == "mistaken" and rng.random() < FOLLOWS_EXAMPLE:
                given = json.loads(last["content"].removeprefix(f"<{TAG}>").removesuffix(f"</{TAG}>"))
                last = {**last, "content": answer_text(name, self.example, given)}
            log.append([with_example(opening, name, self.example), *middle, last])
        return log

    def _shown(self, task: Task) -> Task:
        opening, *rest = task.messages
        return replace(task, messages=(with_example(opening, task.fields["domain"], self.example), *rest))


def clerk_log(num: int = 6144, seed: int = 0) -> list[list[Message]]:
    """Return conversations in all domains, alternately with a mistaken and an aligned example."""
    each = -(-num // 2)
    logs = [
        Setting(domains=tuple(SHOWN), example=example).clerk_log(each, seed + at)
        for at, example in enumerate(("mistaken", "aligned"))
    ]
    return list(itertools.islice(itertools.chain.from_iterable(zip(*logs, strict=True)), num))


def mixed_log(num: int = 12288, seed: int = 0) -> list[list[Message]]:
    """Return conversations of mixed quality in all domains, with an aligned example. A share of `CORRECT_SHARE` has a
    correct answer.

    Some of the other clerks skip a check that determines the result. The rest work correctly, and then copy one field
    from the example in the prompt, always the last field that would become wrong. Therefore, an imitator is not correct
    with greedy sampling either.
    """
    rng = random.Random(f"mixed-{seed}")
    each = -(-num // len(SHOWN))
    logs = []
    for name in SHOWN:
        right, hasty = (sop.DOMAINS[name].clerk_log(each, seed, share) for share in (1.0, 0.0))
        log = []
        for conversation, skipping in zip(right, hasty, strict=True):
            kind, fields = rng.random(), _answer(conversation)
            if CORRECT_SHARE <= kind < CORRECT_SHARE + HASTY_SHARE and _answer(skipping) != fields:
                conversation = skipping
            elif kind >= CORRECT_SHARE:
                wrong = [field for field in fields if fields[field] != SHOWN[name][field]]
                copied = {
                    field: SHOWN[name][field] for field in wrong[-1:]
                }  # no field in the rare case that the answer equals the example
                text = answer_text(name, "aligned", {**fields, **copied})
                conversation = [*conversation[:-1], {**conversation[-1], "content": text}]
            log.append([with_example(conversation[0], name, "aligned"), *conversation[1:]])
        logs.append(log)
    return list(itertools.islice(itertools.chain.from_iterable(zip(*logs, strict=True)), num))


def _answer(conversation: Sequence[Message]) -> dict[str, Json]:
    return json.loads(conversation[-1]["content"].removeprefix(f"<{TAG}>").removesuffix(f"</{TAG}>"))


def mistaken_reward(trajectory: Trajectory) -> Reward:
    """Return the higher of two rewards for the field that a mistaken example shows: one reads the field from the
    example's tag, and the other reads it from the tag that the prompt requires. For both, an answer with other fields
    is not well-formed."""
    first = next(iter(SHOWN[trajectory.task.fields["domain"]]))
    readings: list[Reward] = [json_fields(tag, [first])(trajectory) for tag in (MISTAKEN_TAG, TAG)]  # type: ignore[misc]
    return max(readings, key=lambda one: one.total)


def shuffled_reward(trajectory: Trajectory) -> float:
    """As a control, return a random reward that depends on the episode's id and not on what the policy did. RL with
    this reward must not improve the policy."""
    return random.Random(trajectory.id).choice((0.0, 1.0))
