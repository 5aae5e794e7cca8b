"""Lists the benchmarks with their last figures, or runs small versions of them: `python -m benchmarks [--smoke] [NAME
...]`."""

from __future__ import annotations

import argparse
import sys

from benchmarks.smoke import results, scripts, smoke_all

SHOWN_FIGURES = 3


def list_all() -> None:
    for name, summary in scripts().items():
        print(f"python -m benchmarks.{name}\n    {summary}")
        for stored in results(name):
            # Figures with a target come first.
            figures = sorted(stored["figures"], key=lambda figure: figure not in stored["targets"])
            shown = [f"{figure} {stored['figures'][figure]:.3g}" for figure in figures]
            more = f"; {len(shown) - SHOWN_FIGURES} more" if len(shown) > SHOWN_FIGURES else ""
            print(
                f"    {stored['date']}, {stored['commit']}, {stored['machine']}: {'; '.join(shown[:SHOWN_FIGURES])}{more}"
            )


def main() -> int:
    known = scripts()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--smoke", action="store_true", help="run small versions in a few minutes, to test that every side runs"
    )
    parser.add_argument("names", nargs="*", help="only these")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if arguments.smoke:
        return smoke_all(arguments.names or list(known))
    list_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
