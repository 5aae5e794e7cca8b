"""The watch around calls of user code: their arguments, how long they may take, and what a late one is called."""

import time

import pytest

from sparring.checks.running.deadlines import CallTimeoutError, Watch


def test_arguments_of_a_tool_may_be_called_as_ours_are() -> None:
    def look(what: str, function: str, self_: str) -> str:
        return what + function + self_

    assert Watch().call("look", look, what="a", function="b", self_="c") == "abc"


def test_a_call_may_take_five_times_as_long_as_the_environment_takes_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparring.checks.running.deadlines.load_of_machine", lambda: 1.0)
    watch = Watch(seconds=0.2, start_seconds=9.0)
    assert (watch.limit("Desk.reset()"), watch.limit("Desk.find(title='Emma')")) == (9.0, 0.2)
    watch.call("Desk.reset()", time.sleep, 0.1)
    assert watch.limit("Desk.find(title='Emma')") == pytest.approx(0.5, rel=0.4)
    monkeypatch.setattr("sparring.checks.running.deadlines.load_of_machine", lambda: 3.0)
    assert watch.limit("Desk.find(title='Emma')") == pytest.approx(1.5, rel=0.4)


@pytest.mark.timeout(0)  # whose alarm would be in the way of the watch's
def test_what_was_late_twice_is_not_called_again_and_others_are() -> None:
    watch = Watch(seconds=0.05)
    calls = []

    def hang(title: str) -> None:
        calls.append(title)
        time.sleep(5)

    for _ in range(4):
        with pytest.raises(CallTimeoutError, match=r"Desk\.find\(title='Emma'\) had not returned after"):
            watch.call("Desk.find(title='Emma')", hang, "Emma")
    assert len(calls) == 2
    assert watch.call("Desk.floor(shelf='A')", lambda: 3) == 3


@pytest.mark.timeout(0)
def test_limits_are_the_same_after_a_late_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparring.checks.running.deadlines.load_of_machine", lambda: 1.0)
    watch = Watch(seconds=0.05)
    with pytest.raises(CallTimeoutError):
        watch.call("Desk.find()", time.sleep, 5)
    assert watch.limit("Desk.floor()") == 0.05
