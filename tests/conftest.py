"""What holds for every test."""

import compileall
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.slow import ROOT, slow_files

# How long an example takes means nothing on a machine that does something else too; pytest's own timeout stays.
settings.register_profile("sparring", deadline=None)
settings.load_profile("sparring")

# A shell starts what runs in the background deaf to Ctrl-C, and so would be the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Half characters in what a test printed or logged are replaced: a worker of pytest-xdist cannot send them."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package where Python writes no bytecode: the many processes of the tests read it, but write none."""
    if sys.dont_write_bytecode and not hasattr(config, "workerinput"):
        compileall.compile_dir(ROOT / "sparring", quiet=2)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out the files of tests/slow_files.txt")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--fast`, leave out the test files that take long."""
    if not config.getoption("--fast") or not collection_path.is_relative_to(ROOT):
        return None
    return True if collection_path.relative_to(ROOT).as_posix() in slow_files() else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--fast"):
        terminalreporter.write_line(
            f"LEFT OUT: {len(slow_files())} slow files (tests/slow_files.txt); `make test` runs everything"
        )
