"""Workers poll for episodes over HTTP, with the run's worker key; every mistake gets an error object."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from sparring.gateway import Gateway, WorkQueue

KEY = "a worker key"


def polled(work: Callable[[WorkQueue, httpx.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        queue = WorkQueue(KEY)
        async with Gateway(queue=queue) as gateway:
            headers = {"authorization": f"Bearer {KEY}"}
            async with httpx.AsyncClient(base_url=f"{gateway.base_url}/queue", headers=headers, timeout=20) as client:
                await work(queue, client)

    asyncio.run(run())


def where(endpoint: str) -> Any:
    return {"endpoint": endpoint}


def test_an_episode_is_leased_renewed_and_given_back() -> None:
    async def work(queue: WorkQueue, client: httpx.AsyncClient) -> None:
        assert not queue.is_polled
        assert (await client.post("/lease", json={"wait_seconds": 0})).status_code == 204
        assert queue.is_polled
        offers = [queue.offer(where), queue.offer(where)]
        lease = (await client.post("/lease")).json()
        assert lease["lease_seconds"] == 60.0
        # As the worker reached it.
        assert lease["invocation"] == {"endpoint": str(client.base_url).removesuffix("/v1/queue/")}
        through_proxy = (await client.post("/lease", json={"endpoint": "https://proxy:8443"})).json()
        assert through_proxy["invocation"] == {"endpoint": "https://proxy:8443"}
        assert (await client.post(f"/{lease['lease_id']}/renew")).json() == {"lease_seconds": 60.0}
        assert (await client.post(f"/{lease['lease_id']}/release", json={"error": "stopping"})).json() == {}
        assert [offer.lost.done() for offer in offers] == [True, False]
        assert offers[0].lost.result() == "gave it back: stopping"
        queue.withdraw(offers[1])
        for lease_id in (lease["lease_id"], through_proxy["lease_id"], "guess"):
            over = await client.post(f"/{lease_id}/renew")
            assert (over.status_code, over.json()["error"]["code"]) == (404, "lease_over")
            assert over.headers["x-should-retry"] == "false"

    polled(work)


def test_a_worker_that_waits_gets_the_episode_as_soon_as_there_is_one() -> None:
    async def work(queue: WorkQueue, client: httpx.AsyncClient) -> None:
        waiting = [asyncio.ensure_future(client.post("/lease", json={"wait_seconds": 30})) for _ in range(2)]
        while not queue.is_polled:  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.01)
        queue.offer(where)
        queue.offer(where)
        answers = [await asyncio.wait_for(one, 10) for one in waiting]
        assert len({answer.json()["lease_id"] for answer in answers}) == 2
        for offer in [lease.offer for lease in queue._leases.values()]:
            queue.withdraw(offer)

    polled(work)


def test_an_offer_wakes_the_oldest_poll_only_and_a_poll_that_ends_passes_it_on() -> None:
    async def run() -> None:
        queue = WorkQueue(KEY)
        polls = [asyncio.ensure_future(queue.lease(30, "http://run")) for _ in range(3)]
        await asyncio.sleep(0)
        assert len(queue._polls) == 3
        queue.offer(where)
        assert len(queue._polls) == 2
        polls[0].cancel()
        done, _ = await asyncio.wait(polls[1:], timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert done == {polls[1]}
        polls[2].cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        assert (len(queue._polls), len(queue._waiting)) == (0, 0)
        for offer in [lease.offer for lease in queue._leases.values()]:
            queue.withdraw(offer)
        assert queue._leases == {}

    asyncio.run(run())


def test_a_worker_that_hangs_up_while_it_waits_is_handed_nothing() -> None:
    async def work(queue: WorkQueue, client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/lease", json={"wait_seconds": 30}, timeout=0.3)
        await asyncio.sleep(0.2)
        offer = queue.offer(where)
        await asyncio.sleep(0.1)
        assert not offer.is_taken

    polled(work)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"wait_seconds": -1}, "wait_seconds"),
        ({"wait_seconds": 31}, "wait_seconds"),
        ({"wait_seconds": "1"}, "wait_seconds"),
        ({"endpoint": "proxy:80"}, "endpoint"),
        ({"endpoint": 1}, "endpoint"),
        ({"worker": "me"}, "worker"),
        ([], None),
    ],
)
def test_a_poll_that_makes_no_sense_is_refused_by_name(body: Any, param: str | None) -> None:
    async def work(queue: WorkQueue, client: httpx.AsyncClient) -> None:
        offer = queue.offer(where)
        refused = await client.post("/lease", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert not offer.is_taken

    polled(work)


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer guess"}, {"authorization": f"Basic {KEY}"}])
@pytest.mark.parametrize("path", ["/lease", "/id/renew", "/id/release"])
def test_only_the_worker_key_opens_the_queue_and_only_its_hash_is_kept(headers: dict[str, str], path: str) -> None:
    async def work(queue: WorkQueue, client: httpx.AsyncClient) -> None:
        offer = queue.offer(where)
        client.headers.pop("authorization")
        refused = await client.post(path, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert not offer.is_taken
        assert not queue.is_polled
        assert KEY not in str(vars(queue))

    polled(work)


def test_a_run_without_a_queue_has_no_such_route() -> None:
    async def run() -> None:
        async with Gateway() as gateway, httpx.AsyncClient(base_url=gateway.base_url) as client:
            assert (await client.post("/queue/lease", json={})).status_code == 404

    asyncio.run(run())
