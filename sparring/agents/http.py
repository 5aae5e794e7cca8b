"""Agents behind a URL: each episode is pushed to it, in the words of SageMaker MTRL and of agents that know none."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self, final

import httpx

from sparring.agents.result import AgentResult, ended_elsewhere, has_played, limit_met
from sparring.chat.messages import without_half_characters
from sparring.errors import (
    AgentFailed,
    AgentTimeout,
    DataError,
    InfrastructureError,
    RewardError,
    ServiceError,
    UsageError,
)
from sparring.sessions import AnySession
from sparring.types import Json, Outcome, Reward, Sampling, Task

_CONNECT_SECONDS = 10.0
_GRACE_SECONDS = 2.0
"""How long an agent that has reported may take to answer too: the answer may hold metrics."""
_LONGEST_PAUSE_SECONDS = 30.0
_OUTAGES = frozenset({429, 502, 503, 504})
"""Statuses of servers that are down or overloaded, and of proxies before them: nothing that the policy says leads to these."""


class ReportLike(Protocol):
    """What the agent said to the gateway of its episode (`sparring.gateway.report.EpisodeReport`)."""

    @property
    def status(self) -> Literal["ready", "failed"] | None: ...

    @property
    def reward(self) -> Reward | None: ...

    @property
    def refusal(self) -> str | None: ...

    def complete(self, status: Literal["ready", "failed"], *, error: str = "") -> None: ...

    def update_reward(self, value: float | Sequence[float]) -> None: ...

    async def wait(self) -> Reward: ...


class DoorLike(Protocol):
    """An episode's way in (`sparring.gateway.Door`)."""

    @property
    def base_url(self) -> str: ...

    @property
    def api_key(self) -> str: ...

    @property
    def endpoint(self) -> str: ...

    @property
    def report(self) -> ReportLike: ...

    @property
    def policies(self) -> Mapping[str, DoorLike]: ...


class GatewayLike(Protocol):
    """What hands out doors (`sparring.gateway.Gateway`); it must be running."""

    def register(self, session: AnySession) -> DoorLike: ...


class _Undelivered(Exception):
    """The agent could not be reached, or reports an outage, or a failure of its own code. `is_own`: the last."""

    def __init__(self, problem: str, *, is_own: bool = False) -> None:
        super().__init__(problem)
        self.is_own = is_own


