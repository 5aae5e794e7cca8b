"""Several policies in one episode: each has a conversation of its own, and only what is in training is learned from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse

from sparring.agents import AgentResult, FunctionAgent
from sparring.algorithms.advantages import group_based
from sparring.algorithms.credit import credit
from sparring.chat import ByteTokenizer, TemplateChat
from sparring.engines.openai import OpenAIEngine
from sparring.engines.scripted import ScriptedEngine
from sparring.engines.scripted_messages import ScriptedMessages
from sparring.errors import InfrastructureError, PolicyTimeout, ServiceError, UsageError
from sparring.ledger import Ledger
from sparring.rollouts import Collector, EpisodeAgent, Grading, GroupPlan, MainPolicy, NamedPolicy, RolloutLimits
from sparring.rollouts.metrics import rollout_metrics
from sparring.rollouts.plan import Agent
from sparring.run_folders.stored import read_trajectories
from sparring.sessions import Session
from sparring.tracking.local import LocalTracker
from sparring.training.sequences import build_batch
from sparring.types import (
    EngineCapabilities,
    Message,
    MessageAnswer,
    MessageRequest,
    Outcome,
    Reward,
    Sampling,
    StopReason,
    Task,
    Trajectory,
    TrajectoryGroup,
    Usage,
)
from tests.engines.test_openai import Endpoint

TOKENIZER = ByteTokenizer()
CHAT = TemplateChat(TOKENIZER)
TASK = Task(id="t", messages=({"role": "user", "content": "hello"},))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def engine(*answers: Any) -> ScriptedEngine:
    return ScriptedEngine(list(answers), encode=TOKENIZER.encode)


def play_group(
    agent: Agent, main: ScriptedEngine, ledger: Ledger, *, size: int = 1, **policies: NamedPolicy
) -> TrajectoryGroup:
    collector = Collector(
        agent=EpisodeAgent(agent),
        policy=MainPolicy(main, CHAT),
        grading=Grading(reward=lambda _: 1.0),
        ledger=ledger,
        seed=0,
        limits=RolloutLimits(timeout_seconds=60.0, max_concurrency=8, max_turns=2),
        policies=policies,
    )
    plan = GroupPlan(task=TASK, position=0, group_size=size, sampling=Sampling(max_tokens=64))
    return asyncio.run(collector.play_group(plan))


def simulator(script: ScriptedEngine) -> NamedPolicy:
    return NamedPolicy(engine=script, chat=CHAT, learns=False, sampling=Sampling(temperature=0.7, max_tokens=32))


async def talk(task: Task, session: Session) -> AgentResult:
    """The agent and the customer, two turns each."""
    mine: list[Message] = list(task.messages)
    theirs: list[Message] = []
    for _ in range(2):
        reply = await session.chat(mine)
        theirs.append(user(reply["content"]))
        heard = await session.of("customer").chat(theirs)
        mine += [reply, user(heard["content"])]
        theirs.append(heard)
    return AgentResult(outcome=Outcome.FINISHED, messages=tuple(mine), reward=None)


def talked(ledger: Ledger, *, learns: bool = False) -> Trajectory:
    customer = replace(simulator(engine("tea", "green")), learns=learns)
    group = play_group(talk, engine("what?", "which?"), ledger, customer=customer)
    return group.trajectories[0]


def trained_tokens(*trajectories: Trajectory, advantage: float = 1.0) -> list[int]:
    group = TrajectoryGroup(task=TASK, trajectories=trajectories)
    advantages = {one.id: (advantage,) * len(one.turns) for one in trajectories}
    batch = build_batch([group], advantages)
    return sorted(
        token
        for segment in batch.segments
        for token, masked in zip(segment.token_ids, segment.mask, strict=True)
        if masked
    )


def test_each_policy_has_a_conversation_of_its_own_and_turn_ids_are_the_episodes() -> None:
    with Ledger() as ledger:
        played = talked(ledger)
        stored = ledger.load_turns(played.id)
        assert ledger.verify() == []
    assert [(turn.id, turn.parent, turn.policy) for turn in played.turns] == [(0, None, None), (2, 0, None)]
    assert [(turn.id, turn.parent, turn.policy) for turn in played.other_turns] == [
        (1, None, "customer"),
        (3, 1, "customer"),
    ]
    assert [turn.branch_reason for turn in (*played.turns, *played.other_turns)] == [None] * 4
    assert [turn.sampling.temperature for turn in played.other_turns] == [0.7, 0.7]
    assert [(turn.id, turn.policy, turn.learns) for turn in stored] == [
        (0, None, True),
        (1, "customer", False),
        (2, None, True),
        (3, "customer", False),
    ]


def test_a_simulators_tokens_are_in_no_loss() -> None:
    with Ledger() as ledger:
        played = talked(ledger)
    own = sorted(token for turn in played.turns for token in turn.token_ids)
    assert trained_tokens(played) == own
    # Not even where its turns are mistaken for the agent's.
    mixed = replace(played, turns=tuple(sorted((*played.turns, *played.other_turns), key=lambda turn: turn.id)))
    assert trained_tokens(mixed) == own
    assert mixed.num_trained_tokens == played.num_trained_tokens == len(own)


def test_a_second_trained_policy_is_learned_from_in_a_sequence_of_its_own() -> None:
    with Ledger() as ledger:
        played = talked(ledger, learns=True)
    assert [(turn.id, turn.policy) for turn in played.turns] == [(0, None), (1, "customer"), (2, None), (3, "customer")]
    assert played.other_turns == ()
    assert trained_tokens(played) == sorted(token for turn in played.turns for token in turn.token_ids)
    group = TrajectoryGroup(task=TASK, trajectories=(played,))
    assert len(build_batch([group], {played.id: (1.0,) * 4}).sequences) == 2


def test_a_judge_whose_content_filter_refuses_one_conversation_costs_that_episode_and_not_the_run() -> None:
    async def grade(task: Task, session: Session) -> AgentResult:
        reply = await session.chat(task.messages)
        verdict = await session.of("judge").chat([user(reply["content"])])
        reward = Reward(total=float(verdict["content"]))
        return AgentResult(outcome=Outcome.FINISHED, reward=reward)

    async def run() -> TrajectoryGroup:
        fair = {"choices": [{"message": {"role": "assistant", "content": "0.5"}, "finish_reason": "stop"}]}
        filtered = JSONResponse({"error": {"message": "The prompt was filtered", "code": "content_filter"}}, 400)
        endpoint = Endpoint(JSONResponse(fair), filtered, JSONResponse(fair))
        await endpoint.listener.start()
        judge = OpenAIEngine(endpoint.listener.base_url, "judge")
        collector = Collector(
            agent=EpisodeAgent(grade),
            policy=MainPolicy(engine("a", "b", "c"), CHAT),
            grading=Grading(),
            ledger=ledger,
            seed=0,
            limits=RolloutLimits(timeout_seconds=60.0, max_concurrency=8),
            policies={"judge": NamedPolicy(engine=judge, chat=None, learns=False, sampling=Sampling())},
        )
        try:
            return await collector.play_group(
                GroupPlan(task=TASK, position=0, group_size=3, sampling=Sampling(max_tokens=8))
            )
        finally:
            await judge.close()
            await endpoint.listener.stop()

    with Ledger() as ledger:
        group = asyncio.run(run())
        discarded = [rollout for rollout in ledger.rollouts() if rollout.reason is not None]
    assert (group.num_lost, group.rewards) == (1, [0.5, 0.5])
    assert [rollout.reason for rollout in discarded] == ["infra_error"]
    assert "content filter" in str(discarded[0].detail)


def test_rewards_and_credit_are_for_the_turns_that_learn() -> None:
    async def play(task: Task, session: Any) -> list[float]:
        await talk(task, session)
        return [0.25, 0.75]

    with Ledger() as ledger:
        group = play_group(
            FunctionAgent(play).play, engine("what?", "which?"), ledger, customer=simulator(engine("tea", "green"))
        )
    (played,) = group.trajectories
    assert played.reward == Reward(total=1.0, per_turn={0: 0.25, 2: 0.75})
    named = credit([group], lambda groups: group_based(groups, advantage_normalization=False), sums_turn_rewards=True)
    assert [len(turns) for turns in named.values()] == [2]


def untimed(metrics: Mapping[str, float]) -> dict[str, float]:
    """Every policy takes time."""
    return {name: value for name, value in metrics.items() if not name.startswith("timing_s/")}


def test_a_simulator_has_metrics_of_its_own_and_is_in_no_other() -> None:
    with Ledger() as ledger:
        played = talked(ledger)
    group = TrajectoryGroup(task=TASK, trajectories=(played,))
    with_it = untimed(rollout_metrics([group], {played.id: (1.0, 1.0)}, version=0))
    alone = replace(group, trajectories=(replace(played, other_turns=()),))
    without = untimed(rollout_metrics([alone], {played.id: (1.0, 1.0)}, version=0))
    own = {name for name in with_it if name.startswith("rollout/policies/customer/")}
    assert {name: value for name, value in with_it.items() if name not in own} == without
    assert with_it["rollout/policies/customer/turns"] == 2
    assert with_it["rollout/policies/customer/response_mean"] == 5.0  # "tea", "green", and a stop id each
    assert with_it["rollout/branches"] == 1


def test_the_limit_of_turns_counts_the_agents_and_not_the_simulators() -> None:
    async def play(task: Task, session: Session) -> AgentResult:
        for number in range(5):
            await session.of("customer").chat([user(f"{number}?")])
        for number in range(3):
            await session.chat([user(f"{number}?")])
        raise AssertionError("a third turn of the agent was played")

    async def agent(task: Task, session: Any) -> float:
        await play(task, session)
        return 1.0

    with Ledger() as ledger:
        group = play_group(FunctionAgent(agent).play, engine(*"abc"), ledger, customer=simulator(engine(*"vwxyz")))
    (played,) = group.trajectories
    assert played.outcome is Outcome.MAX_TURNS
    assert (len(played.turns), len(played.other_turns)) == (2, 5)


@pytest.mark.parametrize("failure", [PolicyTimeout("late"), InfrastructureError("down")])
@pytest.mark.parametrize("is_swallowed", [False, True])
def test_a_simulator_that_fails_is_an_outage_and_never_a_number(failure: Exception, is_swallowed: bool) -> None:
    async def play(task: Task, session: Session) -> AgentResult:
        try:
            return await talk(task, session)
        except InfrastructureError:
            if not is_swallowed:
                raise
        return AgentResult(outcome=Outcome.FINISHED, reward=Reward(total=1.0))

    with Ledger() as ledger:
        group = play_group(play, engine("what?"), ledger, customer=simulator(engine(failure)))
        counts = ledger.counts()
    assert (group.trajectories, group.num_lost) == ((), 1)
    assert counts["discarded/infra_error"] == 1


def test_a_name_that_the_recipe_does_not_have_ends_the_run() -> None:
    async def play(task: Task, session: Any) -> float:
        await session.of("custmer").chat([user("hello")])
        return 1.0

    with Ledger() as ledger, pytest.raises(UsageError, match=r"no such policy; its policies are 'customer'"):
        play_group(FunctionAgent(play).play, engine(), ledger, customer=simulator(engine()))


def test_no_policy_is_asked_after_its_episode() -> None:
    kept: list[Session] = []

    async def play(task: Task, session: Session) -> AgentResult:
        kept.append(session.of("customer"))
        return await talk(task, session)

    script = engine("tea", "green", "more")
    with Ledger() as ledger:
        play_group(play, engine("what?", "which?"), ledger, customer=simulator(script))
        with pytest.raises(InfrastructureError, match=r"\(customer\) is closed"):
            asyncio.run(kept[0].chat([user("and now?")]))
    assert not script.open_sessions


def test_what_the_others_do_does_not_change_a_policys_draws() -> None:
    async def alone(task: Task, session: Session) -> AgentResult:
        await session.chat([user("what?")])
        return AgentResult(outcome=Outcome.FINISHED)

    async def after_another(task: Task, session: Session) -> AgentResult:
        await session.of("customer").chat([user("hello")])
        return await alone(task, session)

    seeds = []
    for agent in (alone, after_another):
        main = engine("a")
        with Ledger() as ledger:
            play_group(agent, main, ledger, customer=simulator(engine("b")))
        seeds.append(main.requests[0].seed)
    assert seeds[0] == seeds[1]


def test_an_endpoint_takes_part_together_with_the_policy_in_training() -> None:
    """It returns no ids: its turns stand next to those that are learned from, whose ids and places they do not disturb."""
    main = engine("which?", "thanks")
    customer = NamedPolicy(
        engine=ScriptedMessages(["blue", "bye"], name="customer"), sampling=Sampling(temperature=0.7)
    )
    with Ledger() as ledger:
        group = play_group(talk, main, ledger, customer=customer)
        (trajectory,) = group.trajectories
        assert [turn.id for turn in trajectory.turns] == [0, 2]
        assert [turn.id for turn in trajectory.other_turns] == [1, 3]
        assert {turn.untrained_reason for turn in trajectory.other_turns} == {"not_learning"}
        assert all(turn.is_trained for turn in trajectory.turns)
        assert [turn.message["content"] for turn in trajectory.other_turns] == ["blue", "bye"]
        assert [turn.policy for turn in ledger.load_turns(trajectory.id)] == [None, "customer", None, "customer"]
        assert ledger.verify() == []


class Late:
    fingerprint = "late"
    capabilities = EngineCapabilities()

    async def answer(self, request: Any, on_delta: Any = None) -> Any:
        raise PolicyTimeout("no answer in time.")

    async def close(self) -> None: ...


def test_a_late_endpoint_next_to_the_policy_is_an_outage() -> None:
    with Ledger() as ledger:
        group = play_group(talk, engine("which?", "thanks"), ledger, customer=NamedPolicy(engine=Late()))
        assert (len(group.trajectories), group.num_lost) == (0, 1)
        assert ledger.counts()["discarded/infra_error"] == 1


def test_trajectories_read_back_say_who_played_and_what_is_trained(tmp_path: Path) -> None:
    for learns in (False, True):
        with Ledger() as ledger:
            played = talked(ledger, learns=learns)
        first, *others = played.turns
        played = replace(played, turns=(replace(first, removed_mass=0.5), *others))
        tracker = LocalTracker(tmp_path)
        tracker.log_groups(1, [TrajectoryGroup(task=TASK, trajectories=(played,))], split="train")
        tracker.close()
        (read,) = read_trajectories(tmp_path / "trajectories" / "train-1.jsonl")
        for turns, stored in ((played.turns, read.turns), (played.other_turns, read.other_turns)):
            summaries = [[(turn.id, turn.policy, turn.untrained_reason) for turn in some] for some in (turns, stored)]
            assert summaries[0] == summaries[1]
        assert read.num_trained_tokens == played.num_trained_tokens


def test_what_a_reward_does_to_messages_does_not_reach_the_next_episode() -> None:
    question: Message = {"role": "user", "content": "hello"}

    async def agent(task: Task, session: Session) -> AgentResult:
        await session.chat([question])
        return AgentResult(outcome=Outcome.FINISHED)

    def reward(trajectory: Trajectory) -> float:
        trajectory.messages[0].update(content="spoilt")
        return 1.0

    with Ledger() as ledger:
        collector = Collector(
            agent=EpisodeAgent(agent),
            policy=MainPolicy(engine("ok"), CHAT),
            grading=Grading(reward=reward),
            ledger=ledger,
            seed=0,
            limits=RolloutLimits(timeout_seconds=60.0, max_concurrency=1),
        )
        plan = GroupPlan(task=TASK, position=0, group_size=1, sampling=Sampling(max_tokens=64))
        asyncio.run(collector.play_group(plan))
    assert question == {"role": "user", "content": "hello"}


def test_an_endpoints_tokens_are_counted_as_it_counts_them() -> None:
    class Endpoint:
        fingerprint = "openai:judge"
        capabilities = EngineCapabilities()

        async def answer(self, request: MessageRequest, on_delta: object = None) -> MessageAnswer:
            usage = Usage(num_prompt_tokens=10, num_sampled_tokens=7)
            return MessageAnswer(
                message={"role": "assistant", "content": "tea"}, stop_reason=StopReason.STOP, usage=usage
            )

        async def close(self) -> None: ...

    with Ledger() as ledger:
        group = play_group(talk, engine("what?", "which?"), ledger, customer=NamedPolicy(engine=Endpoint()))
    metrics = rollout_metrics([group], {one.id: (0.0,) * len(one.turns) for one in group.trajectories}, version=0)
    assert metrics["rollout/policies/customer/response_mean"] == 7.0


def test_an_engine_of_the_user_that_lacks_something_is_refused_with_what_it_lacks() -> None:
    class Endpoint:
        fingerprint = "mine:judge"

        async def answer(self, request: MessageRequest, on_delta: object = None) -> MessageAnswer:
            raise AssertionError

        async def close(self) -> None: ...

    mine: Any = Endpoint()
    for policy in (MainPolicy, NamedPolicy):
        with pytest.raises(UsageError, match="Endpoint answers in messages, but it has no capabilities; add"):
            policy(engine=mine)
    with pytest.raises(UsageError, match="samples tokens, so its policy needs a chat"):
        MainPolicy(engine("what?"))


def test_an_endpoint_that_refuses_every_request_ends_the_run_also_where_the_agent_only_reports_a_failure() -> None:
    class Endpoint:
        fingerprint = "openai:judge"
        capabilities = EngineCapabilities()

        async def answer(self, request: MessageRequest, on_delta: object = None) -> MessageAnswer:
            raise ServiceError("status 401: wrong key")

        async def close(self) -> None: ...

    async def agent(task: Task, session: Session) -> AgentResult:
        try:
            return await talk(task, session)
        except ServiceError as error:  # as agents behind a URL do, which hear of it over HTTP
            raise InfrastructureError("the agent answered 500") from error

    with Ledger() as ledger, pytest.raises(ServiceError, match="wrong key"):
        play_group(agent, engine("what?"), ledger, customer=NamedPolicy(engine=Endpoint()))


def test_a_plan_that_names_another_main_policy_is_rolled_out_with_it_and_introduces_its_task() -> None:
    introduced: list[tuple[str, str]] = []

    async def introduce(task: Task, session_id: str) -> None:
        introduced.append((task.id, session_id))

    async def agent(task: Task, session: Session) -> AgentResult:
        await session.chat(list(task.messages))
        return AgentResult(outcome=Outcome.FINISHED)

    async def run(collector: Collector, plan: GroupPlan) -> list[str]:
        groups = [await collector.play_group(one) for one in (plan, replace(plan, split="held_out", policy=other))]
        return [group.trajectories[0].messages[-1]["content"] for group in groups]

    other = MainPolicy(engine("theirs"), CHAT, introduce=introduce)
    plan = GroupPlan(task=TASK, position=0, group_size=1, sampling=Sampling(max_tokens=64))
    with Ledger() as ledger:
        collector = Collector(
            agent=EpisodeAgent(agent),
            policy=MainPolicy(engine("ours"), CHAT),
            grading=Grading(reward=lambda _: 1.0),
            ledger=ledger,
            seed=0,
            limits=RolloutLimits(timeout_seconds=60.0, max_concurrency=1),
        )
        assert asyncio.run(run(collector, plan)) == ["ours", "theirs"]
    assert introduced == [(TASK.id, f"held_out/0/{TASK.id}/0.0")]
