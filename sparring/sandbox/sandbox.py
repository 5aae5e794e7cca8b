"""Sandboxes, and the selection of a back end that works on this machine."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sparring.errors import InfrastructureError, UsageError
from sparring.sandbox.backends import BACKENDS, DOCKER_IMAGE, Backend, BackendName, Setup, find_python
from sparring.sandbox.box import START_SECONDS, Box, Content
from sparring.sandbox.limits import Limits
from sparring.sandbox.processes import spawner

Choice: TypeAlias = Literal["auto"] | BackendName


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A back end that was tested on this machine, with its limits. It holds resources only during its sessions."""

    backend: Backend
    setup: Setup

    @property
    def limits(self) -> Limits:
        """The limits of each session."""
        return self.setup.limits

    @property
    def is_isolated(self) -> bool:
        """False for `unsafe-local`, which isolates nothing."""
        return self.backend.name != "unsafe-local"

    @property
    def enforcement(self) -> str:
        """What enforces the limits on memory and processes, as text for logs and the run's manifest."""
        if not self.is_isolated:
            return "none: programs run unconfined"
        if self.backend.has_own_limits:
            return f"by {self.backend.name}"
        by_group = sorted({name for where in spawner.hierarchies for name in where.controllers})
        rest = [] if "memory" in by_group else ["memory by process"]
        return ", ".join([f"{name} by control group" for name in by_group] + rest)

    @asynccontextmanager
    async def session(self, files: Mapping[str, Content] | None = None) -> AsyncIterator[Box]:
        """Open a sandbox session for one episode, with these files in its scratch folder, and remove it afterwards.

        Raises InfrastructureError if the sandbox cannot be started.
        """
        box = Box(self, files or {})
        try:
            await box.open()
            yield box
        finally:
            await box.close()


def open_sandbox(
    *,
    limits: Limits | None = None,
    backend: Choice = "auto",
    python: str | None = None,
    read_only: Sequence[str] = (),
    docker_image: str = DOCKER_IMAGE,
    allow_unsafe: bool = False,
) -> Sandbox:
    """Return the sandbox in which programs run. `auto` selects the first of bubblewrap, gvisor and docker that works on
    this machine.

    A back end is tested with a real program, once per process. `python` names the interpreter inside. `read_only` lists
    additional host folders that programs may read. `unsafe-local` isolates nothing and also requires `allow_unsafe`.

    Raises UsageError with instructions if no back end works. A back end that is weaker than the requested one is never
    selected.
    """
    if backend != "auto" and backend not in BACKENDS:
        raise UsageError(f"There is no sandbox back end {backend!r}; choose from auto, {', '.join(BACKENDS)}.")
    if backend == "unsafe-local" and not allow_unsafe:
        raise UsageError(
            "The back end unsafe-local runs programs of a model as your user, with access to your files and your "
            "network. Set allow_unsafe=True if no data on this machine needs protection, or leave the choice to 'auto'."
        )
    for folder in read_only:
        if not os.path.isdir(folder) or not os.path.isabs(folder):
            raise UsageError(
                f"read_only: {folder!r} is not a folder with an absolute path, so it cannot be made visible inside."
            )
    setup = Setup(
        limits=limits or Limits(), python=find_python(python), read_only=tuple(read_only), docker_image=docker_image
    )
    names = [name for name in BACKENDS if name != "unsafe-local"] if backend == "auto" else [backend]
    problems = {}
    for name in names:
        problem = _problem_with(name, Setup(limits=Limits(), python=setup.python, docker_image=docker_image))
        if problem is None:
            return Sandbox(backend=BACKENDS[name], setup=setup)
        problems[name] = problem
    reasons = "\n".join(
        f"  {name}: {problem} To use it: {BACKENDS[name].install}" for name, problem in problems.items()
    )
    raise UsageError(
        f"Programs that a model wrote need a sandbox, but no requested back end ({backend}) works here:\n{reasons}"
    )


@functools.cache
def _problem_with(name: str, setup: Setup) -> str | None:
    """Return why a back end does not work on this machine, or None if it works. It is tested once, with a real
    program."""

    async def attempt() -> str | None:
        sandbox = Sandbox(backend=BACKENDS[name], setup=setup)
        inside = "python3" if name == "docker" else setup.python.path
        async with sandbox.session() as box:
            run = await box.run([inside, "-I", "-S", "-c", "print(6 * 7)"], seconds=START_SECONDS)
        return None if run.stdout == "42\n" else f"a test program ended with {run}."

    # The test needs its own thread, because the caller may run inside an event loop.
    with ThreadPoolExecutor(max_workers=1) as executor:
        try:
            return executor.submit(asyncio.run, attempt()).result()
        except InfrastructureError as error:
            return str(error)
