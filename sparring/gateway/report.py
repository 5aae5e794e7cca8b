"""What an agent reports of its episode: that it is over, and what it earned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, TypeVar, final

from sparring.errors import AgentFailed, RewardError
from sparring.gateway.request import ApiError
from sparring.rewards.rules import to_reward
from sparring.types import Reward, Turn

Status: TypeAlias = Literal["ready", "failed"]
Answer = TypeVar("Answer")


@final
class EpisodeReport:
    """Open, then completed as ready or failed, then rewarded: each once, and nothing leads back.

    A completed episode takes no more turns. Agents complete first and reward then; the other order is taken too, and
    then the reward already ends the turns, since it was given for those. A failed episode takes no reward: the number
    that agents send along with a failure is no reward (docs/agents-mtrl.md, "Failures").

    A report that carries a client token may be sent again, and is answered as the first time; without one the second
    is a conflict.
    """

    def __init__(self, turns: Callable[[], Sequence[Turn]]) -> None:
        """`turns` gives those played so far, to which a reward per turn is addressed."""
        self._turns = turns
        self._status: Status | None = None
        self._error = ""
        self._reward: Reward | None = None
        self._refusal: str | None = None
        self._tokens: dict[tuple[str, str], object] = {}
        """What was reported under each operation and client token."""
        self._is_sealed = False
        self._playing: set[asyncio.Task[object]] = set()
        """Tasks that play a turn now."""
        self._stopped: set[asyncio.Task[object]] = set()
        """Those of them that were told to stop."""
        self._settled = asyncio.Event()

    def turns(self) -> Sequence[Turn]:
        """Those of the episode that learn, so far."""
        return self._turns()

    @property
    def status(self) -> Status | None:
        """As what it was completed, if it was."""
        return self._status

    @property
    def reward(self) -> Reward | None:
        """The reward, if one was taken."""
        return self._reward

    @property
    def refusal(self) -> str | None:
        """Why the last reward that could not be taken could not: agents tend to swallow what they are told."""
        return self._refusal

    def complete(self, status: Status, *, error: str = "", client_token: str | None = None) -> None:
        """End the turns. `error` says why the agent gave up. Raises ApiError 409 the second time."""
        said = (status, error)
        if self._is_repeated("completion", client_token, said):
            return
        if self._status is not None:
            raise self._conflict("to be completed")
        self._status, self._error = status, error
        self._remember("completion", client_token, said)

    def update_reward(
        self,
        value: float | Sequence[float],
        *,
        components: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
        client_token: str | None = None,
    ) -> None:
        """Take the reward: a number or a list of one is the total, a longer list has one for each turn.

        Raises RewardError for anything else, ApiError 409 when there is a reward already or the episode failed.
        """
        said = (value, components, metrics)
        if self._is_repeated("reward", client_token, said):
            return
        if self._status == "failed" or self._reward is not None:
            raise self._conflict("for a reward")
        try:
            self._reward = _reward(value, components or {}, metrics or {}, self._turns())
        except RewardError as error:
            self._refusal = str(error)
            raise
        self._remember("reward", client_token, said)

    async def wait(self) -> Reward:
        """The reward, as soon as the episode is completed and rewarded.

        Raises AgentFailed, which is an InfrastructureError, when the agent completed it as failed.
        """
        await self._settled.wait()
        if self._reward is None or self._status == "failed":
            raise AgentFailed(f"The agent gave the episode up: {self._error or 'it did not say why'}.")
        return self._reward

    @property
    def is_open(self) -> bool:
        """Whether turns are taken."""
        return not self._is_sealed

    def check_open(self) -> None:
        """Raises ApiError 409 when no more turns are taken."""
        if self._is_sealed:
            raise self._conflict("for a turn")

    async def while_open(self, answer: Awaitable[Answer]) -> Answer:
        """What is awaited. It is cancelled, and ApiError 409 raised, as soon as no more turns are taken."""
        playing = asyncio.current_task()
        assert playing is not None
        self._playing.add(playing)
        try:
            return await answer
        except asyncio.CancelledError:
            if playing not in self._stopped:
                raise
            playing.uncancel()
            raise self._conflict("for a turn") from None
        finally:
            self._playing.discard(playing)
            self._stopped.discard(playing)

    def _is_repeated(self, operation: str, client_token: str | None, said: object) -> bool:
        """Whether this very report was taken before. Raises ApiError 409 for a token that came with another one."""
        if client_token is None or (operation, client_token) not in self._tokens:
            return False
        if self._tokens[operation, client_token] != said:
            raise ApiError(
                409, f"The client token {client_token[:64]!r} came with another {operation} before; "
                "give each report a token of its own.",
                code="token_reused",
            )  # fmt: skip
        return True

    def _remember(self, operation: str, client_token: str | None, said: object) -> None:
        if client_token is not None:
            self._tokens[operation, client_token] = said
        self._is_sealed = True
        for playing in self._playing - self._stopped:
            self._stopped.add(playing)
            playing.cancel()
        if self._status == "failed" or (self._status == "ready" and self._reward is not None):
            self._settled.set()

    def _conflict(self, purpose: str) -> ApiError:
        """`sagemaker.train.rft` takes "not in valid status" to mean that the report arrived the first time."""
        state = {None: "is rewarded", "failed": "was completed as failed", "ready": "was completed as ready"}[
            self._status
        ]
        rewarded = " and rewarded" if self._status == "ready" and self._reward is not None else ""
        return ApiError(
            409, f"The trajectory is not in valid status {purpose}: it {state}{rewarded}. "
            "Play its turns, complete it once, then reward it once.",
            code="not_in_valid_status",
        )  # fmt: skip


def _reward(
    value: float | Sequence[float], components: Mapping[str, float], metrics: Mapping[str, float], turns: Sequence[Turn]
) -> Reward:
    turn_ids, source = [turn.id for turn in turns], "The reward that the agent reports"
    if isinstance(value, Sequence) and len(value) == 1:
        # MTRL's clients send every total as such a list.
        (value,) = value
    reward = to_reward(value, turn_ids=turn_ids, source=source)
    return to_reward(replace(reward, components=components, metrics=metrics), turn_ids=turn_ids, source=source)
