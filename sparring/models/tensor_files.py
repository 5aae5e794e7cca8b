"""Write and read weights as safetensors files, in which they are transferred between processes. This module does not
import torch."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

from sparring.errors import DataError
from sparring.types import Weights


@final
class TensorFile(Mapping[str, Any]):
    """The tensors of a safetensors file, keyed by name. Each tensor is read only on access, so the file may be larger
    than the memory."""

    def __init__(self, path: Path, *, is_temporary: bool = False) -> None:
        """Read the names of the tensors. A temporary file is deleted when this object is deleted.

        Raises DataError if the file is not a safetensors file.
        """
        self.path = path
        if is_temporary:
            weakref.finalize(self, path.unlink, missing_ok=True)
        try:
            with path.open("rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            self._ends = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError) as error:
            raise DataError(f"{path} cannot be read as safetensors: {error}. Use another file.") from error

    @property
    def num_bytes(self) -> int:
        return sum(end - begin for begin, end in self._ends.values())

    def __getitem__(self, name: str) -> Any:
        from safetensors import SafetensorError, safe_open

        if name not in self._ends:
            raise KeyError(name)
        try:
            with safe_open(str(self.path), framework="pt") as file:
                return file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise DataError(f"{self.path} cannot be read as safetensors: {error}. Use another file.") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._ends)

    def __len__(self) -> int:
        return len(self._ends)


def write_weights(weights: Weights, path: Path) -> None:
    """Write weights as one safetensors file. Raises OSError."""
    if isinstance(weights.tensors, TensorFile):
        shutil.copyfile(weights.tensors.path, path)
        return
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.tensors.items()}, path)
    except SafetensorError as error:  # such as "I/O error: No space left on device"
        raise OSError(str(error)) from error


def num_bytes(weights: Weights) -> int:
    """Return the size of the weights in bytes, without reading them."""
    if isinstance(weights.tensors, TensorFile):
        return weights.tensors.num_bytes
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.tensors.values())
