"""However an episode ends, the ledger shows why it was not learned from, and none stays unfinished."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from sparring.agents import AgentResult, EnvironmentAgent
from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.scripted import ScriptedEngine
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.environments import Environment, PythonTool, answer, graded, opened, tool, tool_call
from sparring.environments.base import reset
from sparring.errors import AgentLost, ClientError, InfrastructureError, RewardError, ServiceError, UsageError
from sparring.ledger import Ledger
from sparring.ledger.states import FINAL_STATES
from sparring.protocols import RewardFunction, Scorer, SessionLike
from sparring.rollouts import Collector, EpisodeAgent, Grading, GroupPlan, MainPolicy, Pacing, RolloutLimits, Scheduler
from sparring.rollouts.plan import Agent
from sparring.runtime.clock import Clock
from sparring.sandbox import Limits, open_sandbox
from sparring.scorers.unit_tests import run_tests
from sparring.sessions import AnySession, Session
from sparring.types import Json, Message, Outcome, Reward, Sampling, Score, Task, Trajectory, TrajectoryGroup
from sparring.workers.pool import Code, WorkerPool
from sparring.workers.remote import grade_in_workers, run_in_workers


def plans(count: int, *, group_size: int) -> Iterator[GroupPlan]:
    for position in range(count):
        task = Task(id=f"t{position}", messages=({"role": "user", "content": "?"},))
        yield GroupPlan(task=task, position=position, group_size=group_size, sampling=Sampling())


class Collecting:
    """A collector whose episodes end in scripted ways, in their order, and its ledger."""

    def __init__(self, *fates: str, timeout_seconds: float = 5.0, max_retries: int = 0) -> None:
        self.fates, self.ledger, self.engine = list(fates), Ledger(), ScriptedEngine([])
        self.collector = Collector(
            agent=EpisodeAgent(self.play),
            policy=MainPolicy(self.engine, TemplateChat(ByteTokenizer())),
            grading=Grading(reward=lambda _: 1.0),
            ledger=self.ledger,
            seed=0,
            limits=RolloutLimits(timeout_seconds=timeout_seconds, max_concurrency=8, max_retries=max_retries),
        )

    async def play(self, task: Task, session: Session) -> AgentResult:
        match self.fates.pop(0):
            case "lost":
                raise InfrastructureError("down")
            case "refused":
                raise ClientError("audio: this field is not known here")
            case "stuck":
                await asyncio.Event().wait()
        return AgentResult(outcome=Outcome.FINISHED, reward=Reward(total=1.0))

    def play_group(self, *, size: int | None = None) -> TrajectoryGroup:
        (plan,) = plans(1, group_size=size or len(self.fates))
        return asyncio.run(self.collector.play_group(plan))

    def ended(self) -> dict[str, int]:
        """Rollouts that are over, by state or reason; all others under `unfinished`."""
        with self.ledger as ledger:
            counts = ledger.counts()
            final = {key: n for key, n in counts.items() if n and key.partition("/")[0] in FINAL_STATES}
            over = sum(counts[state] for state in FINAL_STATES)
            assert ledger.verify() == []
        assert not self.engine.open_sessions
        final.pop("discarded", None)
        return final | {"unfinished": counts["planned_total"] - over}


def test_a_group_goes_on_with_those_who_remain_and_counts_the_lost() -> None:
    collecting = Collecting("good", "lost", "good")
    group = collecting.play_group()
    assert ([trajectory.attempt for trajectory in group.trajectories], group.num_lost) == ([0, 2], 1)
    # Those who remain wait for their training.
    assert collecting.ended() == {"discarded/infra_error": 1, "unfinished": 2}


def test_a_group_of_which_one_remains_teaches_nothing_and_is_lost_as_a_whole() -> None:
    collecting = Collecting("lost", "good", "lost")
    group = collecting.play_group()
    assert (group.trajectories, group.num_lost) == ((), 3)
    assert collecting.ended() == {"discarded/infra_error": 2, "discarded/group_incomplete": 1, "unfinished": 0}


def test_an_episode_whose_client_was_refused_is_lost_at_once_and_counted_apart() -> None:
    collecting = Collecting("good", "refused", "good", "lost", max_retries=1)
    collecting.fates.insert(4, "lost")  # the second attempt of the last one
    group = collecting.play_group(size=4)
    assert (group.num_lost, group.num_client_errors, group.rewards) == (2, 1, [1.0, 1.0])
    assert collecting.ended() == {"discarded/client_error": 1, "discarded/infra_error": 2, "unfinished": 2}


def test_a_run_whose_clients_are_refused_stops_and_names_the_refusals() -> None:
    collecting = Collecting(*["refused"] * 16)

    async def train() -> None:
        scheduler = Scheduler(
            play_group=collecting.collector.play_group,
            plans=plans(8, group_size=2),
            ledger=collecting.ledger,
            pacing=Pacing(groups_per_step=8, max_steps_off_policy=0),
        )
        async with scheduler:
            await scheduler.next_batch()

    with pytest.raises(ServiceError, match="16 because the gateway refused their client's last request"):
        asyncio.run(train())


def test_an_environment_that_is_not_done_in_time_is_lost() -> None:
    # The environment has a second more than the policy.
    collecting = Collecting("stuck", "stuck", timeout_seconds=-0.95)
    assert collecting.play_group().num_lost == 2
    assert collecting.ended() == {"discarded/env_timeout": 2, "unfinished": 0}


def test_what_hangs_after_a_turn_is_the_policys_time_and_not_an_outage() -> None:
    async def agent(task: Task, session: Session) -> AgentResult:
        await session.chat(list(task.messages), ())
        await asyncio.Event().wait()
        raise AssertionError

    with Ledger() as ledger:
        (plan,) = plans(1, group_size=1)
        engine = ScriptedEngine(["wait for ever"], encode=ByteTokenizer().encode)
        playing = collector(agent, ledger, reward=lambda _: -1.0, engine=engine, timeout=0.1)
        (trajectory,) = asyncio.run(playing.play_group(plan)).trajectories
    assert (trajectory.outcome, len(trajectory.turns)) == (Outcome.POLICY_TIMEOUT, 1)
    assert trajectory.reward == Reward(total=-1.0)
    assert "rollout_timeout = 0.1 s" in str(trajectory.error)


class Careless(Environment):
    """Works on the policy's answer without a check of its own."""

    part = ""

    @tool
    def stay(self) -> str:
        """Nothing."""
        return "here"

    def reply(self, messages: Sequence[Message], session: SessionLike) -> str | None:
        return str(int(messages[-1]["content"])) if self.part == "reply" else None

    def final_state(self) -> Json:
        if self.part == "final_state":
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "the policy wrote this file")
        return {}

    @property
    def is_done(self) -> bool:
        return self.part == "is_done" and bool(1 / 0)

    def close(self) -> None:
        if self.part == "close":
            raise PermissionError("the policy locked this folder")


