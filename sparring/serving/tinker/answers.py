"""The results of computations, as the clients read them: JSON, or the protocol buffers that newer clients require."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np

from sparring.serving.tinker.wire import write_bytes, write_double, write_integer, write_integers, write_text
from sparring.types import Completion, Json, StopReason

_FLOAT32 = 1
"""The number of `tinker_public.DType` for fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """The log-probabilities of one datum's targets."""

    values: tuple[float, ...]
    shape: tuple[int, ...]
    """The shape of the targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResult:
    """The result of a forward pass, with or without gradients."""

    outputs: tuple[TokenLogprobs, ...]
    metrics: Mapping[str, float]

    @property
    def num_values(self) -> int:
        return sum(len(one.values) for one in self.outputs)

    def as_json(self) -> Json:
        outputs = [
            {"logprobs": {"data": list(one.values), "dtype": "float32", "shape": list(one.shape)}}
            for one in self.outputs
        ]
        return {"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": outputs, "metrics": dict(self.metrics)}

    def as_protobuf(self) -> bytes:
        """Return `tinker_public.ForwardBackwardOutput`. Outputs of equal width are in one record."""
        records = [_write_record(list(group)) for _, group in groupby(self.outputs, key=lambda one: one.shape[1:])]
        metrics = [write_text(1, name) + write_double(2, value) for name, value in self.metrics.items()]
        parts = [write_text(1, "ArrayRecord")]
        parts += [write_bytes(2, record) for record in records] + [write_bytes(3, entry) for entry in metrics]
        return b"".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult:
    """The samples of one prompt, and the log-probabilities of its tokens if they were requested (NaN where there is none)."""

    completions: tuple[Completion, ...]
    prompt_logprobs: tuple[float, ...] | None = None

    @property
    def num_values(self) -> int:
        return sum(len(one.token_ids) for one in self.completions) + len(self.prompt_logprobs or ())

    def as_json(self) -> Json:
        sequences: list[Json] = [
            {"stop_reason": str(one.stop_reason), "tokens": list(one.token_ids), "logprobs": list(one.sampled_logprobs)}
            for one in self.completions
        ]
        prompt: Json = None
        if self.prompt_logprobs is not None:
            prompt = [None if math.isnan(value) else value for value in self.prompt_logprobs]
        return {"type": "sample", "sequences": sequences, "prompt_logprobs": prompt}

    def as_protobuf(self) -> bytes:
        """Return `tinker_public.SampleResponse`."""
        parts = [write_bytes(1, _write_sequence(one)) for one in self.completions]
        if self.prompt_logprobs is not None:
            parts.append(write_bytes(2, _floats(self.prompt_logprobs)))
        return b"".join(parts)


Result: TypeAlias = "ForwardResult | SampleResult | Mapping[str, Json]"


def _write_record(outputs: Sequence[TokenLogprobs]) -> bytes:
    """Return `tinker_public.ArrayRecord`: the values of all outputs, and the offset in bytes of each."""
    offsets = np.cumsum([0, *(4 * len(one.values) for one in outputs)]).astype("<i8").tobytes()
    tensor = write_bytes(1, b"".join(_floats(one.values) for one in outputs)) + write_bytes(2, offsets)
    tensor += write_integer(3, _FLOAT32) + write_integers(4, outputs[0].shape[1:])
    entry = write_text(1, "logprobs") + write_bytes(2, tensor)
    return write_text(1, "ArrayRecord") + write_bytes(2, entry) + write_integer(3, len(outputs))


def _write_sequence(completion: Completion) -> bytes:
    tokens = np.asarray(completion.token_ids, "<i4").tobytes()
    reason = write_integer(1, 0 if completion.stop_reason is StopReason.STOP else 1)
    return reason + write_bytes(2, tokens) + write_bytes(3, _floats(completion.sampled_logprobs))


def _floats(values: Sequence[float]) -> bytes:
    return np.asarray(values, "<f4").tobytes()
