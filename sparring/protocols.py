"""The protocols between the parts, on one page. Implement a protocol to replace a part.

Sparring ships fakes of these for tests: `ScriptedEngine`, `ScriptedMessages`, `ScriptedSession`, `MemoryTracker`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from sparring.types import (
    AnswerFormat,
    Completion,
    Constraint,
    EngineCapabilities,
    Json,
    Message,
    MessageAnswer,
    MessageRequest,
    RewardValue,
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
"""Receives each token id of a completion as soon as it is sampled."""
DeltaCallback: TypeAlias = Callable[[Mapping[str, str]], None]
"""Receives the next piece of an answer: text to append to its `content` or `reasoning_content`."""


class Engine(Protocol):
    """Samples completions from the policy, token for token.

    Implement it to sample with another inference server. A policy can be trained only with an engine of this kind,
    because the loss needs the sampled token ids and their log-probabilities. `ScriptedEngine` implements it without a
    model:

        engine = ScriptedEngine(["Hello."], encode=tokenizer.encode)
        request = SampleRequest(
            session_id="s", prompt_ids=(1, 2, 3), sampling=Sampling(max_tokens=64), stop_ids=frozenset({0}), seed=7
        )
        completion = await engine.sample(request)
        assert len(completion.token_ids) == len(completion.sampled_logprobs)
    """

    async def sample(self, request: SampleRequest, on_token: TokenCallback | None = None) -> Completion:
        """Continue the prompt, and return the sampled ids with one log-probability (in nats) for each id.

        Calls `on_token` with each id as it is sampled. Cancelling the task stops the sampling and frees its slot.

        Raises PolicyTimeout after the request's deadline. Raises ConstraintError, before anything is sampled, if this
        engine cannot enforce the request's constraint.
        """
        ...

    async def load_weights(self, weights: Weights, version: int) -> None:
        """Use these weights for turns that start from now on.

        Turns that are already running keep their weights if `capabilities.holds_several_weights` is true. Otherwise, they
        continue with these weights, and `Completion.versions` reports which version sampled each token.
        """
        ...

    def freeze(self, weights: Weights | None = None) -> Engine:
        """Return an engine that samples with fixed weights of the same model, next to the weights in training.

        The new engine can serve a user simulator or an opponent. Its turns report version 0, and `load_weights` of this
        engine does not change its weights. Without `weights`, call the new engine's `load_weights` before its first
        turn. Closing this engine also closes the new one. Raises DataError if `capabilities.holds_several_weights` is
        false.
        """
        ...

    async def logprobs(self, token_ids: Sequence[int], temperature: float = 1.0, first: int = 1) -> list[float]:
        """Return the log-probability (in nats) of each id from index `first` on, given the ids before it.

        The list has len(token_ids) - first numbers, and `first` is at least 1. The logits are divided by `temperature`, as
        in sampling; 0 counts as 1.

        After each update, training compares these numbers with the learner's, to detect weights that did not arrive. The
        advantages of a teacher are computed from them, too (docs/algorithms.md). Training calls this method only if
        `capabilities.scores_given_ids` is true.
        """
        ...

    def open_session(self, session_id: str) -> None:
        """Announce a session that will request turns. A deterministic engine waits for this session's requests before
        it samples a round."""
        ...

    def close_session(self, session_id: str) -> None:
        """Announce that this session will request no more turns. The engine may delete its cached keys and values."""
        ...

    @property
    def capabilities(self) -> EngineCapabilities:
        """The capabilities of this engine in addition to sampling. They do not change."""
        ...

    @property
    def policy_version(self) -> int:
        """The version of the weights that new turns use, as passed to `load_weights`."""
        ...

    @property
    def fingerprint(self) -> str:
        """The content hash of the weights that new turns use."""
        ...

    @property
    def max_context_tokens(self) -> int:
        """The largest number of tokens that a prompt and its completion may have together."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return the load since the last call, keyed by metric name (`engine/...`). The result is empty if the engine
        measures nothing."""
        ...

    async def close(self) -> None:
        """Stop sampling, and release memory and connections. Running turns raise InfrastructureError."""
        ...


@runtime_checkable
class ReplicatedEngine(Protocol):
    """An engine that samples in several places, such as inference servers, each of which can be checked and taken out.

    A run compares each replica with the learner after an update, and goes on without those that have other weights.
    """

    async def replica_logprobs(self, token_ids: Sequence[int]) -> Mapping[str, list[float]]:
        """Return the natural log-probabilities of the ids from index 1 on, at temperature 1, by the name of the replica that
        computed them. A replica that does not answer is left out. Raises ServiceError if none answers."""
        ...

    def take_out(self, replica: str) -> None:
        """Start no more turns on a replica. Turns that it samples now continue."""
        ...


@runtime_checkable
class MessageEngine(Protocol):
    """Answers in messages, for example an API endpoint or a script.

    Implement it to evaluate a policy whose tokens are unknown. Such a policy cannot be trained. `OpenAIEngine` calls
    an endpoint; `ScriptedMessages` returns fixed answers:

        engine = ScriptedMessages(["The answer is 4."])
        answer = await engine.answer(request)
        answer.message["content"]  # "The answer is 4."
    """

    async def answer(self, request: MessageRequest, on_delta: DeltaCallback | None = None) -> MessageAnswer:
        """Return the assistant's next message. Cancelling the task abandons the request.

        With `on_delta`, an engine that can stream passes each piece of the answer to it first.

        Raises PolicyTimeout after the deadline, ContextOverflow if the messages are too long, InfrastructureError if a
        retry may help, DataError if the endpoint refuses this request, and ServiceError if it will refuse every
        request.
        """
        ...

    @property
    def capabilities(self) -> EngineCapabilities:
        """The capabilities of this engine. It has none, because it answers in messages."""
        ...

    @property
    def fingerprint(self) -> str:
        """The identity of the policy, `kind:name`, instead of a content hash of its weights."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class LearnerState(Protocol):
    """A copy of a learner's weights and optimizer state at one moment. The learner can continue from it."""

    def write(self, directory: Path) -> None:
        """Write safetensors and JSON files into an existing directory, with the weights in `weights.safetensors`. Any
        thread may call this method, even while the learner continues."""
        ...


