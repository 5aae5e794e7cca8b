"""Code of the user in worker processes: the same as here, and no harm when it dies or hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.environments import Environment, answer, execute, tool_call
from sparring.environments.base import reset
from sparring.errors import ContextOverflow, InfrastructureError, TurnLimit, UsageError, WorkerLost
from sparring.rewards.rules import evaluate_reward
from sparring.runtime.plugins import load_object
from sparring.scorers.score import evaluate_score
from sparring.types import Json, Message, Outcome, Task, Trajectory
from sparring.workers import Code, WorkerPool, grade_in_workers, run_in_workers
from tests.workers.machine import connected_pool

RECIPE_FOLDER = Path(__file__).parent / "recipe"
CODE: Code = {
    "folder": str(RECIPE_FOLDER),
    "target": "shop:Shop",
    "options": {"size": 2},
    "reward": "shop:reward",
    "scorer": "shop:scorer",
}
Shop: Any = load_object("shop:Shop", folder=RECIPE_FOLDER)
SILENCE_SECONDS = 5.0


@pytest.fixture(scope="module", params=["here", "connected"])
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    """Of two workers, which tests may kill: others come. They are started by the pool or connect to it."""
    yield from open_pool(request.param, tmp_path_factory, 2, SILENCE_SECONDS)


@pytest.fixture(scope="module", params=["here", "connected"])
def single(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    """Of one worker."""
    yield from open_pool(request.param, tmp_path_factory, 1, 600)


def open_pool(where: str, paths: pytest.TempPathFactory, num_workers: int, seconds: float) -> Iterator[WorkerPool]:
    if where == "here":
        pool = WorkerPool(num_workers, CODE, silence_seconds=seconds)
        yield pool
        asyncio.run(pool.aclose())
    else:
        options = ("--processes", str(num_workers))
        with connected_pool(CODE, *options, cache=paths.mktemp("cache"), silence_seconds=seconds) as (pool, _):
            yield pool


def task(**fields: Json) -> Task:
    return Task(id="a", messages=({"role": "user", "content": "Play."},), fields=fields)


GRADED = Trajectory(
    id="r",
    task=task(),
    attempt=0,
    turns=(),
    messages=(),
    outcome=Outcome.FINISHED,
    reward=None,
    score=None,
    final_state={"size": 2},
)


async def open_environment(pool: WorkerPool, **fields: Json) -> Any:
    """An environment in one of the workers, reset."""
    environment = run_in_workers(Shop, pool)()
    await reset(environment, task(**fields))
    return environment


async def call_tool(environment: Environment, tool: str, **arguments: Json) -> str:
    return (await execute(environment, tool, arguments)).content


async def find_process(environment: Environment) -> int:
    return int(await call_tool(environment, "process"))


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_until_gone(pid: int) -> None:
    wait_until(lambda: not is_alive(pid))


SCRIPTS: dict[str, Sequence[Message]] = {
    "results": [tool_call("returns", what=what) for what in ("more to log", "a pair", "fields", "surrogate", "marked")],
    "no results": [tool_call("returns", what=what) for what in ("no JSON", "NaN")],
    "errors": [
        *(tool_call("fails", how=how) for how in ("value", "key", "failure", "mute", "panic")),
        tool_call("nothing"),
        tool_call("count", x=1),
    ],
    "over when it is done": [tool_call("count"), tool_call("count"), tool_call("count"), tool_call("count")],
    "replies": [answer("one"), answer("two"), answer("three")],
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
def test_an_episode_is_the_same_in_a_worker_and_here(pool: WorkerPool, script: Sequence[Message]) -> None:
    def played(make_environment: Any) -> Any:
        agent = EnvironmentAgent(make_environment, max_turns=len(script))
        return asyncio.run(agent.play(task(pair=(1, 2), by_number={1: "one"}), ScriptedSession(*script)))

    here, there = played(lambda: Shop(size=2)), played(run_in_workers(Shop, pool))
    assert here == there
    # Equal is not enough where JSON would make one of two: keys that are numbers.
    assert repr(here.final_state) == repr(there.final_state) == f"{{1: {here.final_state[1]}, 'size': 2}}"


def test_tools_that_change_in_a_worker_are_refused_where_they_are_not_available(pool: WorkerPool) -> None:
    async def played() -> list[str]:
        environment = await open_environment(pool)
        answers = [await call_tool(environment, name) for name in ("count", "count", "process", "count")]
        await environment.close()
        return answers

    assert asyncio.run(played()) == ["1", "2", "error: no tool 'process'; there are count", "3"]


def test_a_final_state_that_no_worker_can_send_is_an_error_with_its_place_its_type_and_what_to_do(
    pool: WorkerPool,
) -> None:
    agent = EnvironmentAgent(run_in_workers(Shop, pool), max_turns=1)
    with pytest.raises(UsageError) as caught:
        asyncio.run(agent.play(task(is_odd=True), ScriptedSession(answer("Done."))))
    message = str(caught.value)
    assert "Shop.final_state returned datetime.date(2026, 1, 6), a date, at orders[0].placed" in message
    assert "isoformat()" in message


def test_an_environment_that_replies_asks_the_policies_of_its_episode(pool: WorkerPool) -> None:
    customer = ScriptedSession(answer("Is that all?"), ContextOverflow("too long"))
    session = ScriptedSession(answer("Yes?"), answer("No."), others={"customer": customer})
    agent = EnvironmentAgent(run_in_workers(Shop, pool), max_turns=4)
    played = asyncio.run(agent.play(task(customer="customer"), session))
    assert [one["content"] for one in played.messages] == ["a of 2?", "Yes?", "Is that all?", "No."]
    assert [messages for messages, _ in customer.requests] == [
        [{"role": "user", "content": "Yes?"}],
        [{"role": "user", "content": "No."}],
    ]
    # What the policy could not answer ends the episode as it does here.
    assert (played.outcome, played.error) == (Outcome.MAX_TOKENS, "too long")


def test_an_environment_that_replies_may_ask_the_policy_that_plays(pool: WorkerPool) -> None:
    session = ScriptedSession(answer("Yes?"), answer("Asked of itself."), answer("No."), TurnLimit("enough"))
    agent = EnvironmentAgent(run_in_workers(Shop, pool), max_turns=2)
    messages = asyncio.run(agent.play(task(customer=None), session)).messages
    assert [one["content"] for one in messages] == ["a of 2?", "Yes?", "Asked of itself.", "No."]


def test_a_failed_reset_has_the_same_message_in_a_worker_and_here(
    pool: WorkerPool,
) -> None:
    for environment in (Shop(), run_in_workers(Shop, pool)()):
        with pytest.raises(InfrastructureError) as raised:
            asyncio.run(reset(environment, task(on_reset="raise")))
        assert str(raised.value) == "Task a: Shop.reset failed: ValueError('no room', 3)."


def test_an_outage_in_a_worker_is_an_outage(pool: WorkerPool) -> None:
    async def main() -> None:
        environment = await open_environment(pool)
        try:
            await execute(environment, "breaks", {})
        finally:
            await environment.close()

    with pytest.raises(InfrastructureError) as raised:
        asyncio.run(main())
    assert str(raised.value) == "the shop is closed"
    assert "shop.py" in raised.value.__notes__[0], "where it was raised"


def test_a_demonstration_comes_from_a_worker(pool: WorkerPool) -> None:
    assert run_in_workers(Shop, pool)().demonstrate(task()) == [tool_call("count"), answer("ok")]


def test_rewards_and_scores_are_the_same_in_a_worker_and_here(pool: WorkerPool) -> None:
    # Turns of the scripted session sample token 2: even, so that each is worth nothing; one more makes the first worth 0.5.
    session = ScriptedSession(answer("one"), answer("two"))
    asyncio.run(EnvironmentAgent(lambda: Shop(size=1), max_turns=2).play(task(), session))
    turns = (replace(session.turns[0], token_ids=(2, 3)), session.turns[1])
    trajectory = Trajectory(
        id="r",
        task=task(pair=(1, 2)),
        attempt=0,
        turns=turns,
        messages=(),
        outcome=Outcome.FINISHED,
        reward=None,
        score=None,
        final_state={"size": 2},
    )
    graders = {key: load_object(f"shop:{key}", folder=RECIPE_FOLDER) for key in ("reward", "scorer")}
    there = {key: grade_in_workers(pool, key, judge) for key, judge in graders.items()}
    reward = asyncio.run(evaluate_reward(there["reward"], trajectory))
    assert reward == asyncio.run(evaluate_reward(graders["reward"], trajectory))
    assert (reward.total, reward.per_turn) == (0.5, {0: 0.5, 1: 0.0})
    score = asyncio.run(evaluate_score(there["scorer"], trajectory))
    assert (score.value, score.parts) == (0.5, {"size": 0.5})


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("exit", "ended with exit code 3"),
        ("kill", "was ended by SIGKILL"),
        ("crash", "was ended by SIGSEGV"),
        ("hang", "did not return to its event loop for 5 s"),
        ("write", "closed its pipe to the trainer or wrote into it"),
    ],
)
def test_a_worker_that_dies_or_hangs_costs_its_own_episodes_and_is_replaced(
    pool: WorkerPool, how: str, cause: str
) -> None:
    async def main() -> None:
        first, other, second = [await open_environment(pool) for _ in range(3)]
        process, other_process = await find_process(first), await find_process(other)
        assert await find_process(second) == process != other_process
        began = time.monotonic()
        with pytest.raises(WorkerLost, match=f"Shop.end of task a got no answer.*{cause}") as ended:
            await execute(second, "end", {"how": how})
        with pytest.raises(WorkerLost, match=f"Shop.count of task a got no answer.*{cause}") as also_ended:
            await execute(first, "count", {})
        assert cause in ended.value.death
        assert ended.value.death == also_ended.value.death
        assert await call_tool(other, "count") == "1"
        after = await open_environment(pool)
        while (await find_process(after)) == other_process:
            # A connected worker that was lost comes back a moment later. Until then, the others get its episodes.
            await after.close()
            await asyncio.sleep(0.05)
            after = await open_environment(pool)
        assert await find_process(after) != process
        # On a busy machine a new process takes longer to start.
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        assert time.monotonic() - began < 5.0 * busy + (SILENCE_SECONDS if how == "hang" else 0.0)
        for environment in (other, after):
            await environment.close()
        for environment in (first, second):
            with pytest.raises(InfrastructureError, match=cause):
                await environment.close()

    asyncio.run(main())


@pytest.mark.parametrize("state", ["idle", "leased", "resetting", "playing", "grading", "closing"])
def test_a_worker_that_is_killed_in_any_state_is_replaced_in_time(
    single: WorkerPool, tmp_path: Path, state: str
) -> None:
    sleep = f"sleep after {tmp_path / 'asleep'}"

    async def main() -> float:
        before = await open_environment(single, **({"on_close": sleep} if state == "closing" else {}))
        process = await find_process(before)
        if state in ("idle", "resetting", "grading"):
            await before.close()
        asked: Any = None
        match state:
            case "resetting":
                asked = open_environment(single, on_reset=sleep)
            case "playing":
                asked = execute(before, "end", {"how": sleep})
            case "grading":
                judge = grade_in_workers(single, "reward", load_object("shop:reward", folder=RECIPE_FOLDER))
                asked = evaluate_reward(judge, replace(GRADED, task=task(on_reward=sleep)))
            case "closing":
                asked = before.close()
        if asked is not None:
            asked = asyncio.ensure_future(asked)
            await asyncio.to_thread(wait_until, (tmp_path / "asleep").exists)
        os.kill(process, signal.SIGKILL)
        killed = time.monotonic()
        if asked is not None:
            with pytest.raises(InfrastructureError, match="was ended by SIGKILL"):
                await asked
        elif state == "leased":
            with pytest.raises(InfrastructureError, match="was ended by SIGKILL"):
                await execute(before, "count", {})
        while True:
            # A caller that asks before the end was seen gets an outage, and asks again.
            with suppress(InfrastructureError):
                after = await open_environment(single)
                break
        took = time.monotonic() - killed
        assert await find_process(after) != process
        await after.close()
        assert not is_alive(process)
        return took

    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    took = asyncio.run(main())
    print(f"worker, {state}: {took:.2f} s until another one answers")  # noqa: T201
    assert took < 5.0 * busy


def test_workers_that_are_killed_while_they_are_closed_block_no_caller() -> None:
    async def main() -> None:
        pool = WorkerPool(2, CODE, silence_seconds=SILENCE_SECONDS)
        found = [await find_process(await open_environment(pool)) for _ in range(2)]
        closing = asyncio.ensure_future(pool.aclose())
        for process in found:
            os.kill(process, signal.SIGKILL)
        await asyncio.wait_for(closing, 5.0)
        assert not any(map(is_alive, found))

    asyncio.run(main())


@pytest.mark.parametrize(("key", "how"), [("reward", "crash"), ("scorer", "exit"), ("reward", "hang")])
def test_a_judge_that_ends_its_worker_is_an_outage_and_no_reward(pool: WorkerPool, key: str, how: str) -> None:
    field = {"reward": "on_reward", "scorer": "on_score"}[key]
    trajectory = replace(GRADED, task=task(**{field: how}))
    judge = grade_in_workers(pool, key, load_object(f"shop:{key}", folder=RECIPE_FOLDER))
    cause = {"crash": "SIGSEGV", "exit": "exit code 3", "hang": "did not return"}[how]
    with pytest.raises(InfrastructureError, match=f"{key} of r got no answer.*{cause}"):
        asyncio.run(evaluate_reward(judge, trajectory) if key == "reward" else evaluate_score(judge, trajectory))


def test_a_cancelled_call_is_cancelled_in_the_worker_before_the_environment_is_closed(
    pool: WorkerPool, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"

    async def main() -> None:
        environment = await open_environment(pool, notes=str(notes))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(execute(environment, "wait", {}), 0.3)
        await environment.close()

    asyncio.run(main())
    assert notes.read_text().split("\n") == ["given up", "closed", ""]


def test_what_a_worker_has_started_ends_with_it(pool: WorkerPool) -> None:
    async def main() -> int:
        environment = await open_environment(pool)
        started = int(await call_tool(environment, "start"))
        assert is_alive(started)
        with pytest.raises(InfrastructureError):
            await execute(environment, "end", {"how": "kill"})
        return started

    wait_until_gone(asyncio.run(main()))


def test_closing_ends_all_workers_and_what_they_have_started() -> None:
    async def main() -> tuple[int, int]:
        pool = WorkerPool(1, CODE, silence_seconds=SILENCE_SECONDS)
        environment = await open_environment(pool)
        found = await find_process(environment), int(await call_tool(environment, "start"))
        await pool.aclose()
        await pool.aclose()
        return found

    for process in asyncio.run(main()):
        wait_until_gone(process)


TRAINER = """
import asyncio, sys
from tests.workers.test_workers import CODE, open_environment, find_process
from sparring.workers import WorkerPool

