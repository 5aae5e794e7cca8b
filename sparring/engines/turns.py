"""A running turn, from request to completion, and the version of the weights from which it is sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sparring.engines.grammar import Guide
from sparring.engines.kv_cache import Row
from sparring.engines.logits_cache import Key, extend_digest, history_digest
from sparring.engines.sampling import UniformStream
from sparring.types import Completion, SampleRequest, StopReason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Version:
    """A version of the weights, ready for sampling."""

    number: int
    fingerprint: str
    weights: Any
    """The weights in the form that the forward materialized."""


@dataclass(slots=True, eq=False)
class RunningTurn:
    """A turn that is being sampled. `ids` are the prompt and the tokens sampled so far."""

    request: SampleRequest
    on_token: Callable[[int], None] | None = None
    guide: Guide | None = None
    """The guide of a constrained answer, or None without a constraint."""
    future: Future[Completion] = field(default_factory=Future)
    version: Version | None = None
    frozen: Version | None = None
    """The version of a frozen policy, which the turn must use, or None for the policy in training."""
    row: Row | None = None
    """The turn's row in the cache. Turns with equal histories share a row until they draw different tokens."""
    ids: list[int] = field(init=False)
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """The log-probability of each of `sampled`."""
    num_computed: int = 0
    removed_mass: float = 0.0
    uniforms: UniformStream = field(init=False)
    digest: bytes = field(init=False)
    """The digest of the prompt and the tokens sampled so far."""

    def __post_init__(self) -> None:
        self.ids = list(self.request.prompt_ids)
        self.uniforms = UniformStream(self.request.seed)
        self.digest = history_digest(self.ids)

    @property
    def key(self) -> Key:
        """The weights and the history, on which the logits of the next token depend. The turn must have a version."""
        return self.fingerprint, self.digest

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the weights. Two versions may have equal weights, and then share computations."""
        assert self.version is not None, "a turn gets its version when it is admitted"
        return self.version.fingerprint

    def keys_after(self, token_ids: Sequence[int]) -> Iterator[Key]:
        """Yield the key of this history, and the keys after each of some tokens that may follow it."""
        fingerprint, digest = self.key
        yield fingerprint, digest
        for token in token_ids:
            digest = extend_digest(digest, token)
            yield fingerprint, digest

    @property
    def held(self) -> Row:
        """The turn's row in the cache. The turn must have a row."""
        assert self.row is not None, "a turn without a row does not run"
        return self.row

    @property
    def num_unfed(self) -> int:
        """The number of tokens without keys and values. It is at least one, because the next token is sampled from the
        logits of the last token."""
        return len(self.ids) - len(self.held.token_ids)

    def unfed(self, limit: int) -> list[int]:
        """Return at most `limit` of the tokens without keys and values."""
        begin = len(self.held.token_ids)
        return self.ids[begin : begin + limit]

    def append(self, token: int, logprob: float) -> None:
        """Append a sampled token, and call `on_token`."""
        self.ids.append(token)
        self.sampled.append(token)
        self.logprobs.append(logprob)
        self.digest = extend_digest(self.digest, token)
        if self.guide is not None:
            self.guide.advance(token)
        if self.on_token is not None:
            self.on_token(token)

    def stop_reason(self, max_ids: int, decode: Callable[[Sequence[int]], str] | None = None) -> StopReason | None:
        """Return why the turn is over, or None while it continues. Prompt and answer together may have at most
        `max_ids` tokens. `decode` is needed for stop texts."""
        if self.ids[-1] in self.request.stop_ids:
            return StopReason.STOP
        if self.request.stop_texts and decode is not None:
            # Each token has at least one byte, so a stop text that the last token completed is within this tail.
            longest = max(len(text.encode()) for text in self.request.stop_texts)
            tail = decode(self.ids[-min(longest + 3, len(self.logprobs)) :])
            if any(text in tail for text in self.request.stop_texts):
                return StopReason.STOP
        is_full = len(self.ids) >= max_ids or len(self.logprobs) >= self.request.sampling.max_tokens
        return StopReason.LENGTH if is_full else None

    def complete(self, reason: StopReason) -> None:
        version = self.version
        assert version is not None, "a turn gets its version when it is admitted"
        completion = Completion(
            token_ids=tuple(self.sampled),
            sampled_logprobs=tuple(self.logprobs),
            stop_reason=reason,
            versions=((version.number, len(self.logprobs)),),
            fingerprint=version.fingerprint,
            num_computed_tokens=self.num_computed,
            removed_mass=self.removed_mass,
        )
        with suppress(InvalidStateError):  # the future may just have been cancelled
            self.future.set_result(completion)

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)
