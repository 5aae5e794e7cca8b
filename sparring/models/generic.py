"""Sample with the forward pass of transformers, for architectures that the lean forward pass does not support."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import DynamicCache

from sparring.models.output_layer import recomputed_logprobs
from sparring.models.policy import Policy
from sparring.models.split_model import SplitModel


class GenericModel:
    """A private copy of the policy's module without tensors of its own. It shares the base tensors, and each call
    passes the trained tensors."""

    def __init__(self, policy: Policy) -> None:
        shared = {id(one): one for one in (*policy.module.parameters(), *policy.module.buffers())}
        module = copy.deepcopy(policy.module, shared).eval()
        base = module if policy.lora_config is None else module.get_base_model()
        self._caller = _Caller(module)
        self._split = SplitModel(base, is_bf16=policy.dtype == torch.bfloat16)
        self._config = policy.base.config
        self._vocab_size: int = policy.base.get_input_embeddings().weight.shape[0]
        self._device = policy.device

    def new_cache(self) -> Any:
        """Return an empty cache for one sequence, with the types of layers that the architecture has."""
        return DynamicCache(config=self._config)

    def prefill(self, trained: Mapping[str, Tensor], token_ids: Sequence[int], cache: Any) -> None:
        """Add `token_ids` to the cache, without computing logits."""
        self._call(trained, lambda: self._split.hidden(self._tensor(token_ids), cache))

    def logits(self, trained: Mapping[str, Tensor], token_ids: Sequence[int], cache: Any = None) -> Tensor:
        """Return the logits [T, V] after each of `token_ids`, which follow the tokens in `cache` and are added to it."""
        return self._call(trained, lambda: self._split.logits(self._split.hidden(self._tensor(token_ids), cache)))

    def logprobs(self, trained: Mapping[str, Tensor], token_ids: Sequence[int], temperature: float) -> Tensor:
        """Return the log-probability of each id except the first. Logits are computed for a limited number of ids at a
        time."""
        temperatures = torch.full((len(token_ids) - 1,), temperature, device=self._device)
        targets = self._tensor(token_ids[1:])

        def score() -> Tensor:
            hidden = self._split.hidden(self._tensor(token_ids[:-1]))
            return recomputed_logprobs(hidden, self._split.logits, targets, temperatures, vocab_size=self._vocab_size)[
                0
            ]

        return self._call(trained, score)

    def _tensor(self, token_ids: Sequence[int]) -> Tensor:
        return torch.tensor(list(token_ids), device=self._device)

    def _call(self, trained: Mapping[str, Tensor], compute: Callable[[], Any]) -> Any:
        """Call `compute` while the module has these trained tensors, and return its result."""
        return functional_call(self._caller, {f"module.{name}": one for name, one in trained.items()}, (compute,))


class _Caller(nn.Module):
    """Calls a function that uses `module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, compute: Callable[[], Any]) -> Any:
        return compute()
