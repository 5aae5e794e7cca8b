"""`sparring watch`: the page follows the run, waits for who reads, and is shown to this machine alone."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.report.browser import browser, needs_chromium
from tests.report.stored_run import StoredRun, episode

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


@contextmanager
def watched(run: Path, *options: str) -> Iterator[str]:
    """Yield the address that the running command reports; then Ctrl-C ends the command, and it reports that."""
    command = [sys.executable, "-m", "sparring", "watch", str(run), "--port", "0", "--json", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["address"]
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
            assert process.stderr.read().endswith("stopped\n")


def eventually(state: str, address: str) -> int:
    """Return the version of the page in this state."""
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = httpx.get(f"{address}version").json()
        if answer["said"] == state:
            return answer["version"]
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)


def test_the_page_is_made_anew_when_the_run_has_gone_on_and_only_then(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.log({1: {"rollout/reward/mean": 0.5}}, {"train-1": [episode("train/1/a/0.0", reward=1.0, score=1.0)]})
    with watched(run.path) as address:
        assert eventually("completed, step 1 of 2", address) == 1
        before = httpx.get(address)
        assert before.headers["cache-control"] == "no-store"
        assert "train/1/a/0.0" in before.text
        assert "connect-src &#x27;self&#x27;" in before.text or "connect-src 'self'" in before.text
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 2, "time": 0.0, "metrics": {"rollout/reward/mean": 0.75}}) + "\n")
        assert eventually("completed, step 2 of 2", address) == 2
        # A damaged file leaves the page as it was.
        whole = (run.path / "metrics.jsonl").read_bytes()
        (run.path / "metrics.jsonl").write_bytes(b"no json\n" + whole)
        time.sleep(3)
        assert httpx.get(address).status_code == 200
        (run.path / "metrics.jsonl").write_bytes(whole)
        assert httpx.get(f"{address}report.html").status_code == 404
    assert not (run.path / "report.html").exists()


def test_a_foreign_name_that_points_to_this_machine_is_refused(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    with watched(run.path) as address:
        assert httpx.get(address, headers={"Host": "attacker.example"}).status_code == 421
        port = re.findall(r":(\d+)/", address)[0]
        assert httpx.get(address, headers={"Host": f"localhost:{port}"}).status_code == 200


def test_no_run_and_a_port_that_is_taken_are_errors(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    command = [sys.executable, "-m", "sparring", "watch"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    nothing = subprocess.run(
        [*command, str(tmp_path / "none")], capture_output=True, text=True, env=environment, check=False
    )
    assert nothing.returncode == 3
    with watched(run.path) as address:
        port = re.findall(r":(\d+)/", address)[0]
        taken = subprocess.run(
            [*command, str(run.path), "--port", port], capture_output=True, text=True, env=environment
        )
    assert taken.returncode == 4
    assert "Choose another port" in taken.stderr


@needs_chromium
def test_an_open_page_follows_the_run_and_waits_for_who_reads(tmp_path: Path) -> None:
    run = StoredRun(tmp_path)
    run.log({1: {"rollout/reward/mean": 0.5}}, {"train-1": [episode("train/1/a/0.0", reward=1.0, score=1.0)]})

    def goes_on(step: int) -> None:
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "time": 0.0, "metrics": {"rollout/reward/mean": 0.75}}) + "\n")

    live = "document.querySelector('.live')?.innerText ?? ''"
    with watched(run.path) as address, browser(tmp_path) as page:
        page.visit(address)
        page.wait_for(f"({live}).startsWith('Live: completed, step 1 of 2')")
        goes_on(2)
        page.wait_for(f"({live}) === 'Live: completed, step 2 of 2'")
        page.click("#settings summary")
        goes_on(3)
        page.wait_for(f"({live}).includes('The page is outdated.')")
        page.click(".live button")
        page.wait_for(f"({live}) === 'Live: completed, step 3 of 2'")
        assert page.complaints == []
        assert {request.split("?")[0] for request in page.requests} <= {address, f"{address}version"}
