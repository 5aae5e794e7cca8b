"""The engine in this process: continuous batching, prefix reuse, and the exact log-probabilities of what it samples.

One thread computes; `sample` waits for it. Between two steps of the running batch, turns join and leave. Each step
first feeds new prompt tokens (a bounded number), then decodes one token of every running turn.

In deterministic mode it works in rounds: nothing starts until every open session asks for a turn, then they are
played in the order of their `order`, so that the shapes of all computations follow from what is played, not from when.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from sparring.engines.kv_cache import KVCache, Row
from sparring.engines.sampling import UniformStream, draw
from sparring.errors import ContextOverflow, InfrastructureError, PolicyTimeout, ServiceError
from sparring.models.forest import forest_logprobs, layout
from sparring.models.llama import SUPPORTED, LlamaWeights, attend_causally, forward
from sparring.models.policy import Policy
from sparring.protocols import TokenCallback
from sparring.types import Completion, SampleRequest, StopReason, TokenSegment, Weights

MIN_SHARED = 8
"""Prompt tokens that a turn must be able to save for it to wait until another has computed them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Version:
    number: int
    fingerprint: str
    weights: LlamaWeights


@dataclass(slots=True, eq=False)
class _Running:
    """A turn from request to completion."""

    request: SampleRequest
    future: Future[Completion]
    on_token: Callable[[int], None] | None
    version: _Version | None = None
    row: Row | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_computed: int = 0
    stream: UniformStream = field(init=False)

    def __post_init__(self) -> None:
        self.stream = UniformStream(self.request.seed)

    @property
    def row_index(self) -> int:
        assert self.row is not None
        return self.row.index

    @property
    def num_unfed(self) -> int:
        assert self.row is not None
        return len(self.request.prompt_ids) + len(self.token_ids) - len(self.row.token_ids)

    def unfed(self, limit: int) -> list[int]:
        """The next tokens whose keys and values are missing."""
        assert self.row is not None
        begin = len(self.row.token_ids)
        known = len(self.request.prompt_ids)
        if begin < known:
            return list(self.request.prompt_ids[begin : begin + limit])
        return self.token_ids[begin - known : begin - known + limit]


