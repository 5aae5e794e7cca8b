"""Ask rules about recipe folders in a process of its own, which the recipes may spoil.

It reads a JSON list of {"folder", "rule", "options"} from standard input, and prints the findings of each as a JSON line.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sparring.checks import CHECKS
from sparring.checks.asking import ask
from sparring.checks.given import read_given
from sparring.checks.subject import Subject
from sparring.checks.watch import Watch
from sparring.config import load_config

GIVEN = {"production": None, "schemas": None, "reference": (), "run": None}


def judged(everything: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the rules say, in the order in which they are asked."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # Into files: what a defect leaves running would hold a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        subprocess.run(
            [sys.executable, __file__], input=json.dumps(everything), stdout=out, stderr=errors, text=True, check=False,
            cwd=Path(__file__).parent, env=environment, start_new_session=True,
        )  # fmt: skip
        out.seek(0)
        errors.seek(0)
        lines = [json.loads(line) for line in out.read().splitlines()]
        assert len(lines) == len(everything), errors.read()[-2000:]
    return lines


async def main() -> None:
    asked = json.loads(sys.stdin.readline())
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for one in asked:
        recipe = Path(one["folder"]) / "recipe.toml"
        given = read_given(**{**GIVEN, **one["options"]})
        # Patience, because the machine may be busy; what hangs for ever is shown in a few tests of its own.
        subject = Subject(load_config(recipe), recipe, given=given, watch=Watch(seconds=60))
        subject.watch.patience = 10.0
        found, checked = await ask(CHECKS[one["rule"]], subject)
        verdict = {**checked.as_json(), "findings": [finding.as_json() for finding in found]}
        print(json.dumps(verdict), file=out, flush=True)
    # With everything that the defects left running.
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main())
