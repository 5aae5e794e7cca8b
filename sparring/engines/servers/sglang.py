"""The routes of SGLang 0.5.23, and the checks of a server's settings.

The routes are `/generate` (token ids in and out), `/server_info`, `/health`, `/load_lora_adapter` and
`/unload_lora_adapter`. Each version of the weights is an adapter of its own. They were read in the source of this
release (https://pypi.org/project/sglang/0.5.23/), and no real server has been tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import httpx

from sparring.engines.servers.client import MISSING_LOGPROB, Generation, Mode, ServedModel, Unanswered, check_logprobs
from sparring.errors import InfrastructureError, ServiceError
from sparring.types import Json, SampleRequest

HOW_TO_START: Mapping[Mode, str] = {
    "adapters": "start it with python -m sglang.launch_server --model-path MODEL --enable-lora --max-lora-rank RANK "
    "--lora-target-modules all --incremental-streaming-output"
}
_NEEDED: Mapping[str, object] = {
    "enable_lora": True,
    "incremental_streaming_output": True,
    "allow_auto_truncate": False,
    "preferred_sampling_params": None,
    "dp_size": 1,
}
"""Settings in `/server_info`. Without `--incremental-streaming-output`, each chunk of a stream repeats all earlier tokens.
`--allow-auto-truncate` shortens prompts, `--preferred-sampling-params` changes the sampling, and a server with `--dp-size`
above 1 loads no adapters while it runs."""
_NOT_A_NUMBER = "NaN happened"
"""The stop text that a server reports if it sampled an id outside the vocabulary."""


@final
class SGLangKind:
    """What is special about SGLang. Implements `client.ServerKind`."""

    name = "SGLang"
    version = "0.5.23"
    how_to_start = HOW_TO_START
    generate_path = "/generate"
    load_path = "/load_lora_adapter"
    unload_path = "/unload_lora_adapter"
    already_loaded = "is already loaded"
    least_temperature = 1e-6
    """A smaller temperature takes the most likely token."""
    takes_grammars = False

    def check_settings(self, client: httpx.Client, mode: Mode, where: str) -> ServedModel:
        response = client.get("/server_info")
        if response.status_code != 200:
            raise ServiceError(
                f"{where} answered status {response.status_code} to /server_info. Check address and key."
            )
        info = response.json()
        for setting, needed in _NEEDED.items():
            if info[setting] != needed:
                raise ServiceError(
                    f"{where} has {setting} = {info[setting]!r}, but sampling needs {needed!r}; {HOW_TO_START[mode]}."
                )
        source = str(info["model_path"])
        return ServedModel(
            name=source,
            source=source,
            # A prompt must be shorter than this, and a whole turn may be four tokens longer.
            max_context_tokens=int(info["max_req_input_len"]),
            names=(source,),
        )

    def select(self, base: str, weights: str | None, mode: Mode) -> dict[str, Json]:
        return {} if weights is None else {"lora_path": weights}

    def generate_body(self, request: SampleRequest, *, stream: bool) -> dict[str, Json]:
        sampling = request.sampling
        parameters = _sampling_params(temperature=sampling.temperature, max_tokens=sampling.max_tokens)
        # Log-probabilities are those of the distribution before `top_p`, and the turn is not trained on.
        parameters["top_p"] = sampling.top_p
        parameters["sampling_seed"] = request.seed % 2**63
        if request.stop_ids:
            # With `ignore_eos`, a server ignores these ids too.
            parameters |= {"stop_token_ids": sorted(request.stop_ids), "ignore_eos": False}
        if request.stop_texts:
            parameters["stop"] = list(request.stop_texts)
        return _body(request.prompt_ids, parameters) | {"stream": stream}

    def load_body(self, name: str, folder: Path) -> dict[str, Json]:
        return {"lora_name": name, "lora_path": str(folder)}

    def find_tokens(self, chunk: Mapping[str, Any]) -> Sequence[int]:
        return chunk["output_ids"]

    def find_error(self, chunk: Mapping[str, Any]) -> tuple[int, str] | None:
        """Return the error of a refused turn, or of one that the server's scheduler refused later."""
        if "error" in chunk:
            return int(chunk["error"]["code"]), str(chunk["error"]["message"])
        finish = chunk["meta_info"]["finish_reason"] or {}
        status = finish.get("status_code") if finish.get("type") == "abort" else None
        return None if status is None else (int(status), str(finish.get("message")))

    def explain_grammar_refusal(self, text: str) -> str | None:
        """Return None, because no grammar is sent."""
        return None

    def read(self, chunks: Sequence[Mapping[str, Any]], where: str) -> Generation:
        tokens, reported, logprobs, finish = list[int](), list[int](), list[float](), dict[str, Any]()
        num_cached = 0
        try:
            for chunk in chunks:
                tokens += chunk["output_ids"]
                meta = chunk["meta_info"]
                for logprob, token, _ in meta.get("output_token_logprobs") or ():
                    reported.append(token)
                    logprobs.append(_read_number(logprob))
                finish = meta["finish_reason"] or finish
                num_cached = int(meta.get("cached_tokens") or 0)
            reason, matched = finish.get("type"), finish.get("matched")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InfrastructureError(f"{where} sent an answer that cannot be read: {error!r}.") from error
        if reason not in ("stop", "length") or not tokens:
            raise Unanswered(f"{where} ended a turn with {reason!r} after {len(tokens)} tokens")
        check_logprobs(logprobs if reported == tokens and matched != _NOT_A_NUMBER else (), len(tokens), where)
        return Generation(
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            finish_reason=reason,
            num_cached=num_cached,
            versions=(),
            stop_id=matched if isinstance(matched, int) else None,
        )

    def find_versions(self, answer: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
        """Return nothing: a server does not report the adapter that sampled an answer."""
        return ()

    def score_bodies(self, token_ids: Sequence[int], place: int, temperature: float) -> Iterator[dict[str, Json]]:
        """Yield one request: a server reports the log-probability of any id as the next token, after the temperature is
        applied. The log-probabilities of a prompt are those of temperature 1."""
        parameters = _sampling_params(temperature=temperature, max_tokens=1)
        yield _body(token_ids[:place], parameters) | {"token_ids_logprob": [token_ids[place]]}

    def read_score(self, answer: Mapping[str, Any], token: int, number: int) -> float | None:
        ((logprob, reported, _),) = answer["meta_info"]["output_token_ids_logprobs"][0]
        score = _read_number(logprob)
        return score if reported == token and math.isfinite(score) and score > MISSING_LOGPROB else None

    def refuses_adapter(self, text: str) -> bool:
        """Return False: the status of a refusal is 400."""
        return False

    def lacks_adapter(self, status: int, text: str, name: str) -> bool:
        return status == 400 and "has never been loaded" in text and name in text


SGLANG: Final = SGLangKind()


def _body(token_ids: Sequence[int], parameters: dict[str, Json]) -> dict[str, Json]:
    return {"input_ids": list(token_ids), "sampling_params": parameters, "return_logprob": True}


def _sampling_params(*, temperature: float, max_tokens: int) -> dict[str, Json]:
    # The answer then contains the stop id. `ignore_eos` ignores the stop ids of the model.
    return {"temperature": temperature, "max_new_tokens": max_tokens, "no_stop_trim": True, "ignore_eos": True}


def _read_number(value: float | None) -> float:
    """Return a number of an answer. JSON has null instead of NaN."""
    return math.nan if value is None else float(value)
