"""Define the command-line application and the options that commands share, and report errors."""

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
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from sparring.cli.extras import find_extra
from sparring.errors import ServiceError, SparringError, UsageError, cut
from sparring.runtime.cancellable import has_abandoned
from sparring.runtime.faults import arm_from_environment
from sparring.runtime.interrupts import Terminated, exit_code, raise_on_signals
from sparring.runtime.logs import ignore_write_errors, show_on_stderr
from sparring.runtime.redaction import mask_secrets
from sparring.runtime.terminal import visible
from sparring.supervision.report import supervised
from sparring.supervision.supervisor import Supervisor

SUPERVISED = frozenset({"bootstrap", "check", "control", "eval", "quickstart", "replay", "review"})
"""Commands that run a recipe's code in a separate process, as `train` does, so that no child process remains."""


MOST_CHARACTERS = 3000
"""The length of the longest message of an error. Parts of it may come from a file."""


_MOST_OF_USAGE_ERROR = 1000
"""The same for an error in the words of a command line, which is shown in a box."""


_INTERRUPTED = frozenset({exit_code(KeyboardInterrupt()), exit_code(Terminated())})


_results: ContextVar[TextIO | None] = ContextVar("results", default=None)
"""Where `print_json` writes; None is standard output."""


_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


_NO_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN})


_WRONG_KIND = {
    errno.EISDIR: "This path must be a file but is a folder",
    errno.ENOTDIR: "A part of this path must be a folder but is a file",
}


