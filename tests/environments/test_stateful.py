"""Each episode has a state of its own that follows from its task, and nothing of it is left afterwards."""

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.agents import EnvironmentAgent
from sparring.agents.scripted_session import ScriptedSession
from sparring.environments import (
    Environment,
    EpisodeClock,
    EpisodeState,
    StatefulEnvironment,
    answer,
    normalized,
    opened,
    tool,
    tool_call,
)
from sparring.environments.base import reset
from sparring.errors import InfrastructureError, UsageError
from sparring.types import Message, Task

tasks = st.builds(Task, id=st.text(min_size=1), seed=st.integers(), messages=st.just(()))


class Orders(StatefulEnvironment):
    """Leaves its folder in `folders`, so that a test can look whether it is gone."""

    folders: ClassVar[list[Path]] = []
    persists = ("folders",)

    def reset(self, task: Task) -> None:
        super().reset(task)
        self.folders.append(self.state.directory)
        self.state.database.execute(
            "CREATE TABLE orders (id, item, at DEFAULT CURRENT_TIMESTAMP, lot DEFAULT (random()))"
        )

    @tool
    def place(self, item: str) -> dict[str, Any]:
        """Place an order."""
        (self.state.directory / f"{item}.txt").write_text(item)
        self.state.clock.advance(60)
        order = self.state.new_id("order")
        self.state.database.execute("INSERT INTO orders (id, item) VALUES (?, ?)", (order, item))
        rows = self.state.database.execute("SELECT * FROM orders").fetchall()
        return {
            "orders": rows,
            "slot": self.state.rng.random(),
            "files": sorted(p.name for p in self.state.directory.iterdir()),
        }

    @tool
    def stumble(self) -> None:
        """Fails."""
        raise KeyError("stumbled")

    @tool
    async def hang(self) -> None:
        """Never answers."""
        await asyncio.sleep(3600)


TASK = Task(id="one", seed=3, messages=({"role": "user", "content": "order"},))


def played(task: Task, *script: Message, environment: type[Environment] = Orders) -> list[Message]:
    result = asyncio.run(EnvironmentAgent(environment, max_turns=len(script)).play(task, ScriptedSession(*script)))
    return list(result.messages)


@given(tasks)
def test_two_episodes_of_a_task_see_the_same(task: Task) -> None:
    def seen() -> list[Any]:
        state = EpisodeState(task)
        rows = state.database.execute("SELECT random(), hex(randomblob(4)), datetime('now')").fetchall()
        values = [
            state.rng.random(),
            state.new_id("a"),
            state.new_id("a"),
            state.new_id("b"),
            state.clock.advance(1.5),
            rows,
        ]
        asyncio.run(state.close())
        return values

    assert seen() == seen()


@given(st.lists(tasks, min_size=2, max_size=6, unique_by=lambda task: (task.id, task.seed)))
def test_episodes_of_different_tasks_share_no_id_no_folder_and_no_row(all_tasks: Sequence[Task]) -> None:
    states = [EpisodeState(task) for task in all_tasks]
    ids = [state.new_id("order") for state in states]
    folders = [state.directory for state in states]
    for state in states:
        state.database.execute("CREATE TABLE t (x)")
        (state.directory / "here").touch()
    assert len(set(ids)) == len(set(folders)) == len(states)
    for state in states:
        asyncio.run(state.close())
    assert not any(folder.exists() for folder in folders)


def test_members_of_a_group_play_at_once_without_meeting() -> None:
    script = (tool_call("place", item="pen"), tool_call("place", item="ink"), answer("done"))

    async def both() -> list[list[Message]]:
        agent = EnvironmentAgent(Orders, max_turns=3)
        results = await asyncio.gather(*(agent.play(TASK, ScriptedSession(*script)) for _ in range(4)))
        return [list(result.messages) for result in results]

    first, *others = asyncio.run(both())
    assert others == [first] * 3
    last = json.loads(first[-2]["content"])
    assert last["files"] == ["ink.txt", "pen.txt"]
    # Two orders, a minute apart by the episode's clock, which begins at nine.
    assert [row[2] for row in last["orders"]] == ["2025-01-06 09:01:00", "2025-01-06 09:02:00"]


@pytest.mark.parametrize(
    "script",
    [
        (answer("at once"),),
        (tool_call("place", item="pen"),),  # cut by max_turns
        (tool_call("stumble"), answer("after an error")),
        (InfrastructureError("the policy's service is gone"),),
    ],
)
def test_nothing_is_left_however_the_episode_ends(script: tuple[Any, ...]) -> None:
    Orders.folders.clear()
    with suppress(InfrastructureError):
        played(TASK, *script)
    (folder,) = Orders.folders
    assert not folder.exists()


def test_nothing_is_left_after_a_cancelled_call() -> None:
    Orders.folders.clear()

    async def cut() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await EnvironmentAgent(Orders, max_turns=1).play(TASK, ScriptedSession(tool_call("hang")))

    asyncio.run(cut())
    assert not Orders.folders[0].exists()


def test_a_reset_that_fails_half_way_leaves_nothing() -> None:
    class Broken(Orders):
        def reset(self, task: Task) -> None:
            super().reset(task)
            raise OSError("no more room")

    Orders.folders.clear()
    with pytest.raises(InfrastructureError, match="no more room"):
        played(TASK, answer("x"), environment=Broken)
    assert not Orders.folders[0].exists()


