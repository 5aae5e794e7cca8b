"""More requests than are answered at once get a time to come again, and then are each answered once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

import sparring.gateway.episode as episodes
from sparring.gateway import EpisodeEndpoints, Gateway
from sparring.gateway.app import create_app
from sparring.gateway.overload import InFlight
from sparring.gateway.request import ApiError
from sparring.sessions import Session
from tests.gateway.builders import USER, session


def test_as_many_as_are_allowed_are_admitted_and_leave_room_when_they_end() -> None:
    requests = InFlight(2, of="The run")
    with requests.admitted():
        with requests.admitted(), pytest.raises(ApiError, match="The run has 2 requests in progress") as refusal:
            requests.admitted().__enter__()
        assert refusal.value.status == 429
        assert refusal.value.headers == {"x-should-retry": "true", "retry-after": "1"}
        with requests.admitted():
            pass


class Slow:
    """A session whose policy answers when it is released, and the number of its concurrent requests."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.num_waiting = self.most = 0
        self._numbers = iter(range(1000))
        self.session: Session = session(lambda _: f"answer {next(self._numbers)}", sleep=self._sleep)

    async def _sleep(self, _seconds: float) -> None:
        self.num_waiting += 1
        self.most = max(self.most, self.num_waiting)
        try:
            await self.go_on.wait()
        finally:
            self.num_waiting -= 1


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("bound", ["episode", "run"])
def test_the_stock_client_comes_again_and_equal_requests_each_get_an_answer_of_their_own(
    bound: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        slow = Slow()
        if bound == "episode":
            monkeypatch.setattr(episodes, "MAX_IN_FLIGHT_PER_EPISODE", 3)
        seen: list[int] = []

        async def note(response: httpx.Response) -> None:
            seen.append(response.status_code)

        async with Gateway(max_in_flight=1000 if bound == "episode" else 3) as gateway, slow.session:
            entry = gateway.register(slow.session)
            http = httpx.AsyncClient(event_hooks={"response": [note]})
            async with openai.AsyncOpenAI(
                base_url=entry.base_url, api_key=entry.api_key, timeout=20, max_retries=5, http_client=http
            ) as client:

                async def ask() -> str:
                    answer: Any = await client.chat.completions.create(model="m", messages=[USER], stream=stream)
                    if stream:
                        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
                    return answer.choices[0].message.content

                asking = [asyncio.ensure_future(ask()) for _ in range(5)]
                await until(lambda: slow.num_waiting == 3 and seen.count(429) >= 2)
                slow.go_on.set()
                answers = await asyncio.gather(*asking)
        assert slow.most == 3
        # Five deliberate requests, five samples: a retry of what was refused is no retry of what was played.
        assert len(set(answers)) == len(slow.session.turns) == 5

    asyncio.run(run())


def test_an_episode_that_asks_for_too_much_does_not_starve_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(episodes, "MAX_IN_FLIGHT_PER_EPISODE", 2)
        slow = Slow()
        async with Gateway(max_in_flight=3) as gateway, slow.session, session(["mine"]) as other:
            entries = [gateway.register(slow.session), gateway.register(other)]
            clients = [
                openai.AsyncOpenAI(base_url=entry.base_url, api_key=entry.api_key, timeout=20, max_retries=0)
                for entry in entries
            ]
            asking = [
                asyncio.ensure_future(clients[0].chat.completions.create(model="m", messages=[USER])) for _ in range(50)
            ]
            await until(lambda: sum(one.done() for one in asking) == 48)
            refusals = [one.exception() for one in asking if one.done()]
            assert {type(refusal) for refusal in refusals} == {openai.RateLimitError}
            answer = await clients[1].chat.completions.create(model="m", messages=[USER])
            assert answer.choices[0].message.content == "mine"
            slow.go_on.set()
            await asyncio.gather(*asking, return_exceptions=True)
            for client in clients:
                await client.close()
        assert len(slow.session.turns) == 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", {"model": "m", "messages": [USER]}, "rate_limit_error"),
        ("/v1/responses", {"model": "m", "input": "hello"}, "rate_limit_error"),
        ("/v1/messages", {"model": "m", "max_tokens": 5, "messages": [USER]}, "rate_limit_error"),
        ("/sample", {"messages": [USER]}, None),
    ],
)
def test_every_dialect_reports_it_in_its_own_format(path: str, body: Any, kind: str | None) -> None:
    async def run() -> None:
        async with Gateway(max_in_flight=0) as gateway, session(["never"]) as chat_session:
            entry = gateway.register(chat_session)
            async with httpx.AsyncClient(base_url=entry.endpoint, headers={"x-api-key": entry.api_key}) as client:
                refused = await client.post(path, json=body)
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
                if kind is None:
                    assert refused.headers["x-amzn-errortype"] == "ThrottlingException"
                else:
                    assert refused.json()["error"]["type"] == kind
                # Reports are few and end episodes: they are never refused so.
                assert (await client.post("/v1/episode/complete", json={"status": "ready"})).status_code == 200

    asyncio.run(run())


def test_a_retry_that_has_to_come_again_is_still_a_retry() -> None:
    async def run() -> None:
        numbers = iter(range(9))
        chat_session, endpoints = (
            session(lambda _: f"answer {next(numbers)}"),
            EpisodeEndpoints("policy", max_in_flight=1),
        )
        key = endpoints.register(chat_session)
        transport = httpx.ASGITransport(create_app(endpoints))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

            async def ask(num_retries: int) -> Any:
                headers = {"authorization": f"Bearer {key}", "x-stainless-retry-count": str(num_retries)}
                body = {"model": "m", "messages": [USER]}
                answer = await client.post("/v1/chat/completions", json=body, headers=headers)
                return answer.json()["choices"][0]["message"]["content"] if answer.is_success else answer.status_code

            # The first answer gets lost behind the server; or else the first request is refused, even twice.
            lost = [await ask(0)]
            with endpoints._in_flight.admitted():
                lost.append(await ask(1))
            lost.append(await ask(2))
            assert lost == ["answer 0", 429, "answer 0"]
            with endpoints._in_flight.admitted():
                assert [await ask(0), await ask(1)] == [429, 429]
            assert [await ask(2), await ask(1)] == ["answer 1", "answer 1"]
        assert len(chat_session.turns) == 2

    asyncio.run(run())