@final
class HttpAgent:
    """Plays every task by one POST to an agent, which asks the policy through the gateway and judges itself.

        async with Gateway() as gateway, HttpAgent("http://127.0.0.1:9000/rollout", gateway=gateway) as agent:
            result = await agent.play(task, session)

    The reward is in the agent's answer, or is reported over the gateway, whichever comes first. An agent that only
    answers that it has begun is waited for. What fails is never a reward of 0 (docs/agents-mtrl.md, "Failures").
    """

    def __init__(
        self,
        url: str,
        *,
        gateway: GatewayLike,
        timeout_seconds: float = 600.0,
        max_retries: int = 3,
        max_concurrency: int = 96,
        tps_limit: float = 5.0,
        headers: Mapping[str, str] | None = None,
        endpoint: str | None = None,
        job_name: str = "sparring",
        region: str = "us-east-1",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """`timeout_seconds` bounds one attempt, `tps_limit` the starts per second. `endpoint` is the gateway as the
        agent reaches it, if not under its own address. `job_name` and `region` make the job ARN. Raises UsageError.
        """
        if not re.match(r"https?://[^/]+", url):
            raise UsageError(f"url = {url!r} is no address of an agent; give the whole URL, http://HOST:PORT/PATH.")
        if not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", job_name):
            raise UsageError(
                f"job_name = {job_name!r} cannot stand in an ARN; use up to 63 letters, digits and hyphens."
            )
        positive = {"timeout_seconds": timeout_seconds, "max_concurrency": max_concurrency, "tps_limit": tps_limit}
        for name, number in positive.items():
            if not number > 0:
                raise UsageError(f"{name} = {number} would let no episode start; give a number above 0.")
        if max_retries < 0:
            raise UsageError(f"max_retries = {max_retries} would make no attempt; give 0 or more.")
        self._url = url
        self._gateway = gateway
        self._timeout_seconds = timeout_seconds
        self._max_retries = max_retries
        self._seconds_between_starts = 1.0 / tps_limit
        self._endpoint = endpoint.rstrip("/") if endpoint else None
        self._job_name = job_name
        self._region = region
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._slots = asyncio.Semaphore(max_concurrency)
        self._next_start = -math.inf
        self._checking = asyncio.Lock()
        self._is_healthy = False
        # How long an answer may take is for the episode's timeout alone to say, how many there are for the slots.
        self._client = httpx.AsyncClient(
            headers={"content-type": "application/json", **(headers or {})},
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None),
        )

    async def play(self, task: Task, session: AnySession) -> AgentResult:
        """Play one episode. The policy's own limits become outcomes without reward when the agent fails over them, and a failure
        of the agent's own code after a turn becomes `policy_error`.

        Raises InfrastructureError when the agent fails before, reports an outage, cannot be reached, does not answer in
        time, or never asks the policy; RewardError when it answers and no reward comes in time, or none that is one;
        ServiceError when it cannot be reached before the first episode; DataError when the task is no JSON.
        """
        await self._check_health()
        async with self._slots:
            try:
                reward = await self._play(task, session)
            except InfrastructureError as failure:
                return ended_elsewhere(failure, session)
        if not has_played(session):
            raise InfrastructureError(
                f"The agent at {self._url} reported a reward of {reward.total} without asking the policy for a turn, so "
                "it is not the policy's; have it ask the endpoint or base_url that it is sent."
            )
        return AgentResult(outcome=Outcome.FINISHED, reward=reward)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.aclose()

    async def _check_health(self) -> None:
        """Once, before the first episode. Any answer below 500 will do: not every agent has this route."""
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
                    f"The agent at {self._url} is not ready: GET {url} answered {response.status_code}. Look into its log."
                )
            self._is_healthy = True

    async def _play(self, task: Task, session: AnySession) -> Reward:
        """Push the episode until the agent takes it; never again once it has asked for a turn."""
        problem: _Undelivered | None = None
        for attempt in range(self._max_retries + 1):
            if attempt > 0:
                # Full jitter: agents that failed together do not come back together.
                longest = min(_LONGEST_PAUSE_SECONDS, 0.25 * 2**attempt)
                await self._sleep(self._rng.uniform(0.0, longest))
                if session.episode_turns or session.failure is not None:
                    break
            await self._pace()
            # A door for each attempt: should an agent that seemed lost go on, it is not heard.
            door = self._gateway.register(session)
            try:
                return await self._attempt(self._invocation(task, session.sampling, door), door.report, session)
            except _Undelivered as error:
                problem = error
            finally:
                if door.report.status is None:
                    door.report.complete("failed", error="its time was over")
        failure = AgentFailed if problem is not None and problem.is_own else InfrastructureError
        raise failure(f"The agent at {self._url} failed: {problem}.") from problem

    async def _pace(self) -> None:
        """Wait for this episode's turn to start."""
        now = self._clock()
        start = max(now, self._next_start)
        self._next_start = start + self._seconds_between_starts
        if start > now:
            await self._sleep(start - now)

    async def _attempt(self, body: bytes, report: ReportLike, session: AnySession) -> Reward:
        """Push once and wait for the reward. Raises _Undelivered when nothing came of it."""
        pushing, reporting = asyncio.ensure_future(self._push(body)), asyncio.ensure_future(report.wait())
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await asyncio.wait({pushing, reporting}, return_when=asyncio.FIRST_COMPLETED)
                if not reporting.done():
                    _take(await pushing, report)
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
        return replace(
            reward, components=reward.components or answer.components, metrics={**answer.metrics, **reward.metrics}
        )

    def _overdue(self, report: ReportLike, *, has_begun: bool) -> InfrastructureError | RewardError:
        if not has_begun and report.status is None:
            return AgentTimeout(f"The agent at {self._url} did not answer within {self._timeout_seconds:g} s.")
        refusal = f" What it reported was refused: {report.refusal}" if report.refusal else ""
        missing = "completed" if report.reward is not None else "rewarded"
        return RewardError(
            f"The agent at {self._url} took the episode, but it was not {missing} within {self._timeout_seconds:g} s. "
            f"Answer with a `reward`, or report it over the gateway.{refusal}"
        )

    async def _push(self, body: bytes) -> Answer:
        try:
            response = await self._client.post(self._url, content=body)
        except httpx.TransportError as error:
            raise _Undelivered(repr(error)) from error
        if response.status_code == 429 or response.status_code >= 500:
            raise _Undelivered(
                f"it answered {response.status_code}: {response.text[:200]}", is_own=response.status_code == 500
            )
        if not response.is_success:
            raise AgentFailed(
                f"The agent at {self._url} refused the episode: it answered {response.status_code}: {response.text[:200]}"
            )
        try:
            # Integers beyond every float become infinite, and then no reward.
            return read_answer(json.loads(response.content, parse_int=float))
        except (ValueError, RecursionError):
            return Answer()

    def _invocation(self, task: Task, sampling: Sampling, door: DoorLike) -> bytes:
        endpoint = self._endpoint or door.endpoint
        try:
            payload = invocation(task, sampling, door, endpoint=endpoint, job_name=self._job_name, region=self._region)
            return json.dumps(payload, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise DataError(
                f"Task {task.id} cannot be sent to an agent: {error}. Use values in its dataset that JSON has."
            ) from error


def invocation(
    task: Task, sampling: Sampling, door: DoorLike, *, endpoint: str, job_name: str, region: str
) -> dict[str, Json]:
    """What an agent is sent: the task, where and as whom it may ask the policy, and how it should sample.

    Three spellings at once, which do not clash: that of MTRL's documentation, that of its SDK, that of
    agentcore-rl-toolkit; a column of the dataset stands at the top where its name is free. An agent judges itself, so
    it is told everything, ground truth as well. The episode's other policies are told of where there are any.
    """
    messages = [dict(message) for message in task.messages]
    is_text = len(messages) == 1 and messages[0].keys() == {"role", "content"} and messages[0]["role"] == "user"
    prompt = messages[0]["content"] if is_text else messages
    row = {**task.fields, "id": task.id, "prompt": prompt}
    job_arn = f"arn:aws:sagemaker:{region}:000000000000:job/AgentRFT/{job_name}"
    in_snake = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens, "top_p": sampling.top_p}
    in_camel = {"temperature": sampling.temperature, "maxTokens": sampling.max_tokens, "topP": sampling.top_p}
    policies = {name: {"base_url": f"{endpoint}/v1", "api_key": other.api_key} for name, other in door.policies.items()}
    return {
        **task.fields,
        **({"policies": policies} if policies else {}),
        # MTRL hands over one text; whoever has more than that packs the row into it as JSON.
        "prompt": prompt if is_text else json.dumps(row),
        "messages": messages,
        "instance": row,
        "metadata": {
            "jobArn": job_arn, "job_arn": job_arn,
            "rolloutId": door.api_key, "trajectoryId": door.api_key, "trajectory_id": door.api_key,
            "endpoint": endpoint,
            "region": region,
        },
        "inferenceParams": in_camel,
        "inference_params": in_snake,
        "model_name": "default",
        "model_endpoint": endpoint,
        "base_url": f"{endpoint}/v1",
        "api_key": door.api_key,
        "_rollout": {
            # The key stands in the path too: older agents of the toolkit send "EMPTY" for one. Of exp_id, input_id and
            # s3_bucket there is none: the toolkit refuses two without the third, with which it would write to S3.
            "base_url": f"{endpoint}/s/{door.api_key}/v1",
            "api_key": door.api_key,
            "model_id": "default",
            "sampling_params": in_snake,
        },
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an agent's answer says of the episode; nothing, when it only says that it has begun."""

    reward: Json = None
    error: str | None = None
    is_outage: bool = False
    """Whether `error` is an outage, and not a failure of the agent's own code."""
    components: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


def read_answer(answer: Json) -> Answer:
    """MTRL's `status: error`, a forwarder's `errorType`, the toolkit's `status_code` and `rewards` among them."""
    if not isinstance(answer, dict):
        return Answer()
    status_code = answer.get("status_code")
    has_failed = answer.get("status") in ("error", "failed") or "errorType" in answer
    if has_failed or (isinstance(status_code, float) and status_code >= 400):
        reasons = (answer.get(key) for key in ("error", "errorMessage", "stop_reason", "errorType"))
        reason = without_half_characters(str(next(filter(None, reasons), "it did not say why")))
        return Answer(error=reason, is_outage=status_code in _OUTAGES)
    return Answer(
        reward=answer.get("reward", answer.get("rewards")),
        components=_numbers(answer.get("components")),
        metrics=_numbers(answer.get("metrics")),
    )


def _numbers(values: Json) -> dict[str, float]:
    """Those that are numbers: agents put texts and lists beside them, for logs of their own."""
    named = values.items() if isinstance(values, dict) else ()
    return {
        without_half_characters(name): float(value)
        for name, value in named
        if isinstance(value, float | bool) and math.isfinite(value)
    }


def _take(answer: Answer, report: ReportLike) -> None:
    """Report what an answer says, unless the agent did so itself. Raises RewardError, and _Undelivered for an outage."""
    if report.status == "failed":
        return
    if answer.is_outage and report.status is None:
        raise _Undelivered(f"it reported an outage: {answer.error}")
    if answer.error is not None and report.status is None:
        report.complete("failed", error=answer.error)
    elif answer.reward is not None and report.reward is None:
        report.update_reward(answer.reward)
    if report.reward is not None and report.status is None:
        # It answered, so it is done.
        report.complete("ready")
