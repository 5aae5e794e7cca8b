"""The values that describe rollouts: a group of episodes, its policies, the agent, the grading and the limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sparring.agents import AgentResult
from sparring.errors import UsageError
from sparring.protocols import Chat, Engine, MessageEngine, RewardFunction, Scorer
from sparring.sessions import AnySession, EpisodeLimits
from sparring.types import Sampling, Task, Trajectory

MORE_WAVES = 1.2
"""How many times as many waves may be run so that the episodes of a task share computations."""

Agent: TypeAlias = Callable[[Task, AnySession], Awaitable[AgentResult]]
"""A function that carries out a task through a session. It raises InfrastructureError if the environment fails."""


@dataclass(frozen=True, slots=True)
class EpisodeAgent:
    """The agent of every episode, with functions that wait for the agent's resources and release them."""

    run: Agent
    close: Callable[[], Awaitable[None]] | None = None
    wait_until_ready: Callable[[], Awaitable[None]] | None = None
    """A function that waits for what the agent needs. It is called before each attempt, and its time counts for no
    episode. Its errors end the run."""


@dataclass(frozen=True, slots=True)
class MainPolicy:
    """The policy from which the agent's own turns are sampled."""

    engine: Engine | MessageEngine
    chat: Chat | None = None
    """The chat of the policy, or None for an engine that answers in messages."""
    introduce: Callable[[Task, str], Awaitable[None]] | None = None
    """A function that is called with each task and the id of its session before the episode starts."""

    def __post_init__(self) -> None:
        _refuse_incomplete(self.engine, self.chat)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPolicy:
    """An additional policy of every episode, which agents and environments access by name (`session.of(name)`)."""

    engine: Engine | MessageEngine
    chat: Chat | None = None
    """The chat of the policy, or None for an engine that answers in messages."""
    learns: bool = False
    """Whether `engine` samples from the policy in training, so that its turns are trained on like the agent's own
    turns."""
    sampling: Sampling | None = None
    """The sampling settings. None uses the settings of the agent's own turns."""

    def __post_init__(self) -> None:
        _refuse_incomplete(self.engine, self.chat)


def _refuse_incomplete(engine: Engine | MessageEngine, chat: Chat | None) -> None:
    """Raise UsageError if there is no chat and the engine is not a MessageEngine. The error states what the engine
    lacks."""
    if chat is not None or isinstance(engine, MessageEngine):
        return
    if not hasattr(engine, "answer"):
        raise UsageError(f"{type(engine).__name__} samples tokens, so its policy needs a chat; give `chat`.")
    missing = [name for name in ("capabilities", "fingerprint", "close") if not hasattr(engine, name)]
    raise UsageError(
        f"{type(engine).__name__} answers in messages, but it has no {' and no '.join(missing)}; add the "
        "attributes that sparring.protocols.MessageEngine lists. Its `capabilities` can be EngineCapabilities()."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grading:
    """The functions that grade an episode."""

    reward: RewardFunction | None = None
    """The training signal, or None if the agent reports it."""
    scorer: Scorer | None = None
    """The independent measure of success, which is never used for training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """The limits of rollouts: concurrent episodes, seconds per episode, and turns and tokens for each policy that
    learns."""

    timeout_seconds: float
    max_concurrency: int
    max_retries: int = 0
    """The maximum number of retries of an episode that failed for infrastructure reasons."""
    max_turns: int | None = None
    max_tokens: int | None = None
    max_context_tokens: int | None = None

    def of_session(self, *, deadline: float, learns: bool) -> EpisodeLimits:
        """Return the limits of one session. A policy that does not learn is limited only by the episode's deadline."""
        if not learns:
            return EpisodeLimits(deadline=deadline)
        return EpisodeLimits(
            max_turns=self.max_turns,
            max_tokens=self.max_tokens,
            max_context_tokens=self.max_context_tokens,
            deadline=deadline,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """The plan of one group: its task, its position in the data order, and how it is sampled."""

    task: Task
    position: int
    """The position in the order of all groups of its split. Together with the member number it determines the seed."""
    group_size: int
    sampling: Sampling
    split: str = "train"
    label: str = ""
    """A string that distinguishes plans of the same task, such as the step of a validation run."""
    policy: MainPolicy | None = None
    """The policy of the agent's turns. None uses the collector's policy."""
    done: Mapping[int, Trajectory] = field(default_factory=dict)
    """The members that were already rolled out, by number. They are not run again."""
    keep: Callable[[Trajectory], None] | None = None
    """A function that is called with each graded episode before the ledger records its end. An episode that the
    function stored is not run again after a crash."""

    def rollout_id(self, member: int, attempt: int) -> str:
        """Return the rollout id of one attempt at one member of the group."""
        return f"{self.split}/{self.label or self.position}/{self.task.id}/{member}.{attempt}"


def split_into_waves(plans: Sequence[GroupPlan], max_concurrency: int) -> list[list[GroupPlan]]:
    """Divide plans into consecutive waves of whole groups, each of which fits within the maximum concurrency.

    A deterministic engine waits for every open session, so all sessions of a wave are opened together and run to their
    end.
    """
    cut: list[list[GroupPlan]] = []
    num_free = 0
    for plan in plans:
        if plan.group_size > num_free or not cut:
            cut.append([])
            num_free = max_concurrency
        cut[-1].append(plan)
        num_free -= plan.group_size
    return cut


def order_for_sharing(rows: Sequence[Sequence[GroupPlan]], max_concurrency: int | None) -> list[GroupPlan]:
    """Return the plans of several rows, which have the same tasks, in the order in which they run: the plans of a task next to
    each other, so that their episodes share computations. If they run in waves of `max_concurrency` episodes, and these would be
    much emptier, the rows run one after the other."""
    together = [plan for of_task in zip(*rows, strict=True) for plan in of_task]
    if max_concurrency is None:
        return together
    apart = [plan for row in rows for plan in row]
    num_apart, num_together = (len(split_into_waves(plans, max_concurrency)) for plans in (apart, together))
    return together if num_together <= MORE_WAVES * num_apart else apart
