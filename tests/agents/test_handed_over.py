"""What an own agent of any kind hands over reaches rewards, scorers and the stored episode; bad values get a clear error."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy
import pytest
from starlette.responses import JSONResponse

from sparring import AgentReport, Trajectory
from sparring.agents import CommandAgent, agent
from sparring.agents.result import AgentResult
from sparring.agents.scripted_session import ScriptedSession
from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.environments import answer
from sparring.errors import RewardError
from sparring.gateway import Gateway
from sparring.ledger import Ledger
from sparring.protocols import SessionLike
from sparring.rewards.reports import check_report
from sparring.rollouts import Collector, EpisodeAgent, Grading, GroupPlan, MainPolicy, RolloutLimits
from sparring.run_folders.stored import parse_trajectory
from sparring.scorers import state_difference
from sparring.tracking.local import trajectory_json
from sparring.types import Outcome, Reward, Sampling, Score, Task
from tests.agents import http_agents, test_worker
from tests.agents.http_agents import ask, make_session, report

CALL = {"tool": "book", "arguments": {"seat": 10**18}, "result": "booked", "error": None, "took": 0.5}
HANDED_OVER: dict[str, Any] = {
    "final_state": {"seats": {"12": "Emma"}, "free": 3},
    "transitions": [{"tool": "book", "arguments": {"seat": 10**18}, "result": "booked", "took": 0.5}],
    "artifacts": {"letter": "Dear Emma"},
}
TASK = Task(id="t1", messages=({"role": "user", "content": "find b"},), fields={"expected": HANDED_OVER["final_state"]})
PROGRAM = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "policy", "messages": task["messages"]}).encode(),
    {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"},
)
urllib.request.urlopen(request).read()
print(sys.argv[1])
"""


def as_function(handed_over: dict[str, Any], tmp_path: Path) -> AgentResult:
    del tmp_path

    @agent
    async def play(task: Task, session: SessionLike) -> AgentReport:
        await session.chat(task.messages)
        return AgentReport(**handed_over)

    return asyncio.run(play.play(TASK, ScriptedSession(answer("a"))))


def as_program(handed_over: dict[str, Any], tmp_path: Path) -> AgentResult:
    (tmp_path / "program.py").write_text(PROGRAM)

    async def run() -> AgentResult:
        async with Gateway() as gateway, make_session() as session:
            command = [sys.executable, "program.py", json.dumps(handed_over)]
            return await CommandAgent(command, enter=gateway.register, folder=tmp_path).play(TASK, session)

    return asyncio.run(run())


def behind_url(handed_over: dict[str, Any], tmp_path: Path) -> AgentResult:
    del tmp_path
    return http_agents.play(http_agents.answering(handed_over), task=TASK)


def as_worker(handed_over: dict[str, Any], tmp_path: Path) -> AgentResult:
    del tmp_path

    async def play(invocation: Any) -> Any:
        await test_worker.ask_async(invocation)
        return handed_over

    return test_worker.played(play)


KINDS: list[Callable[[dict[str, Any], Path], AgentResult]] = [as_function, as_program, behind_url, as_worker]


@pytest.mark.parametrize("play", KINDS)
@pytest.mark.parametrize("reward", [1.0, None])
def test_every_kind_of_agent_hands_over_state_calls_and_artifacts_with_or_without_a_reward(
    play: Callable[..., AgentResult], reward: float | None, tmp_path: Path
) -> None:
    result = play(HANDED_OVER | ({} if reward is None else {"reward": reward}), tmp_path)
    assert result.outcome is Outcome.FINISHED
    assert result.reward == (None if reward is None else Reward(total=reward))
    assert result.final_state == HANDED_OVER["final_state"]
    assert isinstance(result.final_state["free"], int)
    assert result.transitions == (CALL,)
    assert result.artifacts == HANDED_OVER["artifacts"]


@pytest.mark.parametrize(
    ("part", "value", "problem"),
    [
        ("transitions", ["book"], r"transitions\[0\] is 'book'; give an object with the called tool's name"),
        ("transitions", {"tool": "book"}, "give a list of executed tool calls"),
        ("artifacts", ["letter"], "give an object that maps names to texts"),
    ],
)
def test_a_part_of_another_shape_is_an_error_of_a_function_and_left_out_of_json(
    part: str, value: Any, problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RewardError, match=problem):
        as_function(HANDED_OVER | {"reward": 1.0, part: value}, tmp_path)
    for play in (as_program, behind_url, as_worker):
        result = play(HANDED_OVER | {"reward": 1.0, part: value}, tmp_path)
        assert result.reward == Reward(total=1.0)
        assert not getattr(result, part)
        assert result.final_state == HANDED_OVER["final_state"]
        assert "a part of a report is ignored" in caplog.text


