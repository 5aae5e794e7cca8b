"""Tells an address of a run: when it is started, of each warning and error, when it is finished or has failed.

What is sent is JSON, `{"event", "run", "text", ...}`; chat systems with incoming webhooks show `text`. The address is a
secret, as those are who holds it may write to: it comes from an environment variable and is in no log.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import final

import httpx

from sparring.findings import Severity
from sparring.logs import get_logger
from sparring.redaction import masked, register
from sparring.tracking.encode import encode
from sparring.tracking.worker import Worker
from sparring.types import Json, TrajectoryGroup

logger = get_logger(__name__)

REQUEST_SECONDS = 10.0
PAUSES_SECONDS = (1.0, 4.0)
"""Before a notification is sent again that did not arrive."""
CLOSE_SECONDS = 30.0
_CAPACITY = 32
_EVENTS = {"running": "started", "completed": "finished", "stopped": "finished", "failed": "failed"}
"""What a status is called; of any other nobody is told."""


@final
class Webhook:
    """Sends notifications from a thread of its own: an address that is slow or gone costs a warning, and no time."""

    def __init__(
        self,
        url: str,
        *,
        run: str,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """`run` is its name. `transport` and `sleep` are for tests."""
        self._run = run
        self._url = url
        self._sleep = sleep
        self._client = httpx.Client(timeout=REQUEST_SECONDS, transport=transport)
        self._worker = Worker("webhook", capacity=_CAPACITY, drops_when_full=True)

    def log_status(self, status: str, *, reason: str | None = None) -> None:
        if status in _EVENTS:
            said = f"run {self._run} is {status}" + (f": {reason}" if reason else "")
            self._tell(_EVENTS[status], said, {"status": status, "reason": reason})

    def log_finding(self, finding: Mapping[str, Json]) -> None:
        if finding["severity"] == Severity.NOTE:
            return
        after = "" if finding.get("step") is None else f" after step {finding['step']}"
        said = f"run {self._run}: {finding['severity']}{after}: {finding['symptom']} {finding['change']}"
        kept = {key: finding.get(key) for key in ("rule", "severity", "step", "symptom", "change", "confirm")}
        self._tell("finding", said, {"finding": kept})

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nobody is woken for numbers."""

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None: ...

    def log_artifact(self, name: str, content: Json) -> None: ...

    def close(self) -> None:
        """Send what waits, for at most half a minute."""
        self._worker.close(timeout=CLOSE_SECONDS)
        self._client.close()

    def _tell(self, event: str, text: str, more: Mapping[str, Json]) -> None:
        content = {"event": event, "run": self._run, "time": time.time(), "text": text, **more}
        body = masked(encode(content).decode("utf-8")).encode("utf-8")
        self._worker.submit(lambda: self._send(event, body))

    def _send(self, event: str, body: bytes) -> None:
        problem = ""
        for pause in (0.0, *PAUSES_SECONDS):
            self._sleep(pause)
            try:
                answer = self._client.post(self._url, content=body, headers={"Content-Type": "application/json"})
            except httpx.HTTPError as error:
                problem = type(error).__name__
                continue
            if answer.is_success:
                return
            problem = f"status {answer.status_code}"
            if answer.is_client_error and answer.status_code not in (408, 429):
                break  # it will not take it later either
        # The address is not said, nor what its errors say, which is the address.
        logger.warning("tracking: nobody took the notification %r (%s); the run goes on.", event, problem)


def webhook_url(variable: str, value: str | None) -> str:
    """The address that the variable holds. Raises ValueError, which does not show it, when that is none."""
    register(variable)
    if value and re.fullmatch(r"https?://[\w.\-]+(:\d+)?(/\S*)?", value):
        return value
    raise ValueError(f"the environment variable {variable} shall hold the address of a webhook (https://...)")
