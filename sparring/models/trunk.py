"""A cache for the outputs of the frozen layers of a model, if only its last layers are adapted.

The layers below the first adapted one (the trunk) give the same outputs for a token history in every version of the
weights. The engine computes them when it samples, and the learner reads them here instead of computing them again.

Shapes: N tokens, H hidden size.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor

from sparring.models.token_tree import Part

ROOT = -1


@final
class TrunkCache:
    """Outputs [H] of the trunk by token history, for at most `max_tokens` different histories. If new histories would
    exceed this number, the cache is emptied first. Several threads may use the cache.

    Sequences are given as a `TokenTree`: the tokens of each branch, and the parts before it.
    """

    def __init__(
        self, *, num_layers: int, hidden_size: int, max_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Create an empty cache. `num_layers` is the number of layers of the trunk."""
        self.num_layers = num_layers
        self._lock = threading.Lock()
        """Protects the rest."""
        self._max_tokens = max_tokens
        self._children: dict[tuple[int, int], int] = {}
        """The place of each token's output, by the place of the token before it and the token's id."""
        # On the CPU, pages take no memory before they are written.
        self._outputs_S_H = torch.empty(max_tokens, hidden_size, dtype=dtype, device=device)
        self._accessed = torch.cuda.Event() if device.type == "cuda" else None

    @torch.no_grad()
    def add(self, branches: Sequence[Sequence[int]], ancestors: Sequence[Sequence[Part]], outputs_N_H: Tensor) -> None:
        """Keep the outputs for the tokens of a tree, one branch after the other."""
        with self._lock:
            self._add(branches, ancestors, outputs_N_H)

    @torch.no_grad()
    def find(self, branches: Sequence[Sequence[int]], ancestors: Sequence[Sequence[Part]]) -> Tensor | None:
        """Return the outputs [N, H] for the tokens of a tree, or None if one of them is not known."""
        with self._lock:
            places, new, _ = self._walk(branches, ancestors, is_strict=True)
            if new:
                return None
            with self._ordered():
                return self._outputs_S_H.index_select(0, torch.tensor(places, device=self._outputs_S_H.device))

    def clear(self) -> None:
        """Forget all outputs."""
        with self._lock:
            self._children.clear()

    def _add(self, branches: Sequence[Sequence[int]], ancestors: Sequence[Sequence[Part]], outputs: Tensor) -> None:
        if sum(map(len, branches)) > self._max_tokens:
            return
        places, new, added = self._walk(branches, ancestors)
        if len(self._children) + len(added) > self._max_tokens:
            self._children.clear()
            places, new, added = self._walk(branches, ancestors)
        if not new:
            return
        self._children.update(added)
        device = self._outputs_S_H.device
        targets = torch.tensor([places[index] for index in new], device=device)
        with self._ordered():
            self._outputs_S_H.index_copy_(0, targets, outputs.index_select(0, torch.tensor(new, device=device)))

    @contextmanager
    def _ordered(self) -> Iterator[None]:
        """Make an access on this thread's CUDA stream wait for the last access on any stream."""
        if self._accessed is not None:
            torch.cuda.current_stream().wait_event(self._accessed)
        yield
        if self._accessed is not None:
            self._accessed.record()

    def _walk(
        self, branches: Sequence[Sequence[int]], ancestors: Sequence[Sequence[Part]], *, is_strict: bool = False
    ) -> tuple[list[int], list[int], dict[tuple[int, int], int]]:
        """Return the place of each token, the indices of the tokens that are new, and their entries. With `is_strict`,
        the walk ends at the first new token."""
        places: list[int] = []
        new: list[int] = []
        begins: list[int] = []
        added: dict[tuple[int, int], int] = {}
        for tokens, parts in zip(branches, ancestors, strict=True):
            begins.append(len(places))
            place = ROOT
            if parts:
                branch, size = parts[-1]
                place = places[begins[branch] + size - 1]
            for token in tokens:
                child = self._children.get((place, token))
                if child is None:
                    child = added.get((place, token))
                if child is None:
                    child = added[place, token] = len(self._children) + len(added)
                    new.append(len(places))
                    if is_strict:
                        return places, new, added
                place = child
                places.append(place)
        return places, new, added
