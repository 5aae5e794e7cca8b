"""Measures how many planted defects `sparring check` finds, how many findings clean recipes get, and how long it takes.

    python -m benchmarks.checks [--json FILE] [NAME ...]

The authors of the checks planted the defects in tests/checks/defects; people who had not seen the checks planted those
in tests/checks/blind. In tests/checks/blind, `acceptable_rules` lists the rules that may name the defect, and
`found_at_first_sight` states whether the rules found it before any author of rules had seen it. The clean recipes are
the shipped recipes, the domains of the suite, the corrected copies of planted recipes, and correct recipes that look
suspicious (tests/checks/blind_clean). Every recipe gets a full check.
"""

from __future__ import annotations

import statistics
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import options, report
from sparring.checks.running.check_report import CheckReport
from sparring.checks.running.run import Options, check_recipe
from sparring.environments.suites import sop
from sparring.findings import Severity

ROOT = Path(__file__).parents[1]
PLANTED = ROOT / "tests" / "checks"
RECIPES = ("recipes/quickstart", "recipes/pointer_chase", "sparring/templates/recipe")
SMOKE = ("reward_is_constant", "library_fines", "library")
MOST_WARNINGS = 2
MOST_SECONDS = 60.0


def list_planted(kind: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the planted recipes of a kind (`defects`, `blind`), each with its defect.toml."""
    for path in sorted((PLANTED / kind).glob("*/defect.toml")):
        yield path.parent, tomllib.loads(path.read_text("utf-8"))


def check(folder: Path, options: Mapping[str, str], overrides: Sequence[str] = ()) -> CheckReport:
    """Run all rules that need no model. `options` are the names of files in the recipe's folder."""
    named = {key: folder / value for key, value in options.items()}
    return check_recipe(folder, Options(overrides=tuple(overrides), **named))  # pyright: ignore[reportArgumentType]


def find_rule(report: CheckReport, defect: Mapping[str, Any]) -> str | None:
    """Return the rule that reports the defect as an error or a warning, or None if no acceptable rule does."""
    acceptable = defect.get("acceptable_rules") or [defect.get("rule")]
    for finding in report.findings:
        # A question that could not be decided is reported once, with all rules that depend on it.
        rules = {finding.rule, *finding.evidence.get("undecided", ())}
        if finding.severity is not Severity.NOTE and rules & set(acceptable):
            return finding.rule
    return None


def measure_planted(kind: str, only: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for folder, defect in list_planted(kind):
        if only and folder.name not in only:
            continue
        found = check(folder, defect.get("options", {}))
        named = find_rule(found, defect)
        rows.append(
            {
                "recipe": folder.name,
                "kind": kind,
                "found": named or "MISSED",
                "errors": found.count(Severity.ERROR),
                "warnings": found.count(Severity.WARNING),
                "seconds": round(found.seconds, 1),
            }
        )
        print(f"{kind}/{folder.name}: {rows[-1]['found']} in {found.seconds:.1f} s", file=sys.stderr)
    return rows


def measure_clean(only: Sequence[str]) -> list[dict[str, Any]]:
    """Check recipes without defects: the shipped recipes, the corrected copies of planted recipes, and the domains."""
    counterparts = sorted(
        path.parent for path in [*PLANTED.glob("clean/*/recipe.toml"), *PLANTED.glob("blind_clean/*/recipe.toml")]
    )
    recipes: list[tuple[str, Path, list[str]]] = [
        (folder.name, folder, []) for folder in [*map(ROOT.joinpath, RECIPES), *counterparts]
    ]
    for name in sop.DOMAINS:
        module = f"sparring.environments.suites.sop.{name}"
        names = {"environment.target": "Desk", "reward.reward": "reward", "reward.scorer": "scorer"}
        names |= {f"data.{split}": f"{split}_tasks" for split in sop.SPLITS} | {
            "warm_start.demonstrations": "clerk_log"
        }
        overrides = [f"{key}={module}:{value}" for key, value in names.items()]
        recipes.append((f"sop.{name}", ROOT / "recipes" / "sop", overrides))
    rows = []
    for name, folder, overrides in recipes:
        if only and name not in only:
            continue
        found = check(folder, {}, overrides)
        is_clean = not found.errors and found.count(Severity.WARNING) <= MOST_WARNINGS
        rows.append(
            {
                "recipe": name,
                "kind": "clean",
                "found": "clean" if is_clean else "ACCUSED",
                "errors": found.count(Severity.ERROR),
                "warnings": found.count(Severity.WARNING),
                "seconds": round(found.seconds, 1),
            }
        )
        print(f"clean/{name}: {rows[-1]['found']} in {found.seconds:.1f} s", file=sys.stderr)
    return rows


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", help="only these recipes")
    arguments = parser.parse_args()
    names = SMOKE if arguments.smoke else arguments.names
    own, blind = (measure_planted(kind, names) for kind in ("defects", "blind"))
    clean = measure_clean(names)
    rows = [*own, *blind, *clean]
    figures = {"false_alarms": float(sum(row["found"] == "ACCUSED" for row in clean))}
    targets: dict[str, dict[str, float]] = {
        "false_alarms": {"at_most": 0},
        "slowest_seconds": {"at_most": MOST_SECONDS},
    }
    for name, planted in (("own", own), ("blind", blind)):
        if planted:
            figures[f"planted_{name}"] = float(len(planted))
            figures[f"found_{name}_share"] = sum(row["found"] != "MISSED" for row in planted) / len(planted)
            targets[f"found_{name}_share"] = {"at_least": 1.0}
    first = [bool(defect["found_at_first_sight"]) for _, defect in list_planted("blind")]
    figures["found_blind_at_first_sight_share"] = sum(first) / len(first)
    figures["median_seconds"] = statistics.median(row["seconds"] for row in rows)
    figures["slowest_seconds"] = max(row["seconds"] for row in rows)
    sides = {
        "planted, found": sum(row["found"] not in ("MISSED", "ACCUSED", "clean") for row in rows),
        "clean": sum(row["found"] == "clean" for row in clean),
    }
    return report(
        "checks", rows, figures=figures, targets=targets, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
