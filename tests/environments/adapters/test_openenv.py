"""A real OpenEnv server on this machine (`make openenv` installs one), and one of a few lines that breaks the protocol."""

import asyncio
import http
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("websockets", reason="websockets is not installed; pip install 'sparring[openenv]'")

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from sparring.environments import ToolError, ToolResult, execute, opened
from sparring.environments.adapters.openenv_server import OpenEnvServer
from sparring.environments.base import reset
from sparring.errors import InfrastructureError, ServiceError
from sparring.types import Message, Task

ROOT = Path(__file__).parents[3]
DESK = Path(__file__).with_name("openenv_desk.py")
TASK = Task(id="t1", messages=({"role": "user", "content": "Guess."},), seed=3)
"""The game's number is 4 for the seed 3: random.Random(3).randint(1, 8)."""


def interpreter() -> str | None:
    """A Python that has openenv: this one, or that of the folder where `make openenv` puts it."""
    own = Path(os.environ.get("CLIENT_VENVS", ROOT / ".clients")) / "openenv" / "bin" / "python"
    return sys.executable if find_spec("openenv") else str(own) if own.is_file() else None


real = pytest.mark.skipif(
    interpreter() is None, reason="openenv is not installed; `make openenv` installs and tests it"
)


def start(kind: str) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    python = interpreter()
    assert python is not None
    server = subprocess.Popen(
        [python, str(DESK), str(port), kind], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server, f"http://127.0.0.1:{port}"
        time.sleep(0.1)
    server.kill()
    raise AssertionError(f"the server did not start: {server.wait()}")


@pytest.fixture(scope="module")
def guessing() -> Iterator[str]:
    server, url = start("guess")
    yield url
    server.kill()
    server.wait()


@pytest.fixture(scope="module")
def tool_box() -> Iterator[str]:
    server, url = start("tools")
    yield url
    server.kill()
    server.wait()


async def played(
    options: dict[str, Any], *calls: tuple[str, dict[str, Any]], environment_class: type[OpenEnvServer] | None = None
) -> tuple[list[Message], list[ToolResult], OpenEnvServer]:
    made = environment_class or await asyncio.to_thread(OpenEnvServer.with_options, **options)
    environment = made(**options)
    async with opened(environment, TASK):
        opening = await reset(environment, TASK)
        return opening, [await execute(environment, name, arguments) for name, arguments in calls], environment


def play(
    options: dict[str, Any], *calls: tuple[str, dict[str, Any]]
) -> tuple[list[Message], list[ToolResult], OpenEnvServer]:
    return asyncio.run(played(options, *calls))


def steps(*numbers: Any) -> list[tuple[str, dict[str, Any]]]:
    return [("step", {"number": number}) for number in numbers]


@real
def test_steps_of_a_real_server_are_calls_with_rewards_in_the_log(guessing: str) -> None:
    opening, results, environment = play({"url": guessing}, *steps(2, 7, "4", 12, 4, 4))
    assert opening == [{"role": "user", "content": 'Guess.\n\n{"hint":"from 1 to 8"}'}]
    assert [result.content for result in results[:2]] == ['{"hint":"more"}', '{"hint":"less"}']
    assert [result.error for result in results] == [
        None,
        None,
        ToolError.WRONG_TYPE,
        ToolError.WRONG_TYPE,
        None,
        ToolError.TOOL_RAISED,
    ]
    assert [result.transition.get("reward") for result in results] == [-0.1, -0.1, None, None, 1.0, None]
    assert results[5].content == "error: the episode is over"
    assert environment.is_done


@real
def test_the_action_s_fields_and_bounds_are_the_tool_s_arguments(guessing: str) -> None:
    (schema,) = OpenEnvServer.with_options(url=guessing).tool_schemas()
    assert schema["function"]["name"] == "step"
    assert schema["function"]["description"] == "Guess a number from 1 to 8."
    number = schema["function"]["parameters"]["properties"]
    assert list(number) == ["number"]
    assert (number["number"]["minimum"], number["number"]["maximum"]) == (1, 9)


@real
def test_concurrent_episodes_have_separate_states(guessing: str) -> None:
    async def main() -> list[Any]:
        environment_class = await asyncio.to_thread(OpenEnvServer.with_options, url=guessing)
        options = {"url": guessing}
        playing = (
            played(options, *steps(*numbers), environment_class=environment_class) for numbers in ((1, 4), (8, 4), (4,))
        )
        return [[result.content for result in results] for _, results, _ in await asyncio.gather(*playing)]

    assert asyncio.run(main()) == [
        ['{"hint":"more"}', '{"hint":"right"}'],
        ['{"hint":"less"}', '{"hint":"right"}'],
        ['{"hint":"right"}'],
    ]


@real
def test_the_state_is_the_server_s(guessing: str) -> None:
    async def main() -> Any:
        environment = OpenEnvServer.with_options(url=guessing)(url=guessing)
        async with opened(environment, TASK):
            await reset(environment, TASK)
            await execute(environment, "step", {"number": 1})
            return await environment.state()

    assert asyncio.run(main()) == {"episode_id": "t1", "step_count": 1}


@real
def test_more_sessions_than_the_server_takes_are_reported_as_an_outage(guessing: str) -> None:
    async def main() -> None:
        environment_class = OpenEnvServer.with_options(url=guessing)
        environments = [environment_class(url=guessing) for _ in range(5)]
        try:
            for environment in environments:
                await reset(environment, TASK)
        finally:
            for environment in environments:
                await environment.close()

    with pytest.raises(InfrastructureError, match="max_concurrent_envs"):
        asyncio.run(main())


@real
@pytest.mark.parametrize(
    ("failure", "words"),
    [("raise", "EXECUTION_ERROR: the disk is full"), ("hang", "did not answer 'step' within 0.5 s")],
)
def test_a_step_that_raises_or_hangs_is_an_outage(guessing: str, failure: str, words: str) -> None:
    options = {"url": guessing, "reset": {"failure": failure}}
    environment_class = OpenEnvServer.with_options(**options)
    with pytest.raises(InfrastructureError, match=words):
        asyncio.run(played({**options, "call_seconds": 0.5}, *steps(9), environment_class=environment_class))


@real
def test_a_server_that_dies_in_a_step_is_an_outage_and_so_is_the_next_episode() -> None:
    server, url = start("guess")
    try:
        environment_class = OpenEnvServer.with_options(url=url)
        with pytest.raises(InfrastructureError, match="failed during 'step'"):
            asyncio.run(played({"url": url}, *steps(1, 9), environment_class=environment_class))
        server.wait(timeout=10)
        with pytest.raises(InfrastructureError, match="cannot be reached"):
            asyncio.run(played({"url": url}, environment_class=environment_class))
    finally:
        server.kill()
        server.wait()


@real
def test_a_server_of_tools_offers_them(tool_box: str) -> None:
    opening, results, _ = play(
        {"url": tool_box}, ("echo", {"message": "hi"}), ("divide", {"a": 1, "b": 0}), ("divide", {"a": 1, "b": 2})
    )
    assert opening == list(TASK.messages)
    assert results[0].content == "hi"
    assert results[1].error is ToolError.TOOL_RAISED
    assert "division by zero" in results[1].content
    assert results[2].content == "0.5"


STEP_SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}, "metadata": {"type": "object"}}}
SEEN = {"type": "observation", "data": {"observation": {}, "reward": None, "done": False}}


