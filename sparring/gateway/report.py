"""An agent's report on its episode: the end of the episode and the reward."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, TypeVar, final

from sparring.errors import AgentFailed, RewardError
from sparring.gateway.request import ApiError
from sparring.rewards.rules import to_reward
from sparring.types import AgentReport, Reward, Turn

Status: TypeAlias = Literal["ready", "failed"]
Answer = TypeVar("Answer")


@final
class EpisodeReport:
    """The state of an episode's report: open, then completed as ready or failed, then rewarded. Each happens only once.

    A completed episode accepts no more turns. Agents usually complete the episode first and then send the reward. The
    opposite order is also accepted. In that case, no turns are possible after the reward, because the reward applies to
    the turns so far. A failed episode accepts no reward: the number that agents send together with a failure is not a
    reward (docs/agents-mtrl.md, "Failures").

    A report with a client token may be sent again, and then gets the same answer. Without a token, a second report is a
    conflict.
    """

    def __init__(self, turns: Callable[[], Sequence[Turn]]) -> None:
        """Create a report. `turns` is a function that returns the turns so far. Rewards per turn refer to these
        turns."""
        self._turns = turns
        self._status: Status | None = None
        self._error = ""
        self._reward: Reward | None = None
        self._handed_over = AgentReport()
        self._refusal: str | None = None
        self._tokens: dict[tuple[str, str], object] = {}
        """The report of each operation and client token."""
        self._is_sealed = False
        self._playing: set[asyncio.Task[object]] = set()
        """The tasks that are currently sampling a turn."""
        self._stopped: set[asyncio.Task[object]] = set()
        """The tasks in `_playing` that were cancelled."""
        self._settled = asyncio.Event()

    def turns(self) -> Sequence[Turn]:
        """Return those of the episode's turns so far that are used for learning."""
        return self._turns()

    @property
    def status(self) -> Status | None:
        """The status with which the episode was completed, or None before that."""
        return self._status

    @property
    def reward(self) -> Reward | None:
        """The accepted reward, or None if there is none yet."""
        return self._reward

    @property
    def handed_over(self) -> AgentReport:
        """The state, transitions and artifacts that the agent handed over so far. Its `reward` is None."""
        return self._handed_over

    @property
    def refusal(self) -> str | None:
        """The reason why the last invalid report was refused. It is stored because agents often ignore error
        responses."""
        return self._refusal

    def complete(
        self,
        status: Status,
        *,
        error: str = "",
        handed_over: AgentReport | None = None,
        client_token: str | None = None,
    ) -> None:
        """End the turns. `error` is the reason for a failure. Raises ApiError 409 if the episode is already
        completed."""
        content = (status, error, handed_over)
        if self._is_repeated("completion", client_token, content):
            return
        if self._status is not None:
            raise self._conflict("to be completed")
        self._status, self._error = status, error
        self.hand_over(handed_over)
        self._remember("completion", client_token, content)

    def update_reward(
        self,
        value: float | Sequence[float],
        *,
        components: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
        handed_over: AgentReport | None = None,
        client_token: str | None = None,
    ) -> None:
        """Set the reward. A number, or a list with one number, is the total; a longer list has one number for each
        turn.

        Raises RewardError for any other value, and ApiError 409 if there is already a reward or the episode failed.
        """
        content = (value, components, metrics, handed_over)
        if self._is_repeated("reward", client_token, content):
            return
        if self._status == "failed" or self._reward is not None:
            raise self._conflict("for a reward")
        try:
            self._reward = _reward(value, components or {}, metrics or {}, self._turns())
        except RewardError as error:
            self._refusal = str(error)
            raise
        self.hand_over(handed_over)
        self._remember("reward", client_token, content)

    def hand_over(self, report: AgentReport | None) -> None:
        """Keep the parts of a checked report, except its reward. A part that was handed over before is replaced."""
        if report is not None:
            known = self._handed_over
            self._handed_over = AgentReport(
                final_state=known.final_state if report.final_state is None else report.final_state,
                transitions=report.transitions or known.transitions,
                artifacts={**known.artifacts, **report.artifacts},
            )

    async def wait(self) -> Reward:
        """Wait until the episode is completed and rewarded, and return the reward.

        Raises AgentFailed, which is an InfrastructureError, if the agent completed the episode as failed.
        """
        await self._settled.wait()
        if self._reward is None or self._status == "failed":
            raise AgentFailed(f"The agent gave up the episode: {self._error or 'it gave no reason'}.")
        return self._reward

    @property
    def is_open(self) -> bool:
        """Whether the episode accepts more turns."""
        return not self._is_sealed

    def check_open(self) -> None:
        """Raise ApiError 409 if the episode accepts no more turns."""
        if self._is_sealed:
            raise self._conflict("for a turn")

    async def while_open(self, answer: Awaitable[Answer]) -> Answer:
        """Await the answer and return it. As soon as the episode accepts no more turns, cancel the answer and raise
        ApiError 409."""
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

    def _is_repeated(self, operation: str, client_token: str | None, content: object) -> bool:
        """Return whether the same report was accepted before. Raises ApiError 409 if the token belongs to a different
        report."""
        if client_token is None or (operation, client_token) not in self._tokens:
            return False
        if self._tokens[operation, client_token] != content:
            raise ApiError(
                409,
                f"The client token {client_token[:64]!r} was already used for a different {operation}; "
                "use a separate token for each report.",
                code="token_reused",
            )
        return True

    def _remember(self, operation: str, client_token: str | None, content: object) -> None:
        if client_token is not None:
            self._tokens[operation, client_token] = content
        self._is_sealed = True
        for playing in self._playing - self._stopped:
            self._stopped.add(playing)
            playing.cancel()
        if self._status == "failed" or (self._status == "ready" and self._reward is not None):
            self._settled.set()

    def _conflict(self, purpose: str) -> ApiError:
        """Return the error for a conflicting report. `sagemaker.train.rft` interprets the words "not in valid status"
        as a sign that an earlier report has arrived."""
        state = {None: "is rewarded", "failed": "was completed as failed", "ready": "was completed as ready"}[
            self._status
        ]
        rewarded = " and rewarded" if self._status == "ready" and self._reward is not None else ""
        return ApiError(
            409,
            f"The trajectory is not in valid status {purpose}: it {state}{rewarded}. "
            "Request its turns first, complete it once, then reward it once.",
            code="not_in_valid_status",
        )


def _reward(
    value: float | Sequence[float], components: Mapping[str, float], metrics: Mapping[str, float], turns: Sequence[Turn]
) -> Reward:
    turn_ids, source = [turn.id for turn in turns], "The reward that the agent reports"
    if isinstance(value, Sequence) and len(value) == 1:
        # MTRL's clients send each total as a list with one number.
        (value,) = value
    reward = to_reward(value, turn_ids=turn_ids, source=source)
    return to_reward(replace(reward, components=components, metrics=metrics), turn_ids=turn_ids, source=source)