@final
class TorchEngine:
    """Samples from a policy in this process, on CPU or CUDA."""

    def __init__(
        self,
        policy: Policy,
        weights: Weights,
        *,
        version: int = 0,
        max_running: int = 64,
        kv_cache_tokens: int = 65536,
        prefill_chunk_tokens: int = 2048,
        deterministic: bool = False,
        session_weights: Literal["latest", "pinned"] = "latest",
    ) -> None:
        if not policy.is_lean:
            raise ServiceError(
                f"this engine samples Llama-shaped models ({', '.join(SUPPORTED)} without sliding windows), and the model is "
                f"{policy.base.config.model_type!r}. Use a model of these families."
            )
        self._policy = policy
        self._current = _Version(number=version, fingerprint=weights.fingerprint, weights=policy.materialize(weights))
        row_tokens = policy.max_positions
        self._cache = KVCache(
            self._current.weights.shape, num_rows=max(1, min(kv_cache_tokens // row_tokens, 2 * max_running)),
            row_tokens=row_tokens, dtype=policy.dtype, device=policy.device,
        )  # fmt: skip
        self._max_running = max_running
        self._chunk = prefill_chunk_tokens
        self._deterministic = deterministic
        self._pins: dict[str, _Version] | None = {} if session_weights == "pinned" else None
        # Protects everything below that both threads touch; the worker waits on it for work.
        self._wake = threading.Condition()
        self._waiting: list[_Running] = []
        self._open: set[str] = set()
        self._just_closed: list[str] = []
        self._is_closed = False
        self._running: list[_Running] = []
        self._queue: list[_Running] = []
        """Turns of this round (or all that wait) that have no row yet."""
        self._thread = threading.Thread(target=self._work, name="sparring-engine", daemon=True)
        self._thread.start()

    @property
    def policy_version(self) -> int:
        return self._current.number

    @property
    def fingerprint(self) -> str:
        return self._current.fingerprint

    @property
    def max_context_tokens(self) -> int:
        return self._cache.row_tokens

    async def sample(self, request: SampleRequest, on_token: TokenCallback | None = None) -> Completion:
        """Continue the prompt. Raises ContextOverflow when the turn can never fit, PolicyTimeout past the deadline."""
        needed = len(request.prompt_ids) + 1
        if needed > self._cache.row_tokens:
            raise ContextOverflow(
                f"a prompt of {len(request.prompt_ids)} tokens leaves no room for an answer in a context of "
                f"{self._cache.row_tokens}; shorten it, or raise model.max_sequence_length."
            )
        loop = asyncio.get_running_loop()

        def tell(token: int) -> None:
            assert on_token is not None
            loop.call_soon_threadsafe(on_token, token)

        turn = _Running(request, Future(), None if on_token is None else tell)
        with self._wake:
            if self._is_closed:
                raise InfrastructureError("the engine is closed; no turn can be sampled.")
            self._waiting.append(turn)
            self._wake.notify()
        timeout = None if request.deadline is None else request.deadline - time.monotonic()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(turn.future), timeout)
        except TimeoutError as error:
            raise PolicyTimeout(
                f"session {request.session_id}: no answer to a prompt of {len(request.prompt_ids)} tokens within "
                f"{timeout:.1f} s, {len(turn.token_ids)} tokens were sampled. Raise rollout.rollout_timeout, or lower "
                "rollout.rollout_max_concurrency."
            ) from error
        finally:
            if not turn.future.done() or turn.future.cancelled():
                turn.future.cancel()
                with self._wake:
                    self._wake.notify()

    async def load_weights(self, weights: Weights, version: int) -> None:
        """Turns that start from now on use these weights; turns already running keep theirs."""
        merged = await asyncio.to_thread(self._policy.materialize, weights)
        with self._wake:
            self._current = _Version(number=version, fingerprint=weights.fingerprint, weights=merged)

    async def logprobs(self, token_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of each id but the first, given those before it."""
        return await asyncio.to_thread(self._logprobs, self._current.weights, tuple(token_ids), temperature)

    def open_session(self, session_id: str) -> None:
        with self._wake:
            self._open.add(session_id)

    def close_session(self, session_id: str) -> None:
        with self._wake:
            self._open.discard(session_id)
            self._just_closed.append(session_id)
            self._wake.notify()

    async def close(self) -> None:
        """Stop the thread; turns that still wait fail with InfrastructureError."""
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    @torch.no_grad()
    def _logprobs(self, weights: LlamaWeights, token_ids: tuple[int, ...], temperature: float) -> list[float]:
        count = len(token_ids)
        zeros = (0.0,) * count
        segment = TokenSegment(
            parent=None, token_ids=token_ids, mask=(False,) + (True,) * (count - 1), sampled_logprobs=zeros,
            advantages=zeros, weights=zeros, temperature=temperature,
        )  # fmt: skip
        return forest_logprobs(weights, layout([segment], device=self._policy.device))[0].tolist()

    # The worker thread.

    def _work(self) -> None:
        with torch.inference_mode():
            while self._take_work():
                try:
                    self._admit()
                    self._step()
                except Exception as error:  # noqa: BLE001 (every turn that waits must learn of it)
                    self._fail_all(error)
        self._fail_all(InfrastructureError("the engine was closed while this turn was sampled."))

    def _take_work(self) -> bool:
        """Wait until there is something to compute; False when the engine closes."""
        with self._wake:
            while not self._is_closed:
                self._forget_closed_sessions()
                self._waiting = [turn for turn in self._waiting if not turn.future.cancelled()]
                if self._may_start():
                    taken, self._waiting = self._waiting, []
                    if self._deterministic:
                        taken.sort(key=lambda turn: (turn.request.order, turn.request.session_id))
                    for turn in taken:
                        turn.version = self._version_for(turn.request.session_id)
                    self._queue += taken
                if self._running or self._queue:
                    return True
                self._wake.wait()
        return False

    def _may_start(self) -> bool:
        if not self._waiting or not self._deterministic:
            return bool(self._waiting)
        if self._running or self._queue:
            return False  # a round is under way
        return self._open <= {turn.request.session_id for turn in self._waiting}

    def _forget_closed_sessions(self) -> None:
        for session_id in self._just_closed:
            self._cache.close_session(session_id)
            if self._pins is not None:
                self._pins.pop(session_id, None)
        self._just_closed.clear()
        if self._deterministic and not self._open and not self._waiting and not self._running and not self._queue:
            self._cache.drop_idle()

    def _version_for(self, session_id: str) -> _Version:
        if self._pins is None:
            return self._current
        return self._pins.setdefault(session_id, self._current)

    def _admit(self) -> None:
        """Give rows to queued turns, as many as fit. A turn whose prompt another one is about to compute waits for it."""
        self._drop_cancelled()
        unfed = [turn for turn in self._running if turn.num_unfed > 1]
        delayed: list[_Running] = []
        while self._queue and len(self._running) < self._max_running:
            turn = self._queue.pop(0)
            if self._can_save_by_waiting(turn, unfed):
                delayed.append(turn)
                continue
            assert turn.version is not None
            turn.row = self._cache.claim(turn.request.session_id, turn.request.prompt_ids, turn.version.number)
            if turn.row is None:
                self._queue.insert(0, turn)
                break
            self._running.append(turn)
            if turn.num_unfed > 1:
                unfed.append(turn)
        self._queue = delayed + self._queue

    def _can_save_by_waiting(self, turn: _Running, unfed: Sequence[_Running]) -> bool:
        prompt = turn.request.prompt_ids
        most = 0
        for other in unfed:
            if other.version is turn.version:
                most = max(most, _shared_prefix(prompt, other.request.prompt_ids))
        if most < MIN_SHARED:
            return False
        assert turn.version is not None
        return most - self._cache.longest_prefix(prompt, turn.version.number)[1] >= MIN_SHARED

    def _step(self) -> None:
        for version in dict.fromkeys(turn.version for turn in self._running):
            assert version is not None
            turns = [turn for turn in self._running if turn.version is version]
            prompts = [turn for turn in turns if turn.num_unfed > 1]
            if prompts:
                self._prefill(version, prompts)
            # In the order of their rows: the decoder reads neighbouring rows in place.
            ready = sorted((turn for turn in turns if turn.num_unfed == 1), key=lambda turn: turn.row_index)
            if ready:
                self._sample(ready, self._decode(version, ready))
        self._finish()

    def _prefill(self, version: _Version, turns: Sequence[_Running]) -> None:
        """Feed prompt tokens, at most a chunk in all and never a prompt's last token, which decoding feeds."""
        room = self._chunk
        fed: list[tuple[_Running, list[int]]] = []
        for turn in turns:
            if room == 0:
                break
            tokens = turn.unfed(min(room, turn.num_unfed - 1))
            room -= len(tokens)
            fed.append((turn, tokens))
        device, cache = self._policy.device, self._cache
        starts = [len(turn.row.token_ids) for turn, _ in fed if turn.row is not None]
        rows = [turn.row.index for turn, _ in fed if turn.row is not None]
        lengths = [len(tokens) for _, tokens in fed]
        ids_N = torch.tensor([token for _, tokens in fed for token in tokens], device=device)
        positions = [p for start, n in zip(starts, lengths, strict=True) for p in range(start, start + n)]
        positions_N = torch.tensor(positions, device=device)
        rows_N = torch.tensor([row for row, n in zip(rows, lengths, strict=True) for _ in range(n)], device=device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(layer, rows_N, positions_N, k, v)
            outputs, offset = [], 0
            for row, start, length in zip(rows, starts, lengths, strict=True):
                keys = cache.keys[layer][row, :, : start + length].transpose(0, 1)
                values = cache.values[layer][row, :, : start + length].transpose(0, 1)
                outputs.append(attend_causally(version.weights.shape, q[offset : offset + length], keys, values))
                offset += length
            return torch.cat(outputs)

        forward(version.weights, ids_N, positions_N, attend)
        for turn, tokens in fed:
            assert turn.row is not None
            turn.row.token_ids += tokens
            turn.num_computed += len(tokens)

    def _decode(self, version: _Version, turns: Sequence[_Running]) -> Tensor:
        """Feed one token of each turn; logits [B, V] of the next."""
        weights, cache, device = version.weights, self._cache, self._policy.device
        shape = weights.shape
        assert all(turn.row is not None for turn in turns)
        found = [turn.row for turn in turns if turn.row is not None]
        tokens = [turn.unfed(1)[0] for turn in turns]
        lengths = [len(row.token_ids) for row in found]
        rows_B = torch.tensor([row.index for row in found], device=device)
        positions_B = torch.tensor(lengths, device=device)
        longest = max(lengths) + 1
        first, last = int(rows_B.min()), int(rows_B.max()) + 1
        # A slice of neighbouring rows is read in place; scattered rows are gathered when fewer than half are in use.
        in_place = 2 * len(turns) >= last - first
        place = slice(first, last) if in_place else rows_B
        places_B = rows_B - first if in_place else torch.arange(len(turns), device=device)
        num_places = last - first if in_place else len(turns)
        visible = torch.zeros(num_places, 1, 1, longest, dtype=torch.bool, device=device)
        visible[..., 0] = True
        visible[places_B] = (torch.arange(longest, device=device) <= positions_B[:, None])[:, None, None]
        repeat = shape.num_heads // shape.num_kv_heads

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(layer, rows_B, positions_B, k, v)
            queries = q.view(len(turns), shape.num_kv_heads, repeat, shape.head_dim)
            if in_place and num_places > len(turns):
                spread = queries.new_zeros(num_places, *queries.shape[1:])
                spread[places_B] = queries
                queries = spread
            out = F.scaled_dot_product_attention(
                queries,
                cache.keys[layer][place, :, :longest],
                cache.values[layer][place, :, :longest],
                attn_mask=visible,
            )
            if in_place:
                out = out[places_B]
            return out.reshape(len(turns), shape.num_heads * shape.head_dim)

        hidden_B_H = forward(weights, torch.tensor(tokens, device=device), positions_B, attend)
        for turn, row, token in zip(turns, found, tokens, strict=True):
            row.token_ids.append(token)
            turn.num_computed += 1
        return hidden_B_H @ weights.lm_head.T

    def _sample(self, turns: Sequence[_Running], logits_B_V: Tensor) -> None:
        uniforms = [turn.stream.next() for turn in turns]
        tokens_B, logprobs_B = draw(logits_B_V, [turn.request.sampling for turn in turns], uniforms)
        for turn, token, logprob in zip(turns, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
            turn.token_ids.append(token)
            turn.logprobs.append(logprob)
            if turn.on_token is not None:
                turn.on_token(token)

    def _finish(self) -> None:
        going_on: list[_Running] = []
        for turn in self._running:
            reason = self._stop_reason(turn)
            if reason is None:
                going_on.append(turn)
                continue
            assert turn.row is not None
            assert turn.version is not None
            self._cache.release(turn.row)
            completion = Completion(
                token_ids=tuple(turn.token_ids),
                sampled_logprobs=tuple(turn.logprobs),
                stop_reason=reason,
                versions=((turn.version.number, len(turn.token_ids)),),
                fingerprint=turn.version.fingerprint,
                num_computed_tokens=turn.num_computed,
            )
            if not turn.future.cancelled():
                turn.future.set_result(completion)
        self._running = going_on

    def _stop_reason(self, turn: _Running) -> StopReason | None:
        if not turn.token_ids:
            return None
        if turn.token_ids[-1] in turn.request.stop_ids:
            return StopReason.STOP
        full = len(turn.request.prompt_ids) + len(turn.token_ids) >= self._cache.row_tokens
        return StopReason.LENGTH if full or len(turn.token_ids) >= turn.request.sampling.max_tokens else None

    def _drop_cancelled(self) -> None:
        self._queue = [turn for turn in self._queue if not turn.future.cancelled()]
        for turn in self._running:
            if turn.future.cancelled() and turn.row is not None:
                self._cache.release(turn.row)
        self._running = [turn for turn in self._running if not turn.future.cancelled()]

    def _fail_all(self, error: Exception) -> None:
        with self._wake:
            failed = self._running + self._queue + (self._waiting if self._is_closed else [])
            self._running, self._queue = [], []
        for turn in failed:
            if turn.row is not None:
                turn.row.token_ids, turn.row.version = [], -1
                self._cache.release(turn.row)
            if not turn.future.cancelled():
                turn.future.set_exception(error)


def _shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    limit = min(len(left), len(right))
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