@asynccontextmanager
async def serve_answers(*answers: Any) -> AsyncIterator[str]:
    """Serve these answers with the right schema; hang up at None and when no answer is left."""

    def schema(_: ServerConnection, request: Request) -> Response | None:
        if request.path != "/schema":
            return None
        body = json.dumps({"action": STEP_SCHEMA}).encode()
        return Response(http.HTTPStatus.OK.value, "OK", Headers({"Content-Length": str(len(body))}), body)

    async def session(connection: ServerConnection) -> None:
        for answer in answers:
            await connection.recv()
            if answer is None:
                return
            await connection.send(answer if isinstance(answer, str) else json.dumps(answer))

    async with serve(session, "127.0.0.1", 0, process_request=schema) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


def outcome(*answers: Any) -> list[ToolResult]:
    async def main() -> list[ToolResult]:
        async with serve_answers(*answers) as url:
            return (await played({"url": url, "call_seconds": 5.0}, *steps(1)))[1]

    return asyncio.run(main())


def error(code: str, **further: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": "no", **further}}


@pytest.mark.parametrize(
    "answer",
    [
        "{not json",
        "[]",
        {"type": "surprise", "data": {}},
        {"type": "observation"},
        {"type": "observation", "data": {"reward": 1.0}},
        error("EXECUTION_ERROR"),
        error("SESSION_ERROR"),
        None,
    ],
)
@pytest.mark.parametrize("at", ["reset", "step"])
def test_what_breaks_the_protocol_is_an_outage(answer: Any, at: str) -> None:
    with pytest.raises(InfrastructureError, match=f"'{at}'"):
        outcome(*([answer] if at == "reset" else [SEEN, answer]))


def test_a_hang_up_between_two_steps_is_an_outage_and_no_new_session() -> None:
    async def main() -> None:
        async with serve_answers(SEEN, SEEN) as url:
            await played({"url": url}, *steps(1, 2))

    with pytest.raises(InfrastructureError, match="failed during 'step': ConnectionClosed"):
        asyncio.run(main())


def test_an_action_that_the_server_refuses_is_reported_to_the_model() -> None:
    (result,) = outcome(SEEN, error("VALIDATION_ERROR", errors=[{"loc": ["number"], "msg": "must be odd"}]))
    assert result.content == "error: the action is not valid: number must be odd"
    assert result.error is ToolError.TOOL_RAISED


def test_a_refusal_before_the_first_question_is_read() -> None:
    async def main() -> None:
        async def full(connection: ServerConnection) -> None:
            await connection.send(json.dumps(error("CAPACITY_REACHED")))

        async with serve(full, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            await played({"url": url}, environment_class=OpenEnvServer)

    with pytest.raises(InfrastructureError, match=r"CAPACITY_REACHED.*max_concurrent_envs"):
        asyncio.run(main())


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"action": 3}', None])
def test_a_server_that_lists_no_actions_is_a_missing_service(
    body: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if body is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, content=body)

    client = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **_: client(transport=httpx.MockTransport(answer)))
    with pytest.raises(ServiceError, match="does not describe the actions of an OpenEnv server"):
        OpenEnvServer.with_options(url="http://127.0.0.1:9")
