"""The test files that `make fast` leaves out: `python -m tests.slow REPORT.xml` renews the list from a run of the suite.

    .venv/bin/python -m pytest -n 3 --dist worksteal --junitxml REPORT.xml && .venv/bin/python -m tests.slow REPORT.xml

Files are kept from the quickest on, until together they take SECONDS of processor time.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

LIST = Path(__file__).with_name("slow_files.txt")
ROOT = Path(__file__).parents[1]
SECONDS = 70
"""Seconds of all files that are kept, on one core."""


def slow_files() -> frozenset[str]:
    """Return the files that `make fast` leaves out, relative to the project."""
    return frozenset(LIST.read_text("utf-8").split())


def measure_files(report: Path) -> Counter[str]:
    """Return the seconds that each test file took, from a JUnit report of pytest."""
    seconds: Counter[str] = Counter()
    for case in ET.parse(report).iter("testcase"):
        parts = case.attrib["classname"].split(".")
        while parts and not (ROOT / "/".join(parts)).with_suffix(".py").is_file():
            parts.pop()
        if parts:
            seconds["/".join(parts) + ".py"] += float(case.attrib["time"])  # pyright: ignore[reportArgumentType]
    return seconds


def main(report: Path) -> None:
    seconds = measure_files(report)
    total, kept = 0.0, set[str]()
    for name, of_file in sorted(seconds.items(), key=lambda item: item[1]):
        total += of_file
        if total > SECONDS:
            break
        kept.add(name)
    LIST.write_text("".join(f"{name}\n" for name in sorted(seconds) if name not in kept), "utf-8")
    print(f"{len(kept)} of {len(seconds)} files are fast", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
