"""The in-process engine, with continuous batching, prefix reuse, and exact log-probabilities of the sampled tokens.

One thread does all computations; `sample` waits for it. Turns join and leave the running batch between steps. Each step
first processes a bounded number of new prompt tokens, and then decodes at least one token of every running turn.

Turns with equal histories under equal weights share a row of the cache, and one computation, until they draw different
tokens. A turn that begins later draws from the stored logits of an earlier turn, as long as their histories are equal.
Each turn draws with its own random stream.

In deterministic mode, the engine works in rounds: no turn starts until every open session has requested one. The turns
then run sorted by `order`, so that the shapes of all computations do not depend on when requests arrive.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, final

import torch
from torch import Tensor

from sparring.engines.cached_forward import Forward, GenericForward, LeanForward
from sparring.engines.drafts import Drafts
from sparring.engines.frozen import FrozenEngine
from sparring.engines.given_texts import GivenTexts, Text
from sparring.engines.grammar import Grammars
from sparring.engines.kv_cache import SMALLEST_ROW, Row
from sparring.engines.load import Load, device_metrics
from sparring.engines.logits_cache import Key, LogitsCache
from sparring.engines.sampling import constrain, draw
from sparring.engines.turns import RunningTurn, Version
from sparring.errors import ConstraintError, ContextOverflow, InfrastructureError, PolicyTimeout, SparringError
from sparring.models.policy import Policy
from sparring.models.streams import own_stream
from sparring.models.threads import release_threads, releases_threads
from sparring.models.token_tree import common_prefix
from sparring.protocols import TokenCallback
from sparring.runtime.allocator import return_freed_memory
from sparring.runtime.faults import fault_point
from sparring.types import Completion, EngineCapabilities, SampleRequest, Weights

LEAST_LOGIT_BYTES, LOGIT_DIVISOR = 64 * 2**20, 8
"""The logits of recent histories may take this many bytes, or this part of the cache of keys and values if it is more."""
MIN_SHARED = 8
"""The minimum number of prompt tokens that a turn must save for it to wait until another turn has computed them."""


@final
class TorchEngine:
    """Samples from a policy in this process, on CPU or CUDA. Implements `protocols.Engine`."""

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
        """Create an engine and start its thread. `max_running` limits the rows of a batch; turns with equal histories share
        a row. `kv_cache_tokens` limits the cache size, and therefore also the context length if the policy's own limit is
        larger."""
        self._forward: Forward
        if policy.is_lean:
            self._forward = LeanForward(policy, policy.materialize(weights).shape, kv_cache_tokens=kv_cache_tokens)
        else:
            self._forward = GenericForward(policy, kv_cache_tokens=kv_cache_tokens)
        self._decode_text = None if policy.tokenizer is None else policy.tokenizer.decode
        self._vocab_size: int = policy.base.get_input_embeddings().weight.shape[0]
        self._grammars = Grammars(policy.tokenizer, self._vocab_size)
        self._current = self._version(weights, version)
        self._cache = self._forward.cache
        self._known = LogitsCache(max(LEAST_LOGIT_BYTES, self._cache.num_bytes // LOGIT_DIVISOR))
        self._drafts = Drafts()
        self._max_running = max_running
        self._device = policy.device
        self._load = Load()
        self._chunk = prefill_chunk_tokens
        self._deterministic = deterministic
        self._is_pinned = session_weights == "pinned"
        # The condition protects the state that both threads use: from here to `_is_closed`. The worker waits on it for work.
        self._wake = threading.Condition()
        self._waiting: list[RunningTurn] = []
        self._open: set[str] = set()
        self._just_closed: list[str] = []
        self._is_trunk_stale = True
        """Deterministic mode: the next round must not use outputs of frozen layers that were kept before it."""
        self._is_cache_stale = False
        """Deterministic mode: there was a moment without open sessions, and cached rows must not be used after it."""
        self._is_closed = False
        # Only the worker uses the rest.
        self._queue: list[RunningTurn] = []
        """The turns of this round (otherwise all turns) that have no row yet."""
        self._running: list[RunningTurn] = []
        self._pins: dict[str, Version] = {}
        self._frozen: dict[str, Version] = {}
        """The versions of frozen policies, by fingerprint; entries are never removed."""
        self._strangers: list[str] = []
        """Deterministic mode: the sessions of this round that were never opened. Later rounds must not use their rows."""
        self._given = GivenTexts(self._forward.logprobs)
        self._thread = threading.Thread(target=self._work, name="sparring-engine", daemon=True)
        self._thread.start()

    @property
    def capabilities(self) -> EngineCapabilities:
        has_grammars = self._decode_text is not None
        return EngineCapabilities(
            reports_token_ids=True,
            holds_several_weights=True,
            pins_weights=self._is_pinned,
            deterministic_rounds=self._deterministic,
            constrained_sampling=has_grammars,
            reports_removed_mass=has_grammars,
            scores_given_ids=True,
        )

    @property
    def policy_version(self) -> int:
        return self._current.number

    @property
    def fingerprint(self) -> str:
        return self._current.fingerprint

    @property
    def max_context_tokens(self) -> int:
        return self._cache.row_tokens

    async def sample(
        self, request: SampleRequest, on_token: TokenCallback | None = None, *, frozen: Version | None = None
    ) -> Completion:
        """Continue the prompt; `on_token` is called in the event loop. Cancelling the task frees the slot. If given,
        `frozen` is a result of `keep`, and the turn is sampled with those weights.

        Raises ContextOverflow when the turn can never fit, PolicyTimeout after the deadline, InfrastructureError when
        the engine is closed or fails, ConstraintError for a constraint that cannot be followed, and ValueError for an
        empty prompt or for ids outside the vocabulary.
        """
        self._check(request)
        began = time.monotonic()
        callback = None if on_token is None else _in_loop(asyncio.get_running_loop(), on_token)
        turn = RunningTurn(request, callback, frozen=frozen)
        if request.constraint is not None:
            turn.guide = await asyncio.to_thread(self._grammars.guide, request.constraint, request.stop_ids)
        timeout = None if request.deadline is None else max(0.0, request.deadline - began)
        with self._wake:
            if self._is_closed:
                raise InfrastructureError("the engine is closed, so no turn can be sampled; build a new one.")
            self._waiting.append(turn)
            self._wake.notify()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(turn.future), timeout)
        except TimeoutError as error:
            raise PolicyTimeout(self._why_late(turn, time.monotonic() - began)) from error
        finally:
            turn.future.cancel()
            with self._wake:
                self._wake.notify()

    async def load_weights(self, weights: Weights, version: int) -> None:
        """Use these weights for all turns that start from now on. Running turns keep theirs."""
        fault_point("engine.loading")
        # The learner's freed activations are in pieces, so the new weights would need as much memory again.
        await asyncio.to_thread(return_freed_memory)
        loaded = await asyncio.to_thread(self._version, weights, version)
        with self._wake:
            self._current = loaded
        fault_point("engine.loaded")

    def freeze(self, weights: Weights | None = None) -> FrozenEngine:
        """Return an engine for fixed weights. Its turns share batches, cache and rounds with the turns of this
        engine."""
        return FrozenEngine(self, weights)

    def keep(self, weights: Weights, version: int) -> Version:
        """Keep these weights in addition to the weights in training, for use in `sample` and `logprobs`, until the
        engine is closed."""
        known = self._frozen.get(weights.fingerprint)
        if known is None or known.number != version:
            loaded = self._version(weights, version)
            with self._wake:
                self._frozen = {**self._frozen, weights.fingerprint: loaded}
        return self._frozen[weights.fingerprint]

    async def logprobs(
        self, token_ids: Sequence[int], temperature: float = 1.0, first: int = 1, *, frozen: Version | None = None
    ) -> list[float]:
        """Return the log-probability (in nats) of each id from index `first` on, given the ids before it, under the
        newest or the frozen weights.

        Temperature 0 counts as temperature 1, as in `sample`.
        """
        text = Text(token_ids=tuple(token_ids), temperature=temperature or 1.0, first=first)
        return await self._given.logprobs((frozen or self._current).weights, text)

    def open_session(self, session_id: str) -> None:
        """Register a session. From now on, a deterministic engine starts no round without this session."""
        with self._wake:
            self._open.add(session_id)

    def close_session(self, session_id: str) -> None:
        """Unregister a session, so that its keys and values may be evicted."""
        with self._wake:
            self._open.discard(session_id)
            self._just_closed.append(session_id)
            self._is_cache_stale = self._is_cache_stale or not self._open
            self._wake.notify()

    def metrics(self) -> dict[str, float]:
        """Return the load since the last call, and the accelerator's peak memory in that time. The peak includes the
        learner's memory if the learner runs in this process."""
        return self._load.take(time.monotonic(), capacity=self._max_running) | device_metrics(self._device)

    async def close(self) -> None:
        """Stop the thread; turns that are not complete fail with InfrastructureError."""
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _check(self, request: SampleRequest) -> None:
        prompt = request.prompt_ids
        if len(prompt) >= self.max_context_tokens:
            raise ContextOverflow(
                f"a prompt of {len(prompt)} tokens leaves no room for an answer in a context of "
                f"{self.max_context_tokens}; shorten it, or raise model.max_sequence_length and engine.kv_cache_tokens."
            )
        if not prompt or min(prompt) < 0 or max(prompt) >= self._vocab_size:
            wrong = f"an id outside the vocabulary of {self._vocab_size}" if prompt else "no token"
            raise ValueError(
                f"session {request.session_id}: the prompt contains {wrong}; check that tokenizer and model match."
            )
        if request.sampling.max_tokens < 1:
            raise ValueError(f"max_tokens is {request.sampling.max_tokens}; a turn samples at least 1 token.")

    def _why_late(self, turn: RunningTurn, seconds: float) -> str:
        prompt, sampled = len(turn.request.prompt_ids), len(turn.sampled)
        if turn.row is not None or sampled:
            where = f"{sampled} of at most {turn.request.sampling.max_tokens} tokens were sampled"
        elif self._deterministic and turn.version is None:
            where = "it waited for a round, which begins when every open session has requested a turn"
        else:
            where = f"it waited for a free slot while {len(self._running)} other turns were running"
        return (
            f"session {turn.request.session_id}: no answer to a prompt of {prompt} tokens within {seconds:.1f} s: "
            f"{where}. Raise rollout.rollout_timeout, or lower rollout.rollout_max_concurrency."
        )

    @releases_threads
    def _version(self, weights: Weights, number: int) -> Version:
        return Version(number=number, fingerprint=weights.fingerprint, weights=self._forward.materialize(weights))

    # All methods below run in the worker thread.

    def _work(self) -> None:
        closed = InfrastructureError("the engine was closed before this turn was complete.")
        try:
            with own_stream(self._device):
                self._compute()
        finally:
            with self._wake:
                self._is_closed = True
                left = self._running + self._queue + self._waiting
            self._fail(left, closed)

    def _compute(self) -> None:
        while self._take_work():
            began = time.monotonic()
            try:
                self._admit()
                self._step()
            except Exception as error:  # noqa: BLE001 - the waiting callers get the error; the engine continues
                failure = InfrastructureError(f"the engine failed while it computed a turn: {error!r}.")
                failure.__cause__ = error
                self._fail(self._running + self._queue, failure)
                self._running, self._queue = [], []
            self._load.worked(time.monotonic() - began)

    def _take_work(self) -> bool:
        """Wait until there is something to compute. Return False when the engine closes."""
        with self._wake:
            while not self._is_closed:
                self._drop_cancelled()
                self._tidy_cache()
                taken = self._next_round() if self._deterministic else self._waiting
                if taken:
                    self._waiting = [turn for turn in self._waiting if turn not in taken]
                    self._queue += taken
                if self._running or self._queue:
                    return True
                release_threads()
                self._wake.wait()
        return False

    def _next_round(self) -> list[RunningTurn]:
        """Return the turns of a deterministic round once it may start: one turn of every open session, sorted by
        `order`. A turn of a session that was never opened runs in a separate round, so that the other turns do not
        depend on when it arrives."""
        if self._running or self._queue:
            return []
        strangers = [turn for turn in self._waiting if turn.request.session_id not in self._open]
        if strangers:
            taken = strangers[:1]
            self._strangers = [turn.request.session_id for turn in taken]
        elif self._open <= {turn.request.session_id for turn in self._waiting}:
            taken = sorted(self._waiting, key=lambda turn: (turn.request.order, turn.request.session_id))
        else:
            return []
        for turn in taken:
            turn.version = self._version_for(turn)
        if self._is_trunk_stale and taken and not strangers:
            # The outputs are not dropped before the next round begins, because the learner still reads the outputs for
            # the tokens of the closed sessions.
            self._forward.forget_outputs()
            self._is_trunk_stale = False
        return taken

    def _tidy_cache(self) -> None:
        """Drop rows that no later turn may read: rows of replaced weights and, in deterministic mode, rows that would
        make one round of open sessions depend on an earlier round."""
        for session_id in self._just_closed:
            self._cache.close_session(session_id)
            self._pins.pop(session_id, None)
        self._just_closed.clear()
        if self._deterministic and not self._running and not self._queue:
            for session_id in self._strangers:
                self._cache.drop(session_id=session_id)
            self._strangers = []
            if self._is_cache_stale:
                self._cache.drop()
                self._known.drop()
                self._drafts.forget()
                self._is_cache_stale, self._is_trunk_stale = False, True
                # The learner needs memory next.
                self._cache.return_memory()
                return_freed_memory()
        begun = (turn.version for turn in self._running + self._queue)
        versions = (self._current, *self._pins.values(), *self._frozen.values(), *begun)
        used = frozenset(version.fingerprint for version in versions if version is not None)
        self._cache.drop(besides=used)
        self._known.drop(besides=used)

    def _version_for(self, turn: RunningTurn) -> Version:
        if turn.frozen is not None:
            return turn.frozen
        return self._pins.setdefault(turn.request.session_id, self._current) if self._is_pinned else self._current

    def _drop_cancelled(self) -> None:
        for turn in self._running:
            if turn.future.cancelled():
                self._release(turn)
        self._running = [turn for turn in self._running if turn.row is not None]
        self._queue = [turn for turn in self._queue if not turn.future.cancelled()]
        self._waiting = [turn for turn in self._waiting if not turn.future.cancelled()]

    def _admit(self) -> None:
        """Give rows to as many queued turns as fit. A turn waits while another one computes a prefix that it can then copy."""
        for turn in self._queue:
            if turn.version is None or not (turn.logprobs or self._deterministic):
                turn.version = self._version_for(turn)
        self._replay()
        left: list[RunningTurn] = []
        reading = [turn for turn in self._running if turn.num_unfed > 1]
        leaders: dict[Key, RunningTurn] = {}
        for turn in self._running:
            leader = leaders.setdefault(turn.key, turn)
            if leader.held is not turn.held:
                self._share(turn, leader.held)
        num_rows = len({turn.held for turn in self._running})
        for place, turn in enumerate(self._queue):
            leader = leaders.get(turn.key)
            if leader is not None:
                self._share(turn, leader.held)
                self._running.append(turn)
                continue
            if num_rows < self._max_running and self._can_save_by_waiting(turn, reading):
                left.append(turn)
                continue
            if num_rows < self._max_running:
                turn.row = self._cache.claim(
                    turn.request.session_id,
                    turn.ids,
                    turn.fingerprint,
                    room=min(turn.request.sampling.max_tokens, SMALLEST_ROW),
                )
            if turn.row is None:
                left += self._queue[place:]
                break
            num_rows += 1
            self._running.append(turn)
            leaders[turn.key] = turn
            if turn.num_unfed > 1:
                reading.append(turn)
        self._queue = left

    def _replay(self) -> None:
        """Advance queued turns as long as the logits after their histories are known from an earlier turn."""
        pending = self._queue
        while pending:
            known = {turn.key: self._recall(turn) for turn in pending}
            pending = [turn for turn in pending if known[turn.key] is not None]
            pending = self._sample_next(pending, {key: logits for key, logits in known.items() if logits is not None})
        self._queue = [turn for turn in self._queue if not turn.future.done()]

    def _recall(self, turn: RunningTurn) -> Tensor | None:
        # A session that was never opened must not depend on the others, nor the others on it.
        return None if self._strangers else self._known.get(turn.key)

    def _can_save_by_waiting(self, turn: RunningTurn, reading: Sequence[RunningTurn]) -> bool:
        shared = [common_prefix(turn.ids, other.ids) for other in reading if other.fingerprint == turn.fingerprint]
        most = max(shared, default=0)
        if most < MIN_SHARED:
            return False
        _, cached = self._cache.longest_prefix(turn.request.session_id, turn.ids, turn.fingerprint)
        return most - cached >= MIN_SHARED

    def _step(self) -> None:
        for fingerprint in dict.fromkeys(turn.fingerprint for turn in self._running):
            turns = [turn for turn in self._running if turn.fingerprint == fingerprint]
            assert turns[0].version is not None
            weights = turns[0].version.weights
            self._prefill(weights, [turn for turn in turns if turn.num_unfed > 1])
            self._decode(weights, [turn for turn in turns if turn.num_unfed == 1 and self._has_space(turn)])
        self._running = [turn for turn in self._running if turn.row is not None]

    def _has_space(self, turn: RunningTurn) -> bool:
        """Return whether the next token of a turn fits into the cache. A turn that cannot get more space returns to the
        queue, and its row may be used by another turn. The turn later processes its history again, including the
        sampled tokens."""
        if self._cache.grow(turn.held, len(turn.ids)):
            return True
        self._release(turn)
        self._queue.insert(0, turn)
        self._load.preempted()
        return False

    def _prefill(self, weights: Any, turns: Sequence[RunningTurn]) -> None:
        """Process prompt tokens, at most one chunk in total. The last token of a prompt is left to the decoding
        step."""
        chunks: list[tuple[Row, list[int]]] = []
        space = self._chunk
        for row, holders in _by_row(turns).items():
            new = holders[0].unfed(min(space, holders[0].num_unfed - 1))
            if new:
                chunks.append((row, new))
                holders[0].num_computed += len(new)
                space -= len(new)
        if chunks:
            self._forward.prefill(weights, chunks)

    def _decode(self, weights: Any, turns: Sequence[RunningTurn]) -> None:
        """Process the last token of each turn and a draft of the next ones, and sample as many tokens as the draft allows."""
        holders = _by_row(turns)
        if not holders:
            return
        rows = sorted(holders, key=lambda row: (row.capacity, row.offset))
        self._load.decoded(len(rows))
        new = [[leader.ids[-1], *draft] for leader, draft in self._draft([holders[row][0] for row in rows])]
        logits_N_V = iter(self._forward.decode(weights, rows, new))
        logits: dict[Key, Tensor] = {}
        fed: dict[Row, set[Key]] = {row: set() for row in rows}
        for row, tokens in zip(rows, new, strict=True):
            leader = holders[row][0]
            leader.num_computed += len(tokens)
            for key in leader.keys_after(tokens[1:]):
                logits[key] = next(logits_N_V)
                fed[row].add(key)
                if not self._strangers:
                    self._known.add(key, logits[key])
        pending = [turn for row in rows for turn in holders[row]]
        while pending:
            # A turn continues as long as it draws the tokens of its own draft, because its row contains no others.
            pending = [turn for turn in self._sample_next(pending, logits) if turn.key in fed[turn.held]]
        for row in rows:
            self._part(row, [turn for turn in holders[row] if not turn.future.done()])

    def _draft(self, turns: Sequence[RunningTurn]) -> list[tuple[RunningTurn, list[int]]]:
        """Return a draft of the next tokens of each turn, which may be empty. While few rows run, a pass takes hardly
        longer for a few more tokens."""
        limit = self._forward.max_decoded_tokens // len(turns) - 1
        drafts = []
        for turn in turns:
            space = min(turn.held.capacity, self._cache.row_tokens) - len(turn.ids)
            room = min(space, turn.request.sampling.max_tokens - len(turn.logprobs) - 1)
            drafts.append((turn, [] if self._strangers else self._drafts.propose(turn.ids, min(limit, room))))
        return drafts

    def _sample_next(self, turns: Sequence[RunningTurn], logits: Mapping[Key, Tensor]) -> list[RunningTurn]:
        """Sample the next token of each turn from the logits after its history. Return the turns that continue."""
        masks = self._masks(turns)
        turns = [turn for turn in turns if not turn.future.done()]
        if not turns:
            return []
        # Turns with equal histories and settings draw from one distribution, unless a grammar changes it.
        places: dict[object, int] = {}
        leaders, rows = list[RunningTurn](), list[int]()
        for turn in turns:
            settings = turn.request.sampling
            same = turn if turn in masks else (turn.key, settings.temperature, settings.top_p, turn.request.top_k)
            place = places.setdefault(same, len(leaders))
            if place == len(leaders):
                leaders.append(turn)
            rows.append(place)
        sampling = [turn.request.sampling for turn in leaders]
        logits_B_V = torch.stack([logits[turn.key] for turn in leaders])
        if masks:
            allowed = {row: masks[turn] for row, turn in enumerate(leaders) if turn in masks}
            logits_B_V, removed_C = constrain(logits_B_V, allowed, sampling)
            for row, removed in zip(allowed, removed_C.tolist(), strict=True):
                leaders[row].removed_mass = max(leaders[row].removed_mass, removed)
        uniforms, tops = [turn.uniforms.next() for turn in turns], [turn.request.top_k for turn in leaders]
        tokens_T, logprobs_T = draw(logits_B_V, sampling, uniforms, rows, top_ks=tops)
        for turn, token, logprob in zip(turns, tokens_T.tolist(), logprobs_T.tolist(), strict=True):
            turn.append(token, logprob)
            if not self._strangers:
                self._drafts.remember(turn.ids, turn.sampled, turn.logprobs)
            reason = turn.stop_reason(self._cache.row_tokens, self._decode_text)
            if reason is not None:
                if turn.row is not None and not self._strangers:
                    self._forward.keep_outputs(turn.row)
                self._release(turn)
                turn.complete(reason)
        return [turn for turn in turns if not turn.future.done()]

    def _part(self, row: Row, holders: Sequence[RunningTurn]) -> None:
        """Keep the row for the turns with the most frequent history. The others return to the queue, and copy the row
        when they are admitted."""
        histories = Counter(turn.key for turn in holders)
        if not histories:
            return
        kept = histories.most_common(1)[0][0]
        leader = next(turn for turn in holders if turn.key == kept)
        # The tokens after these in the row are the part of a draft that was not drawn.
        del row.token_ids[len(leader.ids) - 1 :]
        if row.session_id != leader.request.session_id:
            row.session_id, row.is_closed = leader.request.session_id, False
        leaving = [turn for turn in holders if turn.key != kept]
        for turn in leaving:
            self._release(turn)
        self._queue[:0] = leaving

    def _masks(self, turns: Sequence[RunningTurn]) -> dict[RunningTurn, Tensor]:
        """Return which tokens may come next in each constrained turn. If a grammar is too complex, only the turn that
        uses it fails."""
        masks: dict[RunningTurn, Tensor] = {}
        for turn in turns:
            if turn.guide is not None:
                try:
                    masks[turn] = turn.guide.allowed()
                except ConstraintError as error:
                    self._fail([turn], error)
        return masks

    def _fail(self, turns: Sequence[RunningTurn], error: SparringError) -> None:
        for turn in turns:
            self._release(turn)
            turn.fail(error)

    def _share(self, turn: RunningTurn, row: Row) -> None:
        """Let a turn use the row of a turn with the same history."""
        self._release(turn)
        row.num_turns += 1
        turn.row = row

    def _release(self, turn: RunningTurn) -> None:
        if turn.row is not None:
            self._cache.release(turn.row)
            turn.row = None


def _by_row(turns: Iterable[RunningTurn]) -> dict[Row, list[RunningTurn]]:
    """Return the turns that share each row, in the order of the turns."""
    holders: dict[Row, list[RunningTurn]] = {}
    for turn in turns:
        holders.setdefault(turn.held, []).append(turn)
    return holders


def _in_loop(loop: asyncio.AbstractEventLoop, on_token: TokenCallback) -> Callable[[int], None]:
    """Return the callback in a form that the worker thread may call. The returned function does nothing after the loop
    is closed."""

    def call(token: int) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(on_token, token)

    return call
