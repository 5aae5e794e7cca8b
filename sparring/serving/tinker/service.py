"""The sessions, training runs and samplers of a server, and what its clients' requests do with them."""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar, final

from sparring.errors import DataError
from sparring.serving.tinker.answers import Result, SampleResult
from sparring.serving.tinker.base import Adapter, BaseModel, choose_targets
from sparring.serving.tinker.checkpoints import Address, Checkpoints
from sparring.serving.tinker.futures import Future, Futures, Line
from sparring.serving.tinker.losses import build_computation
from sparring.serving.tinker.refusal import Refusal
from sparring.serving.tinker.requests import (
    CreateModel,
    CreateSamplingSession,
    CreateSession,
    Forward,
    LoadWeights,
    LoraConfig,
    OptimStep,
    Sample,
    SamplingParams,
    SaveWeights,
    SaveWeightsExternal,
    SaveWeightsForSampler,
)
from sparring.serving.tinker.training_run import RunSettings, TrainingRun
from sparring.types import Completion, Json, SampleRequest, Sampling, StopReason

Value = TypeVar("Value")

MOST_RUNS: Final = 32
"""The number of training runs in memory. If there are more, those of sessions that have ended are unloaded."""
MOST_ADAPTERS: Final = 64
"""The number of adapters that samplers without a name keep in memory. The one that was used least recently is dropped."""
SESSION_SECONDS: Final = 600.0
"""A session has ended if its client has sent no heartbeat for this time."""


@dataclass(slots=True, kw_only=True)
class Session:
    """A client's session."""

    id: str
    settings: CreateSession
    last_seen: float = field(default_factory=time.monotonic)
    sampler_ids: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """What a sampling session samples with."""

    id: str
    model_path: str | None = None
    inflight_of: str | None = None
    """The training run whose newest published adapter is used."""
    is_trained: bool = False
    """Whether its adapter is only in memory, so that it may be gone."""


