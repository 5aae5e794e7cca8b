"""Servers on a real Ray cluster of this machine: they start, come back, and fail with a clear error."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparring.errors import ServiceError
from sparring.runtime.server_process import ServerSpec, wait_until_ready

if not os.environ.get("SPARRING_TEST_CLUSTER"):
    pytest.skip("needs Ray, which `make cluster` installs", allow_module_level=True)

from benchmarks.cluster import CPUS, PORT, Cluster, start_cluster
from sparring.runtime.ray_launcher import RayLauncher

PROGRAM = (
    "import http.server, sys\n"
    "print('serves', flush=True)\n"
    "host, port = sys.argv[sys.argv.index('--host') + 1], int(sys.argv[sys.argv.index('--port') + 1])\n"
    "http.server.HTTPServer((host, port), http.server.SimpleHTTPRequestHandler).serve_forever()\n"
)
SERVER = ServerSpec(name="web server", command=(sys.executable, "-c", PROGRAM), variables={}, ready_path="/")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with start_cluster() as found:
        yield found


@pytest.fixture
def launcher(address: str, tmp_path: Path) -> Iterator[RayLauncher]:
    found = RayLauncher(address, tmp_path / "ray")
    yield found
    found.close()


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def children(process_id: int) -> list[int]:
    found = Path(f"/proc/{process_id}/task/{process_id}/children").read_text("ascii")
    return [int(one) for one in found.split()]


def test_a_server_that_is_killed_comes_back_at_its_address(launcher: RayLauncher, tmp_path: Path) -> None:
    one, other = launcher.start([SERVER, SERVER], [tmp_path / "one.log", tmp_path / "other.log"])
    wait_until_ready([one, other], "for a test", lambda line: None, seconds=60.0)
    for server in (one, other):
        server.restart_when_it_ends()
    os.kill(children(one.process_id)[0], signal.SIGKILL)
    wait_until(lambda: one.num_restarts == 1 and one.is_ready())
    assert other.num_restarts == 0
    wait_until(lambda: one.log.read_text("utf-8").count("serves") == 2)
    one.stop()
    wait_until(lambda: not one.is_ready())
    assert other.is_ready()


def test_an_actor_that_is_killed_comes_back_with_its_server(launcher: RayLauncher, tmp_path: Path) -> None:
    (server,) = launcher.start([SERVER], [tmp_path / "server.log"])
    wait_until_ready([server], "for a test", lambda line: None, seconds=60.0)
    keeper = server.process_id
    actor = int(Path(f"/proc/{keeper}/stat").read_text("ascii").rpartition(")")[2].split()[1])
    os.kill(actor, signal.SIGKILL)
    wait_until(lambda: server.process_id != keeper and server.is_ready(), seconds=60.0)


def test_servers_end_with_the_launcher(address: str, tmp_path: Path) -> None:
    launcher = RayLauncher(address, tmp_path / "ray")
    (server,) = launcher.start([SERVER], [tmp_path / "server.log"])
    wait_until_ready([server], "for a test", lambda line: None, seconds=60.0)
    launcher.close()
    wait_until(lambda: not server.is_ready())


def test_the_end_of_a_start_that_fails_is_shown(launcher: RayLauncher, tmp_path: Path) -> None:
    program = (sys.executable, "-c", "raise RuntimeError('Error: no such model')")
    servers = launcher.start([ServerSpec(name="server", command=program, variables={})], [tmp_path / "server.log"])
    with pytest.raises(ServiceError, match="no such model"):
        wait_until_ready(servers, "for a test", lambda line: None, seconds=60.0)


def test_servers_without_a_place_are_refused(
    launcher: RayLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.runtime.ray_launcher.PLACE_SECONDS", 3.0)
    number = CPUS + 1
    with pytest.raises(ServiceError, match=rf"no place for {number} servers"):
        launcher.start([SERVER] * number, [tmp_path / f"{one}.log" for one in range(number)])


def test_a_cluster_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"the Ray cluster at 127.0.0.1:9"):
        RayLauncher("127.0.0.1:9", tmp_path / "ray")


def test_the_end_of_the_cluster_is_an_error_and_not_the_end_of_this_process(tmp_path: Path) -> None:
    with start_cluster(PORT + 1) as address:  # another one than that of the other tests
        launcher = RayLauncher(address, tmp_path / "ray")
        (server,) = launcher.start([SERVER], [tmp_path / "server.log"])
        wait_until_ready([server], "for a test", lambda line: None, seconds=60.0)
    wait_until(lambda: not server.is_ready(), seconds=90.0)  # the actor notices the end of its node
    with pytest.raises(ServiceError, match=r"the Ray cluster at"):
        server.exit_code()
    launcher.close()


def test_a_server_of_a_node_that_is_lost_comes_back_on_another_one(tmp_path: Path) -> None:
    cluster = Cluster(PORT + 2, num_cpus=0)
    try:
        cluster.add_node("127.0.0.2", num_cpus=2)
        launcher = RayLauncher(cluster.address, tmp_path / "ray")
        (server,) = launcher.start([SERVER], [tmp_path / "server.log"])
        wait_until_ready([server], "for a test", lambda line: None, seconds=60.0)
        before = server.url
        assert before.startswith("http://127.0.0.2:")
        cluster.add_node("127.0.0.3", num_cpus=2)
        cluster.kill_node("127.0.0.2")
        wait_until(lambda: server.find_url() != before and server.is_ready(), seconds=180.0)
        assert server.url.startswith("http://127.0.0.3:")
        launcher.close()
    finally:
        cluster.kill()
