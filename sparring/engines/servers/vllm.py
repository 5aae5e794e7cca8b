"""The routes of vLLM 0.32, and the checks of a server's settings.

The routes are `/inference/v1/generate` (token ids in and out), `/v1/models` and `/health`. Each version of the weights is
an adapter of its own (`/v1/load_lora_adapter`, `/v1/unload_lora_adapter`), or it replaces all weights of the model
(`/pause`, `/start_weight_update`, `/update_weights`, `/finish_weight_update`, `/resume`, `/weight_info`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import httpx

from sparring.engines.lark import VLLM_SETTING, write_lark
from sparring.engines.servers.client import Generation, Mode, ServedModel, Unanswered, check_logprobs
from sparring.engines.servers.environment import BACKEND, PLUGIN
from sparring.errors import InfrastructureError, ServiceError
from sparring.types import Json, SampleRequest

MOST_LOGPROBS = 20
"""The number of log-probabilities that a server reports at most by default (`--max-logprobs`)."""
BIASES = tuple(map(float, range(0, 100, 10)))
"""The biases that are tried in turn. The steps are small, so that the raised probability is never too close to 1. If
the answer to one bias does not contain the id, its probability with the next bias is below e^10 / 20 times that of the
other ids."""
MOST_BIASED = -1e-5
"""The largest log-probability with a bias from which the bias can be subtracted in single precision."""
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


@final
class VLLMKind:
    """What is special about vLLM. Implements `client.ServerKind`."""

    name = "vLLM"
    version = "0.32"
    how_to_start = HOW_TO_START
    generate_path = "/inference/v1/generate"
    load_path = "/v1/load_lora_adapter"
    unload_path = "/v1/unload_lora_adapter"
    already_loaded = "already been loaded"
    least_temperature = 0.01
    """vLLM replaces a smaller temperature with this one."""
    takes_grammars = True

    def check_settings(self, client: httpx.Client, mode: Mode, where: str) -> ServedModel:
        how_to_start = HOW_TO_START[mode]
        models = client.get("/v1/models")
        if models.status_code != 200:
            raise ServiceError(f"{where} answered status {models.status_code} to /v1/models. Check address and key.")
        served = models.json()["data"]
        base = next(one for one in served if not one.get("parent"))
        if mode == "adapters" and client.post(self.load_path, json={}).status_code in (404, 405):
            raise ServiceError(f"{where} loads no adapters while it runs; {how_to_start}.")
        if mode == "all_weights":
            if client.post("/init_weight_transfer_engine", json={"init_info": {}}).status_code != 200:
                raise ServiceError(f"{where} cannot replace its weights while it runs; {how_to_start}.")
            client.post("/resume")  # a run that ended during an update leaves it paused
        return ServedModel(
            name=base["id"],
            source=str(base.get("root") or base["id"]),
            max_context_tokens=int(base["max_model_len"]),
            names=tuple(one["id"] for one in served),
        )

    def select(self, base: str, weights: str | None, mode: Mode) -> dict[str, Json]:
        """Return the fields that select weights. If all weights are replaced, the cache of prompts does not depend on
        them, so each version gets a salt of its own."""
        if weights is None:
            return {"model": base}
        return {"model": base, "cache_salt": weights} if mode == "all_weights" else {"model": weights}

    def generate_body(self, request: SampleRequest, *, stream: bool) -> dict[str, Json]:
        return _generate_body(request, stream=stream)

    def load_body(self, name: str, folder: Path) -> dict[str, Json]:
        return {"lora_name": name, "lora_path": str(folder), "load_inplace": False}

    def find_tokens(self, chunk: Mapping[str, Any]) -> Sequence[int]:
        return [token for choice in chunk["choices"] for token in choice["token_ids"] or ()]

    def find_error(self, chunk: Mapping[str, Any]) -> tuple[int, str] | None:
        """Return the error of a refused turn, which has status 200 if it is streamed."""
        error = chunk.get("error")
        return None if error is None else (int(error.get("code") or 500), str(error["message"]))

    def explain_grammar_refusal(self, text: str) -> str | None:
        if not _ABOUT_GRAMMAR.search(text):
            return None
        if "Grammar error" in text:
            return "Ask for a form that llguidance supports"
        return f"Start it with --structured-outputs-config '{VLLM_SETTING}', and with the model's fast tokenizer"

    def read(self, chunks: Sequence[Mapping[str, Any]], where: str) -> Generation:
        return _read_generation(chunks, where)

    def find_versions(self, answer: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
        return _read_versions(answer["choices"][0])

    def score_bodies(self, token_ids: Sequence[int], place: int, temperature: float) -> Iterator[dict[str, Json]]:
        """Yield requests for the likeliest tokens at `place`, with a larger bias on its id each.

        A server reports at most 20 tokens. If the id is not among them, a larger bias raises its logit until it is; the
        bias is then subtracted. vLLM 0.32 can also return the log-probabilities of a prompt, but with an adapter, and
        while other turns run, such a request ends the server (docs/vllm.md).
        """
        for bias in BIASES:
            yield _score_body(token_ids, place, temperature=temperature, bias=bias)

    def read_score(self, answer: Mapping[str, Any], token: int, number: int) -> float | None:
        reported, bias = _find_logprob(answer, token), BIASES[number]
        if reported is None or (bias and reported > MOST_BIASED):
            return None
        return remove_bias(reported, bias)

    def refuses_adapter(self, text: str) -> bool:
        return "add_lora method failed" in text

    def lacks_adapter(self, status: int, text: str, name: str) -> bool:
        return status == 404 and name in text


VLLM: Final = VLLMKind()


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


def _read_generation(chunks: Sequence[Mapping[str, Any]], where: str) -> Generation:
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
        usage = chunks[-1].get("usage") if chunks else None
        num_cached = int(((usage or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InfrastructureError(f"{where} sent an answer that cannot be read: {error!r}.") from error
    if finish not in ("stop", "length") or not tokens:
        raise Unanswered(f"{where} ended a turn with {finish!r} after {len(tokens)} tokens")
    check_logprobs(logprobs, len(tokens), where)
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
