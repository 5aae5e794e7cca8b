"""A back end of vLLM's weight transfer that loads all weights of a model from a safetensors file.

This module runs in the servers' environment, which has vLLM but not Sparring. vLLM finds it through the entry point in
`sparring_vllm.dist-info` if this folder is on PYTHONPATH.
"""

from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "sparring_files"


@dataclass
class NoSettings(WeightTransferInitInfo):
    """The back end needs no settings before the first update."""


@dataclass
class WeightsFile(WeightTransferUpdateInfo):
    """The path of a file with all tensors of the checkpoint, by their names there."""

    path: str


class FileWeightTransfer(WeightTransferEngine[NoSettings, WeightsFile]):
    init_info_cls = NoSettings
    update_info_cls = WeightsFile

    def init_transfer_engine(self, init_info: NoSettings) -> None: ...

    def start_weight_update(self) -> None: ...

    def finish_weight_update(self) -> None: ...

    def shutdown(self) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        if torch.accelerator.is_available():
            super().update_weights(update_info)
        else:  # the method of the base class would raise an exception, because it waits for the accelerator
            self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: WeightsFile) -> None:
        tensors = load_file(update_info.path)
        initialize_layerwise_reload(self.model)
        try:
            self.model.load_weights(tensors.items())
        finally:
            finalize_layerwise_reload(self.model, self.model_config)
        for layer in self.model.modules():
            # On the CPU, an output layer that shares its matrix with the embedding has a packed copy, which vLLM 0.32 keeps.
            if isinstance(layer, ParallelLMHead) and isinstance(layer.quant_method, UnquantizedEmbeddingMethod):
                layer.quant_method.process_weights_after_loading(layer)


def register() -> None:
    """Register the back end, once in each process of the server."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, FileWeightTransfer)