class Learner(Protocol):
    """Computes gradients and takes optimizer steps. The method names are those of the Tinker API.

    Implement it to train on other hardware or with another library. The learner may be in another process: values are
    JSON, numbers and safetensors files, never tensors. The methods block, and only one runs at a time. One step of the
    training loop:

        metrics = learner.forward_backward(batch, "ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2})
        metrics |= learner.optim_step(learning_rate=1e-5)
        await engine.load_weights(learner.export_weights(), version=step)

    Every method raises ServiceError if the learner's process cannot be reached. Log-probabilities are in the order of
    the batch's trained tokens: segment by segment, and from left to right within each segment
    (`TrainingBatch.num_trained_tokens`).
    """

    def forward_backward(
        self,
        batch: TrainingBatch,
        loss_fn: str,
        loss_config: LossConfig,
        old_logprobs: Sequence[float] | None = None,
    ) -> dict[str, float]:
        """Add the gradient of the batch's loss to the accumulated gradient, and return metrics of the loss.

        The loss is the sum over all trained tokens of weight * per-token loss. `loss_fn` names the per-token loss in
        `sparring.algorithms`, and `loss_config` contains its keyword arguments. `old_logprobs` is the result of
        `logprobs` before the first of several passes over the batch. Without it, the current log-probabilities are
        used.

        Raises DataError if the loss is not finite; the accumulated gradient is then zero.
        """
        ...

    def logprobs(self, batch: TrainingBatch) -> list[float]:
        """Return the log-probability (in nats) of each trained token under the current weights, at the token's
        temperature."""
        ...

    def reference_logprobs(self, batch: TrainingBatch) -> list[float]:
        """Return the same log-probabilities under the base model, that is, without the trained adapter. This method is
        called only if an adapter is trained."""
        ...

    def optim_step(self, learning_rate: float) -> dict[str, float]:
        """Clip the gradient, take one optimizer step and set the gradient to zero. Return metrics, such as the gradient
        norm before clipping.

        Raises DataError if the gradient is not finite; the weights are then unchanged and the gradient is zero.
        """
        ...

    def reset_optimizer(self) -> None:
        """Delete the optimizer's moments and all gradients, so that the next phase starts with the current weights and
        a new optimizer."""
        ...

    def export_weights(self) -> Weights:
        """Return a copy of the current policy. Later steps do not change the copy."""
        ...

    def load_weights(self, weights: Weights) -> None:
        """Continue from other weights with a new optimizer. Raises DataError with the names of the tensors that do not
        fit; in that case nothing changes."""
        ...

    def export_state(self) -> LearnerState:
        """Return a copy of the weights and the optimizer state. Later steps do not change the copy."""
        ...

    def load_state(self, directory: Path) -> None:
        """Restore a state that `LearnerState.write` wrote. Raises DataError with the names of the tensors that do not
        fit; in that case nothing changes."""
        ...

    @property
    def num_microbatches(self) -> int:
        """The number of microbatches computed so far. The number grows during a long step, which shows that the step is
        not stuck."""
        ...

    def close(self) -> None:
        """Release memory and connections. No method is called after this one."""
        ...


