"""What `sparring check` reports about planted defects in environments without experts, and in agents of a user's own.

Each case is checked, and where the set has `fixes.py` a copy without its defect, too: a finding that is there without the defect is
not about it. Whether a finding names the defect is for a person to read, against `named_by` in the case's `defect.toml`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import options, report

HERE = Path(__file__).parent
SMOKE = ("clean_dice", "price_desk")
SETS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "agents", "agents_second")


def checked(folder: Path, reviewer: str | None = None) -> dict[str, Any]:
    """The document of a check; of a recipe that cannot be loaded, the message."""
    command = [sys.executable, "-m", "sparring", "check", str(folder), "--json"]
    command += [] if reviewer is None else ["--reviewer", reviewer]
    # Agents that are programs are started as `python`.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    if not ended.stdout:
        return {"findings": [{"severity": "error", "rule": "not checked", "symptom": ended.stderr.strip()}]}
    return json.loads(ended.stdout)


def said(document: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Severity, rule and symptom of the errors and warnings."""
    return [(one["severity"], one["rule"], one["symptom"]) for one in document["findings"] if one["severity"] != "note"]


def fixed(folder: Path, copies: Path) -> None:
    """Write copies of a set's cases without their defects, where the set can."""
    if (folder / "fixes.py").is_file():
        subprocess.run([sys.executable, str(folder / "fixes.py"), str(copies)], stdout=subprocess.DEVNULL, check=True)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", help="only these cases")
    parser.add_argument("--set", choices=SETS, default="ninth")
    parser.add_argument(
        "--reviewer", metavar="URL#MODEL", help="also ask this model, as `sparring check --reviewer` does"
    )
    arguments = parser.parse_args()
    folder, found = HERE / (SETS[0] if arguments.smoke else arguments.set), {}
    names = SMOKE if arguments.smoke else arguments.names
    with tempfile.TemporaryDirectory() as copies:
        fixed(folder, Path(copies))
        for case in sorted(path.parent for path in folder.glob("*/recipe.toml")):
            if names and case.name not in names:
                continue
            findings, copy = said(checked(case, arguments.reviewer)), Path(copies) / case.name
            beside = {one[:2] for one in said(checked(copy))} if copy.is_dir() else set()
            found[case.name] = [[*one, "stays" if one[:2] in beside else ""] for one in findings]
            print(case.name, *(f"  {severity} {rule}: {symptom}{' (stays without the defect)' * bool(stays)}"
                for severity, rule, symptom, stays in found[case.name]), sep="\n", flush=True)  # fmt: skip
    clean = {name: one for name, one in found.items() if name.startswith("clean_")}
    errors = sum(one[0] == "error" for those in clean.values() for one in those)
    rows = [
        {"case": name, "findings": len(those), "stay": sum(bool(one[3]) for one in those), "said": {"findings": those}}
        for name, those in found.items()
    ]
    figures = {"planted": len(found) - len(clean), "clean": len(clean), "errors on clean cases": errors}
    return report(
        "blind_environments",
        rows,
        figures=figures,
        targets={"errors on clean cases": {"at_most": 0}},
        path=arguments.json,
        sides={"planted": len(found) - len(clean), "clean": len(clean)},
        smoke=arguments.smoke,
    )


if __name__ == "__main__":
    sys.exit(main())
