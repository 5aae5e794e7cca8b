"""The seams, on one page. Each has a shipped fake that users may use in their own tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from sparring.types import (
    AnswerFormat,
    Completion,
    Constraint,
    Json,
    Message,
    MessageAnswer,
    MessageRequest,
    Reward,
    SampleRequest,
    Score,
    Task,
    TokenSegment,
    ToolSchema,
    TrainingBatch,
    Trajectory,
    TrajectoryGroup,
    Turn,
    Weights,
)

TokenCallback: TypeAlias = Callable[[int], None]
DeltaCallback: TypeAlias = Callable[[Mapping[str, str]], None]
"""More of an answer: `content` or `reasoning_content`, to be appended."""


class Engine(Protocol):
    """Who samples."""

    async def sample(self, request: SampleRequest, on_token: TokenCallback | None = None) -> Completion:
        """Continue the prompt. Cancelling the task frees its slot. Raises PolicyTimeout past the deadline, and
        ConstraintError, before anything is sampled, for a constraint that this engine cannot follow."""
        ...

    async def load_weights(self, weights: Weights, version: int) -> None:
        """Answer turns that start from now on with these weights; turns already running keep theirs."""
        ...

    async def logprobs(self, token_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of each id but the first, given those before it: len(token_ids) - 1 numbers."""
        ...

    def open_session(self, session_id: str) -> None:
        """A session will ask for turns; a deterministic engine waits for it before it plays a round."""
        ...

    def close_session(self, session_id: str) -> None:
        """No turn of this session will follow; its cached keys and values may go."""
        ...

    @property
    def policy_version(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def max_context_tokens(self) -> int: ...

    async def close(self) -> None: ...


@runtime_checkable
class MessageEngine(Protocol):
    """Who answers in messages: an endpoint, a script. Its tokens are not known, so it can be evaluated and not trained."""

    async def answer(self, request: MessageRequest, on_delta: DeltaCallback | None = None) -> MessageAnswer:
        """The next message; cancelling the task gives the request up.

        Raises PolicyTimeout past the deadline, ContextOverflow when the messages are too long, InfrastructureError when
        asking again may work; DataError when this request is refused, ServiceError when every one will be.
        """
        ...

    @property
    def fingerprint(self) -> str:
        """Who answers, in place of a content hash of weights: `kind:name`."""
        ...

    async def close(self) -> None: ...


class LearnerState(Protocol):
    """What a learner goes on from, as it was at one moment."""

    def write(self, directory: Path) -> None:
        """Into an existing directory, as safetensors and JSON; in any thread."""
        ...


class Learner(Protocol):
    """Who learns, in Tinker's verbs."""

    def forward_backward(
        self, batch: TrainingBatch, loss_fn: str, loss_config: LossConfig, old_M: Any = None
    ) -> dict[str, float]:
        """Add the gradient of the batch's loss; return metrics of the loss. Raises DataError on a non-finite loss.

        `old_M`: what `logprobs` said before the first of several passes over the batch.
        """
        ...

    def logprobs(self, batch: TrainingBatch) -> Any:
        """Log-probabilities of the trained tokens under the current weights, for `forward_backward`."""
        ...

    def optim_step(self, learning_rate: float) -> dict[str, float]:
        """Clip, step, zero the gradients; return metrics (gradient norm before clipping, ...)."""
        ...

    def export_weights(self) -> Weights:
        """A copy of the current policy that later steps do not touch."""
        ...

    def export_state(self) -> LearnerState:
        """A copy of weights and optimizer state that later steps do not touch."""
        ...

    def load_state(self, directory: Path) -> None:
        """Restore what an exported state wrote. Raises DataError naming tensors that do not fit."""
        ...


class Chat(Protocol):
    """Messages to ids and back, for one model."""

    @property
    def stop_ids(self) -> frozenset[int]: ...

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """The whole prompt, ending where the assistant begins to speak."""
        ...

    def extend(
        self, played: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema], *, stopped: bool
    ) -> tuple[int, ...]:
        """Ids that follow `played` (a prompt plus the sampled answer) when `new` messages come after the answer.

        The next prompt is exactly played + these ids. `stopped` says whether the answer ended with a stop id.
        Raises SpliceRefused with the reason when the template cannot be extended so.
        """
        ...

    def answer(self, message: Message, tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Ids that say `message` as the assistant, its stop id included: what a demonstration is trained on."""
        ...

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Message:
        """The assistant message; malformed tool calls are classified in it, never raised."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def constraint(self, answer_format: AnswerFormat, tools: Sequence[ToolSchema]) -> Constraint | None:
        """The grammar of the answers that `parse` reads as having this form; None where every answer has it.

        Its schemas are called "content", and "arguments_0" for the first tool. Raises ConstraintError when the model's
        format cannot be held to this form.
        """
        ...


class SpliceRefused(Exception):
    """Why a history cannot be extended token for token; the session starts a branch with this reason."""


@runtime_checkable
class SessionLike(Protocol):
    """What an agent sees of an episode's private door to the policy."""

    @property
    def id(self) -> str: ...

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Message:
        """Play one turn: the assistant's message. Raises ContextOverflow, PolicyTimeout, InfrastructureError."""
        ...

    @property
    def turns(self) -> tuple[Turn, ...]: ...

    @property
    def episode_turns(self) -> tuple[Turn, ...]:
        """Those of all policies of the episode, by id."""
        ...

    @property
    def seconds_left(self) -> float | None:
        """Until no turn is taken any more, negative after that; None where nothing bounds it or this side does not know."""
        ...

    def of(self, name: str) -> SessionLike:
        """The same door to another policy of the episode. Raises UsageError for an unknown name."""
        ...


class Environment(Protocol):
    """The world of one episode; a fresh object each time."""

    def reset(self, task: Task) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """Prepare the world; return opening messages, or None for the task's own."""
        ...

    def close(self) -> Awaitable[None] | None:
        """Called on every exit path, exactly once."""
        ...


RewardValue: TypeAlias = Reward | float | Sequence[float] | tuple[float, Mapping[str, float]]
RewardFunction: TypeAlias = Callable[[Trajectory], RewardValue | Awaitable[RewardValue]]
ScoreValue: TypeAlias = Score | float
Scorer: TypeAlias = Callable[[Trajectory], ScoreValue | Awaitable[ScoreValue]]
LossConfig: TypeAlias = Mapping[str, Any]


class Tracker(Protocol):
    """Where numbers and trajectories go. A tracker that fails costs a gap in a chart, never the run."""

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None: ...

    def log_finding(self, finding: Mapping[str, Json]) -> None: ...

    def log_artifact(self, name: str, content: Json) -> None: ...

    def log_status(self, status: str, *, reason: str | None = None) -> None:
        """How the run stands: `running`, `completed`, `stopped` or `failed`, and why where that is known."""
        ...

    def close(self) -> None: ...


__all__ = [
    "Chat", "DeltaCallback", "Engine", "Environment", "Learner", "LossConfig", "MessageEngine", "RewardFunction",
    "RewardValue", "ScoreValue", "Scorer", "SessionLike", "SpliceRefused", "TokenCallback", "TokenSegment", "Tracker",
]  # fmt: skip
