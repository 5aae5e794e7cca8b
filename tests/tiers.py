"""The parts of the suite by the time that tests take: `python -m tests.tiers REPORT.xml` renews them from a run of it.

    .venv/bin/python -m pytest -n 3 --dist worksteal --junitxml REPORT.xml && .venv/bin/python -m tests.tiers REPORT.xml

`make fast` runs the quickest files, until together they take FAST_SECONDS. `make test` runs all tests except the long
ones, and `make long` runs those. A test is long if one of its cases takes more than LONG_SECONDS. ALWAYS names the long
tests that `make test` runs nevertheless. A new test is in no list, so `make fast` and `make test` run it.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
SLOW, LONG = (Path(__file__).with_name(name) for name in ("slow_files.txt", "long_tests.txt"))
FAST_SECONDS, LONG_SECONDS = 60, 5
"""Seconds on one core."""
ALWAYS = frozenset(
    {
        "tests/e2e/test_learning.py::test_pointer_chase_learns_what_the_demonstrations_do_not_teach[0]",
        "tests/contracts/test_training.py::test_it_reaches_the_same_weights_bit_for_bit",
        "tests/engines/test_torch_engine.py::test_every_sampled_token_has_the_log_probability_that_training_recomputes",
        "tests/e2e/test_loop.py::test_a_resumed_run_reaches_the_weights_of_the_uninterrupted_one_bit_for_bit[epochs]",
        "tests/faults/test_command.py::test_sparring_train_resumes_unattended",
        # Its search has a time limit that grows with the load average, which lags behind when the suite starts.
        "tests/checks/test_laws.py::test_a_law_that_is_broken_is_named_and_its_correction_is_not",
    }
)
Tier = Literal["all", "fast", "usual", "long"]
TIERS: tuple[Tier, ...] = ("all", "fast", "usual", "long")


def read_list(path: Path) -> frozenset[str]:
    """Return the lines of a list: files or tests, relative to the project."""
    return frozenset(path.read_text("utf-8").split())


def is_long(test: str, long: frozenset[str]) -> bool:
    """Return whether `make test` leaves a test out, given the list of long tests. A case has its parameters after the
    name, in brackets."""
    name = test.partition("[")[0]
    return name in long and not ({test, name} & ALWAYS)


def read_report(report: Path) -> Iterator[tuple[str, str, float]]:
    """Yield the file, the name in this file and the seconds of each case in a JUnit report of pytest."""
    for case in ET.parse(report).iter("testcase"):
        parts = case.attrib["classname"].split(".")
        classes: list[str] = []
        while parts and not (ROOT / "/".join(parts)).with_suffix(".py").is_file():
            classes.insert(0, parts.pop())
        if parts:
            name = "::".join([*classes, case.attrib["name"]])
            yield "/".join(parts) + ".py", name, float(case.attrib["time"])


def divide(report: Path, *, fast_seconds: float = FAST_SECONDS) -> tuple[list[str], list[str]]:
    """Return the files that `make fast` leaves out, and the long tests, from a JUnit report of the whole suite."""
    files, tests = Counter[str](), dict[str, float]()
    for file, name, seconds in read_report(report):
        test = f"{file}::{name.partition('[')[0]}"
        files[file] += seconds  # pyright: ignore[reportArgumentType]
        tests[test] = max(tests.get(test, 0.0), seconds)
    total, fast = 0.0, set[str]()
    for file, seconds in sorted(files.items(), key=lambda item: item[1]):
        total += seconds
        if total > fast_seconds:
            break
        fast.add(file)
    slow = sorted(file for file in files if file not in fast)
    return slow, sorted(test for test, seconds in tests.items() if seconds > LONG_SECONDS)


def main(report: Path) -> None:
    for path, chosen in zip((SLOW, LONG), divide(report), strict=True):
        path.write_text("".join(f"{line}\n" for line in chosen), "utf-8")
        print(f"{path.name}: {len(chosen)}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
