"""The plain, immutable values that all parts exchange. Read this file and `protocols.py` first.

A Task is run as an episode. Each call of the policy during the episode is a Turn, and the finished episode is a
Trajectory. The trajectories of one task form a TrajectoryGroup, and groups become a TrainingBatch. A value is complete
when it is created. All containers in values are treated as read-only. `None` means that there is no value, never "not
yet".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

Json: TypeAlias = Any
"""A value that `json.dumps` accepts. Environments, agents and rewards exchange such values with the core."""

Message: TypeAlias = Mapping[str, Json]
"""A chat message in the OpenAI shape: role, content, tool_calls, tool_call_id."""

ToolSchema: TypeAlias = Mapping[str, Json]
"""A tool in the OpenAI shape: {"type": "function", "function": {"name", "description", "parameters"}}."""


class Outcome(StrEnum):
    """The way in which an episode ended."""

    FINISHED = "finished"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    POLICY_TIMEOUT = "policy_timeout"
    POLICY_ERROR = "policy_error"
    CLIENT_ERROR = "client_error"
    """The gateway refused the agent's last request for a reason other than the policy's output."""
    REWARD_ERROR = "reward_error"
    """The agent returned no reward, and the recipe specifies no reward function."""
    INFRASTRUCTURE_ERROR = "infrastructure_error"

    @property
    def is_lost(self) -> bool:
        """Whether the episode is only counted, but left out of learning, means and baselines."""
        return self in (Outcome.CLIENT_ERROR, Outcome.REWARD_ERROR, Outcome.INFRASTRUCTURE_ERROR)


class StopReason(StrEnum):
    """The reason why the policy stopped a turn."""

    STOP = "stop"
    LENGTH = "length"


class UntrainedReason(StrEnum):
    """The reason why a turn is not trained on."""

    NOT_RECEIVED = "not_received"
    """The turn's answer did not reach the client, and no later turn continues it."""
    NOT_LEARNING = "not_learning"
    """The turn belongs to a policy that is not in training."""
    NO_IDS = "no_ids"
    """An endpoint or a script answered, so its tokens are unknown."""
    GREEDY = "greedy"
    TOP_P = "top_p"
    OVERRULED = "overruled"
    """A constraint excluded tokens that the policy would have sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem. `fields` contains the dataset's other fields, including the ground truth; the policy never sees
    them."""

    id: str
    messages: tuple[Message, ...]
    fields: Mapping[str, Json] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling settings of a turn. `temperature` 0 is greedy; `max_tokens` bounds one turn."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """The form that a client requests for an answer. By default, the policy decides."""

    tool_choice: Literal["auto", "none", "required"] = "auto"
    tool_name: str | None = None
    """The tool that the answer must call exactly once, if calls are "required"."""
    parallel_tool_calls: bool = True
    """Whether an answer may contain several calls."""
    response_format: Mapping[str, Json] | None = None
    """The format of an answer without calls, as in OpenAI's chat completions: `json_object`, or `json_schema` with its
    name, its schema and `strict`. None means free text."""

    @property
    def schema(self) -> Mapping[str, Json] | None:
        """The JSON schema that `response_format` requires."""
        match self.response_format:
            case None:
                return None
            case {"json_schema": named}:
                return named["schema"]
        return {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A grammar that the text of an answer, without its stop id, must follow.

    `grammar` is in llguidance's variant of Lark and starts at `start`. In the grammar, `@name` stands for JSON that
    follows the schema with that name (https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md).
    """

    grammar: str
    schemas: tuple[tuple[str, str], ...] = ()
    """The JSON schemas as text, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """A request to an engine: continue `prompt_ids` for one turn of one session.

    `seed` fixes the random numbers of this turn, independently of the rest of the batch. `order` (task position,
    attempt, turn) is the key by which a deterministic engine sorts the requests of a round.
    """

    session_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    stop_ids: frozenset[int]
    seed: int
    stop_texts: tuple[str, ...] = ()
    """The answer also ends with the token that completes one of these texts."""
    order: tuple[int, ...] = ()
    deadline: float | None = None
    """The monotonic time, in seconds, at which the engine raises PolicyTimeout. With None, the engine waits as long as
    the caller."""
    constraint: Constraint | None = None
    """The grammar that the answer must follow. Log-probabilities are then over the tokens that it allows."""
    top_k: int | None = None
    """Sample only from this number of most likely tokens. Log-probabilities are then over these. Only the engine in this
    process reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An engine's answer. A Turn is a prompt plus its completion."""

    token_ids: tuple[int, ...]
    """The sampled ids, including the stop id if the policy sampled it."""
    sampled_logprobs: tuple[float, ...]
    """One natural log-probability per id, under the distribution after the temperature that was sampled from."""
    stop_reason: StopReason
    versions: tuple[tuple[int, int], ...]
    """The policy versions as runs of tokens: (version, num_tokens)."""
    fingerprint: str
    """The content hash of the weights of the last version."""
    num_computed_tokens: int
    """The number of prompt tokens and sampled tokens that went through the model for this turn. Tokens that another turn
    computed, or whose logits were kept, do not count, so the number may be 0."""
    removed_mass: float = 0.0
    """The largest probability, in [0, 1] and after the temperature, that the constraint removed at any token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapabilities:
    """The capabilities of an engine with its present settings. Rules, sessions and the training loop check these
    fields, never an engine's class or name.

    The defaults describe an engine that answers in messages and has none of these capabilities.
    """

    reports_token_ids: bool = False
    """The engine's answers contain the sampled ids and their log-probabilities. Training needs both."""
    holds_several_weights: bool = False
    """Turns that run keep their weights when newer ones are loaded, and frozen policies sample with weights of their own
    (`role = "frozen"`). Otherwise, running turns continue with the newest weights."""
    pins_weights: bool = False
    """An episode keeps the weights of its first turn (`rollout.session_weights = "pinned"`)."""
    deterministic_rounds: bool = False
    """The engine samples in rounds that depend only on the seed, so that a run can be repeated bit for bit
    (`engine.deterministic`)."""
    constrained_sampling: bool = False
    """The engine can constrain an answer to a grammar."""
    reports_removed_mass: bool = False
    """The engine's answers report how much probability a grammar removed. Otherwise, constrained turns are not
    trained."""
    takes_any_weights: bool = True
    """The engine samples with any weights of its model. Otherwise, it samples only with weights that its own service has
    trained."""
    scores_given_ids: bool = False
    """The engine returns the log-probabilities of given ids. Training uses them to detect weights that did not
    arrive."""


