"""Connects to a Ray cluster for `runtime.ray_launcher`: `python -m sparring.runtime.ray_driver ADDRESS`.

Each line of standard input is a request, a JSON object {"do", ...}, and is answered with a line {"result"} or {"error"}. All
servers are stopped when standard input ends. Each server is an actor, which keeps the process of the server on its node.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import ray  # pyright: ignore[reportMissingImports]
from ray.util.placement_group import placement_group, remove_placement_group  # pyright: ignore[reportMissingImports]
from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
    PlacementGroupSchedulingStrategy,
)

from sparring.runtime.server_process import ServerProcess, ServerSpec

MAX_ACTOR_RESTARTS = 5
CLOSE_SECONDS = 30.0
"""The longest time that stopping all servers may take."""
READ_BYTES = 2**20
"""The largest part of a server's output that one request returns."""


@final
class Keeper:
    """Runs a server as a process on the node of this actor. If Ray starts the actor again, so is the server."""

    def __init__(self, spec: Mapping[str, Any], port: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sparring-server-")
        log = Path(self._folder.name) / "output.log"
        host = ray.util.get_node_ip_address()
        self._server = ServerProcess(
            ServerSpec(**{**spec, "command": tuple(spec["command"])}), log, host=host, port=port
        )
        if ray.get_runtime_context().was_current_actor_reconstructed:
            self._server.restart_when_it_ends()

    def describe(self) -> dict[str, Any]:
        return {
            "url": self._server.url,
            "process_id": self._server.process_id,
            "exit_code": self._server.exit_code(),
            "num_restarts": self._server.num_restarts,
        }

    def read_log(self, offset: int) -> str:
        """Return the bytes from an offset on, each as a character."""
        with self._server.log.open("rb") as file:
            file.seek(offset)
            return file.read(READ_BYTES).decode("latin-1")

    def restart_when_it_ends(self) -> None:
        self._server.restart_when_it_ends()

    def stop(self) -> None:
        self._server.stop()


@final
class Driver:
    """The requests of a launcher."""

    def __init__(self) -> None:
        self._actors: list[Any] = []
        self._groups: list[Any] = []

    def answer(self, request: Mapping[str, Any]) -> Any:
        match request["do"]:
            case "start":
                return self._start(request["specs"], request["ports"], request["num_gpus"], request["seconds"])
            case "describe":
                return ray.get(self._actors[request["server"]].describe.remote(), timeout=request["seconds"])
            case "read_log":
                content = self._actors[request["server"]].read_log.remote(request["offset"])
                return ray.get(content, timeout=request["seconds"])
            case "restart_when_it_ends":
                actor = self._actors[request["server"]]
                return ray.get(actor.restart_when_it_ends.remote(), timeout=request["seconds"])
            case "stop":
                return self._stop(request["server"], request["seconds"])
            case other:
                raise ValueError(f"{other!r} is not a request")

    def close(self) -> None:
        for number, actor in enumerate(self._actors):
            if actor is not None:
                self._stop(number, 10.0)
        for group in self._groups:
            remove_placement_group(group)

    def _start(self, specs: list[Mapping[str, Any]], ports: list[int], num_gpus: int, seconds: float) -> list[int]:
        """Start servers as soon as the cluster has the resources for all of them."""
        group = placement_group([{"CPU": 1.0, **({"GPU": float(num_gpus)} if num_gpus else {})} for _ in specs])
        self._groups.append(group)
        if not group.wait(seconds):
            remove_placement_group(self._groups.pop())
            raise ValueError(
                f"the cluster has no place for {len(specs)} servers with 1 CPU and {num_gpus} GPUs each within {seconds:g} s; "
                f"it has {json.dumps(ray.available_resources())} left. Add nodes, or start fewer servers."
            )
        numbers = []
        for bundle, (spec, port) in enumerate(zip(specs, ports, strict=True)):
            place = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)
            options = {"num_cpus": 1, "num_gpus": num_gpus, "max_restarts": MAX_ACTOR_RESTARTS, "max_task_retries": -1}
            actor = ray.remote(Keeper).options(scheduling_strategy=place, **options).remote(dict(spec), port)
            numbers.append(len(self._actors))
            self._actors.append(actor)
        return numbers

    def _stop(self, number: int, seconds: float) -> None:
        actor, self._actors[number] = self._actors[number], None
        if actor is not None:
            try:
                ray.get(actor.stop.remote(), timeout=seconds)
            finally:
                ray.kill(actor)


def main() -> None:
    # Ray, and the libraries that it loads, write to standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    driver = Driver()
    try:
        ray.init(address=sys.argv[1], namespace="sparring", log_to_driver=False, logging_level=logging.WARNING)
        answers.write(json.dumps({"result": ray.util.get_node_ip_address()}) + "\n")
    except Exception as error:  # noqa: BLE001 (sent to the launcher)
        answers.write(json.dumps({"error": str(error)}) + "\n")
        return
    finally:
        answers.flush()
    try:
        for line in sys.stdin:
            try:
                answer = {"result": driver.answer(json.loads(line))}
            except Exception as error:  # noqa: BLE001 (sent to the launcher)
                answer = {"error": f"{type(error).__name__}: {error}".strip()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        # Without its head, a cluster may never answer.
        deadline = threading.Timer(CLOSE_SECONDS, os._exit, (1,))
        deadline.daemon = True
        deadline.start()
        driver.close()


if __name__ == "__main__":
    main()
