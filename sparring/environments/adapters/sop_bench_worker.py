"""The mock tools of one SOP-Bench domain in a separate process, started with `python sop_bench_worker.py FOLDER`.

Each input line is a JSON object {"tool", "arguments"}. The first output line is {"ready": true} or an error; each later
line is {"result", "repairs"} or {"error"}. The file runs as a script and imports nothing from Sparring.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from pathlib import Path
from typing import Any, TextIO


def main() -> None:
    """Load the tools of the folder in `sys.argv` and answer requests until the input ends."""
    folder = Path(sys.argv[1])
    requests, answers = _streams()
    # The tools read files in their own folder.
    os.chdir(folder)

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message, allow_nan=False) + "\n")
        answers.flush()

    try:
        manager = _manager(folder / "tools.py")
    except BaseException as error:  # noqa: BLE001 (any exception of their code, even `sys.exit`, is the response)
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"ready": True})
    for line in requests:
        request = json.loads(line)
        try:
            repairs: list[str] = []
            result = as_json(manager.process_tool_call(request["tool"], request["arguments"]), "result", repairs)
            answer({"result": result, "repairs": repairs})
        except BaseException as error:  # noqa: BLE001
            answer({"error": f"{type(error).__name__}: {error}"})


def as_json(value: Any, place: str, repairs: list[str]) -> Any:
    """Return a tool's result as JSON. Append each value that JSON cannot represent to `repairs`, with its path."""
    if isinstance(value, dict):
        repairs += [f"{place}: the key {name!r} became text" for name in value if not isinstance(name, str)]
        return {str(name): as_json(part, f"{place}.{name}", repairs) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part, f"{place}[]", repairs) for part in value]
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and not is_infinite):
        return value
    if isinstance(value, set | frozenset):
        plain = list(value)
    elif is_infinite:
        plain = None
    elif callable(of_numpy := getattr(value, "tolist", None)):
        plain = of_numpy()
    else:
        plain = None if value != value or str(value) == "<NA>" else str(value)
    repairs.append(f"{place}: {_kind(value)} became {_kind(plain)}")
    return as_json(plain, place, repairs)


def _kind(value: Any) -> str:
    return "null" if value is None else str(value) if isinstance(value, float) else type(value).__name__


def _streams() -> tuple[TextIO, TextIO]:
    """Return the real standard streams, and hide them from the tools, because the tools print to them."""
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
        raise LookupError(
            f"{file} defines {len(found)} classes with a name that ends in Manager; exactly one is expected"
        )
    return found[0]()


if __name__ == "__main__":
    main()