def play_carelessly(part: str, *, retries: int) -> tuple[TrajectoryGroup, dict[str, int]]:
    turn = tool_call("stay") if part == "is_done" else answer("four")

    async def agent(task: Task, session: AnySession) -> AgentResult:
        environment = type("Careless", (Careless,), {"part": part})
        return await EnvironmentAgent(environment, max_turns=3).play(task, session)

    with Ledger() as ledger:
        (plan,) = plans(1, group_size=1)
        playing = Collector(
            agent=EpisodeAgent(agent),
            policy=MainPolicy(ScriptedMessages([turn, answer("four")], name="policy")),
            grading=Grading(reward=lambda _: -1.0),
            ledger=ledger,
            seed=0,
            limits=RolloutLimits(timeout_seconds=5.0, max_concurrency=8, max_retries=retries),
            clock=Clock(sleep=lambda _: asyncio.sleep(0)),
        )
        return asyncio.run(playing.play_group(plan)), {key: n for key, n in ledger.counts().items() if n}


@pytest.mark.parametrize("part", ["reply", "final_state", "is_done"])
def test_code_of_an_environment_that_fails_on_the_policys_output_each_time_is_the_policys_failure(part: str) -> None:
    group, counts = play_carelessly(part, retries=2)
    (trajectory,) = group.trajectories
    assert (trajectory.outcome, group.rewards, group.num_lost, group.num_broken) == (Outcome.POLICY_ERROR, [-1.0], 0, 1)
    assert f"Careless.{part} failed" in str(trajectory.error)
    assert counts["discarded/infra_error"] == 2
    # A single attempt cannot tell the policy from an outage.
    assert play_carelessly(part, retries=0)[0].num_lost == 1


