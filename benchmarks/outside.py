"""Measures the gain of RL in Gymnasium's FrozenLake and Blackjack over several seeds, with a control and a
diagnosis."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.evidence import GAINED, ROOT, SMOKE, kept, run, runs_folder, shuffled, table
from benchmarks.report import options, report
from sparring.checks.running.run import Options, check_recipe
from sparring.diagnosis.reading import diagnose_run
from sparring.evaluation.of_run import claims_of_runs
from sparring.evaluator import MultiTurnRLEvaluator
from sparring.run_folders import RunFolder


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a family of environments, which was set before its runs."""

    gain: float
    """The least lower bound, over the seeds, of the paired gain over the strongest control."""
    shuffled: float
    """The most that RL on shuffled rewards may gain over the warm start."""


FAMILIES = {"frozen_lake": Target(0.15, 0.1), "blackjack": Target(0.0, 0.05)}
"""In Blackjack there is little to gain: the expert wins 0.10 more than the log."""


def checked(family: str, *, quick: bool) -> dict[str, Any]:
    """Return the findings of `sparring check` for the recipe before training."""
    found = check_recipe(ROOT / "recipes" / family, Options(families=("policies",)) if quick else Options())
    findings = [{"rule": one.rule, "severity": one.severity.value, "symptom": one.symptom} for one in found.findings]
    return {"family": family, "check": {"findings": findings}}


def trained(family: str, seed: int, overrides: Sequence[str], control_steps: int | None, runs: str) -> dict[str, Any]:
    """Start a run and train its control, evaluate the expert, and diagnose the run."""
    recipe = ROOT / "recipes" / family
    row = {"family": family, **run(recipe, seed, overrides, control_steps, runs, check=False)}
    found = diagnose_run(Path(runs) / f"seed-{seed}")
    row["diagnosis"] = {
        "claim": [] if found.claim is None else list(found.claim.lines()),
        "headline": found.headline,
        "findings": [
            {"rule": one.rule, "severity": one.severity.value, "symptom": one.symptom} for one in found.findings
        ],
    }
    expert = MultiTurnRLEvaluator(f"{runs}/seed-{seed}", policies=["expert"], quiet=True).evaluate()
    return {**row, "expert": {"success": expert.evaluations[0].success.mean}}


def claimed(family: str, runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Return the claim that the runs together support."""
    ((_, claim),) = claims_of_runs(runs)
    return {"family": family, "over seeds": {"claim": claim.lines()}}


def measured(content: Mapping[str, Any], family: str) -> str:
    """Return the documentation text for stored results."""
    rows = [row for row in content["rows"] if row["family"] == family]
    of_runs = [row for row in rows if "tuned" in row]
    (found,) = (row["check"]["findings"] for row in rows if "check" in row)
    lines = [table({**content, "rows": of_runs}), ""]
    experts = [row["expert"]["success"] for row in of_runs if "expert" in row]
    lines += [f"The expert succeeds on {fmean(experts):.2f} of the tasks. Command: `{content['command']}`.", ""]
    lines += [
        "What Sparring reports (as recorded; shares of wrong answers are those at temperature 1):",
        "",
    ]
    loud = [one for one in found if one["severity"] != "note"]
    lines += [f"- `sparring check`: {one['severity']} `{one['rule']}`: {one['symptom']}" for one in loud]
    if not loud:
        lines.append(f"- `sparring check`: no errors, no warnings, {len(found)} notes")
    lines += [f"- The claim: {' '.join(row['over seeds']['claim'])}" for row in rows if "over seeds" in row]
    lines += [
        f"- seed {row['seed']}, `sparring diagnose`: {row['diagnosis']['headline']}"
        for row in of_runs
        if "diagnosis" in row
    ]
    return "\n".join(lines)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--shuffled", type=int, default=1, help="number of these seeds that also get shuffled rewards")
    parser.add_argument(
        "--runs", type=Path, metavar="FOLDER", help="folder that keeps the runs, so that none is trained twice"
    )
    parser.add_argument(
        "--table", type=Path, metavar="JSON", help="print the tables of stored results without running anything"
    )
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
    with runs_folder(arguments.runs) as folder:
        for family in families:
            here, settings = f"{folder}/{family}", [family, f"control {steps}", *overrides]
            recipe = ROOT / "recipes" / family
            Path(here).mkdir(exist_ok=True)
            rows.append(kept(here, "check", settings, partial(checked, family, quick=arguments.smoke)))
            of_runs = [
                kept(here, f"seed-{seed}", settings, partial(trained, family, seed, overrides, steps, here))
                for seed in seeds
            ]
            drawn = [
                {
                    "family": family,
                    **kept(here, f"shuffled-{seed}", settings, partial(shuffled, recipe, seed, overrides, here)),
                }
                for seed in seeds[: arguments.shuffled]
            ]
            rows += [claimed(family, [RunFolder(Path(here) / f"seed-{seed}") for seed in seeds]), *of_runs, *drawn]
            gain, flat = (
                f"{family}: least lower bound of the gain over the strongest control",
                f"{family}: gain from shuffled rewards",
            )
            figures[gain] = min(row[GAINED][1] for row in of_runs)
            figures[flat] = max(row["tuned"]["sampled"] - row["warm start"]["sampled"] for row in drawn)
            targets |= {gain: {"at_least": FAMILIES[family].gain}, flat: {"at_most": FAMILIES[family].shuffled}}
    played = [row for row in rows if "RL seconds" in row]
    sides = {
        **{f"{row['family']}, RL": row["RL seconds"] for row in played},
        **{f"{row['family']}, control": row["control steps"] for row in played},
        "shuffled rewards": sum("tuned" in row for row in rows) - len(played),
    }
    return report(
        "outside", rows, figures=figures, targets=targets, path=arguments.json, sides=sides, smoke=arguments.smoke
    )


if __name__ == "__main__":
    sys.exit(main())