async def main():
    pool = WorkerPool(2, CODE, silence_seconds=600)
    idle, busy = await open_environment(pool), await open_environment(pool)
    for environment in (idle, busy):
        print(await find_process(environment), flush=True)
    asyncio.ensure_future(busy.call_tool("end", {"how": "hang"}))
    await asyncio.sleep(1)
    print("busy", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a worker that hangs is not notified of the trainer's end"
)
def test_nothing_is_left_of_a_trainer_that_is_killed() -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)]),
    }
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True, env=environment
    ) as trainer:
        assert trainer.stdout is not None
        workers = [int(trainer.stdout.readline()) for _ in range(2)]
        assert trainer.stdout.readline() == "busy\n"
        assert all(map(is_alive, workers))
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
    for worker in workers:
        wait_until_gone(worker)


def test_what_json_has_no_form_for_is_refused_with_what_to_do(pool: WorkerPool) -> None:
    with pytest.raises(
        UsageError, match=r"Shop.reset of task a cannot be sent to a worker process: Object of type date .*workers = 0"
    ):
        asyncio.run(reset(run_in_workers(Shop, pool)(), task(on=date(2026, 1, 1))))
    with pytest.raises(UsageError, match=r"environment.options cannot be sent to a worker process"):
        WorkerPool(1, {**CODE, "options": {"on": date(2026, 1, 1)}}, silence_seconds=1)


def test_code_that_loads_here_and_not_in_a_worker_is_reported_to_the_caller() -> None:
    async def main() -> None:
        pool = WorkerPool(1, {**CODE, "target": "shop:Shp"}, silence_seconds=SILENCE_SECONDS)
        try:
            await reset(run_in_workers(Shop, pool)(), task())
        finally:
            await pool.aclose()

    with pytest.raises(UsageError, match="did you mean 'Shop'"):
        asyncio.run(main())
