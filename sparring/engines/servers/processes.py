"""Start vLLM servers on this machine, restart those that end, and stop all of them."""

from __future__ import annotations

import json
import math
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import httpx

from sparring.engines.lark import VLLM_SETTING
from sparring.engines.servers.environment import BACKEND, PLUGIN, Device, find_vllm
from sparring.errors import ServiceError
from sparring.runtime import interrupts
from sparring.runtime.keeper import wrap_in_keeper
from sparring.runtime.logs import get_logger

logger = get_logger(__name__)

START_SECONDS = 900.0
"""The longest time that all servers may take to load the model and answer."""
ANNOUNCE_SECONDS = 15.0
"""The time between two lines that report how long the start has taken."""
MAX_RESTARTS = 5
"""How many times in a row a server is started again."""
STABLE_SECONDS = 600.0
"""A server that ran for this long starts the count of restarts anew."""
DEFAULT_MEMORY_SHARE = 0.9
"""The share of a GPU's memory that servers divide if no learner has the same GPU. A single server takes vLLM's own
default, which is 0.92 in vLLM 0.32."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.2
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values of `--max-lora-rank` that vLLM accepts."""


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
    has_learner: bool = True
    """Whether a learner runs on this machine, which gets the first one of several GPUs."""
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
    rank = next((one for one in _LORA_RANKS if one >= settings.lora_rank), None)
    if rank is None:
        raise ServiceError(
            f"model.lora_rank = {settings.lora_rank}, but vLLM supports ranks up to {_LORA_RANKS[-1]}; lower it."
        )
    number = str(settings.num_adapters)
    return ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", number, "--max-cpu-loras", number]


@final
class LocalServers:
    """vLLM servers that run as long as this object, and never longer than this process.

        servers = LocalServers(settings, Path("runs/desk-001/engine"), announce=print)
        engine = ServersEngine(servers.urls, api_key=servers.api_key, ...)
        ...
        servers.close()

    A server that ends is started again at the same address, at most `MAX_RESTARTS` times in a row. The output of each
    server is appended to a file in `folder`.
    """

    def __init__(self, settings: ServerSettings, folder: Path, *, announce: Callable[[str], object]) -> None:
        """Start the servers and wait until all of them answer. Raises ServiceError if one does not."""
        command, device = find_vllm(settings.environment)
        folder.mkdir(parents=True, exist_ok=True)
        self.api_key = secrets.token_hex(16)
        visible = _list_devices() if device == "cuda" else []
        visible = visible[1:] if settings.has_learner and len(visible) > 1 else visible
        arguments = [str(command), *build_arguments(settings, device, max(1, len(visible)))]
        self._servers = [
            _Server(
                arguments,
                folder / f"vllm-{number}.log",
                {
                    "VLLM_API_KEY": self.api_key,
                    **_weight_variables(settings),
                    **_device_variables(device, visible, number),
                },
            )
            for number in range(settings.num_servers)
        ]
        self.urls = [one.url for one in self._servers]
        try:
            self._wait_until_ready(settings, announce)
        except BaseException:
            self.close()
            raise
        for one in self._servers:
            one.watch()

    def _wait_until_ready(self, settings: ServerSettings, announce: Callable[[str], object]) -> None:
        what = f"{len(self._servers)} vLLM server{'s' if len(self._servers) > 1 else ''}"
        announce(f"starting {what} with {settings.model}; the output is in {self._servers[0].log.parent}")
        start_time = time.monotonic()
        next_line = start_time + ANNOUNCE_SECONDS
        waiting = list(self._servers)
        while waiting := [one for one in waiting if not one.is_ready()]:
            interrupts.raise_if_stopping()
            now = time.monotonic()
            for one in waiting:
                if (code := one.exit_code()) is not None:
                    raise ServiceError(
                        f"a vLLM server ended with exit code {code} while it started. The end of {one.log}:\n"
                        f"{one.last_lines()}\nFix the cause, and start the run again."
                    )
            if now - start_time > START_SECONDS:
                raise ServiceError(
                    f"a vLLM server did not answer within {START_SECONDS:.0f} seconds. Its output is in {waiting[0].log}."
                )
            if now > next_line:
                announce(f"waiting for {what}: {now - start_time:.0f} s")
                next_line = now + ANNOUNCE_SECONDS
            time.sleep(_POLL_SECONDS)
        announce(f"{what} started in {time.monotonic() - start_time:.0f} s")

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


@final
class _Server:
    """One server process, and the thread that starts it again."""

    def __init__(self, command: Sequence[str], log: Path, variables: dict[str, str]) -> None:
        port = _find_free_port()
        self.url, self.log, self.num_restarts = f"http://127.0.0.1:{port}", log, 0
        self._command = [*command, "--host", "127.0.0.1", "--port", str(port)]
        self._variables = variables
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()
        """Held while the process starts or stops, so that no process starts after `stop`."""
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        arguments, variables = wrap_in_keeper(self._command, {**os.environ, **self._variables})
        with self.log.open("ab") as output:
            return subprocess.Popen(
                arguments,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def process_id(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        return self._process.poll()

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def last_lines(self) -> str:
        """Return the lines of the log that state the cause of a failure, or else its last lines."""
        lines = self.log.read_text("utf-8", errors="replace").splitlines()
        errors = [line for line in lines if "Error" in line]
        return "\n".join((errors or lines)[-5:])

    def watch(self) -> None:
        threading.Thread(target=self._restart_when_it_ends, name=f"sparring-{self.log.stem}", daemon=True).start()

    def _restart_when_it_ends(self) -> None:
        num_in_a_row = 0
        while not self._is_stopping.is_set():
            start_time = time.monotonic()
            code = self._process.wait()
            if self._is_stopping.is_set():
                return
            num_in_a_row = 0 if time.monotonic() - start_time > STABLE_SECONDS else num_in_a_row
            if num_in_a_row == MAX_RESTARTS:
                logger.error("%s ended %d times and is not started again; see %s", self.url, MAX_RESTARTS + 1, self.log)
                return
            pause = min(_FIRST_PAUSE_SECONDS * 2**num_in_a_row, _LONGEST_PAUSE_SECONDS)
            logger.warning(
                "the vLLM server %s ended with exit code %d and is started again; see %s", self.url, code, self.log
            )
            num_in_a_row += 1
            self._is_stopping.wait(pause)
            with self._lock:
                if not self._is_stopping.is_set():
                    self._process = self._start()
                    self.num_restarts += 1

    def stop(self) -> None:
        with self._lock:
            self._is_stopping.set()
            process = self._process
        process.terminate()  # the keeper then kills the server and all processes of it
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


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


def _list_devices() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [one for one in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if one]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return []  # vLLM then chooses
    # Other lines name the parts of a divided GPU (MIG).
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]


def _find_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
