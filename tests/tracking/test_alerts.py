"""Each alert fires when it should and at no other time: `promtool test rules` evaluates the rules on made-up series."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed; it comes with Debian's package `prometheus` and with Prometheus itself",
)
STATUSES = ("running", "completed", "stopped", "failed")
RUNNING = {
    'sparring_run_status{run="shop",status="running"}': "1x600",
    'sparring_run_status{run="shop",status="failed"}': "0x600",
}


def series(**metrics: str) -> dict[str, str]:
    """Of a run that is in progress, a sample a minute."""
    return RUNNING | {f'sparring_{name}{{run="shop"}}': values for name, values in metrics.items()}


def ended(status: str, *, after: int, reads: int = 2) -> dict[str, str]:
    """Of a run that ends: its end is read so many times, then the address answers no more."""
    return {
        f'sparring_run_status{{run="shop",status="{one}"}}': (
            f"{int(one == 'running')}x{after - 1} {int(one == status)}x{reads - 1} stale"
        )
        for one in STATUSES
    }


KILLED = {f'sparring_run_status{{run="shop",status="{one}"}}': f"{int(one == 'running')}x29 stale" for one in STATUSES}
RESTARTED = {
    f'sparring_run_status{{run="shop",status="{one}"}}': f"{int(one == 'running')}x29 stale _x2 {int(one == 'running')}x60"
    for one in STATUSES
}
RESUMED = {
    'sparring_run_status{run="shop",status="running"}': "1x29 0x1 stale _x5 1x60",
    'sparring_run_status{run="shop",status="failed"}': "0x29 1x1 stale _x5 0x60",
}
ADDRESS, FILE, ELSEWHERE = "shop:9400", "shop:9100", "yard:9400"


def seen_at(instance: str, series: Mapping[str, str], *, last_step: str) -> dict[str, str]:
    """The same series as a server has them from one place."""
    stands = series | {'sparring_last_step_timestamp_seconds{run="shop"}': last_step}
    return {name.replace("}", f',instance="{instance}"}}'): values for name, values in stands.items()}


# The file is written a moment after the address was set, and stays; each minute is a step.
KILLED_WITH_FILE = seen_at(ADDRESS, KILLED, last_step="0+60x29 stale") | seen_at(
    FILE, RUNNING, last_step="0.1+60x29 1740.1x600"
)
COMPLETED_ELSEWHERE = {
    f'sparring_run_status{{run="shop",status="{one}"}}': f"_x35 {int(one == 'running')}x5 {int(one == 'completed')}x1 stale"
    for one in STATUSES
}
WENT_ON = seen_at(ELSEWHERE, COMPLETED_ELSEWHERE, last_step="_x35 2100+60x6 stale")
ERRORS = 'sparring_findings_total{run="shop",severity="error"}'
COMPLETED = {
    'sparring_run_status{run="shop",status="running"}': "0x600",
    'sparring_run_status{run="shop",status="completed"}': "1x600",
}

FIRES: Mapping[str, tuple[tuple[dict[str, str], str], ...]] = {
    "SparringRunFailed": ((ended("failed", after=30), "31m"), (ended("failed", after=30), "80m"), (RESUMED, "31m")),
    "SparringRunGone": ((KILLED, "36m"), (KILLED, "80m"), (KILLED_WITH_FILE, "36m")),
    # The epoch is when the run was started, or made its last step.
    "SparringNoStep": ((series(last_step_timestamp_seconds="0x600"), "31m"),),
    "SparringErrorFinding": ((RUNNING | {ERRORS: "0x4 1x600"}, "6m"), (RUNNING | {ERRORS: "_x4 1x600"}, "6m")),
    "SparringEpisodesLost": ((series(rollout_failed_attempts="2x600", rollout_attempts="100x600"), "11m"),),
    "SparringNoSignal": ((series(analysis_batch_valid_ratio="0.09x600"), "31m"),),
    "SparringTruncated": ((series(rollout_truncated_episodes="0.06x600"), "31m"),),
    "SparringTurnLimit": ((series(rollout_outcome_max_turns="0.2x600"), "31m"),),
    # 120 samples of 1, then one of 21: ten times their mean is 10 * 141 / 121 = 11.7. After one of 9 it is 10.7.
    "SparringGradientSpike": ((series(training_grad_norm="1x119 21x5"), "120m"),),
    "SparringEntropyCollapse": ((series(training_entropy="0.009x600"), "31m"),),
    "SparringSamplerMismatch": ((series(training_effective_sample_size="0.49x600"), "11m"),),
}
SILENT: tuple[tuple[dict[str, str], str], ...] = (
    *(
        (ended(status, after=30), at)
        for status in ("completed", "stopped")
        for at in ("31m", "33m", "36m", "80m", "200m")
    ),
    (ended("completed", after=30, reads=1), "36m"),
    (KILLED, "34m"),
    (RESTARTED, "33m"),
    (RESTARTED, "45m"),
    (RESUMED, "45m"),
    *((seen_at(ADDRESS, KILLED, last_step="0+60x29 stale") | WENT_ON, when) for when in ("45m", "60m")),
    (seen_at(ADDRESS, ended("failed", after=30), last_step="0+60x30 stale") | WENT_ON, "60m"),
    (series(last_step_timestamp_seconds="0x600"), "29m"),
    (COMPLETED | {'sparring_last_step_timestamp_seconds{run="shop"}': "0x600"}, "200m"),
    (RUNNING | {ERRORS: "0x600"}, "20m"),
    (RUNNING | {ERRORS: "1x600"}, "40m"),
    (series(rollout_failed_attempts="1x600", rollout_attempts="100x600"), "40m"),
    (series(rollout_failed_attempts="2x600", rollout_attempts="100x600"), "9m"),
    (series(analysis_batch_valid_ratio="0.1x600"), "60m"),
    (series(analysis_batch_valid_ratio="0x600"), "29m"),
    (series(rollout_truncated_episodes="0.05x600"), "60m"),
    (series(rollout_outcome_max_turns="0.1x600"), "60m"),
    (series(training_grad_norm="1x119 9x5"), "120m"),
    (series(training_entropy="0.01x600"), "60m"),
    (series(training_effective_sample_size="0.5x600"), "60m"),
    # The last numbers of a run that has ended stay in its file.
    *(
        (COMPLETED | {f'sparring_{name}{{run="shop"}}': value}, "200m")
        for name, value in {
            "analysis_batch_valid_ratio": "0x600",
            "rollout_truncated_episodes": "1x600",
            "rollout_outcome_max_turns": "1x600",
            "training_entropy": "0x600",
            "training_effective_sample_size": "0x600",
        }.items()
    ),
)


@pytest.fixture
def rules() -> Iterator[Path]:
    with as_file(files("sparring") / "templates" / "prometheus" / "alerts.yml") as path:
        yield path.absolute()


def test_every_alert_is_tried() -> None:
    text = (files("sparring") / "templates" / "prometheus" / "alerts.yml").read_text("utf-8")
    assert [rule["alert"] for rule in yaml.safe_load(text)["groups"][0]["rules"]] == list(FIRES)
    assert len(FIRES) == 11


@needs_promtool
def test_each_alert_fires_when_it_should_and_no_other_does(rules: Path, tmp_path: Path) -> None:
    known = {rule["alert"]: rule for rule in yaml.safe_load(rules.read_text("utf-8"))["groups"][0]["rules"]}
    cases = [(name, found, at) for name, some in FIRES.items() for found, at in some]
    cases += [("", found, at) for found, at in SILENT]
    tests = [
        {
            "name": f"{expected or 'silent'}, case {number}",
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in found.items()],
            "alert_rule_test": [
                {"eval_time": at, "alertname": name, "exp_alerts": [_alert(rule, found)] if name == expected else []}
                for name, rule in known.items()
            ],
        }
        for number, (expected, found, at) in enumerate(cases)
    ]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def _alert(rule: Mapping[str, Any], found: Mapping[str, str]) -> dict[str, Any]:
    labels = {"run": "shop", **rule["labels"]}
    status = {"SparringRunFailed": "failed", "SparringRunGone": "running"}.get(rule["alert"])
    if status is not None:
        labels["status"] = status
    if any(ADDRESS in name for name in found):
        labels["instance"] = ADDRESS
    if ERRORS in found:
        # The finding's own severity is replaced by the alert's.
        labels["severity"] = rule["labels"]["severity"]
    annotations = {key: text.replace("{{ $labels.run }}", "shop") for key, text in rule["annotations"].items()}
    return {"exp_labels": labels, "exp_annotations": annotations}
