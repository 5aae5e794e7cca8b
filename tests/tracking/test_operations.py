"""What operators are given fits what runs export: a section for each alert, and a dashboard of real metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sparring.tracking.prometheus import gauge_name
from tests.test_docs import documented_metrics

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text("utf-8"))
ALERTS = yaml.safe_load((ROOT / "sparring/templates/prometheus/alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
OF_THE_TRACKER = {
    "sparring_step",
    "sparring_last_step_timestamp_seconds",
    "sparring_run_status",
    "sparring_findings_total",
}


def queries() -> list[str]:
    """Return the queries of the dashboard's panels, for a run of a name."""
    return [
        target["expr"].replace("$run", "shop").replace(".+", "finished")
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    ]


def is_exported(name: str) -> bool:
    patterns = [re.sub(r"<\w+>", "\0", one) for one in documented_metrics()]
    names = [re.escape(gauge_name(one.replace("\0", "PART"))).replace("PART", "[a-z0-9_]+") for one in patterns]
    return name in OF_THE_TRACKER or any(re.fullmatch(one, name) for one in names)


def test_every_alert_has_a_section_and_its_annotation_leads_there() -> None:
    sections = re.findall(r"^### (\w+)$", PAGE, flags=re.MULTILINE)
    assert sections == [rule["alert"] for rule in ALERTS]
    assert [rule["annotations"]["runbook"] for rule in ALERTS] == [
        f"docs/operations.md#{name.lower()}" for name in sections
    ]
    for part in PAGE.partition("\n## Alerts\n")[2].partition("\n## ")[0].split("\n### ")[1:]:
        assert re.findall(r"\*\*(\w+)\.\*\*", part) == ["Meaning", "Look", "Do"], part.split("\n")[0]


def test_every_metric_of_alerts_and_dashboard_is_exported() -> None:
    expressions = [*queries(), *(rule["expr"] for rule in ALERTS)]
    names = {name for one in expressions for name in re.findall(r"sparring_\w+", one)}
    assert len(names) > 30
    assert [name for name in sorted(names) if not is_exported(name)] == []
    assert not is_exported("sparring_rollout_rewards_mean")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_each_query_of_the_dashboard(tmp_path: Path) -> None:
    def check(expressions: list[str]) -> subprocess.CompletedProcess[str]:
        rules = [{"record": f"query:{number}", "expr": one} for number, one in enumerate(expressions)]
        (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
        command = ["promtool", "check", "rules", str(tmp_path / "rules.json")]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    done = check(queries())
    assert done.returncode == 0, done.stdout + done.stderr
    assert check(['sparring_step{run="shop"']).returncode != 0


def test_panels_do_not_overlap_and_have_data_sources() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at: dict[str, Any] = panel["gridPos"]
        covered = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert cells.isdisjoint(covered), panel["title"]
        assert max(x for x, _ in covered) < 24
        cells |= covered
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel.get("targets", ()))
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert {one["name"] for one in DASHBOARD["templating"]["list"]} == {"datasource", "run"}
