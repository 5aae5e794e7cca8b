"""Prometheus reads the latest numbers of a run, and the alert rules ask for names that are there."""

import re
import shutil
import socket
import threading
import time
from importlib.resources import files
from pathlib import Path

import httpx
import pytest

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")

from sparring.errors import RewardError
from sparring.tracking.prometheus import PrometheusTracker, gauge_name
from sparring.trainer import MultiTurnRLTrainer
from tests.test_docs import documented_metrics


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def read(tracker: PrometheusTracker) -> dict[str, float]:
    text = httpx.get(f"{tracker.address}/metrics").text
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines if not name.endswith("_created")}


def test_the_latest_numbers_findings_and_how_the_run_stands_are_served() -> None:
    tracker = PrometheusTracker("127.0.0.1:0", run="shop", clock=lambda: 7.0, linger_seconds=0.0)
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


def test_web_pages_and_foreign_names_of_this_machine_are_refused() -> None:
    tracker = PrometheusTracker("127.0.0.1:0", run="shop", linger_seconds=0.0)
    try:
        url = f"{tracker.address}/metrics"
        port = tracker.address.rpartition(":")[2]
        for headers, status in (
            ({"host": "attacker.example"}, 421),
            ({"origin": "http://attacker.example"}, 403),
            ({"host": f"localhost:{port}"}, 200),
        ):
            answer = httpx.get(url, headers=headers)
            assert answer.status_code == status
            assert ("shop" in answer.text) == (status == 200)
    finally:
        tracker.close()


def test_each_series_has_a_help_of_its_own() -> None:
    tracker = PrometheusTracker("127.0.0.1:0", run="shop", linger_seconds=0.0)
    try:
        tracker.log_finding({"severity": "warning"})
        text = httpx.get(f"{tracker.address}/metrics").text
    finally:
        tracker.close()
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    assert helps["sparring_findings_total"] == "Findings so far."
    assert len(set(helps.values())) == len(helps)


def test_an_address_that_is_taken_is_an_error_and_one_that_was_closed_is_free() -> None:
    first = PrometheusTracker("127.0.0.1:0", run="a", linger_seconds=0.0)
    taken = first.address.removeprefix("http://")
    with pytest.raises(OSError):
        PrometheusTracker(taken, run="b")
    first.close()
    PrometheusTracker(taken, run="b", linger_seconds=0.0).close()


def test_alert_rules_ask_for_what_is_served() -> None:
    text = (files("sparring") / "templates/prometheus/alerts.yml").read_text("utf-8")
    asked = set(re.findall(r"sparring_[a-z_]+", " ".join(re.findall(r"^ *expr: (.*)$", text, re.MULTILINE))))
    names = {name.replace("<outcome>", "max_turns") for name in documented_metrics()}
    own = {"sparring_step", "sparring_last_step_timestamp_seconds", "sparring_run_status", "sparring_findings_total"}
    assert len(asked) >= 10
    assert asked - own <= {gauge_name(name) for name in names}


def test_a_run_that_makes_no_first_step_has_the_time_of_its_start() -> None:
    tracker = PrometheusTracker("127.0.0.1:0", run="shop", clock=lambda: 7.0, linger_seconds=0.0)
    try:
        tracker.log_status("running")
        assert read(tracker)['sparring_last_step_timestamp_seconds{run="shop"}'] == 7.0
    finally:
        tracker.close()


def test_the_address_answers_until_the_end_was_read_twice_and_what_is_waited_for_is_reported() -> None:
    messages: list[str] = []
    tracker = PrometheusTracker("127.0.0.1:0", run="shop", linger_seconds=30.0, report=messages.append)
    tracker.log_status("running")
    read(tracker)
    tracker.log_status("completed")
    closing = threading.Thread(target=tracker.close)
    closing.start()
    for _ in range(2):
        time.sleep(0.2)
        assert closing.is_alive()
        assert read(tracker)['sparring_run_status{run="shop",status="completed"}'] == 1.0
    closing.join(10)
    assert not closing.is_alive()
    assert messages == [
        f"the run has ended; {tracker.address}/metrics serves its last state until it has been read "
        "twice, for at "
        "most 30 s; press Ctrl-C again to end at once"
    ]


@pytest.mark.parametrize(("status", "lasts"), [("stopped", 0.0), ("completed", 1.0), ("failed", 1.0)])
def test_an_address_that_was_not_read_stays_until_it_was_open_for_a_while_unless_the_run_was_stopped(
    status: str, lasts: float
) -> None:
    began = time.monotonic()
    messages: list[str] = []
    tracker = PrometheusTracker("127.0.0.1:0", run="shop", linger_seconds=1.0, report=messages.append)
    tracker.log_status(status)
    tracker.close()
    assert bool(messages) == (lasts > 0)
    assert lasts <= time.monotonic() - began < lasts + 0.9


def test_the_file_for_the_node_exporter_is_whole_at_any_moment_and_keeps_the_last_state(tmp_path: Path) -> None:
    file = tmp_path / "sparring-shop.prom"
    tracker = PrometheusTracker(run="shop", textfile=file, clock=lambda: 7.0)
    torn: list[str] = []
    is_over = threading.Event()

    def reading() -> None:
        while not is_over.is_set():
            text = file.read_text()
            if not text.endswith("\n") or "sparring_findings_total" not in text:
                torn.append(text)

    reader = threading.Thread(target=reading)
    reader.start()
    tracker.log_status("running")
    for step in range(200):
        tracker.log_metrics(step, {f"rollout/metric/{number}": float(step) for number in range(20)})
    tracker.log_status("failed")
    tracker.close()
    is_over.set()
    reader.join()
    assert torn == []
    lines = file.read_text().splitlines()
    assert 'sparring_run_status{run="shop",status="failed"} 1.0' in lines
    assert 'sparring_step{run="shop"} 199.0' in lines
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_who_reads_the_address_of_a_run_through_its_end_sees_how_it_ended(tmp_path: Path, status: str) -> None:
    recipe = Path(shutil.copytree(Path(__file__).parents[1] / "faults" / "recipe", tmp_path / "recipe"))
    with (recipe / "tiny.py").open("a") as code:
        code.write("\n\ndef broken(trajectory):\n    return float('nan')\n")
    port = free_port()
    overrides = [
        f"run.runs_dir={tmp_path / 'runs'}",
        f"tracking.prometheus_address=127.0.0.1:{port}",
        "schedule.max_steps=2",
        f"tracking.prometheus_textfile_dir={tmp_path}",
        *(["reward.reward=tiny:broken"] if status == "failed" else []),
    ]
    seen: list[str] = []
    with MultiTurnRLTrainer(recipe, overrides=overrides, name="shop", check=False, quiet=True) as trainer:
        trainer.train(wait=False)
        began = time.monotonic()
        while time.monotonic() - began < 60.0:
            try:
                text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
            except httpx.HTTPError:
                if seen:
                    break
            else:
                seen += re.findall(r'sparring_run_status\{run="shop",status="(\w+)"\} 1.0', text)
            time.sleep(0.02)
        if status == "failed":
            with pytest.raises(RewardError):
                trainer.wait(60.0)
        else:
            trainer.wait(60.0)
    # A run may fail before its address is read for the first time.
    assert list(dict.fromkeys(seen)) in (["running", status], [status])
    assert f'sparring_run_status{{run="shop",status="{status}"}} 1.0\n' in (tmp_path / "sparring-shop.prom").read_text()
