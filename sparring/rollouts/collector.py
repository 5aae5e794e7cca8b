"""Play one episode, play a group: sessions, retries, reward and score, each rollout accounted for in the ledger."""

from __future__ import annotations

import asyncio
import copy
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar, final

from sparring.agents import AgentResult
from sparring.agents.result import ended_elsewhere, limit_met, overtime, within_budget
from sparring.errors import (
    AgentTimeout,
    ClientError,
    EpisodeError,
    InfrastructureError,
    PolicyTimeout,
    RewardError,
    WorkerLost,
)
from sparring.ledger import DiscardReason, Ledger, RolloutState
from sparring.logs import get_logger
from sparring.protocols import Chat, Engine, MessageEngine, RewardFunction, Scorer
from sparring.rewards.rules import evaluate_reward
from sparring.rollouts.losses import Losses
from sparring.rollouts.tally import Tally
from sparring.sandbox.limits import programs_end
from sparring.scorers.score import evaluate_score
from sparring.sessions import AnySession, MessageSession, Session, episode_seed, policy_seed
from sparring.sessions.refusals import Refusals
from sparring.types import Message, Outcome, Reward, Sampling, Task, Trajectory, TrajectoryGroup
from sparring.workers import in_worker_of_its_own

logger = get_logger(__name__)

Judging = TypeVar("Judging")
Judged = TypeVar("Judged")
_JUDGED_AGAIN = 2
_JUDGING_PAUSE_SECONDS = 0.5

Agent: TypeAlias = Callable[[Task, AnySession], Awaitable[AgentResult]]
"""Plays a task through a session; raises InfrastructureError when the world fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """A group that is to be played: its place in the data order and how it is sampled."""

    task: Task
    position: int
    """Place in the order of all groups of its split; with the member number it seeds the episode."""
    group_size: int
    sampling: Sampling
    split: str = "train"
    label: str = ""
    """Tells plans of the same task apart, e.g. the step of a validation."""
    done: Mapping[int, Trajectory] = field(default_factory=dict)
    """Members that were played before, by number: they stay as they are."""
    keep: Callable[[Trajectory], None] | None = None
    """Called with each episode that is judged, before the ledger says that it is over: what it writes down is not played
    again after a crash."""

    def rollout_id(self, member: int, attempt: int) -> str:
        return f"{self.split}/{self.label or self.position}/{self.task.id}/{member}.{attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPolicy:
    """A further policy of every episode, which agents and environments ask by its name (`session.of(name)`)."""

    engine: Engine | MessageEngine
    chat: Chat | None = None
    """None for an engine that speaks in messages."""
    learns: bool = False
    """Whether `engine` plays the policy in training: then its turns are learned from like the agent's own."""
    sampling: Sampling | None = None
    """None samples as the agent's own turns."""


