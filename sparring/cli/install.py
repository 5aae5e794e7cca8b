"""`sparring install`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sparring.cli.command import Json, app, note, print_json, report_failures, say


class _Package(StrEnum):
    VLLM = "vllm"


class _Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


@app.command()
@report_failures
def install(
    package: Annotated[_Package, typer.Argument(help="What to install.")],
    into: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A new folder; by default SPARRING_VLLM, or one in the user's cache."),
    ] = None,
    device: Annotated[
        _Device, typer.Option(help="Where vLLM computes; auto is cuda on a machine with an NVIDIA driver.")
    ] = _Device.AUTO,
    as_json: Json = False,
) -> None:
    """Install vLLM in an environment of its own, for runs with engine.type=vllm."""
    from sparring.engines.servers.environment import default_folder, find_device, install_vllm

    folder = default_folder() if into is None else into
    chosen = find_device() if device is _Device.AUTO else device.value
    install_vllm(folder.absolute(), chosen, announce=note)
    if as_json:
        print_json({"package": package.value, "folder": str(folder), "device": chosen})
    else:
        say(f"{package.value} ({chosen}) is in {folder}")
