"""On-policy distillation: each sampled token gets an advantage from a teacher (docs/algorithms.md, "A teacher").

The advantage is log p_teacher - log p_policy of the token, after the same history and at the same temperature. Its
expected policy gradient is that of -KL(policy || teacher), the reverse KL divergence after this history.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol, TypeAlias

from sparring.algorithms.credit import TokenAdvantages
from sparring.errors import ServiceError, SparringError
from sparring.runtime import event_loop
from sparring.runtime.cancellable import raise_if_cancelled
from sparring.types import Task, TrajectoryGroup, Turn

SCORED_AT_ONCE = 8
"""The number of texts that are sent to a teacher at once."""

Text: TypeAlias = tuple[float, tuple[int, ...]]
"""The temperature of a turn, and the ids of its prompt and its answer."""


class LogprobSource(Protocol):
    """Returns log-probabilities of given ids. Every `protocols.Engine` with this capability is one."""

    async def logprobs(self, token_ids: Sequence[int], temperature: float = 1.0, first: int = 1) -> list[float]: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The policy that a run learns from."""

    name: str
    """The name of the teacher's section in [policies]."""
    source: LogprobSource
    coef: float
    """The factor of the teacher's advantages."""

    def score(self, groups: Sequence[TrajectoryGroup]) -> dict[Text, list[float]]:
        """Return the teacher's log-probabilities of the last ids of each text, including those of all trained answers
        that end there.

        A text that begins another text is scored as a part of it. This function blocks, and must not be called in the
        event loop. Raises ServiceError if the teacher does not score all texts.
        """
        first_of: dict[Text, int] = {}
        turns = [turn for turn in _list_turns(groups) if turn.is_trained]
        whole_of = _find_whole_texts(_text_of(turn) for turn in turns)
        for turn in turns:
            whole = whole_of[_text_of(turn)]
            first_of[whole] = min(first_of.get(whole, len(turn.prompt_ids)), len(turn.prompt_ids))
        wanted, scores = list(first_of.items()), dict[Text, list[float]]()
        for begin in range(0, len(wanted), SCORED_AT_ONCE):
            raise_if_cancelled()
            scores |= event_loop.submit(self._score(dict(wanted[begin : begin + SCORED_AT_ONCE]))).result()
        return {text: scores[whole][: len(text[1]) - first_of[whole]] for text, whole in whole_of.items()}

    async def _score(self, first_of: Mapping[Text, int]) -> dict[Text, list[float]]:
        """Return the log-probabilities of each text's ids from an index on."""
        calls = (self.source.logprobs(ids, temperature, first) for (temperature, ids), first in first_of.items())
        scores: dict[Text, list[float]] = {}
        for text, found in zip(first_of, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(found, SparringError):
                raise self._failed(str(found)) from found
            if isinstance(found, BaseException):
                raise found
            if len(found) != len(text[1]) - first_of[text] or not all(map(math.isfinite, found)):
                raise self._failed("it did not return one finite log-probability for each token")
            scores[text] = found
        return scores

    def _failed(self, problem: str) -> ServiceError:
        return ServiceError(
            f"the teacher (policies.{self.name}) did not score the tokens of this step: {problem.rstrip('.')}. Nothing was "
            "trained on them. Correct the cause, and resume the run."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Teachers:
    """The policies that a run learns from, by kind of task. Several kinds may have the same teacher."""

    by_kind: Mapping[str, Teacher]
    kind_of: Callable[[Task], str]

    @property
    def all(self) -> Sequence[Teacher]:
        return list(dict.fromkeys(self.by_kind.values()))

    def of(self, task: Task) -> Teacher | None:
        """Return the teacher of a task, or None if tasks of this kind have none."""
        return self.by_kind.get(self.kind_of(task))

    async def close(self) -> None:
        for teacher in self.all:
            await teacher.source.close()


def distill(groups: Sequence[TrajectoryGroup], teachers: Teachers) -> tuple[TokenAdvantages, Mapping[str, float]]:
    """Return the advantage of each token from the teacher of its task, and the mean of log p_policy - log p_teacher over
    all trained tokens, and for each teacher if there are several. Tokens of tasks without a teacher get 0.

    Raises the errors of `Teacher.score`."""
    advantages = compute_advantages([group for group in groups if teachers.of(group.task) is None], {}, coef=0.0)[0]
    divergences: dict[str, list[float]] = {}
    for teacher in teachers.all:
        own = [group for group in groups if teachers.of(group.task) == teacher]
        found, divergences[teacher.name] = compute_advantages(own, teacher.score(own), coef=teacher.coef)
        advantages = {**advantages, **found}
    every = [one for several in divergences.values() for one in several]
    metrics = {"training/teacher_kl": fmean(every)} if every else {}
    if len(divergences) > 1:
        metrics |= {f"training/teacher_kl/{name}": fmean(several) for name, several in divergences.items() if several}
    return advantages, metrics


def compute_advantages(
    groups: Sequence[TrajectoryGroup], scores: Mapping[Text, Sequence[float]], *, coef: float
) -> tuple[TokenAdvantages, list[float]]:
    """Return coef * (log p_teacher - log p_policy) of each trained token, and log p_policy - log p_teacher of those tokens.

    `scores` are the teacher's log-probabilities of the last ids of each text. Without a score, and for tokens that are not
    trained, the advantage is 0.
    """
    divergences: list[float] = []

    def compare(turn: Turn) -> tuple[float, ...]:
        score = scores.get(_text_of(turn)) if turn.is_trained else None
        if score is None:
            return (0.0,) * len(turn.token_ids)
        answer = score[-len(turn.token_ids) :]
        found = [known - sampled for known, sampled in zip(answer, turn.sampled_logprobs, strict=True)]
        divergences.extend(-one for one in found)
        return tuple(coef * one for one in found)

    advantages = {
        trajectory.id: tuple(map(compare, trajectory.turns)) for group in groups for trajectory in group.trajectories
    }
    return advantages, divergences


def _list_turns(groups: Iterable[TrajectoryGroup]) -> Iterator[Turn]:
    return (turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns)


def _text_of(turn: Turn) -> Text:
    return turn.sampling.temperature, turn.prompt_ids + turn.token_ids


def _find_whole_texts(texts: Iterable[Text]) -> dict[Text, Text]:
    """Return, for each text, the longest text of the same temperature that begins with it."""
    found: dict[Text, Text] = {}
    whole: Text | None = None
    # In this order, a text comes directly after the texts that begin with it.
    for text in sorted(set(texts), reverse=True):
        if whole is None or whole[0] != text[0] or whole[1][: len(text[1])] != text[1]:
            whole = text
        found[text] = whole
    return found
