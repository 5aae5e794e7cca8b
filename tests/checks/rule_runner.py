"""Run rules on recipe folders in a separate process, since recipes may damage the state of theirs.

The process reads a JSON list of {"folder", "rule", "options"} from standard input.
It prints the findings of each as a JSON line.
"""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sparring.checks import CHECKS
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.user_inputs import read_user_inputs
from sparring.checks.running.deadlines import Watch
from sparring.checks.running.decide import run_rule
from sparring.config import load_config

NO_INPUTS = {"production": None, "schemas": None, "reference": (), "run": None}


def run_rules(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run rules in another process and return their results, in the order of the requests."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # Into files: what a defect leaves running would hold a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        subprocess.run(
            [sys.executable, __file__],
            input=json.dumps(requests),
            stdout=out,
            stderr=errors,
            text=True,
            check=False,
            cwd=Path(__file__).parent,
            env=environment,
            start_new_session=True,
        )
        out.seek(0)
        errors.seek(0)
        lines = [json.loads(line) for line in out.read().splitlines()]
        assert len(lines) == len(requests), errors.read()[-2000:]
    return lines


async def main() -> None:
    requests = json.loads(sys.stdin.readline())
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    gc.freeze()  # as the worker of a check does
    before, subject = None, None
    for request in requests:
        # The rules of a recipe share what they learn about it, as in a check.
        if subject is None or before != (request["folder"], request["options"]):
            recipe = Path(request["folder"]) / "recipe.toml"
            user_inputs = read_user_inputs(**{**NO_INPUTS, **request["options"]})
            # Patience, because the machine may be busy; what hangs for ever is shown in a few tests of its own.
            subject = Subject(load_config(recipe), recipe, user_inputs=user_inputs, watch=Watch(seconds=60))
            subject.watch.patience = 10.0
            before = (request["folder"], request["options"])
        found, checked = await run_rule(CHECKS[request["rule"]], subject)
        verdict = {**checked.as_json(), "findings": [finding.as_json() for finding in found]}
        print(json.dumps(verdict), file=out, flush=True)
    # With everything that the defects left running.
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main())
