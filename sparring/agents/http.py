"""Agents behind a URL: each episode is one POST, in the format of SageMaker MTRL and in simpler formats."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self, final

import httpx

from sparring.agents.endpoint import EndpointLike
from sparring.agents.result import AgentResult, ended_elsewhere, has_played, limit_met
from sparring.chat.messages import without_half_characters
from sparring.errors import (
    AgentFailed,
    AgentLost,
    AgentTimeout,
    DataError,
    InfrastructureError,
    RewardError,
    ServiceError,
    UsageError,
)
from sparring.rewards.reports import read_report
from sparring.runtime.clock import SYSTEM_CLOCK, Clock
from sparring.runtime.connections import Client
from sparring.sessions import AnySession
from sparring.types import AgentReport, Json, Reward, Sampling, Task

_CONNECT_SECONDS = 10.0
_GRACE_SECONDS = 2.0
"""Seconds to wait for an agent's answer after its report, since the answer may contain metrics."""
_LONGEST_PAUSE_SECONDS = 30.0
_UNDER_WAY = frozenset({"processing", "accepted", "running", "started", "pending", "queued"})
"""Values of `status` in an answer that only confirms that the agent has started."""
_OUTAGES = frozenset({429, 502, 503, 504})
"""Statuses of servers and proxies that are down or overloaded. The policy's output cannot cause them."""


class ReportLike(Protocol):
    """An agent's report on its episode to the gateway (`sparring.gateway.report.EpisodeReport`)."""

    @property
    def status(self) -> Literal["ready", "failed"] | None:
        """The status that the agent reported, or None before its report."""
        ...

    @property
    def reward(self) -> Reward | None:
        """The reported reward, or None before its report."""
        ...

    @property
    def handed_over(self) -> AgentReport:
        """The state, transitions and artifacts that the agent has handed over."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why a reported reward was rejected, or None if no reward was rejected."""
        ...

    def complete(self, status: Literal["ready", "failed"], *, error: str = "") -> None:
        """Set the final status."""
        ...

    def update_reward(self, value: float | Sequence[float]) -> None:
        """Set the reward: a number, or one number per turn."""
        ...

    def hand_over(self, report: AgentReport | None) -> None:
        """Keep the state, transitions and artifacts of a checked report."""
        ...

    async def wait(self) -> Reward:
        """Wait until the episode is complete, and return its reward."""
        ...


class ReportedEndpoint(EndpointLike, Protocol):
    """An endpoint to which an agent also reports on its episode (`sparring.gateway.EpisodeEndpoint`)."""

    @property
    def endpoint(self) -> str:
        """The gateway's address, without `/v1`."""
        ...

    @property
    def report(self) -> ReportLike:
        """The agent's report on its episode."""
        ...


class GatewayLike(Protocol):
    """A running gateway, which opens endpoints (`sparring.gateway.Gateway`)."""

    def register(self, session: AnySession) -> ReportedEndpoint:
        """Open an endpoint for a session."""
        ...