def test_what_was_registered_last_is_torn_down_first_and_all_of_it() -> None:
    done: list[str] = []

    async def later() -> None:
        done.append("later")

    def fails() -> None:
        done.append("fails")
        raise OSError("busy")

    state = EpisodeState(TASK)
    state.register("the table", lambda: done.append("table"))
    state.register("the port", fails)
    state.register("the server", later)
    with pytest.raises(InfrastructureError, match=r"the port: OSError\('busy'\)"):
        asyncio.run(state.close())
    assert done == ["later", "fails", "table"]
    asyncio.run(state.close())
    assert done == ["later", "fails", "table"]


def test_a_cleanup_that_hangs_keeps_none_of_the_others_from_its_turn() -> None:
    done: list[str] = []
    state = EpisodeState(TASK)
    state.register("first", lambda: done.append("first"))
    state.register("hangs", lambda: asyncio.sleep(3600))

    async def close() -> None:
        async with asyncio.timeout(0.05):
            await state.close()

    with pytest.raises(TimeoutError):
        asyncio.run(close())
    assert done == ["first"]


def test_a_database_of_a_closed_episode_is_closed() -> None:
    async def left() -> sqlite3.Connection:
        environment = Orders()
        async with opened(environment, TASK):
            await reset(environment, TASK)
            return environment.state.database

    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        asyncio.run(left()).execute("SELECT 1")


def test_a_second_reset_tears_the_first_state_down_too() -> None:
    Orders.folders.clear()

    async def twice() -> None:
        environment = Orders()
        async with opened(environment, TASK):
            environment.reset(TASK)
            environment.reset(TASK)

    asyncio.run(twice())
    assert len(Orders.folders) == 2
    assert not any(folder.exists() for folder in Orders.folders)


def test_state_before_reset_is_refused() -> None:
    class Forgetful(StatefulEnvironment):
        def reset(self, task: Task) -> None:
            self.state.new_id("x")

    with pytest.raises(InfrastructureError, match=r"call `super\(\)\.reset\(task\)` first"):
        played(TASK, answer("x"), environment=Forgetful)


def test_what_persists_must_exist() -> None:
    with pytest.raises(UsageError, match=r"Odd\.persists lists 'cache', but the class has no such attribute"):

        class Odd(StatefulEnvironment):
            persists = ("cache",)


def test_a_close_of_ones_own_is_refused_and_one_of_a_later_base_is_called() -> None:
    closed: list[str] = []

    class Connected(Environment):
        async def close(self) -> None:
            closed.append("connected")

    with pytest.raises(UsageError, match=r"state\.register"):

        class First(Connected, StatefulEnvironment):
            pass

    class Second(StatefulEnvironment, Connected):
        pass

    played(TASK, answer("x"), environment=Second)
    assert closed == ["connected"]


def test_the_clock_stands_still_until_it_is_advanced() -> None:
    clock = EpisodeClock(datetime(2024, 2, 28, 23, 59, 30, tzinfo=UTC))
    assert clock.now() == clock.now()
    assert clock.advance(45).isoformat() == "2024-02-29T00:00:15+00:00"
    with pytest.raises(ValueError, match="cannot advance by -1 s"):
        clock.advance(-1)
    with pytest.raises(UsageError, match="no time zone"):
        EpisodeClock(datetime(2024, 1, 1))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("CURRENT_TIMESTAMP", "2030-05-01 12:00:00"),
        ("CURRENT_DATE", "2030-05-01"),
        ("CURRENT_TIME", "12:00:00"),
        ("datetime()", "2030-05-01 12:00:00"),
        ("date('now', '+1 day')", "2030-05-02"),
        ("strftime('%H:%M')", "12:00"),
        ("strftime('%Y', '1999-01-01')", "1999"),
        ("unixepoch('1970-01-02')", 86400),
    ],
)
def test_the_times_of_the_database_are_the_episodes(query: str, expected: Any) -> None:
    state = EpisodeState(TASK)
    state.clock = EpisodeClock(datetime(2030, 5, 1, 12, tzinfo=UTC))
    assert state.database.execute(f"SELECT {query}").fetchone() == (expected,)
    asyncio.run(state.close())


FIRST, SECOND = "123e4567-e89b-12d3-a456-426614174000", "00000000-0000-4000-8000-00000000abcd"


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        ({"b": 0.1 + 0.2, "a": 2.0}, {"a": 2, "b": 0.3}),
        (f"{FIRST} after {SECOND} after {FIRST}", "<id-1> after <id-2> after <id-1>"),
        (["2025-01-01T10:00:00.123Z", "2025-01-01 10:00", "2025-01-01"], ["<time-1>", "<time-2>", "2025-01-01"]),
        ("in /tmp/sparring-k2j3h4g5/a/b.txt", "in <path-1>/a/b.txt"),
        ("in /scratch/me/tmpabcd1234/b.txt and /tmp/x.txt", "in <path-1>/b.txt and <path-2>"),
        ("<Order object at 0x7f3c12ab34cd>", "<Order object at <id-1>>"),
        ("0.30000000000000004 and 12.5 and 1.2.3", "0.3 and 12.5 and 1.2.3"),
        ('{"b": 1.0, "a": [0.30000000000000004]}', '{"a":[0.3],"b":1}'),
        ("{no json 2.0", "{no json 2.0"),
        (None, None),
        (True, True),
    ],
)
def test_an_observation_is_normalized(observation: Any, expected: Any) -> None:
    assert normalized(observation) == expected
    assert type(normalized(observation)) is type(expected)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.uuids().map(str),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(json_values)
def test_normalizing_twice_is_as_once_and_the_order_of_keys_does_not_matter(value: Any) -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(item) for item in value] if isinstance(value, list) else value

    once = normalized(value)
    assert normalized(once) == once == normalized(turned(value))
    assert json.dumps(once) == json.dumps(normalized(turned(value)))
