"""Start vLLM servers, on this machine or on a cluster, restart those that end, and stop all of them."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from sparring.engines.lark import VLLM_SETTING
from sparring.engines.servers.environment import BACKEND, PLUGIN, Device, find_vllm
from sparring.errors import ServiceError
from sparring.models.adapter_files import VLLM_RANKS
from sparring.runtime.launcher import Launcher, ProcessLauncher, Server
from sparring.runtime.server_process import ServerSpec, wait_until_ready

START_SECONDS = 900.0
"""The longest time that all servers may take to load the model and answer."""
DEFAULT_MEMORY_SHARE = 0.9
"""The share of a GPU's memory that servers divide if no learner has the same GPU. A single server takes vLLM's own
default, which is 0.92 in vLLM 0.32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of local servers, from which their command lines are built."""

    model: str
    """The folder of the base model, or its name on a hub."""
    environment: Path
    """The environment that contains vLLM."""
    num_servers: int = 1
    max_model_len: int
    """The largest number of tokens of a turn, with its prompt."""
    lora_rank: int | None
    """The rank of the adapters, or None if each version of the weights replaces all weights of the model."""
    num_adapters: int = 1
    """The number of adapters that turns use at once."""
    max_running: int
    """The number of turns that a server decodes at once."""
    num_learner_gpus: int = 1
    """The number of GPUs of this machine that the learner has, from the first one on."""
    memory_share: float | None = None
    """The share of a GPU's memory that all servers together may use if a learner has the same GPU. None: all that
    vLLM takes by default."""
    extra_arguments: tuple[str, ...] = ()
    """More arguments for `vllm serve`. They come last, so they replace arguments of the same name."""


def build_arguments(settings: ServerSettings, device: Device, num_gpus: int = 1) -> list[str]:
    """Return the arguments of `vllm serve`, without address and port, for servers that share `num_gpus` GPUs. Raises
    ServiceError for a rank that vLLM does not support."""
    arguments = [
        "serve",
        settings.model,
        "--enable-scale-out",
        "--enable-prompt-tokens-details",
        *_build_weight_arguments(settings),
    ]
    options: dict[str, object] = {
        "max-model-len": settings.max_model_len,
        "max-num-seqs": settings.max_running,
        "logprobs-mode": "processed_logprobs",
        "generation-config": "vllm",
        "structured-outputs-config": VLLM_SETTING,
    }
    if device == "cpu":
        # A prompt that is divided into chunks ends the CPU server if turns have seeds (docs/vllm.md), so every batch
        # must hold whole prompts.
        options |= {"dtype": "float32", "max-num-batched-tokens": settings.max_running * settings.max_model_len}
        arguments.append("--enforce-eager")
    elif (servers_per_gpu := math.ceil(settings.num_servers / num_gpus)) > 1 or settings.memory_share is not None:
        share = DEFAULT_MEMORY_SHARE if settings.memory_share is None else settings.memory_share
        options["gpu-memory-utilization"] = math.floor(100 * share / servers_per_gpu + 1e-9) / 100
    for name, value in options.items():
        arguments += [f"--{name}", str(value)]
    return [*arguments, *settings.extra_arguments]


def _build_weight_arguments(settings: ServerSettings) -> list[str]:
    """Return the arguments that let a running server receive weights."""
    if settings.lora_rank is None:
        return ["--weight-transfer-config", json.dumps({"backend": BACKEND})]
    rank = next((one for one in VLLM_RANKS if one >= settings.lora_rank), None)
    if rank is None:
        raise ServiceError(
            f"model.lora_rank = {settings.lora_rank}, but vLLM supports ranks up to {VLLM_RANKS[-1]}; lower it."
        )
    number = str(settings.num_adapters)
    return ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", number, "--max-cpu-loras", number]


@final
class StartedServers:
    """vLLM servers that run as long as this object, and never longer than this process.

        servers = StartedServers(settings, Path("runs/desk-001/engine"), announce=print)
        engine = ServersEngine(servers.urls, api_key=servers.api_key, ...)
        ...
        servers.close()

    A server that ends is started again at the same address, several times in a row. The output of each
    server is appended to a file in `folder`.
    """

    def __init__(
        self,
        settings: ServerSettings,
        folder: Path,
        launcher: Launcher | None = None,
        *,
        announce: Callable[[str], object],
    ) -> None:
        """Start the servers and wait until all of them answer. Raises ServiceError if one does not."""
        command, device = find_vllm(settings.environment)
        folder.mkdir(parents=True, exist_ok=True)
        self.api_key = secrets.token_hex(16)
        self._launcher = launcher = launcher or ProcessLauncher()
        self._servers: Sequence[Server] = ()
        visible = launcher.list_gpus() if device == "cuda" else []
        # If the learner needs all GPUs, the servers share them with it.
        visible = visible[settings.num_learner_gpus :] or visible
        num_gpus = max(1, len(visible)) if launcher.is_local else settings.num_servers
        specs = [
            ServerSpec(
                name="vLLM server",
                command=(str(command), *build_arguments(settings, device, num_gpus)),
                variables={
                    "VLLM_API_KEY": self.api_key,
                    **_weight_variables(settings),
                    **_device_variables(device, visible, number),
                },
            )
            for number in range(settings.num_servers)
        ]
        try:
            logs = [folder / f"vllm-{number}.log" for number in range(settings.num_servers)]
            self._servers = launcher.start(specs, logs, num_gpus=int(device == "cuda"))
            self.urls = [one.url for one in self._servers]
            wait_until_ready(self._servers, f"with {settings.model}", announce, seconds=START_SECONDS)
        except BaseException:
            self.close()
            raise
        for one in self._servers:
            one.restart_when_it_ends()

    @property
    def process_ids(self) -> list[int]:
        """The ids of the running processes that keep the servers."""
        return [one.process_id for one in self._servers]

    @property
    def num_restarts(self) -> int:
        """How many times servers were started again, all together."""
        return sum(one.num_restarts for one in self._servers)

    def close(self) -> None:
        """Stop all servers with their child processes."""
        for one in self._servers:
            one.stop()
        self._launcher.close()


def _weight_variables(settings: ServerSettings) -> Mapping[str, str]:
    """Return the environment variables that let a running server receive weights."""
    if settings.lora_rank is not None:
        return {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    paths = [str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": os.pathsep.join(paths)}


def _device_variables(device: Device, visible: Sequence[str], number: int) -> Mapping[str, str]:
    """Return the environment variables of server `number` that concern its device. The servers get the visible GPUs in
    turn."""
    variables = {"VLLM_NO_USAGE_STATS": "1"}
    if device == "cpu":
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        defaults = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": threads}
        variables |= {name: os.environ.get(name, value) for name, value in defaults.items()}
    elif visible:
        variables["CUDA_VISIBLE_DEVICES"] = visible[number % len(visible)]
    return variables
