"""What every benchmark writes: a table for people, JSON for machines, and an exit code that says whether targets hold."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from sparring.tracking.console import Console

PACKAGES = ("sparring", "torch", "transformers", "peft", "trl")


def machine() -> dict[str, Any]:
    """Cores, processor and memory of this machine."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    flags = " ".join(line for line in _lines("/proc/cpuinfo") if line.startswith("flags"))
    return {
        "processor": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory) / 2**20, 1),
        "instructions": [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if name in flags],
    }


def report(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    figures: Mapping[str, float],
    targets: Mapping[str, Mapping[str, float]],
    path: Path | None,
) -> int:
    """Print the rows and figures, write them to `path`, and return 0 when every target holds, else 5."""
    console = Console()
    # What is nested is for the file.
    columns = list(
        dict.fromkeys(column for row in rows for column, value in row.items() if not isinstance(value, dict))
    )
    console.table(name, columns, [[_shown(row.get(column, "")) for column in columns] for row in rows])
    missed = [key for key, target in targets.items() if not _holds(figures[key], target)]
    for key, value in figures.items():
        wanted = " ".join(f"{word.replace('_', ' ')} {number:g}" for word, number in targets.get(key, {}).items())
        print(f"{key}: {value:.3g}" + (f"  ({'MISSED: ' if key in missed else ''}{wanted})" if wanted else ""))
    content = {
        "name": name,
        "commit": _commit(),
        "machine": machine(),
        "versions": {package: _version(package) for package in PACKAGES},
        "rows": list(rows),
        "figures": dict(figures),
        "targets": {key: dict(target) for key, target in targets.items()},
    }
    if path is not None:
        path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    return 5 if missed else 0


def _commit() -> str | None:
    """Of this checkout, with a `+` where files were changed since; None without git."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"], cwd=Path(__file__).parent, capture_output=True,
            text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


def _holds(value: float, target: Mapping[str, float]) -> bool:
    return value >= target.get("at_least", float("-inf")) and value <= target.get("at_most", float("inf"))


def _shown(value: Any) -> str:
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
