"""The routes of vLLM 0.32 that the engine uses, over a torch engine, with faults on request.

The requests and answers have the fields that a real server was seen to send. `make vllm` runs the same suites against a
real server.
"""

from __future__ import annotations

import asyncio
import json
import math
import string
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sparring.engines.torch_engine import TorchEngine
from sparring.errors import InfrastructureError
from sparring.types import Completion, SampleRequest, Sampling, Weights

MAX_TOKENS = "max_model_len"
VOCAB = 60


class VLLMRoutes:
    """An application with the routes, and the adapters that were loaded. `faults` changes its answers, by name; the path
    of a route is the name of a fault, too, and its value the status of every answer."""

    def __init__(self, engine: TorchEngine, faults: Mapping[str, Any] | None = None) -> None:
        self.engine = engine
        self.adapters: dict[str, Any] = {}
        self.unloaded: list[str] = []
        self.faults: dict[str, Any] = dict(faults or {})
        self.num_turns = 0
        self.app = Starlette(
            routes=[
                Route("/health", lambda request: Response()),
                Route("/v1/models", self.models),
                Route("/v1/load_lora_adapter", self.load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self.unload, methods=["POST"]),
                Route("/inference/v1/generate", self.generate, methods=["POST"]),
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
        name, folder = body["lora_name"], Path(body["lora_path"])
        if name in self.adapters:
            return JSONResponse({"error": {"message": f"The lora adapter '{name}' has already been loaded."}}, 400)
        config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
        assert config["peft_type"] == "LORA"
        tensors = load_file(folder / "adapter_model.safetensors")
        if self.faults.get("wrong_adapter"):
            tensors = {key: -tensor if "lora_B" in key else tensor for key, tensor in tensors.items()}
        named = {key.replace(".weight", ".default.weight"): tensor for key, tensor in tensors.items()}
        weights = Weights(tensors=named, fingerprint=name)
        self.adapters[name] = await asyncio.to_thread(self.engine.keep, weights, 0)
        return Response(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        self.unloaded.append(name)
        del self.adapters[name]
        return Response(f"Success: LoRA adapter '{name}' removed successfully.")

    async def generate(self, request: Request) -> Response:
        if status := self.faults.get(request.url.path):
            return JSONResponse({"error": {"message": "no"}}, status)
        body = await request.json()
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
        if body.get("stream"):
            return StreamingResponse(self._stream(body), media_type="text/event-stream")
        turn = asyncio.create_task(self._sample(body, None))
        gone = asyncio.create_task(self._wait_until_gone(request))
        await asyncio.wait({turn, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not turn.done():
            turn.cancel()
            return Response(status_code=499)
        completion = turn.result()
        if self.faults.get("raw_logprobs"):
            ids, version = [*body["token_ids"], *completion.token_ids], self.adapters.get(body["model"])
            scores = await self.engine.logprobs(ids, 1.0, frozen=version)
            completion = replace(completion, sampled_logprobs=tuple(scores[-len(completion.token_ids) :]))
        return JSONResponse(self._answer(completion))

    async def _wait_until_gone(self, request: Request) -> None:
        while not await request.is_disconnected():  # noqa: ASYNC110 - there is no event for this
            await asyncio.sleep(0.05)

    async def _sample(self, body: Mapping[str, Any], on_token: Any) -> Completion:
        parameters = body["sampling_params"]
        return await self.engine.sample(
            SampleRequest(
                session_id=f"fake-{self.num_turns}",
                prompt_ids=tuple(body["token_ids"]),
                sampling=Sampling(temperature=parameters["temperature"], max_tokens=parameters["max_tokens"]),
                stop_ids=frozenset(parameters.get("stop_token_ids", ())),
                stop_texts=tuple(parameters.get("stop", ())),
                seed=parameters["seed"],
            ),
            on_token,
            frozen=self.adapters.get(body["model"]),
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
                yield self._chunk([token], None, None)
            completion = turn.result()
            content = self._logprobs(completion)
            yield self._chunk([], content, completion.stop_reason.value)
            yield "data: [DONE]\n\n"
        except InfrastructureError as error:
            yield f"data: {json.dumps({'error': {'message': str(error)}})}\n\n"
        finally:
            turn.cancel()

    def _chunk(self, tokens: list[int], content: Any, finish: str | None) -> str:
        choice = {"index": 0, "token_ids": tokens, "logprobs": {"content": content}, "finish_reason": finish}
        return f"data: {json.dumps({'request_id': 'r', 'choices': [choice]})}\n\n"

    def _logprobs(self, completion: Completion) -> list[dict[str, Any]]:
        values = list(completion.sampled_logprobs)
        if self.faults.get("broken_logprobs"):
            values[-1] = -9999.0
        return [
            {"token_id": token, "logprob": value, "top_logprobs": []}
            for token, value in zip(completion.token_ids, values, strict=True)
        ]

    def _answer(self, completion: Completion) -> dict[str, Any]:
        content = None if self.faults.get("no_logprobs") else self._logprobs(completion)
        finish = "abort" if self.faults.get("aborts") else completion.stop_reason.value
        choice = {
            "index": 0,
            "token_ids": list(completion.token_ids),
            "logprobs": {"content": content},
            "finish_reason": finish,
            "weight_versions": [{"version": "default", "start": 0, "end": len(completion.token_ids)}],
        }
        return {"request_id": "r", "choices": [choice], "usage": {"prompt_tokens": 1, "prompt_tokens_details": None}}

    async def _likeliest(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the likeliest tokens at the first position, as `logprobs` asks for."""
        parameters, ids = body["sampling_params"], body["token_ids"]
        version, vocabulary = self.adapters.get(body["model"]), range(VOCAB)
        scores = [
            (await self.engine.logprobs([*ids, one], parameters["temperature"], frozen=version))[-1]
            for one in vocabulary
        ]
        for token, bias in parameters.get("logit_bias", {}).items():
            scores[int(token)] += bias / parameters["temperature"]
        total = math.log(sum(map(math.exp, scores)))
        likeliest = sorted(((score - total, one) for one, score in enumerate(scores)), reverse=True)[
            : parameters["logprobs"]
        ]
        top = [{"token_id": one, "logprob": score} for score, one in likeliest]
        content = [{**top[0], "top_logprobs": top}]
        choice = {"token_ids": [top[0]["token_id"]], "logprobs": {"content": content}, "finish_reason": "length"}
        return {"choices": [choice]}
