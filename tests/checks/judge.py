"""Ask rules about recipe folders in this process, which the recipes may spoil: run by test_defects.py in one of its own.

Reads a JSON list of {"folder", "rule", "options"} from standard input, and prints the findings of each as a JSON line.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from sparring.checks import CHECKS
from sparring.checks.asking import ask
from sparring.checks.given import read_given
from sparring.checks.subject import Subject
from sparring.checks.watch import Watch
from sparring.config import load_config

GIVEN = {"production": None, "schemas": None, "reference": (), "run": None}


async def main() -> None:
    asked = json.loads(sys.stdin.readline())
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for one in asked:
        recipe = Path(one["folder"]) / "recipe.toml"
        given = read_given(**{**GIVEN, **one["options"]})
        # Patience, because the machine may be busy; what hangs for ever is shown in a few tests of its own.
        subject = Subject(load_config(recipe), recipe, given=given, watch=Watch(seconds=60))
        subject.patience = 10.0
        found, checked = await ask(CHECKS[one["rule"]], subject)
        verdict = {**checked.as_json(), "findings": [finding.as_json() for finding in found]}
        print(json.dumps(verdict), file=out, flush=True)
    # With everything that the defects left running.
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main())
