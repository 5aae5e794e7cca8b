"""The mock tools of one SOP-Bench domain in a process of their own: `python sop_bench_worker.py FOLDER SEED`.

A line of JSON in, {"tool", "arguments"}; a line out, {"result"} or {"error"}; the first line out is {"ready": true} or an
error. Runs as a script and imports nothing of Sparring.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import sys
from pathlib import Path
from typing import Any, TextIO


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    requests, answers = _streams()
    # The tools read files beside them, and some draw numbers.
    os.chdir(folder)
    random.seed(seed)

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message, allow_nan=False) + "\n")
        answers.flush()

    try:
        manager = _manager(folder / "tools.py")
    except BaseException as error:  # noqa: BLE001 (whatever their code raises, `sys.exit` too, is the answer)
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"ready": True})
    for line in requests:
        request = json.loads(line)
        arguments = {name: value for name, value in request["arguments"].items() if value is not None}
        try:
            answer({"result": as_json(manager.process_tool_call(request["tool"], arguments))})
        except BaseException as error:  # noqa: BLE001
            answer({"error": f"{type(error).__name__}: {error}"})


def as_json(value: Any) -> Any:
    """A tool's result as JSON: what is not a number is null, numpy's scalars are Python's."""
    if isinstance(value, dict):
        return {str(name): as_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted((as_json(part) for part in value), key=str)
    if hasattr(value, "tolist"):
        return as_json(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return None if value != value or str(value) == "<NA>" else str(value)


def _streams() -> tuple[TextIO, TextIO]:
    """The real standard streams, which the tools do not get to see: they print."""
    requests, answers = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    return requests, answers


def _manager(file: Path) -> Any:
    specification = importlib.util.spec_from_file_location("sop_bench_tools", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    found = [
        one
        for name, one in vars(module).items()
        if name.endswith("Manager") and isinstance(one, type) and one.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise LookupError(f"{file} defines {len(found)} classes whose name ends in Manager, where one is expected")
    return found[0]()


if __name__ == "__main__":
    main()
