"""Start the ranks of a learner as processes on this machine."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import final

from sparring.runtime.remote import headers_of
from sparring.runtime.server_process import ServerProcess, wait_until_ready

START_SECONDS = 900.0
"""The longest time that all ranks may take to load the model and answer."""


@final
class LocalRanks:
    """Ranks that run as long as this object, and never longer than this process. A rank that ends is started again.
    Implements `training.group.Processes`."""

    def __init__(
        self,
        recipe: Path,
        overrides: Sequence[str],
        *,
        options: Sequence[str] = (),
        num_ranks: int,
        gpus: Sequence[str],
        folder: Path,
        announce: Callable[[str], object],
    ) -> None:
        """Start the ranks of a recipe with options of `sparring learner`, and wait until they answer. They use the GPUs in
        turn. Raises ServiceError if one does not answer."""
        self.api_key = secrets.token_hex(16)
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "sparring", "learner", str(recipe), *overrides, *options]
        self._processes: list[ServerProcess] = []
        try:
            for number in range(num_ranks):
                self._processes.append(
                    ServerProcess(
                        "learner rank",
                        command,
                        folder / f"rank-{number}.log",
                        variables=_variables(self.api_key, gpus, number),
                        ready_path="/v1/learner",
                        headers=headers_of(self.api_key),
                    )
                )
            wait_until_ready(self._processes, f"of {recipe}", announce, seconds=START_SECONDS)
            for one in self._processes:
                one.restart_when_it_ends()
        except BaseException:
            self.close()
            raise

    @property
    def urls(self) -> list[str]:
        return [one.url for one in self._processes]

    @property
    def process_ids(self) -> list[int]:
        """The ids of the running processes that keep the ranks."""
        return [one.process_id for one in self._processes]

    def close(self) -> None:
        for one in self._processes:
            one.stop()


def _variables(api_key: str, gpus: Sequence[str], number: int) -> Mapping[str, str]:
    """Return the environment variables of a rank."""
    variables = {"SPARRING_API_KEY": api_key}
    if gpus:
        variables["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    if "GLOO_SOCKET_IFNAME" not in os.environ and sys.platform.startswith("linux"):
        variables["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks are on this machine
    return variables