def test_a_close_that_fails_does_not_take_the_episode_away() -> None:
    group, counts = play_carelessly("close", retries=2)
    (trajectory,) = group.trajectories
    assert (trajectory.outcome, group.rewards, group.num_broken) == (Outcome.FINISHED, [-1.0], 0)
    assert "Careless.close failed: PermissionError" in str(trajectory.error)
    assert "discarded/infra_error" not in counts


@pytest.mark.parametrize(("turns", "num_vanished"), [(1, 3), (1, 2), (0, 3)])
def test_an_agent_whose_worker_vanishes_after_a_turn_each_time_is_the_policys_failure(
    turns: int, num_vanished: int
) -> None:
    attempts: list[str] = []

    async def agent(task: Task, session: Session) -> AgentResult:
        attempts.append(session.id)
        for _ in range(turns):
            await session.chat(list(task.messages), ())
        if len(attempts) <= num_vanished:
            raise AgentLost("The worker that took the episode did not renew its lease.")
        return AgentResult(outcome=Outcome.FINISHED)

    with Ledger() as ledger:
        (plan,) = plans(1, group_size=1)
        engine = ScriptedEngine(["a"] * 3, encode=ByteTokenizer().encode)
        group = asyncio.run(collector(agent, ledger, engine=engine, retries=2).play_group(plan))
    assert len(attempts) == 3
    if turns and num_vanished == 3:
        assert [one.outcome for one in group.trajectories] == [Outcome.POLICY_ERROR]
    else:
        assert [one.outcome for one in group.trajectories] == [Outcome.FINISHED] * (num_vanished == 2)


def test_an_environment_that_fails_in_every_episode_stops_the_run() -> None:
    broken = TrajectoryGroup(
        task=Task(id="t", messages=()), trajectories=play_carelessly("reply", retries=1)[0].trajectories, num_broken=1
    )

    async def play_group(plan: GroupPlan) -> TrajectoryGroup:
        return broken

    async def train() -> None:
        with Ledger() as ledger:
            scheduler = Scheduler(
                play_group=play_group,
                plans=plans(8, group_size=1),
                ledger=ledger,
                pacing=Pacing(groups_per_step=8, max_steps_off_policy=0),
            )
            async with scheduler:
                await scheduler.next_batch()

    with pytest.raises(ServiceError, match="8 failed because the environment's code or the agent's worker ended"):
        asyncio.run(train())


def test_what_hangs_after_an_outage_is_an_outage() -> None:
    async def agent(task: Task, session: Session) -> AgentResult:
        await session.chat(list(task.messages), ())
        with suppress(InfrastructureError):
            await session.chat([*task.messages, {"role": "user", "content": "again"}], ())
        await asyncio.Event().wait()
        raise AssertionError

    with Ledger() as ledger:
        (plan,) = plans(1, group_size=1)
        engine = ScriptedEngine(["well", InfrastructureError("the engine is down")], encode=ByteTokenizer().encode)
        group = asyncio.run(collector(agent, ledger, engine=engine, timeout=0.1).play_group(plan))
        assert (group.trajectories, group.num_lost) == ((), 1)


class Well(Environment):
    """Its tool never returns, and its state is asked for all the same."""

    @tool
    async def wish(self) -> str:
        """Wish."""
        await asyncio.Event().wait()
        return "granted"

    def final_state(self) -> Json:
        return {"water": 3}


def test_a_tool_that_hangs_ends_the_episode_with_the_state_of_its_environment() -> None:
    call = '<tool_call>{"name": "wish", "arguments": {}}</tool_call>' * 2
    with Ledger() as ledger:
        (plan,) = plans(1, group_size=1)
        engine = ScriptedEngine(lambda _: call, encode=ByteTokenizer().encode)
        playing = collector(EnvironmentAgent(Well, max_turns=9).play, ledger, engine=engine, timeout=0.2)
        (trajectory,) = asyncio.run(playing.play_group(plan)).trajectories
    assert (trajectory.outcome, trajectory.final_state) == (Outcome.POLICY_TIMEOUT, {"water": 3})
    assert [message["content"] for message in trajectory.messages if message["role"] == "tool"] == [
        "error: stopped, since the time of the episode is over",
        "error: not run, since the time of the episode is over",
    ]


