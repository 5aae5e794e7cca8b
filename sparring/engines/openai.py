"""An engine that uses an OpenAI-compatible endpoint, for evaluation, baselines and recording.

The Chat Completions API (https://platform.openai.com/docs/api-reference/chat) returns no token ids, so these turns
cannot be used for training.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import random
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, final

import httpx

from sparring.chat.messages import canonical_json
from sparring.errors import ContextOverflow, DataError, InfrastructureError, PolicyTimeout, ServiceError
from sparring.metering.usage import count_request, endpoint_name
from sparring.protocols import DeltaCallback
from sparring.runtime.connections import Client
from sparring.types import (
    EngineCapabilities,
    Json,
    Message,
    MessageAnswer,
    MessageRequest,
    Sampling,
    StopReason,
    Usage,
)

UNSET = Sampling(temperature=math.nan, top_p=math.nan, max_tokens=sys.maxsize)
"""The default sampling settings. They are not sent, so the endpoint uses its own defaults."""

_CONNECT_SECONDS = 10.0
_MOST_TOKENS = 1 << 40
"""A number of tokens that no answer reaches. A larger reported count is treated as unknown."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 10.0
_LONGEST_RETRY_AFTER_SECONDS = 120.0
_PASSING = frozenset({408, 409, 425, 429})
"""The statuses below 500 after which the same request may succeed later."""
_OVERFLOW = re.compile(
    r"context.?length|context.?window|context size|maximum context|max_model_len|prompt is too long", re.IGNORECASE
)
"""Phrases with which endpoints report messages that are too long. OpenAI's own endpoint has the code
`context_length_exceeded`."""
_FILTERED = re.compile(
    r"content.?(filter|management|polic)|usage polic|flagged|data_inspection_failed|inappropriate content|content exists risk",
    re.IGNORECASE,
)
"""Codes and phrases with which endpoints reject the content of a conversation."""


class _Unanswered(Exception):
    """A failure after which the same request may succeed later. If the endpoint gives a time, the request may be
    repeated after `pause` seconds."""

    def __init__(self, problem: str, pause: float | None = None) -> None:
        super().__init__(problem)
        self.pause = pause


