"""The process in which a recipe's code runs while it is checked: it may hang or die without taking anything along.

Reads one JSON request from standard input and writes one JSON object a line to what was standard output:
{"loaded", "slowness", "announced"}, {"refused", "kind"}, {"begin"}, {"end", "findings", "checked"}, {"measured"}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from sparring.build import build
from sparring.checks import CHECKS
from sparring.checks.asking import ask
from sparring.checks.explore import reach
from sparring.checks.given import read_given
from sparring.checks.model_judges import announcement
from sparring.checks.opened import OpenedFiles
from sparring.checks.subject import Subject
from sparring.checks.timing import MOST_PATIENT, MOST_STRETCHED, Timing, processor_time
from sparring.checks.watch import Watch
from sparring.config import load_config
from sparring.errors import SparringError
from sparring.ledger import Ledger
from sparring.metering import metered_in, read_usage
from sparring.tracking.recipe_files import folder_of
from sparring.types import Json


def main() -> None:
    """Run by `sparring.checks.run`."""
    request = json.loads(sys.stdin.readline())
    # What user code prints must not get between our lines.
    with os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8") as out:
        os.dup2(2, 1)
        with suppress(KeyboardInterrupt):  # the parent process is interrupted; what was open is closed now
            asyncio.run(_main(request, out))
        out.flush()
        # Threads that user code left behind must not hold the process.
        os._exit(0)


async def _main(request: Mapping[str, Any], out: IO[str]) -> None:
    def tell(**line: Json) -> None:
        out.write(json.dumps(line) + "\n")

    try:
        subject = load(request)
    except SparringError as error:
        tell(refused=str(error), kind=type(error).__name__)
        return
    # On a busy machine everything takes longer: deadlines grow with it. Below 1.5 it is files that were read from the disk.
    ratio = (time.monotonic() - request["began"]) / time.process_time()
    slowness = min(MOST_PATIENT, ratio) if ratio > 1.5 else 1.0
    subject.watch.patience = slowness
    left = request["seconds"] * min(MOST_STRETCHED, slowness) - (time.monotonic() - request["began"])
    announced = announcement(subject)
    if announced is not None:
        subject.watch.seconds = max(subject.watch.seconds, request["verdict_seconds"])
        left += request["verdicts_seconds"]
    subject.timing = Timing(seconds=left, processor_seconds=request["seconds"] - processor_time())
    tell(loaded=True, slowness=slowness, announced=announced)
    folder = Path(request["note"]).parent
    try:
        with metered_in(folder, during="check"):
            for name in request["rules"]:
                tell(begin=name)
                found, checked = await ask(CHECKS[name], subject)
                tell(end=name, findings=[finding.as_json() for finding in found], checked=asdict(checked))
    except SparringError as error:
        tell(refused=str(error), kind=type(error).__name__)
        return
    prices = subject.config.tracking.prices
    endpoints: list[Json] = [one.as_json(prices) for one in read_usage(folder)]
    tell(measured={**await subject.measured(), **reach(subject), "endpoints": endpoints, "prices": prices})


def load(request: Mapping[str, Any]) -> Subject:
    """The subject of a request. Raises what loading raises."""
    recipe = Path(request["recipe"])
    config = load_config(recipe, request["overrides"])
    watch = Watch(Path(request["note"]), seconds=request["call_seconds"], start_seconds=request["start_seconds"])
    given = read_given(**request["given"])
    opened = OpenedFiles(folder_of(recipe))
    parts = build(config, folder_of(recipe), Ledger()) if request["model"] else None
    subject = Subject(config, recipe, overrides=request["overrides"], given=given, watch=watch, parts=parts)
    subject.shared["opened"] = opened
    return subject


if __name__ == "__main__":
    main()
