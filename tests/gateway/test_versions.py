"""A server offers several versions of a policy: requests choose by name, and an operator changes which one answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from sparring.chat import ByteTokenizer
from sparring.engines.scripted import ScriptedEngine
from sparring.errors import DataError, ServiceError, UsageError
from sparring.gateway.app import create_app
from sparring.gateway.endpoints import StatelessEndpoints
from sparring.gateway.versions import VERSIONS, Version, Versions
from sparring.types import Json, Sampling
from tests.gateway.builders import CHAT

ADMIN = {"authorization": "Bearer admin"}


def version(name: str, **options: Any) -> Version:
    """A version whose answer is its name."""
    return Version(name, ScriptedEngine(lambda _: name, encode=ByteTokenizer().encode, **options))


class Served:
    """A server of the run `shop` with the versions 10 and 20, whose other checkpoints can be loaded."""

    def __init__(self, *others: Version, canary: Mapping[str, float] | None = None, **options: Any) -> None:
        self.loaded: list[str] = []
        settings = {"load": self.load, "admin_key": "admin", **options}
        served = [version("shop@20"), version("shop@10"), *others]
        versions = Versions(served, name="shop", canary=canary, **settings)
        endpoints = StatelessEndpoints(versions=versions, chat=CHAT, sampling=Sampling())
        self._transport = httpx.ASGITransport(create_app(endpoints, versions=versions))

    async def load(self, name: str) -> Version:
        if name == "shop@99":
            raise DataError("there is no checkpoint 99")
        if name == "shop@5":
            raise ServiceError("the servers compute with other weights")
        self.loaded.append(name)
        return version(name)

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, base_url="http://test") as client:
            return await client.request(method, path, **options)

    async def ask(self, model: str, text: str = "hello", headers: Mapping[str, str] | None = None) -> str:
        """Return the version that answered, after checking that the answer names it."""
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        answer = (await self.send("POST", "/v1/chat/completions", json=body, headers=headers)).json()
        content = answer["choices"][0]["message"]["content"]
        assert answer["model"] == content
        return content

    async def change(self, headers: Mapping[str, str] = ADMIN, **body: Json) -> httpx.Response:
        return await self.send("POST", VERSIONS, json=body, headers=headers)


def test_a_request_chooses_a_version_by_its_name() -> None:
    async def run() -> None:
        served = Served()
        assert [await served.ask(name) for name in ("shop", "default", "policy", "shop@10", "shop@20")] == [
            "shop@20",
            "shop@20",
            "shop@20",
            "shop@10",
            "shop@20",
        ]
        models = (await served.send("GET", "/v1/models")).json()["data"]
        assert [one["id"] for one in models] == ["shop", "shop@20", "shop@10"]
        body = {"model": "shop@15", "messages": [{"role": "user", "content": "hello"}]}
        refused = await served.send("POST", "/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert "A version is one of shop@20, shop@10." in refused.json()["error"]["message"]
        assert served.loaded == []  # only an operator loads versions

    asyncio.run(run())


def test_an_operator_switches_the_default_and_back() -> None:
    async def run() -> None:
        served = Served()
        shown = (await served.change(default="shop@10")).json()
        assert shown == {"default": "shop@10", "canary": {}, "num_requests": {"shop@20": 0, "shop@10": 0}}
        assert [await served.ask("shop"), await served.ask("shop@20")] == ["shop@10", "shop@20"]
        await served.change(default="shop@20")
        assert await served.ask("shop") == "shop@20"
        shown = (await served.send("GET", VERSIONS, headers=ADMIN)).json()
        assert shown["num_requests"] == {"shop@20": 2, "shop@10": 1}

    asyncio.run(run())


def test_a_version_that_is_not_served_yet_is_loaded_once() -> None:
    async def run() -> None:
        served = Served()
        await asyncio.gather(served.change(default="shop@30"), served.change(canary={"shop@30": 1.0}))
        assert served.loaded == ["shop@30"]
        assert await served.ask("shop") == "shop@30"

    asyncio.run(run())


def test_a_request_in_progress_keeps_its_version() -> None:
    async def run() -> None:
        sampling, go_on = asyncio.Event(), asyncio.Event()

        async def wait(_: float) -> None:
            sampling.set()
            await go_on.wait()

        slow = version("shop@30", seconds=lambda _: 1.0, sleep=wait)
        served = Served(slow)
        await served.change(default="shop@30")
        asked = asyncio.create_task(served.ask("shop"))
        await sampling.wait()
        await served.change(default="shop@20")
        assert await served.ask("shop") == "shop@20"
        go_on.set()
        assert await asked == "shop@30"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"default": "shop@10", "canary": {"shop@99": 0.1}}, 400, "no checkpoint 99"),
        ({"default": "shop@5"}, 502, "other weights"),
        ({"default": "shop@10", "canary": {"shop@10": 0.6, "shop@20": 0.5}}, 400, "1.1 of the conversations"),
        ({"canary": {"shop@10": 1.5}}, 400, "canary"),
        ({"defualt": "shop@10"}, 400, "defualt"),
    ],
)
def test_a_change_that_fails_changes_nothing(body: Json, status: int, message: str) -> None:
    async def run() -> None:
        served = Served(canary={"shop@10": 0.25})
        refused = await served.change(**body)
        assert (refused.status_code, message in refused.json()["error"]["message"]) == (status, True)
        shown = (await served.send("GET", VERSIONS, headers=ADMIN)).json()
        assert (shown["default"], shown["canary"]) == ("shop@20", {"shop@10": 0.25})

    asyncio.run(run())


def test_only_the_admin_key_changes_versions() -> None:
    async def run() -> None:
        served, closed = Served(), Served(admin_key=None)
        for headers in ({}, {"authorization": "Bearer other"}):
            assert (await served.change(headers, default="shop@10")).status_code == 401
            assert (await served.send("GET", VERSIONS, headers=headers)).status_code == 401
        refused = await closed.change({"authorization": "Bearer "}, default="shop@10")
        assert (refused.status_code, "SPARRING_ADMIN_KEY" in refused.json()["error"]["message"]) == (403, True)
        assert await served.ask("shop") == "shop@20"

    asyncio.run(run())


def test_a_canary_answers_its_share_of_the_conversations() -> None:
    async def run() -> None:
        served = Served(canary={"shop@10": 0.1})
        texts = [f"question {number}" for number in range(1000)]
        first = [await served.ask("shop", text) for text in texts]
        # With a share of 0.1, 1,000 conversations have a standard deviation of 9.5.
        assert 70 <= Counter(first)["shop@10"] <= 130
        assert {await served.ask("shop@20", text) for text in texts} == {"shop@20"}
        await served.change(canary={"shop@10": 0.2})
        second = [await served.ask("shop", text) for text in texts]
        assert 160 <= Counter(second)["shop@10"] <= 240
        # A larger share leaves conversations of the canary where they are.
        assert all(after == "shop@10" for before, after in zip(first, second, strict=True) if before == "shop@10")
        await served.change(canary={})
        assert {await served.ask("shop", text) for text in texts} == {"shop@20"}

    asyncio.run(run())


def test_a_conversation_stays_on_one_version() -> None:
    async def run() -> None:
        served = Served(canary={"shop@10": 0.5})
        answered = set()
        for number in range(20):
            opening = [
                {"role": "system", "content": "It is 9:00."},
                {"role": "user", "content": f"question {number}"},
            ]
            body: Any = {"model": "shop", "messages": opening}
            first = (await served.send("POST", "/v1/chat/completions", json=body)).json()
            later = [{"role": "system", "content": "It is 9:01."}, *opening[1:], first["choices"][0]["message"]]
            body = {"model": "shop", "messages": [*later, {"role": "user", "content": "and then?"}]}
            second = (await served.send("POST", "/v1/chat/completions", json=body)).json()
            assert first["model"] == second["model"]
            answered.add(first["model"])

            body = {"model": "shop", "input": f"question {number}"}
            first = (await served.send("POST", "/v1/responses", json=body)).json()
            body = {"model": "shop", "input": "and then?", "previous_response_id": first["id"]}
            assert (await served.send("POST", "/v1/responses", json=body)).json()["model"] == first["model"]
        assert answered == {"shop@10", "shop@20"}

    asyncio.run(run())


def test_a_client_may_name_its_conversation() -> None:
    async def run() -> None:
        served = Served(canary={"shop@10": 0.5})
        answered = set()
        for number in range(20):
            headers = {"x-session-id": f"session {number}"}
            versions = {await served.ask("shop", text, headers) for text in ("one", "two", "three")}
            assert len(versions) == 1
            answered |= versions
        assert answered == {"shop@10", "shop@20"}

    asyncio.run(run())


def test_canaries_get_at_most_all_conversations() -> None:
    with pytest.raises(UsageError, match="shares may be at most 1"):
        Served(canary={"shop@10": 0.7, "shop@20": 0.4})
