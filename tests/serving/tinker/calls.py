"""Requests as the clients send them, without the package tinker."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from sparring.serving.tinker.wire import write_bytes, write_double, write_integer, write_integers, write_text


async def post(http: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    answer = await http.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def fetch(http: httpx.AsyncClient, request_id: str) -> dict[str, Any]:
    """Return a result or an error, as JSON."""
    while True:
        answer = await http.post("/api/v1/retrieve_future", json={"request_id": request_id})
        if answer.status_code != 408:
            assert answer.status_code == 200, answer.text
            return answer.json()


async def call(http: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Start a computation, and return its result."""
    return await fetch(http, (await post(http, path, body))["request_id"])


async def open_session(http: httpx.AsyncClient) -> str:
    return (await post(http, "create_session", {"tags": [], "user_metadata": {}, "sdk_version": "0.38.0"}))[
        "session_id"
    ]


async def create_run(http: httpx.AsyncClient, *, session: str | None = None, number: int = 0, rank: int = 4) -> str:
    """Return the id of a new training run."""
    lora = {"rank": rank, "seed": 1}
    session = session or await open_session(http)
    body = {"session_id": session, "model_seq_id": number, "base_model": "tiny", "lora_config": lora}
    return (await call(http, "create_model", body))["model_id"]


def tensor(values: Sequence[float], dtype: str = "float32", shape: Sequence[int] | None = None) -> dict[str, Any]:
    return {"data": list(values), "dtype": dtype, "shape": list(shape or [len(values)])}


def datum(ids: Sequence[int], **inputs: Any) -> dict[str, Any]:
    """Return a datum that predicts the next of some ids."""
    targets = inputs.pop("target_tokens", tensor(ids[1:], "int64"))
    inputs = {name: value if isinstance(value, dict) else tensor(value) for name, value in inputs.items()}
    chunk = {"type": "encoded_text", "tokens": list(ids[:-1])}
    return {"model_input": {"chunks": [chunk]}, "loss_fn_inputs": {"target_tokens": targets, **inputs}}


def forward_body(
    run: str, seq: int, data: Sequence[Any], loss: str = "cross_entropy", **config: float
) -> dict[str, Any]:
    """Return the body with which tinker 0.16 requests forward_backward."""
    given = {"data": list(data), "loss_fn": loss, **({"loss_fn_config": config} if config else {})}
    return {"forward_backward_input": given, "model_id": run, "seq_id": seq}


def step_body(run: str, seq: int, **adam: float) -> dict[str, Any]:
    return {"adam_params": {"learning_rate": 0.01, **adam}, "model_id": run, "seq_id": seq, "type": "optim_step"}


def write_forward(body: Mapping[str, Any], *, is_forward_only: bool = False) -> bytes:
    """Return the protocol buffer with which tinker 0.25 and later request forward_backward."""
    given = body["forward_backward_input"]
    parts = [write_text(1, body["model_id"]), write_integer(2, body["seq_id"])]
    parts += [write_bytes(3, _write_datum(one)) for one in given["data"]]
    parts.append(write_text(4, given["loss_fn"]))
    for name, value in given.get("loss_fn_config", {}).items():
        parts.append(write_bytes(5, write_text(1, name) + write_double(2, value)))
        parts.append(write_bytes(7, write_text(1, name) + write_bytes(2, write_double(1, value))))
    return b"".join([*parts, write_integer(6, int(is_forward_only))])


def _write_datum(body: Mapping[str, Any]) -> bytes:
    tokens = [token for chunk in body["model_input"]["chunks"] for token in chunk["tokens"]]
    chunk = write_bytes(1, write_bytes(1, struct.pack(f"<{len(tokens)}i", *tokens)))
    entries = []
    for name, one in body["loss_fn_inputs"].items():
        layout, kind = ("f", 1) if one["dtype"] == "float32" else ("q", 2)
        dense = struct.pack(f"<{len(one['data'])}{layout}", *one["data"])
        content = write_bytes(1, dense) + write_integer(3, kind) + write_integers(4, one["shape"])
        entries.append(write_bytes(2, write_text(1, name) + write_bytes(2, content)))
    return write_bytes(1, chunk) + b"".join(entries)
