"""Agents that dial in: each episode is offered to the workers that poll the gateway, and held under a lease."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Protocol, final

from sparring.agents.http import DoorLike, GatewayLike, ReportLike, invocation
from sparring.agents.result import AgentResult, ended_elsewhere, has_played
from sparring.errors import AgentTimeout, DataError, InfrastructureError, RewardError, ServiceError
from sparring.sessions import AnySession
from sparring.types import Json, Outcome, Reward, Task


class OfferLike(Protocol):
    """An episode in the queue (`sparring.gateway.queue.Offer`)."""

    @property
    def is_taken(self) -> bool: ...

    @property
    def is_expired(self) -> bool: ...

    @property
    def lost(self) -> asyncio.Future[str]: ...


class QueueLike(Protocol):
    """What workers poll (`sparring.gateway.WorkQueue`)."""

    @property
    def is_polled(self) -> bool: ...

    def offer(self, invitation: Callable[[str], Json]) -> OfferLike: ...

    def withdraw(self, offer: OfferLike) -> None: ...


@final
class PullAgent:
    """Plays every task by offering it to workers, which ask the policy through the gateway and report there.

        queue = WorkQueue(worker_key)
        async with Gateway(queue=queue) as gateway:
            result = await PullAgent(queue, gateway=gateway).play(task, session)

    A worker is sent what an agent behind a URL is sent. An episode whose worker is gone is offered again as long as no
    turn was played; after that a second player would mix two plays in one session, so it fails.
    """

    def __init__(
        self,
        queue: QueueLike,
        *,
        gateway: GatewayLike,
        timeout_seconds: float = 600.0,
        max_retries: int = 3,
        job_name: str = "sparring",
        region: str = "us-east-1",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`timeout_seconds` bounds an episode, its time in the queue included; `max_retries` how often it is offered again.
        `job_name` and `region` make the job ARN."""
        self._queue = queue
        self._gateway = gateway
        self._timeout_seconds = timeout_seconds
        self._max_retries = max_retries
        self._job_name = job_name
        self._region = region
        self._sleep = sleep

    async def play(self, task: Task, session: AnySession) -> AgentResult:
        """Play one episode. The policy's own limits become outcomes without reward when the agent fails over them, and a failure
        that a worker reports after a turn becomes `policy_error`.

        Raises ServiceError when no worker has polled in time; InfrastructureError when no worker was free, when the one that
        took the episode is gone, does not finish in time, gives it up before a turn, or never asks the policy; RewardError
        when it reports a reward that is none; DataError when the task is no JSON.
        """
        try:
            reward = await self._play(task, session)
        except InfrastructureError as failure:
            return ended_elsewhere(failure, session)
        if not has_played(session):
            raise InfrastructureError(
                "The worker finished the episode without asking the policy for a turn, so what it reported is not the policy's; "
                "have it ask the endpoint or base_url that it is sent."
            )
        return AgentResult(outcome=Outcome.FINISHED, reward=reward)

    async def _play(self, task: Task, session: AnySession) -> Reward | None:
        """Offer the episode until a worker plays it; never again once one has asked for a turn. None: it reported no reward."""
        time_over, num_offers = asyncio.ensure_future(self._sleep(self._timeout_seconds)), 0
        try:
            while True:
                # A door for each worker: should one that seemed gone go on, it is not heard.
                door = self._gateway.register(session)
                offer, num_offers = self._queue.offer(self._invitation(task, session, door)), num_offers + 1
                try:
                    reward = await self._reward(door.report, offer, time_over)
                finally:
                    self._queue.withdraw(offer)
                    if door.report.status is None:
                        door.report.complete("failed", error="its time was over")
                if reward is not None:
                    return reward
                if self._is_unrewarded(door.report, offer) and session.failure is None:
                    return None
                failure = self._failure(door.report, offer, session)
                is_untouched = offer.lost.done() and door.report.status == "failed" and not session.episode_turns
                if not is_untouched or session.failure is not None or num_offers > self._max_retries:
                    raise failure
        finally:
            time_over.cancel()

    async def _reward(self, report: ReportLike, offer: OfferLike, time_over: asyncio.Future[None]) -> Reward | None:
        """The reward, once the episode is over; None when its worker is gone before, or the time is over.

        Raises InfrastructureError when the agent gives up.
        """
        reporting = asyncio.ensure_future(report.wait())
        try:
            await asyncio.wait({reporting, offer.lost, time_over}, return_when=asyncio.FIRST_COMPLETED)
            if offer.lost.done() and report.reward is not None and report.status is None:
                # Its worker is done with it, so it is over.
                report.complete("ready")
            is_over = report.status == "failed" or (report.status == "ready" and report.reward is not None)
            return await reporting if is_over else None
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    def _is_unrewarded(self, report: ReportLike, offer: OfferLike) -> bool:
        """Whether the worker completed the episode and gave it back. One that fell silent between its reports is an outage."""
        return report.status == "ready" and offer.lost.done() and not offer.is_expired and report.refusal is None

    def _failure(
        self, report: ReportLike, offer: OfferLike, session: AnySession
    ) -> InfrastructureError | RewardError | ServiceError:
        """Why there is no reward."""
        within = f"within {self._timeout_seconds:g} s"
        if not offer.is_taken and not self._queue.is_polled:
            return ServiceError(
                f"No worker has polled for an episode {within}. Start one as the console said when the run began, with its "
                "address and key; a worker that was started and finds no run says so itself."
            )
        if not offer.is_taken:
            return InfrastructureError(
                f"No worker was free for the episode {within}. Start more of them, or set rollout.rollout_max_concurrency to "
                "the number of episodes that they play at once."
            )
        ended = offer.lost.result() if offer.lost.done() else f"did not finish it {within}"
        ended = f"The worker that took the episode {ended}, after {len(session.episode_turns)} turns"
        if report.refusal:
            return RewardError(f"{ended}, and the reward that it reported was refused: {report.refusal}")
        return (InfrastructureError if offer.lost.done() else AgentTimeout)(f"{ended}.")

    def _invitation(self, task: Task, session: AnySession, door: DoorLike) -> Callable[[str], Json]:
        """What a worker is sent, by the address under which it reaches the gateway."""

        def invitation(endpoint: str) -> Json:
            return invocation(
                task, session.sampling, door, endpoint=endpoint, job_name=self._job_name, region=self._region
            )

        try:
            json.dumps(invitation(door.endpoint), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"Task {task.id} cannot be sent to a worker: {error}. Use values in its dataset that JSON has."
            ) from error
        return invitation