class Mine(Environment):
    """Its tool takes 0.2 s, as a program of the policy may in a sandbox."""

    num_calls = 0

    @tool
    async def dig(self) -> str:
        """Dig."""
        type(self).num_calls += 1
        await asyncio.sleep(0.2)
        return "earth"


def test_a_call_that_returns_within_the_overtime_shows_that_nothing_hangs() -> None:
    # 3.3 s: 1.3 s after the end of the 2 s that the episode has, and before as many again are over.
    async def agent(task: Task, session: Session) -> AgentResult:
        answer = await session.chat(list(task.messages), ())
        await asyncio.sleep(3.3)
        await session.chat([*task.messages, answer, {"role": "user", "content": "and now?"}], ())
        raise AssertionError("a turn was taken after the end of the episode's time")

    with Ledger() as ledger:
        (plan,) = plans(1, group_size=1)
        engine = ScriptedEngine(["in time", "too late"], encode=ByteTokenizer().encode)
        played = asyncio.run(collector(agent, ledger, engine=engine, timeout=2.0).play_episode(plan, 0))
    assert isinstance(played, Trajectory)
    assert (played.outcome, len(played.turns)) == (Outcome.POLICY_TIMEOUT, 1)


def test_a_policy_that_spends_the_time_in_its_tools_is_late_and_not_lost() -> None:
    # Ten calls a message: the third one runs when the 0.5 s are over, and the fourth is not started.
    calls = '<tool_call>{"name": "dig", "arguments": {}}</tool_call>' * 10
    engine, Mine.num_calls = ScriptedEngine(lambda _: calls, encode=ByteTokenizer().encode), 0
    with Ledger() as ledger:
        playing = collector(
            EnvironmentAgent(Mine, max_turns=9).play, ledger, reward=lambda _: -1.0, engine=engine, timeout=0.5
        )
        (plan,) = plans(1, group_size=1)
        group = asyncio.run(playing.play_group(plan))
    (trajectory,) = group.trajectories
    assert (group.num_lost, group.rewards, trajectory.outcome) == (0, [-1.0], Outcome.POLICY_TIMEOUT)
    assert Mine.num_calls == 3
    answers = [message["content"] for message in trajectory.messages if message["role"] == "tool"]
    assert answers[:3] == ["earth"] * 3
    assert answers[3:] == ["error: not run, since the time of the episode is over"] * 7


class Desk(PythonTool):
    limits = Limits(seconds=30)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_programs_that_do_not_end_lose_no_episode_though_they_may_run_longer_than_it(num_workers: int) -> None:
    # 2 s of the episode, its reward and its scorer each, and 2 s more at most; the programs may take 30 s.
    try:
        open_sandbox()
    except UsageError as error:
        pytest.skip(f"no sandbox works on this machine: {error}")
    call = '<tool_call>{"name": "run_python", "arguments": {"code": "while True: pass"}}</tool_call>'
    engine = ScriptedEngine(lambda _: call, encode=ByteTokenizer().encode)
    names = {"target": "Desk", "reward": "endless_reward", "scorer": "endless_scorer"}
    code = {key: f"{__name__}:{name}" for key, name in names.items()}
    pool = WorkerPool(1, Code(**code, options={}, folder=str(Path(__file__).parent)), silence_seconds=30)
    desk, reward, scorer = Desk, endless_reward, endless_scorer
    if num_workers:
        desk, reward, scorer = (
            run_in_workers(Desk, pool),
            grade_in_workers(pool, "reward", reward),
            grade_in_workers(pool, "scorer", scorer),
        )
    (plan,) = plans(1, group_size=1)

    async def play(ledger: Ledger) -> Trajectory | Outcome:
        agent = EnvironmentAgent(desk, max_turns=9).play
        playing = collector(agent, ledger, reward=reward, scorer=scorer, engine=engine, timeout=2.0)
        try:
            async with opened(desk(), plan.task) as environment:
                await reset(environment, plan.task)  # a worker takes a while to start
            return await playing.play_episode(plan, 0)
        finally:
            await pool.aclose()

    with Ledger() as ledger:
        played = asyncio.run(play(ledger))
    assert isinstance(played, Trajectory)
    assert (played.outcome, played.score) == (Outcome.POLICY_TIMEOUT, 0.0)
    assert played.reward == Reward(total=0.0)
    assert played.transitions[0]["result"] == "stopped: it took too long"