MAX_REMOVED_MASS = 1e-3
"""The largest probability that a constraint may have removed at a token for the turn to be trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The token counts of a turn, from an endpoint that reports counts but no tokens."""

    num_prompt_tokens: int
    num_sampled_tokens: int
    num_cached_tokens: int | None = None
    """The number of prompt tokens that the endpoint had in a cache, or None if the endpoint does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRequest:
    """A request to a message engine for the assistant's next message."""

    session_id: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    sampling: Sampling
    seed: int | None = None
    """The seed of this turn, for engines that use a seed."""
    stop_texts: tuple[str, ...] = ()
    answer_format: AnswerFormat = AnswerFormat()
    deadline: float | None = None
    """See `SampleRequest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAnswer:
    """A message engine's answer: a message without ids or log-probabilities."""

    message: Message
    stop_reason: StopReason
    usage: Usage | None = None
    """The token counts, or None if the engine does not report them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One call of the policy, token for token.

    If `parent` is not None, `prompt_ids` starts with the parent's prompt_ids + token_ids. A turn without a parent
    starts a root. Every root after the first one has a `branch_reason`, which states why the turn does not continue an
    earlier turn.

    A turn of a message engine has no ids and no log-probabilities, and is never trained on.
    """

    id: int
    parent: int | None
    branch_reason: str | None
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    sampled_logprobs: tuple[float, ...]
    versions: tuple[tuple[int, int], ...]
    fingerprint: str
    stop_reason: StopReason
    sampling: Sampling
    message: Message
    """The assistant message that these tokens were parsed into."""
    num_computed_tokens: int
    seconds: float
    removed_mass: float = 0.0
    """See `Completion`."""
    stop_text: str | None = None
    """The requested stop text that ended the answer, for the client. Not in the ledger."""
    usage: Usage | None = None
    """The token counts of a turn without ids, if the engine reports them. Not in the ledger."""
    is_received: bool = True
    """Whether the turn's answer reached the client or a later turn continues it."""
    policy: str | None = None
    """The name of the policy that sampled the turn. None is the main policy."""
    learns: bool = True
    """Whether that policy is in training. The tokens of a user simulator or a frozen opponent are not part of any
    loss."""
    began: float | None = field(default=None, compare=False)
    """Seconds from the start of the episode to the request, or None if that is unknown. Not in the ledger."""
    client: str | None = field(default=None, compare=False)
    """The User-Agent header of the program that requested the turn through the gateway. Not in the ledger."""

    @property
    def oldest_version(self) -> int:
        return min(version for version, _ in self.versions)

    @property
    def num_prompt_tokens(self) -> int:
        """The number of known ids, or the count that the engine reported. 0 if there is neither."""
        return len(self.prompt_ids) if self.usage is None else self.usage.num_prompt_tokens

    @property
    def num_sampled_tokens(self) -> int:
        """The number of known ids, or the count that the engine reported. 0 if there is neither."""
        return len(self.token_ids) if self.usage is None else self.usage.num_sampled_tokens

    @property
    def untrained_reason(self) -> UntrainedReason | None:
        """The reason why this turn is not trained on, or None if it is trained on.

        A turn is trained on only if the client received it, its tokens are known, and they were sampled from the whole
        distribution that the learner computes. With greedy or top-p sampling, the learner's ratio would compare two
        different distributions.
        """
        if not self.is_received:
            return UntrainedReason.NOT_RECEIVED
        if not self.learns:
            return UntrainedReason.NOT_LEARNING
        if not self.token_ids:
            return UntrainedReason.NO_IDS
        if self.sampling.temperature == 0:
            return UntrainedReason.GREEDY
        if self.sampling.top_p < 1:
            return UntrainedReason.TOP_P
        return UntrainedReason.OVERRULED if self.removed_mass > MAX_REMOVED_MASS else None

    @property
    def is_trained(self) -> bool:
        """Whether the turn's tokens are trained on if its trajectory is."""
        return self.untrained_reason is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The training signal of one trajectory.

    `per_turn` maps turn ids to their rewards, which sum to `total`. `components` are the named parts of the total;
    `metrics` are other numbers to chart, which are not part of the total.
    """

    total: float
    per_turn: Mapping[int, float] | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    record: Mapping[str, Json] = field(default_factory=dict)
    """The record of how the episode was graded, stored with the episode: an LLM judge's model, prompt and votes."""


