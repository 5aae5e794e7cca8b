"""The base model of a server: its adapters, and the engine that samples with any of them."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, final

from sparring.engines.torch_engine import TorchEngine
from sparring.engines.turns import Version
from sparring.errors import UsageError
from sparring.models.policy import LoraSettings, Policy
from sparring.models.precision import prepare_cuda, resolve_base_precision, resolve_device, resolve_precision
from sparring.models.pretrained import load_pretrained
from sparring.serving.tinker.refusal import Refusal
from sparring.serving.tinker.requests import LoraConfig
from sparring.types import Weights

ALPHA: Final = 32
"""The alpha of every adapter. Its scale is alpha / rank."""
ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP: Final = ("gate_proj", "up_proj", "down_proj")
MOST_VERSIONS: Final = 4
"""The number of adapters that stay ready for sampling. Others are prepared again when they are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The weights of an adapter, and its shape."""

    lora: LoraConfig
    weights: Weights


@final
class BaseModel:
    """A frozen model. Training runs have adapters of their own over it."""

    def __init__(
        self, model: str, *, name: str | None = None, max_sequence_length: int, precision: str = "auto"
    ) -> None:
        """Load a model by its folder or name. Clients call it `name`, or else as it is given here. `precision` is that of the
        products and of the frozen weights: fp32, bf16, or auto for what suits the device.

        Raises ServiceError if the model cannot be loaded, and UsageError if it does not have the Llama architecture.
        """
        device = resolve_device("auto")
        prepare_cuda(device)
        base_precision = resolve_base_precision(precision, device)
        loaded, self.tokenizer = load_pretrained(model, precision=base_precision)
        self._stop_ids = _find_stop_ids(loaded, self.tokenizer)
        self._policy = Policy(
            loaded,
            self.tokenizer,
            precision=resolve_precision(precision, device),
            device=device,
            max_positions=max_sequence_length,
            lora=LoraSettings(rank=1, targets=ATTENTION, is_merged=False),
            base_precision=base_precision,
        )
        if not self._policy.is_lean:
            raise UsageError(
                f"{model} is a {type(loaded).__name__}, but --tinker trains only models with the Llama architecture (Llama, "
                "Qwen2.5, Qwen3, Mistral, SmolLM2). Train it with a recipe instead: sparring train."
            )
        self.name, self._model = name or model, model
        self._initial = self._policy.snapshot()
        self.engine = TorchEngine(self._policy, self._initial)
        self._shapes: dict[int, Policy] = {}
        self._versions: OrderedDict[str, Version] = OrderedDict()
        self._lock, self._creating = threading.Lock(), threading.Lock()

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of a sequence."""
        return min(self._policy.max_positions, self.engine.max_context_tokens)

    @property
    def vocabulary_size(self) -> int:
        return self._policy.base.get_input_embeddings().weight.shape[0]

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end an answer, unless a client gives no stop at all."""
        return self._stop_ids

    @property
    def tokenizer_id(self) -> str | None:
        """The folder of the tokenizer, or None if clients find it by the model's name."""
        is_folder = Path(self._model).expanduser().is_dir()
        return str(Path(self._model).expanduser().resolve()) if is_folder and self.name == self._model else None

    @cached_property
    def fingerprint(self) -> str:
        """The hash of the frozen weights."""
        return self._policy.base_fingerprint(self._initial)

    def check_name(self, name: str | None) -> None:
        """Raise Refusal if clients do not mean this model."""
        given, own = (Path(os.path.expanduser(one)) for one in (name or "", self._model))
        if name != self.name and not (given.is_dir() and own.is_dir() and os.path.samefile(given, own)):
            raise Refusal(f"base_model: {name!r} is not served here; this server has {self.name!r}.")

    def create_policy(self, lora: LoraConfig, seed: int) -> Policy:
        """Return a policy with a new adapter over the frozen weights. Its B matrices are 0."""
        settings = LoraSettings(rank=lora.rank, alpha=ALPHA, targets=choose_targets(lora), is_merged=False)
        with self._creating:  # two threads that seed torch's generator would disturb each other
            return self._policy.add_adapter(settings, seed=seed)

    def prepare(self, adapter: Adapter | None) -> Version:
        """Return the weights in the form that the engine samples with. None is the base model. Blocks."""
        with self._lock:
            key = "" if adapter is None else f"{adapter.lora.rank} {adapter.weights.fingerprint}"
            version = self._versions.pop(key, None) or self._prepare(adapter)
            self._versions[key] = version
            while len(self._versions) > MOST_VERSIONS:
                self._versions.popitem(last=False)
            return version

    def _prepare(self, adapter: Adapter | None) -> Version:
        if adapter is None:
            weights, policy = self._initial, self._policy
        else:
            weights, rank = adapter.weights, adapter.lora.rank
            if rank not in self._shapes:  # its own adapter is not used
                self._shapes[rank] = self.create_policy(LoraConfig(rank=rank, train_mlp=False, train_unembed=False), 0)
            policy = self._shapes[rank]
        return Version(number=0, fingerprint=weights.fingerprint, weights=policy.materialize(weights))


def choose_targets(lora: LoraConfig) -> tuple[str, ...]:
    """Return the layers that get an adapter. Raises Refusal if there are none."""
    targets = (
        *(ATTENTION if lora.train_attn else ()),
        *(MLP if lora.train_mlp else ()),
        *(("lm_head",) if lora.train_unembed else ()),
    )
    if not targets:
        raise Refusal("lora_config: it trains nothing; set train_attn, train_mlp or train_unembed.")
    return targets


def _find_stop_ids(model: object, tokenizer: object) -> frozenset[int]:
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(one for one in [*ids, getattr(tokenizer, "eos_token_id", None)] if one is not None)
