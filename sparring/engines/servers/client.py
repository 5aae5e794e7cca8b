"""The client of one inference server: requests, failures after which they are repeated, and the weights of the server.

`ServerKind` is what differs between the kinds of servers: routes, bodies, the reading of answers, and the checks of a
server's settings. `vllm` and `sglang` implement it.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, final

import httpx

from sparring.engines.servers.watch import CHECK_SECONDS, Stopwatch, Watch
from sparring.errors import ConstraintError, DataError, InfrastructureError, ServiceError
from sparring.protocols import TokenCallback
from sparring.runtime.connections import Client
from sparring.runtime.remote import CONNECT_SECONDS, headers_of, needs_proxy, unreachable
from sparring.types import Json, SampleRequest, Sampling

LOAD_SECONDS = 600.0
"""The longest time that loading weights, or scoring one id, may take."""
UNLOAD_SECONDS = 30.0
TURN_SECONDS = 3600.0
"""The longest time for which a server may send nothing during a turn without a deadline."""
FIRST_SECONDS = 120.0
"""The longest time that a server may take for its first answer, which takes longer than later ones."""
REST_SECONDS, LONGEST_REST_SECONDS = 5.0, 60.0
"""How long a server that failed gets no turns while another one answers: after the first failure, and at most."""
HEALTH_SECONDS = 5.0
IDLE_SECONDS = 2.0
"""How long an idle connection is kept. A server closes it after 5 seconds, and a request at that moment would fail."""
MISSING_LOGPROB = -9999.0
"""Smaller values, and this one, are not log-probabilities: vLLM sends -9999 and SGLang the smallest float instead of a
value that is not finite."""
Mode: TypeAlias = Literal["adapters", "all_weights", "fixed"]
"""How a server gets versions of weights: as adapters, as all weights of its model, or not at all (a teacher)."""


class Unanswered(Exception):
    """A failure after which the same request may succeed later, or on another server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The answer to one turn."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    num_cached: int
    """The number of prompt tokens that the server had in its cache, or 0 if it does not report the number."""
    versions: tuple[tuple[str, int], ...]
    """The names of the weights, each with the number of tokens that were sampled with them."""
    stop_id: int | None = None
    """The id that ended the turn, if the server reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The base model of a server."""

    name: str
    """The name by which requests select it."""
    source: str
    """The folder, or the name on a hub, from which it was loaded."""
    max_context_tokens: int
    names: tuple[str, ...]
    """The names of all models of the server: the base model, and adapters."""


