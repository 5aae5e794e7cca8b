"""Start workers on the nodes of a cluster, which connect to the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sparring.runtime.launcher import Launcher, Server
from sparring.runtime.server_process import ServerSpec


class Cluster(Launcher, Protocol):
    """A launcher on a cluster."""

    @property
    def host(self) -> str:
        """The address of this machine in the cluster's network."""
        ...


def launch_workers(cluster: Cluster, number: int, *, port: int, key: str, folder: Path) -> Callable[[], None]:
    """Start commands that connect one worker each to a port of this machine, and return the function that ends them. Their
    output is appended to files in `folder`. Raises ServiceError if there is no place for them."""
    spec = ServerSpec(
        name="worker",
        command=(
            *(sys.executable, "-P", "-m", "sparring", "worker"),
            *("--connect", f"{cluster.host}:{port}", "--processes", "1"),
        ),
        variables={"SPARRING_API_KEY": key},
        has_address=False,
    )
    started: list[Server] = []

    def close() -> None:
        for one in started:
            one.stop()
        cluster.close()

    try:
        started += cluster.start([spec] * number, [folder / f"worker-{index}.log" for index in range(number)])
        for one in started:
            one.restart_when_it_ends()
    except BaseException:
        close()
        raise
    return close
