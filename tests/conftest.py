"""What holds for every test."""

import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

from sparring.checks.report import CheckReport

# How long an example takes says nothing on a machine that does something else too; pytest's own timeout stays.
settings.register_profile("sparring", deadline=None)
settings.load_profile("sparring")

# A shell starts what runs in the background deaf to Ctrl-C, and so would be the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def trains_unchecked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings in this process do not check their recipe first, which would take as long as many of them.

    `@pytest.mark.checked` has them check. Those in processes of their own do.
    """
    if request.node.get_closest_marker("checked") is None:
        nothing = CheckReport.of("unchecked", (), (), seconds=0.0)

        async def loaded(*_: object) -> CheckReport:
            return nothing

        monkeypatch.setattr("sparring.checks.gate.check_unloaded", lambda *_: nothing)
        monkeypatch.setattr("sparring.checks.gate.check_loaded", loaded)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Half characters in what a test printed or logged are replaced: a worker of pytest-xdist cannot send them."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report
