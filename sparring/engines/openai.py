"""An engine that asks an OpenAI-compatible endpoint: for evaluation, baselines and recording.

Chat completions (https://platform.openai.com/docs/api-reference/chat) tell no token ids, so nothing can be trained on it.
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
from sparring.metering import count_request, endpoint_name
from sparring.protocols import DeltaCallback
from sparring.types import Json, Message, MessageAnswer, MessageRequest, Sampling, StopReason, Usage

UNSET = Sampling(temperature=math.nan, top_p=math.nan, max_tokens=sys.maxsize)
"""Sampling of which nothing is sent: the endpoint does as it does by default."""

_CONNECT_SECONDS = 10.0
_MOST_TOKENS = 1 << 40
"""More than any answer takes; an endpoint that reports more is not believed."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 10.0
_LONGEST_RETRY_AFTER_SECONDS = 120.0
_PASSING = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which the same request may work later."""
_OVERFLOW = re.compile(
    r"context.?length|context.?window|context size|maximum context|max_model_len|prompt is too long", re.IGNORECASE
)
"""How endpoints say that the messages are too long; OpenAI's own has the code `context_length_exceeded`."""
_FILTERED = re.compile(
    r"content.?(filter|management|polic)|usage polic|flagged|data_inspection_failed|inappropriate content|content exists risk",
    re.IGNORECASE,
)
"""How they say that what the conversation is about may not be, in a code or in words."""


class _Unanswered(Exception):
    """The same request may work later: after `pause` seconds, where the endpoint says so."""

    def __init__(self, problem: str, pause: float | None = None) -> None:
        super().__init__(problem)
        self.pause = pause


