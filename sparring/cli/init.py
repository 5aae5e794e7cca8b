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
from sparring.traces import SCRATCH, Decisions, Marking, Written, describe, read_traces, write_recipe

FromTraces = Annotated[
    Path | None,
    typer.Option(
        "--from-traces",
        metavar="TRACES",
        help="Write a recipe from logged conversations: a file or folder with OpenAI messages, MLflow traces, OpenTelemetry "
        "GenAI spans, or a recording.",
    ),
]
GoodField = Annotated[
    str | None,
    typer.Option(metavar="FIELD", help="With --from-traces: the field that marks a conversation as good or bad."),
]
GoodAtLeast = Annotated[
    float,
    typer.Option(metavar="NUMBER", help="With --from-traces: the least number that marks a conversation as good."),
]
Writes = Annotated[
    list[str] | None,
    typer.Option(metavar="TOOL", help="With --from-traces: this tool changes something; may be repeated."),
]
Reads = Annotated[
    list[str] | None, typer.Option(metavar="TOOL", help="With --from-traces: this tool only reads; may be repeated.")
]

SplitBy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ARGUMENT",
        help="With --from-traces: splits share no value of this argument of calls, and may share those of others; may be "
        "repeated. By default, of all arguments that identify what a task is about.",
    ),
]


@app.command()
@report_failures
def init(
    folder: Annotated[
        Path | None, typer.Argument(help="A new folder; with --model by default the model's name.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Write a recipe for this model: qwen3-1.7b, OWNER/NAME of the hub, or a folder. With --from-traces also "
            "scratch, a small model that needs no download.",
        ),
    ] = None,
    from_traces: FromTraces = None,
    good_field: GoodField = None,
    good_at_least: GoodAtLeast = 0.5,
    writes: Writes = None,
    reads: Reads = None,
    split_by: SplitBy = None,
    as_json: Json = False,
) -> None:
    """Write a recipe that runs, as a starting point: a small example, or from logged conversations."""
    is_scratch = from_traces is not None and model == SCRATCH
    starter = None if model is None or is_scratch else find_starter(model)
    if folder is None:
        if model is None:
            raise UsageError("specify a new folder: sparring init FOLDER.")
        folder = Path(Path(model).name.lower())
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty; specify a new folder.")
    if from_traces is not None:
        marking = Marking(at_least=good_at_least) if good_field is None else Marking((good_field,), good_at_least)
        decisions = Decisions(
            model=SCRATCH if is_scratch else starter, writing=writes or (), reading=reads or (), apart=split_by or ()
        )
        traces = read_traces(from_traces, marking)
        if good_field is not None:
            traces.require_marks(good_field)
        made = write_recipe(traces, folder, decisions)
        if as_json:
            print_json({"folder": str(folder), **made.as_json()})
        else:
            _show_traces(made, folder)
        return
    _write_recipe(folder, starter)
    written = sorted(str(path) for path in folder.iterdir())
    if as_json:
        print_json({"folder": str(folder), "files": written})
        return
    say(f"wrote {', '.join(written)}")
    _show_next(folder)


def _show_next(folder: Path) -> None:
    quoted = shlex.quote(str(folder))
    say(f"next: sparring check {quoted}, then sparring train {quoted}")


def _show_traces(made: Written, folder: Path) -> None:
    for line in describe(made):
        say(line)
    say(f"wrote the recipe into {folder}; {folder / 'traces.json'} has these numbers")
    _show_next(folder)


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
