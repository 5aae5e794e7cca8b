"""Where the servers of a run are started: as processes on this machine, or on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, final

from sparring.runtime.private_files import create_folder
from sparring.runtime.server_process import ServerProcess, ServerSpec, list_gpus


class Server(Protocol):
    """A server that was started. It ends with the process that started it."""

    @property
    def name(self) -> str:
        """What kind of server it is, for messages."""
        ...

    @property
    def url(self) -> str:
        """The last known address."""
        ...

    def find_url(self) -> str:
        """Return the current address, which changes if the server is started again on another machine."""
        ...

    @property
    def log(self) -> Path:
        """The file with its output."""
        ...

    @property
    def process_id(self) -> int:
        """The id of its process, or of the process that keeps it, on its machine."""
        ...

    @property
    def num_restarts(self) -> int: ...

    def exit_code(self) -> int | None:
        """Return the exit code of the process if it has ended."""
        ...

    def is_ready(self) -> bool: ...

    def restart_when_it_ends(self) -> None:
        """From now on, start the process again at the same address when it ends."""
        ...

    def stop(self) -> None:
        """End the process with its child processes."""
        ...


class Launcher(Protocol):
    """Starts servers."""

    @property
    def is_local(self) -> bool:
        """Whether all servers are on this machine."""
        ...

    def list_gpus(self) -> Sequence[str]:
        """Return the GPUs that the caller divides among its servers. Empty if there are none, or if the launcher divides
        them."""
        ...

    def start(self, specs: Sequence[ServerSpec], logs: Sequence[Path], *, num_gpus: int = 0) -> list[Server]:
        """Start servers, whose output is appended to the files. Each gets `num_gpus` GPUs where the launcher divides them.
        Raises ServiceError if there is no place for them."""
        ...

    def close(self) -> None:
        """End everything that was started, and the connection to the cluster."""
        ...


@final
class ProcessLauncher:
    """Starts servers as processes on this machine. Implements `Launcher`."""

    is_local = True

    def list_gpus(self) -> list[str]:
        return list_gpus()

    def start(self, specs: Sequence[ServerSpec], logs: Sequence[Path], *, num_gpus: int = 0) -> list[Server]:
        started: list[Server] = []
        try:
            for spec, log in zip(specs, logs, strict=True):
                create_folder(log.parent, parents=True, exist_ok=True)
                started.append(ServerProcess(spec, log))
        except BaseException:
            for one in started:
                one.stop()
            raise
        return started

    def close(self) -> None:
        """Do nothing: each server is stopped by what uses it."""
