"""`sparring worker`: processes that run the environments, rewards and scorers of a run on another machine."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Annotated

import typer

from sparring.cli.command import app, note, report_failures, say
from sparring.errors import UsageError
from sparring.runtime import interrupts
from sparring.runtime.address import read_address
from sparring.runtime.machine import count_processors
from sparring.serving.access import KEY_VARIABLE


@app.command()
@report_failures
def worker(
    connect: Annotated[str, typer.Option(metavar="HOST:PORT", help="The address on which the run listens.")],
    processes: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Number of processes; by default one for each processor that it may use."),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A copy of the recipe's folder. If it differs, the run sends its files."),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Encrypt, and accept only a certificate that this authority signed (PEM)."),
    ] = None,
    wait: Annotated[float, typer.Option(min=1.0, help="Seconds without a run after which the command ends.")] = 600.0,
) -> None:
    """Run the environments, reward and scorer of a run on another machine (environment.listen), until Ctrl-C. The
    run's key is in SPARRING_API_KEY."""
    from sparring.workers.connector import Connecting, Connector

    address = read_address(connect)
    if address.port == 0:
        raise UsageError(f"--connect {connect} has no port; give the address that the run printed at its start.")
    if recipe is not None and not recipe.is_dir():
        raise UsageError(f"--recipe {recipe} is not a folder; give the folder that contains the recipe.toml.")
    connecting = Connecting(
        address=address,
        key=os.environ.get(KEY_VARIABLE, "").encode(),
        num_processes=processes or count_processors(),
        say=say,
        recipe=recipe,
        wait_seconds=wait,
        tls=None if tls_ca is None else _read_authority(tls_ca),
    )
    try:
        interrupts.run(Connector(connecting).run())
    except KeyboardInterrupt:
        note("stopped")


def _read_authority(path: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(path))
    except OSError as error:
        raise UsageError(f"--tls-ca {path} cannot be read: {error}. Give a PEM file with certificates.") from error