class _Undelivered(Exception):
    """Raised if the agent cannot be reached (then `is_unreachable` is set), reports an infrastructure failure, or fails in
    its own code (then `is_own` is set)."""

    def __init__(self, problem: str, *, is_own: bool = False, is_unreachable: bool = False) -> None:
        super().__init__(problem)
        self.is_own, self.is_unreachable = is_own, is_unreachable

    def failure(self, url: str, session: AnySession) -> InfrastructureError:
        """Return the error of the episode. The policy may have ended an agent whose connection breaks after a turn."""
        lost = AgentLost if self.is_unreachable and has_played(session) else InfrastructureError
        return (AgentFailed if self.is_own else lost)(f"The agent at {url} failed: {self}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushLimits:
    """The limits for posting episodes to an agent. Raises UsageError for limits that would not let any episode
    start."""

    timeout_seconds: float = 600.0
    """The maximum duration of one attempt."""
    max_retries: int = 3
    max_concurrency: int = 96
    tps_limit: float = 5.0
    """The maximum number of episodes that start per second."""

    def __post_init__(self) -> None:
        for name in ("timeout_seconds", "max_concurrency", "tps_limit"):
            number = getattr(self, name)
            if not number > 0:
                raise UsageError(f"{name} = {number} would not let any episode start; give a number above 0.")
        if self.max_retries < 0:
            raise UsageError(f"max_retries = {self.max_retries} would not allow any attempt; give 0 or more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MtrlJob:
    """The training job in the ARN that is sent to agents written for SageMaker MTRL. Raises UsageError for a name that
    an ARN cannot contain."""

    name: str = "sparring"
    region: str = "us-east-1"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", self.name):
            raise UsageError(
                f"job_name = {self.name!r} cannot be part of an ARN; use up to 63 letters, digits and hyphens."
            )


PUSH_LIMITS, MTRL_JOB = PushLimits(), MtrlJob()


@final
class HttpAgent:
    """An agent behind a URL. It gets each episode in one POST, uses the policy through the gateway and grades the
    episode.

        async with Gateway() as gateway, HttpAgent("http://127.0.0.1:9000/rollout", gateway=gateway) as agent:
            result = await agent.play(task, session)

    The reward is taken from the agent's answer or from its report to the gateway, whichever comes first. If the agent's
    answer only confirms that it has started, `play` waits for its report. A failure never becomes a reward of 0
    (docs/agents-mtrl.md, "Failures").
    """

    def __init__(
        self,
        url: str,
        *,
        gateway: GatewayLike,
        limits: PushLimits = PUSH_LIMITS,
        headers: Mapping[str, str] | None = None,
        endpoint: str | None = None,
        job: MtrlJob = MTRL_JOB,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        """Create an agent. `endpoint` is the address at which the agent reaches the gateway, if it is not the gateway's
        own address. Raises UsageError for invalid settings."""
        if not re.match(r"https?://[^/]+", url):
            raise UsageError(
                f"url = {url!r} is not the address of an agent; give the whole URL, http://HOST:PORT/PATH."
            )
        self._url = url
        self._gateway = gateway
        self._limits = limits
        self._endpoint = endpoint.rstrip("/") if endpoint else None
        self._job = job
        self._clock = clock
        self._rng = rng or random.Random()
        self._slots = asyncio.Semaphore(limits.max_concurrency)
        self._next_start = -math.inf
        self._checking = asyncio.Lock()
        self._is_healthy = False
        # Only the episode's timeout limits the duration of an answer, and only the slots limit the number of
        # connections.
        self._client = Client(
            url,
            headers={"content-type": "application/json", **(headers or {})},
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
        )

    async def play(self, task: Task, session: AnySession) -> AgentResult:
        """Run one episode. If the agent fails because the policy reached a limit, that limit is the outcome, without a
        reward. If the agent's own code fails after a turn, the outcome is `policy_error`.

        Raises InfrastructureError if the agent fails before the first turn, reports an infrastructure failure, cannot
        be reached, does not answer in time, or requests no turn. Raises RewardError if the agent answers but gives no
        valid reward in time. Raises ServiceError if the agent cannot be reached before the first episode, and DataError
        if the task cannot be written as JSON.
        """
        await self._check_health()
        async with self._slots:
            try:
                played = await self._play(task, session)
            except InfrastructureError as failure:
                return ended_elsewhere(failure, session)
        if not has_played(session):
            raise InfrastructureError(
                f"The agent at {self._url} finished the episode but requested no turn from the policy, so its report is "
                "not about the policy. Make the agent use the endpoint or base_url in the message that it gets."
            )
        return played

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.aclose()

    async def _check_health(self) -> None:
        """Check once, before the first episode, that the agent answers. Any status below 500 is accepted, since not
        every agent implements this route."""
        async with self._checking:
            if self._is_healthy:
                return
            url = httpx.URL(self._url).copy_with(raw_path=b"/health")
            try:
                response = await self._client.get(url, timeout=_CONNECT_SECONDS)
            except httpx.TransportError as error:
                raise ServiceError(
                    f"The agent at {self._url} cannot be reached: GET {url} failed with {error!r}. Start it, or correct "
                    "the URL."
                ) from error
            if response.status_code >= 500:
                raise ServiceError(
                    f"The agent at {self._url} is not ready: GET {url} answered {response.status_code}. Check its log."
                )
            self._is_healthy = True

    async def _play(self, task: Task, session: AnySession) -> AgentResult:
        """Post the episode until the agent accepts it. Do not post it again after the agent has requested a turn."""
        problem: _Undelivered | None = None
        for attempt in range(self._limits.max_retries + 1):
            if attempt > 0:
                # Full jitter, so that episodes that failed together are not retried together.
                longest = min(_LONGEST_PAUSE_SECONDS, 0.25 * 2**attempt)
                await self._clock.sleep(self._rng.uniform(0.0, longest))
                if session.episode_turns or session.failure is not None:
                    break
            await self._pace()
            # Each attempt has a new endpoint: if an agent that seemed lost continues, its requests are refused.
            episode_endpoint = self._gateway.register(session)
            try:
                return await self._attempt(
                    self._invocation(task, session.sampling, episode_endpoint), episode_endpoint.report, session
                )
            except _Undelivered as error:
                problem = error
            finally:
                if episode_endpoint.report.status is None:
                    episode_endpoint.report.complete("failed", error="its time was over")
        assert problem is not None, "an accepted episode has returned"
        raise problem.failure(self._url, session) from problem

    async def _pace(self) -> None:
        """Wait until this episode may start under `tps_limit`."""
        now = self._clock.monotonic()
        start = max(now, self._next_start)
        self._next_start = start + 1.0 / self._limits.tps_limit
        if start > now:
            await self._clock.sleep(start - now)

    async def _attempt(self, body: bytes, report: ReportLike, session: AnySession) -> AgentResult:
        """Post once and wait for the reward. An answer that hands over something, but no reward, also ends the episode.
        Raises _Undelivered if the agent did not accept the episode."""
        pushing, reporting = asyncio.ensure_future(self._push(body)), asyncio.ensure_future(report.wait())
        try:
            async with asyncio.timeout(self._limits.timeout_seconds):
                await asyncio.wait({pushing, reporting}, return_when=asyncio.FIRST_COMPLETED)
                if not reporting.done():
                    _take(await pushing, report)
                    if report.status == "ready" and report.reward is None and pushing.result().hands_over:
                        return AgentResult.of_report(report.handed_over, None)
                reward = await reporting
            await asyncio.wait({pushing}, timeout=_GRACE_SECONDS)
            answer = pushing.result() if pushing.done() and pushing.exception() is None else Answer()
        except TimeoutError as error:
            is_cut_short = limit_met(session.failure) is not None
            raise self._overdue(report, has_begun=pushing.done() and not is_cut_short) from error
        finally:
            for task in (pushing, reporting):
                task.cancel()
            await asyncio.gather(pushing, reporting, return_exceptions=True)
        report.hand_over(answer.handed_over)
        return AgentResult.of_report(
            report.handed_over,
            replace(
                reward, components=reward.components or answer.components, metrics={**answer.metrics, **reward.metrics}
            ),
        )

    def _overdue(self, report: ReportLike, *, has_begun: bool) -> InfrastructureError | RewardError:
        if not has_begun and report.status is None:
            return AgentTimeout(f"The agent at {self._url} did not answer within {self._limits.timeout_seconds:g} s.")
        refusal = f" The reward that it reported was refused: {report.refusal}" if report.refusal else ""
        missing = "completed" if report.reward is not None else "rewarded"
        return RewardError(
            f"The agent at {self._url} accepted the episode, but the episode was not {missing} within "
            f"{self._limits.timeout_seconds:g} s. Answer with a `reward`, or report it over the gateway.{refusal}"
        )

    async def _push(self, body: bytes) -> Answer:
        try:
            response = await self._client.post(self._url, content=body)
        except httpx.TransportError as error:
            raise _Undelivered(repr(error), is_unreachable=True) from error
        if response.status_code == 429 or response.status_code >= 500:
            raise _Undelivered(
                f"it answered {response.status_code}: {response.text[:200]}", is_own=response.status_code == 500
            )
        if not response.is_success:
            raise AgentFailed(
                f"The agent at {self._url} refused the episode: it answered {response.status_code}: {response.text[:200]}"
            )
        try:
            answer = read_answer(json.loads(response.content), source=f"The answer of the agent at {self._url}")
        except (ValueError, RecursionError):
            return Answer()
        return answer if response.status_code != 202 else replace(answer, is_under_way=True)

    def _invocation(self, task: Task, sampling: Sampling, episode_endpoint: ReportedEndpoint) -> bytes:
        endpoint = self._endpoint or episode_endpoint.endpoint
        try:
            payload = invocation(task, sampling, episode_endpoint, endpoint=endpoint, job=self._job)
            return json.dumps(payload, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise DataError(
                f"Task {task.id} cannot be sent to an agent: {error}. Use only values in its dataset that JSON can "
                "represent."
            ) from error


def invocation(
    task: Task, sampling: Sampling, episode_endpoint: ReportedEndpoint, *, endpoint: str, job: MtrlJob
) -> dict[str, Json]:
    """Return the message for an agent, with the task, the address and key of its endpoint, and the sampling settings.

    The message combines three formats that do not conflict: the formats of MTRL's documentation, of its SDK, and of
    agentcore-rl-toolkit. Each column of the dataset becomes a key of the message, unless the message already uses that
    key. The agent grades its own episode, so the message contains the ground truth too. It also contains the endpoints
    of the episode's other policies, if there are any.
    """
    messages = [dict(message) for message in task.messages]
    is_text = len(messages) == 1 and messages[0].keys() == {"role", "content"} and messages[0]["role"] == "user"
    prompt = messages[0]["content"] if is_text else messages
    row = {**task.fields, "id": task.id, "prompt": prompt}
    job_arn = f"arn:aws:sagemaker:{job.region}:000000000000:job/AgentRFT/{job.name}"
    in_snake = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens, "top_p": sampling.top_p}
    in_camel = {"temperature": sampling.temperature, "maxTokens": sampling.max_tokens, "topP": sampling.top_p}
    policies = {
        name: {"base_url": f"{endpoint}/v1", "api_key": other.api_key}
        for name, other in episode_endpoint.policies.items()
    }
    return {
        **task.fields,
        **({"policies": policies} if policies else {}),
        # MTRL passes a single text. A row with more content is packed into that text as JSON.
        "prompt": prompt if is_text else json.dumps(row),
        "messages": messages,
        "instance": row,
        "metadata": {
            "jobArn": job_arn,
            "job_arn": job_arn,
            "rolloutId": episode_endpoint.api_key,
            "trajectoryId": episode_endpoint.api_key,
            "trajectory_id": episode_endpoint.api_key,
            "endpoint": endpoint,
            "region": job.region,
        },
        "inferenceParams": in_camel,
        "inference_params": in_snake,
        "model_name": "default",
        "model_endpoint": endpoint,
        "base_url": f"{endpoint}/v1",
        "api_key": episode_endpoint.api_key,
        "_rollout": {
            # The key is also in the path, since older agents of the toolkit send "EMPTY" as the key. exp_id, input_id
            # and s3_bucket are left out: with all three the toolkit would write to S3, and it refuses any two of them
            # alone.
            "base_url": f"{endpoint}/s/{episode_endpoint.api_key}/v1",
            "api_key": episode_endpoint.api_key,
            "model_id": "default",
            "sampling_params": in_snake,
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The content of an agent's answer. All fields keep their default values if the answer only confirms that the agent has
    started."""

    reward: Json = None
    error: str | None = None
    is_outage: bool = False
    """Whether `error` is an infrastructure failure rather than a failure of the agent's own code."""
    components: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    handed_over: AgentReport = field(default_factory=AgentReport)
    is_under_way: bool = False
    """Whether the answer states that the agent is still running."""

    @property
    def hands_over(self) -> bool:
        """Whether the answer ends the episode by handing over a final state, transitions or artifacts."""
        report = self.handed_over
        has_part = report.final_state is not None or bool(report.transitions or report.artifacts)
        return has_part and not self.is_under_way


def read_answer(answer: Json, *, source: str = "The agent's answer") -> Answer:
    """Parse an agent's answer, including MTRL's `status: error`, a forwarder's `errorType`, and the toolkit's `status_code` and
    `rewards`."""
    if not isinstance(answer, dict):
        return Answer()
    status_code = answer.get("status_code")
    has_failed = answer.get("status") in ("error", "failed") or "errorType" in answer
    if has_failed or (isinstance(status_code, int | float) and status_code >= 400):
        reasons = (answer.get(key) for key in ("error", "errorMessage", "stop_reason", "errorType"))
        reason = without_half_characters(str(next(filter(None, reasons), "it gave no reason")))
        return Answer(error=reason, is_outage=status_code in _OUTAGES)
    return Answer(
        reward=_as_floats(answer.get("reward", answer.get("rewards"))),
        components=_numbers(answer.get("components")),
        metrics=_numbers(answer.get("metrics")),
        handed_over=read_report(answer, source=source),
        is_under_way=str(answer.get("status")).lower() in _UNDER_WAY,
    )


def _numbers(values: Json) -> dict[str, float]:
    """Return the finite numbers. Strings and lists, which agents add for their own logs, are left out."""
    named = values.items() if isinstance(values, dict) else ()
    return {
        without_half_characters(name): float(number)
        for name, value in named
        if isinstance(value, int | float) and math.isfinite(number := _as_floats(value))
    }


def _as_floats(value: Json) -> Json:
    """Return a number, or the numbers of a list, as floats. An integer that is too large for a float becomes infinite, and
    is then refused as a reward."""
    if isinstance(value, list):
        return [_as_floats(one) for one in value]
    try:
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
    except OverflowError:
        return math.inf


def _take(answer: Answer, report: ReportLike) -> None:
    """Report the content of an answer, unless the agent has already reported. Raises RewardError for an invalid reward,
    and _Undelivered for an infrastructure failure."""
    if report.status == "failed":
        return
    if answer.is_outage and report.status is None:
        raise _Undelivered(f"it reported an outage: {answer.error}")
    if answer.error is not None and report.status is None:
        report.complete("failed", error=answer.error)
    elif answer.reward is not None and report.reward is None:
        report.update_reward(answer.reward)
    report.hand_over(answer.handed_over)
    if (report.reward is not None or answer.hands_over) and report.status is None:
        # The agent answered, so the episode is over.
        report.complete("ready")