def report_failures(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that it reports its failures.

    Errors that the user can fix are reported with their message and exit code. For a bug, a file with the traceback is
    written.
    """

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            with _results_alone() if options.get("as_json") else nullcontext():
                command(*arguments, **options)
        except SparringError as error:
            say_error(f"{error}{_raised_at(error.__cause__) if error.exit_code == 1 else ''}")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt as error:
            note("interrupted")
            raise typer.Exit(exit_code(error)) from None
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - nothing above can report it
            raise typer.Exit(_report_unexpected(error)) from None

    return run


def _report_unexpected(error: Exception) -> int:
    """Report an error that a command does not expect, and return the exit code."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        say_error(f"{error}. Give a shorter name: file systems allow 255 bytes.")
        return UsageError.exit_code
    if isinstance(error, OSError):
        advice = _for_os_error(error)
    else:
        advice = _for_missing_package(error) if isinstance(error, ModuleNotFoundError) else None
    if advice is None:
        _report_bug(error)
        return 1
    say_error(f"{error}. {advice}")
    return ServiceError.exit_code


def _for_os_error(error: OSError) -> str | None:
    """Return what to do about a failed operation on a file, or None if the error is a bug."""
    if error.errno in _NO_ROOM:
        return "Free up disk space, or write to a different location, and try again."
    if error.filename is None:
        return None
    if error.errno in _NO_ACCESS:
        return "Check the disk and the permissions, and try again."
    if error.errno in _WRONG_KIND:
        return f"{_WRONG_KIND[error.errno]}. Move it away, and try again."
    return None


def _for_missing_package(error: ModuleNotFoundError) -> str | None:
    """Return how to install a package that this installation of Sparring left out, or None if no extra has it."""
    extra = find_extra(error.name or "")
    return None if extra is None else f"Install it with: pip install 'sparring[{extra}]'"


class _Commands(TyperGroup):
    """The commands. The messages about a wrong command line are short, and show control characters of its words."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _short_message():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _short_message():
            return super().invoke(ctx)


@contextmanager
def _short_message() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(
            message := getattr(error, "message", None), str
        ):  # an error of typer, or of click in older versions
            error.message = cut(visible(message), _MOST_OF_USAGE_ERROR)  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    cls=_Commands,
    name="sparring",
    help="Multi-turn reinforcement learning for language-model agents. Start with `sparring quickstart`, then `sparring init`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        say(f"sparring {version('sparring')}")
        raise typer.Exit


@app.callback()
def _with_options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


runs_app = typer.Typer(help="Show, stop or branch runs.", no_args_is_help=True)


app.add_typer(runs_app, name="runs")


keys_app = typer.Typer(help="Create, list, rotate or revoke keys by name.", no_args_is_help=True)


app.add_typer(keys_app, name="keys")


Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document on standard output.")]


Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or its name in `runs/`.")]


Prices = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND=AMOUNT",
        help="A price; may be repeated. Kinds: prefill, sample, train (per million tokens), hour (of the machine); for "
        "endpoints MODEL:read, MODEL:cached, MODEL:sample, MODEL:train. By default the recipe's tracking.prices.",
    ),
]


Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Change fields of the recipe.")
]


On = Annotated[
    Path | None,
    typer.Option(
        "--on", metavar="PLACE.TOML", help="Place file: where it runs. It overrides the recipe (docs/places.md)."
    ),
]


def read_place_overrides(on: Path | None, recipe: Path, changes: Sequence[str]) -> list[str]:
    """Return the overrides from a place file (settings of one machine or cluster) that apply to the recipe. They go
    before the user's overrides."""
    from sparring.config import read_place

    return [] if on is None else read_place(on).overrides(recipe, changes)


def _prepare_output() -> None:
    # The progress bars and deprecation warnings of the libraries that load models would hide the command's own output.
    os.environ.setdefault("TQDM_DISABLE", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    sys.stderr = ignore_write_errors(sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character shows its code
    show_on_stderr()


def main() -> None:
    """Run the `sparring` command."""
    _prepare_output()
    report = supervised()
    name = next(iter(sys.argv[1:]), "")
    if name in SUPERVISED and not report.is_heard and "--help" not in sys.argv:
        command = (sys.executable, "-P", "-m", "sparring", *sys.argv[1:])
        sys.exit(Supervisor(command, None, what=f"`sparring {name}`", say=note).run())
    raise_on_signals()
    try:
        arm_from_environment()
        app()
    except SparringError as error:
        say_error(str(error))
        report.over(error.exit_code)
        sys.exit(error.exit_code)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        report.over(code)
        if code not in _INTERRUPTED and not has_abandoned():
            raise
        # Threads may still run in the model: an interpreter shutdown would crash, and waiting for them may take long.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def resolve_run(run: Path) -> Path:
    """Return the path of a run. The user may give the path itself, or the run's name in `runs/`. Raises DataError if the run
    contains links to other places."""
    from sparring.run_folders.links import refuse_foreign_files
    from sparring.run_folders.recipe_files import RUN_RECIPE

    path = Path("runs") / run if not run.exists() and (Path("runs") / run).is_dir() else run
    if (path / RUN_RECIPE).is_file():
        refuse_foreign_files(path)
    return path


def _raised_at(error: BaseException | None) -> str:
    """Return a line that states where the user's code raised the error, or "" if it did not."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return (
        f"\nIt was raised in {frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}." if frames else ""
    )


def _report_bug(error: Exception) -> None:
    descriptor, path = tempfile.mkstemp(prefix="sparring-error-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(mask_secrets(f"sparring {' '.join(sys.argv[1:])}\n\n{''.join(traceback.format_exception(error))}"))
    say_error(
        f"{type(error).__name__}: {error}\nThis error is unexpected. If your own code did not raise it, please "
        f"report it. The traceback is in {path}."
    )


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


def say_error(text: str) -> None:
    """Print an error on standard error, without secrets and without the middle of a very long text."""
    note(f"error: {cut(mask_secrets(text), MOST_CHARACTERS)}")


def note(line: str) -> None:
    """Print a line that is not a result, on standard error."""
    typer.echo(visible(line), err=True)


def say(line: str) -> None:
    """Print a line of the result on standard output."""
    typer.echo(visible(line))
