"""An episode waits for a worker, is held under a lease, and is never played by two; time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sparring.agents.pull import PullAgent
from sparring.agents.result import AgentResult
from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.errors import (
    AgentLost,
    DataError,
    InfrastructureError,
    PolicyTimeout,
    RewardError,
    ServiceError,
    TokenLimit,
)
from sparring.gateway import Gateway, WorkQueue
from sparring.gateway.report import EpisodeReport
from sparring.gateway.request import ApiError
from sparring.sessions import EpisodeIdentity, Session
from sparring.types import Outcome, Reward, Sampling, Task
from tests.agents.virtual_time import VirtualTime, settled

TASK = Task(id="t1", messages=({"role": "user", "content": "find b"},), fields={"truth": "f"})


class Workplace:
    """An episode that is offered, the queue it waits in, and the agent that polls it."""

    def __init__(self, *script: Any, task: Task = TASK, timeout_seconds: float = 600.0, max_retries: int = 3) -> None:
        self.time, self.task = VirtualTime(), task
        self.queue = WorkQueue("key", lease_seconds=60.0, clock=self.time.clock, sleep=self.time.sleep)
        self.gateway = Gateway()
        self.agent = PullAgent(
            self.queue,
            gateway=self.gateway,
            timeout_seconds=timeout_seconds,
            max_retries=max_retries,
            sleep=self.time.sleep,
        )
        engine = ScriptedEngine(script or ["one", "two", "three"], encode=ByteTokenizer().encode)
        self.session = Session(
            EpisodeIdentity("episode"),
            engine=engine,
            chat=TemplateChat(ByteTokenizer()),
            sampling=Sampling(max_tokens=50),
        )

    async def lease(self) -> Any:
        """The episode as a worker gets it at once, or None."""
        asking = asyncio.ensure_future(self.queue.lease(0.0, "http://gateway"))
        await self.time.advance(0.0)
        return await asking

    def report(self, lease: Any) -> EpisodeReport:
        return self.gateway._endpoints.report(lease["invocation"]["api_key"])

    async def turn(self) -> None:
        await self.session.chat(list(TASK.messages))

    def play(self, work: Callable[[Workplace], Awaitable[None]]) -> AgentResult:
        async def run() -> AgentResult:
            async with self.session:
                playing = asyncio.ensure_future(self.agent.play(self.task, self.session))
                await settled()
                working = asyncio.ensure_future(work(self))
                try:
                    await asyncio.wait({playing, working}, return_when=asyncio.FIRST_EXCEPTION)
                    await working
                    await settled()
                    assert playing.done(), "the agent still waits"
                    return playing.result()
                finally:
                    playing.cancel()
                    await asyncio.gather(playing, working, return_exceptions=True)
                    assert (list(self.queue._waiting), self.queue._leases) == ([], {})

        return asyncio.run(run())


def test_a_worker_gets_what_an_agent_behind_a_url_gets_at_its_own_address_and_reports() -> None:
    async def work(workplace: Workplace) -> None:
        lease = await workplace.lease()
        assert lease["lease_seconds"] == 60.0
        invocation = lease["invocation"]
        assert (invocation["prompt"], invocation["truth"]) == ("find b", "f")
        assert invocation["base_url"] == "http://gateway/v1"
        assert invocation["metadata"]["endpoint"] == "http://gateway"
        assert await workplace.lease() is None, "an episode is handed out once"
        await workplace.turn()
        workplace.report(lease).update_reward([0.5], metrics={"steps": 1.0})
        workplace.report(lease).complete("ready")

    assert Workplace().play(work) == AgentResult(
        outcome=Outcome.FINISHED, reward=Reward(total=0.5, metrics={"steps": 1.0})
    )


def test_a_lease_that_is_renewed_lasts() -> None:
    async def work(workplace: Workplace) -> None:
        lease = await workplace.lease()
        await workplace.turn()
        for _ in range(5):
            await workplace.time.advance(59.0)
            workplace.queue.renew(lease["lease_id"])
        workplace.report(lease).update_reward(1.0)
        # Done with it, so it need not complete.
        workplace.queue.release(lease["lease_id"])
        with pytest.raises(ApiError, match="This lease has expired"):
            workplace.queue.renew(lease["lease_id"])

    assert Workplace().play(work).reward == Reward(total=1.0)


@pytest.mark.parametrize("is_given_back", [False, True])
def test_an_episode_without_turns_is_handed_out_again_and_its_old_key_is_dead(is_given_back: bool) -> None:
    async def work(workplace: Workplace) -> None:
        first = await workplace.lease()
        if is_given_back:
            workplace.queue.release(first["lease_id"], "shutting down")
        await workplace.time.advance(60.0)
        second = await workplace.lease()
        assert second["lease_id"] != first["lease_id"]
        assert second["invocation"]["api_key"] != first["invocation"]["api_key"]
        with pytest.raises(ApiError, match="completed as failed"):
            workplace.report(first).check_open()
        with pytest.raises(ApiError, match="not in valid status for a reward"):
            workplace.report(first).update_reward(9.0)
        await workplace.turn()
        workplace.report(second).update_reward(1.0)
        workplace.report(second).complete("ready")

    assert Workplace().play(work).reward == Reward(total=1.0)


def test_it_is_handed_out_a_bounded_number_of_times() -> None:
    async def work(workplace: Workplace) -> None:
        for _ in range(3):
            assert await workplace.lease() is not None
            await workplace.time.advance(60.0)
        assert await workplace.lease() is None

    with pytest.raises(InfrastructureError, match="did not renew its lease within 60 s, after 0 turns"):
        Workplace(max_retries=2).play(work)


@pytest.mark.parametrize("is_given_back", [False, True])
def test_an_episode_with_turns_is_not_played_by_a_second_worker(is_given_back: bool) -> None:
    async def work(workplace: Workplace) -> None:
        lease = await workplace.lease()
        await workplace.turn()
        if is_given_back:
            workplace.queue.release(lease["lease_id"], "shutting down")
        await workplace.time.advance(60.0)
        assert await workplace.lease() is None

    with pytest.raises(
        InfrastructureError, match="gave it back: shutting down" if is_given_back else "did not renew"
    ) as raised:
        Workplace().play(work)
    # The policy may have ended a worker that vanishes.
    assert isinstance(raised.value, AgentLost) != is_given_back


def test_a_turn_under_way_when_the_lease_runs_out_is_cancelled_and_the_episode_handed_out_again() -> None:
    async def work(workplace: Workplace) -> None:
        lease = await workplace.lease()

        async def answer() -> None:
            await asyncio.Event().wait()

        turn = asyncio.ensure_future(workplace.report(lease).while_open(answer()))
        await workplace.time.advance(60.0)
        with pytest.raises(ApiError, match="not in valid status for a turn"):
            await turn
        again = await workplace.lease()
        await workplace.turn()
        workplace.report(again).update_reward(1.0)
        workplace.report(again).complete("ready")

    assert Workplace().play(work).reward == Reward(total=1.0)


def test_an_agent_that_gives_up_states_why() -> None:
    async def work(workplace: Workplace) -> None:
        workplace.report(await workplace.lease()).complete("failed", error="the shop was down")

    with pytest.raises(InfrastructureError, match="the shop was down"):
        Workplace().play(work)


def test_an_episode_that_is_completed_without_a_reward_has_none_of_the_agents() -> None:
    async def work(workplace: Workplace) -> None:
        lease = await workplace.lease()
        await workplace.turn()
        workplace.report(lease).complete("ready")
        workplace.queue.release(lease["lease_id"])

    assert Workplace().play(work) == AgentResult(outcome=Outcome.FINISHED)


def test_a_reward_that_was_refused_is_reported_at_once() -> None:
    async def work(workplace: Workplace) -> None:
        lease = await workplace.lease()
        await workplace.turn()
        with pytest.raises(RewardError):
            workplace.report(lease).update_reward([1.0, 2.0])
        workplace.queue.release(lease["lease_id"])

    with pytest.raises(RewardError, match=r"after 1 turns, and the reward that it reported was refused: .* 2 numbers"):
        Workplace().play(work)


def test_an_agent_that_gives_up_after_a_turn_failed_because_of_the_policy() -> None:
    async def work(workplace: Workplace) -> None:
        lease = await workplace.lease()
        await workplace.turn()
        workplace.report(lease).complete("failed", error="no such tool")

    failed = Workplace().play(work)
    assert (failed.outcome, failed.error) == (Outcome.POLICY_ERROR, "The agent gave up the episode: no such tool.")


def test_a_worker_that_falls_silent_between_its_reports_is_an_outage_and_does_not_end_the_run() -> None:
    async def work(workplace: Workplace) -> None:
        lease = await workplace.lease()
        await workplace.turn()
        workplace.report(lease).complete("ready")
        await workplace.time.advance(60.0)

    with pytest.raises(InfrastructureError, match="did not renew its lease within 60 s, after 1 turns"):
        Workplace().play(work)


def test_a_run_that_no_worker_ever_polls_reports_it_and_ends() -> None:
    async def work(workplace: Workplace) -> None:
        await workplace.time.advance(600.0)

    with pytest.raises(ServiceError, match=r"No worker has polled for an episode within 600 s. Start one"):
        Workplace().play(work)


def test_an_episode_without_a_free_worker_reports_what_to_change() -> None:
    async def work(workplace: Workplace) -> None:
        workplace.queue.is_polled = True
        await workplace.time.advance(600.0)

    with pytest.raises(InfrastructureError, match=r"No worker was free .*rollout_max_concurrency"):
        Workplace().play(work)


@pytest.mark.parametrize("turns", [0, 1])
def test_a_worker_that_renews_for_ever_is_out_of_time_in_the_end_and_an_outage_only_before_a_turn(turns: int) -> None:
    async def work(workplace: Workplace) -> None:
        lease = await workplace.lease()
        for _ in range(turns):
            await workplace.turn()
        for _ in range(10):
            await workplace.time.advance(30.0)
            workplace.queue.renew(lease["lease_id"])
        await workplace.time.advance(30.0)

    late = f"did not finish it within 330 s, after {turns} turns"
    if turns:
        played = Workplace(timeout_seconds=330.0).play(work)
        assert played.outcome is Outcome.POLICY_TIMEOUT
        assert late in (played.error or "")
    else:
        with pytest.raises(InfrastructureError, match=late):
            Workplace(timeout_seconds=330.0).play(work)


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [(TokenLimit("all used"), Outcome.MAX_TOKENS), (PolicyTimeout("late"), Outcome.POLICY_TIMEOUT)],
)
@pytest.mark.parametrize("end", ["failed", "ready"])
def test_an_agent_that_ends_over_a_limit_of_the_policy_met_it(failure: Exception, outcome: Outcome, end: Any) -> None:
    async def work(workplace: Workplace) -> None:
        lease = await workplace.lease()
        with pytest.raises(type(failure)):
            await workplace.turn()
        workplace.report(lease).complete(end)
        workplace.queue.release(lease["lease_id"]) if end == "ready" else None

    result = Workplace(failure).play(work)
    assert (result.outcome, result.reward, result.error) == (outcome, None, str(failure))


def test_a_reward_without_a_turn_is_not_the_policys() -> None:
    async def work(workplace: Workplace) -> None:
        lease = await workplace.lease()
        workplace.report(lease).update_reward(1.0)
        workplace.report(lease).complete("ready")

    with pytest.raises(InfrastructureError, match="requested no turn from the policy"):
        Workplace().play(work)


def test_a_task_that_is_no_json_is_named() -> None:
    async def work(workplace: Workplace) -> None:
        await settled()

    with pytest.raises(DataError, match="Task t3 cannot be sent to a worker"):
        Workplace(task=Task(id="t3", messages=(), fields={"when": object()})).play(work)


def with_customer(*, learns: bool) -> Workplace:
    """An episode with a second policy."""
    workplace = Workplace()
    engine = ScriptedEngine(["tea", "milk"], encode=ByteTokenizer().encode)
    parts: dict[str, Any] = {"chat": TemplateChat(ByteTokenizer()), "sampling": Sampling(max_tokens=50)}
    identity = EpisodeIdentity("episode")
    customer = Session(identity.for_policy("customer", 0, learns=learns), engine=engine, **parts)
    engine = ScriptedEngine(["one", "two"], encode=ByteTokenizer().encode)
    workplace.session = Session(identity, engine=engine, others={"customer": customer}, **parts)
    return workplace


def test_turns_of_any_policy_that_learns_are_the_policys_play() -> None:
    async def work(workplace: Workplace) -> None:
        lease = await workplace.lease()
        await workplace.session.of("customer").chat(list(TASK.messages))
        workplace.report(lease).update_reward(1.0)
        workplace.report(lease).complete("ready")

    assert with_customer(learns=True).play(work).reward == Reward(total=1.0)
    with pytest.raises(InfrastructureError, match="requested no turn from the policy"):
        with_customer(learns=False).play(work)


def test_an_episode_in_which_any_policy_was_asked_is_not_played_by_a_second_worker() -> None:
    async def work(workplace: Workplace) -> None:
        lease = await workplace.lease()
        await workplace.session.of("customer").chat(list(TASK.messages))
        workplace.queue.release(lease["lease_id"])
        assert await workplace.lease() is None

    with pytest.raises(InfrastructureError, match="gave it back, after 1 turns"):
        with_customer(learns=False).play(work)