async def endless_reward(trajectory: Trajectory) -> float:
    """The program uses up the time before the grader and the tests begin."""
    sandbox = open_sandbox(limits=Limits(seconds=30))
    async with sandbox.session() as box:
        await box.run(["sleep", "30"])
    verdict = await graded(sandbox, "verdict(True)", {})
    return float(verdict.value is True) + await endless_scorer(trajectory)


async def endless_scorer(_: Trajectory) -> float:
    tests = "import solution\ndef test_one(): assert solution.one() == 1\ndef test_again(): assert solution.one() == 1"
    sleeping = "import time\ndef one(): time.sleep(30)"
    report = await run_tests(open_sandbox(limits=Limits(seconds=30)), sleeping, tests, call_seconds=20)
    return report.share


@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("first", ["stuck", "good"])
def test_what_was_being_played_when_the_run_stopped_is_accounted_for(first: str, group_size: int) -> None:
    collecting = Collecting(first, *["stuck"] * 3)

    async def stop_while_playing() -> None:
        scheduler = Scheduler(
            play_group=collecting.collector.play_group,
            plans=plans(4 // group_size, group_size=group_size),
            ledger=collecting.ledger,
            pacing=Pacing(groups_per_step=4 // group_size, max_steps_off_policy=0),
        )
        async with scheduler:
            scheduler.start_ahead()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not collecting.fates

    asyncio.run(stop_while_playing())
    assert collecting.ended() == {"discarded/operator_cancel": 4, "unfinished": 0}


def collector(
    agent: Agent,
    ledger: Ledger,
    *,
    reward: RewardFunction = lambda _: 1.0,
    scorer: Scorer | None = None,
    timeout: float = 5.0,
    engine: ScriptedEngine | None = None,
    retries: int = 0,
) -> Collector:
    return Collector(
        agent=EpisodeAgent(agent),
        grading=Grading(reward=reward, scorer=scorer),
        ledger=ledger,
        seed=0,
        policy=MainPolicy(
            engine or ScriptedEngine([InfrastructureError("the engine is down")]), TemplateChat(ByteTokenizer())
        ),
        limits=RolloutLimits(timeout_seconds=timeout, max_concurrency=8, max_retries=retries),
        clock=Clock(sleep=lambda _: asyncio.sleep(0)),
    )


def test_an_agent_that_goes_on_after_the_engine_failed_is_not_rewarded() -> None:
    async def agent(task: Task, session: Session) -> AgentResult:
        with suppress(InfrastructureError):
            await session.chat(list(task.messages), ())
        return AgentResult(outcome=Outcome.FINISHED)

    with Ledger() as ledger:
        (plan,) = plans(1, group_size=1)
        assert asyncio.run(collector(agent, ledger).play_episode(plan, 0)) is Outcome.INFRASTRUCTURE_ERROR
        assert ledger.counts()["discarded/infra_error"] == 1


@pytest.mark.parametrize("num_hangs", [1, 2])
def test_a_reward_that_does_not_return_is_called_again_and_then_is_an_error_like_one_that_raises(
    num_hangs: int,
) -> None:
    called: list[str] = []

    async def agent(task: Task, session: Session) -> AgentResult:
        return AgentResult(outcome=Outcome.FINISHED)

    async def reward(trajectory: Trajectory) -> float:
        called.append(trajectory.id)
        if len(called) <= num_hangs:
            await asyncio.Event().wait()
        return 1.0

    with Ledger() as ledger:
        (plan,) = plans(1, group_size=1)
        # `timeout` has a second more.
        playing = collector(agent, ledger, reward=reward, timeout=-0.95, retries=3).play_episode(plan, 0)
        if num_hangs == 1:
            played = asyncio.run(playing)
            assert isinstance(played, Trajectory)
            assert played.reward == Reward(total=1.0)
        else:
            with pytest.raises(RewardError, match=r"'reward' failed twice on trajectory .*: no result within"):
                asyncio.run(playing)
            assert ledger.counts()["discarded/reward_error"] == 1
    assert len(called) == 2
    assert len(set(called)) == 1, "the episode is not run again"


@pytest.mark.parametrize(("outages", "num_played"), [(2, 1), (3, 2)])
def test_an_episode_is_graded_again_after_an_outage_and_run_again_only_when_that_goes_on(
    outages: int, num_played: int
) -> None:
    played, failures = [], iter(["the judge is down"] * outages)

    async def agent(task: Task, session: Session) -> AgentResult:
        played.append(task.id)
        return AgentResult(outcome=Outcome.FINISHED)

    def reward(_: Trajectory) -> float:
        if failure := next(failures, None):
            raise InfrastructureError(failure)
        return 1.0

    with Ledger() as ledger:
        (plan,) = plans(1, group_size=1)
        found = asyncio.run(collector(agent, ledger, reward=reward, retries=3).play_episode(plan, 0))
    assert isinstance(found, Trajectory)
    assert len(played) == num_played


def test_a_score_and_its_parts_are_on_the_trajectory_and_in_the_ledger() -> None:
    async def agent(task: Task, session: Session) -> AgentResult:
        return AgentResult(outcome=Outcome.FINISHED)

    def scorer(_: Trajectory) -> Score:
        return Score(0.5, {"format": 1.0})

    with Ledger() as ledger:
        (plan,) = plans(1, group_size=1)
        played = asyncio.run(collector(agent, ledger, scorer=scorer).play_episode(plan, 0))
        assert isinstance(played, Trajectory)
        assert (played.score, played.score_parts) == (0.5, {"format": 1.0})
        (rollout,) = ledger.rollouts()
        assert rollout.result is not None
        assert (rollout.result["score"], rollout.result["score_parts"]) == (0.5, {"format": 1.0})


def test_what_an_episode_does_to_its_task_reaches_neither_its_judge_nor_the_next_episode() -> None:
    seen: list[object] = []

    async def agent(task: Task, session: Session) -> AgentResult:
        seen.append(dict(task.fields["shelves"]))
        task.fields["shelves"].clear()
        return AgentResult(outcome=Outcome.FINISHED)

    task = Task(id="t", messages=({"role": "user", "content": "?"},), fields={"shelves": {"Emma": "B3"}})
    plan = GroupPlan(task=task, position=0, group_size=2, sampling=Sampling())
    with Ledger() as ledger:
        reward = lambda trajectory: float(len(trajectory.task.fields["shelves"]))  # noqa: E731
        group = asyncio.run(collector(agent, ledger, reward=reward).play_group(plan))
    assert seen == [{"Emma": "B3"}] * 2
    assert [trajectory.reward.total for trajectory in group.trajectories if trajectory.reward] == [1.0, 1.0]


@pytest.mark.parametrize("is_outage", [False, True])
def test_half_a_character_ends_no_run_and_no_ledger(is_outage: bool) -> None:
    """A policy can have one made: `json.loads` of a text that it wrote returns one."""

    async def agent(task: Task, session: AnySession) -> AgentResult:
        answer = await session.chat([*task.messages, {"role": "user", "content": "half a \ud83d"}])
        if is_outage:
            raise InfrastructureError("refused: half a \ud83d")
        return AgentResult(outcome=Outcome.FINISHED, messages=(*task.messages, answer))

    with Ledger() as ledger:
        (plan,) = plans(1, group_size=1)
        engine = ScriptedEngine(["over"], encode=ByteTokenizer().encode)
        played = asyncio.run(collector(agent, ledger, engine=engine).play_episode(plan, 0))
        assert isinstance(played, Trajectory) is not is_outage
        (rollout,) = ledger.rollouts()
        assert rollout.detail == ("refused: half a ?" if is_outage else None)
        assert ledger.verify() == []
