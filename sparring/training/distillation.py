"""On-policy distillation: each sampled token gets an advantage from a teacher (docs/algorithms.md, "A teacher").

The advantage is log p_teacher - log p_policy of the token, after the same history and at the same temperature. Its
expected gradient is that of the per-token reverse KL divergence, KL(policy || teacher).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol, TypeAlias

from sparring.algorithms.credit import TokenAdvantages
from sparring.errors import ServiceError, SparringError
from sparring.runtime import event_loop
from sparring.runtime.cancellable import raise_if_cancelled
from sparring.types import TrajectoryGroup, Turn

SCORED_AT_ONCE = 8
"""The number of texts that are sent to a teacher at once."""

Text: TypeAlias = tuple[float, tuple[int, ...]]
"""The temperature of a turn, and the ids of its prompt and its answer."""


class LogprobSource(Protocol):
    """Returns log-probabilities of given ids. Every `protocols.Engine` with this capability is one."""

    async def logprobs(self, token_ids: Sequence[int], temperature: float = 1.0) -> list[float]: ...

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
        """Return the teacher's log-probability of each id of each trained turn except the first id of the text.

        A text that begins another text is scored as a part of it. This function blocks, and must not be called in the
        event loop. Raises ServiceError if the teacher does not score all texts.
        """
        whole_of = _find_whole_texts(_text_of(turn) for turn in _trained_turns(groups))
        wanted = list(dict.fromkeys(whole_of.values()))
        scores: dict[Text, list[float]] = {}
        for begin in range(0, len(wanted), SCORED_AT_ONCE):
            raise_if_cancelled()
            texts = wanted[begin : begin + SCORED_AT_ONCE]
            scores |= zip(texts, event_loop.submit(self._score(texts)).result(), strict=True)
        return {text: scores[whole][: len(text[1]) - 1] for text, whole in whole_of.items()}

    async def _score(self, texts: Sequence[Text]) -> list[list[float]]:
        calls = (self.source.logprobs(ids, temperature) for temperature, ids in texts)
        scores: list[list[float]] = []
        for (_, ids), found in zip(texts, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(found, SparringError):
                raise self._failed(str(found)) from found
            if isinstance(found, BaseException):
                raise found
            if len(found) != len(ids) - 1 or not all(map(math.isfinite, found)):
                raise self._failed("it did not return one finite log-probability for each token")
            scores.append(found)
        return scores

    def _failed(self, problem: str) -> ServiceError:
        return ServiceError(
            f"the teacher (policies.{self.name}) did not score the tokens of this step: {problem.rstrip('.')}. Nothing was "
            "trained on them. Correct the cause, and resume the run."
        )


def distill(groups: Sequence[TrajectoryGroup], teacher: Teacher) -> tuple[TokenAdvantages, Mapping[str, float]]:
    """Return the advantage of each token from its teacher, and metrics. Raises the errors of `Teacher.score`."""
    return compute_advantages(groups, teacher.score(groups), coef=teacher.coef)


def compute_advantages(
    groups: Sequence[TrajectoryGroup], scores: Mapping[Text, Sequence[float]], *, coef: float
) -> tuple[TokenAdvantages, Mapping[str, float]]:
    """Return coef * (log p_teacher - log p_policy) of each trained token, and the mean of log p_policy - log p_teacher.

    `scores` are the teacher's log-probabilities of each text. Tokens that are not trained get 0.
    """
    differences: dict[tuple[str, int], list[float]] = {}
    for trajectory in (one for group in groups for one in group.trajectories):
        for turn in trajectory.turns:
            if turn.is_trained:
                answer = scores[_text_of(turn)][-len(turn.token_ids) :]
                differences[trajectory.id, turn.id] = [
                    known - sampled for known, sampled in zip(answer, turn.sampled_logprobs, strict=True)
                ]
    advantages = {
        trajectory.id: tuple(
            tuple(coef * one for one in differences.get((trajectory.id, turn.id), [0.0] * len(turn.token_ids)))
            for turn in trajectory.turns
        )
        for group in groups
        for trajectory in group.trajectories
    }
    every = [-one for values in differences.values() for one in values]
    return advantages, {"training/teacher_kl": fmean(every)} if every else {}


def _trained_turns(groups: Iterable[TrajectoryGroup]) -> Iterable[Turn]:
    return (turn for group in groups for one in group.trajectories for turn in one.turns if turn.is_trained)


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
