"""The values that a run without weights gets from the engine's server: the initial weights, the device, and the hash of
the base model."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import final

import httpx

from sparring.errors import ServiceError
from sparring.models.tensor_files import TensorFile
from sparring.runtime.remote import CONNECT_SECONDS, decode, headers_of, unreachable
from sparring.types import Weights

HASH_SECONDS = 600.0
"""The maximum time in seconds for a server to hash its base model, which takes one or two seconds per gigabyte, or to
send its weights."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteModel:
    """A model that is stored on an engine's server."""

    device: str
    base_fingerprint: str
    weights: Weights
    """The trained weights before training, as a file that is deleted with this value."""


def fetch_model(base_url: str, *, api_key: str | None = None) -> RemoteModel:
    """Fetch the description and the initial weights of an engine's model. Raises ServiceError when the server does not
    send them, and OSError when they cannot be written."""
    root = base_url.rstrip("/").removesuffix("/v1")
    where = f"the engine at {root}"
    timeout = httpx.Timeout(HASH_SECONDS, connect=CONNECT_SECONDS)
    with tempfile.NamedTemporaryFile(prefix="sparring-weights-", suffix=".safetensors", delete=False) as file:
        path = Path(file.name)
        try:
            with httpx.Client(headers=headers_of(api_key), timeout=timeout) as client:
                facts = decode(client.get(f"{root}/v1/model"), where, otherwise=ServiceError)
                with client.stream("GET", f"{root}/v1/model/weights") as answer:
                    if answer.status_code != 200:
                        answer.read()
                        decode(answer, where, otherwise=ServiceError)
                    for piece in answer.iter_bytes():
                        file.write(piece)
        except httpx.HTTPError as error:
            path.unlink()
            raise ServiceError(f"{unreachable(where, error)}. Start it, and check the address.") from error
        except BaseException:
            path.unlink()
            raise
    weights = Weights(tensors=TensorFile(path, is_temporary=True), fingerprint=facts["fingerprint"])
    return RemoteModel(device=facts["device"], base_fingerprint=facts["base_fingerprint"], weights=weights)
