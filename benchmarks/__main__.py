"""Lists the benchmarks with their latest figures, or runs small versions of them: `python -m benchmarks [--smoke] [NAME
...]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.report import holds, words_of
from benchmarks.smoke import BUDGET_SECONDS, results, scripts, smoke_all

SHOWN_FIGURES = 3


def list_all() -> None:
    for name, summary in scripts().items():
        print(f"python -m benchmarks.{name}\n    {summary}")
        found = list(results(name))
        for stored in found:
            print(f"    {stored['date']}, {stored['commit']}, {stored['machine']}: {describe_figures(stored)}")
        if not found:
            print("    no stored result")


def describe_figures(stored: Mapping[str, Any]) -> str:
    """Return the most important figures in a stored result. Missed targets come first and are never omitted."""
    figures, targets = stored["figures"], stored["targets"]
    missed = [figure for figure in figures if figure in targets and not holds(figures[figure], targets[figure])]
    ordered = sorted(figures, key=lambda figure: (figure not in missed, figure not in targets))
    shown = [
        f"{figure} {figures[figure]:.3g}" + (f" (MISSED: {words_of(targets[figure])})" if figure in missed else "")
        for figure in ordered
    ]
    num = max(SHOWN_FIGURES, len(missed))
    return "; ".join([*shown[:num], *([f"{len(shown) - num} more"] if len(shown) > num else [])])


def main() -> int:
    known = scripts()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--smoke", action="store_true", help="run small versions in a few minutes, to test that every side runs"
    )
    parser.add_argument(
        "--budget-seconds", type=float, default=BUDGET_SECONDS, help="--smoke fails if all together take longer"
    )
    parser.add_argument("names", nargs="*", help="only these")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if arguments.smoke:
        return smoke_all(arguments.names or list(known), budget_seconds=arguments.budget_seconds)
    list_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
