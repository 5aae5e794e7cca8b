"""One vLLM server: the routes that the engine uses, and the checks of its settings.

The routes are those of vLLM 0.32: `/inference/v1/generate` (token ids in and out), `/v1/models` and `/health`. Each
version of the weights is an adapter of its own (`/v1/load_lora_adapter`, `/v1/unload_lora_adapter`), or it replaces all
weights of the model (`/pause`, `/start_weight_update`, `/update_weights`, `/finish_weight_update`, `/resume`,
`/weight_info`).
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import httpx

from sparring.engines.lark import VLLM_SETTING, write_lark
from sparring.engines.vllm_environment import BACKEND, PLUGIN
from sparring.errors import ConstraintError, DataError, InfrastructureError, ServiceError
from sparring.protocols import TokenCallback
from sparring.runtime.remote import CONNECT_SECONDS, headers_of, unreachable
from sparring.types import Json, SampleRequest

LOAD_SECONDS = 600.0
"""The longest time that loading weights, or scoring one id, may take."""
UNLOAD_SECONDS = 30.0
TURN_SECONDS = 3600.0
"""The longest time for which a server may send nothing during a turn without a deadline."""
FIRST_SECONDS = 120.0
"""The longest time that a server may take for its first answer, which takes longer than later ones."""
REST_SECONDS = 5.0
LONGEST_REST_SECONDS = 60.0
"""The time during which a server that failed gets no turns while another one answers: after the first failure, and at
most."""
HEALTH_SECONDS = 5.0
IDLE_SECONDS = 2.0
"""How long an idle connection is kept. A server closes it after 5 seconds, and a request that is sent at that moment would
fail."""
MOST_LOGPROBS = 20
"""The number of log-probabilities that a server reports at most by default (`--max-logprobs`)."""
BIASES = tuple(map(float, range(0, 100, 10)))
"""The biases that are tried in turn. The steps are small, so that the raised probability is never too close to 1. If
the answer to one bias does not contain the id, its probability with the next bias is below e^10 / 20 times that of the
other ids."""
MOST_BIASED = -1e-5
"""The largest log-probability with a bias from which the bias can be subtracted in single precision."""
_MISSING_LOGPROB = -9999.0
"""The value that vLLM sends instead of a log-probability that is not finite."""
Mode: TypeAlias = Literal["adapters", "all_weights", "fixed"]
"""How a server gets versions of weights: as adapters, as all weights of its model, or not at all (a teacher)."""
_ABOUT_GRAMMAR = re.compile("grammar|structured output", re.IGNORECASE)
"""Occurs in the messages with which a server refuses a grammar."""
_SCORING = "--enable-scale-out --logprobs-mode processed_logprobs"
_SAMPLING = f"{_SCORING} --generation-config vllm"
HOW_TO_START: Mapping[Mode, str] = {
    "adapters": "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve MODEL --enable-lora --max-lora-rank RANK "
    f"{_SAMPLING}",
    "all_weights": f"start it with PYTHONPATH={PLUGIN} VLLM_SERVER_DEV_MODE=1 vllm serve MODEL "
    f"""--weight-transfer-config '{{"backend": "{BACKEND}"}}' {_SAMPLING}""",
    "fixed": f"start it with vllm serve MODEL {_SCORING}",
}


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


@final
class VLLMServer:
    """The client of one server. Raises ServiceError if it does not answer, or lacks a setting that sampling needs.

    In the mode "adapters", each version of the weights is an adapter, and the server holds several. With "all_weights",
    it holds one version, which replaces all weights of its model. With "fixed", it keeps the weights that it was started
    with.
    """

    def __init__(
        self, base_url: str, *, api_key: str | None = None, max_running: int = 64, mode: Mode = "adapters"
    ) -> None:
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        self.where = f"the vLLM server at {self._base_url}"
        self.slots = asyncio.Semaphore(max_running)
        self._headers = headers_of(api_key)
        self._mode: Mode = mode
        self.base = check_server(self._base_url, self._headers, mode)
        self._client = httpx.AsyncClient(
            base_url=self._base_url,
            headers=self._headers,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=max_running, keepalive_expiry=IDLE_SECONDS
            ),
        )
        self._adapters: set[str] = set()
        self._weights: str | None = None
        """With all weights: the name of those that the server has, or None if it may have others."""
        self._sent: set[str] = set()
        """With all weights: the names of those that this client has loaded."""
        self._loading = asyncio.Lock()
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
        InfrastructureError if it may not."""
        body = self._select(name) | _generate_body(request, stream=on_token is not None)
        if on_token is None:
            answer = await self._post("/inference/v1/generate", body, name=name, seconds=TURN_SECONDS)
            return self._check_end(self._read([answer], answer.get("usage"), name), request)
        chunks: list[Mapping[str, Any]] = []
        num_delivered = 0
        try:
            async with aclosing(self._chunks(body, name)) as arriving:
                async for chunk, tokens in arriving:
                    chunks.append(chunk)
                    for token in tokens:
                        num_delivered += 1
                        on_token(token)
            return self._check_end(self._read(chunks, None, name), request)
        except Unanswered as failure:
            if num_delivered:  # the caller has tokens, which another answer would not continue
                raise InfrastructureError(f"{failure}.") from failure
            raise

    def _select(self, name: str) -> dict[str, Json]:
        """Return the fields of a request that select the weights of this name.

        If all weights are replaced, the cache of prompts does not depend on them, so each version gets a salt of its own.
        """
        return {"model": self.base.name, "cache_salt": name} if self._mode == "all_weights" else {"model": name}

    def _read(self, chunks: Sequence[Mapping[str, Any]], usage: Any, name: str) -> Generation:
        """Return an answer with the names of its weights. Raises the errors of `_read_generation`."""
        generation = _read_generation(chunks, usage, self.where)
        if self._mode != "all_weights":
            return replace(generation, versions=((name, len(generation.token_ids)),))
        self._check_names(one for one, _ in generation.versions)
        if sum(number for _, number in generation.versions) != len(generation.token_ids):
            raise InfrastructureError(f"{self.where} did not report with which weights it sampled each token.")
        return generation

    def _check_end(self, generation: Generation, request: SampleRequest) -> Generation:
        """Return an answer. Raise ConstraintError if its grammar could not be continued."""
        ends = (
            generation.finish_reason == "length" or request.stop_texts or generation.token_ids[-1] in request.stop_ids
        )
        if request.constraint is not None and not ends:
            raise ConstraintError(
                f"{self.where} could not continue the grammar of an answer, which may be too complex. Simplify the JSON "
                "schemas, especially long patterns."
            )
        return generation

    def _check_names(self, names: Iterable[str]) -> None:
        """Raise Unanswered if an answer was sampled with weights that this client has not loaded."""
        for strange in set(names) - self._sent:
            self._weights = None  # the server was started again
            raise Unanswered(f"{self.where} sampled with the weights {strange!r}, which this run did not load")

    async def _chunks(self, body: Mapping[str, Json], name: str) -> AsyncGenerator[tuple[Mapping[str, Any], list[int]]]:
        """Yield the chunks of a streamed turn with their tokens. Raises Unanswered if the stream breaks off."""
        timeout = httpx.Timeout(TURN_SECONDS, connect=CONNECT_SECONDS)
        try:
            async with self._client.stream("POST", "/inference/v1/generate", json=body, timeout=timeout) as response:
                if response.status_code != 200:
                    await response.aread()
                    self._raise_for(response.status_code, response.text, name)
                async for line in response.aiter_lines():
                    if line.startswith("data:") and not line.endswith("[DONE]"):
                        chunk = json.loads(line.removeprefix("data:"))
                        if (error := chunk.get("error")) is not None:  # a refused turn has status 200 if it is streamed
                            self._raise_for(int(error.get("code") or 500), str(error["message"]), name)
                        yield chunk, [token for choice in chunk["choices"] for token in choice["token_ids"] or ()]
        except (httpx.HTTPError, RuntimeError, ValueError, LookupError, TypeError) as error:
            raise self._failed(f"{self.where} broke off a turn ({type(error).__name__} {error})") from error
        self._num_failures = 0

    async def score(self, name: str, token_ids: Sequence[int], temperature: float, first: int = 1) -> list[float]:
        """Return the log-probability of each id from index `first` on.

        Each id is requested as a next token. vLLM 0.32 can also return the log-probabilities of a prompt, but with an
        adapter, and while other turns run, such a request ends the server (docs/vllm.md).
        """
        calls = (self._score_one(name, token_ids, place, temperature or 1.0) for place in range(first, len(token_ids)))
        scores: list[float] = []
        for score in await asyncio.gather(*calls, return_exceptions=True):  # no request outlives another one's failure
            if isinstance(score, BaseException):
                raise score
            scores.append(score)
        return scores

    async def _score_one(self, name: str, token_ids: Sequence[int], place: int, temperature: float) -> float:
        """Return the log-probability of one id, given the ids before it.

        A server reports at most 20 tokens. If the id is not among them, a larger bias raises its logit until it is; the
        bias is then subtracted.
        """
        for bias in BIASES:
            body = self._select(name) | _score_body(token_ids, place, temperature=temperature, bias=bias)
            async with self.slots:
                answer = await self._post("/inference/v1/generate", body, name=name, seconds=LOAD_SECONDS)
            try:
                if self._mode == "all_weights":
                    self._check_names(one for one, _ in _read_versions(answer["choices"][0]))
                reported = _find_logprob(answer, token_ids[place])
            except (LookupError, TypeError, ValueError) as error:
                raise InfrastructureError(f"{self.where} returned no log-probabilities: {error!r}.") from error
            if reported is not None and bias and reported > MOST_BIASED:
                break  # too few digits are left
            if reported is not None:
                return remove_bias(reported, bias)
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
            body = {"lora_name": name, "lora_path": str(folder), "load_inplace": False}
            response = await self._send("/v1/load_lora_adapter", body, seconds=LOAD_SECONDS)
            if response.status_code != 200 and "already been loaded" not in response.text:
                problem = (
                    f"{self.where} cannot load the adapter {folder} (status {response.status_code}: {response.text[:300]}). "
                    f"It must read this folder, and have the adapter's rank; {HOW_TO_START[self._mode]}"
                )
                raise self._failed(problem) if _may_pass(response.status_code) else ServiceError(f"{problem}.")
            self._adapters.add(name)

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter if this server has it. A server that does not answer keeps it."""
        if name not in self._adapters:
            return
        self._adapters.discard(name)
        with suppress(Unanswered):
            await self._send("/v1/unload_lora_adapter", {"lora_name": name}, seconds=UNLOAD_SECONDS)

    async def load_weights(self, find_newest: Callable[[], tuple[str, Path]]) -> str:
        """Replace all weights with the newest ones unless this server has them, and return their name.

        `find_newest` returns the name and the file of the newest weights. Running turns pause, and continue with the new
        weights; other turns wait for this method. Raises Unanswered, and ServiceError if the server refuses them.
        """
        async with self._loading:
            name, file = find_newest()
            if name == self._weights:
                return name
            self._weights = None
            if name not in self._sent or await self._read_name() != name:
                # The cache is cleared, so that turns that continue compute all keys and values with the new weights.
                await self._command("/pause?mode=keep&clear_cache=true")
                # The server refuses a second start if an earlier update was interrupted; this one then completes it.
                with suppress(Unanswered, ServiceError):
                    await self._command("/start_weight_update")
                await self._command("/update_weights", {"update_info": {"path": str(file)}})
                await self._command("/finish_weight_update", {"weight_version": name})
                self._sent.add(name)
            await self._command("/resume")
            self._weights = name
            return name

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
                f"{response.text[:300]}). It must read the file of the weights; {HOW_TO_START[self._mode]}"
            )
            # With this text, vLLM reports an exception of the back end.
            is_refused = "collective_rpc method failed" in response.text
            raise ServiceError(f"{problem}.") if is_refused else self._failed(problem)

    async def is_healthy(self) -> bool:
        """Return whether the server answers within `HEALTH_SECONDS`."""
        try:
            response = await self._client.get("/health", timeout=HEALTH_SECONDS)
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
            response = await self._client.post(path, json=body, timeout=timeout, headers=headers)
        except (httpx.HTTPError, RuntimeError) as error:  # a RuntimeError if the client is closed
            raise self._failed(unreachable(self.where, error)) from error
        if not _may_pass(response.status_code):
            self._num_failures = 0
        return response

    def _raise_for(self, status: int, text: str, name: str) -> None:
        """Raise the error for a status other than 200."""
        text = text[:300]
        if status == 404 and name in text:
            self._adapters.discard(name)  # the server was started again
            raise Unanswered(f"{self.where} does not have the adapter {name}")
        if _may_pass(status):
            raise self._failed(f"{self.where} answered status {status}: {text}")
        if status in (401, 403, 404):
            raise ServiceError(
                f"{self.where} answered status {status}: {text}. Check the key, or {HOW_TO_START[self._mode]}."
            )
        if _ABOUT_GRAMMAR.search(text):
            advice = (
                "Ask for a form that llguidance supports"
                if "Grammar error" in text
                else f"Start it with --structured-outputs-config '{VLLM_SETTING}', and with the model's fast tokenizer"
            )
            raise ConstraintError(f"{self.where} refused the grammar of an answer: {text.rstrip('.')}. {advice}.")
        raise DataError(f"{self.where} refused a turn with status {status}: {text}.")

    def _failed(self, problem: str) -> Unanswered:
        self._weights = None  # it may have ended, and may have been started again
        self._down_until = time.monotonic() + min(REST_SECONDS * 2**self._num_failures, LONGEST_REST_SECONDS)
        self._num_failures = min(self._num_failures + 1, 10)
        return Unanswered(problem)


def _may_pass(status: int) -> bool:
    """Return whether the same request may succeed later."""
    return status in (408, 429) or status >= 500


def check_server(base_url: str, headers: Mapping[str, str], mode: Mode) -> ServedModel:
    """Return the base model.

    Raises ServiceError if the server does not answer, has no route for token ids or for the weights of this mode, or
    reports log-probabilities from before the temperature is applied.
    """
    how_to_start = HOW_TO_START[mode]
    where = f"the vLLM server at {base_url}"
    try:
        with httpx.Client(
            base_url=base_url, headers=headers, timeout=httpx.Timeout(FIRST_SECONDS, connect=CONNECT_SECONDS)
        ) as client:
            models = client.get("/v1/models")
            if models.status_code != 200:
                raise ServiceError(
                    f"{where} answered status {models.status_code} to /v1/models. Check address and key."
                )
            served = models.json()["data"]
            base = next(one for one in served if not one.get("parent"))
            if mode == "adapters" and client.post("/v1/load_lora_adapter", json={}).status_code in (404, 405):
                raise ServiceError(f"{where} loads no adapters while it runs; {how_to_start}.")
            if mode == "all_weights":
                if client.post("/init_weight_transfer_engine", json={"init_info": {}}).status_code != 200:
                    raise ServiceError(f"{where} cannot replace its weights while it runs; {how_to_start}.")
                client.post("/resume")  # a run that ended during an update leaves it paused
            _check_logprobs(client, base["id"], where, how_to_start)
            return ServedModel(
                name=base["id"],
                source=str(base.get("root") or base["id"]),
                max_context_tokens=int(base["max_model_len"]),
                names=tuple(one["id"] for one in served),
            )
    except httpx.HTTPError as error:
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
        raise ServiceError(f"{where} does not answer as vLLM 0.32 does ({error!r}); check the address.") from error


def _check_logprobs(client: httpx.Client, model: str, where: str, how_to_start: str) -> None:
    """Raise ServiceError unless the log-probability of a sampled token is computed after the temperature is applied.

    At a small temperature it is near 0, while the log-probability at temperature 1 usually is not.
    """
    parameters = _sampling_params(temperature=0.05, max_tokens=1, seed=0)
    for prompt in ([1, 1], [1, 2, 3], [5, 4], [7, 1, 7]):
        body = {"model": model, "token_ids": prompt, "sampling_params": parameters}
        sampled = client.post("/inference/v1/generate", json=body)
        if sampled.status_code != 200:
            raise ServiceError(
                f"{where} answered status {sampled.status_code} to token ids: {sampled.text[:200]}. To fix this, "
                f"{how_to_start}."
            )
        first = _read_generation([sampled.json()], None, where)
        body = {"model": model} | _score_body([*prompt, *first.token_ids], len(prompt))
        before = _find_logprob(client.post("/inference/v1/generate", json=body).json(), first.token_ids[0])
        if before is not None and before < -0.05:
            if abs(first.logprobs[0] - before) < 1e-3:
                raise ServiceError(
                    f"{where} reports log-probabilities from before the temperature is applied; {how_to_start}."
                )
            return


def _generate_body(request: SampleRequest, *, stream: bool) -> dict[str, Json]:
    sampling, constraint = request.sampling, request.constraint
    parameters = _sampling_params(temperature=sampling.temperature, max_tokens=sampling.max_tokens, seed=request.seed)
    # Log-probabilities are then those of the reduced distribution, and the turn is not trained on.
    parameters["top_p"] = sampling.top_p
    parameters["stop_token_ids"] = sorted(request.stop_ids)
    if request.stop_texts:
        parameters |= {"stop": list(request.stop_texts), "detokenize": True}
    if constraint is not None:
        # A server that cannot continue a grammar samples its end-of-sequence id, which ends the turn only without
        # `ignore_eos`.
        grammar = write_lark(constraint, request.stop_ids)
        parameters |= {"structured_outputs": {"grammar": grammar}, "ignore_eos": False}
    return {"token_ids": list(request.prompt_ids), "sampling_params": parameters, "stream": stream}


def _sampling_params(*, temperature: float, max_tokens: int, seed: int) -> dict[str, Json]:
    # `logprobs` 0 requests only the sampled token. The request contains all stop ids, so the model's own stop ids are
    # ignored.
    return {
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": -1,
        "max_tokens": max_tokens,
        "seed": seed % 2**63,
        "logprobs": 0,
        "detokenize": False,
        "ignore_eos": True,
    }


def _score_body(
    token_ids: Sequence[int], place: int, *, temperature: float = 1.0, bias: float = 0.0
) -> dict[str, Json]:
    """Return a request for the likeliest tokens at `place`, with a bias on its id, in units of the scaled logits."""
    parameters = _sampling_params(temperature=temperature, max_tokens=1, seed=0) | {"logprobs": MOST_LOGPROBS}
    if bias:
        parameters["logit_bias"] = {str(token_ids[place]): bias * temperature}
    return {"token_ids": list(token_ids[:place]), "sampling_params": parameters}


def _find_logprob(answer: Mapping[str, Any], token: int) -> float | None:
    """Return the log-probability of a token at the first position, or None if it is not among the reported ones."""
    entry = answer["choices"][0]["logprobs"]["content"][0]
    return next((float(one["logprob"]) for one in (entry, *entry["top_logprobs"]) if one["token_id"] == token), None)


def remove_bias(logprob: float, bias: float) -> float:
    """Return the log-probability that a token has without the bias b on its logit.

    With the bias, q = p e^b / (1 - p + p e^b), so p = q / (q + e^b (1 - q)).
    """
    return logprob - math.log(math.exp(logprob) - math.exp(bias) * math.expm1(logprob))


def _read_generation(chunks: Sequence[Mapping[str, Any]], usage: Any, where: str) -> Generation:
    """Return the tokens of an answer, or of its chunks. Raises Unanswered for an incomplete answer, and
    InfrastructureError if a log-probability is missing or not finite."""
    tokens, logprobs, finish = list[int](), list[float](), None
    versions: tuple[tuple[str, int], ...] = ()
    try:
        for choice in (one for chunk in chunks for one in chunk["choices"]):
            tokens += choice["token_ids"] or ()
            content = (choice["logprobs"] or {}).get("content") or ()
            logprobs += [float(one["logprob"]) for one in content if one["token_id"] >= 0]
            finish = choice["finish_reason"] or finish
            versions = _read_versions(choice) or versions
        num_cached = int(((usage or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InfrastructureError(f"{where} sent an answer that cannot be read: {error!r}.") from error
    if finish not in ("stop", "length") or not tokens:
        raise Unanswered(f"{where} ended a turn with {finish!r} after {len(tokens)} tokens")
    if len(logprobs) != len(tokens) or any(not math.isfinite(one) or one <= _MISSING_LOGPROB for one in logprobs):
        raise InfrastructureError(f"{where} returned no valid log-probability for each sampled token.")
    return Generation(
        token_ids=tuple(tokens),
        logprobs=tuple(logprobs),
        finish_reason=finish,
        num_cached=num_cached,
        versions=versions,
    )


def _read_versions(choice: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Return the names of the weights that sampled an answer, each with its number of tokens."""
    spans = choice.get("weight_versions") or ()
    return tuple((str(one["version"]), one["end"] - one["start"]) for one in spans if one["end"] > one["start"])
