"""The application that the commands belong to, their common options, and the report of errors."""

from __future__ import annotations

import errno
import functools
import io
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from sparring.errors import ServiceError, SparringError
from sparring.runtime.cancellable import has_abandoned
from sparring.runtime.faults import arm_from_environment
from sparring.runtime.interrupts import Terminated, exit_code, raise_on_signals
from sparring.runtime.logs import ignore_write_errors, show_on_stderr
from sparring.runtime.redaction import mask_secrets
from sparring.supervision.report import supervised
from sparring.supervision.supervisor import Supervisor

SUPERVISED = frozenset({"check", "eval", "replay", "review"})
"""Commands that run a recipe's code in a separate process, like `train`, so that none of its child processes is left over."""


_INTERRUPTED = frozenset({exit_code(KeyboardInterrupt()), exit_code(Terminated())})


_results: ContextVar[TextIO | None] = ContextVar("results", default=None)
"""Where `print_json` writes; None is standard output."""


_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


_NO_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EIO})


_WRONG_KIND = {
    errno.EISDIR: "A folder stands where a file belongs",
    errno.ENOTDIR: "A file stands where a folder belongs",
}


def report_failures(command: Callable[..., None]) -> Callable[..., None]:
    """Report failures: an error that a user can act on with its message and exit code, a bug with a file of its traceback."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            with _results_alone() if options.get("as_json") else nullcontext():
                command(*arguments, **options)
        except SparringError as error:
            typer.echo(
                mask_secrets(f"error: {error}{_raised_at(error.__cause__) if error.exit_code == 1 else ''}"), err=True
            )
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt as error:
            typer.echo("interrupted", err=True)
            raise typer.Exit(exit_code(error)) from None
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - the last place where it can be reported
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                typer.echo(
                    mask_secrets(f"error: {error}. Make room there, or write elsewhere, and do it again."), err=True
                )
                raise typer.Exit(ServiceError.exit_code) from None
            if isinstance(error, OSError) and error.errno in _NO_ACCESS and error.filename is not None:
                typer.echo(
                    mask_secrets(f"error: {error}. Check the disk and its permissions, and do it again."), err=True
                )
                raise typer.Exit(ServiceError.exit_code) from None
            if isinstance(error, OSError) and error.errno in _WRONG_KIND and error.filename is not None:
                typer.echo(
                    mask_secrets(f"error: {error}. {_WRONG_KIND[error.errno]}: move it away, and do it again."),
                    err=True,
                )
                raise typer.Exit(ServiceError.exit_code) from None
            _report_bug(error)
            raise typer.Exit(1) from None

    return run


app = typer.Typer(
    name="sparring",
    help="Multi-turn reinforcement learning for language-model agents. Start with `sparring init FOLDER`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


runs_app = typer.Typer(help="Look at runs, or stop one.", no_args_is_help=True)


app.add_typer(runs_app, name="runs")


Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document on standard output.")]


Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or its name in `runs/`.")]


Prices = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND=AMOUNT",
        help="May be repeated: prefill, sample, train (a million tokens each), hour (of the machine); of an endpoint MODEL:read, "
        "MODEL:cached, MODEL:sample. By default the recipe's tracking.prices.",
    ),
]


Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Change fields of the recipe.")
]


On = Annotated[
    Path | None,
    typer.Option(
        "--on", metavar="PLACE.TOML", help="Where it runs: settings that win over the recipe's (docs/places.md)."
    ),
]


def read_place_overrides(on: Path | None, recipe: Path, changes: Sequence[str]) -> list[str]:
    """Return the settings of a place file that a recipe reads, as overrides to put before the user's."""
    from sparring.config import read_place

    return [] if on is None else read_place(on).overrides(recipe, changes)


def main() -> None:
    """Run the `sparring` command."""
    # The progress bars and deprecation warnings of the libraries that load models would hide our own lines.
    os.environ.setdefault("TQDM_DISABLE", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    sys.stderr = ignore_write_errors(sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that has no such letter shows its number
    show_on_stderr()
    report = supervised()
    name = next(iter(sys.argv[1:]), "")
    if name in SUPERVISED and not report.is_heard and "--help" not in sys.argv:
        command = (sys.executable, "-P", "-m", "sparring", *sys.argv[1:])
        sys.exit(
            Supervisor(command, None, what=f"`sparring {name}`", say=lambda line: typer.echo(line, err=True)).run()
        )
    raise_on_signals()
    try:
        arm_from_environment()
        app()
    except SparringError as error:
        typer.echo(mask_secrets(f"error: {error}"), err=True)
        report.over(error.exit_code)
        sys.exit(error.exit_code)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        report.over(code)
        if code not in _INTERRUPTED and not has_abandoned():
            raise
        # Threads may still run in the model: shutting the interpreter down would crash, and waiting may take long.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def resolve_run(run: Path) -> Path:
    """Return the path of a run, which is named by its path or by its name in `runs/`."""
    return Path("runs") / run if not run.exists() and (Path("runs") / run).is_dir() else run


def _raised_at(error: BaseException | None) -> str:
    """Return a line with the place where the user's code raised; empty when it did not."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return (
        f"\nIt was raised in {frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}." if frames else ""
    )


def _report_bug(error: Exception) -> None:
    descriptor, path = tempfile.mkstemp(prefix="sparring-error-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(mask_secrets(f"sparring {' '.join(sys.argv[1:])}\n\n{''.join(traceback.format_exception(error))}"))
    text = (
        f"error: {type(error).__name__}: {error}\nThis is not a mistake that Sparring knows; if your own code did not "
        f"raise it, please report it. The traceback is in {path}."
    )
    typer.echo(mask_secrets(text), err=True)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1), file=_results.get())


@contextmanager
def _results_alone() -> Iterator[None]:
    """Reserve standard output for `print_json`; the output of a recipe's code goes to standard error."""
    before = _results.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results.reset(before)


def say(line: str) -> None:
    typer.echo(line)
