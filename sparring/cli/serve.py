"""`sparring serve` and `sparring record`: commands that answer until Ctrl-C."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sparring.cli.command import Json, app, print_json, reported, say
from sparring.config import endpoint_problems, key_from
from sparring.errors import UsageError


@app.command()
@reported
def serve(
    model: Annotated[
        str, typer.Argument(help="A run (RUN@STEP, RUN@best), a model by name, or a folder with model files.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    api_key: Annotated[str | None, typer.Option(envvar="SPARRING_API_KEY", help="Clients must send it.")] = None,
    as_json: Json = False,
) -> None:
    """Answer OpenAI chat requests with a base or tuned model until Ctrl-C."""

    def ready(base_url: str, served_name: str) -> None:
        if as_json:
            print_json({"base_url": base_url, "model": served_name})
        else:
            say(f"{served_name} answers at {base_url}; Ctrl-C stops it")

    from sparring.evaluation.policies import find_checkpoint, named_checkpoint

    served = model
    # What is not there in the folder of runs is no name at a hub, so none is asked for it.
    is_run = Path(model).parts[:1] == ("runs",) and not Path(model).exists()
    if (named := named_checkpoint(model) if is_run else find_checkpoint(model)) is not None:
        folder, step = named
        folder.trained_config()
        served = str(folder.path) if step is None else f"{folder.path}@{step}"
    from sparring.serve import serve as serve_model

    try:
        serve_model(served, host=host, port=port, api_key=api_key, on_ready=ready)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)


@app.command()
@reported
def record(
    upstream: Annotated[str, typer.Option(metavar="URL", help="The endpoint to record, with its /v1.")],
    model: Annotated[str, typer.Option(help="Name of the model at the endpoint; clients may send any.")],
    key_env: Annotated[
        str | None, typer.Option(metavar="VAR", help="Environment variable that holds the endpoint's key.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A new folder; by default runs/recorded-001 and so on.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    as_json: Json = False,
) -> None:
    """Stand in front of an OpenAI-compatible endpoint and write what passes as trajectories, until Ctrl-C."""
    options = {"base_url": "--upstream", "api_key_env": "--key-env"}
    problems = endpoint_problems(base_url=upstream, api_key_env=key_env)
    if problems:
        raise UsageError(" ".join(f"{options[key]} {message}" for key, message in problems))
    from sparring.record import record as record_endpoint
    from sparring.record import recording_path

    folder = out or recording_path(Path("runs"))
    counts = (0, 0)

    def ready(base_url: str) -> None:
        if as_json:
            print_json({"base_url": base_url, "model": model, "path": str(folder)})
            return
        say(f"{model} at {upstream} is recorded into {folder}; Ctrl-C stops it")
        say(f"point the client to {base_url}, with any key: each conversation is an episode")
        say(f"or to {base_url.removesuffix('/v1')}/s/NAME/v1: all that is said there is one episode")

    def counted(turns: int, episodes: int) -> None:
        nonlocal counts
        counts = (turns, episodes)
        # One line that is written over; where that is not possible, a line a turn would only fill a log.
        if sys.stderr.isatty():
            typer.echo(f"\r{turns} turns in {episodes} episodes", err=True, nl=False)

    try:
        record_endpoint(
            upstream, model, folder, api_key=key_from(key_env), host=host, port=port, on_ready=ready, on_turn=counted
        )
    except KeyboardInterrupt:
        typer.echo("\nstopped" if sys.stderr.isatty() else "stopped", err=True)
        if not as_json:
            say(f"{counts[0]} turns in {counts[1]} episodes: {folder / 'trajectories'}")