@final
class Collector:
    """Plays episodes of one agent against one engine, and against further policies where the recipe names some.

    A rollout that fails for infrastructure reasons is retried with exponential backoff, each attempt a rollout of its
    own in the ledger; when retries run out the member is lost, and its group goes on with the rest if at least two
    remain. One whose client was refused, or whose agent gave no reward where the recipe names none, is lost at once: to play
    it again would end alike, or give the policy a second try. Any other exception of user code ends the run: a bug must not
    become data.
    """

    def __init__(
        self,
        *,
        engine: Engine | MessageEngine,
        chat: Chat | None,
        agent: Agent,
        reward: RewardFunction | None,
        scorer: Scorer | None,
        ledger: Ledger,
        seed: int,
        max_concurrency: int,
        timeout_seconds: float,
        max_retries: int,
        max_context_tokens: int | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        policies: Mapping[str, NamedPolicy] | None = None,
        close_agent: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`chat` is None for an engine that speaks in messages. `max_turns` and `max_tokens` bound what each policy that
        learns plays; the others have the episode's time for a bound."""
        self.policies: Mapping[str, NamedPolicy] = dict(policies or {})
        self._engine = engine
        self._chat = chat
        self._agent = agent
        self._close_agent = close_agent
        self._reward = reward
        self._scorer = scorer
        self._ledger = ledger
        self._seed = seed
        self._slots = asyncio.Semaphore(max_concurrency)
        self._one_alone = asyncio.Lock()
        self.max_concurrency = max_concurrency
        self._timeout_seconds = timeout_seconds
        self._max_retries = max_retries
        self._max_context_tokens = max_context_tokens
        self._max_turns = max_turns
        self._max_tokens = max_tokens
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self.tally = Tally()
        """Of attempts at training episodes."""
        self.losses = Losses()
        """Of attempts of every split."""
        self._turns: dict[str, Sequence[Message]] = {}
        """What the policies said, by rollout, of attempts that are over and not counted yet."""

    def playing(
        self, engine: MessageEngine, *, introduce: Callable[[Task, str], Awaitable[None]] | None = None
    ) -> Collector:
        """The same episodes (agent, judges, other policies, ledger) with another main policy. `introduce` is told each task,
        and the id of the session that will play it, before its episode begins. To close is this one's business."""
        other = copy.copy(self)
        other._engine, other._chat = engine, None
        if introduce is not None:

            async def introduced(task: Task, session: AnySession) -> AgentResult:
                await introduce(task, session.id)
                return await self._agent(task, session)

            other._agent = introduced
        return other

    async def aclose(self) -> None:
        """Close the agent and the engines of further policies; the one of the policy in training belongs to whoever made
        it."""
        if self._close_agent is not None:
            await self._close_agent()
        for policy in self.policies.values():
            if policy.engine is not self._engine:
                await policy.engine.close()

    async def play_group(self, plan: GroupPlan) -> TrajectoryGroup:
        """Play the members of a group side by side. Those that are lost are counted in `num_lost`.

        A training group of which fewer than two members remain (one, for groups of one) has no trajectories.
        """
        missing = [member for member in range(plan.group_size) if member not in plan.done]
        sessions = [plan.rollout_id(member, 0) for member in missing]
        # All before any plays: a deterministic engine then waits for the whole wave before its first round.
        self._announce(sessions, will_ask=True)
        refusals = Refusals()
        members = [asyncio.ensure_future(self.play_episode(plan, member, refusals)) for member in missing]
        try:
            played = await asyncio.gather(*members)
        except BaseException:
            await _cancel(members)
            self._announce(sessions, will_ask=False)
            self._give_up(plan, members)
            raise
        by_member = {**plan.done, **dict(zip(missing, played, strict=True))}
        kept = tuple(one for _, one in sorted(by_member.items()) if isinstance(one, Trajectory))
        lost, num_client_errors = plan.group_size - len(kept), played.count(Outcome.CLIENT_ERROR)
        if plan.split == "train" and len(kept) < min(2, plan.group_size):
            for trajectory in kept:
                self._discard(
                    trajectory.id, DiscardReason.GROUP_INCOMPLETE, f"{lost} of {plan.group_size} members lost"
                )
            kept, lost = (), plan.group_size
        if lost:
            logger.warning(
                "task %s: %d of %d episodes lost, %d of them since their client was refused",
                plan.task.id, lost, plan.group_size, num_client_errors,
            )  # fmt: skip
        return TrajectoryGroup(task=plan.task, trajectories=kept, num_lost=lost, num_client_errors=num_client_errors,
            num_unrewarded=played.count(Outcome.REWARD_ERROR), refused=refusals.by_reason, not_read=refusals.not_read,
        )  # fmt: skip

    def _announce(self, session_ids: Sequence[str], *, will_ask: bool) -> None:
        if isinstance(self._engine, MessageEngine):
            return  # it plays no rounds
        for session_id in session_ids:
            (self._engine.open_session if will_ask else self._engine.close_session)(session_id)

    def _give_up(self, plan: GroupPlan, members: Sequence[asyncio.Future[Trajectory | Outcome]]) -> None:
        """Account for those who were done when their group was ended. What was evaluated stays so."""
        done = (None if member.cancelled() or member.exception() else member.result() for member in members)
        for played in (*plan.done.values(), *done):
            if isinstance(played, Trajectory) and plan.split == "train":
                self._discard(played.id, DiscardReason.OPERATOR_CANCEL, "the run stopped before its group was complete")

    async def play_episode(
        self, plan: GroupPlan, member: int, refusals: Refusals | None = None
    ) -> Trajectory | Outcome:
        """Play one member to its end, retrying infrastructure failures; of one that is lost only the outcome. What the gateway
        refused is added to `refusals`.

        At first nearly at once, since a hiccup is over and its whole batch waits; then after 0.5, 2.5, 12.5 and 30 s. After its
        worker process died it is played alone, where it may be what killed that: if its code was running, or for the second time,
        or for the last. So one that kills every worker is lost, and those beside it are not.
        """
        asked = self._clock()
        async with self._slots:
            self._waited(plan, "queue", since=asked)
            is_alone = False
            for attempt in range(self._max_retries + 1):
                if plan.split == "train":
                    self.tally.attempted(again=attempt > 0)
                try:
                    async with self._place(alone=is_alone):
                        played = await self._attempt(plan, member, attempt, refusals or Refusals())
                except WorkerLost as lost:
                    is_alone = lost.was_running or attempt + 1 >= min(2, self._max_retries)
                    played = Outcome.INFRASTRUCTURE_ERROR
                policy = "train" if plan.split == "train" else f"{plan.split} {plan.label.partition('@')[0]}"
                turns = self._turns.pop(plan.rollout_id(member, attempt), ())
                self.losses.count(policy, plan.task.id, turns, is_lost=isinstance(played, Outcome))
                if played is not Outcome.INFRASTRUCTURE_ERROR:
                    return played
                if attempt < self._max_retries:
                    failed = self._clock()
                    await self._sleep(min(30.0, 0.1 * 5**attempt))
                    self._waited(plan, "backoff", since=failed)
        return Outcome.INFRASTRUCTURE_ERROR

    @asynccontextmanager
    async def _place(self, *, alone: bool) -> AsyncIterator[None]:
        """Episodes that are played alone wait here for each other, before they hold a session that others would wait for."""
        if not alone:
            yield
            return
        async with self._one_alone:
            with in_worker_of_its_own():
                yield

    def _waited(self, plan: GroupPlan, cause: str, *, since: float) -> None:
        if plan.split == "train":
            self.tally.waited(cause, self._clock() - since)

    async def _attempt(self, plan: GroupPlan, member: int, attempt: int, refusals: Refusals) -> Trajectory | Outcome:
        """One attempt: a scored trajectory, or the outcome that it was lost with. Raises WorkerLost where its worker died."""
        rollout_id = plan.rollout_id(member, attempt)
        ledger = self._ledger
        ledger.plan_nowait(rollout_id, task_id=plan.task.id, attempt=member, split=plan.split)
        ledger.advance_nowait(rollout_id, RolloutState.LEASED)
        ledger.advance_nowait(rollout_id, RolloutState.RUNNING)
        began, began_at = self._clock(), self._now()
        session = self._session(plan, member, rollout_id, deadline=began + self._timeout_seconds)
        try:
            async with session:
                try:
                    async with asyncio.timeout(self._timeout_seconds + overtime(self._timeout_seconds)):
                        # A copy: what an environment does to its task must not reach the next episode, or the judge.
                        with programs_end(time.monotonic() + self._timeout_seconds):
                            played = await self._agent(copy.deepcopy(plan.task), session)
                except TimeoutError:
                    late = AgentTimeout(
                        f"the episode was not over after rollout_timeout = {self._timeout_seconds:g} s, and did not return "
                        f"within {overtime(self._timeout_seconds):g} s more"
                    )
                    played = ended_elsewhere(late, session)
            if session.failure is not None and limit_met(session.failure) is None:
                # The agent went on without the turn; what it made of that is not the policy's doing.
                raise session.failure
        except AgentTimeout as error:
            self._discard(rollout_id, DiscardReason.ENV_TIMEOUT, str(error))
            return Outcome.INFRASTRUCTURE_ERROR
        except ClientError as error:
            self._discard(rollout_id, DiscardReason.CLIENT_ERROR, str(error))
            logger.warning("rollout %s: its client was refused: %s", rollout_id, error)
            return Outcome.CLIENT_ERROR
        except InfrastructureError as error:
            self._discard(rollout_id, DiscardReason.INFRA_ERROR, str(error))
            logger.warning("rollout %s failed: %s", rollout_id, error)
            if session.failure is not None and not isinstance(session.failure, EpisodeError):
                # The agent failed over a turn that will be refused each time, so to play again is no use.
                raise session.failure from error
            _raise_if_worker_died(error)
            return Outcome.INFRASTRUCTURE_ERROR
        except RewardError as error:
            self._discard(rollout_id, DiscardReason.REWARD_ERROR, str(error))
            raise
        except PolicyTimeout as error:
            played = AgentResult(outcome=Outcome.POLICY_TIMEOUT, messages=session.messages, error=str(error))
        except asyncio.CancelledError:
            self._discard(rollout_id, DiscardReason.OPERATOR_CANCEL, "the run stopped")
            raise
        finally:
            for one in (session, *session.others.values()):
                refusals.add(one.refusals)
            self._turns[rollout_id] = [turn.message for turn in session.episode_turns]
        played = within_budget(played, session.failure)
        trajectory = Trajectory(
            id=rollout_id,
            task=plan.task,
            attempt=member,
            turns=tuple(turn for turn in session.episode_turns if turn.learns),
            other_turns=tuple(turn for turn in session.episode_turns if not turn.learns),
            # A copy for the same reason: the gateway reads equal messages of all episodes as one object.
            messages=copy.deepcopy(tuple(played.messages) or session.messages),
            outcome=played.outcome,
            reward=None,
            score=None,
            metrics=played.metrics,
            transitions=tuple(played.transitions),
            final_state=played.final_state,
            error=played.error,
            began=began_at,
            seconds=self._clock() - began,
        )
        ledger.advance_nowait(rollout_id, RolloutState.FINISHED)
        return await self._judge(trajectory, plan, played.reward)

    def _session(self, plan: GroupPlan, member: int, rollout_id: str, *, deadline: float) -> AnySession:
        """The episode's session with those of its other policies."""
        seed = episode_seed(self._seed, f"{plan.split}/{plan.position}/{plan.task.id}", member)
        turn_ids = itertools.count()

        def opened(
            engine: Engine | MessageEngine, chat: Chat | None, sampling: Sampling, seed: int, *place: int, learns: bool,
            **more: Any,
        ) -> AnySession:  # fmt: skip
            bounds = {"max_turns": self._max_turns, "max_tokens": self._max_tokens} if learns else {}
            common = {
                "id": rollout_id, "ledger": self._ledger, "sampling": sampling, "seed": seed, "turn_ids": turn_ids,
                "deadline": deadline, "clock": self._clock, "learns": learns,
            }  # fmt: skip
            if isinstance(engine, MessageEngine):
                return MessageSession(engine=engine, **common, **bounds, **more)
            assert chat is not None, "an engine that samples tokens has a chat"
            context = self._max_context_tokens if learns else None
            return Session(
                engine=engine, chat=chat, order=(plan.position, member, *place), max_context_tokens=context, **common, **bounds,
                **more,
            )  # fmt: skip

        others = {
            name: opened(
                policy.engine, policy.chat, policy.sampling or plan.sampling, policy_seed(seed, name),
                place, learns=policy.learns, policy=name,
            )
            for place, (name, policy) in enumerate(self.policies.items())
        }  # fmt: skip
        return opened(self._engine, self._chat, plan.sampling, seed, learns=True, others=others)

    async def _judge(self, trajectory: Trajectory, plan: GroupPlan, own_reward: Reward | None) -> Trajectory | Outcome:
        """Reward and score; lost when there is no reward, a judge's own infrastructure failed, or no answer came in time.

        Raises RewardError as it is: a reward that cannot be trusted ends the run.
        """
        if own_reward is None and self._reward is None:
            # No number stands for it, and it ends no run: the policy may have led its agent to fail, or to stop without one.
            missing = (
                f"the agent gave no reward ({trajectory.error or trajectory.outcome}), and the recipe names none. Have the agent "
                "report one, or set reward.reward, which then scores such episodes."
            )
            self._discard(trajectory.id, DiscardReason.REWARD_ERROR, missing)
            logger.warning("rollout %s has no reward: %s", trajectory.id, missing)
            return Outcome.REWARD_ERROR
        began = self._clock()
        try:
            reward = own_reward
            if reward is None:
                assert self._reward is not None
                reward = await self._judged(evaluate_reward, self._reward, trajectory)
            found = None if self._scorer is None else await self._judged(evaluate_score, self._scorer, trajectory)
        except TimeoutError:
            waited = (
                f"reward or scorer had not answered after rollout_timeout = {self._timeout_seconds:g} s, nor in "
                f"{overtime(self._timeout_seconds):g} s more"
            )
            self._discard(trajectory.id, DiscardReason.INFRA_ERROR, waited)
            logger.warning("rollout %s could not be judged: %s", trajectory.id, waited)
            return Outcome.INFRASTRUCTURE_ERROR
        except InfrastructureError as error:
            self._discard(trajectory.id, DiscardReason.INFRA_ERROR, str(error))
            logger.warning("rollout %s could not be judged: %s", trajectory.id, error)
            _raise_if_worker_died(error)
            return Outcome.INFRASTRUCTURE_ERROR
        except RewardError as error:
            self._discard(trajectory.id, DiscardReason.REWARD_ERROR, str(error))
            raise
        self._waited(plan, "judge", since=began)
        score = None if found is None else found.value
        parts = {} if found is None else found.parts
        result = {
            "outcome": trajectory.outcome,
            "reward": reward.total,
            "turn_rewards": None if reward.per_turn is None else dict(reward.per_turn),
            "components": dict(reward.components),
            "score": score,
            "score_parts": dict(parts),
        }
        judged = replace(trajectory, reward=reward, score=score, score_parts=parts)
        if plan.keep is not None:
            plan.keep(judged)
        self._ledger.advance_nowait(trajectory.id, RolloutState.SCORED, result=result)
        if plan.split == "train":
            self._ledger.advance_nowait(trajectory.id, RolloutState.ADMITTED)
        else:
            self._ledger.advance_nowait(trajectory.id, RolloutState.EVALUATED)
        return judged

    async def _judged(
        self, evaluate: Callable[[Judging, Trajectory], Awaitable[Judged]], function: Judging, trajectory: Trajectory
    ) -> Judged:
        """What a reward or scorer returns. The programs that it runs end with rollout_timeout, so that none of the policy's
        can make it late. After an outage of its own it is asked again: the episode is whole, and need not be played again.
        """
        for attempt in itertools.count():
            try:
                async with asyncio.timeout(self._timeout_seconds + overtime(self._timeout_seconds)):
                    with programs_end(time.monotonic() + self._timeout_seconds):
                        return await evaluate(function, trajectory)
            except InfrastructureError as error:
                if attempt >= min(_JUDGED_AGAIN, self._max_retries) or isinstance(error, WorkerLost):
                    raise
                logger.warning("rollout %s is judged again: %s", trajectory.id, error)
                await self._sleep(_JUDGING_PAUSE_SECONDS)
        raise AssertionError("counts without end")

    def _discard(self, rollout_id: str, reason: DiscardReason, detail: str) -> None:
        if rollout_id.startswith("train/"):
            self.tally.discarded(reason)
        self._ledger.advance_nowait(rollout_id, RolloutState.DISCARDED, reason=reason, detail=detail)

    async def play_all(
        self, plans: Sequence[GroupPlan], *, in_waves: bool, on_group: Callable[[TrajectoryGroup], None] | None = None
    ) -> list[TrajectoryGroup]:
        """Play groups outside training, in the order of `plans`; `in_waves` as in `waves`."""
        groups: list[TrajectoryGroup] = []
        for wave in waves(plans, self.max_concurrency) if in_waves else [list(plans)]:
            playing = [asyncio.ensure_future(self.play_group(plan)) for plan in wave]
            try:
                for group in asyncio.as_completed(playing):
                    finished = await group
                    groups.append(finished)
                    if on_group is not None:
                        on_group(finished)
            except BaseException:
                await _cancel(playing)
                raise
        order = {id(plan.task): index for index, plan in enumerate(plans)}
        return sorted(groups, key=lambda group: order[id(group.task)])


def _raise_if_worker_died(error: InfrastructureError) -> None:
    for one in (error, error.__cause__):
        if isinstance(one, WorkerLost):
            raise one


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what still runs, and wait until it is over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def waves(plans: Sequence[GroupPlan], max_concurrency: int) -> list[list[GroupPlan]]:
    """Cut plans into runs of whole groups that fit the concurrency.

    A deterministic engine waits for every open session, so a wave is opened together and played to its end.
    """
    cut: list[list[GroupPlan]] = []
    room = 0
    for plan in plans:
        if plan.group_size > room or not cut:
            cut.append([])
            room = max_concurrency
        cut[-1].append(plan)
        room -= plan.group_size
    return cut
