"""The parts of the suite by the time that tests take: `python -m tests.tiers REPORT.xml` renews them from a run of it.

    .venv/bin/python -m pytest -n 3 --dist worksteal --junitxml REPORT.xml && .venv/bin/python -m tests.tiers REPORT.xml

`make fast` runs the quickest files, until together they take FAST_SECONDS. `make test` runs all tests except the long
ones, and `make long` runs those. A test is long if one of its cases takes more than LONG_SECONDS. ALWAYS names the long
tests that `make test` runs nevertheless. CI runs what `make test` does, and of each long test the first case, unless it takes
more than CI_SECONDS. A new test is in no list, so everything runs it.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
SLOW, LONG = (Path(__file__).with_name(name) for name in ("slow_files.txt", "long_tests.txt"))
FAST_SECONDS, LONG_SECONDS, CI_SECONDS = 60, 5, 15
"""Seconds on one core."""
ALWAYS = frozenset(
    {
        "tests/e2e/test_learning.py::test_pointer_chase_learns_what_the_demonstrations_do_not_teach[0]",
        "tests/contracts/test_training.py::test_it_reaches_the_same_weights_bit_for_bit",
        "tests/engines/test_torch_engine.py::test_every_sampled_token_has_the_log_probability_that_training_recomputes",
        "tests/e2e/test_loop.py::test_a_resumed_run_reaches_the_weights_of_the_uninterrupted_one_bit_for_bit[epochs]",
        "tests/faults/test_command.py::test_sparring_train_resumes_unattended",
        "tests/test_tutorial.py::test_a_tutorial_runs_up_to_a_step_of_training",
        # Its search has a time limit that grows with the load average, which lags behind when the suite starts.
        "tests/checks/test_laws.py::test_a_law_that_is_broken_is_named_and_its_correction_is_not",
    }
)
Tier = Literal["all", "fast", "usual", "ci", "long"]
TIERS: tuple[Tier, ...] = ("all", "fast", "usual", "ci", "long")


def read_list(path: Path) -> dict[str, float]:
    """Return the files or tests of a list, relative to the project, with the seconds of a file or of a test's first case."""
    lines = (line.split() for line in path.read_text("utf-8").splitlines())
    return {name: float(seconds) for name, seconds in lines}


def is_long(test: str, long: Collection[str]) -> bool:
    """Return whether `make test` leaves a test out, given the list of long tests. A case has its parameters after the
    name, in brackets."""
    name = test.partition("[")[0]
    return name in long and not ({test, name} & ALWAYS)


def choose(tests: Iterable[str], tier: Tier, long: Mapping[str, float]) -> list[bool]:
    """Return for each test whether a tier runs it, given the list of long tests."""
    chosen, begun = list[bool](), set[str]()
    for test in tests:
        name = test.partition("[")[0]
        in_ci = name not in begun and long.get(name, 0) <= CI_SECONDS
        begun.add(name)
        chosen.append(is_long(test, long) == (tier == "long") or (tier == "ci" and in_ci))
    return chosen


def read_report(report: Path) -> Iterator[tuple[str, str, float]]:
    """Yield the file, the name in this file and the seconds of each case that ran, in a JUnit report of pytest."""
    for case in ET.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        parts = case.attrib["classname"].split(".")
        classes: list[str] = []
        while parts and not (ROOT / "/".join(parts)).with_suffix(".py").is_file():
            classes.insert(0, parts.pop())
        if parts:
            name = "::".join([*classes, case.attrib["name"]])
            yield "/".join(parts) + ".py", name, float(case.attrib["time"])


def divide(
    report: Path, before: Mapping[str, float], *, fast_seconds: float = FAST_SECONDS
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the files that `make fast` leaves out, and the long tests, with their seconds as in `read_list`, from a JUnit
    report of the whole suite. Tests of the earlier list that did not run here stay long."""
    files, firsts, longest = dict[str, float](), dict[str, float](), dict[str, float]()
    for file, name, seconds in read_report(report):
        test = f"{file}::{name.partition('[')[0]}"
        files[file] = files.get(file, 0.0) + seconds
        firsts.setdefault(test, seconds)
        longest[test] = max(longest.get(test, 0.0), seconds)
    total, slow = 0.0, dict[str, float]()
    for file, seconds in sorted(files.items(), key=lambda item: item[1]):
        total += seconds
        if total > fast_seconds:
            slow[file] = seconds
    did_not_run = {test: seconds for test, seconds in before.items() if test not in longest}
    return slow, did_not_run | {test: firsts[test] for test, seconds in longest.items() if seconds > LONG_SECONDS}


def main(report: Path) -> None:
    for path, chosen in zip((SLOW, LONG), divide(report, read_list(LONG)), strict=True):
        path.write_text("".join(f"{name} {seconds:.0f}\n" for name, seconds in sorted(chosen.items())), "utf-8")
        print(f"{path.name}: {len(chosen)}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
