"""Runs the tutorials as a reader does: each page's files and commands, in order: `python -m tests.tutorials [PAGE ...]`.

A block after `<!-- tutorial: PATH -->` is a file, and each line of a block of `sh` is a command. `--small` trains for a step,
to see in seconds that the commands work; whole, the evaluation of each page must claim a gain over the strongest control.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("tutorial*.md"))
BLOCK = re.compile(
    r"^(?:<!-- tutorial: (?P<path>\S+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
SMALL = (
    "warm_start.steps=2",
    "warm_start.num_demonstrations=64",
    "warm_start.control_steps=2",
    "batch.global_batch_size=2",
    "batch.group_size=2",
    "schedule.max_steps=1",
    "evaluation.eval_num_tasks=4",
    "evaluation.val_num_tasks=4",
    "evaluation.allow_zero_baseline=true",
)
GAIN = re.compile(r"better than [^;+]*warm start continued")
"""The claim of each page's evaluation: a gain over the warm start continued, in words that depend on which took longer."""
SECONDS = 900
"""The longest that one command may take."""


@dataclass(frozen=True, slots=True)
class File:
    path: str
    text: str

    def write(self, folder: Path) -> None:
        path = folder / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text, "utf-8")


@dataclass(frozen=True, slots=True)
class Command:
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)

    @property
    def name(self) -> str:
        """The command of sparring, or the program."""
        return self.words[1] if self.words[0] == "sparring" else self.words[0]

    def run(self, folder: Path, *, is_small: bool = False) -> subprocess.CompletedProcess[str]:
        """Run the command in the reader's folder. A small training ends after one step."""
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        return subprocess.run(
            [*self.words, *(SMALL if is_small and self.name == "train" else ())],
            cwd=folder,
            env={**os.environ, "PATH": path, "COLUMNS": "120"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )


def read_steps(page: Path) -> Iterator[File | Command]:
    """Yield the files and commands of a page, in order."""
    for block in BLOCK.finditer(page.read_text("utf-8")):
        if block["path"]:
            yield File(block["path"], block["text"])
        elif block["language"] == "sh":
            yield from map(Command, block["text"].splitlines())


def run_page(page: Path, folder: Path, *, is_small: bool) -> str | None:
    """Run a page in an empty folder, and print what its commands print. Return what went wrong, or None."""
    evaluated = ""
    for step in read_steps(page):
        if isinstance(step, File):
            step.write(folder)
            continue
        began = time.monotonic()
        ran = step.run(folder, is_small=is_small)
        print(f"$ {step.text}\n{ran.stdout}({time.monotonic() - began:.0f} s, exit code {ran.returncode})")  # noqa: T201
        if ran.returncode:
            return f"{step.text} failed:\n{ran.stderr[-3000:]}"
        evaluated = ran.stdout if step.name == "eval" else evaluated
    if not is_small and GAIN.search(" ".join(evaluated.split())) is None:
        return f"the evaluation does not claim {GAIN.pattern!r}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    arguments = parser.parse_args()
    for page in arguments.pages:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            problem = run_page(page, Path(folder), is_small=arguments.small)
        print(f"{page.name}: {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
        if problem:
            print(f"{page.name}: {problem}", file=sys.stderr)  # noqa: T201
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
