"""The client of the spawner, which starts and stops sandboxes. Every process has one client."""

from __future__ import annotations

import atexit
import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sparring.errors import InfrastructureError
from sparring.runtime.logs import get_logger
from sparring.sandbox.backends import MIB, USER_IDS, Backend, Setup
from sparring.sandbox.cgroups import Group, Hierarchy, hierarchies, make_group, remove_group
from sparring.sandbox.identity import new_name
from sparring.sandbox.leftovers import remove_leftovers

_logger = get_logger(__name__)
_LOCK_FOLDER = "/run/lock/sparring-sandbox" if os.geteuid() == 0 else ""
"""The folder of locks on user ids, shared by all processes of the machine. Only root allocates user ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A sandbox's first process and its resources."""

    id: int
    channel: socket.socket
    """The standard input and output of the first process."""
    errors: int
    """The descriptor of the standard error of the first process."""
    group: Group
    cleanup: tuple[tuple[str, ...], ...]
    folder: Path | None


class Spawner:
    """The process that starts sandboxes, and the connection to it.

    The methods block for milliseconds, and may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._owner = 0

    @cached_property
    def hierarchies(self) -> tuple[Hierarchy, ...]:
        """The cgroup hierarchies of sandboxes. They are determined at the first use, which also removes leaked
        resources of ended processes."""
        found = hierarchies()
        remove_leftovers(found)
        return found

    def start(self, backend: Backend, setup: Setup) -> Started:
        """Start a sandbox. If it cannot be started, remove all of it and raise InfrastructureError."""
        name = new_name()
        try:
            launch = backend.launch(name, setup)
        except OSError as error:
            raise InfrastructureError(f"The sandbox {backend.name} cannot start: {error}.") from error
        limits = setup.limits
        ours, theirs = socket.socketpair()
        errors, errors_end = os.pipe()
        group = Group(())
        try:
            if not backend.has_own_limits and backend.name != "unsafe-local":
                memory = limits.memory_mib + limits.disk_mib + limits.shared_memory_mib + launch.extra_memory_mib
                # One process of the sandbox does not belong to the program: the one that starts it.
                processes = limits.processes + 1 + launch.extra_processes
                group = make_group(self.hierarchies, memory_bytes=memory * MIB, processes=processes)
            request = {
                "op": "open",
                "argv": list(launch.argv),
                "environment": dict(launch.environment),
                "inherited": [base64.b64encode(content).decode() for content in launch.inherited],
                "users": launch.users,
                "user_ids": USER_IDS,
                "group_folders": [str(folder) for folder in group.folders],
                "limits": {"RLIMIT_CORE": 0},
            }
            answer = self._ask(request, [theirs.fileno(), theirs.fileno(), errors_end])
            if "error" in answer:
                raise InfrastructureError(f"The sandbox {backend.name} cannot start: it {answer['error']}.")
        except BaseException as error:
            ours.close()
            os.close(errors)
            remove_group(group)
            if launch.folder is not None:
                shutil.rmtree(launch.folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise InfrastructureError(f"The sandbox {backend.name} cannot start: {error}.") from error
            raise
        finally:
            theirs.close()
            os.close(errors_end)
        return Started(
            id=answer["id"],
            channel=ours,
            errors=errors,
            group=group,
            folder=launch.folder,
            cleanup=tuple(tuple(command) for command in launch.cleanup),
        )

    def stop(self, started: Started, grace_seconds: float = 0.0) -> int | None:
        """Kill a sandbox, close its connections and remove its resources.

        Return how its first process exited, or None if it did not exit by itself within the grace period. If a resource
        cannot be removed, this is logged but does not fail the episode, because a program in the sandbox may be the
        cause. Raises InfrastructureError if the process that starts sandboxes has ended.
        """
        started.channel.close()
        os.close(started.errors)
        try:
            answer = self._ask(
                {"op": "close", "id": started.id, "cleanup": started.cleanup, "grace": grace_seconds}, []
            )
        finally:
            # If the spawner has ended, its sandboxes are dead and their groups are empty.
            remove_group(started.group)
            if started.folder is not None:
                shutil.rmtree(started.folder, ignore_errors=True)
        if answer["left"]:
            _logger.warning("A sandbox could not be removed: %s still exists.", ", ".join(answer["left"]))
        return answer["status"]

    def _ask(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        with self._lock:
            if self._owner != os.getpid():
                self._start_process()
            assert self._channel is not None
            try:
                socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
                answer = self._channel.recv(1 << 16)
            except OSError as error:
                answer, problem = b"", f" ({error})"
            else:
                problem = ""
            if not answer:
                self.close()
                raise InfrastructureError(
                    f"The process that starts sandboxes has ended{problem}; the next sandbox starts a new process."
                )
            return json.loads(answer)

    def close(self) -> None:
        """Terminate the process, and every open sandbox with it. The next sandbox starts a new process."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None and self._owner == os.getpid():
            self._process.wait()
        self._channel, self._process, self._owner = None, None, 0

    def _start_process(self) -> None:
        """Start the spawner of this process. A fork must start its own spawner."""
        if self._channel is not None:
            self._channel.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = Path(__file__).parent / "spawner.py"
        lock_folder = _LOCK_FOLDER or tempfile.gettempdir()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(script), str(theirs.fileno()), lock_folder],
                    env={},
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise InfrastructureError(f"The process that starts sandboxes cannot be started: {error}.") from error
        self._channel, self._owner = ours, os.getpid()


spawner = Spawner()
"""The spawner of this process."""
atexit.register(spawner.close)
