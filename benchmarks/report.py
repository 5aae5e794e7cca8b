"""Code that all benchmarks share: options, tables, JSON results and exit codes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from importlib import metadata
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from sparring.tracking.console import Console

PACKAGES = ("sparring", "torch", "transformers", "peft", "trl")
INSTRUCTIONS = {"amx_tile": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
"""Names of instruction sets, the widest first."""
FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "name": str,
    "command": str,
    "commit": (str, type(None)),
    "date": str,
    "machine": str,
    "versions": dict,
    "smoke": bool,
    "sides": dict,
    "rows": list,
    "figures": dict,
    "targets": dict,
}
"""The fields of a result, with their types."""
OPTIONAL = frozenset({"provenance"})
"""Fields that only some results have. `provenance` states how the commit relates to the measured code, if the measured
commit was merged together with others."""
WIDE_COLUMNS = 9
"""Tables with more columns do not fit a terminal, and are printed with a column for each row."""
CANNOT_RUN = 3
"""The exit code of a benchmark if a requirement is missing."""


def options(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for rows, figures and targets")
    parser.add_argument(
        "--smoke", action="store_true", help="run a tiny version in seconds, as a test; targets do not count"
    )
    return parser


def needs(what: str) -> NoReturn:
    """Exit the benchmark because a requirement is missing."""
    print(f"needs {what}")
    raise SystemExit(CANNOT_RUN)


def machine() -> str:
    """Return a description of the machine: its cores, its processor with the widest instructions, and its memory."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    flags = " ".join(line for line in _lines("/proc/cpuinfo") if line.startswith("flags"))
    widest = next((shown for name, shown in INSTRUCTIONS.items() if name in flags), None)
    return ", ".join(filter(None, (f"{os.cpu_count()} cores", cpu, widest, f"{int(memory) / 2**20:.0f} GiB")))


def report(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    figures: Mapping[str, float],
    targets: Mapping[str, Mapping[str, float]],
    path: Path | None,
    sides: Mapping[str, float] | None = None,
    smoke: bool = False,
) -> int:
    """Print the rows and figures and write them to `path`. `sides` counts the work done by each side of the comparison.

    Returns 0 if every target is met, and 5 if one is missed. With `smoke`, targets do not count. Returns 1 if the
    result is invalid because a side did nothing or a figure is not a number.
    """
    console = Console()
    # Nested values are only for the file.
    columns = list(
        dict.fromkeys(column for row in rows for column, value in row.items() if not isinstance(value, dict))
    )
    cells = [[_shown(row.get(column, "")) for column in columns] for row in rows]
    if len(columns) > WIDE_COLUMNS:
        console.table(
            name,
            ["", *(str(number + 1) for number in range(len(rows)))],
            [*map(list, zip(columns, *cells, strict=True))],
        )
    else:
        console.table(name, columns, cells)
    targets = {} if smoke else targets
    missed = [key for key, target in targets.items() if not holds(figures[key], target)]
    for key, value in figures.items():
        wanted = words_of(targets.get(key, {}))
        print(f"{key}: {value:.3g}" + (f"  ({'MISSED: ' if key in missed else ''}{wanted})" if wanted else ""))
    content = {
        "name": name,
        "command": _command(),
        "commit": commit(),
        "date": date.today().isoformat(),
        "machine": machine(),
        "versions": {package: _version(package) for package in PACKAGES},
        "smoke": smoke,
        "sides": dict(sides or {}),
        "rows": list(rows),
        "figures": dict(figures),
        "targets": {key: dict(target) for key, target in targets.items()},
    }
    if path is not None:
        path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    wrong = list(defects(content))
    for one in wrong:
        print(f"benchmarks: {one}", file=sys.stderr)
    return 1 if wrong else 5 if missed else 0


def defects(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the defects that make a result invalid."""
    for field, kind in FIELDS.items():
        if not isinstance(content.get(field), kind):
            yield f"{field} is {content.get(field)!r}"
    if unknown := set(content) - set(FIELDS) - OPTIONAL:
        yield f"unknown fields {', '.join(sorted(unknown))}"
    if not content.get("rows") or not content.get("figures"):
        yield "nothing was measured: no rows or no figures"
    if content.get("smoke") and not content.get("sides"):
        yield "no sides: report(sides=...) counts the work that each side did"
    for side, work in content.get("sides", {}).items():
        if not work > 0:
            yield f"the side {side!r} did nothing"
    for figure, value in content.get("figures", {}).items():
        if not isinstance(value, int | float) or not isfinite(value):
            yield f"the figure {figure!r} is {value!r}"
    for figure in content.get("targets", {}):
        if figure not in content["figures"]:
            yield f"a target without a figure: {figure!r}"


def _command() -> str:
    """Return the command line of this process, without the files that it reads and writes."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0]).stem
    words: list[str] = []
    for word in sys.argv[1:]:
        if os.sep not in word and not word.endswith((".json", ".svg")):
            words.append(word)
        elif not word.startswith("-") and words and words[-1].startswith("-"):
            words.pop()
    return " ".join(["python -m", module, *words])


def commit() -> str | None:
    """Return the commit of this checkout (with a `+` if files have changed since), or None without git."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


def words_of(target: Mapping[str, float]) -> str:
    """Return a target as text: `at least 0.3`."""
    return " ".join(f"{word.replace('_', ' ')} {number:g}" for word, number in target.items())


def holds(value: float, target: Mapping[str, float]) -> bool:
    """Return whether a figure meets its target."""
    return value >= target.get("at_least", float("-inf")) and value <= target.get("at_most", float("inf"))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(one) for one in value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8").splitlines()
    except OSError:
        return []
