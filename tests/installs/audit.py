"""Look for known vulnerabilities in every package of locks/.

python tests/installs/audit.py PIP_AUDIT    # `make audit`

Exits with 1 if a package has a known vulnerability. pip-audit also ends well if its index knows none of the packages, so this
script counts what was looked up, and prints SKIPPED with the reason for what was not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("torch-cpu.txt", "torch-cuda.txt", "image.txt", "development.txt", "tools.txt")
SECONDS = 300
"""For one file."""


@dataclass(frozen=True)
class Audit:
    """What was looked up for one file, and what was not."""

    num_looked_up: int
    vulnerabilities: tuple[str, ...]
    skipped: Mapping[str, int]
    """The number of packages that were not looked up, by reason."""


def read_audit(printed: str) -> Audit:
    """Return the result of pip-audit's JSON."""
    found: Sequence[Mapping[str, Any]] = json.loads(printed)["dependencies"]
    reasons = [one["skip_reason"].partition(":")[0] for one in found if "skip_reason" in one]
    vulnerabilities = [
        f"{one['name']} {one['version']}: {each['id']}, corrected in {', '.join(each['fix_versions']) or 'no version'}"
        for one in found
        for each in one.get("vulns", ())
    ]
    return Audit(len(found) - len(reasons), tuple(vulnerabilities), Counter(reasons))


def audit(pip_audit: str, lock: Path) -> Audit | str:
    """Return the result for a file, or why there is none."""
    command = [pip_audit, "--disable-pip", "--require-hashes", "--requirement", str(lock)]
    command += ["--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer in {SECONDS} seconds"
    try:
        return read_audit(done.stdout)
    except ValueError:
        return (done.stderr.strip() or "pip-audit printed nothing").splitlines()[-1][:200]


def show(name: str, result: Audit | str) -> bool:
    """Print a result, and return whether a vulnerability is known."""
    if isinstance(result, str):
        print(f"SKIPPED: {name} was not audited: {result}")
        return False
    for reason, count in result.skipped.items():
        print(f"SKIPPED: {count} packages of {name} were not audited: {reason}")
    if result.num_looked_up:
        print(f"{name}: {result.num_looked_up} packages looked up, {len(result.vulnerabilities)} known vulnerabilities")
    for one in result.vulnerabilities:
        print(f"  {one}")
    return bool(result.vulnerabilities)


def main() -> int:
    (pip_audit,) = sys.argv[1:]
    results = [show(f"locks/{name}", audit(pip_audit, ROOT / "locks" / name)) for name in LOCKS]
    return int(any(results))


if __name__ == "__main__":
    sys.exit(main())
