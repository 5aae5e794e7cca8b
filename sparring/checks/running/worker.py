"""The process that runs the code of a recipe during a check. It may hang or crash without harm to the check.

It reads one JSON request from standard input and writes one JSON object per line to the original standard output:
{"loaded", "slowness", "announced"}, {"refused", "kind"}, {"begin"}, {"end", "findings", "checked"}, {"measured"}.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from sparring.assembly import check_demonstrations, load_training_parts
from sparring.checks import CHECKS
from sparring.checks.evidence.explore import reach
from sparring.checks.evidence.subject import Subject
from sparring.checks.evidence.user_inputs import read_user_inputs
from sparring.checks.rules.model_judges import announce
from sparring.checks.running.deadlines import Watch
from sparring.checks.running.decide import run_rule
from sparring.checks.running.opened_files import OpenedFiles
from sparring.checks.running.time_budget import MOST_PATIENT, MOST_STRETCHED, Timing, processor_time
from sparring.config import load_config
from sparring.errors import SparringError
from sparring.ledger import Ledger
from sparring.metering.usage import meter_usage, read_usage
from sparring.run_folders.recipe_files import find_code_folder
from sparring.types import Json

_RULES_SHARE = 0.9
"""The share of the processor time that rules may use; the rest is for the command and for processes that end later."""


def main() -> None:
    """Run the rules of one request. `sparring.checks.running.run` starts this process."""
    request = json.loads(sys.stdin.readline())
    # The output of user code must not mix with our lines.
    with os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8") as out:
        os.dup2(2, 1)
        # Exclude the objects of the imports from garbage collection, which makes collections and searches for leaked
        # objects fast.
        gc.freeze()
        with suppress(KeyboardInterrupt):  # the parent process was interrupted; open environments are closed now
            asyncio.run(_main(request, out))
        out.flush()
        # Threads that user code left behind must not keep the process alive.
        os._exit(0)


async def _main(request: Mapping[str, Any], out: IO[str]) -> None:
    def send(**line: Json) -> None:
        out.write(json.dumps(line) + "\n")

    try:
        subject = load(request)
    except SparringError as error:
        send(refused=str(error), kind=type(error).__name__)
        return
    slowness = _measure_slowness(request)
    subject.watch.patience = slowness
    left = request["seconds"] * min(MOST_STRETCHED, slowness) - (time.monotonic() - request["began"])
    announced = announce(subject)
    if announced is not None:
        subject.watch.seconds = max(subject.watch.seconds, request["verdict_seconds"])
        left += request["verdicts_seconds"]
    subject.timing = Timing(seconds=left, processor_seconds=_RULES_SHARE * request["seconds"] - processor_time())
    send(loaded=True, slowness=slowness, announced=announced)
    folder = Path(request["note"]).parent
    try:
        with meter_usage(folder, during="check"):
            for name in request["rules"]:
                send(begin=name)
                found, checked = await run_rule(CHECKS[name], subject)
                send(end=name, findings=[finding.as_json() for finding in found], checked=asdict(checked))
    except SparringError as error:
        send(refused=str(error), kind=type(error).__name__)
        return
    prices = subject.config.tracking.prices
    endpoints: list[Json] = [one.as_json(prices) for one in read_usage(folder)]
    send(measured={**await subject.measured(), **reach(subject), "endpoints": endpoints, "prices": prices})


def _measure_slowness(request: Mapping[str, Any]) -> float:
    """Return the factor by which deadlines are extended, because everything takes longer on a busy machine."""
    ratio = (time.monotonic() - request["began"]) / time.process_time()
    # Reading files alone can cause a ratio of up to 1.5.
    return min(MOST_PATIENT, ratio) if ratio > 1.5 else 1.0


def load(request: Mapping[str, Any]) -> Subject:
    """Load the subject of a request. Raises what loading raises."""
    recipe = Path(request["recipe"])
    config = load_config(recipe, request["overrides"])
    watch = Watch(Path(request["note"]), seconds=request["call_seconds"], start_seconds=request["start_seconds"])
    user_inputs = read_user_inputs(**request["given"])
    opened = OpenedFiles(find_code_folder(recipe))
    check_demonstrations(config, find_code_folder(recipe))
    parts = (
        load_training_parts(config, find_code_folder(recipe), Ledger(), uses_servers=False)
        if request["model"]
        else None
    )
    subject = Subject(config, recipe, overrides=request["overrides"], user_inputs=user_inputs, watch=watch, parts=parts)
    subject.shared["opened"] = opened
    return subject


if __name__ == "__main__":
    main()
