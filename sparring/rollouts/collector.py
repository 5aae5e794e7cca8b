"""The collector, which rolls out and grades episodes and groups, with sessions and retries. The ledger records each
rollout."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, final

from sparring.agents import AgentResult
from sparring.agents.result import (
    broken_again,
    check_first_request,
    ended_elsewhere,
    limit_met,
    overtime,
    within_budget,
)
from sparring.errors import (
    AgentLost,
    AgentTimeout,
    ClientError,
    EnvironmentFailed,
    EpisodeError,
    InfrastructureError,
    PolicyTimeout,
    RewardError,
    WorkerLost,
)
from sparring.ledger import DiscardReason, Ledger, RolloutState
from sparring.protocols import Chat, Engine, MessageEngine
from sparring.rollouts.grading import Grader
from sparring.rollouts.lost_episodes import Losses
from sparring.rollouts.plan import (
    EpisodeAgent,
    Grading,
    GroupPlan,
    MainPolicy,
    NamedPolicy,
    RolloutLimits,
    split_into_waves,
)
from sparring.rollouts.tally import AttemptCounts
from sparring.runtime.clock import SYSTEM_CLOCK, Clock
from sparring.runtime.logs import get_logger
from sparring.sandbox.limits import programs_end
from sparring.sessions import AnySession, EpisodeIdentity, MessageSession, Session, episode_seed
from sparring.sessions.refusals import Refusals
from sparring.types import Message, Outcome, Reward, Sampling, Trajectory, TrajectoryGroup
from sparring.workers import use_separate_workers

logger = get_logger(__name__)

_SUSPECTS = (EnvironmentFailed, AgentLost, WorkerLost)
"""The failures that the policy's output may have caused, or a machine or a defect. A worker process is the episode's own
only if the episode runs alone."""


@final
class Collector:
    """Rolls out the episodes of one agent with one policy, and with additional policies if the recipe defines any.

    A rollout that fails for infrastructure reasons is retried with exponential backoff. Each attempt is a separate
    rollout in the ledger. After the last retry, the member is lost. Its group continues with the other members if at
    least two remain. A member is lost immediately if the gateway refused a request of its client, or if its agent
    reported no reward and the recipe has no reward function. Another attempt would end in the same way, or would give
    the policy a second chance. Any other exception from user code ends the run, so that a bug does not become training
    data.

        Collector(
            agent=EpisodeAgent(agent.play), policy=MainPolicy(engine, chat), grading=Grading(reward=reward),
            ledger=ledger, seed=0, limits=RolloutLimits(timeout_seconds=600, max_concurrency=8),
        )
    """

    def __init__(
        self,
        *,
        agent: EpisodeAgent,
        policy: MainPolicy,
        grading: Grading,
        ledger: Ledger,
        seed: int,
        limits: RolloutLimits,
        policies: Mapping[str, NamedPolicy] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Create a collector. `policy` provides the agent's own turns, unless a plan names another policy. `policies`
        maps names to the other policies."""
        self.policies: Mapping[str, NamedPolicy] = dict(policies or {})
        self.max_concurrency = limits.max_concurrency
        self._agent = agent
        self._policy = policy
        self._grader = Grader(grading, limits, clock)
        self._ledger = ledger
        self._seed = seed
        self._limits = limits
        self._clock = clock
        self._slots = asyncio.Semaphore(limits.max_concurrency)
        self._one_alone = asyncio.Lock()
        self.tally = AttemptCounts()
        """The counts of attempts at training episodes."""
        self.losses = Losses()
        """The counts of attempts and turns in all splits, and of those that were lost."""
        self._turns: dict[str, Sequence[Message]] = {}
        """The policies' messages in attempts that have ended but are not yet counted, by rollout."""
        self._broken: set[str] = set()
        """The rollouts that broke their environment or agent in several attempts."""

    async def aclose(self) -> None:
        """Close the agent and the engines of other policies. The engine of the policy in training belongs to the
        caller."""
        if self._agent.close is not None:
            await self._agent.close()
        for policy in self.policies.values():
            if policy.engine is not self._policy.engine:
                await policy.engine.close()

    def _policy_of(self, plan: GroupPlan) -> MainPolicy:
        return plan.policy or self._policy

    async def play_group(self, plan: GroupPlan) -> TrajectoryGroup:
        """Roll out the members of a group concurrently, and return the group. Lost members are counted in `num_lost`.

        A training group with fewer than two remaining members has no trajectories. For groups of one, one member is
        enough.
        """
        missing = [member for member in range(plan.group_size) if member not in plan.done]
        sessions = [plan.rollout_id(member, 0) for member in missing]
        # All sessions are announced first, so that a deterministic engine waits for the whole wave before its first
        # round.
        engine = self._policy_of(plan).engine
        _announce(engine, sessions, will_ask=True)
        refusals = Refusals()
        members = [asyncio.ensure_future(self.play_episode(plan, member, refusals)) for member in missing]
        try:
            played = await asyncio.gather(*members)
        except BaseException:
            await _cancel(members)
            _announce(engine, sessions, will_ask=False)
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
                "task %s: %d of %d episodes lost, %d of them because the gateway refused a request",
                plan.task.id,
                lost,
                plan.group_size,
                num_client_errors,
            )
        return TrajectoryGroup(
            task=plan.task,
            trajectories=kept,
            position=plan.position,
            num_lost=lost,
            num_client_errors=num_client_errors,
            num_unrewarded=played.count(Outcome.REWARD_ERROR),
            num_broken=sum(one.id in self._broken for one in kept),
            refused=refusals.by_reason,
            not_read=refusals.not_read,
        )

    def _give_up(self, plan: GroupPlan, members: Sequence[asyncio.Future[Trajectory | Outcome]]) -> None:
        """Mark the members that were already finished when their group was stopped as discarded in the ledger.
        Evaluated episodes are kept."""
        done = (None if member.cancelled() or member.exception() else member.result() for member in members)
        for played in (*plan.done.values(), *done):
            if isinstance(played, Trajectory) and plan.split == "train":
                self._discard(played.id, DiscardReason.OPERATOR_CANCEL, "the run stopped before its group was complete")

    async def play_episode(
        self, plan: GroupPlan, member: int, refusals: Refusals | None = None
    ) -> Trajectory | Outcome:
        """Run one member of a group to its end, with retries after infrastructure failures. Return its trajectory, or
        only the outcome if the member is lost. Refused requests are added to `refusals`.

        The first retry follows after 0.1 s, because the failure may be short and the whole batch waits. The later
        retries follow after 0.5, 2.5, 12.5 and 30 s. If its worker process died and the episode may be the cause, the
        episode runs alone in its next attempt. It may be the cause if its code was running, if a worker died for the
        second time, or if this is the last retry. Therefore, if an episode kills every worker, only that episode is
        lost, and not the episodes that run at the same time.

        A failure that the policy's output may have caused (`_SUSPECTS`) is an outage at first. If the last retry ends in such
        a failure again, and the policy had a turn each time, the outcome is `policy_error`, and the episode is graded.
        """
        asked = self._clock.monotonic()
        async with self._slots:
            self._waited(plan, "queue", since=asked)
            is_alone, num_broken = False, 0
            for attempt in range(self._limits.max_retries + 1):
                failure: InfrastructureError | None = None
                is_again = num_broken > 0 and attempt == self._limits.max_retries
                blamed = _SUSPECTS[: 3 if is_alone else 2] if is_again else ()
                if plan.split == "train":
                    self.tally.attempted(again=attempt > 0)
                try:
                    async with self._place(alone=is_alone):
                        if self._agent.wait_until_ready is not None:
                            await self._agent.wait_until_ready()
                        played = await self._attempt(plan, member, attempt, refusals or Refusals(), blamed)
                except _SUSPECTS as error:
                    failure, played = error, Outcome.INFRASTRUCTURE_ERROR
                    is_alone = self._runs_alone_next(failure, attempt)
                policy = "train" if plan.split == "train" else f"{plan.split} {plan.label.partition('@')[0]}"
                turns = self._turns.pop(plan.rollout_id(member, attempt), ())
                num_broken += bool(turns) and failure is not None and _may_be_own(failure)
                death = failure.death if isinstance(failure, WorkerLost) else None
                self.losses.count(policy, plan.task.id, turns, is_lost=isinstance(played, Outcome), death=death)
                if played is not Outcome.INFRASTRUCTURE_ERROR:
                    return played
                if attempt < self._limits.max_retries:
                    failed = self._clock.monotonic()
                    await self._clock.sleep(min(30.0, 0.1 * 5**attempt))
                    self._waited(plan, "backoff", since=failed)
        return Outcome.INFRASTRUCTURE_ERROR

    def _runs_alone_next(self, failure: InfrastructureError, attempt: int) -> bool:
        """Return whether the attempt after a failed one runs alone."""
        if isinstance(failure, WorkerLost):
            return failure.was_running or attempt + 1 >= min(2, self._limits.max_retries)
        # Other episodes of the same worker may have ended it, and those must not be in it again.
        return isinstance(failure, AgentLost) and attempt + 1 == self._limits.max_retries

    @asynccontextmanager
    async def _place(self, *, alone: bool) -> AsyncIterator[None]:
        """Give an episode that runs alone its own worker process. Such episodes run one after the other. They wait
        here, before they open a session for which the engine would wait."""
        if not alone:
            yield
            return
        async with self._one_alone:
            with use_separate_workers():
                yield

    def _waited(self, plan: GroupPlan, cause: str, *, since: float) -> None:
        if plan.split == "train":
            self.tally.waited(cause, self._clock.monotonic() - since)

    async def _attempt(
        self,
        plan: GroupPlan,
        member: int,
        attempt: int,
        refusals: Refusals,
        blamed: tuple[type[InfrastructureError], ...],
    ) -> Trajectory | Outcome:
        """Make one attempt. Return a graded trajectory, or the outcome if the episode is lost. Failures of the types in
        `blamed` count as caused by the policy. Raises one of `_SUSPECTS` for other failures that it may have caused."""
        rollout_id = plan.rollout_id(member, attempt)
        ledger = self._ledger
        ledger.plan_nowait(rollout_id, task_id=plan.task.id, attempt=member, split=plan.split)
        ledger.advance_nowait(rollout_id, RolloutState.LEASED)
        ledger.advance_nowait(rollout_id, RolloutState.RUNNING)
        began, began_at = self._clock.monotonic(), self._clock.now()
        session = self._session(plan, member, rollout_id, deadline=began + self._limits.timeout_seconds)
        try:
            async with session:
                played = await self._play(plan, session, rollout_id, blamed)
            check_first_request(played, session, began=began, timeout_seconds=self._limits.timeout_seconds)
            if session.failure is not None and limit_met(session.failure) is None:
                # The agent continued without the turn, so the result is not caused by the policy.
                raise session.failure
        except AgentTimeout as error:
            self._discard(rollout_id, DiscardReason.ENV_TIMEOUT, str(error))
            return Outcome.INFRASTRUCTURE_ERROR
        except ClientError as error:
            self._discard(rollout_id, DiscardReason.CLIENT_ERROR, str(error))
            logger.warning("rollout %s: the gateway refused a request of its client: %s", rollout_id, error)
            return Outcome.CLIENT_ERROR
        except InfrastructureError as error:
            self._discard(rollout_id, DiscardReason.INFRA_ERROR, str(error))
            # The pool has reported the end of the worker once, for all its episodes.
            level = logging.INFO if isinstance(error, WorkerLost) else logging.WARNING
            logger.log(level, "rollout %s failed: %s", rollout_id, error)
            if session.failure is not None and not isinstance(session.failure, EpisodeError):
                # The agent failed because of a turn that is always refused, so a retry would not help.
                raise session.failure from error
            _raise_if_suspect(error)
            return Outcome.INFRASTRUCTURE_ERROR
        except RewardError as error:
            self._discard(rollout_id, DiscardReason.REWARD_ERROR, str(error))
            raise
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
            # A copy, since the gateway stores equal messages of all episodes as one object.
            messages=copy.deepcopy(tuple(played.messages) or session.messages),
            outcome=played.outcome,
            reward=None,
            score=None,
            metrics=played.metrics,
            transitions=tuple(played.transitions),
            final_state=played.final_state,
            artifacts=played.artifacts,
            error=played.error,
            began=began_at,
            seconds=self._clock.monotonic() - began,
        )
        ledger.advance_nowait(rollout_id, RolloutState.FINISHED)
        return await self._grade(trajectory, plan, played.reward)

    async def _play(
        self, plan: GroupPlan, session: AnySession, rollout_id: str, blamed: tuple[type[InfrastructureError], ...]
    ) -> AgentResult:
        """Run the agent within the time limit. Failures of the types in `blamed` count as caused by the policy."""
        seconds = self._limits.timeout_seconds
        try:
            async with asyncio.timeout(seconds + overtime(seconds)):
                with programs_end(time.monotonic() + seconds):
                    return await self._run_agent(plan, session)
        except TimeoutError:
            late = AgentTimeout(
                f"the episode was not over after rollout_timeout = {seconds:g} s, and did not return "
                f"within {overtime(seconds):g} s more"
            )
            return ended_elsewhere(late, session)
        except PolicyTimeout as error:
            return AgentResult(outcome=Outcome.POLICY_TIMEOUT, messages=session.messages, error=str(error))
        except blamed as error:
            if not _may_be_own(error):
                raise
            self._broken.add(rollout_id)
            return broken_again(error, session)

    async def _run_agent(self, plan: GroupPlan, session: AnySession) -> AgentResult:
        # A copy, so that an environment's changes to its task do not affect the next episode or the grading.
        task, introduce = copy.deepcopy(plan.task), self._policy_of(plan).introduce
        if introduce is not None:
            await introduce(task, session.id)
        return await self._agent.run(task, session)

    def _session(self, plan: GroupPlan, member: int, rollout_id: str, *, deadline: float) -> AnySession:
        """Create the episode's session and the sessions of its other policies."""
        seed = episode_seed(self._seed, f"{plan.split}/{plan.position}/{plan.task.id}", member)
        main = EpisodeIdentity(rollout_id, seed=seed, order=(plan.position, member))

        def open_session(
            identity: EpisodeIdentity,
            engine: Engine | MessageEngine,
            chat: Chat | None,
            sampling: Sampling,
            others: Mapping[str, AnySession] | None = None,
        ) -> AnySession:
            limits = self._limits.of_session(deadline=deadline, learns=identity.learns)
            if isinstance(engine, MessageEngine):
                return MessageSession(
                    identity,
                    engine=engine,
                    sampling=sampling,
                    ledger=self._ledger,
                    limits=limits,
                    clock=self._clock,
                    others=others,
                )
            assert chat is not None, "an engine that samples tokens has a chat"
            return Session(
                identity,
                engine=engine,
                chat=chat,
                sampling=sampling,
                ledger=self._ledger,
                limits=limits,
                clock=self._clock,
                others=others,
            )

        others = {
            name: open_session(
                main.for_policy(name, place, learns=policy.learns),
                policy.engine,
                policy.chat,
                policy.sampling or plan.sampling,
            )
            for place, (name, policy) in enumerate(self.policies.items())
        }
        policy = self._policy_of(plan)
        return open_session(main, policy.engine, policy.chat, plan.sampling, others)

    async def _grade(self, trajectory: Trajectory, plan: GroupPlan, own_reward: Reward | None) -> Trajectory | Outcome:
        """Compute the reward and the score of an episode. Return the outcome if the episode is lost: it has no reward,
        or the grading infrastructure failed.

        Raises RewardError for a reward that cannot be trusted, which ends the run.
        """
        if own_reward is None and not self._grader.has_reward:
            # The episode gets no reward and does not end the run, since the policy may have caused its agent to fail or
            # to stop early.
            missing = (
                f"the agent reported no reward ({trajectory.error or trajectory.outcome}), and the recipe names none. "
                "Have the agent report a reward, or set reward.reward, which then also scores these episodes."
            )
            self._discard(trajectory.id, DiscardReason.REWARD_ERROR, missing)
            logger.warning("rollout %s has no reward: %s", trajectory.id, missing)
            return Outcome.REWARD_ERROR
        start_time = self._clock.monotonic()
        try:
            reward, score = await self._grader.grade(trajectory, own_reward)
        except InfrastructureError as error:
            self._discard(trajectory.id, DiscardReason.INFRA_ERROR, str(error))
            logger.warning("rollout %s could not be graded: %s", trajectory.id, error)
            _raise_if_suspect(error)
            return Outcome.INFRASTRUCTURE_ERROR
        except RewardError as error:
            self._discard(trajectory.id, DiscardReason.REWARD_ERROR, str(error))
            raise
        self._waited(plan, "reward", since=start_time)
        graded = replace(trajectory, reward=reward)
        if score is not None:
            graded = replace(graded, score=score.value, score_parts=score.parts)
        self._record_grade(graded, reward, plan)
        return graded

    def _record_grade(self, graded: Trajectory, reward: Reward, plan: GroupPlan) -> None:
        if plan.keep is not None:
            plan.keep(graded)
        result = {
            "outcome": graded.outcome,
            "reward": reward.total,
            "turn_rewards": None if reward.per_turn is None else dict(reward.per_turn),
            "components": dict(reward.components),
            "score": graded.score,
            "score_parts": dict(graded.score_parts),
        }
        self._ledger.advance_nowait(graded.id, RolloutState.SCORED, result=result)
        over = RolloutState.ADMITTED if plan.split == "train" else RolloutState.EVALUATED
        self._ledger.advance_nowait(graded.id, over)

    def _discard(self, rollout_id: str, reason: DiscardReason, detail: str) -> None:
        if rollout_id.startswith("train/"):
            self.tally.discarded(reason)
        self._ledger.advance_nowait(rollout_id, RolloutState.DISCARDED, reason=reason, detail=detail)

    async def play_all(
        self, plans: Sequence[GroupPlan], *, in_waves: bool, on_group: Callable[[TrajectoryGroup], None] | None = None
    ) -> list[TrajectoryGroup]:
        """Roll out groups outside training, and return the results in the order of `plans`.

        With `in_waves`, the waves of `split_into_waves` run one after another.
        """

        async def play(plan: GroupPlan) -> TrajectoryGroup:
            group = await self.play_group(plan)
            if on_group is not None:
                on_group(group)
            return group

        groups: list[TrajectoryGroup] = []
        for wave in split_into_waves(plans, self.max_concurrency) if in_waves else [list(plans)]:
            playing = [asyncio.ensure_future(play(plan)) for plan in wave]
            try:
                groups += await asyncio.gather(*playing)
            except BaseException:
                await _cancel(playing)
                raise
        return groups


def _may_be_own(failure: InfrastructureError) -> bool:
    """Return whether the code of the episode itself may have caused one of `_SUSPECTS`."""
    return not isinstance(failure, WorkerLost) or failure.was_running


def _raise_if_suspect(error: InfrastructureError) -> None:
    for one in (error, error.__cause__):
        if isinstance(one, _SUSPECTS):
            raise one


def _announce(engine: Engine | MessageEngine, session_ids: Sequence[str], *, will_ask: bool) -> None:
    """Announce sessions to an engine that samples in rounds, so that the engine waits for each of them."""
    if isinstance(engine, MessageEngine):
        return
    for session_id in session_ids:
        (engine.open_session if will_ask else engine.close_session)(session_id)


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel the tasks that are still running, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
