"""The routes of vLLM 0.32 that the engine uses, over a torch engine, with faults on request.

The requests and answers have the fields that a real server was seen to send. `make vllm` runs the same suites against a
real server.
"""

from __future__ import annotations

import asyncio
import json
import math
import string
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sparring.engines.torch_engine import TorchEngine
from sparring.errors import ConstraintError, InfrastructureError
from sparring.models.forest import forest_logprobs, layout
from sparring.models.policy import fingerprint
from sparring.types import Completion, Constraint, SampleRequest, Sampling, StopReason, TokenSegment, Weights
from tests.contracts.routes import keep_adapter, wait_until_gone

MAX_TOKENS = "max_model_len"
VOCAB = 60


@dataclass(frozen=True)
class Sampled:
    """A turn, and the names of the weights that sampled it, each with its number of tokens."""

    completion: Completion
    versions: list[tuple[str, int]]


class VLLMRoutes:
    """An application with the routes, the adapters that were loaded, and the weights of the model. `faults` changes its
    answers, by name; the path of a route is the name of a fault, too, and its value the status of every answer."""

    def __init__(self, engine: TorchEngine, faults: Mapping[str, Any] | None = None, vocabulary: int = VOCAB) -> None:
        self.engine, self.vocabulary = engine, vocabulary
        self.adapters: dict[str, Any] = {}
        self.unloaded: list[str] = []
        self.weights: tuple[str, Any] = ("default", None)
        """The name of the model's weights, and the weights, or None for those that the server started with."""
        self.next_weights: Any = None
        self.salts: list[str | None] = []
        """The salts of the turns."""
        self.cached: list[tuple[int, int]] = []
        """For each turn that was not streamed, the number of tokens of its prompt, and of those that were cached."""
        self.paused, self.resumed = asyncio.Event(), asyncio.Event()
        self.resumed.set()
        self.faults: dict[str, Any] = dict(faults or {})
        self.num_turns = 0
        self.app = Starlette(
            routes=[
                Route("/health", lambda request: Response()),
                Route("/v1/models", self.models),
                Route("/v1/load_lora_adapter", self.load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self.unload, methods=["POST"]),
                Route("/inference/v1/generate", self.generate, methods=["POST"]),
                Route("/init_weight_transfer_engine", self.command, methods=["POST"]),
                Route("/pause", self.pause, methods=["POST"]),
                Route("/start_weight_update", self.command, methods=["POST"]),
                Route("/update_weights", self.update_weights, methods=["POST"]),
                Route("/finish_weight_update", self.finish_update, methods=["POST"]),
                Route("/resume", self.resume, methods=["POST"]),
                Route("/weight_info", lambda request: JSONResponse({"weight_version": self.weights[0]})),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/faults", self.set_faults, methods=["POST"]),
            ]
        )

    async def models(self, request: Request) -> Response:
        if status := self.faults.get(request.url.path):
            return JSONResponse({"error": {"message": "no"}}, status)
        base = {"id": "base", "parent": None, MAX_TOKENS: self.engine.max_context_tokens}
        adapters = [{"id": name, "parent": "base", MAX_TOKENS: None} for name in self.adapters]
        return JSONResponse({"object": "list", "data": [base, *adapters]})

    async def tokenize(self, request: Request) -> Response:
        """Convert letters to the ids of `cases.Letters`, shifted if the server has another vocabulary."""
        if status := self.faults.get(request.url.path):
            return JSONResponse({"error": {"message": "no"}}, status)
        body, shift = await request.json(), self.faults.get("other_vocabulary", 0)
        assert body["add_special_tokens"] is False
        tokens = [8 + string.ascii_letters.index(one) + shift for one in body["prompt"]]
        return JSONResponse({"count": len(tokens), "tokens": tokens, MAX_TOKENS: self.engine.max_context_tokens})

    async def set_faults(self, request: Request) -> Response:
        self.faults = await request.json()
        return Response()

    async def load(self, request: Request) -> Response:
        if status := self.faults.get(request.url.path):
            return JSONResponse({"error": {"message": "no"}}, status)
        body = await request.json()
        if "lora_name" not in body:
            return JSONResponse({"detail": "Field required"}, 422)
        if self.faults.get("load_errors", 0) > 0:
            self.faults["load_errors"] -= 1
            return JSONResponse({"error": {"message": "the worker died"}}, 500)
        if self.faults.get("refuses_adapter"):
            refusal = "Call to add_lora method failed: LoRA rank 2 is greater than max_lora_rank 1."
            return JSONResponse({"error": {"message": refusal}}, 500)
        name, folder = body["lora_name"], Path(body["lora_path"])
        if name in self.adapters:
            return JSONResponse({"error": {"message": f"The lora adapter '{name}' has already been loaded."}}, 400)
        self.adapters[name] = await keep_adapter(self.engine, name, folder, self.faults)
        return Response(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        self.unloaded.append(name)
        del self.adapters[name]
        return Response(f"Success: LoRA adapter '{name}' removed successfully.")

    async def command(self, request: Request) -> Response:
        status = self.faults.get(request.url.path, 200)
        return JSONResponse({"message": "no" if status != 200 else "yes"}, status)

    async def pause(self, request: Request) -> Response:
        assert dict(request.query_params) == {"mode": "keep", "clear_cache": "true"}
        self.resumed.clear()
        self.paused.set()
        return JSONResponse({"status": "paused"})

    async def update_weights(self, request: Request) -> Response:
        assert self.paused.is_set()
        if self.faults.get("update_errors", 0) > 0:
            self.faults["update_errors"] -= 1
            return JSONResponse({"error": {"message": "engine is dead"}}, 500)
        if self.faults.get("refuses_weights"):
            return JSONResponse({"error": {"message": "Call to collective_rpc method failed: no such file"}}, 500)
        await asyncio.sleep(self.faults.get("update_seconds", 0.0))
        tensors = load_file((await request.json())["update_info"]["path"])
        if self.faults.get("wrong_weights"):
            tensors = {name: -tensor for name, tensor in tensors.items()}
        weights = Weights(tensors=tensors, fingerprint=fingerprint(tensors))
        self.next_weights = await asyncio.to_thread(self.engine.keep, weights, 0)
        return JSONResponse({"message": "Weights updated"})

    async def finish_update(self, request: Request) -> Response:
        self.weights = ((await request.json())["weight_version"], self.next_weights)
        return JSONResponse({"message": "Weight update finished"})

    async def resume(self, request: Request) -> Response:
        self.paused.clear()
        self.resumed.set()
        return JSONResponse({"status": "resumed"})

    def _weights_of(self, model: str) -> tuple[str, Any]:
        return self.weights if model == "base" else ("default", self.adapters.get(model))

    async def generate(self, request: Request) -> Response:
        if status := self.faults.get(request.url.path):
            return JSONResponse({"error": {"message": "no"}}, status)
        body = await request.json()
        if body["model"] == "base" and self.faults.pop("forgets", False):
            self.weights = ("default", None)
        if body["model"] != "base" and (self.faults.get("forgets") or body["model"] not in self.adapters):
            self.adapters.pop(body["model"], None)
            self.faults.pop("forgets", None)
            return JSONResponse(
                {"error": {"message": f"The model {body['model']} does not exist. Valid aliases: base."}}, 404
            )
        if self.faults.get("errors", 0) > 0:
            self.faults["errors"] -= 1
            return JSONResponse({"error": {"message": "engine is dead"}}, 500)
        if len(body["token_ids"]) >= self.engine.max_context_tokens:
            return JSONResponse({"error": {"message": "the prompt exceeds the maximum context length"}}, 400)
        await asyncio.sleep(self.faults.get("seconds", 0.0))
        if body["sampling_params"]["logprobs"] > 0:
            return JSONResponse(await self._likeliest(body))
        self.num_turns += 1
        self.salts.append(body.get("cache_salt"))
        if body.get("stream"):
            return StreamingResponse(self._stream(body), media_type="text/event-stream")
        turn = asyncio.create_task(self._sample(body, None))
        gone = asyncio.create_task(wait_until_gone(request))
        await asyncio.wait({turn, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not turn.done():
            turn.cancel()
            return Response(status_code=499)
        if isinstance(refusal := turn.exception(), ConstraintError):
            return JSONResponse(_refused(refusal), 400)
        completion, versions = turn.result().completion, turn.result().versions
        if self.faults.get("gives_up"):  # as if the grammar became too complex: the turn ends with another id
            completion = replace(completion, token_ids=(*completion.token_ids[:-1], 0))
        if self.faults.get("raw_logprobs"):
            ids, version = [*body["token_ids"], *completion.token_ids], self._weights_of(body["model"])[1]
            scores = await self.engine.logprobs(ids, 1.0, frozen=version)
            completion = replace(completion, sampled_logprobs=tuple(scores[-len(completion.token_ids) :]))
        return JSONResponse(self._answer(completion, versions, len(body["token_ids"])))

    async def _sample(self, body: Mapping[str, Any], on_token: Callable[[int], None] | None) -> Sampled:
        """Sample a turn in parts, each with the weights that the server has when it begins."""
        parts: list[Completion] = []
        versions: list[tuple[str, int]] = []
        while True:
            await self.resumed.wait()
            name, weights = self._weights_of(body["model"])
            known = [token for part in parts for token in part.token_ids]
            part = await self._sample_part(body, known, weights, on_token)
            if part.token_ids:
                parts.append(part)
                versions.append((name, len(part.token_ids)))
            if not part.fingerprint:
                continue
            logprobs = tuple(value for part in parts for value in part.sampled_logprobs)
            return Sampled(replace(part, token_ids=(*known, *part.token_ids), sampled_logprobs=logprobs), versions)

    async def _sample_part(
        self, body: Mapping[str, Any], known: list[int], weights: Any, on_token: Callable[[int], None] | None
    ) -> Completion:
        """Sample until the turn or the server's work ends. In the second case, the fingerprint is empty."""
        parameters, drawn = body["sampling_params"], list[int]()
        temperature, num_left = parameters["temperature"], parameters["max_tokens"] - len(known)
        grammar = parameters.get("structured_outputs", {}).get("grammar")
        assert grammar is None or not known, "a turn with a grammar cannot continue with other weights here"

        def draw(token: int) -> None:
            drawn.append(token)
            if on_token is not None:
                on_token(token)

        request = SampleRequest(
            session_id=f"fake-{self.num_turns}",
            prompt_ids=(*body["token_ids"], *known),
            sampling=Sampling(temperature=temperature, top_p=parameters["top_p"], max_tokens=num_left),
            stop_ids=frozenset(parameters.get("stop_token_ids", ())),
            stop_texts=tuple(parameters.get("stop", ())),
            seed=parameters["seed"] + len(known),
            constraint=None if grammar is None else Constraint(grammar=grammar),
        )
        turn = asyncio.create_task(self.engine.sample(request, draw, frozen=weights))
        pause = asyncio.create_task(self.paused.wait())
        try:
            await asyncio.wait({turn, pause}, return_when=asyncio.FIRST_COMPLETED)
            if turn.done() or len(drawn) == num_left or request.stop_ids & {*drawn}:
                return await turn
        finally:
            pause.cancel()
            turn.cancel()
        ids = tuple(drawn)
        scores = await self.engine.logprobs([*request.prompt_ids, *ids], temperature, frozen=weights)
        return Completion(
            token_ids=ids,
            sampled_logprobs=tuple(scores[len(request.prompt_ids) - 1 :]),
            stop_reason=StopReason.LENGTH,
            versions=(),
            fingerprint="",
            num_computed_tokens=0,
        )

    async def _stream(self, body: Mapping[str, Any]) -> AsyncIterator[str]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        turn = asyncio.create_task(self._sample(body, lambda token: loop.call_soon_threadsafe(queue.put_nowait, token)))
        try:
            # The log-probabilities are known at the end of the turn, so each token comes without one first.
            num_sent = 0
            while not (turn.done() and queue.empty()):
                try:
                    async with asyncio.timeout(0.05):
                        token = await queue.get()
                except TimeoutError:
                    continue
                num_sent += 1
                if num_sent > self.faults.get("truncates_after", 10**9):
                    return
                yield self._chunk([token])
            completion = turn.result().completion
            choice = {
                "finish_reason": completion.stop_reason.value,
                "logprobs": {"content": self._logprobs(completion)},
            }
            yield self._chunk([], **choice, weight_versions=self._spans(turn.result().versions))
            yield "data: [DONE]\n\n"
        except ConstraintError as refusal:
            yield f"data: {json.dumps(_refused(refusal))}\n\n"
        except InfrastructureError as error:
            yield f"data: {json.dumps({'error': {'message': str(error)}})}\n\n"
        finally:
            turn.cancel()

    def _chunk(self, tokens: list[int], **last: Any) -> str:
        choice = {"index": 0, "token_ids": tokens, "logprobs": {"content": None}, "finish_reason": None, **last}
        return f"data: {json.dumps({'request_id': 'r', 'choices': [choice]})}\n\n"

    def _logprobs(self, completion: Completion) -> list[dict[str, Any]]:
        values = list(completion.sampled_logprobs)
        if self.faults.get("broken_logprobs"):
            values[-1] = -9999.0
        return [
            {"token_id": token, "logprob": value, "top_logprobs": []}
            for token, value in zip(completion.token_ids, values, strict=True)
        ]

    def _spans(self, versions: list[tuple[str, int]]) -> list[dict[str, Any]] | None:
        ends = list(accumulate(number for _, number in versions))
        spans = [
            {"version": name, "start": end - number, "end": end}
            for (name, number), end in zip(versions, ends, strict=True)
        ]
        return None if self.faults.get("no_versions") else spans

    def _answer(self, completion: Completion, versions: list[tuple[str, int]], num_prompt: int) -> dict[str, Any]:
        content = None if self.faults.get("no_logprobs") else self._logprobs(completion)
        finish = "abort" if self.faults.get("aborts") else completion.stop_reason.value
        choice = {
            "index": 0,
            "token_ids": list(completion.token_ids),
            "logprobs": {"content": content},
            "finish_reason": finish,
            "weight_versions": self._spans(versions),
        }
        # A forward pass computes every token but the last one, and those that are in the cache.
        cached = max(0, num_prompt + len(completion.token_ids) - 1 - completion.num_computed_tokens)
        self.cached.append((num_prompt, cached))
        usage = {"prompt_tokens": num_prompt, "prompt_tokens_details": {"cached_tokens": cached}}
        return {"request_id": "r", "choices": [choice], "usage": usage}

    async def _likeliest(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the likeliest tokens at the first position, as `logprobs` asks for."""
        parameters, ids = body["sampling_params"], body["token_ids"]
        name, version = self._weights_of(body["model"])
        scores = await asyncio.to_thread(self._score_next, ids, parameters["temperature"], version)
        for token, bias in parameters.get("logit_bias", {}).items():
            scores[int(token)] += bias / parameters["temperature"]
        total = math.log(sum(map(math.exp, scores)))
        likeliest = sorted(((score - total, one) for one, score in enumerate(scores)), reverse=True)[
            : parameters["logprobs"]
        ]
        top = [{"token_id": one, "logprob": score} for score, one in likeliest]
        content = [{**top[0], "top_logprobs": top}]
        choice = {"token_ids": [top[0]["token_id"]], "logprobs": {"content": content}, "finish_reason": "length"}
        return {"choices": [{**choice, "weight_versions": self._spans([(name, 1)])}]}

    def _score_next(self, ids: list[int], temperature: float, version: Any) -> list[float]:
        """Return the log-probability of each token of the vocabulary after `ids`."""

        def segment(parent: int | None, tokens: tuple[int, ...]) -> TokenSegment:
            zeros = (0.0,) * len(tokens)
            mask = (parent is not None,) * len(tokens)
            return TokenSegment(
                parent=parent,
                token_ids=tokens,
                mask=mask,
                sampled_logprobs=zeros,
                advantages=zeros,
                weights=zeros,
                temperature=temperature,
            )

        tree = [segment(None, tuple(ids)), *(segment(0, (one,)) for one in range(self.vocabulary))]
        weights = (version or self.engine._current).weights
        with torch.no_grad():
            return forest_logprobs(weights, layout(tree, device=self.engine._device))[0].tolist()


def _refused(refusal: ConstraintError) -> dict[str, Any]:
    return {"error": {"message": f"Grammar error: {refusal}", "type": "BadRequestError", "param": None, "code": 400}}
