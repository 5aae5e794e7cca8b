"""Does RL gain in environments of others? Gymnasium's FrozenLake and Blackjack over seeds, with control and diagnosis."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.evidence import ROOT, SMOKE, run, shuffled, table
from benchmarks.report import options, report
from sparring.checks.run import Options, check_recipe
from sparring.diagnosis import diagnose
from sparring.evaluator import MultiTurnRLEvaluator


@dataclass(frozen=True, slots=True)
class Target:
    """What was asked of a family before it was run."""

    gain: float
    """The least lower bound, over the seeds, of the paired gain over the control."""
    shuffled: float
    """The most that RL on shuffled rewards may gain over the warm start."""


FAMILIES = {"blackjack": Target(0.0, 0.05), "frozen_lake": Target(0.15, 0.1)}
"""In Blackjack there is little to gain: the expert wins 0.10 more than the log."""


def checked(family: str, *, quick: bool) -> dict[str, Any]:
    """What `sparring check` reports of the recipe before it is trained."""
    found = check_recipe(ROOT / "recipes" / family, Options(families=("policies",)) if quick else Options())
    findings = [{"rule": one.rule, "severity": one.severity.value, "symptom": one.symptom} for one in found.findings]
    return {"family": family, "check": {"findings": findings}}


def trained(family: str, seed: int, overrides: Sequence[str], control_steps: int | None, folder: str) -> dict[str, Any]:
    """One run with its control, the expert beside it, and what `sparring diagnose` reports of the run."""
    recipe, runs = ROOT / "recipes" / family, f"{folder}/{family}"
    row = {"family": family, **run(recipe, seed, overrides, control_steps, runs, check=False)}
    found = diagnose(Path(runs) / f"seed-{seed}")
    row["diagnosis"] = {
        "claim": [] if found.claim is None else list(found.claim.lines()), "headline": found.headline,
        "findings": [{"rule": one.rule, "severity": one.severity.value, "symptom": one.symptom} for one in found.findings],
    }  # fmt: skip
    expert = MultiTurnRLEvaluator(f"{runs}/seed-{seed}", policies=["expert"], quiet=True).evaluate()
    return {**row, "expert": {"success": expert.evaluations[0].success.mean}}


def measured(content: Mapping[str, Any], family: str) -> str:
    """What the docs show of stored results."""
    rows = [row for row in content["rows"] if row["family"] == family]
    of_runs = [row for row in rows if "tuned" in row]
    (found,) = (row["check"]["findings"] for row in rows if "check" in row)
    lines = [table({**content, "rows": of_runs}), ""]
    experts = [row["expert"]["success"] for row in of_runs if "expert" in row]
    lines += [f"The expert succeeds on {fmean(experts):.2f}. In the product's own words:", ""]
    loud = [one for one in found if one["severity"] != "note"]
    lines += [f"- `sparring check`: {one['severity']} `{one['rule']}`: {one['symptom']}" for one in loud]
    if not loud:
        lines.append(f"- `sparring check`: no errors, no warnings, {len(found)} notes")
    lines += [f"- {line}" for line in _diagnoses(of_runs)]
    return "\n".join(lines)


def _diagnoses(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        if "diagnosis" in row:
            said = row["diagnosis"]
            yield f"seed {row['seed']}, `sparring diagnose`: {said['headline']} Evaluated: {' '.join(said['claim'])}"


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--shuffled", type=int, default=1, help="of these seeds, how many also get shuffled rewards")
    parser.add_argument("--table", type=Path, metavar="JSON", help="print the tables of stored results, run nothing")
    arguments = parser.parse_args()
    if arguments.table is not None:
        content = json.loads(arguments.table.read_text("utf-8"))
        for family in dict.fromkeys(row["family"] for row in content["rows"]):
            print(
                f"<!-- measured:outside_{family} -->\n{measured(content, family)}\n<!-- /measured:outside_{family} -->\n"
            )
        return 0
    overrides, seeds, steps, families = arguments.overrides, arguments.seeds, None, arguments.families
    if arguments.smoke:
        families = families[:1]
        overrides, seeds, steps = [*SMOKE, "warm_start.num_demonstrations=64", *overrides], [0], 4
    rows, figures, targets = list[dict[str, Any]](), dict[str, float](), dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory() as folder:
        for family in families:
            rows.append(checked(family, quick=arguments.smoke))
            of_runs = [trained(family, seed, overrides, steps, folder) for seed in seeds]
            drawn = [
                {"family": family, **shuffled(ROOT / "recipes" / family, seed, overrides, f"{folder}/{family}")}
                for seed in seeds[: arguments.shuffled]
            ]
            rows += [*of_runs, *drawn]
            gain, flat = (
                f"{family}: least lower bound of the gain over the control",
                f"{family}: gain from shuffled rewards",
            )
            figures[gain] = min(row["gain over the control"][1] for row in of_runs)
            figures[flat] = max(row["tuned"]["sampled"] - row["warm start"]["sampled"] for row in drawn)
            targets |= {gain: {"at_least": FAMILIES[family].gain}, flat: {"at_most": FAMILIES[family].shuffled}}
    played = [row for row in rows if "RL seconds" in row]
    sides = {
        **{f"{row['family']}, RL": row["RL seconds"] for row in played},
        **{f"{row['family']}, control": row["control steps"] for row in played},
        "shuffled rewards": len(rows) - len(played) - len(families),
    }
    return report(
        "outside", rows, figures=figures, targets=targets, path=arguments.json, sides=sides, smoke=arguments.smoke
    )


if __name__ == "__main__":
    sys.exit(main())
