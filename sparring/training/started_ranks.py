"""Start the ranks of a learner, on this machine or on a cluster."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import final

from sparring.runtime.launcher import Launcher, Server
from sparring.runtime.remote import headers_of
from sparring.runtime.server_process import ServerSpec, wait_until_ready

START_SECONDS = 900.0
"""The longest time that all ranks may take to load the model and answer."""


@final
class StartedRanks:
    """Ranks that run as long as this object, and never longer than this process. A rank that ends is started again.
    Implements `training.group.Processes`."""

    def __init__(
        self,
        launcher: Launcher,
        recipe: Path,
        overrides: Sequence[str],
        *,
        options: Sequence[str] = (),
        num_ranks: int,
        is_cuda: bool,
        folder: Path,
        announce: Callable[[str], object],
    ) -> None:
        """Start the ranks of a recipe with options of `sparring learner`, and wait until they answer. On this machine, they
        use the GPUs in turn. Raises ServiceError if one does not answer."""
        self.api_key = secrets.token_hex(16)
        self._launcher = launcher
        self._servers: Sequence[Server] = ()
        gpus = launcher.list_gpus() if is_cuda else ()
        specs = [
            ServerSpec(
                name="learner rank",
                command=(
                    sys.executable,
                    "-P",
                    "-m",
                    "sparring",
                    "learner",
                    str(recipe.absolute()),
                    *overrides,
                    *options,
                ),
                variables=_variables(self.api_key, gpus, number, is_local=launcher.is_local),
                ready_path="/v1/learner",
                headers=headers_of(self.api_key),
            )
            for number in range(num_ranks)
        ]
        try:
            logs = [folder / f"rank-{number}.log" for number in range(num_ranks)]
            self._servers = launcher.start(specs, logs, num_gpus=int(is_cuda))
            wait_until_ready(self._servers, f"of {recipe}", announce, seconds=START_SECONDS)
            for one in self._servers:
                one.restart_when_it_ends()
        except BaseException:
            self.close()
            raise

    @property
    def urls(self) -> list[str]:
        return [one.url for one in self._servers]

    def find_url(self, number: int) -> str:
        """Return the current address of a rank."""
        return self._servers[number].find_url()

    @property
    def process_ids(self) -> list[int]:
        """The ids of the running processes that keep the ranks."""
        return [one.process_id for one in self._servers]

    def close(self) -> None:
        for one in self._servers:
            one.stop()
        self._launcher.close()


def _variables(api_key: str, gpus: Sequence[str], number: int, *, is_local: bool) -> Mapping[str, str]:
    """Return the environment variables of a rank."""
    variables = {"SPARRING_API_KEY": api_key}
    if gpus:
        variables["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    if is_local and "GLOO_SOCKET_IFNAME" not in os.environ and sys.platform.startswith("linux"):
        variables["GLOO_SOCKET_IFNAME"] = "lo"
    return variables
