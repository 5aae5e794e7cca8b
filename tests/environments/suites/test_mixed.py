"""All domains at once: one desk plays them all, each by its own tools, reward and scorer."""

import asyncio
from collections import Counter

import pytest

from sparring.environments import execute, opened, record_demonstration
from sparring.environments.base import reset
from sparring.environments.suites import sop
from sparring.environments.suites.sop import mixed
from sparring.environments.tools import tools_of
from sparring.types import Json, Outcome, Task, Trajectory


def test_the_domains_come_by_turns_and_each_split_has_its_own_tasks() -> None:
    tasks = mixed.train_tasks(5 * len(sop.DOMAINS), seed=2)
    assert [task.fields["domain"] for task in tasks] == list(sop.DOMAINS) * 5
    assert Counter(task.fields["domain"] for task in mixed.held_out_tasks(24 * len(sop.DOMAINS))) == dict.fromkeys(
        sop.DOMAINS, 24
    )
    ids = [
        task.id
        for tasks in (mixed.train_tasks(90), mixed.validation_tasks(90), mixed.held_out_tasks(90))
        for task in tasks
    ]
    assert len(set(ids)) == 270


@pytest.mark.parametrize("options", [{}, {"distractors": 2, "missing": 0.5, "longer": 1}])
def test_the_expert_of_every_domain_plays_at_the_shared_desk(options: dict[str, Json]) -> None:
    for task in mixed.held_out_tasks(2 * len(sop.DOMAINS), **options):
        conversation = record_demonstration(mixed.Desk, task)
        trajectory = Trajectory(
            id=task.id,
            task=task,
            attempt=0,
            turns=(),
            messages=tuple(conversation),
            outcome=Outcome.FINISHED,
            reward=None,
            score=None,
        )
        assert mixed.scorer(trajectory).value == 1.0
        assert mixed.reward(trajectory).total == pytest.approx(1.0)


def test_the_tools_of_other_domains_are_not_there() -> None:
    async def ask(task: Task, name: str, arguments: dict[str, Json]) -> str:
        async with opened(desk := mixed.Desk(), task):
            await reset(desk, task)
            return (await execute(desk, name, arguments)).content

    task = next(task for task in mixed.train_tasks(12) if task.fields["domain"] == "aircraft_inspection")
    assert "no such tool here" in asyncio.run(ask(task, "account", {"account": "A10"}))
    # `box` is a tool of order fulfilment, and a method of desks that run programs: it gives them their sandbox.
    task = next(task for task in mixed.train_tasks(240) if task.fields["domain"] == "referral_abuse")
    assert "no such tool here" in asyncio.run(ask(task, "box", {"item": "R65"}))
    assert set(tools_of(mixed.Desk)) == {name for domain in sop.DOMAINS.values() for name in tools_of(domain.desk)}


def test_the_log_holds_clerks_of_every_domain() -> None:
    log = mixed.clerk_log(2 * len(sop.DOMAINS))
    assert [messages[0]["content"] for messages in log] == [
        domain.train_tasks(1)[0].messages[0]["content"] for domain in sop.DOMAINS.values()
    ] * 2


def test_a_demonstration_at_the_desk_calls_the_tools_of_the_domain() -> None:
    task = mixed.train_tasks(1)[0]
    domain = sop.DOMAINS[task.fields["domain"]]
    first, *_ = mixed.Desk().demonstrate(task)
    assert first["tool_calls"][0]["function"]["name"] in domain.tool_names(sop.Difficulty())
