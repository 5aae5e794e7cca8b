"""Serve a base or tuned model behind the OpenAI endpoint."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import torch

from sparring.assembly import load_policy
from sparring.chat import create_chat
from sparring.config import ModelSection
from sparring.engines.torch_engine import TorchEngine
from sparring.evaluation.policies import checkpoint_of, find_checkpoint
from sparring.gateway import ModelServer
from sparring.models.export_files import is_export, verify
from sparring.models.policy import Policy
from sparring.models.precision import resolve_device, resolve_precision
from sparring.models.pretrained import load_pretrained
from sparring.runtime import interrupts
from sparring.training import checkpoints
from sparring.types import Sampling


def load_served(model: str) -> tuple[Policy, str, str]:
    """Load the newest policy of a run, the policy of RUN@STEP or RUN@best, or a model by name or path.

    Return the policy, the name under which to serve it, and the model whose chat format it uses. Raises UsageError if
    the folder is a baseline, and ServiceError if an export is damaged.
    """
    named = find_checkpoint(model)
    if named is not None:
        folder, step = named
        config = folder.trained_config()
        policy = load_policy(config, folder.code)
        policy.restore(checkpoints.load_weights(checkpoint_of(folder, step), policy).tensors)
        return policy, folder.path.name, config.model.name
    folder = Path(model).expanduser()
    format_of = verify(folder)["base"]["name"] if is_export(folder) else model
    base, tokenizer = load_pretrained(model)
    device = resolve_device("auto")
    defaults = ModelSection()
    policy = Policy(
        base,
        tokenizer,
        precision=resolve_precision("auto", device),
        device=device,
        max_positions=defaults.max_sequence_length,
    )
    return policy, model, format_of


def serve(
    model: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: str | None = None,
    on_ready: Callable[[str, str], None] | None = None,
) -> None:
    """Answer requests until interrupted. `on_ready(base_url, model_name)` is called when the server accepts requests.

    Raises ServiceError if the model cannot be loaded or the address is in use.
    """
    torch.set_num_threads(os.cpu_count() or 1)
    policy, name, format_of = load_served(model)
    interrupts.run(_serve(policy, name, format_of, host, port, api_key, on_ready))


async def _serve(
    policy: Policy,
    name: str,
    format_of: str,
    host: str,
    port: int,
    api_key: str | None,
    on_ready: Callable[[str, str], None] | None,
) -> None:
    engine = TorchEngine(policy, policy.snapshot())
    server = ModelServer(
        engine=engine,
        chat=create_chat(policy.tokenizer, format_of),
        model_name=name,
        sampling=Sampling(max_tokens=512),
        api_key=api_key,
        host=host,
        port=port,
    )
    try:
        async with server:
            if on_ready is not None:
                on_ready(server.base_url, name)
            await asyncio.Event().wait()
    finally:
        await engine.close()
