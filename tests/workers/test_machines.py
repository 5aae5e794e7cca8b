"""Workers on other machines: they prove that they have the key, get the recipe's code, and may come and go."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sparring.agents import EnvironmentAgent
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.environments import answer, tool_call
from sparring.environments.base import reset
from sparring.errors import DataError, InfrastructureError, ServiceError
from sparring.ledger import Ledger, RolloutState
from sparring.rollouts import Collector, EpisodeAgent, Grading, GroupPlan, MainPolicy, RolloutLimits
from sparring.runtime.plugins import load_object
from sparring.types import Sampling, Task
from sparring.workers import WorkerPool, grade_in_workers, run_in_workers
from sparring.workers.handshake import MAGIC, PROTOCOL, WrongKey, admit, installed_version, present
from sparring.workers.shipping import check_listing
from sparring.workers.wire import frame, receive
from tests.workers.machine import KEY, ROOT, Announced, Machine, connected_pool, listening_pool, machine
from tests.workers.test_workers import CODE, RECIPE_FOLDER, Shop, find_process, open_environment, wait_until_gone

Serving = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def listening(pool: WorkerPool, announced: Announced) -> Iterator[str]:
    """The address of a pool that waits for its first worker."""
    waiting = threading.Thread(target=lambda: _suppressed(pool))
    waiting.start()
    try:
        yield announced.wait_for_address()
    finally:
        asyncio.run(pool.aclose())
        waiting.join(30)


def _suppressed(pool: WorkerPool) -> None:
    with suppress(ServiceError, asyncio.CancelledError):
        asyncio.run(pool.wait_until_ready())


@pytest.fixture
def waiting() -> Iterator[str]:
    """The address of a run that waits for workers."""
    announced = Announced()
    with listening(listening_pool(CODE, announced, timeout_seconds=5.0), announced) as address:
        yield address


@dataclass
class FakeRun:
    """A server in the place of a run. `received` is what was sent to it before `serve` was called."""

    serve: Serving
    received: bytearray = field(default_factory=bytearray)

    @contextmanager
    def started(self) -> Iterator[str]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._accept, "127.0.0.1", 0), loop).result()
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            asyncio.run_coroutine_threadsafe(_ended(server), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(EOFError, OSError, WrongKey):
            await self.serve(reader, writer)
        writer.close()


async def _ended(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0.05)  # transports close in callbacks


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def received(connection: socket.socket) -> bytes:
    """All bytes until the other side closes the connection."""
    content = b""
    with suppress(ConnectionError):
        while part := connection.recv(2**16):
            content += part
    return content


def test_a_wrong_key_is_refused_and_nothing_about_the_run_is_sent(waiting: str) -> None:
    with connect(waiting) as connection:
        connection.sendall(MAGIC + bytes(32) + bytes(32))
        # The run's random number, and that the proof is wrong.
        content = received(connection)
    assert content[: len(MAGIC)] == MAGIC
    assert len(content) == len(MAGIC) + 32 + 1
    assert content[-1:] == b"\0"


def test_a_worker_with_another_key_ends_with_what_to_do(waiting: str, tmp_path: Path) -> None:
    with machine(waiting, cache=tmp_path, variables={"SPARRING_API_KEY": "another"}) as refused:
        assert refused.wait() == 4
    assert f"the run at {waiting} has another key. Set SPARRING_API_KEY" in refused.output


def test_a_worker_sends_no_key_and_takes_nothing_from_a_server_that_does_not_have_it(tmp_path: Path) -> None:
    sent = bytearray()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent.extend(await reader.readexactly(len(MAGIC) + 32))
        writer.write(MAGIC + bytes(32))
        sent.extend(await reader.readexactly(32))
        writer.write(b"\1" + bytes(32))
        sent.extend(await reader.read())

    with FakeRun(pretend).started() as address, machine(address, "--processes", "1", cache=tmp_path) as one:
        assert one.wait() == 4
    assert "has another key" in one.output
    assert KEY.encode() not in sent
    assert b'"sparring"' not in sent, "no message follows"


def test_garbage_at_the_port_does_not_disturb_a_run(tmp_path: Path) -> None:
    with connected_pool(CODE, "--processes", "1", cache=tmp_path) as (pool, one):
        silent = connect(one.address)
        for content in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), MAGIC, MAGIC + bytes(10)):
            with connect(one.address) as connection:
                connection.sendall(content)

        async def main() -> None:
            environment = await open_environment(pool)
            assert await environment.call_tool("count", {}) == 1
            await environment.close()

        asyncio.run(main())
        silent.close()


async def _introduce(address: str, **changes: Any) -> Any:
    """The answer of a run to a worker that has the key."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await present(reader, writer, KEY.encode(), address)
    hello = {"sparring": installed_version(), "protocol": PROTOCOL, "host": "node1", "is_spare": False, **changes}
    writer.write(frame(hello))
    answered = await receive(reader)
    writer.close()
    await writer.wait_closed()
    return answered


