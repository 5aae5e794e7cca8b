"""A worker that polls the gateway of a run for episodes and runs them with your agent.

    from sparring.agents.worker import work

    def play(invocation):
        client = openai.OpenAI(base_url=invocation["base_url"], api_key=invocation["api_key"])
        ...
        return 1.0

    work("http://trainer:8000", play)  # SPARRING_WORKER_KEY is in the environment

or, from the command line, `python -m sparring.agents.worker http://trainer:8000 module:play`. It opens only outgoing
connections and needs no training packages. For workers in other languages, docs/gateway.md describes the requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, final

import httpx

from sparring.agents.http import Answer, read_answer
from sparring.errors import InfrastructureError, ServiceError, SparringError, UsageError
from sparring.runtime.connections import Client
from sparring.runtime.logs import get_logger
from sparring.runtime.plugins import load_object
from sparring.types import Json

logger = get_logger(__name__)

KEY_VARIABLE = "SPARRING_WORKER_KEY"
Play: TypeAlias = Callable[[dict[str, Any]], Any]
"""A function that runs one episode from its invocation; it may be async. It returns the reward (a number, or one number
per turn) or the same answer as an agent behind a URL, such as `{"reward", "components", "metrics"}` or a failure. It
returns None if the agent has already reported. If it raises an exception and the policy has had a turn, the episode
ends as `policy_error`. If it raises an InfrastructureError, the episode is given back and run again."""

_POLL_SECONDS = 20.0
_LONGEST_PAUSE_SECONDS = 30.0
_PASSING = frozenset({408, 429})
"""The statuses of a machine that is busy, and of a quota that is used up."""


def work(
    url: str, play: Play, *, key: str | None = None, concurrency: int = 1, patience_seconds: float = 600.0
) -> None:
    """Run episodes until interrupted, at most `concurrency` at the same time. A function that is not async runs in a
    thread.

    `key` is the worker key of the run, by default the value of SPARRING_WORKER_KEY. Raises UsageError if the key is
    missing or wrong, and ServiceError if the gateway could not be reached for `patience_seconds`.
    """
    key = key or os.environ.get(KEY_VARIABLE, "")
    if not key:
        raise UsageError(f"no worker key was given; set {KEY_VARIABLE} to the key that the run printed at its start.")
    asyncio.run(Worker(url, play, key=key, patience_seconds=patience_seconds).run(concurrency))


@final
class Worker:
    """A worker that requests episodes and runs them in the current event loop."""

    def __init__(
        self,
        url: str,
        play: Play,
        *,
        key: str,
        patience_seconds: float = 600.0,
        client: httpx.AsyncClient | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """Create a worker. `url` is the address of the gateway, with or without `/v1`. Tests pass their own `client`.
        Raises UsageError for an invalid address."""
        self._endpoint = url.rstrip("/").removesuffix("/v1")
        if not self._endpoint.startswith(("http://", "https://")):
            raise UsageError(f"url = {url!r} is not the address of a gateway; give http://HOST:PORT.")
        self._play = play
        self._headers = _headers(key)
        self._patience_seconds = patience_seconds
        self._client = client or Client(self._endpoint, timeout=httpx.Timeout(_POLL_SECONDS + 40.0, connect=10.0))
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._is_async = inspect.iscoroutinefunction(play) or inspect.iscoroutinefunction(type(play).__call__)
        # Episodes get their own threads: the event loop's threads resolve host names, which lease renewals need.
        self._threads: ThreadPoolExecutor | None = None

    async def run(self, concurrency: int = 1) -> None:
        """Run episodes until cancelled. Raises the same errors as `work`."""
        if concurrency < 1:
            raise UsageError(f"concurrency = {concurrency} would not run any episode; give 1 or more.")
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="episode")
        async with self._client:
            loops = [asyncio.ensure_future(self._loop()) for _ in range(concurrency)]
            try:
                await asyncio.gather(*loops)
            finally:
                for one in loops:
                    one.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
                self._threads.shutdown(wait=False)

    async def _loop(self) -> None:
        while True:
            lease = await self._lease()
            if lease is not None:
                await self._episode(lease)

    async def _lease(self) -> dict[str, Any] | None:
        body = {"wait_seconds": _POLL_SECONDS, "endpoint": self._endpoint}
        response = await self._post("queue/lease", body)
        if response.status_code == 204:
            return None
        if not response.is_success:
            raise ServiceError(
                f"The gateway at {self._endpoint} returned no episode: {response.status_code}: {response.text[:300]}"
            )
        return response.json()

    async def _episode(self, lease: Mapping[str, Any]) -> None:
        """Run one episode. If the lease ends first, an async function is cancelled, but any other function runs to its
        end."""
        invocation: dict[str, Any] = lease["invocation"]
        playing = asyncio.ensure_future(self._played(invocation))
        renewing = asyncio.ensure_future(self._renewed(lease))
        try:
            await asyncio.wait({playing, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if playing.done() or not self._is_async:
                await playing
        finally:
            for one in (playing, renewing):
                one.cancel()
            await asyncio.gather(playing, renewing, return_exceptions=True)
            # If the agent reported nothing, the release informs the run at once that no report will follow.
            outage = (
                playing.result() if playing.done() and not playing.cancelled() and playing.exception() is None else ""
            )
            with contextlib.suppress(httpx.TransportError):
                await self._client.post(
                    f"{self._endpoint}/v1/queue/{lease['lease_id']}/release",
                    headers=self._headers,
                    content=json.dumps({"error": outage}),
                )

    async def _renewed(self, lease: Mapping[str, Any]) -> None:
        """Renew the lease until it ends."""
        is_over = False
        while not is_over:
            await self._sleep(lease["lease_seconds"] / 3)
            is_over = (await self._post(f"queue/{lease['lease_id']}/renew", {})).status_code == 404

    async def _played(self, invocation: dict[str, Any]) -> str:
        """Run the episode, and report the result unless the agent has already reported. An infrastructure failure is
        not reported. Return the description of such a failure, or an empty string if there was none."""
        try:
            if self._is_async:
                returned = await self._play(invocation)
            else:
                returned = await asyncio.get_running_loop().run_in_executor(self._threads, self._play, invocation)
            returned = json.loads(json.dumps(returned))
            answer = read_answer(returned if isinstance(returned, dict) else {"reward": returned})
        except Exception as error:
            # User code may raise any exception. Such an exception ends only its own episode.
            logger.warning("an episode failed", exc_info=error)
            is_outage = isinstance(error, InfrastructureError)
            answer = Answer(error=repr(error).encode("utf-8", "replace").decode(), is_outage=is_outage)
        if answer.error is not None:
            error = answer.error[:10_000]
            if not answer.is_outage:
                await self._report(invocation, "complete", {"status": "failed", "error": error})
            return error if answer.is_outage else ""
        report = answer.handed_over
        handed_over: dict[str, Json] = {
            "final_state": report.final_state,
            "transitions": [dict(one) for one in report.transitions] or None,
            "artifacts": dict(report.artifacts) or None,
        }
        if answer.reward is not None:
            parts = {"components": dict(answer.components), "metrics": dict(answer.metrics)}
            await self._report(invocation, "reward", {"reward": answer.reward, **parts, **handed_over})
            handed_over = {}
        await self._report(invocation, "complete", {"status": "ready", **handed_over})
        return ""

    async def _report(self, invocation: Mapping[str, Any], what: str, body: Json) -> None:
        """Report to the gateway. It is not an error if the agent has already reported, or if the episode is over.
        Raises UsageError for a report that the gateway refuses."""
        response = await self._post(f"episode/{what}", body, headers=_headers(invocation["api_key"]))
        if not response.is_success and response.status_code not in (401, 409):
            raise UsageError(f"the {what} of an episode was refused: {response.status_code}: {response.text[:300]}")

    async def _post(self, path: str, body: Json, *, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Repeat a request until an answer has a status below 500 that is not in `_PASSING`. Raises ServiceError after
        `patience_seconds` without one."""
        began, pause = self._clock(), 0.5
        while True:
            try:
                response = await self._client.post(
                    f"{self._endpoint}/v1/{path}",
                    content=json.dumps(body, ensure_ascii=False).encode(),
                    headers=headers or self._headers,
                )
                if response.status_code < 500 and response.status_code not in _PASSING:
                    return response
                problem = f"it answered {response.status_code}: {response.text[:300]}"
            except httpx.TransportError as error:
                problem = repr(error)
            if self._clock() - began >= self._patience_seconds:
                raise ServiceError(
                    f"The gateway at {self._endpoint} did not answer for {self._patience_seconds:g} s: {problem}. "
                    "Check that the run has not ended and that the address is right."
                )
            # Jitter, so that workers that lost the connection together do not reconnect together.
            await self._sleep(self._rng.uniform(pause / 2, pause))
            pause = min(_LONGEST_PAUSE_SECONDS, 2 * pause)


def _headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", "content-type": "application/json"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m sparring.agents.worker", description="Run the episodes of a run.")
    parser.add_argument("url", help="address of the run's gateway, as the run prints it")
    parser.add_argument("play", help="module:function that takes an invocation and returns its reward")
    parser.add_argument("--concurrency", type=int, default=1, help="number of episodes to run at once")
    given = parser.parse_args(arguments)
    try:
        work(given.url, load_object(given.play, folder=Path.cwd()), concurrency=given.concurrency)
    except KeyboardInterrupt:
        return 130
    except SparringError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
