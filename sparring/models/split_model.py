"""Split a transformers causal LM into two parts, so that logits are computed only for the tokens that need them, and in
chunks."""

from __future__ import annotations

import copy
import inspect
from typing import Any, final

import torch
from torch import Tensor, nn

from sparring.models.products import ExactProduct, is_exact


@final
class SplitModel:
    """The layers of a model, and its output layer with everything that the architecture computes after it, such as a
    soft cap.

    Both parts share the modules of the model. A model that cannot be split computes its logits in the first part.
    """

    def __init__(self, model: Any, *, is_bf16: bool) -> None:
        self._device_type: str = model.device.type
        self._is_bf16 = is_bf16
        self._model = model
        self._layers: Any = None
        if not _can_split(model):
            return
        self._layers = model.get_submodule(model.base_model_prefix)
        # A copy of the outermost module whose layers return their input, so that its forward is the output layer only.
        self._head: Any = copy.copy(model)
        modules = {**vars(model)["_modules"], model.base_model_prefix: _PassedOn()}
        vars(self._head)["_modules"] = {
            name: _ExactLinear(module) if type(module) is nn.Linear else module for name, module in modules.items()
        }

    def hidden(self, ids_T: Tensor, cache: Any = None) -> Tensor:
        """Return the hidden states [T, H] that the output layer reads. `cache` contains the preceding tokens."""
        arguments = {"input_ids": ids_T[None], "past_key_values": cache, "use_cache": cache is not None}
        with self._autocast():
            if self._layers is None:
                return self._model(**arguments).logits[0]
            return self._layers(**arguments).last_hidden_state[0]

    def logits(self, hidden_M_H: Tensor) -> Tensor:
        """Return the logits [M, V] of hidden states."""
        if self._layers is None:
            return hidden_M_H
        with self._autocast():
            return self._head(inputs_embeds=hidden_M_H[None], use_cache=False).logits[0]

    def _autocast(self) -> Any:
        return torch.autocast(self._device_type, dtype=torch.bfloat16, enabled=self._is_bf16)


def _can_split(model: Any) -> bool:
    is_known = getattr(model, "base_model_prefix", "") in vars(model)["_modules"]
    return is_known and "inputs_embeds" in inspect.signature(model.forward).parameters


class _PassedOn(nn.Module):
    """Replaces the layers of a model and returns its input as their result."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Outputs:
        return _Outputs(inputs_embeds)


class _Outputs:
    """A result of layers that contains only hidden states."""

    def __init__(self, last_hidden_state: Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: int | slice) -> Any:
        return (self.last_hidden_state,)[index]


class _ExactLinear(nn.Module):
    """A linear layer that returns an fp32 result if its bf16 operands are on one of `EXACT_DEVICES`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._linear = linear

    def forward(self, inputs: Tensor) -> Tensor:
        linear, narrow = self._linear, inputs
        if torch.is_autocast_enabled(inputs.device.type):
            narrow = inputs.to(torch.get_autocast_dtype(inputs.device.type))
        if not is_exact(narrow):
            return linear(inputs)
        with torch.autocast(inputs.device.type, enabled=False):
            logits = ExactProduct.apply(narrow.flatten(0, -2), linear.weight.to(narrow.dtype)).unflatten(
                0, narrow.shape[:-1]
            )
            return logits if linear.bias is None else logits + linear.bias