@final
class TinkerService:
    """Carries out the requests of clients. Its methods run in one event loop, and computations in threads.

    Training computations run one after the other, in turn for all runs. Sampling goes on meanwhile.
    """

    def __init__(self, base: BaseModel, checkpoints: Checkpoints) -> None:
        self.base, self.checkpoints, self.futures = base, checkpoints, Futures()
        self.sessions: dict[str, Session] = {}
        self.runs: dict[str, TrainingRun] = {}
        self.samplers: dict[str, Sampler] = {}
        self._lines: dict[str, Line] = {}
        self._adapters: OrderedDict[str, Adapter] = OrderedDict()
        """The adapters of samplers without a path, by sampler, and the inflight ones, by training run."""
        self._computing = asyncio.Lock()

    async def close(self) -> None:
        for line in list(self._lines.values()):
            await line.close()
        await self.futures.close()
        await self.base.engine.close()

    # Sessions

    def create_session(self, given: CreateSession) -> Session:
        session = Session(id=str(uuid.uuid4()), settings=given)
        self.sessions[session.id] = session
        return session

    def find_session(self, session_id: str) -> Session:
        """Return a session, whose client is alive. Raises Refusal 410."""
        if session_id not in self.sessions:
            raise Refusal(f"session_id: {session_id!r} is unknown: it has ended, or the server was restarted.", 410)
        session = self.sessions[session_id]
        session.last_seen = time.monotonic()
        return session

    async def finish_session(self, session_id: str) -> None:
        """Unload the training runs of a session. Their checkpoints stay."""
        self.find_session(session_id)
        await self._end_session(session_id)

    async def _end_session(self, session_id: str) -> None:
        session = self.sessions.pop(session_id)
        for sampler_id in session.sampler_ids:
            self.samplers.pop(sampler_id, None)
            self._adapters.pop(sampler_id, None)
        for run_id in [run_id for run_id, run in self.runs.items() if run.settings.session_id == session_id]:
            if run_id in self.runs:  # another request may unload it meanwhile
                await self.unload_run(run_id)

    async def unload_run(self, run_id: str) -> None:
        """Forget a training run when its present computation has ended. Meanwhile it takes no requests. Its checkpoints stay.
        Raises Refusal 404."""
        self.find_run(run_id)
        del self.runs[run_id]
        await self._lines.pop(run_id).close()
        self._adapters.pop(run_id, None)

    # Training

    def find_run(self, run_id: str) -> TrainingRun:
        """Raises Refusal 404."""
        try:
            run = self.runs[run_id]
        except KeyError:
            raise Refusal(
                f"model_id: {run_id!r} is not in memory: it was unloaded, or the server was restarted. Create a training "
                "client from a saved state.",
                404,
            ) from None
        run.last_request_time = time.time()
        return run

    async def create_model(self, given: CreateModel, digest: str) -> Future:
        """Start to create a training run. Raises Refusal."""
        self.find_session(given.session_id)
        self.base.check_name(given.base_model)
        choose_targets(given.lora_config)
        run_id = f"{given.session_id}:train:{given.model_seq_id}"
        settings = _choose_settings(run_id, given.session_id, given.lora_config, given.user_metadata)

        async def create() -> Result:
            await self._add_run(settings)
            return {"model_id": run_id, "type": "create_model"}

        return await self._start_run(f"{run_id}:create", digest, create)

    async def load_weights(self, given: LoadWeights, digest: str) -> Future:
        """Continue a training run from a checkpoint, or create one from it. Raises Refusal."""
        address = Address.read(given.path)
        if given.optimizer and address.kind != "weights":
            raise Refusal(f"path: {given.path} has no optimizer state; load one that save_state wrote.")
        content = await asyncio.to_thread(self.checkpoints.read_content, address)
        if given.model_id is not None and given.seq_id is not None:
            load = partial(self._load, self.find_run(given.model_id), address, content, given.optimizer)
            return self._put(given.model_id, given.seq_id, digest, load)
        if given.base_model is not None:
            self.base.check_name(given.base_model)
        session_id = given.session_id or ""
        self.find_session(session_id)
        run_id = f"{session_id}:train:{given.model_seq_id}"
        lora = LoraConfig.model_validate(content["lora_config"])
        settings = _choose_settings(run_id, session_id, lora, given.user_metadata)

        async def create() -> Result:
            run = await self._add_run(settings)
            return await self._load(run, address, content, given.optimizer)

        return await self._start_run(f"{run_id}:create", digest, create)

    async def _start_run(self, request_id: str, digest: str, create: Callable[[], Awaitable[Result]]) -> Future:
        future, is_new = self.futures.add(request_id, digest)
        if is_new:
            try:
                await self._make_room()
            except Refusal:
                self.futures.remove(future)
                raise
            self.futures.start(future, create)
        return future

    async def _add_run(self, settings: RunSettings) -> TrainingRun:
        run = await self._compute(lambda: TrainingRun(settings, self.base))
        self.find_session(settings.session_id)  # it may have ended meanwhile
        self.runs[settings.id], self._lines[settings.id] = run, Line()
        return run

    async def _make_room(self) -> None:
        """Unload the runs of ended sessions if there are too many. Raises Refusal 429 if there are no such sessions."""
        latest = time.monotonic() - SESSION_SECONDS
        ended = [session.id for session in self.sessions.values() if session.last_seen < latest]
        while len(self.runs) >= MOST_RUNS:
            if not ended:
                raise Refusal(f"this server has {MOST_RUNS} training runs; close a client first.", 429)
            await self._end_session(ended.pop(0))

    async def forward(self, given: Forward, digest: str) -> Future:
        """Compute a loss, with its gradient unless it is `is_forward_only`. Raises Refusal; then its place in the order counts
        as taken, and a step on the rest of the batch is not taken."""
        run = self.find_run(given.model_id)
        try:
            limits = {"max_tokens": self.base.max_tokens, "vocabulary_size": self.base.vocabulary_size}
            computation = await asyncio.to_thread(partial(build_computation, given.input, **limits))
        except Refusal as refusal:
            self._skip(given.model_id, given.seq_id, digest, refusal, None if given.is_forward_only else run)
            raise
        compute = run.evaluate if given.is_forward_only else run.add_gradient
        return self._put(given.model_id, given.seq_id, digest, lambda: self._compute(lambda: compute(computation)))

    def skip(self, run_id: str, seq_id: int, digest: str, refusal: Refusal, *, has_gradient: bool) -> None:
        """Take the place in the order of a request that was refused, so that later ones do not wait for it. If it was a
        forward_backward, the next step is not taken."""
        if run_id in self.runs:
            self._skip(run_id, seq_id, digest, refusal, self.runs[run_id] if has_gradient else None)

    def _skip(self, run_id: str, seq_id: int, digest: str, refusal: Refusal, run: TrainingRun | None) -> None:
        async def refuse() -> Result:
            if run is not None:
                run.miss_gradient(str(refusal))
            raise refusal

        self._put(run_id, seq_id, digest, refuse)

    def optim_step(self, given: OptimStep, digest: str) -> Future:
        """Raises Refusal."""
        run = self.find_run(given.model_id)
        step = partial(run.optim_step, given.adam)
        return self._put(given.model_id, given.seq_id, digest, lambda: self._compute(step))

    # Checkpoints

    def save_weights(self, given: SaveWeights, digest: str) -> Future:
        """Write a state with which training can continue. Raises Refusal."""
        run = self.find_run(given.model_id)
        address = Address(given.model_id, "weights", given.path or f"{given.seq_id:06d}")

        async def save() -> Result:
            state = await self._compute(run.export_state)
            content = await self._describe(run, given.user_metadata)
            write = partial(self.checkpoints.write_state, address, state, content, replaces=given.overwrite)
            await asyncio.to_thread(write)
            self._adapters.pop(address.path, None)
            return {"path": address.path, "type": "save_weights"}

        return self._put(given.model_id, given.seq_id, digest, save)

    def save_external(self, given: SaveWeightsExternal, digest: str) -> Future:
        """Write the adapter in PEFT's format, for download. Raises Refusal."""
        run = self.find_run(given.model_id)
        address = Address(given.model_id, "external_weights", given.path)

        async def save() -> Result:
            await self._write_adapter(run, address, None)
            return {"path": address.path, "type": "save_weights_external"}

        return self._put(given.model_id, given.seq_id, digest, save)

    def save_for_sampler(self, given: SaveWeightsForSampler, digest: str) -> Future:
        """Write the adapter under a name, or keep it in memory for a new sampler. Raises Refusal."""
        run = self.find_run(given.model_id)
        session = self.find_session(run.settings.session_id)
        kind, name, run_id = given.kind, given.path, given.model_id
        sampler_id = f"{session.id}:sample:{given.sampling_session_seq_id}"

        async def save() -> Result:
            if name is not None:
                address = Address(run_id, "sampler_weights", name)
                await self._write_adapter(run, address, given.user_metadata)
                return {"path": address.path, "type": "save_weights_for_sampler"}
            inflight_of = run_id if kind == "inflight" else None
            self._keep(inflight_of or sampler_id, await self._compute(run.export_adapter))
            self._add_sampler(session, Sampler(id=sampler_id, inflight_of=inflight_of, is_trained=True))
            return {"sampling_session_id": sampler_id, "type": "save_weights_for_sampler"}

        return self._put(given.model_id, given.seq_id, digest, save)

    async def _write_adapter(self, run: TrainingRun, address: Address, user_metadata: Mapping[str, str] | None) -> None:
        adapter = await self._compute(run.export_adapter)
        content = await self._describe(run, user_metadata)
        await asyncio.to_thread(partial(self.checkpoints.write_adapter, address, adapter, content, replaces=False))

    async def delete_checkpoint(self, address: Address) -> None:
        """Raises Refusal 404 if there is no such checkpoint."""
        await asyncio.to_thread(self.checkpoints.delete, address)
        self._adapters.pop(address.path, None)

    async def _describe(self, run: TrainingRun, user_metadata: Mapping[str, str] | None) -> dict[str, Json]:
        """Return what is written about a checkpoint."""
        return {
            "base_model": self.base.name,
            "base_fingerprint": await asyncio.to_thread(lambda: self.base.fingerprint),
            "lora_config": run.settings.lora.model_dump(exclude={"type"}),
            "user_metadata": None if user_metadata is None else dict(user_metadata),
            "run_metadata": None if run.settings.user_metadata is None else dict(run.settings.user_metadata),
        }

    async def _load(
        self, run: TrainingRun, address: Address, content: Mapping[str, Any], with_optimizer: bool
    ) -> Result:
        if content["base_fingerprint"] != await asyncio.to_thread(lambda: self.base.fingerprint):
            raise DataError(
                f"{address.path} was trained on another base model ({content['base_model']}), which had other weights; serve "
                "that model."
            )
        if with_optimizer:
            await self._compute(partial(run.load_state, self.checkpoints.find(address)))
        else:
            adapter = await asyncio.to_thread(self.checkpoints.read_adapter, address)
            await self._compute(partial(run.load_adapter, adapter))
        return {"path": address.path, "model_id": run.settings.id, "type": "load_weights"}

    # Sampling

    async def create_sampler(self, given: CreateSamplingSession) -> Sampler:
        """Return a new sampler, or the same as for an equal request. Raises Refusal."""
        session = self.find_session(given.session_id)
        if given.model_path is None or given.base_model is not None:
            self.base.check_name(given.base_model)
        if given.model_path is not None:
            await asyncio.to_thread(self._check_path, given.model_path)
        sampler = Sampler(id=f"{given.session_id}:sample:{given.sampling_session_seq_id}", model_path=given.model_path)
        if self.samplers.get(sampler.id, sampler) != sampler:
            raise Refusal(f"sampling_session_seq_id: {given.sampling_session_seq_id} was used already.")
        self._add_sampler(session, sampler)
        return sampler

    def _check_path(self, path: str) -> None:
        """Raise Refusal or DataError if a checkpoint cannot be sampled from."""
        content = self.checkpoints.read_content(Address.read(path))
        if content["base_fingerprint"] != self.base.fingerprint:
            raise DataError(f"{path} was trained on another base model, {content['base_model']}; serve that model.")

    def find_sampler(self, sampler_id: str) -> Sampler:
        """Raises Refusal 404."""
        if sampler_id not in self.samplers:
            raise Refusal(f"sampler: {sampler_id!r} is unknown: it has ended, or the server was restarted.", 404)
        return self.samplers[sampler_id]

    async def sample(self, given: Sample, digest: str) -> Future:
        """Start to sample. Raises Refusal."""
        prompt = given.prompt.token_ids
        if not prompt or not all(0 <= token < self.base.vocabulary_size for token in prompt):
            raise Refusal(f"prompt: it has no token, or one outside the vocabulary of {self.base.vocabulary_size}.")
        # A whole context can be scored; its answer is then empty.
        if len(prompt) >= self.base.max_tokens + bool(given.prompt_logprobs):
            raise Refusal(f"prompt: {len(prompt)} tokens leave no space in a context of {self.base.max_tokens}.")
        if given.sampling_session_id is not None and given.seq_id is None:
            raise Refusal("seq_id: give one with sampling_session_id.")
        adapter = await self._find_adapter(given)
        request_id = f"{given.sampling_session_id}:{given.seq_id}" if given.sampling_session_id else str(uuid.uuid4())
        future, is_new = self.futures.add(request_id, digest)
        if is_new:
            self.futures.start(future, partial(self._sample, given, adapter, request_id))
        return future

    async def _find_adapter(self, given: Sample) -> Adapter | None:
        """Return the adapter with which to sample, or None for the base model. Raises Refusal."""
        path, sampler = given.model_path, None
        if given.sampling_session_id is not None:
            sampler = self.find_sampler(given.sampling_session_id)
            path = sampler.model_path
        elif path is None:
            self.base.check_name(given.base_model)
        if path is not None:
            if path not in self._adapters:
                await asyncio.to_thread(self._check_path, path)
                self._keep(path, await asyncio.to_thread(self.checkpoints.read_adapter, Address.read(path)))
            self._adapters.move_to_end(path)
            return self._adapters[path]
        key = None if sampler is None else sampler.inflight_of or sampler.id
        if key is None or key not in self._adapters:
            if sampler is not None and sampler.is_trained:
                raise Refusal(f"{sampler.id}: its weights are no longer in memory; save them with a name.", 410)
            return None
        self._adapters.move_to_end(key)
        return self._adapters[key]

    async def _sample(self, given: Sample, adapter: Adapter | None, request_id: str) -> Result:
        engine, prompt = self.base.engine, given.prompt.token_ids
        version = await asyncio.to_thread(self.base.prepare, adapter)

        async def sample_one(index: int) -> Completion:
            if len(prompt) == self.base.max_tokens:
                return _empty(version.fingerprint)
            request = self._build_request(given, f"{request_id}:{index}", index)
            try:
                return await engine.sample(request, frozen=version)
            finally:
                engine.close_session(request.session_id)

        completions = await asyncio.gather(*map(sample_one, range(given.num_samples)))
        scored = None
        if given.prompt_logprobs:
            first = max(1, len(prompt) - (given.prompt_logprobs_last_n or len(prompt)))
            known = await engine.logprobs(prompt, first=first, frozen=version)
            scored = (*[math.nan] * (len(prompt) - len(known)), *known)
        return SampleResult(completions=tuple(completions), prompt_logprobs=scored)

    def _build_request(self, given: Sample, session_id: str, index: int) -> SampleRequest:
        params, prompt = given.sampling_params, given.prompt.token_ids
        stop_ids, stop_texts = self._read_stop(params)
        seed = secrets.token_hex(8) if params.seed is None else str(params.seed)
        return SampleRequest(
            session_id=session_id,
            prompt_ids=prompt,
            sampling=Sampling(
                temperature=params.temperature,
                top_p=params.top_p,
                max_tokens=params.max_tokens or self.base.max_tokens - len(prompt),
            ),
            stop_ids=stop_ids,
            stop_texts=stop_texts,
            seed=int.from_bytes(hashlib.sha256(f"{seed}:{index}".encode()).digest()[:8]),
            top_k=None if params.top_k == -1 else params.top_k,
        )

    def _read_stop(self, params: SamplingParams) -> tuple[frozenset[int], tuple[str, ...]]:
        """Return the ids and the texts that end an answer. Only an empty list turns off the model's own ids."""
        if params.stop is None:
            return self.base.stop_ids, ()
        stops = [params.stop] if isinstance(params.stop, str) else params.stop
        if not stops:
            return frozenset(), ()
        ids = frozenset(one for one in stops if isinstance(one, int))
        return self.base.stop_ids | ids, tuple(one for one in stops if isinstance(one, str))

    # Parts

    def _add_sampler(self, session: Session, sampler: Sampler) -> None:
        if sampler.id not in self.samplers:
            session.sampler_ids.append(sampler.id)
        self.samplers[sampler.id] = sampler

    def _keep(self, key: str, adapter: Adapter) -> None:
        self._adapters[key] = adapter
        self._adapters.move_to_end(key)
        while len(self._adapters) > MOST_ADAPTERS:
            self._adapters.popitem(last=False)

    def _put(self, run_id: str, seq_id: int, digest: str, compute: Callable[[], Awaitable[Result]]) -> Future:
        """Compute a request of a training run in its order, unless it has been requested already. Raises Refusal."""
        future, is_new = self.futures.add(f"{run_id}:{seq_id}", digest)
        if is_new:
            try:
                self._lines[run_id].put(seq_id, future, compute)
            except Refusal:
                self.futures.remove(future)
                raise
        return future

    async def _compute(self, function: Callable[[], Value]) -> Value:
        """Return the result of a training computation. Only one runs at a time, also if its request is cancelled."""
        async with self._computing:
            computation = asyncio.create_task(asyncio.to_thread(function))
            try:
                return await asyncio.shield(computation)
            except asyncio.CancelledError:
                await asyncio.gather(computation, return_exceptions=True)
                raise


def _empty(fingerprint: str) -> Completion:
    return Completion(
        token_ids=(),
        sampled_logprobs=(),
        stop_reason=StopReason.LENGTH,
        versions=(),
        fingerprint=fingerprint,
        num_computed_tokens=0,
    )


def describe_time(seconds: float) -> str:
    """Return a time in seconds since 1970 in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _choose_settings(
    run_id: str, session_id: str, lora: LoraConfig, user_metadata: Mapping[str, Json] | None
) -> RunSettings:
    seed = secrets.randbelow(2**31) if lora.seed is None else lora.seed
    return RunSettings(id=run_id, session_id=session_id, lora=lora, seed=seed, user_metadata=user_metadata)
