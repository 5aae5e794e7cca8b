"""Notify a webhook when a run starts, finishes or fails, and about each warning and error.

The body is JSON, `{"event", "run", "text", ...}`. Chat systems with incoming webhooks show `text`. The address is a
secret, because anyone who has it can write to the channel. It comes from an environment variable and is never logged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import httpx

from sparring.findings import Severity
from sparring.run_folders.encode import encode
from sparring.runtime.logs import get_logger
from sparring.runtime.redaction import mask_secrets, register
from sparring.runtime.text_rules import build_redactor, redact_json
from sparring.tracking.worker import TrackingThread
from sparring.types import Json, TrajectoryGroup

logger = get_logger(__name__)

REQUEST_SECONDS = 10.0
PAUSES_SECONDS = (1.0, 4.0)
"""Pauses before each new attempt to send a failed notification."""
CLOSE_SECONDS = 30.0
_CAPACITY = 32
_EVENTS = {"running": "started", "completed": "finished", "stopped": "finished", "failed": "failed"}
"""Events by status. Other statuses send no notification."""


@final
class Webhook:
    """Sends notifications from its own thread. A slow or missing server causes a warning but no delay."""

    def __init__(
        self,
        url: str,
        *,
        run: str,
        redact: Sequence[str] = (),
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Create a webhook for the run with the name `run`. `redact` are rules for its texts. `transport` and `sleep` are
        for tests."""
        self._run = run
        self._redact = build_redactor(redact)
        self._url = url
        self._sleep = sleep
        self._client = httpx.Client(timeout=REQUEST_SECONDS, transport=transport)
        self._worker = TrackingThread("webhook", capacity=_CAPACITY, drops_when_full=True)

    def log_status(self, status: str, *, reason: str | None = None) -> None:
        if status in _EVENTS:
            text = f"run {self._run} is {status}" + (f": {reason}" if reason else "")
            self._notify(_EVENTS[status], text, {"status": status, "reason": reason})

    def log_finding(self, finding: Mapping[str, Json]) -> None:
        if finding["severity"] == Severity.NOTE:
            return
        after = "" if finding.get("step") is None else f" after step {finding['step']}"
        text = f"run {self._run}: {finding['severity']}{after}: {finding['symptom']} {finding['change']}"
        fields = {key: finding.get(key) for key in ("rule", "severity", "step", "symptom", "change", "confirm")}
        self._notify("finding", text, {"finding": fields})

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Do nothing: metrics send no notification."""

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None: ...

    def log_artifact(self, name: str, content: Json) -> None: ...

    def close(self) -> None:
        """Send the waiting notifications. This takes at most half a minute."""
        self._worker.close(timeout=CLOSE_SECONDS)
        self._client.close()

    def _notify(self, event: str, text: str, more: Mapping[str, Json]) -> None:
        texts: Any = redact_json({"text": text, **more}, self._redact)
        content = {"event": event, "run": self._run, "time": time.time(), **texts}
        body = mask_secrets(encode(content).decode("utf-8")).encode("utf-8")
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
                break  # A retry would fail, too.
        # The address and error texts are not logged, because error texts contain the address.
        logger.warning("tracking: the notification %r was not delivered (%s); the run continues.", event, problem)


def webhook_url(variable: str, value: str | None) -> str:
    """Return the variable's value. Raises ValueError if it is not an address. The error does not show the value."""
    register(variable)
    if value and re.fullmatch(r"https?://[\w.\-]+(:\d+)?(/\S*)?", value):
        return value
    raise ValueError(f"the environment variable {variable} must contain the address of a webhook (https://...)")