class ServerKind(Protocol):
    """What differs between kinds of inference servers. Implementations have no state."""

    @property
    def name(self) -> str:
        """The name of the software."""
        ...

    @property
    def version(self) -> str:
        """The version whose routes these are."""
        ...

    @property
    def how_to_start(self) -> Mapping[Mode, str]:
        """How a server is started for each mode that it can have, as a part of an error message."""
        ...

    @property
    def generate_path(self) -> str: ...

    @property
    def load_path(self) -> str: ...

    @property
    def unload_path(self) -> str: ...

    @property
    def already_loaded(self) -> str:
        """A part of the refusal of an adapter that the server has."""
        ...

    @property
    def least_temperature(self) -> float:
        """The smallest temperature above 0 at which a server samples."""
        ...

    @property
    def takes_grammars(self) -> bool:
        """Whether turns can follow a grammar."""
        ...

    def check_settings(self, client: httpx.Client, mode: Mode, where: str) -> ServedModel:
        """Return the base model. Raises ServiceError if the server lacks a setting that this mode needs."""
        ...

    def select(self, base: str, weights: str | None, mode: Mode) -> dict[str, Json]:
        """Return the fields of a request that select the weights of this name, or without a name the base model."""
        ...

    def generate_body(self, request: SampleRequest, *, stream: bool) -> dict[str, Json]: ...

    def load_body(self, name: str, folder: Path) -> dict[str, Json]: ...

    def find_tokens(self, chunk: Mapping[str, Any]) -> Sequence[int]:
        """Return the ids that a chunk of a streamed turn adds."""
        ...

    def find_error(self, chunk: Mapping[str, Any]) -> tuple[int, str] | None:
        """Return the status and the text of an error that a chunk contains. Raises LookupError, TypeError or ValueError if
        it is no chunk."""
        ...

    def explain_grammar_refusal(self, text: str) -> str | None:
        """Return what to do if a server refused a grammar with this text, or None if the text is not about a grammar."""
        ...

    def read(self, chunks: Sequence[Mapping[str, Any]], where: str) -> Generation:
        """Return the tokens of an answer, or of its chunks. Raises Unanswered for an incomplete answer, and
        InfrastructureError if a log-probability is missing or not finite."""
        ...

    def find_versions(self, answer: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
        """Return the names of the weights that sampled an answer, each with its number of tokens, or nothing if the server
        does not report them."""
        ...

    def score_bodies(self, token_ids: Sequence[int], place: int, temperature: float) -> Iterable[dict[str, Json]]:
        """Yield requests for the log-probability of the id at `place`. Each is sent if `read_score` found nothing in the
        answer to the one before."""
        ...

    def read_score(self, answer: Mapping[str, Any], token: int, number: int) -> float | None:
        """Return the log-probability of the id from the answer to the request with this number, or None."""
        ...

    def refuses_adapter(self, text: str) -> bool:
        """Return whether an error of status 5xx means that the adapter cannot be loaded, also if it is sent again."""
        ...

    def lacks_adapter(self, status: int, text: str, name: str) -> bool:
        """Return whether the reason for an error is that the server does not have the adapter."""
        ...


@final
class ServerClient:
    """The client of one server. Raises ServiceError if it does not answer, or lacks a setting that sampling needs.

    In the mode "adapters", each version of the weights is an adapter, and the server holds several. With "all_weights",
    it holds one version, which replaces all weights of its model. With "fixed", it keeps the weights that it was started
    with.
    """

    def __init__(
        self,
        base_url: str,
        kind: ServerKind,
        *,
        api_key: str | None = None,
        max_running: int = 64,
        mode: Mode = "adapters",
    ) -> None:
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        self._kind = kind
        self.where = f"the {kind.name} server at {self._base_url}"
        self.slots = asyncio.Semaphore(max_running)
        self._headers = headers_of(api_key)
        self._mode: Mode = mode
        self._how_to_start = kind.how_to_start[mode]
        self.base = _check_server(self._base_url, kind, self._headers, mode)
        self._client = Client(
            self._base_url,
            keepalive_expiry=IDLE_SECONDS,
            base_url=self._base_url,
            headers=self._headers,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            trust_env=needs_proxy(self._base_url),
        )
        self._adapters: set[str] = set()
        self._weights: str | None = None
        """With all weights: the name of those that the server has, or None if it may have others."""
        self._sent: set[str] = set()
        """The names of all weights that this client has loaded."""
        self._loading = asyncio.Lock()
        self._watch = Watch(lambda: self.is_healthy(CHECK_SECONDS))
        self.paused = Stopwatch()
        """The time for which turns were paused because all weights were replaced."""
        self._down_until, self._num_failures = 0.0, 0

    @property
    def is_down(self) -> bool:
        """Whether the last request failed, and the server gets no turns for now."""
        return self.is_failing and time.monotonic() < self._down_until

    @property
    def is_failing(self) -> bool:
        """Whether the last request failed."""
        return self._num_failures > 0

    async def generate(self, name: str, request: SampleRequest, on_token: TokenCallback | None) -> Generation:
        """Sample one turn with the weights of this name. Raises Unanswered if it may be sampled again, and
        InfrastructureError or ConstraintError if it may not.

        The server may end a turn with a stop id of its model that the request does not contain. The turn then continues
        with another request.
        """
        num_delivered = 0

        def deliver(token: int) -> None:
            nonlocal num_delivered
            num_delivered += 1
            if on_token is not None:
                on_token(token)

        on_part = None if on_token is None else deliver
        try:
            turn = await self._sample(name, request, on_part)
            while turn.stop_id is not None and turn.stop_id not in request.stop_ids:
                rest = _rest(request, turn.token_ids)
                if rest.sampling.max_tokens == 0:
                    return replace(turn, finish_reason="length")
                turn = _join(turn, await self._sample(name, rest, on_part), rest)
            return self._check_end(turn, request)
        except Unanswered as failure:
            if num_delivered:  # the caller has tokens, which another answer would not continue
                raise InfrastructureError(f"{failure}.") from failure
            raise

    async def _sample(self, name: str, request: SampleRequest, on_token: TokenCallback | None) -> Generation:
        """Send one request for a turn. Raises the errors of `generate`."""
        body = self._select(name) | self._kind.generate_body(request, stream=on_token is not None)
        if on_token is None:
            answer = await self._post(self._kind.generate_path, body, name=name, seconds=TURN_SECONDS)
            return self._read([answer], name)
        chunks: list[Mapping[str, Any]] = []
        async with aclosing(self._chunks(body, name)) as arriving:
            async for chunk, tokens in arriving:
                chunks.append(chunk)
                for token in tokens:
                    on_token(token)
        return self._read(chunks, name)

    def _check_end(self, turn: Generation, request: SampleRequest) -> Generation:
        """Return a turn. Raises ConstraintError if its grammar could not be continued."""
        ends = turn.finish_reason == "length" or request.stop_texts or turn.token_ids[-1] in request.stop_ids
        if request.constraint is not None and not ends:
            raise ConstraintError(
                f"{self.where} could not continue the grammar of an answer, which may be too complex. Simplify the JSON "
                "schemas, especially long patterns."
            )
        return turn

    def _select(self, name: str) -> dict[str, Json]:
        return self._kind.select(self.base.name, name, self._mode)

    def _read(self, chunks: Sequence[Mapping[str, Any]], name: str) -> Generation:
        """Return an answer with the names of its weights. Raises the errors of `ServerKind.read`."""
        generation = self._kind.read(chunks, self.where)
        if self._mode != "all_weights":
            return replace(generation, versions=((name, len(generation.token_ids)),))
        self._check_names(one for one, _ in generation.versions)
        if sum(number for _, number in generation.versions) != len(generation.token_ids):
            raise InfrastructureError(f"{self.where} did not report with which weights it sampled each token.")
        return generation

    def _check_names(self, names: Iterable[str]) -> None:
        """Raise Unanswered if an answer was sampled with weights that this client has not loaded."""
        for strange in set(names) - self._sent:
            self._weights = None  # the server was started again
            raise Unanswered(f"{self.where} sampled with the weights {strange!r}, which this run did not load")

    async def _chunks(
        self, body: Mapping[str, Json], name: str
    ) -> AsyncGenerator[tuple[Mapping[str, Any], Sequence[int]]]:
        """Yield the chunks of a streamed turn with their tokens. Raises Unanswered if the stream breaks off."""
        timeout = httpx.Timeout(TURN_SECONDS, connect=CONNECT_SECONDS)
        try:
            async with (
                self._watch.request(),
                self._client.stream("POST", self._kind.generate_path, json=body, timeout=timeout) as response,
            ):
                if response.status_code != 200:
                    await response.aread()
                    self._raise_for(response.status_code, response.text, name)
                async for line in response.aiter_lines():
                    if line.startswith("data:") and not line.endswith("[DONE]"):
                        chunk = json.loads(line.removeprefix("data:"))
                        error = self._kind.find_error(chunk)
                        if error is not None:
                            self._raise_for(*error, name)
                        yield chunk, self._kind.find_tokens(chunk)
        except (httpx.HTTPError, RuntimeError, ValueError, LookupError, TypeError, TimeoutError) as error:
            raise self._failed(f"{self.where} broke off a turn ({type(error).__name__} {error})") from error
        self._num_failures = 0

    async def score(self, name: str, token_ids: Sequence[int], temperature: float, first: int = 1) -> list[float]:
        """Return the log-probability of each id from index `first` on. Each id is requested as a next token."""
        calls = (self._score_one(name, token_ids, place, temperature or 1.0) for place in range(first, len(token_ids)))
        scores: list[float] = []
        for score in await asyncio.gather(*calls, return_exceptions=True):  # no request outlives another one's failure
            if isinstance(score, BaseException):
                raise score
            scores.append(score)
        return scores

    async def _score_one(self, name: str, token_ids: Sequence[int], place: int, temperature: float) -> float:
        """Return the log-probability of one id, given the ids before it."""
        for number, body in enumerate(self._kind.score_bodies(token_ids, place, temperature)):
            async with self.slots:
                answer = await self._post(
                    self._kind.generate_path, self._select(name) | body, name=name, seconds=LOAD_SECONDS
                )
            try:
                if self._mode == "all_weights":
                    self._check_names(one for one, _ in self._kind.find_versions(answer))
                score = self._kind.read_score(answer, token_ids[place], number)
            except (LookupError, TypeError, ValueError) as error:
                raise InfrastructureError(f"{self.where} returned no log-probabilities: {error!r}.") from error
            if score is not None:
                return score
        raise InfrastructureError(f"{self.where} did not report the log-probability of the id {token_ids[place]}.")

    def check_model(self, model: str, text: str, token_ids: Sequence[int]) -> None:
        """Raise ServiceError unless the server serves this model, and converts a text to these ids."""
        if model not in self.base.names:
            names = ", ".join(map(repr, self.base.names))
            raise ServiceError(f"{self.where} does not serve {model!r}; it serves {names}.")
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        try:
            with httpx.Client(headers=self._headers, timeout=httpx.Timeout(FIRST_SECONDS)) as client:
                response = client.post(f"{self._base_url}/tokenize", json=body)
            found = list(response.json()["tokens"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ServiceError(
                f"{self.where} does not tokenize a text ({error!r}), so its vocabulary cannot be compared with that of the "
                "recipe's model. Serve it with its tokenizer."
            ) from error
        for place, (theirs, ours) in enumerate(zip_longest(found, token_ids)):
            if theirs != ours:
                raise ServiceError(
                    f"{self.where}: {model} has another vocabulary than the recipe's model: token {place} of one text has the "
                    f"id {theirs} there and {ours} here. Serve a model with the same tokenizer."
                )

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter unless this server has it. Raises Unanswered, and ServiceError if the server refuses it."""
        if name in self._adapters:
            return
        async with self._loading:
            if name in self._adapters:
                return
            body = self._kind.load_body(name, folder)
            response = await self._send(self._kind.load_path, body, seconds=LOAD_SECONDS)
            if response.status_code != 200 and self._kind.already_loaded not in response.text:
                problem = (
                    f"{self.where} cannot load the adapter {folder} (status {response.status_code}: {response.text[:300]}). "
                    f"It must read this folder, and have the adapter's rank; {self._how_to_start}"
                )
                is_final = not _may_pass(response.status_code) or self._kind.refuses_adapter(response.text)
                # If it has loaded one before, it can no longer read the folder, and others may.
                raise ServiceError(f"{problem}.") if is_final and not self._sent else self._failed(problem)
            self._adapters.add(name)
            self._sent.add(name)

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter if this server has it. A server that does not answer keeps it."""
        if name not in self._adapters:
            return
        self._adapters.discard(name)
        with suppress(Unanswered):
            await self._send(self._kind.unload_path, {"lora_name": name}, seconds=UNLOAD_SECONDS)

    async def load_weights(self, find_newest: Callable[[], tuple[str, Path]]) -> str:
        """Replace all weights with the newest ones unless this server has them, and return their name. Only vLLM has
        these routes.

        `find_newest` returns the name and the file of the newest weights. Running turns pause, and continue with the new
        weights; other turns wait for this method. Raises Unanswered, and ServiceError if the server refuses them.
        """
        async with self._loading:
            name, file = find_newest()
            if name == self._weights:
                return name
            self._weights = None
            with self.paused:
                if name not in self._sent or await self._read_name() != name:
                    await self._replace_weights(name, file)
                await self._command("/resume")
            self._weights = name
            return name

    async def _replace_weights(self, name: str, file: Path) -> None:
        """Pause the server, and load these weights."""
        # The cache is cleared, so that turns that continue compute all keys and values with the new weights.
        await self._command("/pause?mode=keep&clear_cache=true")
        # The server refuses a second start if an earlier update was interrupted; this one then completes it.
        with suppress(Unanswered, ServiceError):
            await self._command("/start_weight_update")
        await self._command("/update_weights", {"update_info": {"path": str(file)}})
        await self._command("/finish_weight_update", {"weight_version": name})
        self._sent.add(name)

    async def _read_name(self) -> str | None:
        """Return the name of the weights that the server has."""
        try:
            response = await self._client.get("/weight_info", timeout=LOAD_SECONDS)
        except (httpx.HTTPError, RuntimeError) as error:  # a RuntimeError if the client is closed
            raise self._failed(unreachable(self.where, error)) from error
        return response.json()["weight_version"] if response.status_code == 200 else None

    async def _command(self, path: str, body: Mapping[str, Json] | None = None) -> None:
        """Send a request that changes the weights. Raises Unanswered, and ServiceError if the server refuses it."""
        # After an error on these routes, a server closes the connection, and a request that follows on it would fail.
        response = await self._send(path, body or {}, seconds=LOAD_SECONDS, headers={"Connection": "close"})
        if response.status_code != 200:
            problem = (
                f"{self.where} cannot replace its weights ({path.partition('?')[0]}: status {response.status_code}: "
                f"{response.text[:300]}). It must read the file of the weights; {self._how_to_start}"
            )
            # With this text, vLLM reports an exception of the back end.
            is_refused = "collective_rpc method failed" in response.text and not self._sent
            raise ServiceError(f"{problem}.") if is_refused else self._failed(problem)

    async def is_healthy(self, seconds: float = HEALTH_SECONDS) -> bool:
        """Return whether the server answers within this time."""
        try:
            response = await self._client.get("/health", timeout=seconds)
        except (httpx.HTTPError, RuntimeError):  # a RuntimeError if the client is closed
            return False
        return response.status_code == 200

    async def close(self) -> None:
        await self._client.aclose()

    async def _post(self, path: str, body: Mapping[str, Json], *, name: str, seconds: float) -> Mapping[str, Any]:
        response = await self._send(path, body, seconds=seconds)
        if response.status_code != 200:
            self._raise_for(response.status_code, response.text, name)
        try:
            return response.json()
        except ValueError as error:
            raise self._failed(f"{self.where} sent an answer that is not JSON") from error

    async def _send(
        self, path: str, body: Mapping[str, Json], *, seconds: float, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        try:
            timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
            async with self._watch.request():
                response = await self._client.post(path, json=body, timeout=timeout, headers=headers)
        except (httpx.HTTPError, RuntimeError, TimeoutError) as error:  # a RuntimeError if the client is closed
            raise self._failed(unreachable(self.where, error)) from error
        if not _may_pass(response.status_code):
            self._num_failures = 0
        return response

    def _raise_for(self, status: int, text: str, name: str) -> None:
        """Raise the error for a status other than 200."""
        if self._kind.lacks_adapter(status, text, name):
            self._adapters.discard(name)  # the server was started again
            raise Unanswered(f"{self.where} does not have the adapter {name}")
        if _may_pass(status):
            raise self._failed(f"{self.where} answered status {status}: {text[:300]}")
        if status in (401, 403, 404):
            raise ServiceError(
                f"{self.where} answered status {status}: {text[:300]}. Check the key, or {self._how_to_start}."
            )
        advice = self._kind.explain_grammar_refusal(text)
        if advice is not None:
            problem = text[:300].rstrip(".")
            raise ConstraintError(f"{self.where} refused the grammar of an answer: {problem}. {advice}.")
        raise DataError(f"{self.where} refused a turn with status {status}: {text[:300]}.")

    def _failed(self, problem: str) -> Unanswered:
        self._weights = None  # it may have ended, and may have been started again
        self._down_until = time.monotonic() + min(REST_SECONDS * 2**self._num_failures, LONGEST_REST_SECONDS)
        self._num_failures = min(self._num_failures + 1, 10)
        return Unanswered(problem)


def _rest(request: SampleRequest, sampled: Sequence[int]) -> SampleRequest:
    """Return the request that continues a turn after the tokens that it has."""
    left = request.sampling.max_tokens - len(sampled)
    prompt = (*request.prompt_ids, *sampled)
    return replace(request, prompt_ids=prompt, sampling=replace(request.sampling, max_tokens=left))


def _join(turn: Generation, rest: Generation, request: SampleRequest) -> Generation:
    """Return a turn with its continuation, which answers `request`, both sampled with the same weights."""
    token_ids = turn.token_ids + rest.token_ids
    return replace(
        rest,
        token_ids=token_ids,
        logprobs=turn.logprobs + rest.logprobs,
        num_cached=turn.num_cached - (len(request.prompt_ids) - rest.num_cached),  # the others were computed twice
        versions=((turn.versions[0][0], len(token_ids)),),
    )


def check_logprobs(logprobs: Sequence[float], num_tokens: int, where: str) -> None:
    """Raise InfrastructureError unless each token has a finite log-probability."""
    if len(logprobs) != num_tokens or any(not math.isfinite(one) or one <= MISSING_LOGPROB for one in logprobs):
        raise InfrastructureError(f"{where} returned no valid log-probability for each sampled token.")


def _may_pass(status: int) -> bool:
    """Return whether the same request may succeed later."""
    return status in (408, 429) or status >= 500


def _check_server(base_url: str, kind: ServerKind, headers: Mapping[str, str], mode: Mode) -> ServedModel:
    """Return the base model.

    Raises ServiceError if the server does not answer, lacks a route or a setting that this mode needs, or reports
    log-probabilities from before the temperature is applied.
    """
    where = f"the {kind.name} server at {base_url}"
    try:
        with httpx.Client(
            base_url=base_url,
            headers=headers,
            timeout=httpx.Timeout(FIRST_SECONDS, connect=CONNECT_SECONDS),
            trust_env=needs_proxy(base_url),
        ) as client:
            model = kind.check_settings(client, mode, where)
            _check_logprobs(client, kind, model.name, where, kind.how_to_start[mode])
            return model
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServiceError(f"{unreachable(where, error)}. Start it, and check the address.") from error
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        StopIteration,
        Unanswered,
        InfrastructureError,
    ) as error:
        raise ServiceError(
            f"{where} does not answer as {kind.name} {kind.version} does ({error!r}); check the address."
        ) from error


def _check_logprobs(client: httpx.Client, kind: ServerKind, model: str, where: str, how_to_start: str) -> None:
    """Raise ServiceError unless the log-probability of a sampled token is computed after the temperature is applied.

    At a small temperature it is near 0, while the log-probability at temperature 1 usually is not.
    """
    selected = kind.select(model, None, "fixed")
    sampling = Sampling(temperature=0.05, max_tokens=1)
    for prompt in ((1, 1), (1, 2, 3), (5, 4), (7, 1, 7)):
        request = SampleRequest(session_id="check", prompt_ids=prompt, sampling=sampling, stop_ids=frozenset(), seed=0)
        sampled = client.post(kind.generate_path, json=selected | kind.generate_body(request, stream=False))
        if sampled.status_code != 200:
            raise ServiceError(
                f"{where} answered status {sampled.status_code} to token ids: {sampled.text[:200]}. To fix this, "
                f"{how_to_start}."
            )
        first = kind.read([sampled.json()], where)
        token = first.token_ids[0]
        body = selected | next(iter(kind.score_bodies([*prompt, token], len(prompt), 1.0)))
        before = kind.read_score(client.post(kind.generate_path, json=body).json(), token, 0)
        if before is not None and before < -0.05:
            if abs(first.logprobs[0] - before) < 1e-3:
                raise ServiceError(
                    f"{where} reports log-probabilities from before the temperature is applied; {how_to_start}."
                )
            return
