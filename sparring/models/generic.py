"""Sampling with the forward of transformers, for architectures without the lean forward."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers import DynamicCache

from sparring.models.policy import Policy


class GenericModel:
    """A private copy of the policy's module without tensors of its own. Each call sets the trained ones; the base is shared."""

    def __init__(self, policy: Policy) -> None:
        shared = {id(one): one for one in (*policy.module.parameters(), *policy.module.buffers())}
        self._module = copy.deepcopy(policy.module, shared).eval()
        self._config = policy.base.config
        self._device = policy.device
        self._is_bf16 = policy.dtype == torch.bfloat16

    def new_cache(self) -> Any:
        """Return an empty cache of one sequence for the layers of the architecture."""
        return DynamicCache(config=self._config)

    def logits(self, trained: Mapping[str, Tensor], token_ids: Sequence[int], cache: Any = None) -> Tensor:
        """Return the logits [T, V] after each of `token_ids`, which follow the tokens in `cache` and are added to it."""
        ids_1_T = torch.tensor([list(token_ids)], device=self._device)
        arguments = {"input_ids": ids_1_T, "past_key_values": cache, "use_cache": cache is not None}
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._is_bf16):
            return functional_call(self._module, dict(trained), kwargs=arguments).logits[0]