@final
class OpenAIEngine:
    """Implements `protocols.MessageEngine` over HTTP.

    Requests are retried after broken connections and after the statuses 408, 409, 425, 429 and 5xx, with exponential
    backoff or after the time in `Retry-After`. Each running or waiting request holds one of `max_concurrency` slots, so
    an overloaded endpoint gets fewer requests. Each request is counted in the run's `usage.jsonl`.

        engine = OpenAIEngine("http://127.0.0.1:8000/v1", "quickstart-001")
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        max_concurrency: int = 64,
        max_retries: int = 7,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """Create an engine. `base_url` includes `/v1`. `max_retries` is the number of retries of one request. Deadlines
        are times of `clock`."""
        self._base_url = base_url.rstrip("/")
        self._model = model
        self._name = endpoint_name(model, base_url)
        self._api_key = api_key
        self._max_concurrency = max_concurrency
        self._slots = asyncio.Semaphore(max_concurrency)
        self._max_retries = max_retries
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._token_limit = "max_tokens"
        # The deadline limits the duration of an answer, and the slots limit the number of connections.
        self._client = Client(
            base_url,
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
        )

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities()

    @property
    def fingerprint(self) -> str:
        return f"openai:{self._model}@{self._base_url}"

    async def answer(self, request: MessageRequest, on_delta: DeltaCallback | None = None) -> MessageAnswer:
        """Return the endpoint's message. If `on_delta` is given, the message is streamed.

        An answer that breaks off after its first chunk is not requested again, because a new answer would not continue
        it. Raises the errors that are documented in `protocols.MessageEngine`. After the deadline, it raises
        PolicyTimeout only if no earlier attempt failed.
        """
        problem: str | None = f"{self._max_concurrency} other requests were in progress"
        seconds = None if request.deadline is None else max(0.0, request.deadline - self._clock())
        try:
            async with asyncio.timeout(seconds), self._slots:
                problem = None
                for attempt in range(self._max_retries + 1):
                    try:
                        return await self._asked(request, on_delta)
                    except _Unanswered as failure:
                        problem = str(failure)
                        if attempt < self._max_retries:
                            await self._sleep(self._pause(attempt, failure.pause))
        except TimeoutError:
            if problem is None:
                raise PolicyTimeout(f"session {request.session_id}: {self._where} did not answer in time.") from None
        raise InfrastructureError(f"{self._where} did not answer: {problem}.")

    async def close(self) -> None:
        await self._client.aclose()

    @property
    def _where(self) -> str:
        return f"model {self._model!r} at {self._base_url}"

    def _pause(self, attempt: int, wanted: float | None) -> float:
        """Return the number of seconds until the next attempt: the time that the endpoint requests, or otherwise a time
        that doubles with each attempt, with jitter."""
        if wanted is not None:
            return min(wanted, _LONGEST_RETRY_AFTER_SECONDS)
        longest = min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS)
        return longest * self._rng.uniform(0.75, 1.0)

    async def _asked(self, request: MessageRequest, on_delta: DeltaCallback | None) -> MessageAnswer:
        """Make one attempt. Raises _Unanswered, and any error that `answer` raises."""
        heard, token_limit = _Heard(on_delta), self._token_limit
        try:
            async with self._client.stream(
                "POST",
                f"{self._base_url}/chat/completions",
                content=json.dumps(self._body(request, stream=on_delta is not None)).encode(),
                headers={"content-type": "application/json"},
            ) as response:
                if response.status_code != 200:
                    await response.aread()
                elif "event-stream" in response.headers.get("content-type", ""):
                    async for line in response.aiter_lines():
                        if line.startswith("data:"):
                            heard.take_chunk(line.removeprefix("data:").strip())
                else:
                    heard.take_whole(await response.aread())
        except httpx.TransportError as error:
            raise heard.broken(f"{type(error).__name__} {error}".strip()) from error
        finally:
            count_request(self._name, answered=heard.is_whole, usage=heard.usage)
        if response.status_code == 200:
            return heard.answer()
        if token_limit == "max_tokens" and _takes_other_limit(response):
            self._token_limit = "max_completion_tokens"
            return await self._asked(request, on_delta)
        raise self._failure(response)

    def _body(self, request: MessageRequest, *, stream: bool) -> dict[str, Json]:
        body: dict[str, Json] = {"model": self._model, "messages": [_plain(message) for message in request.messages]}
        if request.tools:
            body["tools"] = list(request.tools)
        for name in ("temperature", "top_p"):
            if not math.isnan(value := getattr(request.sampling, name)):
                body[name] = value
        if request.sampling.max_tokens < UNSET.max_tokens:
            body[self._token_limit] = request.sampling.max_tokens
        if request.seed is not None:
            body["seed"] = request.seed
        if request.stop_texts:
            body["stop"] = list(request.stop_texts)
        body |= _form(request)
        return {**body, "stream": True, "stream_options": {"include_usage": True}} if stream else body

    def _failure(self, response: httpx.Response) -> Exception:
        """Return the error for a status other than 200."""
        status, (text, code) = response.status_code, _error_of(response)
        reply = f"status {status}: {text}"
        if self._api_key:
            reply = reply.replace(self._api_key, "***")
        if code == "insufficient_quota":
            return ServiceError(f"{self._where} answered {reply}. The account's quota is used up; raise the quota.")
        if status in _PASSING or status >= 500:
            if response.headers.get("x-should-retry") == "false":
                return InfrastructureError(f"{self._where} answered {reply}.")
            return _Unanswered(reply, _retry_after(response))
        if status in (400, 403, 422) and _FILTERED.search(f"{code} {text}"):
            # The refusal concerns one conversation and is not an error of the run. The policy's result is unknown.
            return InfrastructureError(f"{self._where} answered {reply}. Its content filter refuses this conversation.")
        if status in (400, 413, 422):
            if code == "context_length_exceeded" or status == 413 or _OVERFLOW.search(text):
                return ContextOverflow(f"{self._where}: the conversation is too long for the endpoint: {text}.")
            return DataError(
                f"{self._where} refused a request with {reply}. Change the request to what the endpoint accepts."
            )
        return ServiceError(f"{self._where} answered {reply}. Check base_url, model and key.")


def _takes_other_limit(response: httpx.Response) -> bool:
    """Return whether the endpoint requires the other name for the token limit. Some models accept only the newer name
    of `max_tokens`, and some endpoints do not support the newer name yet."""
    return response.status_code == 400 and "max_completion_tokens" in response.text


def _form(request: MessageRequest) -> dict[str, Json]:
    """Return the request fields for the answer format. The endpoint either applies or rejects them."""
    form, fields = request.answer_format, dict[str, Json]()
    if form.tool_name is not None:
        fields["tool_choice"] = {"type": "function", "function": {"name": form.tool_name}}
    elif form.tool_choice == "required" or (form.tool_choice == "none" and request.tools):
        # Without tools there are no calls anyway, and endpoints then refuse a tool choice.
        fields["tool_choice"] = form.tool_choice
    if request.tools and not form.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    if form.response_format is not None:
        fields["response_format"] = form.response_format
    return fields


@final
class _Heard:
    """Assembles one answer, which arrives whole or in chunks."""

    def __init__(self, on_delta: DeltaCallback | None) -> None:
        self._on_delta = on_delta
        self._texts = {"content": "", "reasoning_content": ""}
        self._calls: dict[int, dict[str, str]] = {}
        self._finish: str | None = None
        self.usage: Usage | None = None
        self._has_streamed = False

    @property
    def is_whole(self) -> bool:
        return self._finish is not None

    def broken(self, problem: str) -> Exception:
        """Return the error for an answer that broke off. The type of error depends on whether the answer may be
        requested again."""
        return InfrastructureError(f"An answer broke off: {problem}.") if self._has_streamed else _Unanswered(problem)

    def take_whole(self, body: bytes) -> None:
        """Read a whole answer. Raises _Unanswered for a body that is not a chat completion."""
        try:
            completion = json.loads(body)
            choice = completion["choices"][0]
            self._add(choice["message"], completion, finish=choice.get("finish_reason") or "stop")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise _Unanswered(f"its response is not a chat completion: {body[:200]!r}") from error

    def take_chunk(self, data: str) -> None:
        """Read a chunk. Raises the error of `broken` for an invalid chunk, or for a chunk that reports an error."""
        if data == "[DONE]":
            return
        try:
            chunk = json.loads(data)
            if chunk.get("error"):
                raise self.broken(f"it sent an error during the answer: {canonical_json(chunk['error'])[:500]}")
            for choice in chunk.get("choices") or ():
                self._add(choice.get("delta") or {}, {}, finish=choice.get("finish_reason"))
            self._add({}, chunk, finish=None)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self.broken(f"its stream contains a chunk that is not a chat completion: {data[:200]!r}") from error

    def answer(self) -> MessageAnswer:
        """Return the complete answer. Raises the error of `broken` if the end is missing."""
        if self._finish is None:
            raise self.broken("the stream ended before the answer did")
        message: dict[str, Json] = {"role": "assistant", "content": self._texts["content"]}
        if self._texts["reasoning_content"]:
            message["reasoning_content"] = self._texts["reasoning_content"]
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for _, call in sorted(self._calls.items())
            ]
        reason = StopReason.LENGTH if self._finish == "length" else StopReason.STOP
        return MessageAnswer(message=message, stop_reason=reason, usage=self.usage)

    def _add(self, part: Mapping[str, Any], around: Mapping[str, Any], *, finish: str | None) -> None:
        """Append the texts and calls of a message or a delta."""
        texts = {
            # vLLM names the field `reasoning`. A refusal replaces the content.
            "reasoning_content": part.get("reasoning_content") or part.get("reasoning"),
            "content": part.get("content") or part.get("refusal"),
        }
        for key, text in texts.items():
            if not isinstance(text, str):
                continue
            self._texts[key] += text
            if self._on_delta is not None and text:
                self._has_streamed = True
                self._on_delta({key: text})
        for place, call in enumerate(part.get("tool_calls") or ()):
            known = self._calls.setdefault(call.get("index", place), {"id": "", "name": "", "arguments": ""})
            function = call.get("function") or {}
            known["id"] = known["id"] or call.get("id") or ""
            known["name"] += function.get("name") or ""
            known["arguments"] += function.get("arguments") or ""
        self.usage = _usage(around.get("usage")) or self.usage
        self._finish = finish or self._finish


def _usage(reported: Any) -> Usage | None:
    """Return the token counts that an endpoint reports, or None if it reports no counts or invalid ones."""
    if not isinstance(reported, Mapping):
        return None
    details = reported.get("prompt_tokens_details")
    read, sampled = _num_tokens(reported.get("prompt_tokens")), _num_tokens(reported.get("completion_tokens"))
    cached = _num_tokens(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    if read is None or sampled is None:
        return None
    return Usage(
        num_prompt_tokens=read,
        num_sampled_tokens=sampled,
        num_cached_tokens=None if cached is None or cached > read else cached,
    )


def _num_tokens(value: Any) -> int | None:
    is_count = type(value) in (int, float) and 0 <= value <= _MOST_TOKENS and value == int(value)
    return int(value) if is_count else None


def _plain(message: Message) -> dict[str, Json]:
    """Return a message in the API's format, without Sparring's own keys and with arguments as JSON text."""
    plain = {key: value for key, value in message.items() if key != "malformed_tool_calls"}
    if plain.get("tool_calls"):
        plain["tool_calls"] = [{**call, "function": _with_text(call["function"])} for call in plain["tool_calls"]]
    return plain


def _with_text(function: Mapping[str, Json]) -> dict[str, Json]:
    arguments = function.get("arguments", "{}")
    return {**function, "arguments": arguments if isinstance(arguments, str) else canonical_json(arguments)}


def _error_of(response: httpx.Response) -> tuple[str, str | None]:
    """Return the text and the code of an error."""
    try:
        body = response.json()
    except ValueError:
        body = None
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return (str(error) if error else response.text.strip() or response.reason_phrase)[:500], None
    text = error.get("message") or error.get("detail") or canonical_json(error)
    code = error.get("code") or error.get("type")
    return str(text)[:500].rstrip("."), code if isinstance(code, str) else None


def _retry_after(response: httpx.Response) -> float | None:
    """Return the number of seconds to wait that the endpoint gives in `retry-after-ms` or `Retry-After` (a number, or a
    date by the endpoint's own clock)."""
    milliseconds, seconds = response.headers.get("retry-after-ms", ""), response.headers.get("retry-after", "")
    try:
        return max(0.0, float(milliseconds) / 1000 if milliseconds else float(seconds))
    except ValueError:
        until, now = (email.utils.parsedate_tz(text) for text in (seconds, response.headers.get("date", "")))
        if until is None:
            return None
        return max(0.0, email.utils.mktime_tz(until) - (time.time() if now is None else email.utils.mktime_tz(now)))
