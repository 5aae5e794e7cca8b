"""Measures the wall time of `make quickstart` or `make quickstart-long` against the same target of an earlier commit.

Each round runs both sides, one after the other, with the packages of this environment. A side runs the command of its
own Makefile: training, control and evaluation. The earlier commit is taken from the history of this checkout.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.evidence import SMOKE
from benchmarks.report import needs, options, report

ROOT = Path(__file__).parents[1]
EARLIER = "8106024"
"""The last commit before the work on speed."""
MOST = 0.55
"""The share of the earlier time that a quickstart may take."""
TARGETS = ("quickstart", "quickstart-long")
HOURS = 3


def check_out(commit: str, folder: Path) -> Path:
    """Write the files of a commit into a folder, and return it."""
    archive = folder / "files.tar"
    command = ["git", "archive", "--format=tar", f"--output={archive}", commit]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        needs(f"the commit {commit}: a clone with the whole history")
    with tarfile.open(archive) as files:
        files.extractall(folder / commit, filter="data")
    return folder / commit


def command_of(checkout: Path, target: str) -> list[str]:
    """Return the last command of a target of the checkout's Makefile, with the programs of this environment."""
    # A make that runs this benchmark passes options on, which would print other lines.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--dry-run", "--no-print-directory", target]
    printed = subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True, check=True).stdout
    program, *words = shlex.split(printed.strip().splitlines()[-1])
    return [str(Path(sys.executable).with_name(Path(program).name)), *words]


def measure(checkout: Path, target: str, overrides: list[str], folder: Path) -> float:
    """Return the seconds of a target. Exit if it fails."""
    command = [*command_of(checkout, target), *overrides, f"run.runs_dir={folder / 'runs'}"]
    began = time.monotonic()
    done = subprocess.run(
        command,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        timeout=HOURS * 3600,
        check=False,
    )
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"`{shlex.join(command)}` ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    return seconds


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--target", choices=TARGETS, default=TARGETS[0], help="a target of the Makefile")
    parser.add_argument("--against", default=EARLIER, metavar="COMMIT", help=f"the earlier commit (default: {EARLIER})")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side (default: 3)")
    arguments = parser.parse_args()
    target, rounds = arguments.target, arguments.rounds
    overrides: list[str] = []
    if rounds < 1:
        parser.error(f"--rounds is {rounds}, but at least 1 round is measured")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.smoke:
            earlier, rounds, overrides = ROOT, 1, [*SMOKE]
        else:
            earlier = check_out(arguments.against, folder)
        for number in range(1, rounds + 1):
            row: dict[str, Any] = {"round": number}
            for side, checkout in (("now", ROOT), ("earlier", earlier)):
                row[side] = measure(checkout, target, overrides, folder)
            rows.append(row | {"ratio": row["now"] / row["earlier"]})
    ratio = f"seconds for each second at {arguments.against}"
    return report(
        "quickstart",
        rows,
        figures={ratio: median(row["ratio"] for row in rows), "seconds": median(row["now"] for row in rows)},
        targets={ratio: {"at_most": MOST}},
        path=arguments.json,
        sides={side: sum(row[side] for row in rows) for side in ("now", "earlier")},
        smoke=arguments.smoke,
    )


if __name__ == "__main__":
    sys.exit(main())
