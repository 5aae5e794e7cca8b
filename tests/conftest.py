"""What holds for every test."""

import compileall
import logging
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.tiers import CI_SECONDS, LONG, ROOT, SLOW, TIERS, choose, read_list

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
    parser.addoption("--tier", choices=TIERS, default="all", help="the part of the suite to run (tests/tiers.py)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In the tier `fast`, leave out the files that take long."""
    if config.getoption("--tier") != "fast" or not collection_path.is_relative_to(ROOT):
        return None
    return True if collection_path.relative_to(ROOT).as_posix() in read_list(SLOW) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the tiers `usual`, `ci` and `long`, keep their tests."""
    tier = config.getoption("--tier")
    if tier in ("all", "fast"):
        return
    chosen = choose([item.nodeid for item in items], tier, read_list(LONG))
    left_out = [item for item, keep in zip(items, chosen, strict=True) if not keep]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item, keep in zip(items, chosen, strict=True) if keep]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    long = "long tests (tests/long_tests.txt); `make long` runs them"
    left_out = {
        "fast": f"{len(read_list(SLOW))} slow files (tests/slow_files.txt); `make test` and `make long` run everything",
        "usual": f"{len(read_list(LONG))} {long}",
        "ci": f"{sum(seconds > CI_SECONDS for seconds in read_list(LONG).values())} {long} and further cases of the others",
        "long": "the tests of `make test`",
    }
    tier = config.getoption("--tier")
    if tier in left_out:
        terminalreporter.write_line(f"LEFT OUT: {left_out[tier]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Undo what a test changes at the logger of the package, such as a command that runs in this process."""
    logger = logging.getLogger("sparring")
    handlers, propagate = list(logger.handlers), logger.propagate
    try:
        return (yield)
    finally:
        logger.handlers[:], logger.propagate = handlers, propagate