@pytest.mark.parametrize("changes", [{"sparring": "0.0.9"}, {"protocol": 99}])
def test_another_version_is_refused_and_both_are_named(waiting: str, changes: dict[str, Any]) -> None:
    refusal = asyncio.run(_introduce(waiting, **changes))["refused"]
    theirs = {"sparring": installed_version(), "protocol": PROTOCOL, **changes}
    assert f"it has Sparring {theirs['sparring']} (protocol {theirs['protocol']})" in refusal
    assert f"the run has Sparring {installed_version()} (protocol {PROTOCOL})" in refusal
    assert set(asyncio.run(_introduce(waiting))) == {"files", "left_out"}


async def _admit_then(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *messages: Any) -> None:
    await admit(reader, writer, KEY.encode())
    await receive(reader)
    for message in messages:
        writer.write(frame(message))
    await reader.read()


def test_a_refused_worker_ends_with_the_reason(tmp_path: Path) -> None:
    run = FakeRun(lambda reader, writer: _admit_then(reader, writer, {"refused": "it has Sparring 1, but ..."}))
    with run.started() as address, machine(address, cache=tmp_path) as refused:
        assert refused.wait() == 4
    assert "the run refuses this worker: it has Sparring 1, but ..." in refused.output


@pytest.mark.parametrize(
    "name",
    ["../evil.py", "/tmp/evil.py", "a/../../evil.py", "a/./b.py", "a//b.py", "", ".", "..", "a\\..\\b.py", "a\0b"],
)
def test_a_path_that_leads_out_of_the_folder_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="not a path within a folder"):
        check_listing({name: {"bytes": 1, "sha256": "0"}})


def test_a_run_cannot_write_outside_of_the_cache(tmp_path: Path) -> None:
    offer = {"files": {"../evil.py": {"bytes": 1, "sha256": "0"}}, "left_out": ()}
    run = FakeRun(lambda reader, writer: _admit_then(reader, writer, offer))
    with run.started() as address, machine(address, cache=tmp_path / "cache") as refused:
        assert refused.wait() == 3
    assert "'../evil.py', which is not a path within a folder" in refused.output
    assert list(tmp_path.rglob("*")) == []


