"""An episode that ends every worker it is in ends alone: the others of its worker run to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparring.agents import EnvironmentAgent
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.environments import answer, tool_call
from sparring.errors import RewardError
from sparring.ledger import Ledger, RolloutState
from sparring.rollouts import Collector, EpisodeAgent, Grading, GroupPlan, MainPolicy, RolloutLimits
from sparring.runtime.clock import Clock
from sparring.runtime.plugins import load_object
from sparring.types import Json, Outcome, Sampling, Task, TrajectoryGroup
from sparring.workers import Code, WorkerPool, grade_in_workers, run_in_workers, use_separate_workers
from tests.workers.machine import connected_pool
from tests.workers.test_workers import is_alive, wait_until_gone

RECIPE_FOLDER = Path(__file__).parent / "recipe"
CODE: Code = {
    "folder": str(RECIPE_FOLDER),
    "target": "shop:Shop",
    "options": {},
    "reward": "shop:reward",
    "scorer": None,
}
Shop: Any = load_object("shop:Shop", folder=RECIPE_FOLDER)
NUM_HEALTHY = 2


def run_tasks(
    pool: WorkerPool, killer: dict[str, Json], *, max_retries: int, num_killers: int = 1
) -> tuple[list[TrajectoryGroup], Ledger]:
    """Healthy tasks and killers side by side in one worker; retries follow at once, so that they meet again."""
    ledger = Ledger()

    async def main() -> list[TrajectoryGroup]:
        collector = Collector(
            agent=EpisodeAgent(
                EnvironmentAgent(run_in_workers(Shop, pool), max_turns=4).play,
                wait_until_ready=pool.wait_until_ready,
            ),
            policy=MainPolicy(ScriptedMessages([tool_call("count"), tool_call("count"), answer("done")], name="clerk")),
            grading=Grading(reward=grade_in_workers(pool, "reward", load_object("shop:reward", folder=RECIPE_FOLDER))),
            ledger=ledger,
            seed=0,
            limits=RolloutLimits(timeout_seconds=60.0, max_concurrency=8, max_retries=max_retries),
            clock=Clock(sleep=lambda _: asyncio.sleep(0)),
        )
        tasks = [Task(id=f"healthy-{n}", messages=()) for n in range(NUM_HEALTHY)]
        tasks += [Task(id=f"killer-{n}", messages=(), fields=killer) for n in range(num_killers)]
        plans = [
            GroupPlan(task=one, position=place, group_size=1, sampling=Sampling()) for place, one in enumerate(tasks)
        ]
        return await collector.play_all(plans, in_waves=False)

    return asyncio.run(main()), ledger


@pytest.fixture(params=["here", "connected"])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerPool]:
    """Of one worker."""
    if request.param == "here":
        pool = WorkerPool(1, CODE, silence_seconds=60)
        yield pool
        asyncio.run(pool.aclose())
    else:
        with connected_pool(CODE, "--processes", "1", cache=tmp_path) as (pool, _):
            yield pool


@pytest.mark.parametrize(
    ("killer", "max_retries", "num_killers"),
    [({"on_reset": "kill"}, 1, 1), ({"on_reset": "exit"}, 2, 2)],
    ids=["once more", "two of them"],
)
def test_an_episode_that_kills_its_worker_each_time_takes_no_other_along(
    pool: WorkerPool, killer: dict[str, Json], max_retries: int, num_killers: int
) -> None:
    groups, ledger = run_tasks(pool, killer, max_retries=max_retries, num_killers=num_killers)
    lost = {group.task.id for group in groups if group.num_lost}
    assert lost == {f"killer-{n}" for n in range(num_killers)}
    with ledger:
        finished = [one for one in ledger.rollouts() if one.state is not RolloutState.DISCARDED]
        assert len(finished) == NUM_HEALTHY
        assert ledger.verify() == []


@pytest.mark.parametrize(
    ("killer", "max_retries", "outcome"),
    [({"on_close": "exit"}, 2, Outcome.FINISHED), ({"on_final_state": "kill"}, 2, Outcome.POLICY_ERROR)],
)
def test_an_episode_that_ends_its_worker_after_a_turn_each_time_is_graded(
    pool: WorkerPool, killer: dict[str, Json], max_retries: int, outcome: Outcome
) -> None:
    groups, ledger = run_tasks(pool, killer, max_retries=max_retries)
    with ledger:
        assert ledger.verify() == []
    assert [len(group.trajectories) for group in groups] == [1] * (NUM_HEALTHY + 1)
    (killed,) = groups[-1].trajectories
    assert killed.outcome is outcome
    assert killed.reward is not None


def test_a_reward_that_ends_its_worker_each_time_is_an_error_like_one_that_raises(pool: WorkerPool) -> None:
    with pytest.raises(RewardError, match=r"'reward' failed twice on trajectory .*killer-0.* got no answer"):
        run_tasks(pool, {"on_reward": "kill"}, max_retries=2)


def test_a_place_alone_has_a_worker_that_ends_with_it(pool: WorkerPool) -> None:
    async def main() -> None:
        task = Task(id="a", messages=())
        second, another = run_in_workers(Shop, pool)(), run_in_workers(Shop, pool)()
        with use_separate_workers():
            alone = run_in_workers(Shop, pool)()
        for one in (second, another, alone):
            await one.reset(task)
        process, shared, own = [await one.call_tool("process", {}) for one in (second, another, alone)]
        assert process == shared != own
        await alone.close()
        await asyncio.to_thread(wait_until_gone, int(own))
        assert is_alive(int(process))

    asyncio.run(asyncio.wait_for(main(), 60))
