"""`sparring init`."""

from __future__ import annotations

import shlex
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from sparring.cli.command import Json, app, print_json, report_failures, say
from sparring.errors import UsageError
from sparring.models.starters import Starter, fill_in, find_starter


@app.command()
@report_failures
def init(
    folder: Annotated[
        Path | None, typer.Argument(help="A new folder; with --model by default the model's name.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Write a recipe for this model: qwen3-1.7b, OWNER/NAME of the hub, or a folder."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a small recipe that runs, as a starting point."""
    starter = None if model is None else find_starter(model)
    if folder is None:
        if model is None:
            raise UsageError("specify a new folder: sparring init FOLDER.")
        folder = Path(Path(model).name.lower())
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty; specify a new folder.")
    _write_recipe(folder, starter)
    written = sorted(str(path) for path in folder.iterdir())
    if as_json:
        print_json({"folder": str(folder), "files": written})
        return
    say(f"wrote {', '.join(written)}")
    quoted = shlex.quote(str(folder))
    say(f"next: sparring check {quoted}, then sparring train {quoted}")


def _write_recipe(folder: Path, starter: Starter | None) -> None:
    """Copy the template into the folder, for this model if one was chosen."""
    try:
        with as_file(files("sparring") / "templates" / "recipe") as template:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(template, folder, dirs_exist_ok=True, ignore=ignored)
        if starter is not None:
            recipe = folder / "recipe.toml"
            recipe.write_text(fill_in(recipe.read_text("utf-8"), starter), "utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error}; specify a folder that can be created.") from error
