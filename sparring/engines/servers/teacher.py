"""A model on a vLLM server that is not sampled from: it returns only the log-probabilities of given ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, final

from sparring.engines.servers.client import ServerClient, Unanswered
from sparring.engines.servers.engine import MAX_RETRIES
from sparring.engines.servers.vllm import VLLM
from sparring.errors import InfrastructureError

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 10.0
_NUM_PROBED_IDS = 512


@final
class ServerTeacher:
    """The log-probabilities of one model on a vLLM server, which may be larger than the policy in training.

    teacher = ServerTeacher("http://127.0.0.1:8000/v1", "Qwen/Qwen3-32B", tokenizer=tokenizer)
    await teacher.logprobs([1, 2, 3])
    """

    def __init__(self, base_url: str, model: str, *, tokenizer: Any, api_key: str | None = None) -> None:
        """Connect to a running server. Raises ServiceError if it does not answer, does not return log-probabilities of
        given ids at a temperature, does not serve this model, or tokenizes differently from `tokenizer`."""
        self._model = model
        self._server = ServerClient(base_url, VLLM, api_key=api_key, mode="fixed")
        text = tokenizer.decode(list(range(0, len(tokenizer), max(1, len(tokenizer) // _NUM_PROBED_IDS))))
        self._server.check_model(model, text, tokenizer.encode(text, add_special_tokens=False))

    async def logprobs(self, token_ids: Sequence[int], temperature: float = 1.0, first: int = 1) -> list[float]:
        """Return log-probabilities, like `protocols.Engine.logprobs`. Raises InfrastructureError if the server does not
        answer."""
        for attempt in range(MAX_RETRIES + 1):
            try:
                return await self._server.score(self._model, token_ids, temperature, first)
            except Unanswered as failure:
                if attempt == MAX_RETRIES:
                    raise InfrastructureError(f"{failure}.") from failure
            await asyncio.sleep(min(_FIRST_PAUSE_SECONDS * 2**attempt, _LONGEST_PAUSE_SECONDS))
        raise AssertionError

    async def close(self) -> None:
        """Close the connections; the server keeps running."""
        await self._server.close()