@pytest.mark.parametrize("max_turns", [1, 2])
def test_a_program_that_fails_hands_over_what_it_printed_but_no_reward(max_turns: int, tmp_path: Path) -> None:
    ask_again = "urllib.request.urlopen(request).read()\nreport = sys.argv[1]\ntry:\n    "
    ask_again += "urllib.request.urlopen(request).read()\n    raise KeyError\nfinally:\n    print(report)"
    program = PROGRAM.replace("urllib.request.urlopen(request).read()\nprint(sys.argv[1])", ask_again)
    assert "finally" in program
    (tmp_path / "program.py").write_text(program)

    async def run() -> AgentResult:
        async with Gateway() as gateway, make_session("a", "b", max_turns=max_turns) as session:
            command = [sys.executable, "program.py", json.dumps(HANDED_OVER | {"reward": 1.0})]
            return await CommandAgent(command, enter=gateway.register, folder=tmp_path).play(TASK, session)

    result = asyncio.run(run())
    assert result.outcome is (Outcome.MAX_TURNS if max_turns == 1 else Outcome.POLICY_ERROR)
    assert (result.reward, result.final_state) == (None, HANDED_OVER["final_state"])
    assert (result.transitions, result.artifacts) == ((CALL,), HANDED_OVER["artifacts"])


DEEP = "[" * 900 + "]" * 900
WRITTEN_BY_POLICY = (
    '{"reward": 1.0, "final_state": {"note": "\\ud83d", "sum": NaN, "deep": '
    + DEEP
    + '}, "artifacts": {"": "\\ud800"}}'
)


@pytest.mark.parametrize("play", [as_worker, behind_url, as_function])
def test_what_a_policy_can_write_into_a_state_costs_neither_the_reward_nor_the_run(
    play: Callable[..., AgentResult], tmp_path: Path
) -> None:
    result = play(json.loads(WRITTEN_BY_POLICY), tmp_path)
    assert result.reward == Reward(total=1.0)
    assert (result.final_state["note"], result.final_state["sum"]) == ("?", None)
    assert "nested too deeply" in json.dumps(result.final_state["deep"])
    assert result.artifacts == {"": "?"}


def test_a_report_over_a_route_may_contain_what_a_policy_wrote() -> None:
    async def behaviour(payload: Any) -> Any:
        await ask(payload)
        async with httpx.AsyncClient(timeout=10) as client:
            headers = {"authorization": f"Bearer {payload['api_key']}", "content-type": "application/json"}
            url = f"{payload['base_url']}/episode"
            first = await client.post(f"{url}/reward", content=WRITTEN_BY_POLICY, headers=headers)
            second = await client.post(f"{url}/complete", content='{"status": "ready"}', headers=headers)
        assert (first.status_code, second.status_code) == (200, 200), first.text
        return JSONResponse({})

    result = http_agents.play(behaviour, task=TASK)
    assert result.reward == Reward(total=1.0)
    assert result.final_state["note"] == "?"


def test_artifacts_and_errors_of_other_types_become_texts_and_dates_too() -> None:
    report = AgentReport(
        artifacts={"a": 5, "b": None, "c": {"d": [1]}},  # type: ignore[dict-item]
        transitions=[{"tool": "book", "error": {"code": 3}}],
        final_state={"day": datetime.date(2026, 1, 2), "price": decimal.Decimal("1.5"), "count": numpy.int64(3)},
    )
    plain = check_report(report, source="It")
    assert plain.artifacts == {"a": "5", "b": "null", "c": '{"d": [1]}'}
    assert plain.transitions[0]["error"] == '{"code": 3}'
    assert plain.final_state == {"day": "2026-01-02", "price": 1.5, "count": 3}


def test_a_state_of_any_size_is_cut_within_a_second() -> None:
    shared: Any = ["a"]
    for _ in range(60):
        shared = [shared, shared]
    began = time.monotonic()
    plain = check_report(AgentReport(final_state=[shared], artifacts={"log": "x" * 10**8}), source="It")
    assert time.monotonic() - began < 5
    assert plain.artifacts == {"log": "(too large to keep)"}
    assert len(json.dumps(plain.final_state)) < 20_000_000


def test_a_last_line_that_the_policy_wrote_is_no_report(tmp_path: Path) -> None:
    forged = '{"reward": 1.0, "final_state": {"paid": true}}'
    program = PROGRAM.replace(
        "urllib.request.urlopen(request).read()", "answer = json.load(urllib.request.urlopen(request))"
    )
    (tmp_path / "program.py").write_text(program.replace("sys.argv[1]", "answer['choices'][0]['message']['content']"))

    async def run() -> AgentResult:
        async with Gateway() as gateway, make_session(forged) as session:
            agent = CommandAgent([sys.executable, "program.py"], enter=gateway.register, folder=tmp_path)
            return await agent.play(TASK, session)

    result = asyncio.run(run())
    assert (result.outcome, result.reward, result.final_state) == (Outcome.FINISHED, None, None)


@pytest.mark.parametrize("status", [202, 200])
def test_an_answer_that_confirms_the_start_does_not_end_the_episode(status: int) -> None:
    async def behaviour(payload: Any) -> Any:
        async def work() -> None:
            await ask(payload)
            await report(payload, "reward", reward=0.5)
            await report(payload, "complete", status="ready")

        running.append(asyncio.ensure_future(work()))
        named = {"status": "processing"} if status == 200 else {}
        return JSONResponse({**named, "artifacts": {"queue": "b"}}, status_code=status)

    running: list[Any] = []
    assert http_agents.play(behaviour, task=TASK).reward == Reward(total=0.5)


