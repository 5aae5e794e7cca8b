"""The routes of SGLang 0.5.23 that the engine uses, over a torch engine, with faults on request.

The requests and answers have the fields that SGLang's source has (https://pypi.org/project/sglang/0.5.23/,
`srt/entrypoints/http_server.py`, `srt/managers/io_struct.py`, `srt/managers/tokenizer_manager.py`). No real server was
seen. One thing differs: the log-probabilities of a stream are all in its last chunk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sparring.engines.torch_engine import TorchEngine
from sparring.errors import InfrastructureError
from sparring.types import Completion, SampleRequest, Sampling, StopReason
from tests.contracts.routes import keep_adapter, wait_until_gone

EOS = 7
"""The stop id of the model's own. It ends a turn unless the request has `ignore_eos`."""
SMALLEST = -3.4028234663852886e38
"""What a server sends instead of the logarithm of 0."""
FIELDS = {"input_ids", "sampling_params", "return_logprob", "token_ids_logprob", "lora_path", "stream"}
SETTINGS: Mapping[str, Any] = {
    "model_path": "base",
    "served_model_name": "base",
    "version": "0.5.23",
    "enable_lora": True,
    "max_lora_rank": 64,
    "dp_size": 1,
    "incremental_streaming_output": True,
    "allow_auto_truncate": False,
    "preferred_sampling_params": None,
    "enable_deterministic_inference": True,
}
"""The part of `/server_info` that concerns the engine."""


