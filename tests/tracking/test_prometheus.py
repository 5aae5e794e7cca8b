"""Prometheus reads the latest numbers of a run, and the alert rules ask for names that are there."""

import re
from importlib.resources import files

import httpx
import pytest

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")

from sparring.tracking.prometheus import PrometheusTracker, gauge_name
from tests.test_docs import documented_metrics


def read(tracker: PrometheusTracker) -> dict[str, float]:
    text = httpx.get(f"http://127.0.0.1:{tracker.port}/metrics").text
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines if not name.endswith("_created")}


def test_the_latest_numbers_findings_and_how_the_run_stands_are_served() -> None:
    tracker = PrometheusTracker("127.0.0.1:0", run="shop", clock=lambda: 7.0)
    try:
        tracker.log_status("running")
        tracker.log_metrics(1, {"rollout/reward/mean": 0.5, "rollout/tools/get item/calls": 2.0})
        tracker.log_metrics(2, {"rollout/reward/mean": 0.75})
        tracker.log_finding({"severity": "error"})
        tracker.log_status("failed", reason="why")
        found = read(tracker)
    finally:
        tracker.close()
    assert found['sparring_rollout_reward_mean{run="shop"}'] == 0.75
    assert found['sparring_rollout_tools_get_item_calls{run="shop"}'] == 2.0
    assert found['sparring_step{run="shop"}'] == 2.0
    assert found['sparring_last_step_timestamp_seconds{run="shop"}'] == 7.0
    assert found['sparring_findings_total{run="shop",severity="error"}'] == 1.0
    assert found['sparring_findings_total{run="shop",severity="warning"}'] == 0.0
    stands = {name: value for name, value in found.items() if "run_status" in name}
    assert {name for name, value in stands.items() if value} == {'sparring_run_status{run="shop",status="failed"}'}


def test_each_series_has_a_help_of_its_own() -> None:
    tracker = PrometheusTracker("127.0.0.1:0", run="shop")
    try:
        tracker.log_finding({"severity": "warning"})
        text = httpx.get(f"http://127.0.0.1:{tracker.port}/metrics").text
    finally:
        tracker.close()
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    assert helps["sparring_findings_total"] == "Findings so far."
    assert len(set(helps.values())) == len(helps)


def test_an_address_that_is_taken_is_an_error_and_one_that_was_closed_is_free() -> None:
    first = PrometheusTracker("127.0.0.1:0", run="a")
    with pytest.raises(OSError):
        PrometheusTracker(f"127.0.0.1:{first.port}", run="b")
    first.close()
    PrometheusTracker(f"127.0.0.1:{first.port}", run="b").close()


def test_alert_rules_ask_for_what_is_served() -> None:
    text = (files("sparring") / "templates/prometheus/alerts.yml").read_text("utf-8")
    asked = set(re.findall(r"sparring_[a-z_]+", " ".join(re.findall(r"^ *expr: (.*)$", text, re.MULTILINE))))
    names = {name.replace("<outcome>", "max_turns") for name in documented_metrics()}
    own = {"sparring_step", "sparring_last_step_timestamp_seconds", "sparring_run_status", "sparring_findings_total"}
    assert len(asked) >= 10
    assert asked - own <= {gauge_name(name) for name in names}