def copied_recipe(folder: Path) -> Path:
    shutil.copytree(RECIPE_FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


async def _size(pool: WorkerPool) -> str:
    """The opening message of an episode, which the shipped code writes."""
    environment = run_in_workers(Shop, pool)()
    opening = await reset(environment, Task(id="a", messages=()))
    await environment.close()
    return str(opening[0]["content"])


def test_the_code_of_the_run_is_sent_to_a_worker_that_has_none(tmp_path: Path) -> None:
    folder = copied_recipe(tmp_path / "recipe")
    (folder / "shop.py").write_text((folder / "shop.py").read_text().replace("} of {", "} with {"))
    with connected_pool({**CODE, "folder": str(folder)}, "--processes", "1", cache=tmp_path / "cache") as (pool, one):
        assert asyncio.run(_size(pool)) == "a with 2?"
        assert "got 2 files from the run" in one.output
    (cached,) = (tmp_path / "cache" / "sparring" / "recipes").iterdir()
    assert (cached / "shop.py").read_bytes() == (folder / "shop.py").read_bytes()
    # The next time, the files are there. A file that was changed is sent again.
    with connected_pool({**CODE, "folder": str(folder)}, "--processes", "1", cache=tmp_path / "cache") as (pool, one):
        assert "has the files of the run" in one.output
    (cached / "shop.py").write_text("raise SystemExit")
    with connected_pool({**CODE, "folder": str(folder)}, "--processes", "1", cache=tmp_path / "cache") as (pool, one):
        assert asyncio.run(_size(pool)) == "a with 2?"
        assert "got 2 files from the run" in one.output


def test_a_copy_of_the_recipe_is_used_only_if_it_has_the_same_files(tmp_path: Path) -> None:
    own = copied_recipe(tmp_path / "own")
    options = ("--processes", "1", "--recipe", str(own))
    with connected_pool(CODE, *options, cache=tmp_path / "cache") as (_, one):
        assert f"the recipe's code is in {own} (has the files of the run)" in one.output
    assert not (tmp_path / "cache").exists()
    (own / "shop.py").write_text("raise SystemExit")
    with connected_pool(CODE, *options, cache=tmp_path / "cache") as (pool, one):
        assert asyncio.run(_size(pool)) == "a of 2?"
        one.wait_for(f"{own} is not used, because its files differ from those of the run")


def test_code_that_cannot_be_loaded_on_a_machine_ends_the_worker_there_and_not_the_run(tmp_path: Path) -> None:
    folder = copied_recipe(tmp_path / "recipe")
    code = (folder / "shop.py").read_text()
    needs = 'if not os.environ.get("HAS_PACKAGE"):\n    import a_package_that_is_missing\n'
    (folder / "shop.py").write_text(code.replace("def die(", f"{needs}\n\ndef die("))
    announced = Announced()
    pool = listening_pool({**CODE, "folder": str(folder)}, announced, timeout_seconds=30)
    cache = tmp_path / "cache"
    with listening(pool, announced) as address:
        with machine(address, "--processes", "1", cache=cache) as lacking:
            assert lacking.wait() == 2
        assert "cannot be loaded on this machine: module 'shop' needs 'a_package_that_is_missing'" in lacking.output
        with machine(address, "--processes", "1", cache=cache, variables={"HAS_PACKAGE": "1"}) as one:
            one.wait_for("serving the run")
            assert asyncio.run(_size(pool)) == "a of 2?"


def test_files_that_are_too_large_are_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = copied_recipe(tmp_path / "recipe")
    for number in range(5):  # sparse, each below the size at which files are left out
        with (folder / f"data-{number}.bin").open("wb") as file:
            file.truncate(60 * 2**20)
    announced = Announced()
    pool = listening_pool({**CODE, "folder": str(folder)}, announced, timeout_seconds=30)
    with listening(pool, announced) as address, machine(address, "--processes", "1", cache=tmp_path / "cache") as one:
        assert one.wait() == 4
    assert "have 300 MiB together, but at most 256 MiB are sent" in one.output
    assert "--recipe FOLDER" in one.output
    # With its own copy, the worker needs none of them.
    options = ("--processes", "1", "--recipe", str(folder))
    with connected_pool({**CODE, "folder": str(folder)}, *options, cache=tmp_path / "cache") as (pool, _):
        assert asyncio.run(_size(pool)) == "a of 2?"
    assert not (tmp_path / "cache").exists()


def test_a_worker_that_never_comes_is_an_error_by_a_deadline() -> None:
    async def main() -> None:
        pool = listening_pool(CODE, Announced(), timeout_seconds=0.5)
        with pytest.raises(ServiceError, match=r"no worker was connected to 127\.0\.0\.1:\d+ for 0\.5 s .*--resume"):
            await pool.wait_until_ready()
        # A request of an episode that is already running is an outage, at once: the time is over.
        with pytest.raises(InfrastructureError, match="Start `sparring worker --connect`"):
            await open_environment(pool)
        await pool.aclose()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_run_that_ends_while_it_waits_leaves_no_caller_and_no_handshake_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        announced = Announced()
        pool = listening_pool(CODE, announced)
        waiting = asyncio.ensure_future(pool.wait_until_ready())
        address = await asyncio.to_thread(announced.wait_for_address)
        with connect(address) as connection:
            connection.sendall(MAGIC)
            await asyncio.sleep(0.1)
            await pool.aclose()
            with pytest.raises(ServiceError, match="no longer listens"):
                await waiting
            assert received(connection) == b""

    asyncio.run(asyncio.wait_for(main(), 20))
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


def test_an_address_in_use_is_an_error_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        pool = listening_pool(CODE, Announced(), port=taken.getsockname()[1])
        with pytest.raises(ServiceError, match=r"cannot be listened on: .*Choose another port"):
            asyncio.run(pool.wait_until_ready())
        asyncio.run(pool.aclose())


def test_an_address_of_another_machine_is_an_error_with_what_to_do() -> None:
    pool = listening_pool(CODE, Announced(), host="203.0.113.7")
    with pytest.raises(
        ServiceError, match=r"Check that '203\.0\.113\.7' is an address or a name of this machine"
    ) as raised:
        asyncio.run(pool.wait_until_ready())
    assert "another port" not in str(raised.value)
    asyncio.run(pool.aclose())


def test_local_and_connected_workers_share_the_episodes(tmp_path: Path) -> None:
    async def main(pool: WorkerPool, address: str) -> None:
        first = await open_environment(pool)
        with machine(address, "--processes", "1", cache=tmp_path) as one:
            await asyncio.to_thread(one.wait_for, "serving the run")
            second = await open_environment(pool)
            assert await find_process(first) != await find_process(second)
            for environment in (first, second):
                await environment.close()

    announced = Announced()
    pool = listening_pool(CODE, announced, num_local=1)
    asyncio.run(_size_of_local(pool))
    try:
        asyncio.run(asyncio.wait_for(main(pool, announced.wait_for_address()), 60))
    finally:
        asyncio.run(pool.aclose())


async def _size_of_local(pool: WorkerPool) -> None:
    assert await _size(pool) == "a of 2?"


def test_a_run_that_starts_again_gets_its_workers_back(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def main() -> int:
        pool = listening_pool(CODE, Announced(), port=port)
        await pool.wait_until_ready()
        environment = await open_environment(pool)
        process = await find_process(environment)
        await environment.close()
        await pool.aclose()
        return process

    with machine(f"127.0.0.1:{port}", "--processes", "1", cache=tmp_path) as one:
        one.wait_for(f"no run at 127.0.0.1:{port} yet")
        first = asyncio.run(asyncio.wait_for(main(), 60))
        wait_until_gone(first)
        one.wait_for(f"the run at 127.0.0.1:{port} has ended or cannot be reached; waiting for it")
        assert asyncio.run(asyncio.wait_for(main(), 60)) != first
        assert one.stop() == 0
    assert "stopped" in one.output


def test_a_worker_gives_up_if_no_run_comes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with machine(address, "--wait", "1", cache=tmp_path) as one:
        assert one.wait() == 4
    assert f"no run has accepted workers at {address} for 1 s (ConnectionRefusedError" in one.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_worker_closes_its_environments_and_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    notes = tmp_path / "notes"
    with connected_pool(CODE, "--processes", "1", cache=tmp_path / "cache") as (pool, one):

        async def main() -> list[int]:
            environment = await open_environment(pool, notes=str(notes))
            return [await find_process(environment), int(await environment.call_tool("start", {}))]

        found = asyncio.run(main())
        one.process.send_signal(number)
        assert one.wait() == 0
        for process in found:
            wait_until_gone(process)
    assert notes.read_text() == "closed\n"


TRAINER = """
import asyncio, sys
from tests.workers.machine import Announced, listening_pool
from tests.workers.test_workers import CODE, open_environment, find_process

async def main():
    announced = lambda text: print(text.partition("--connect ")[2].split()[0], flush=True)
    pool = listening_pool(CODE, announced)
    await pool.wait_until_ready()
    environment = await open_environment(pool, notes=sys.argv[1])
    waiting = asyncio.ensure_future(environment.call_tool("wait", {}))
    await asyncio.sleep(0)
    # The answer to the second call shows that the first one has started.
    print(await find_process(environment), flush=True)
    await waiting

asyncio.run(main())
"""


def test_a_lost_connection_cancels_calls_and_closes_environments(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(notes)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as trainer:
        assert trainer.stdout is not None
        with machine(trainer.stdout.readline().strip(), "--processes", "1", cache=tmp_path / "cache") as one:
            process = int(trainer.stdout.readline())
            trainer.send_signal(signal.SIGKILL)
            trainer.wait()
            wait_until_gone(process)
            one.wait_for("has ended or cannot be reached")
    assert notes.read_text() == "given up\nclosed\n"


def collect(pool: WorkerPool, tasks: list[Task], ledger: Ledger) -> Any:
    """Run all tasks to their end, and return their groups."""
    play = EnvironmentAgent(run_in_workers(Shop, pool), max_turns=4).play
    collector = Collector(
        agent=EpisodeAgent(play, pool.aclose, pool.wait_until_ready),
        policy=MainPolicy(ScriptedMessages([tool_call("count"), tool_call("count"), answer("done")], name="clerk")),
        grading=Grading(reward=grade_in_workers(pool, "reward", load_object("shop:reward", folder=RECIPE_FOLDER))),
        ledger=ledger,
        seed=0,
        limits=RolloutLimits(timeout_seconds=60.0, max_concurrency=4, max_retries=2),
    )

    async def main() -> Any:
        plans = [GroupPlan(task=one, position=at, group_size=1, sampling=Sampling()) for at, one in enumerate(tasks)]
        try:
            return await collector.play_all(plans, in_waves=False)
        finally:
            await collector.aclose()

    return asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("what", ["the process of an episode", "the whole machine"])
def test_the_episodes_of_a_killed_worker_are_run_again_elsewhere(tmp_path: Path, what: str) -> None:
    ledger, asleep = Ledger(), tmp_path / "asleep"
    announced = Announced()
    pool = listening_pool(CODE, announced)
    killed: list[str] = []

    def kill(first: Machine) -> None:
        while not asleep.exists():
            threading.Event().wait(0.02)
        target = first.process.pid if what == "the whole machine" else int(asleep.read_text())
        os.kill(target, signal.SIGKILL)
        killed.append(what)

    tasks = [Task(id=f"t{n}", messages=(), fields={"asleep": str(asleep)} if n == 0 else {}) for n in range(4)]
    with ledger, listening_without_closing(pool, announced) as address:
        first = Machine(address, "--processes", "1", cache=tmp_path / "cache")
        first.wait_for("serving the run")
        killer = threading.Thread(target=kill, args=(first,))
        killer.start()
        with machine(address, "--processes", "1", cache=tmp_path / "cache") as second:
            # The second one comes when all episodes are in the first.
            groups = collect(pool, tasks, ledger)
            killer.join(30)
        first.stop()
        assert second.process.returncode == 0
        assert killed == [what]
        assert [group.num_lost for group in groups] == [0, 0, 0, 0]
        rollouts = ledger.rollouts()
        assert sum(one.state is not RolloutState.DISCARDED for one in rollouts) == 4
        lost = [one for one in rollouts if one.state is RolloutState.DISCARDED]
        assert lost
        how = "lost its connection to the run" if what == "the whole machine" else "was ended by SIGKILL"
        assert all(how in str(one.detail) for one in lost)
        assert ledger.verify() == []


@contextmanager
def listening_without_closing(pool: WorkerPool, announced: Announced) -> Iterator[str]:
    waiting = threading.Thread(target=lambda: _suppressed(pool))
    waiting.start()
    yield announced.wait_for_address()
    waiting.join(60)


def test_a_run_without_workers_ends_with_what_to_do(tmp_path: Path) -> None:
    with Ledger() as ledger:
        pool = listening_pool(CODE, Announced(), timeout_seconds=0.5)
        with pytest.raises(ServiceError, match="no worker was connected"):
            collect(pool, [Task(id="a", messages=())], ledger)
        assert ledger.rollouts() == []


def create_certificate(folder: Path) -> tuple[str, str]:
    """The files of a certificate for 127.0.0.1 that signs itself, and of its key."""
    folder.mkdir()
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=run", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    files = str(folder / "run.pem"), str(folder / "key.pem")
    subprocess.run([*request, *names, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl creates the certificates")
def test_a_connection_is_encrypted_if_the_run_has_a_certificate(tmp_path: Path) -> None:
    certificate, key = create_certificate(tmp_path / "run")
    other, _ = create_certificate(tmp_path / "other")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    announced = Announced()
    pool = listening_pool(CODE, announced, tls=context)
    with listening(pool, announced) as address:
        assert announced.text.endswith(f"--connect {address} --tls-ca FILE")
        with machine(address, "--tls-ca", certificate, "--processes", "1", cache=tmp_path / "cache") as one:
            one.wait_for("serving the run")
            assert asyncio.run(_size(pool)) == "a of 2?"
        with machine(address, "--tls-ca", other, "--processes", "1", cache=tmp_path / "cache") as refused:
            assert refused.wait() == 4
        assert f"the certificate of {address} was not accepted" in refused.output
        with machine(address, "--processes", "1", "--wait", "1", cache=tmp_path / "cache") as plain:
            assert plain.wait() == 4
