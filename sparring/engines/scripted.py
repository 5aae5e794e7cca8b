"""An engine that answers from a script instead of a model, for tests, examples and dry runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, final

from sparring.errors import ConstraintError, InfrastructureError, PolicyTimeout
from sparring.protocols import TokenCallback
from sparring.types import Completion, EngineCapabilities, SampleRequest, StopReason, Weights

Answer: TypeAlias = str | Sequence[int] | Exception
"""A text (which is encoded and ended with a stop id), token ids (which are sampled unchanged), or an exception (which
is raised)."""


@final
class ScriptedEngine:
    """An engine without a model or torch. Implements `protocols.Engine`.

    `script` is a callable from a request to an answer, or a list of answers in the order of the requests. Like a
    policy's own answer, a scripted answer is truncated after its first stop id, at `max_tokens`, and at the end of the
    context. A text answer is also truncated after its first stop text.

        engine = ScriptedEngine(["Hello."], encode=tokenizer.encode)
    """

    def __init__(
        self,
        script: Callable[[SampleRequest], Answer] | Sequence[Answer],
        *,
        encode: Callable[[str], Sequence[int]] | None = None,
        stop_id: int | None = None,
        max_context_tokens: int = 8192,
        logprob: float = -1.0,
        seconds: Callable[[SampleRequest], float] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an engine. `encode` converts texts to ids and must not add special tokens. `stop_id` ends a text
        answer; the default is the smallest stop id of the request. Every token gets `logprob`. `seconds` is a function
        that returns the duration of an answer."""
        self._script = script
        self._encode = encode
        self._stop_id = stop_id
        self._max_context_tokens = max_context_tokens
        self._logprob = logprob
        self._seconds = seconds
        self._sleep = sleep
        self._clock = clock
        self._policy_version = 0
        self._fingerprint = "scripted"
        self._is_closed = False
        self.requests: list[SampleRequest] = []
        """All requests so far, in order of arrival."""
        self.open_sessions: set[str] = set()

    async def sample(self, request: SampleRequest, on_token: TokenCallback | None = None) -> Completion:
        """Answer from the script. Raises the script's own exceptions, PolicyTimeout after the deadline, and
        ConstraintError if the answer must follow a grammar."""
        if request.constraint is not None:
            raise ConstraintError("A scripted engine cannot constrain its answers; remove the constraint.")
        version, fingerprint = self._policy_version, self._fingerprint
        answer = self._next_answer(request)
        seconds = self._seconds(request) if self._seconds is not None else 0.0
        if request.deadline is not None and self._clock() + seconds > request.deadline:
            raise PolicyTimeout(f"session {request.session_id}: the deadline passed before the answer was complete.")
        await self._sleep(seconds)
        if self._is_closed:
            raise InfrastructureError(
                f"session {request.session_id}: the engine was closed before this turn was complete."
            )
        if isinstance(answer, Exception):
            raise answer
        token_ids, stop_reason = self._cut(answer, request)
        if on_token is not None:
            for token_id in token_ids:
                on_token(token_id)
                await self._sleep(0.0)
        return Completion(
            token_ids=token_ids,
            sampled_logprobs=(self._logprob,) * len(token_ids),
            stop_reason=stop_reason,
            versions=((version, len(token_ids)),),
            fingerprint=fingerprint,
            num_computed_tokens=len(request.prompt_ids) + len(token_ids),
        )

    def _next_answer(self, request: SampleRequest) -> Answer:
        self.requests.append(request)
        if callable(self._script):
            return self._script(request)
        if len(self.requests) > len(self._script):
            raise LookupError(f"The script has {len(self._script)} answers but received request {len(self.requests)}.")
        return self._script[len(self.requests) - 1]

    def _cut(self, answer: str | Sequence[int], request: SampleRequest) -> tuple[tuple[int, ...], StopReason]:
        is_stopped = False
        if isinstance(answer, str):
            if self._encode is None:
                raise TypeError("Scripted text needs `encode`; pass it, or give token ids instead.")
            stop_id = self._stop_id if self._stop_id is not None else min(request.stop_ids, default=None)
            ends = [answer.index(text) + len(text) for text in request.stop_texts if text in answer]
            is_stopped = bool(ends)
            answer = [*self._encode(answer[: min(ends, default=None)]), *([] if stop_id is None or ends else [stop_id])]
        room = min(request.sampling.max_tokens, self._max_context_tokens - len(request.prompt_ids))
        token_ids = tuple(answer[:room])
        for index, token_id in enumerate(token_ids):
            if token_id in request.stop_ids:
                return token_ids[: index + 1], StopReason.STOP
        return token_ids, StopReason.STOP if is_stopped and len(token_ids) == len(answer) else StopReason.LENGTH

    async def load_weights(self, weights: Weights, version: int) -> None:
        """Report the version and fingerprint of these weights in later answers. The script does not change."""
        self._policy_version = version
        self._fingerprint = weights.fingerprint

    def freeze(self, weights: Weights | None = None) -> ScriptedEngine:
        """Return another engine with the same script that reports these weights."""
        frozen = ScriptedEngine(
            self._script,
            encode=self._encode,
            stop_id=self._stop_id,
            max_context_tokens=self._max_context_tokens,
            logprob=self._logprob,
            seconds=self._seconds,
            sleep=self._sleep,
            clock=self._clock,
        )
        if weights is not None:
            frozen._fingerprint = weights.fingerprint
        return frozen

    async def logprobs(self, token_ids: Sequence[int], temperature: float = 1.0, first: int = 1) -> list[float]:
        """Return the scripted log-probability for each id from index `first` on."""
        return [self._logprob] * (len(token_ids) - first)

    def open_session(self, session_id: str) -> None:
        self.open_sessions.add(session_id)

    def close_session(self, session_id: str) -> None:
        self.open_sessions.discard(session_id)

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(reports_token_ids=True, holds_several_weights=True, scores_given_ids=True)

    @property
    def policy_version(self) -> int:
        return self._policy_version

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_context_tokens(self) -> int:
        return self._max_context_tokens

    def metrics(self) -> dict[str, float]:
        """Return nothing: a script has no load."""
        return {}

    async def close(self) -> None:
        self._is_closed = True
        self.open_sessions.clear()
