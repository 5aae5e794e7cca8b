"""Runs and grades changed episodes again. Their rewards show what the reward depends on.

The policy's messages are replayed in a new environment for the same task. Episodes that cannot be repeated exactly,
with the same messages and the same reward, are not used. Their environment is not deterministic, or involves a user or
a model.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import final

from sparring.agents.scripted import PolicySession, saying, scripted_turn
from sparring.agents.tool_loop import play
from sparring.environments import Environment, opened
from sparring.errors import DataError
from sparring.protocols import RewardFunction, Scorer
from sparring.rewards.rules import evaluate_reward
from sparring.runtime.logs import get_logger
from sparring.scorers.score import evaluate_score
from sparring.types import Message, Trajectory, Turn

logger = get_logger(__name__)

MOST = 96
"""The largest number of episodes that are run or graded again after one step."""
SECONDS, SHARE = 3.0, 0.1
"""The time limit for all trials after one step: this many seconds, or this share of the time since the step before,
whichever is more."""
MOST_FAILURES = 8
"""After this number of episodes that could not be repeated exactly, no more episodes are tried."""


@final
class Trials:
    """Runs and grades changed episodes after a step, within a time limit, and caches the results."""

    def __init__(
        self,
        reward: RewardFunction,
        scorer: Scorer | None = None,
        *,
        make_environment: Callable[[], Environment] | None = None,
        max_turns: int = 1,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`loop` is the event loop in which environments and rewards are used during training. Without environments,
        only the last message of an episode can be changed."""
        self._reward, self._scorer = reward, scorer
        self._make_environment, self.max_turns, self._loop = make_environment, max_turns, loop
        self._known: dict[tuple[str, str], Trajectory | None] = {}
        self._repeated: dict[str, bool] = {}
        self._started, self._until, self._left = 0.0, 0.0, 0

    def begin(self) -> None:
        """Start the trials of a new step with a new time limit."""
        now = time.monotonic()
        seconds = max(SECONDS, SHARE * (now - self._started)) if self._started else SECONDS
        self._started, self._until, self._left = now, now + seconds, MOST

    @property
    def is_over(self) -> bool:
        return self._left <= 0 or time.monotonic() > self._until or self._is_hopeless

    @property
    def _is_hopeless(self) -> bool:
        return len(self._repeated) >= MOST_FAILURES and not any(self._repeated.values())

    def is_repeatable(self, one: Trajectory) -> bool:
        """Return whether the same messages lead to the same outcome and the same reward."""
        again = self.regrade(one, [turn.message for turn in one.turns])
        is_same = again is not None and _is_same(again, one)
        if one.id not in self._repeated:
            self._repeated[one.id] = is_same
        return is_same

    def regrade(self, one: Trajectory, script: Sequence[Message]) -> Trajectory | None:
        """Return the episode with these messages as the policy's messages. Return None if the episode cannot be run or
        graded, or if no time is left."""
        key = one.id, json.dumps(script, sort_keys=True, default=str)
        if key not in self._known:
            if self.is_over:
                return None
            self._left -= 1
            self._known[key] = self._run(self._try(one, tuple(script)))
        return self._known[key]

    def _run(self, trying: Awaitable[Trajectory]) -> Trajectory | None:
        left = max(0.1, self._until - time.monotonic())

        async def bounded() -> Trajectory:
            async with asyncio.timeout(left):
                return await trying

        try:
            if self._loop is None:
                return asyncio.run(bounded())
            return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result(left + 1.0)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything on a changed episode
            logger.debug("a changed episode could not be tried: %r", error)
            return None

    async def _try(self, one: Trajectory, script: tuple[Message, ...]) -> Trajectory:
        if self._make_environment is None:
            if list(script[:-1]) != [turn.message for turn in one.turns[:-1]]:
                raise DataError("without an environment, only the last message of an episode can be changed")
            changed = _with_last(one, script[-1])
        else:
            changed = await self._run_episode(one, script)
        reward = await evaluate_reward(self._reward, changed)
        score = None if self._scorer is None else (await evaluate_score(self._scorer, changed)).value
        return replace(changed, reward=reward, score=score)

    async def _run_episode(self, one: Trajectory, script: tuple[Message, ...]) -> Trajectory:
        assert self._make_environment is not None
        task = copy.deepcopy(one.task)
        environment = self._make_environment()
        session = PolicySession(saying("changed", script), task, ())
        async with opened(environment, task):
            result = await play(task, environment, session, max_turns=self.max_turns)
        return Trajectory(
            id=f"{one.id}/changed",
            task=one.task,
            attempt=one.attempt,
            turns=_priced(session.turns, one.turns),
            messages=copy.deepcopy(tuple(result.messages)),
            outcome=result.outcome,
            reward=None,
            score=None,
            metrics=result.metrics,
            transitions=tuple(result.transitions),
            final_state=result.final_state,
            error=result.error,
        )


def _is_same(again: Trajectory, one: Trajectory) -> bool:
    texts = [[(m.get("role"), m.get("content")) for m in of.messages] for of in (again, one)]
    return (
        one.reward is not None
        and again.reward is not None
        and abs(again.reward.total - one.reward.total) < 1e-6
        and again.outcome == one.outcome
        and texts[0] == texts[1]
    )


def _with_last(one: Trajectory, message: Message) -> Trajectory:
    """Return the same episode with a different last message."""
    turns = (*one.turns[:-1], replace(one.turns[-1], message=message))
    return replace(one, turns=turns, messages=(*one.messages[:-1], message), reward=None, score=None)


def _priced(turns: Sequence[Turn], before: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return turns with the token counts that the same messages had when they were sampled. For other messages, use the
    same ratio of tokens to characters."""
    known = {_text(turn.message): turn.num_sampled_tokens for turn in before}
    rate = sum(known.values()) / max(1, sum(map(len, known)))
    return tuple(
        scripted_turn(
            turn.id,
            turn.message,
            turn.fingerprint,
            known.get(_text(turn.message), round(rate * len(_text(turn.message)))),
        )
        for turn in turns
    )


def _text(message: Message) -> str:
    calls = [one["function"] for one in message.get("tool_calls") or ()]
    return json.dumps([message.get("content") or "", calls], sort_keys=True, default=str)