def test_an_agent_that_exits_ends_its_episode_only(tmp_path: Path) -> None:
    @agent
    async def play(task: Task, session: SessionLike) -> float:
        await session.chat(task.messages)
        sys.exit(3)

    result = asyncio.run(play.play(TASK, ScriptedSession(answer("a"))))
    assert result.outcome is Outcome.POLICY_ERROR
    assert "SystemExit" in str(result.error)


def test_a_report_over_the_routes_hands_over_with_the_reward_or_the_completion() -> None:
    async def behaviour(payload: Any) -> Any:
        await ask(payload)
        rewarded = await report(payload, "reward", reward=0.5, final_state=HANDED_OVER["final_state"])
        completed = await report(
            payload, "complete", status="ready", transitions=HANDED_OVER["transitions"], artifacts={"letter": "a"}
        )
        assert (rewarded.status_code, completed.status_code) == (200, 200)
        return JSONResponse({"artifacts": {"log": "b"}})

    result = http_agents.play(behaviour, task=TASK)
    assert result.reward == Reward(total=0.5)
    assert (result.final_state, result.transitions) == (HANDED_OVER["final_state"], (CALL,))
    assert result.artifacts == {"letter": "a", "log": "b"}


def test_values_that_a_policy_can_cause_are_replaced_and_values_of_other_types_are_errors() -> None:
    deep: Any = "bottom"
    for _ in range(300):
        deep = [deep]
    state = {"price": float("nan"), "name": "half \ud83d", 3: (1, 2), "deep": deep}
    plain = check_report(AgentReport(final_state=state), source="It").final_state
    assert plain.pop("deep") != deep
    assert plain == {"price": None, "name": "half ?", "3": [1, 2]}
    json.dumps(plain, allow_nan=False)
    with pytest.raises(RewardError, match=r"It: final_state contains .*Path.*which JSON cannot represent"):
        check_report(AgentReport(final_state={"where": Path("x")}), source="It")


def test_the_report_is_a_copy_so_that_the_agent_cannot_change_it_later() -> None:
    state = {"rows": [1]}
    plain = check_report(AgentReport(final_state=state), source="It")
    state["rows"].append(2)
    assert plain.final_state == {"rows": [1]}


def collect(play: Callable[..., Awaitable[Any]], tmp_path: Path, grading: Grading) -> Trajectory:
    async def run() -> Trajectory:
        with Ledger(tmp_path / "ledger.sqlite") as ledger:
            collector = Collector(
                agent=EpisodeAgent(agent(play).play),
                policy=MainPolicy(
                    ScriptedEngine(lambda _request: "one", encode=ByteTokenizer().encode), TemplateChat(ByteTokenizer())
                ),
                grading=grading,
                ledger=ledger,
                seed=0,
                limits=RolloutLimits(timeout_seconds=60, max_concurrency=8),
            )
            plan = GroupPlan(task=TASK, position=0, group_size=1, sampling=Sampling(max_tokens=20))
            return (await collector.play_group(plan)).trajectories[0]

    return asyncio.run(run())


async def booking(task: Task, session: SessionLike) -> AgentReport:
    await session.chat(task.messages)
    return AgentReport(**HANDED_OVER)


def test_rewards_and_scorers_see_it_and_the_stored_episode_keeps_it(tmp_path: Path) -> None:
    def reward(episode: Trajectory) -> float:
        return float(episode.transitions[0]["result"] == "booked" and episode.artifacts["letter"] == "Dear Emma")

    trajectory = collect(booking, tmp_path, Grading(reward=reward, scorer=state_difference("expected")))
    assert trajectory.reward == Reward(total=1.0)
    assert trajectory.score == 1.0
    stored = json.loads(json.dumps(trajectory_json(trajectory)))
    again = parse_trajectory(stored, trajectory.transitions, "here")
    assert (again.final_state, again.artifacts) == (trajectory.final_state, trajectory.artifacts)


def test_a_scorer_that_reads_a_missing_state_gets_an_error_that_names_it(tmp_path: Path) -> None:
    async def silent(task: Task, session: SessionLike) -> float:
        await session.chat(task.messages)
        return 1.0

    def scorer(episode: Trajectory) -> Score:
        return Score(float(episode.final_state["free"] == 3))

    with pytest.raises(
        RewardError, match=r"reads final_state, which this episode does not have: define `final_state` in"
    ):
        collect(silent, tmp_path, Grading(reward=None, scorer=scorer))


def test_a_failing_scorer_gets_no_hint_about_transitions_if_the_policy_called_no_tool(tmp_path: Path) -> None:
    def scorer(episode: Trajectory) -> float:
        return float(bool(episode.transitions) or episode.task.fields["absent"])

    with pytest.raises(RewardError, match=r"KeyError\('absent'\) on trajectory \S+$"):
        collect(booking_nothing, tmp_path, Grading(reward=None, scorer=scorer))


async def booking_nothing(task: Task, session: SessionLike) -> float:
    await session.chat(task.messages)
    return 1.0
