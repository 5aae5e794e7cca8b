"""The bodies of requests, as the clients `tinker` 0.16 to 0.38 send them.

The fields are those of `tinker.types` (https://pypi.org/project/tinker/). A field that is not listed is refused, so that no
setting is ignored. Since 0.25, forward_backward sends a protocol buffer; `read_forward_backward` describes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
import pydantic

from sparring.serving.tinker.refusal import Refusal
from sparring.serving.tinker.wire import Value, read_fields, read_integers

NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$"
MOST_SAMPLES = 1024
LARGEST_RANK = 512

_Metadata: TypeAlias = dict[str, Any] | None
_Count: TypeAlias = Annotated[int, pydantic.Field(ge=0)]


class _Body(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    type: str | None = None


class CreateSession(_Body):
    tags: list[str] = []
    user_metadata: _Metadata = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class OfSession(_Body):
    session_id: str


class OfModel(_Body):
    model_id: str


class OfRequest(_Body):
    request_id: str
    allow_metadata_only: bool = False


class LoraConfig(_Body):
    rank: Annotated[int, pydantic.Field(ge=1, le=LARGEST_RANK)]
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerConfig(pydantic.BaseModel):
    """The optimizer of a training run. Only AdamW is computed here."""

    model_config = pydantic.ConfigDict(frozen=True)

    type: Literal["adamw"] = "adamw"


class CreateModel(_Body):
    session_id: str
    model_seq_id: _Count
    base_model: str
    user_metadata: _Metadata = None
    lora_config: LoraConfig
    optimizer_config: OptimizerConfig = OptimizerConfig()


class Tensor(_Body):
    data: list[float]
    dtype: Literal["float32", "int64"]
    shape: list[_Count] | None = None
    sparse_crow_indices: None = None
    sparse_col_indices: None = None

    @pydantic.model_validator(mode="after")
    def _check(self) -> Tensor:
        if math.prod(self.whole_shape) != len(self.data):
            raise ValueError(f"{len(self.data)} values do not have the shape {self.whole_shape}")
        if not all(map(math.isfinite, self.data)):
            raise ValueError("a value is not finite")
        if self.dtype == "int64" and not all(map(float.is_integer, self.data)):
            raise ValueError("a value of an int64 tensor is not an integer")
        return self

    @property
    def whole_shape(self) -> tuple[int, ...]:
        return (len(self.data),) if self.shape is None else tuple(self.shape)


class Chunk(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)

    type: Literal["encoded_text"] = "encoded_text"
    tokens: list[int]


class ModelInput(_Body):
    chunks: list[Chunk]

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for chunk in self.chunks for token in chunk.tokens)


class Datum(_Body):
    model_input: ModelInput
    loss_fn_inputs: dict[str, Tensor]


class ForwardInput(_Body):
    data: Annotated[list[Datum], pydantic.Field(min_length=1)]
    loss_fn: str
    loss_fn_config: dict[str, float | str] | None = None


class Forward(_Body):
    """A forward pass, with or without gradients."""

    model_id: str
    seq_id: Annotated[int, pydantic.Field(ge=1)]
    input: ForwardInput = pydantic.Field(
        validation_alias=pydantic.AliasChoices("forward_backward_input", "forward_input")
    )
    is_forward_only: bool = False


class AdamParams(_Body):
    learning_rate: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 1e-4
    beta1: Annotated[float, pydantic.Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, pydantic.Field(ge=0, lt=1)] = 0.95
    eps: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 1e-12
    weight_decay: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 0.0
    grad_clip_norm: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 0.0


class OptimStep(_Body):
    model_id: str
    seq_id: Annotated[int, pydantic.Field(ge=1)]
    adam: AdamParams = pydantic.Field(validation_alias=pydantic.AliasChoices("optim_params", "adam_params"))


class SaveWeights(_Body):
    model_id: str
    seq_id: Annotated[int, pydantic.Field(ge=1)]
    path: Annotated[str, pydantic.Field(pattern=NAME)] | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveWeightsForSampler(_Body):
    model_id: str
    seq_id: Annotated[int, pydantic.Field(ge=1)]
    path: Annotated[str, pydantic.Field(pattern=NAME)] | None = None
    sampling_session_seq_id: _Count | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"
    ttl_seconds: int | None = None
    user_metadata: dict[str, str] | None = None

    @pydantic.model_validator(mode="after")
    def _check(self) -> SaveWeightsForSampler:
        if (self.path is None) == (self.sampling_session_seq_id is None):
            raise ValueError("give a path, or the sequence id of a sampling session")
        return self


class SaveWeightsExternal(_Body):
    model_id: str
    seq_id: Annotated[int, pydantic.Field(ge=1)]
    path: Annotated[str, pydantic.Field(pattern=NAME)]
    ttl_seconds: int | None = None
    age_encryption_recipients: None = None


class LoadWeights(_Body):
    model_id: str | None = None
    seq_id: Annotated[int, pydantic.Field(ge=1)] | None = None
    session_id: str | None = None
    model_seq_id: _Count | None = None
    base_model: str | None = None
    user_metadata: _Metadata = None
    path: str
    optimizer: bool
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: None = None

    @pydantic.model_validator(mode="after")
    def _check(self) -> LoadWeights:
        is_existing = self.model_id is not None and self.seq_id is not None
        if is_existing == (self.session_id is not None and self.model_seq_id is not None):
            raise ValueError("give model_id and seq_id, or session_id and model_seq_id")
        return self


class CreateSamplingSession(_Body):
    session_id: str
    sampling_session_seq_id: _Count
    base_model: str | None = None
    model_path: str | None = None


class SamplingParams(_Body):
    max_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
    seed: Annotated[int, pydantic.Field(ge=0)] | None = None
    stop: str | list[int] | list[str] | None = None
    temperature: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 1.0
    top_k: int = -1
    top_p: Annotated[float, pydantic.Field(gt=0, le=1)] = 1.0

    @pydantic.field_validator("top_k")
    @classmethod
    def _check_top_k(cls, value: int) -> int:
        if value != -1 and value < 1:
            raise ValueError("give a number of tokens, or -1 for no limit")
        return value


class Sample(_Body):
    num_samples: Annotated[int, pydantic.Field(ge=1, le=MOST_SAMPLES)] = 1
    prompt: ModelInput
    sampling_params: SamplingParams
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: _Count | None = None
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: Annotated[int, pydantic.Field(ge=1)] | None = None
    # These are refused, unless they have the value that the client sends by default.
    topk_prompt_logprobs: Any = 0
    topk_sample_logprobs: Any = 0
    target_prompt_logprobs: Any = None
    prompt_alt_tokens_k: Any = 0
    record_stability_info: Any = None

    @pydantic.field_validator(
        "topk_prompt_logprobs",
        "topk_sample_logprobs",
        "target_prompt_logprobs",
        "prompt_alt_tokens_k",
        "record_stability_info",
    )
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        if value:
            raise ValueError(
                f"{value!r} is given, but this server computes the log-probabilities of the sampled tokens and, with "
                "prompt_logprobs, of the prompt's own tokens, and of no others; leave it out"
            )
        return value


class WeightsInfo(_Body):
    tinker_path: str


BodyType = TypeVar("BodyType", bound=_Body)


def parse(model: type[BodyType], body: bytes | Mapping[str, Any]) -> BodyType:
    """Return the validated body. Raises Refusal, which names the first field that is not valid."""
    try:
        return model.model_validate_json(body or b"{}") if isinstance(body, bytes) else model.model_validate(body)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise Refusal(f"{place}: {first['msg'].removeprefix('Value error, ')}.") from None


def read_forward_backward(body: bytes) -> dict[str, Any]:
    """Return the content of `tinker_public.ForwardBackwardRequest`, in the form of JSON. Raises Refusal."""
    try:
        return _read_request(body)
    except (ValueError, TypeError, AttributeError) as error:  # a field has another type than the message has
        raise Refusal(f"the body is not a valid ForwardBackwardRequest: {error}.") from None


def _read_request(body: bytes) -> dict[str, Any]:
    content: dict[str, Any] = {"data": [], "loss_fn_config": {}}
    request: dict[str, Any] = {"forward_backward_input": content, "model_id": "", "seq_id": 0}
    old: dict[str, Any] = {}
    for number, value in read_fields(body):
        match number:
            case 1:
                request["model_id"] = _text(value)
            case 2:
                request["seq_id"] = value
            case 3:
                content["data"].append(_read_datum(_bytes(value)))
            case 4:
                content["loss_fn"] = _text(value)
            case 5:
                key, number_of = _read_entry(value)
                old[key] = 0.0 if number_of is None else number_of
            case 6:
                request["is_forward_only"] = bool(value)
            case 7:
                key, one = _read_entry(value)
                for kind, given in read_fields(_bytes(one or b"")):
                    content["loss_fn_config"][key] = _text(given) if kind == 2 else given
    content["loss_fn_config"] = old | content["loss_fn_config"]
    return request


def _read_datum(message: bytes) -> dict[str, Any]:
    chunks: list[dict[str, Any]] = []
    inputs: dict[str, Any] = {}
    for number, value in read_fields(message):
        if number == 1:
            chunks.append(_read_chunk(_bytes(value)))
        elif number == 2:
            key, tensor = _read_entry(value)
            inputs[key] = _read_tensor(_bytes(tensor or b""))
    return {"model_input": {"chunks": chunks}, "loss_fn_inputs": inputs}


def _read_chunk(message: bytes) -> dict[str, Any]:
    kinds = {1: "encoded_text", 2: "image", 3: "dmel"}
    for number, value in read_fields(message):
        tokens = [token for field, token in read_fields(_bytes(value)) if field == 1] if number == 1 else []
        ids = np.frombuffer(_bytes(tokens[0]), "<i4").tolist() if tokens else []
        return {"type": kinds.get(number, str(number)), "tokens": ids}
    return {"type": "encoded_text", "tokens": []}


def _read_tensor(message: bytes) -> dict[str, Any]:
    """Return a dense tensor. The kinds of numbers are those of `tinker_public.DType`."""
    layouts = {1: ("<f4", "float32"), 2: ("<i8", "int64"), 3: ("<i4", "int64")}
    data, kind, shape = b"", 0, list[int]()
    for number, value in read_fields(message):
        match number:
            case 1:
                data = _bytes(value)
            case 2:
                raise ValueError("a tensor is sparse; send a dense one")
            case 3:
                kind = int(value)
            case 4:
                shape += read_integers(value)
    if kind not in layouts:
        raise ValueError(f"a tensor has the unknown data type {kind}")
    layout, dtype = layouts[kind]
    return {"data": np.frombuffer(data, layout).tolist(), "dtype": dtype, "shape": shape or None}


def _read_entry(value: Value) -> tuple[str, Value | None]:
    """Return the key and the value of an entry of a map."""
    fields = dict(read_fields(_bytes(value)))
    return _text(fields.get(1, b"")), fields.get(2)


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"a field is the number {value}")
    return value


def _text(value: Value) -> str:
    return _bytes(value).decode()
