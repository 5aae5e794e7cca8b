"""Recipes, data sets, run folders and command lines that were damaged at random end a command with a short message, never as a
bug. `python -m benchmarks.mutations` tries thousands."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.mutations import KINDS, End, build, cases, damage, damage_line, play, run_command, run_here


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template")
    build(path)
    return path


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def wrong_ends(
    seed: int, num: int, template: Path, run: Callable[[Sequence[str]], End] = run_here, **limit: float
) -> list[str]:
    played = play(cases(seed, range(num), template), run, **limit)
    assert {case.kind for case, _, _ in played} == set(KINDS)
    assert sum(end.code != 0 for _, end, _ in played) > num / 4, "the damage is hardly noticed"
    return [f"case {case.number}: {faults}\n{end.errors}" for case, end, faults in played if faults]


def test_damaged_files_and_command_lines_end_with_a_short_message(template: Path) -> None:
    assert not wrong_ends(0, 32, template)


def test_hundreds_of_damaged_files_and_command_lines_end_with_a_short_message(template: Path) -> None:
    assert not wrong_ends(2, 400, template)


def test_real_commands_end_with_a_short_message_and_ask_nothing(template: Path) -> None:
    # The benchmark runs them alone on the machine, within 10 s; here, other tests run at the same time.
    assert not wrong_ends(3, 8, template, run_command, most_seconds=60)


def test_a_case_can_be_repeated_by_its_number() -> None:
    assert damage(b"abc" * 9, random.Random("0-7")) == damage(b"abc" * 9, random.Random("0-7"))
    assert damage_line(random.Random("0-7")) == damage_line(random.Random("0-7"))
