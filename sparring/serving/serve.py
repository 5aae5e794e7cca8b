"""Serve a base or tuned model behind the OpenAI endpoint, with the engine of this process or with vLLM servers."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from sparring.assembly import load_policy
from sparring.assembly.engines import TO_STDERR, ServerOptions, connect_servers
from sparring.chat import create_chat
from sparring.config import Config, EngineSection, ModelSection
from sparring.config.sections import SamplingSection
from sparring.engines.torch_engine import TorchEngine
from sparring.errors import UsageError
from sparring.evaluation.policies import checkpoint_of, find_checkpoint
from sparring.gateway import ModelServer, Version, Versions
from sparring.models.export_files import is_export, verify
from sparring.models.policy import Policy
from sparring.models.precision import resolve_device, resolve_precision
from sparring.models.pretrained import load_pretrained
from sparring.protocols import Chat, Engine
from sparring.run_folders import RunFolder
from sparring.runtime import interrupts
from sparring.runtime.machine import default_threads
from sparring.serving.access import Access
from sparring.serving.run_versions import Probe, RunVersions
from sparring.training import checkpoints
from sparring.training.learner import TorchLearner
from sparring.types import Sampling

NUM_VERSIONS = 4
"""The number of adapters that a vLLM server which is started here keeps in memory. It reads others from their folder
when a turn needs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMServers:
    """The vLLM servers that sample for a served run."""

    urls: tuple[str, ...] = ()
    """The addresses of running servers. Without any, servers are started on this machine, and stop at the end."""
    num_servers: int = 1
    """The number of servers that are started."""
    key_env: str | None = None
    """The environment variable with the key of running servers."""
    adapters_dir: Path | None = None
    """The folder for adapters, which the servers read; None is a temporary folder of this machine."""


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
    access: Access,
    canary: Mapping[str, float] | None = None,
    vllm: VLLMServers | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    on_ready: Callable[[str, str], None] | None = None,
) -> None:
    """Answer requests until interrupted. `on_ready(base_url, model_name)` is called when the server accepts requests.

    An answer has at most `max_tokens` tokens. `temperature` applies to requests that give none. By default, both are
    those with which the run is evaluated, or the defaults of a recipe for a model that is not from a run.

    `canary` maps other versions of the run, `RUN@STEP`, to the share of the conversations that they answer. If `access`
    has a key for it, an operator can change the versions while the server runs. With `vllm`, vLLM servers sample.

    Raises UsageError if the model has no such versions or cannot be served with vLLM, and ServiceError if it cannot be
    loaded, the address is in use, or the vLLM servers do not compute with the trained weights.
    """
    torch.set_num_threads(default_threads())
    served = _load(model) if vllm is None else _load_on_vllm(model, vllm)
    sampling = _sampling(model, max_tokens, temperature)
    open_server = partial(
        ModelServer,
        chat=served.chat,
        sampling=sampling,
        gate=access.open_gate("serve"),
        host=access.host,
        port=access.port,
        allowed_hosts=access.allowed_hosts,
        tls=access.tls,
    )
    interrupts.run(_serve(served, canary or {}, open_server, on_ready))


def _sampling(model: str, max_tokens: int | None, temperature: float | None) -> Sampling:
    """Return the sampling settings of requests that give none. Those of the run are the default."""
    named = find_checkpoint(model)
    if named is None:
        defaults = SamplingSection()
        own = Sampling(temperature=defaults.temperature, max_tokens=defaults.sampling_max_tokens)
    else:
        config = named[0].trained_config()
        own = Sampling(temperature=config.serving_temperature, max_tokens=config.sampling.sampling_max_tokens)
    return Sampling(
        temperature=own.temperature if temperature is None else temperature, max_tokens=max_tokens or own.max_tokens
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """A loaded model, before the server starts."""

    name: str
    engine: Engine
    chat: Chat
    run: RunVersions | None = None
    """The versions of the run, or None if the model does not come from a run."""
    step: str | None = None
    """The run's step that answers by default; None is the newest one."""


def _load(model: str) -> _Served:
    policy, name, format_of = load_served(model)
    engine, chat = TorchEngine(policy, policy.snapshot()), create_chat(policy.tokenizer, format_of)
    named = find_checkpoint(model)
    if named is None:
        return _Served(name=name, engine=engine, chat=chat)
    folder, step = named
    return _Served(name=name, engine=engine, chat=chat, run=RunVersions(folder, policy, engine), step=step)


def _load_on_vllm(model: str, servers: VLLMServers) -> _Served:
    """Load the run's model into this process, for the probe, and connect to the servers. Raises UsageError and
    ServiceError."""
    named = find_checkpoint(model)
    if named is None:
        raise UsageError(
            f"{model} is not a run, and vLLM serves the adapters of a run here; give a run, or serve it in this process: "
            "--engine torch."
        )
    folder, step = named
    config = _on_vllm(folder, servers)
    policy = load_policy(config, folder.code)
    chat = create_chat(policy.tokenizer, config.model.name)
    place = Path(tempfile.mkdtemp(prefix=f"sparring-serve-{folder.path.name}-")) / "engine"
    engine = connect_servers(config, policy, None, ServerOptions(folder=place, num_versions=NUM_VERSIONS))
    probe = Probe(TorchLearner(policy), chat, TO_STDERR)
    run = RunVersions(folder, policy, engine, probe)
    return _Served(name=run.name, engine=engine, chat=chat, run=run, step=step)


def _on_vllm(folder: RunFolder, servers: VLLMServers) -> Config:
    """Return the run's configuration with these servers, and with its model in fp32 on the CPU, so that the servers get
    all of the GPU's memory. Raises UsageError if it trained all weights."""
    config = folder.trained_config()
    if config.model.trained_weights != "lora":
        raise UsageError(
            f"{folder.path} trained all weights, but vLLM serves adapters here. Serve it in this process (--engine torch), or "
            f"write a whole model with `sparring export {folder.path} FOLDER --merge` and serve it with `vllm serve FOLDER`."
        )
    model = config.model.model_copy(update={"device": "cpu", "precision": "fp32", "base_precision": "fp32"})
    engine = EngineSection(
        type="vllm",
        base_urls=servers.urls,
        num_servers=servers.num_servers,
        api_key_env=servers.key_env,
        adapters_dir=None if servers.adapters_dir is None else str(servers.adapters_dir),
    )
    return config.model_copy(update={"model": model, "engine": engine})


async def _serve(
    served: _Served,
    canary: Mapping[str, float],
    open_server: Callable[..., ModelServer],
    on_ready: Callable[[str, str], None] | None,
) -> None:
    try:
        versions = await _load_versions(served, canary)
        async with open_server(versions=versions) as server:
            if on_ready is not None:
                on_ready(server.base_url, versions.name)
            await asyncio.Event().wait()
    finally:
        await served.engine.close()


async def _load_versions(served: _Served, canary: Mapping[str, float]) -> Versions:
    """Load the default version and the canaries. Raises UsageError and the errors of `RunVersions.load`."""
    if served.run is None:
        if canary:
            raise UsageError(f"{served.name} is not a run, so it has no versions; leave out --canary.")
        return Versions([Version(served.name, served.engine)])
    default = await served.run.load_step(served.step)
    others = {await served.run.load(text): share for text, share in canary.items()}
    return Versions(
        [default, *others],
        name=served.name,
        canary={one.name: share for one, share in others.items()},
        load=served.run.load,
    )
