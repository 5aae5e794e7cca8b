"""A real Model Context Protocol server on this machine, over its standard streams and over HTTP."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="mcp is not installed; pip install 'sparring[mcp]'")

from mcp.types import BlobResourceContents, CallToolResult, EmbeddedResource, TextContent, TextResourceContents

from sparring.environments import ToolError, ToolResult, execute, opened
from sparring.environments.adapters.mcp_server import McpProcess, McpServer, McpService, flattened
from sparring.environments.base import reset
from sparring.errors import InfrastructureError, ServiceError, UsageError
from sparring.types import Message, Task

DESK = [sys.executable, str(Path(__file__).with_name("mcp_desk.py"))]
TASK = Task(id="t1", messages=({"role": "user", "content": "Note it."},), seed=7)
PROCESS = {"command": DESK, "variables": {"FLOOR": "2"}}


class Seeded(McpProcess):
    def variables_of(self, task: Task) -> dict[str, str]:
        return {"SEED": str(task.seed)}


@pytest.fixture(scope="module")
def process() -> type[McpServer]:
    return Seeded.with_options(**PROCESS)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    port = free_port()
    server = start(port)
    yield port
    server.kill()
    server.wait()


def start(port: int) -> subprocess.Popen[bytes]:
    server = subprocess.Popen([*DESK, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server
        time.sleep(0.05)
    server.kill()
    raise AssertionError("the server did not start")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def play(environment: McpServer, *calls: tuple[str, dict[str, Any]]) -> list[ToolResult]:
    async def main() -> list[ToolResult]:
        async with opened(environment, TASK):
            assert await reset(environment, TASK) == list[Message](TASK.messages)
            return [await execute(environment, name, arguments) for name, arguments in calls]

    return asyncio.run(main())


def contents(results: Sequence[ToolResult]) -> list[str]:
    return [result.content for result in results]


NOTES = (("note", {"text": "a"}), ("note", {"text": "b"}))


def test_the_tools_of_a_process_are_listed_in_its_order_with_their_schemas(process: type[McpServer]) -> None:
    schemas = process.tool_schemas()
    assert [schema["function"]["name"] for schema in schemas] == [
        "note",
        "divide",
        "variable",
        "picture",
        "die",
        "sleep",
    ]
    divide = schemas[1]["function"]
    assert divide["description"] == "A quotient."
    assert divide["parameters"]["required"] == ["a", "b"]


def test_every_episode_has_a_process_of_its_own(process: type[McpServer]) -> None:
    assert contents(play(process(**PROCESS), *NOTES)) == ["1", "2"]
    assert contents(play(process(**PROCESS), NOTES[0])) == ["1"]


def test_results_are_text_and_errors_of_tools_are_reported(
    process: type[McpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of this process")
    seen, divided, floor, seed, secret, wrong = play(
        process(**PROCESS),
        ("picture", {}),
        ("divide", {"a": 1, "b": 0}),
        ("variable", {"name": "FLOOR"}),
        ("variable", {"name": "SEED"}),
        ("variable", {"name": "SECRET"}),
        ("divide", {"a": True, "b": 1}),
    )
    assert seen.content == "seen\n[image/png]"
    assert divided.error is ToolError.TOOL_RAISED
    assert divided.content.startswith("error: ")
    assert (floor.content, seed.content) == ("2", "7")
    assert secret.content == "unset"
    assert wrong.error is ToolError.WRONG_TYPE


def test_a_process_that_dies_in_a_call_is_an_outage_that_quotes_its_last_words(process: type[McpServer]) -> None:
    with pytest.raises(InfrastructureError, match=r"failed in the tool 'die'.*the disk is full"):
        play(process(**PROCESS), ("note", {"text": "a"}), ("die", {}))


def test_a_late_answer_is_an_outage(process: type[McpServer]) -> None:
    with pytest.raises(InfrastructureError, match=r"failed in the tool 'sleep'.*timed out"):
        play(process(**PROCESS, call_seconds=0.5), ("sleep", {"seconds": 1.5}))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/no/such/program"], "No such file"),
        ([sys.executable, "-c", "import sys; sys.exit('no licence')"], "no licence"),
        ([sys.executable, "-c", "import time; time.sleep(9)"], "did not start a session within 1 s"),
    ],
    ids=["missing", "ends at once", "silent"],
)
def test_a_process_that_is_no_server_is_a_missing_service(command: list[str], words: str) -> None:
    with pytest.raises(ServiceError, match="its tools cannot be listed") as caught:
        McpProcess.with_options(command=command, start_seconds=1.0 if "within" in words else 30.0)
    assert words in str(caught.value)


def test_sessions_over_http_share_one_server(port: int) -> None:
    options = {"url": f"http://127.0.0.1:{port}/mcp"}
    environment_class = McpService.with_options(**options)
    assert environment_class.persists == ("server",)
    assert list(environment_class.tools()) == ["note", "divide", "variable", "picture", "die", "sleep"]
    assert contents(play(environment_class(**options), *NOTES)) == ["1", "2"]
    assert contents(play(environment_class(**options), *NOTES)) == ["3", "4"]


def test_episodes_play_side_by_side_over_http(port: int) -> None:
    options = {"url": f"http://127.0.0.1:{port}/mcp"}
    environment_class = McpService.with_options(**options)

    async def episode(name: str) -> str:
        environment = environment_class(**options)
        async with opened(environment, TASK):
            await reset(environment, TASK)
            return (await execute(environment, "variable", {"name": name})).content

    async def main() -> list[str]:
        return await asyncio.gather(*(episode("NO_SUCH") for _ in range(4)))

    assert asyncio.run(main()) == ["unset"] * 4


def test_a_service_that_dies_in_a_call_is_an_outage_and_so_is_the_next_episode() -> None:
    port = free_port()
    server = start(port)
    options = {"url": f"http://127.0.0.1:{port}/mcp", "start_seconds": 5.0}
    try:
        environment_class = McpService.with_options(**options)
        with pytest.raises(InfrastructureError, match="failed in the tool 'die'"):
            play(environment_class(**options), ("die", {}))
        server.wait(timeout=10)
        with pytest.raises(InfrastructureError, match="cannot be used"):
            play(environment_class(**options), ("note", {"text": "a"}))
    finally:
        server.kill()
        server.wait()


def test_no_service_at_the_address_is_a_missing_service() -> None:
    with pytest.raises(ServiceError, match="cannot be used"):
        McpService.with_options(url=f"http://127.0.0.1:{free_port()}/mcp", start_seconds=5.0)


def test_a_key_that_is_not_set_is_reported_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DESK_KEY", raising=False)
    with pytest.raises(UsageError, match="DESK_KEY"):
        McpService.with_options(url="http://127.0.0.1:9/mcp", api_key_env="DESK_KEY")


def test_cancelling_an_episode_ends_its_process(process: type[McpServer]) -> None:
    async def main() -> None:
        environment = process(**PROCESS)
        async with opened(environment, TASK):
            await reset(environment, TASK)
            await execute(environment, "sleep", {"seconds": 20.0})

    async def cancelled() -> float:
        playing = asyncio.create_task(main())
        await asyncio.sleep(1.0)
        began = time.monotonic()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        return time.monotonic() - began

    assert asyncio.run(cancelled()) < 15
    mine = subprocess.run(["pgrep", "-f", "-P", str(os.getpid()), "mcp_desk.py$"], capture_output=True, text=True)
    assert mine.stdout == ""


def test_what_is_no_text_in_a_result_is_named() -> None:
    text = EmbeddedResource(type="resource", resource=TextResourceContents(uri="file:///a", text="inside"))
    blob = EmbeddedResource(type="resource", resource=BlobResourceContents(uri="file:///b", blob="aGk="))
    parts = [TextContent(type="text", text="one"), text, blob]
    flat = flattened(CallToolResult(content=parts))
    assert flat.content == "one\ninside\n[file:///b]"
    assert flat.repairs == ["result: a part of type resource became [file:///b]"]
    plain = flattened(CallToolResult(content=[], structured_content={"a": 1}))
    assert (plain.content, list(plain.repairs)) == ('{"a":1}', [])