class Chat(Protocol):
    """Converts messages to token ids and back, for one model.

    Implement it for a model whose chat template is not supported by the shipped classes. A conversation of two turns:

        prompt = chat.render([{"role": "user", "content": "2 + 2?"}], tools=())
        completion = await engine.sample(...)  # with stop_ids=chat.stop_ids
        message = chat.parse(completion.token_ids, tools=())
        so_far = prompt + completion.token_ids
        next_prompt = so_far + chat.extend(so_far, [{"role": "user", "content": "3 + 3?"}], (), stopped=True)
    """

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end an answer."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return the ids of the whole prompt, up to the position where the assistant's answer starts. The names of control
        tokens in messages and tools stay text."""
        ...

    def extend(
        self, played: Sequence[int], new: Sequence[Message], tools: Sequence[ToolSchema], *, stopped: bool
    ) -> tuple[int, ...]:
        """Return the ids that follow `played` (a prompt plus the sampled answer) when `new` messages come after the
        answer.

        The next prompt is exactly `played` plus these ids. The policy therefore sees the tokens that it sampled, and
        training on the whole conversation is exact. `stopped` states whether the answer ended with a stop id.

        Raises SpliceRefused with the reason if the template does not allow this.
        """
        ...

    def answer(self, message: Message, tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return the ids of `message` as the assistant's answer, including the stop id. Demonstrations are trained on
        these ids."""
        ...

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Message:
        """Return the assistant message of a sampled answer. This method never raises an exception: the message lists
        malformed tool calls with the kind of each problem."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of the ids."""
        ...

    def constraint(self, answer_format: AnswerFormat, tools: Sequence[ToolSchema]) -> Constraint | None:
        """Return the grammar of the answers that `parse` accepts as having this form, or None if every answer has this
        form.

        Its schemas are named "content", and "arguments_0" for the first tool. Raises ConstraintError if the model's
        answers cannot be constrained to this form.
        """
        ...


class SpliceRefused(Exception):
    """The chat format does not allow a history to be extended token for token. The session then starts a new branch,
    with the message of this exception as the reason."""


@runtime_checkable
class SessionLike(Protocol):
    """An agent's access to the policy during one episode.

    An agent function receives a session. `ScriptedSession` is the fake for tests of agents:

        async def play(task: Task, session: SessionLike) -> float:
            message = await session.chat(task.messages)
            return float(task.fields["answer"] in message["content"])
    """

    @property
    def id(self) -> str:
        """The id of the session. Each episode has one session."""
        ...

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Message:
        """Sample one turn that continues these messages, and return the assistant's new message.

        `messages` is the whole conversation so far. Do not catch the exceptions of this method, so that the episode
        ends with the correct outcome: ContextOverflow, PolicyTimeout, TurnLimit, TokenLimit, InfrastructureError.
        """
        ...

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns of this policy so far."""
        ...

    @property
    def episode_turns(self) -> tuple[Turn, ...]:
        """The turns of all policies of the episode so far, by id."""
        ...

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the episode accepts no more turns. The value is negative after that time. None if there is
        no limit, or if it is unknown."""
        ...

    def of(self, name: str) -> SessionLike:
        """Return the session for another policy of the episode. Raises UsageError if no policy has this name."""
        ...


class Environment(Protocol):
    """The environment of one episode. Each episode creates a new object, and its public methods are the policy's tools.

        class Counter:
            def reset(self, task: Task) -> None:
                self.count = 0

            def add(self, amount: int) -> int:
                "Add an amount and return the count."
                self.count += amount
                return self.count

            def close(self) -> None:
                pass

    docs/environments.md has the optional methods (`is_done`, `state`, `demonstrate`, ...).
    """

    def reset(self, task: Task) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """Prepare the state for this task. Return the opening messages, or None to use those of the task.

        Raise InfrastructureError if a service is unavailable. The episode is then retried, and never counts as a reward
        of 0.
        """
        ...

    def close(self) -> Awaitable[None] | None:
        """Release what the episode uses (files, processes, connections). This method is called exactly once, however
        the episode ended."""
        ...


RewardFunction: TypeAlias = Callable[[Trajectory], RewardValue | Awaitable[RewardValue]]
"""Returns the reward of a finished episode, which is the training signal."""
ScoreValue: TypeAlias = Score | float
Scorer: TypeAlias = Callable[[Trajectory], ScoreValue | Awaitable[ScoreValue]]
"""Returns the score of a finished episode in [0, 1], which is only reported and never trained on."""
LossConfig: TypeAlias = Mapping[str, Any]
"""The keyword arguments of a loss."""


class Tracker(Protocol):
    """Receives metrics and trajectories of a run. When a tracker raises an exception, its data has a gap and the run
    continues.

    Implement it to log to another service. `MemoryTracker` keeps everything in lists, for tests:

        tracker = MemoryTracker()
        tracker.log_metrics(1, {"rollout/reward/mean": 0.25})
    """

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log numbers, keyed by metric name, after an optimizer step."""
        ...

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None:
        """Log the trajectories of a step. `split` is "train" or the name of the evaluated split."""
        ...

    def log_finding(self, finding: Mapping[str, Json]) -> None:
        """Log a finding of a check or detector, as `Finding.as_json` returns it."""
        ...

    def log_artifact(self, name: str, content: Json) -> None:
        """Log a JSON value under a relative path, such as the result of an evaluation."""
        ...

    def log_status(self, status: str, *, reason: str | None = None) -> None:
        """Log the status of the run (`running`, `completed`, `stopped` or `failed`), and the reason if it is known."""
        ...

    def close(self) -> None:
        """Write all pending data and close connections."""
        ...


__all__ = [
    "Chat", "DeltaCallback", "Engine", "Environment", "Learner", "LossConfig", "MessageEngine", "RewardFunction",
    "RewardValue", "ScoreValue", "Scorer", "SessionLike", "SpliceRefused", "TokenCallback", "TokenSegment", "Tracker",
]  # fmt: skip
