"""Local vLLM servers are started, restarted and stopped. A small HTTP server takes the place of the `vllm` command."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from threading import Timer

import httpx
import pytest

from sparring.engines.servers import processes
from sparring.engines.servers.environment import find_vllm, install_vllm
from sparring.engines.servers.processes import ServerSettings, StartedServers, build_arguments
from sparring.errors import ServiceError
from sparring.runtime import interrupts
from sparring.runtime.interrupts import Terminated
from sparring.runtime.server_process import list_gpus

SERVER = """#!{python}
import http.server, json, os, sys
arguments = dict(zip(sys.argv, sys.argv[1:]))
if "hangs" in sys.argv:
    import time
    time.sleep(600)
if "fails" in sys.argv:
    sys.exit("ValueError: the model has 3 heads")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(dict(pid=os.getpid(), arguments=sys.argv[1:], key=os.environ["VLLM_API_KEY"])).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
print("serving", flush=True)
http.server.HTTPServer((arguments["--host"], int(arguments["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    command = tmp_path / "environment" / "bin" / "vllm"
    command.parent.mkdir(parents=True)
    command.write_text(SERVER.format(python=sys.executable), "utf-8")
    command.chmod(0o755)
    (tmp_path / "environment" / "installed-by-sparring").write_text("cpu", "utf-8")
    return tmp_path / "environment"


def settings(environment: Path, **changes: object) -> ServerSettings:
    values = {"max_model_len": 256, "lora_rank": 12, "num_adapters": 4, "max_running": 8, **changes}
    return ServerSettings(model="model", environment=environment, **values)  # pyright: ignore[reportArgumentType]


def ask(url: str) -> dict[str, object]:
    return httpx.get(f"{url}/health", timeout=5).json()


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_arguments_come_from_the_settings(environment: Path) -> None:
    arguments = build_arguments(settings(environment, extra_arguments=("--max-num-seqs", "2")), "cpu")
    options = dict(pairwise(arguments))
    assert arguments[:2] == ["serve", "model"]
    assert options["--max-lora-rank"] == "16"  # the next rank that vLLM supports
    assert options["--max-loras"] == options["--max-cpu-loras"] == "4"
    assert options["--max-num-batched-tokens"] == str(8 * 256)  # whole prompts of all turns
    assert json.loads(options["--structured-outputs-config"]) == {"backend": "guidance"}
    assert options["--max-num-seqs"] == "2"  # the last one counts
    assert "--dtype" not in build_arguments(settings(environment), "cuda")
    with pytest.raises(ServiceError, match="lora_rank = 1024, but vLLM supports ranks up to 512"):
        build_arguments(settings(environment, lora_rank=1024), "cpu")


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_stop_ends_a_start_at_once(
    environment: Path, tmp_path: Path, number: signal.Signals, error: type[BaseException]
) -> None:
    hanging, start_time = settings(environment, extra_arguments=("hangs",)), time.monotonic()
    with interrupts.interrupts(lambda: None):
        Timer(1.0, os.kill, (os.getpid(), number)).start()
        with pytest.raises(error):
            StartedServers(hanging, tmp_path / "logs", announce=lambda line: None)
    assert time.monotonic() - start_time < 20


@pytest.mark.parametrize(
    ("num_servers", "memory_share", "num_gpus", "expected"),
    [
        (1, None, 1, None),  # vLLM's own default
        (1, 0.57, 1, "0.57"),
        (2, 0.57, 1, "0.28"),
        (4, None, 2, "0.45"),
        (3, None, 2, "0.45"),
        (2, None, 2, None),
    ],
)
def test_servers_of_one_gpu_divide_its_memory(
    environment: Path, num_servers: int, memory_share: float | None, num_gpus: int, expected: str | None
) -> None:
    shared = settings(environment, num_servers=num_servers, memory_share=memory_share)
    options = dict(pairwise(build_arguments(shared, "cuda", num_gpus)))
    assert options.get("--gpu-memory-utilization") == expected
    assert "--gpu-memory-utilization" not in build_arguments(shared, "cpu", num_gpus)


def test_servers_answer_at_their_own_addresses_until_they_are_closed(environment: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    servers = StartedServers(settings(environment, num_servers=2), tmp_path / "logs", announce=lines.append)
    answers = [ask(url) for url in servers.urls]
    assert len({str(one["pid"]) for one in answers}) == 2
    assert {one["key"] for one in answers} == {servers.api_key}
    assert lines[0] == f"starting 2 vLLM servers with model; the output is in {tmp_path / 'logs'}"
    assert lines[-1].startswith("2 vLLM servers started in ")
    assert (tmp_path / "logs" / "vllm-1.log").read_text("utf-8").startswith("serving")
    servers.close()
    for one in answers:
        wait_for(lambda pid=one["pid"]: not Path(f"/proc/{pid}").exists())
    with pytest.raises(httpx.ConnectError):
        ask(servers.urls[0])


def test_a_killed_server_is_started_again_at_its_address(environment: Path, tmp_path: Path) -> None:
    servers = StartedServers(settings(environment), tmp_path / "logs", announce=lambda line: None)
    (url,) = servers.urls
    first = ask(url)
    os.kill(int(str(first["pid"])), signal.SIGKILL)
    wait_for(lambda: servers.num_restarts == 1)

    def is_back() -> bool:
        try:
            return ask(url)["pid"] != first["pid"]
        except httpx.HTTPError:
            return False

    wait_for(is_back)
    assert ask(url)["arguments"] == first["arguments"]
    servers.close()


def test_the_end_of_a_start_that_fails_is_in_the_error(environment: Path, tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="ended with exit code 1 while it started") as caught:
        StartedServers(settings(environment, extra_arguments=("fails",)), tmp_path / "logs", announce=lambda line: None)
    assert "ValueError: the model has 3 heads" in str(caught.value)


def test_an_environment_without_vllm_names_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=f"sparring install vllm --into {tmp_path}"):
        find_vllm(tmp_path)


def test_an_installation_that_is_complete_is_left_alone(environment: Path) -> None:
    before = sorted(environment.rglob("*"))
    install_vllm(environment, "cpu", announce=lambda line: None)
    assert sorted(environment.rglob("*")) == before


def test_an_installation_that_fails_shows_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ServiceError, match=r"vLLM cannot be installed: .*(?s:.*)No matching distribution found for uv"):
        install_vllm(tmp_path / "environment", "cpu", announce=lambda line: None)
    assert not (tmp_path / "environment" / "installed-by-sparring").exists()


def test_an_environment_of_the_user_s_own_starts_without_a_driver(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (environment / "installed-by-sparring").unlink()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    servers = StartedServers(settings(environment), tmp_path / "logs", announce=lambda line: None)
    assert ask(servers.urls[0])["key"] == servers.api_key
    servers.close()


def test_parts_of_a_gpu_are_not_counted_as_gpus(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = "GPU 0: NVIDIA (UUID: GPU-1)\n  MIG 1g.10gb Device 0: (UUID: MIG-1)\nGPU 1: NVIDIA (UUID: GPU-2)\n"
    command = tmp_path / "bin" / "nvidia-smi"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\nprintf '{listed}'\n", "utf-8")
    command.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    assert list_gpus() == ["0", "1"]


def test_a_proxy_is_not_used_for_servers_of_this_machine(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setattr(processes, "START_SECONDS", 20.0)
    StartedServers(settings(environment), tmp_path / "logs", announce=lambda line: None).close()
