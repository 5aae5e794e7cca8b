"""Runs the tutorial as a reader does: its files, then every command, in order: `python -m tests.tutorials [--small]`.

`--small` trains for a step, to see in seconds that the commands work; whole, the last claim must be a gain.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
SMALL = (
    "warm_start.steps=2",
    "warm_start.num_demonstrations=64",
    "schedule.max_steps=1",
    "evaluation.eval_num_tasks=4",
    "evaluation.val_num_tasks=4",
    "evaluation.allow_zero_baseline=true",
    "warm_start.control_steps=2",
)
GAIN = "better than imitation for as long as RL"
SECONDS = 900
"""The longest that one command may take."""


def read_files() -> dict[str, str]:
    """Return the files of the page by name."""
    found = re.findall(r"<!-- example: tutorial/(\S+) -->\n```\w+\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return dict(found)


def read_commands() -> Iterator[str]:
    """Yield the commands of the page, in order."""
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        yield from block.splitlines()


def write_files(folder: Path) -> None:
    """Write the files of the page into the folder that it names."""
    (folder / "lockers").mkdir()
    for name, text in read_files().items():
        (folder / "lockers" / name).write_text(text, "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    evaluated = ""
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        for command in read_commands():
            words = command.split()
            if arguments.small and words[1] == "train":
                words += SMALL
            began = time.monotonic()
            ran = subprocess.run(
                words,
                cwd=folder,
                env={**os.environ, "PATH": path, "COLUMNS": "120"},
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            print(f"$ {command}\n{ran.stdout[-3000:]}({time.monotonic() - began:.0f} s, exit code {ran.returncode})")  # noqa: T201
            if ran.returncode:
                print(ran.stderr[-3000:], file=sys.stderr)  # noqa: T201
                return 1
            evaluated = ran.stdout if words[1] == "eval" else evaluated
    if not arguments.small and GAIN not in " ".join(evaluated.split()):
        print(f"the evaluation does not say {GAIN!r}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