@final
class OpenAIEngine:
    """Implements `protocols.MessageEngine` over HTTP.

    Connections that break, 408, 409, 425, 429 and 5xx are asked again with exponential backoff, or when `Retry-After`
    says; each request that is on its way or pauses holds one of `max_concurrency` slots, so that an endpoint that is
    overloaded is asked less. Each request is counted in the run's `usage.jsonl`.

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
        """`base_url` with its `/v1`; `max_retries` further tries of one request; deadlines are times of `clock`."""
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
        # How long an answer may take is for the deadline to say, how many there are for the slots.
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=max_concurrency),
        )

    @property
    def fingerprint(self) -> str:
        return f"openai:{self._model}@{self._base_url}"

    async def answer(self, request: MessageRequest, on_delta: DeltaCallback | None = None) -> MessageAnswer:
        """The endpoint's message; with `on_delta` it is asked to stream.

        An answer that broke off after its first piece was told is not asked for again: another would not go on from it.
        Raises as `protocols.MessageEngine` says; past the deadline PolicyTimeout only if no try failed
        before.
        """
        problem: str | None = f"{self._max_concurrency} other requests were on their way"
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
        raise InfrastructureError(f"{self._where} gave no answer: {problem}.")

    async def close(self) -> None:
        await self._client.aclose()

    @property
    def _where(self) -> str:
        return f"model {self._model!r} at {self._base_url}"

    def _pause(self, attempt: int, wanted: float | None) -> float:
        """Seconds until the next try: as the endpoint wants, else doubled each time and spread."""
        if wanted is not None:
            return min(wanted, _LONGEST_RETRY_AFTER_SECONDS)
        longest = min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS)
        return longest * self._rng.uniform(0.75, 1.0)

    async def _asked(self, request: MessageRequest, on_delta: DeltaCallback | None) -> MessageAnswer:
        """One try. Raises _Unanswered and what `answer` raises."""
        heard, token_limit = _Heard(on_delta), self._token_limit
        try:
            async with self._client.stream(
                "POST", f"{self._base_url}/chat/completions",
                content=json.dumps(self._body(request, stream=on_delta is not None)).encode(),
                headers={"content-type": "application/json"},
            ) as response:  # fmt: skip
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
        """What a status other than 200 means."""
        status, (said, code) = response.status_code, _error_of(response)
        told = f"status {status}: {said}"
        if self._api_key:
            told = told.replace(self._api_key, "***")
        if code == "insufficient_quota":
            return ServiceError(f"{self._where} answered {told}. Nothing is left of the account's quota; raise it.")
        if status in _PASSING or status >= 500:
            if response.headers.get("x-should-retry") == "false":
                return InfrastructureError(f"{self._where} answered {told}.")
            return _Unanswered(told, _retry_after(response))
        if status in (400, 403, 422) and _FILTERED.search(f"{code} {said}"):
            # It is about one conversation and no mistake in the run. What the policy's play is worth nobody has said.
            return InfrastructureError(f"{self._where} answered {told}. Its content filter refuses this conversation.")
        if status in (400, 413, 422):
            if code == "context_length_exceeded" or status == 413 or _OVERFLOW.search(said):
                return ContextOverflow(f"{self._where}: the conversation is too long for it: {said}.")
            return DataError(f"{self._where} refuses a request with {told}. Send what it takes.")
        return ServiceError(f"{self._where} answered {told}. Check base_url, model and key.")


def _takes_other_limit(response: httpx.Response) -> bool:
    """Some models refuse `max_tokens` for its newer name, some endpoints do not know that one yet."""
    return response.status_code == 400 and "max_completion_tokens" in response.text


def _form(request: MessageRequest) -> dict[str, Json]:
    """What a required form of the answer is as fields, which the endpoint heeds or refuses."""
    form, fields = request.answer_format, dict[str, Json]()
    if form.tool_name is not None:
        fields["tool_choice"] = {"type": "function", "function": {"name": form.tool_name}}
    elif form.tool_choice == "required" or (form.tool_choice == "none" and request.tools):
        # Without tools there are no calls anyway, and endpoints refuse a choice among none.
        fields["tool_choice"] = form.tool_choice
    if request.tools and not form.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    if form.response_format is not None:
        fields["response_format"] = form.response_format
    return fields


@final
class _Heard:
    """What came of one answer, whole or in chunks."""

    def __init__(self, on_delta: DeltaCallback | None) -> None:
        self._on_delta = on_delta
        self._texts = {"content": "", "reasoning_content": ""}
        self._calls: dict[int, dict[str, str]] = {}
        self._finish: str | None = None
        self.usage: Usage | None = None
        self._is_told = False

    @property
    def is_whole(self) -> bool:
        return self._finish is not None

    def broken(self, problem: str) -> Exception:
        """For an answer that broke off: whether it may be asked for again."""
        return InfrastructureError(f"An answer broke off: {problem}.") if self._is_told else _Unanswered(problem)

    def take_whole(self, body: bytes) -> None:
        """Raises _Unanswered for a body that is no chat completion."""
        try:
            completion = json.loads(body)
            choice = completion["choices"][0]
            self._add(choice["message"], completion, finish=choice.get("finish_reason") or "stop")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise _Unanswered(f"what it answered is no chat completion: {body[:200]!r}") from error

    def take_chunk(self, data: str) -> None:
        """Raises as `broken` says for a chunk that is none, or tells an error."""
        if data == "[DONE]":
            return
        try:
            chunk = json.loads(data)
            if chunk.get("error"):
                raise self.broken(f"in the middle of its answer it said {canonical_json(chunk['error'])[:500]}")
            for choice in chunk.get("choices") or ():
                self._add(choice.get("delta") or {}, {}, finish=choice.get("finish_reason"))
            self._add({}, chunk, finish=None)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self.broken(f"what it streams is no chat completion: {data[:200]!r}") from error

    def answer(self) -> MessageAnswer:
        """Raises as `broken` says when the end did not come."""
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
        """Append what a message or a delta says."""
        told = {
            # vLLM says `reasoning`; a refusal is what the policy says instead of content.
            "reasoning_content": part.get("reasoning_content") or part.get("reasoning"),
            "content": part.get("content") or part.get("refusal"),
        }
        for key, text in told.items():
            if not isinstance(text, str):
                continue
            self._texts[key] += text
            if self._on_delta is not None and text:
                self._is_told = True
                self._on_delta({key: text})
        for place, call in enumerate(part.get("tool_calls") or ()):
            known = self._calls.setdefault(call.get("index", place), {"id": "", "name": "", "arguments": ""})
            function = call.get("function") or {}
            known["id"] = known["id"] or call.get("id") or ""
            known["name"] += function.get("name") or ""
            known["arguments"] += function.get("arguments") or ""
        self.usage = _usage(around.get("usage")) or self.usage
        self._finish = finish or self._finish


def _usage(said: Any) -> Usage | None:
    """What an endpoint reports that an answer took; None where that is nothing, or no number of tokens: it is unknown then."""
    if not isinstance(said, Mapping):
        return None
    details = said.get("prompt_tokens_details")
    read, sampled = _num_tokens(said.get("prompt_tokens")), _num_tokens(said.get("completion_tokens"))
    cached = _num_tokens(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    if read is None or sampled is None:
        return None
    return Usage(
        num_prompt_tokens=read, num_sampled_tokens=sampled,
        num_cached_tokens=None if cached is None or cached > read else cached,
    )  # fmt: skip


def _num_tokens(value: Any) -> int | None:
    is_count = type(value) in (int, float) and 0 <= value <= _MOST_TOKENS and value == int(value)
    return int(value) if is_count else None


def _plain(message: Message) -> dict[str, Json]:
    """As the API takes it: our own keys left out, arguments as text."""
    plain = {key: value for key, value in message.items() if key != "malformed_tool_calls"}
    if plain.get("tool_calls"):
        plain["tool_calls"] = [{**call, "function": _with_text(call["function"])} for call in plain["tool_calls"]]
    return plain


def _with_text(function: Mapping[str, Json]) -> dict[str, Json]:
    arguments = function.get("arguments", "{}")
    return {**function, "arguments": arguments if isinstance(arguments, str) else canonical_json(arguments)}


def _error_of(response: httpx.Response) -> tuple[str, str | None]:
    """What an error says, and its code."""
    try:
        body = response.json()
    except ValueError:
        body = None
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return (str(error) if error else response.text.strip() or response.reason_phrase)[:500], None
    said = error.get("message") or error.get("detail") or canonical_json(error)
    code = error.get("code") or error.get("type")
    return str(said)[:500].rstrip("."), code if isinstance(code, str) else None


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds that the endpoint wants to be left alone, from `retry-after-ms` or `Retry-After` (a number, or a date of its own
    clock)."""
    milliseconds, seconds = response.headers.get("retry-after-ms", ""), response.headers.get("retry-after", "")
    try:
        return max(0.0, float(milliseconds) / 1000 if milliseconds else float(seconds))
    except ValueError:
        until, now = (email.utils.parsedate_tz(text) for text in (seconds, response.headers.get("date", "")))
        if until is None:
            return None
        return max(0.0, email.utils.mktime_tz(until) - (time.time() if now is None else email.utils.mktime_tz(now)))
