"""Start servers on the nodes of a Ray cluster.

A process of its own connects to Ray (`runtime.ray_driver`), because Ray ends the process that is connected when its head is
lost. The run then ends with the reason, and can be resumed.
"""

from __future__ import annotations

import importlib.util
import json
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import SystemRandom
from typing import Any, final

from sparring.errors import ServiceError
from sparring.runtime.launcher import Server
from sparring.runtime.private_files import open_private
from sparring.runtime.server_process import ServerSpec, answers, find_cause

REACH_SECONDS = 10.0
"""The longest time that the machine of the head may take to accept a connection."""
CONNECT_SECONDS = 120.0
"""The longest time that connecting to the cluster may take."""
PLACE_SECONDS = 300.0
"""The longest time to wait until the cluster has the resources for all servers."""
ANSWER_SECONDS = 20.0
"""The longest time that any other request may take."""
LOG_SECONDS = 2.0
"""The time between two copies of the servers' new output."""
PORTS = range(20_000, 30_000)
"""The ports of servers. A server keeps its port when its node starts it again."""


@final
class RayLauncher:
    """Starts servers on a Ray cluster, each in an actor of its own. Implements `runtime.launcher.Launcher`."""

    is_local = False

    def __init__(self, address: str, folder: Path) -> None:
        """Connect to the cluster at an address ("auto" is the one on this machine). Messages of Ray are appended to
        `folder`/ray.log. Raises ServiceError if Ray is not installed, or does not answer."""
        if importlib.util.find_spec("ray") is None:
            raise ServiceError('launch.on = "ray" needs Ray. Install it with: pip install "sparring[cluster]"')
        folder.mkdir(parents=True, exist_ok=True)
        self._where, self._log = f"the Ray cluster at {address}", folder / "ray.log"
        self._refuse_unreachable(address)
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._servers: list[RayServer] = []
        with open_private(self._log, "ab") as output:
            self._driver = subprocess.Popen(
                [sys.executable, "-P", "-m", "sparring.runtime.ray_driver", address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        try:
            self.host = str(self._read(CONNECT_SECONDS))
            """The address of this machine in the cluster's network."""
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._copy_logs, name="sparring-ray-logs", daemon=True).start()

    def list_gpus(self) -> list[str]:
        return []  # Ray divides them

    def start(self, specs: Sequence[ServerSpec], logs: Sequence[Path], *, num_gpus: int = 0) -> list[Server]:
        ports = SystemRandom().sample(PORTS, len(specs))
        contents = [{**asdict(spec), "variables": dict(spec.variables)} for spec in specs]
        numbers = self.ask("start", seconds=PLACE_SECONDS, specs=contents, ports=ports, num_gpus=num_gpus)
        started = [RayServer(self, *one) for one in zip(numbers, specs, logs, strict=True)]
        self._servers += started
        return [*started]

    def ask(self, do: str, *, seconds: float = ANSWER_SECONDS, **arguments: Any) -> Any:
        """Send a request to the driver, and return the result. Raises ServiceError if there is none within `seconds`."""
        request = json.dumps({"do": do, "seconds": seconds, **arguments})
        with self._lock:
            assert self._driver.stdin is not None
            try:
                self._driver.stdin.write(request.encode() + b"\n")
                self._driver.stdin.flush()
            except (OSError, ValueError) as error:
                raise self._gone(str(error)) from error
            return self._read(seconds + 10.0)

    def close(self) -> None:
        self._is_closed.set()
        with self._lock:
            if self._driver.stdin is not None:
                with suppress(OSError):
                    self._driver.stdin.close()
            try:
                self._driver.wait(ANSWER_SECONDS)
            except subprocess.TimeoutExpired:
                self._driver.kill()
                with suppress(subprocess.TimeoutExpired):
                    self._driver.wait(ANSWER_SECONDS)
            if self._driver.stdout is not None:
                self._driver.stdout.close()

    def _read(self, seconds: float) -> Any:
        assert self._driver.stdout is not None
        ready, _, _ = select.select([self._driver.stdout], [], [], seconds)
        line = self._driver.stdout.readline() if ready else b""
        if not line:
            self._driver.kill()  # a late answer would be taken for that of the next request
            raise self._gone(f"no answer within {seconds:.0f} s" if not ready else "its connection ended")
        answer = json.loads(line)
        if "error" in answer:
            raise ServiceError(f"{self._where}: {answer['error']}")
        return answer["result"]

    def _refuse_unreachable(self, address: str) -> None:
        """Raise ServiceError if nothing listens at HOST:PORT, to which Ray would try to connect for minutes."""
        host, _, port = address.rpartition(":")
        if "://" in address or not port.isdigit():
            return
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        except OSError as error:
            raise ServiceError(
                f"{self._where} does not answer ({error}). Start it with `ray start --head`, and check launch.ray_address."
            ) from error

    def _gone(self, reason: str) -> ServiceError:
        cause = find_cause(self._log)
        return ServiceError(
            f"{self._where} does not answer ({reason}). Start it again, and resume the run. The end of {self._log}:\n{cause}"
        )

    def _copy_logs(self) -> None:
        while not self._is_closed.wait(LOG_SECONDS):
            for one in self._servers:
                with suppress(ServiceError):
                    one.copy_log()


@final
class RayServer:
    """A server on a node of a Ray cluster. Implements `runtime.launcher.Server`."""

    def __init__(self, launcher: RayLauncher, number: int, spec: ServerSpec, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch(0o600)
        self.name, self.log = spec.name, log
        self._launcher, self._number, self._offset = launcher, number, 0
        self._lock = threading.Lock()
        self.url = str(self._describe()["url"])
        self._ready_path, self._headers = spec.ready_path, spec.headers

    def find_url(self) -> str:
        with suppress(ServiceError):  # the actor may be starting again
            self.url = str(self._describe()["url"])
        return self.url

    @property
    def process_id(self) -> int:
        return int(self._describe()["process_id"])

    @property
    def num_restarts(self) -> int:
        return int(self._describe()["num_restarts"])

    def exit_code(self) -> int | None:
        code = self._describe()["exit_code"]
        if code is not None:
            self.copy_log()
        return code

    def is_ready(self) -> bool:
        return answers(f"{self.url}{self._ready_path}", self._headers)

    def restart_when_it_ends(self) -> None:
        self._launcher.ask("restart_when_it_ends", server=self._number)

    def stop(self) -> None:
        with suppress(ServiceError):
            self.copy_log()
            self._launcher.ask("stop", server=self._number)

    def copy_log(self) -> None:
        """Append the new output to the file on this machine."""
        with self._lock:
            content = self._launcher.ask("read_log", server=self._number, offset=self._offset).encode("latin-1")
            self._offset += len(content)
            if content:
                with open_private(self.log, "ab") as file:
                    file.write(content)

    def _describe(self) -> dict[str, Any]:
        return self._launcher.ask("describe", server=self._number)