class SGLangRoutes:
    """An application with the routes, and the adapters that were loaded. `faults` changes its answers, by name; the path
    of a route is the name of a fault, too, and its value the status of every answer."""

    def __init__(self, engine: TorchEngine, faults: Mapping[str, Any] | None = None) -> None:
        self.engine = engine
        self.adapters: dict[str, Any] = {}
        self.unloaded: list[str] = []
        self.faults: dict[str, Any] = dict(faults or {})
        self.num_turns = 0
        self.num_requests = 0
        """The requests for turns and scores so far, also of turns that have not begun."""
        self.app = Starlette(
            routes=[
                Route("/health", lambda request: Response()),
                Route("/server_info", self.server_info),
                Route("/load_lora_adapter", self.load, methods=["POST"]),
                Route("/unload_lora_adapter", self.unload, methods=["POST"]),
                Route("/generate", self.generate, methods=["POST"]),
                Route("/faults", self.set_faults, methods=["POST"]),
            ]
        )

    async def server_info(self, request: Request) -> Response:
        if status := self.faults.get(request.url.path):
            return JSONResponse({"error": "Unauthorized"}, status)
        length = {"max_req_input_len": self.engine.max_context_tokens}
        return JSONResponse({**SETTINGS, **length, **self.faults.get("settings", {})})

    async def set_faults(self, request: Request) -> Response:
        self.faults = await request.json()
        return Response()

    async def load(self, request: Request) -> Response:
        body = await request.json()
        if self.faults.get("load_errors", 0) > 0:
            self.faults["load_errors"] -= 1
            return Response("Internal Server Error", 500)
        name = body["lora_name"]
        if name in self.adapters:
            return self._updated(f"Failed to load LoRA adapter {name} because it is already loaded")
        if self.faults.get("refuses_adapter"):
            return self._updated(f"LoRA adapter {name} with rank 2 is incompatible with the current LoRA memory pool")
        self.adapters[name] = await keep_adapter(self.engine, name, Path(body["lora_path"]), self.faults)
        return self._updated(None)

    async def unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        self.unloaded.append(name)
        del self.adapters[name]
        return self._updated(None)

    def _updated(self, error: str | None) -> Response:
        body = {"success": error is None, "error_message": error, "loaded_adapters": dict.fromkeys(self.adapters, "")}
        return JSONResponse(body, 200 if error is None else 400)

    async def generate(self, request: Request) -> Response:
        if status := self.faults.get(request.url.path):
            return JSONResponse({"error": {"message": "no"}}, status)
        body = await request.json()
        assert set(body) <= FIELDS
        if self.faults.get("errors", 0) > 0:
            self.faults["errors"] -= 1
            return JSONResponse({"detail": "The request queue is full."}, 503)
        refusal = self._refuse(body)
        if refusal is not None:
            error = {"message": refusal, "type": "invalid_request_error", "code": 400, "retryable": False}
            if body.get("stream"):
                return Response(f"{_event({'error': error})}data: [DONE]\n\n", media_type="text/event-stream")
            return JSONResponse({"error": {"message": refusal}}, 400)
        self.num_requests += 1
        await asyncio.sleep(self.faults.get("seconds", 0.0))
        if body.get("token_ids_logprob"):
            return JSONResponse(await self._score(body))
        self.num_turns += 1
        if body.get("stream"):
            return StreamingResponse(self._stream(body), media_type="text/event-stream")
        turn = asyncio.create_task(self._sample(body, None))
        gone = asyncio.create_task(wait_until_gone(request))
        await asyncio.wait({turn, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not turn.done():
            turn.cancel()
            return Response(status_code=499)
        completion = turn.result()
        meta = self._meta(body, completion.token_ids, self._logprobs(completion), self._finish(body, completion))
        return JSONResponse({"text": "", "output_ids": list(completion.token_ids), "meta_info": meta})

    def _refuse(self, body: Mapping[str, Any]) -> str | None:
        """Return why the request gets status 400."""
        name = body.get("lora_path")
        if name is not None and (self.faults.pop("forgets", False) or name not in self.adapters):
            self.adapters.pop(name, None)
            return f"Got LoRA adapter that has never been loaded: {name}\nAll loaded adapters: dict_keys([])."
        if len(body["input_ids"]) >= self.engine.max_context_tokens:
            return "The input is longer than the maximum allowed length."
        return None

    def _weights_of(self, body: Mapping[str, Any]) -> Any:
        return self.adapters.get(body.get("lora_path", ""))

    async def _sample(self, body: Mapping[str, Any], on_token: Callable[[int], None] | None) -> Completion:
        parameters, prompt, weights = body["sampling_params"], tuple(body["input_ids"]), self._weights_of(body)
        assert parameters["no_stop_trim"]
        stop_ids = set() if parameters["ignore_eos"] else {EOS, *parameters["stop_token_ids"]}
        request = SampleRequest(
            session_id=f"fake-{self.num_turns}",
            prompt_ids=prompt,
            sampling=Sampling(
                temperature=parameters["temperature"],
                top_p=parameters["top_p"],
                max_tokens=parameters["max_new_tokens"],
            ),
            stop_ids=frozenset(stop_ids),
            stop_texts=tuple(parameters.get("stop", ())),
            seed=parameters["sampling_seed"] + len(prompt),  # a draw depends on the seed and on the place
        )
        completion = await self.engine.sample(request, on_token, frozen=weights)
        temperature = 1.0 if self.faults.get("raw_logprobs") else parameters["temperature"]
        if parameters["top_p"] < 1 or temperature != parameters["temperature"]:
            scores = await self.engine.logprobs([*prompt, *completion.token_ids], temperature, frozen=weights)
            completion = replace(completion, sampled_logprobs=tuple(scores[len(prompt) - 1 :]))
        return completion

    async def _stream(self, body: Mapping[str, Any]) -> AsyncIterator[str]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        turn = asyncio.create_task(self._sample(body, lambda token: loop.call_soon_threadsafe(queue.put_nowait, token)))
        sent: list[int] = []
        try:
            while not (turn.done() and queue.empty()):
                try:
                    async with asyncio.timeout(0.05):
                        token = await queue.get()
                except TimeoutError:
                    continue
                if len(sent) >= self.faults.get("truncates_after", 10**9):
                    return
                sent.append(token)
                yield _event({"text": "", "output_ids": [token], "meta_info": self._meta(body, sent, [], None)})
            completion = turn.result()
            meta = self._meta(body, sent, self._logprobs(completion), self._finish(body, completion))
            yield _event({"text": "", "output_ids": [], "meta_info": meta})
            yield "data: [DONE]\n\n"
        except InfrastructureError as error:
            finish = {"type": "abort", "message": str(error), "status_code": 503, "err_type": "ServiceUnavailable"}
            yield _event({"text": "", "output_ids": [], "meta_info": self._meta(body, sent, [], finish)})
        finally:
            turn.cancel()

    def _finish(self, body: Mapping[str, Any], completion: Completion) -> dict[str, Any]:
        if self.faults.get("aborts"):
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        if self.faults.get("not_a_number"):
            return {"type": "stop", "matched": "NaN happened"}
        if completion.stop_reason is StopReason.LENGTH:
            return {"type": "length", "length": body["sampling_params"]["max_new_tokens"]}
        last = completion.token_ids[-1]
        is_id = last in {EOS, *body["sampling_params"].get("stop_token_ids", ())}
        return {"type": "stop", "matched": last if is_id else body["sampling_params"]["stop"][0]}

    def _logprobs(self, completion: Completion) -> list[list[Any]]:
        if self.faults.get("no_logprobs"):
            return []
        found = [
            [value, token, None] for value, token in zip(completion.sampled_logprobs, completion.token_ids, strict=True)
        ]
        last = self.faults.get("last_logprob")
        return [*found[:-1], last] if last else found

    def _meta(
        self, body: Mapping[str, Any], tokens: Any, logprobs: list[list[Any]], finish: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        return {
            "id": "r",
            "finish_reason": finish,
            "prompt_tokens": len(body["input_ids"]),
            "weight_version": "default",
            "num_retractions": 0,
            "input_token_logprobs": [],
            "output_token_logprobs": logprobs,
            "output_token_logprobs_length": len(logprobs),
            "reasoning_tokens": 0,
            "completion_tokens": len(tokens),
            "cached_tokens": 0,
        }

    async def _score(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the log-probability of the requested id as the next token."""
        parameters, (token,) = body["sampling_params"], body["token_ids_logprob"]
        assert parameters["max_new_tokens"] == 1
        ids, weights = [*body["input_ids"], token], self._weights_of(body)
        scored = [(await self.engine.logprobs(ids, parameters["temperature"], frozen=weights))[-1], token, None]
        meta = self._meta(body, [token], [scored], {"type": "length", "length": 1})
        meta |= {"input_token_ids_logprobs": [], "output_token_ids_logprobs": [[scored]]}
        return {"text": "", "output_ids": [token], "meta_info": meta}


def _event(content: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"
