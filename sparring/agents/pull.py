"""Pull agents: workers poll the gateway for episodes, and get each episode with a lease."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Protocol, final

from sparring.agents.http import MTRL_JOB, GatewayLike, MtrlJob, ReportedEndpoint, ReportLike, invocation
from sparring.agents.result import AgentResult, ended_elsewhere, has_played
from sparring.errors import AgentLost, AgentTimeout, DataError, InfrastructureError, RewardError, ServiceError
from sparring.sessions import AnySession
from sparring.types import Json, Reward, Task


class OfferLike(Protocol):
    """An episode in the queue (`sparring.gateway.queue.Offer`)."""

    @property
    def is_taken(self) -> bool:
        """Whether a worker has taken the episode."""
        ...

    @property
    def is_expired(self) -> bool:
        """Whether the lease of its worker has expired."""
        ...

    @property
    def lost(self) -> asyncio.Future[str]:
        """A future that is set when the worker no longer holds the episode. Its result describes why."""
        ...


class QueueLike(Protocol):
    """The queue that workers poll (`sparring.gateway.WorkQueue`)."""

    @property
    def is_polled(self) -> bool:
        """Whether workers poll the queue."""
        ...

    def offer(self, invitation: Callable[[str], Json]) -> OfferLike:
        """Offer an episode. `invitation` returns the message for a worker, given the gateway's address."""
        ...

    def withdraw(self, offer: OfferLike) -> None:
        """Withdraw an offer, whether or not a worker has taken it."""
        ...


@final
class PullAgent:
    """An agent that offers each episode to workers. The workers use the policy through the gateway and report their
    results to the gateway.

        queue = WorkQueue(worker_key)
        async with Gateway(queue=queue) as gateway:
            result = await PullAgent(queue, gateway=gateway).play(task, session)

    A worker gets the same message as an agent behind a URL. If a worker disappears before the first turn of its
    episode, the episode is offered again. After a turn, the episode fails instead, since a second worker would mix two
    rollouts in one session.
    """

    def __init__(
        self,
        queue: QueueLike,
        *,
        gateway: GatewayLike,
        timeout_seconds: float = 600.0,
        max_retries: int = 3,
        job: MtrlJob = MTRL_JOB,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Create an agent. `timeout_seconds` limits the duration of an episode, including its time in the queue.
        `max_retries` is the number of times that an episode may be offered again."""
        self._queue = queue
        self._gateway = gateway
        self._timeout_seconds = timeout_seconds
        self._max_retries = max_retries
        self._job = job
        self._sleep = sleep

    async def play(self, task: Task, session: AnySession) -> AgentResult:
        """Run one episode. If the agent fails because the policy reached a limit, that limit is the outcome, without a
        reward. If a worker reports a failure after a turn, the outcome is `policy_error`.

        Raises ServiceError if no worker has polled in time. Raises InfrastructureError if no worker was free. It is
        also raised if the worker that took the episode disappears, does not finish in time, gives up the episode before
        the first turn, or requests no turn. Raises RewardError if the worker reports an invalid reward, and DataError
        if the task cannot be written as JSON.
        """
        try:
            played = await self._play(task, session)
        except InfrastructureError as failure:
            return ended_elsewhere(failure, session)
        if not has_played(session):
            raise InfrastructureError(
                "The worker finished the episode but requested no turn from the policy, so its report is not about the "
                "policy. Make it use the endpoint or base_url in the message that it gets."
            )
        return played

    async def _play(self, task: Task, session: AnySession) -> AgentResult:
        """Offer the episode until a worker runs it, but do not offer it again after a turn has been requested. The result
        has no reward if the worker reported none."""
        time_over, num_offers = asyncio.ensure_future(self._sleep(self._timeout_seconds)), 0
        try:
            while True:
                # Each worker gets a new endpoint: if a worker that seemed gone continues, its requests are refused.
                episode_endpoint = self._gateway.register(session)
                offer, num_offers = self._queue.offer(self._invitation(task, session, episode_endpoint)), num_offers + 1
                try:
                    reward = await self._reward(episode_endpoint.report, offer, time_over)
                finally:
                    self._queue.withdraw(offer)
                    if episode_endpoint.report.status is None:
                        episode_endpoint.report.complete("failed", error="its time was over")
                is_unrewarded = self._is_unrewarded(episode_endpoint.report, offer) and session.failure is None
                if reward is not None or is_unrewarded:
                    return AgentResult.of_report(episode_endpoint.report.handed_over, reward)
                failure = self._failure(episode_endpoint.report, offer, session)
                is_untouched = (
                    offer.lost.done() and episode_endpoint.report.status == "failed" and not session.episode_turns
                )
                if not is_untouched or session.failure is not None or num_offers > self._max_retries:
                    raise failure
        finally:
            time_over.cancel()

    async def _reward(self, report: ReportLike, offer: OfferLike, time_over: asyncio.Future[None]) -> Reward | None:
        """Wait for the end of the episode and return the reward. Return None if its worker disappears or the time runs
        out first.

        Raises InfrastructureError if the agent gives up the episode.
        """
        reporting = asyncio.ensure_future(report.wait())
        try:
            await asyncio.wait({reporting, offer.lost, time_over}, return_when=asyncio.FIRST_COMPLETED)
            if offer.lost.done() and report.reward is not None and report.status is None:
                # The worker has ended its lease, so the episode is over.
                report.complete("ready")
            is_over = report.status == "failed" or (report.status == "ready" and report.reward is not None)
            return await reporting if is_over else None
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    def _is_unrewarded(self, report: ReportLike, offer: OfferLike) -> bool:
        """Return whether the worker completed the episode without a reward. An expired lease does not count; it is an
        infrastructure failure."""
        return report.status == "ready" and offer.lost.done() and not offer.is_expired and report.refusal is None

    def _failure(
        self, report: ReportLike, offer: OfferLike, session: AnySession
    ) -> InfrastructureError | RewardError | ServiceError:
        """Return the error that explains why there is no reward."""
        within = f"within {self._timeout_seconds:g} s"
        if not offer.is_taken and not self._queue.is_polled:
            return ServiceError(
                f"No worker has polled for an episode {within}. Start one with the command, address and key that the "
                "console "
                "showed at the start of the run. A worker that cannot reach the run logs the error itself."
            )
        if not offer.is_taken:
            return InfrastructureError(
                f"No worker was free for the episode {within}. Start more workers, or set "
                "rollout.rollout_max_concurrency to "
                "the number of episodes that the workers run at once."
            )
        ended = offer.lost.result() if offer.lost.done() else f"did not finish it {within}"
        ended = f"The worker that took the episode {ended}, after {len(session.episode_turns)} turns"
        if report.refusal:
            return RewardError(f"{ended}, and the reward that it reported was refused: {report.refusal}")
        if not offer.lost.done():
            return AgentTimeout(f"{ended}.")
        return (AgentLost if offer.is_expired and has_played(session) else InfrastructureError)(f"{ended}.")

    def _invitation(self, task: Task, session: AnySession, episode_endpoint: ReportedEndpoint) -> Callable[[str], Json]:
        """Return a function that maps the address at which a worker reaches the gateway to the message for that
        worker."""

        def invitation(endpoint: str) -> Json:
            return invocation(task, session.sampling, episode_endpoint, endpoint=endpoint, job=self._job)

        try:
            json.dumps(invitation(episode_endpoint.endpoint), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"Task {task.id} cannot be sent to a worker: {error}. Use only values in its dataset that JSON can "
                "represent."
            ) from error
        return invitation
