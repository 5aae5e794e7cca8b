"""A run on a Ray cluster whose head is lost ends with the reason, and continues when the cluster is back."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from sparring.errors import ServiceError
from tests.e2e.test_group_runs import RECIPE, SETTINGS

if not os.environ.get("SPARRING_TEST_CLUSTER"):
    pytest.skip("needs Ray, which `make cluster` installs", allow_module_level=True)

from benchmarks.cluster import Cluster, count_steps, verify

PLACE = """
[learner]
type = "group"
num_ranks = 2
rank_timeout = 20
[environment]
workers = 2
listen_timeout = 30
[launch]
on = "ray"
ray_address = "{address}"
"""


def start(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sparring", "train", "--no-supervise", *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def test_a_run_whose_cluster_is_lost_ends_and_continues_later(tmp_path: Path) -> None:
    cluster = Cluster()
    place = tmp_path / "place.toml"
    place.write_text(PLACE.format(address=cluster.address), "utf-8")
    run, log = tmp_path / "lost", tmp_path / "log"
    settings = [*SETTINGS, f"run.runs_dir={tmp_path}", "schedule.max_steps=30", "schedule.save_every=1"]
    try:
        process = start([str(RECIPE), "--no-check", "--name", "lost", "--on", str(place), *settings], log)
        deadline = time.monotonic() + 240
        while count_steps(run) < 2:
            assert process.poll() is None, log.read_text("utf-8")[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        cluster.kill()
    assert process.wait(300) == ServiceError.exit_code, log.read_text("utf-8")[-2000:]
    assert re.search(
        "resume the run|--resume` continues the run", log.read_text("utf-8")
    )  # a rank or the workers are missed first
    done = count_steps(run)

    cluster = Cluster()
    try:
        process = start(["--resume", str(run), f"schedule.max_steps={done + 2}"], log)
        assert process.wait(240) == 0, log.read_text("utf-8")[-2000:]
    finally:
        cluster.kill()
    assert verify(run)
    assert json.loads((run / "status.json").read_text("utf-8"))["step"] == done + 2
