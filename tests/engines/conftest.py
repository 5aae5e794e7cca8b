"""The gate at which a test holds the engine's decoding steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sparring.engines.cached_forward import LeanForward
from tests.engines.playing import Gate


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, original = Gate(), LeanForward.decode

    def decode(forward: LeanForward, weights: Any, rows: Any, token_ids: Any) -> torch.Tensor:
        gate.batches.append(len(rows))
        assert gate.permits.acquire(timeout=30)
        return original(forward, weights, rows, token_ids)

    monkeypatch.setattr(LeanForward, "decode", decode)
    yield gate
    gate.open()
