"""Measures the checks on environments that were not written for them: the tools that are reached, false errors, and the
time.

The environments are the twelve domains of the suite, without their experts and recorded conversations, and five recipes
in tests/checks/foreign. These recipes use a Gymnasium environment, an MCP server, a server of OpenEnv's protocol, tools
over a pandas table, and an environment whose process takes three seconds to start. Each gets a full check. The CPU time
of a check includes the processes that it starts."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import options, report
from sparring.environments.suites import sop

ROOT = Path(__file__).parents[1]
FOREIGN = ROOT / "tests" / "checks" / "foreign"
SMOKE = ("gymnasium_grid",)
SLOW = "slow_process"
LEAST_REACHED = 0.9
MOST_PROCESSOR_SECONDS = 60.0


def list_recipes() -> Iterator[tuple[str, Path, list[str]]]:
    """Yield the name, folder and overrides of each recipe."""
    for name in sop.DOMAINS:
        parts = {"reward.reward": "reward", "reward.scorer": "scorer"}
        parts |= {f"data.{split}": f"{split}_tasks" for split in sop.SPLITS}
        module = f"sparring.environments.suites.sop.{name}"
        overrides = [f"{key}={module}:{value}" for key, value in parts.items()]
        yield f"sop.{name}", FOREIGN / "sop_without_expert", [*overrides, f"environment.target=environment:{name}"]
    for folder in sorted(FOREIGN.iterdir()):
        if (folder / "recipe.toml").is_file() and folder.name != "sop_without_expert":
            yield folder.name, folder, []


def run_check(folder: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], float]:
    """Return the JSON of a complete check, and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, "-c", "from sparring.cli import main; main()", "check", str(folder), *overrides, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(ended.stdout), seconds


def row(name: str, folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    document, seconds = run_check(folder, overrides)
    findings, measured = document["findings"], document["measured"]
    reached, others = measured.get("tools_reached", []), measured.get("tools_not_tested", [])
    states = [one["state"] for one in document["checked"]]
    made = {
        "environment": name,
        "tools": len(reached) + len(others),
        "reached": len(reached),
        "errors": document["counts"]["error"],
        "warnings": document["counts"]["warning"],
        "failed_always": sum("failed at every" in one["symptom"] for one in findings),
        "undecided": states.count("undecided"),
        "left_out": states.count("left_out"),
        "processor_s": round(seconds, 1),
        "wall_s": round(document["seconds"], 1),
    }
    reported = [one["rule"] for one in findings if one["severity"] != "note"]
    print(
        f"{name}: {made['reached']} of {made['tools']} tools, not tested: {others}, findings: {reported}, {seconds:.1f} s",
        file=sys.stderr,
    )
    return made


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", help="only these environments")
    arguments = parser.parse_args()
    names = arguments.names or (SMOKE if arguments.smoke else [name for name, *_ in list_recipes()])
    rows = [row(*one) for one in list_recipes() if one[0] in names]
    quick = [one for one in rows if one["environment"] != SLOW]
    figures = {
        "least_share_of_tools_reached": min((one["reached"] / max(1, one["tools"]) for one in quick), default=1.0),
        "errors": float(sum(one["errors"] for one in rows)),
        "tools_that_failed_at_every_call": float(sum(one["failed_always"] for one in rows)),
        "undecided": float(sum(one["undecided"] for one in rows)),
        "most_processor_seconds": max(one["processor_s"] for one in rows),
    }
    targets: dict[str, dict[str, float]] = {
        "least_share_of_tools_reached": {"at_least": LEAST_REACHED},
        "errors": {"at_most": 0},
        "tools_that_failed_at_every_call": {"at_most": 0},
        "undecided": {"at_most": 0},
        "most_processor_seconds": {"at_most": MOST_PROCESSOR_SECONDS},
    }
    sides = {f"{one['environment']}, tools reached": one["reached"] for one in rows}
    return report(
        "foreign", rows, figures=figures, targets=targets, path=arguments.json, smoke=arguments.smoke, sides=sides
    )


if __name__ == "__main__":
    sys.exit(main())
