"""The processes of vLLM servers, found by their command lines."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def find_servers(model: Path | None = None, url: str | None = None) -> list[int]:
    """Return the ids of the processes that serve the model in this folder, or that serve at this URL, without their
    keepers and children."""
    argument = str(model) if url is None else url.rpartition(":")[2]
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "serve" in arguments and argument in arguments:
                found.append(int(folder.name))
    return sorted(found)


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def read_address(process: int) -> tuple[str, str]:
    """Return the address of a server and its key, from its command line and its environment."""
    folder = Path(f"/proc/{process}")
    arguments = (folder / "cmdline").read_text("utf-8").split("\0")
    variables = (folder / "environ").read_text("utf-8").split("\0")
    key = next(one.removeprefix("VLLM_API_KEY=") for one in variables if one.startswith("VLLM_API_KEY="))
    return f"http://127.0.0.1:{arguments[arguments.index('--port') + 1]}", key
