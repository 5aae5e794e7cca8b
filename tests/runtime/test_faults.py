"""Faults strike where and as often as they were asked to, and do nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sparring.errors import InfrastructureError, UsageError
from sparring.runtime import faults
from sparring.runtime.faults import FAULTS_VARIABLE, LOG_VARIABLE, Fault, arm_for_block, fault_point


def strikes(times: int = 6, point: str = "shop.charge") -> list[bool]:
    found = []
    for _ in range(times):
        try:
            fault_point(point)
            found.append(False)
        except InfrastructureError:
            found.append(True)
    return found


def test_nothing_happens_while_nothing_is_armed() -> None:
    assert strikes() == [False] * 6


def test_a_fault_strikes_from_its_time_on_as_often_as_configured() -> None:
    with arm_for_block(Fault("shop.charge", "error", at=3, times=2)):
        assert strikes(point="shop.refund") == [False] * 6
        assert strikes() == [False, False, True, True, False, False]
    assert strikes() == [False] * 6


def test_a_share_is_drawn_from_the_seed() -> None:
    drawn = []
    for seed in (1, 1, 2):
        with arm_for_block(Fault("shop.charge", "error", times=1000, share=0.3), seed=seed):
            drawn.append(strikes(400))
    assert drawn[0] == drawn[1] != drawn[2]
    assert 80 < sum(drawn[0]) < 160


def test_what_the_log_holds_has_happened(tmp_path: Path) -> None:
    for expected in ([True, False], [False, False]):
        with arm_for_block(Fault("shop.charge", "error"), log=tmp_path / "log"):
            assert strikes(2) == expected
    assert (tmp_path / "log").read_text() == "shop.charge=error\n"


def test_a_delay_waits_and_an_error_may_be_one_of_pythons() -> None:
    with arm_for_block(Fault("shop.charge", "delay", seconds=0.05), Fault("shop.refund", "error", raises="OSError")):
        began = time.monotonic()
        fault_point("shop.charge")
        assert time.monotonic() - began >= 0.05
        with pytest.raises(OSError, match=r"shop\.refund"):
            fault_point("shop.refund")


def test_faults_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FAULTS_VARIABLE, "shop.charge=error,at=2 ; environment.tool=delay,seconds=0.5,share=0.1,times=9")
    monkeypatch.setenv(LOG_VARIABLE, str(tmp_path / "log"))
    with arm_for_block():
        faults.arm_from_environment()
        assert strikes(3) == [False, True, False]
    assert Fault.read("environment.tool=delay,seconds=0.5,share=0.1,times=9") == Fault(
        "environment.tool", "delay", seconds=0.5, share=0.1, times=9
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shop.charge", "is not an action; use one of kill, exit, error, delay"),
        ("shop.charge=explode", "is not an action"),
        ("step.claim=kill", "did you mean 'step.claimed'|did you mean 'step.claiming'"),
        ("shop.charge=error,at=0", "can never happen"),
        ("shop.charge=error,share=2", "can never happen"),
        ("shop.charge=error,when=2", "Write POINT=ACTION"),
        ("shop.charge=error,at=two", "Write POINT=ACTION"),
        ("shop.charge=error,raises=int", "neither InfrastructureError nor a built-in exception"),
    ],
)
def test_what_could_not_strike_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Fault.read(text)