RewardValue: TypeAlias = Reward | float | Sequence[float] | tuple[float | Sequence[float], Mapping[str, float]]
"""A Reward, its total, one number per turn, or one of the last two with metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """What an agent of your own hands over at the end of its episode: the reward, and what rewards, scorers and checks
    cannot see in the conversation.

    An agent as a function returns it. The other agents hand over a JSON object with the same names (docs/agents.md,
    "What an agent hands over").
    """

    reward: RewardValue | None = None
    """The reward, or None if the recipe's reward function grades the episode."""
    final_state: Json = None
    """The state of the agent's environment at the end, such as the rows of its database. It becomes
    `Trajectory.final_state`."""
    transitions: Sequence[Mapping[str, Json]] = ()
    """The executed tool calls in order, each with `tool` and optionally `arguments`, `result`, `error` (a text, or None) and
    more. They become `Trajectory.transitions`."""
    artifacts: Mapping[str, str] = field(default_factory=dict)
    """Texts that the agent produced, by name, such as a patch or a report. They become `Trajectory.artifacts`."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one trajectory, which is never trained on.

    `value` is in [0, 1], where 1 is a correct result. `parts` are named sub-scores in [0, 1] that explain or complement
    the value (for example each field, completion, format, tool use, or an exhausted budget). They are charted and shown
    with disagreements, and do not change the value.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One finished episode with its turns, its outcome and its reward. The turns form a tree, which is nearly always a
    line."""

    id: str
    task: Task
    attempt: int
    """The trajectory's index in the group, from 0."""
    turns: tuple[Turn, ...]
    """The turns of the policy in training, under all its names, by id. Rewards, credit and learning refer to these."""
    messages: tuple[Message, ...]
    """The conversation as the agent saw it at the end."""
    outcome: Outcome
    reward: Reward | None
    score: float | None
    """The scorer's result in [0, 1], which is never trained on."""
    score_parts: Mapping[str, float] = field(default_factory=dict)
    """The scorer's named sub-scores. Empty if the scorer has none."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    transitions: tuple[Mapping[str, Json], ...] = ()
    """The environment's own log, with one entry per tool call. The agent does not see it."""
    final_state: Json = None
    """The environment's state at the end, as `Environment.final_state` returned it or an agent of your own handed it over.
    None if there is none."""
    artifacts: Mapping[str, str] = field(default_factory=dict)
    """Texts that an agent of your own handed over, by name."""
    error: str | None = None
    began: float | None = field(default=None, compare=False)
    """The episode's start time, in seconds since 1970, or None if that is unknown."""
    seconds: float = 0.0
    other_turns: tuple[Turn, ...] = ()
    """The turns of policies that do not learn (a user simulator, a frozen opponent). Ids are unique across `turns` and
    these."""

    @property
    def num_sampled_tokens(self) -> int:
        return sum(turn.num_sampled_tokens for turn in self.turns)

    @property
    def num_trained_tokens(self) -> int:
        return sum(len(turn.token_ids) for turn in self.turns if turn.is_trained)

    @property
    def oldest_version(self) -> int | None:
        return min((turn.oldest_version for turn in self.turns), default=None)

    @property
    def user_turns(self) -> tuple[tuple[int, ...], ...]:
        """For each message of the user, the ids of the turns that answer it, in order.

        An answer ends with a turn that calls no tool. The last answer may be incomplete if the episode was cut off."""
        answers: list[list[int]] = [[]]
        for turn in self.turns:
            answers[-1].append(turn.id)
            if not turn.message.get("tool_calls") and not turn.message.get("malformed_tool_calls"):
                answers.append([])
        return tuple(tuple(answer) for answer in answers if answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """The trajectories of one task that may be trained on. Lost members (`Outcome.is_lost`) are only counted."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    position: int | None = None
    """The position in the order of all training groups. None if the group was not planned by a curriculum."""
    num_lost: int = 0
    num_client_errors: int = 0
    """The number of lost members whose outcome is CLIENT_ERROR."""
    num_unrewarded: int = 0
    """The number of lost members whose outcome is REWARD_ERROR."""
    num_broken: int = 0
    """The number of members that broke their environment or agent in several attempts, and count as failures of the
    policy."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """The number of requests that the gateway refused, by reason, over all members, including lost members and
    retries."""
    not_read: Mapping[str, int] = field(default_factory=dict)
    """The number of requests in which the gateway ignored a field, by field, over the same members."""

    @property
    def rewards(self) -> list[float]:
        """The total reward of each trajectory. Every member has a reward: collectors admit no trajectory without
        one."""
        rewards = [trajectory.reward for trajectory in self.trajectories]
        assert all(reward is not None for reward in rewards), "a trajectory without a reward was admitted"
        return [reward.total for reward in rewards if reward is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSegment:
    """Tokens of one trajectory, which follow the tokens of the segment `parent`.

    `mask`, `sampled_logprobs`, `advantages` and `weights` have the same length as `token_ids`. If the mask of a token
    is False, the token's other values are 0. `weights` implements the loss reduction: the loss is the sum of weight *
    per-token loss.
    """

    parent: int | None
    """The index of the parent in TrainingBatch.segments. It is always smaller than this segment's own index."""
    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    sampled_logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    temperature: float
    """The temperature of the sampled tokens. The learner divides logits by it, so that both use the same
    distribution."""
    targets: tuple[int, ...] | None = None
    """The ids whose log-probabilities are trained, if they are not `token_ids`: the model reads `token_ids`, and predicts
    `targets` where the mask is True. It has the same length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One path through the forest from a root to a leaf: one rollout's line of turns, as the model saw it."""

    segments: tuple[int, ...]
    trajectory_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """A forest of token segments. Each segment belongs to one trajectory. Sequences of one trajectory share the segments
    before a fork, and code must not assume that they are repeated for each sequence.

    Equal tokens of several trajectories are repeated here, since each is trained on its own. The learner decides what
    it computes once.
    """

    segments: tuple[TokenSegment, ...]
    sequences: tuple[TrainingSequence, ...]

    @property
    def num_trained_tokens(self) -> int:
        return sum(sum(segment.mask) for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A published policy: tensors by name (an adapter, or the full model). Only modules that use torch read the
    tensors.

    Between processes, the policy is one safetensors file and its fingerprint.
    """

    tensors: Mapping[str, Any]
    """The tensors in memory, or a `models.tensor_files.TensorFile`, which reads each tensor on demand."""
    fingerprint: str


def concatenated(parts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return all parts joined into one tuple."""
    return tuple(item for part in parts for item in part)
