"""The plain, frozen values that every part exchanges. Read this file and `protocols.py` first.

A Task is played as an episode; each call of the policy in it is a Turn; the finished episode is a Trajectory; the
trajectories of one task form a TrajectoryGroup; groups become a TrainingBatch. Values are built once, complete, and
their containers are treated as read-only. `None` means "there is none", never "not yet".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

Json: TypeAlias = Any
"""A value that `json.dumps` accepts; what environments, agents and rewards exchange with the core."""

Message: TypeAlias = Mapping[str, Json]
"""A chat message in the OpenAI shape: role, content, tool_calls, tool_call_id."""

ToolSchema: TypeAlias = Mapping[str, Json]
"""A tool in the OpenAI shape: {"type": "function", "function": {"name", "description", "parameters"}}."""


class Outcome(StrEnum):
    """How an episode ended."""

    FINISHED = "finished"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    POLICY_TIMEOUT = "policy_timeout"
    POLICY_ERROR = "policy_error"
    CLIENT_ERROR = "client_error"
    """The gateway refused the agent's last request, and what it refused is not the policy's output."""
    REWARD_ERROR = "reward_error"
    """The agent gave no reward, and the recipe names no reward function."""
    INFRASTRUCTURE_ERROR = "infrastructure_error"

    @property
    def is_lost(self) -> bool:
        """Whether such an episode is kept out of learning, means and baselines, and only counted."""
        return self in (Outcome.CLIENT_ERROR, Outcome.REWARD_ERROR, Outcome.INFRASTRUCTURE_ERROR)


class StopReason(StrEnum):
    """Why the policy stopped a turn."""

    STOP = "stop"
    LENGTH = "length"


class UntrainedReason(StrEnum):
    """Why a turn was played and is not trained."""

    NOT_RECEIVED = "not_received"
    """Its answer got lost on its way, and nothing continues it."""
    NOT_LEARNING = "not_learning"
    """Of a policy beside the one in training."""
    NO_IDS = "no_ids"
    """An endpoint or a script answered, and told no tokens."""
    GREEDY = "greedy"
    TOP_P = "top_p"
    OVERRULED = "overruled"
    """A constraint kept the policy from what it would have said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem. `fields` holds everything else the dataset says, ground truth among it; the agent never sees it."""

    id: str
    messages: tuple[Message, ...]
    fields: Mapping[str, Json] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a turn is sampled. `temperature` 0 is greedy; `max_tokens` bounds one turn."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """The form that a client wants an answer to have. The default leaves it to the policy."""

    tool_choice: Literal["auto", "none", "required"] = "auto"
    tool_name: str | None = None
    """With "required": the one tool to call, once."""
    parallel_tool_calls: bool = True
    """Whether there may be several calls."""
    response_format: Mapping[str, Json] | None = None
    """Of an answer without calls, as OpenAI's chat completions spell it: `json_object`, or `json_schema` with its name,
    its schema and whether to be `strict`. None is free text."""

    @property
    def schema(self) -> Mapping[str, Json] | None:
        """The JSON schema that the `response_format` asks for."""
        match self.response_format:
            case None:
                return None
            case {"json_schema": named}:
                return named["schema"]
        return {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A grammar that the text of an answer follows, its stop id apart.

    `grammar` is in llguidance's variant of Lark and begins at `start`; `@name` in it is JSON that follows the schema of
    that name (https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md).
    """

    grammar: str
    schemas: tuple[tuple[str, str], ...] = ()
    """Names and JSON schemas as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """What an engine is asked: continue `prompt_ids` for one turn of one session.

    `seed` fixes the random stream of this turn, whatever else runs beside it. `order` is the session's place
    (task position, attempt, turn) by which a deterministic engine sorts a round.
    """

    session_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    stop_ids: frozenset[int]
    seed: int
    stop_texts: tuple[str, ...] = ()
    """The answer also ends with the token that completes one of these."""
    order: tuple[int, ...] = ()
    deadline: float | None = None
    """Monotonic seconds after which the engine gives up with PolicyTimeout; None waits as long as the caller."""
    constraint: Constraint | None = None
    """What the answer must follow; log-probabilities are then of what was left to choose from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine answers; a Turn is a prompt plus its completion."""

    token_ids: tuple[int, ...]
    """The sampled ids, the stop id included when the policy sampled it."""
    sampled_logprobs: tuple[float, ...]
    """Same length; natural log-probabilities under the post-temperature distribution that was sampled from."""
    stop_reason: StopReason
    versions: tuple[tuple[int, int], ...]
    """Policy versions as run lengths (version, num_tokens)."""
    fingerprint: str
    """Content hash of the weights of the last version."""
    num_computed_tokens: int
    """Tokens that went through the model for this turn: new prompt tokens plus sampled ones."""
    removed_mass: float = 0.0
    """The largest probability, in [0, 1] after the temperature, that the constraint took away at any token."""


MAX_REMOVED_MASS = 1e-3
"""The probability that a constraint may have taken away at a token for the turn to be trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How many tokens a turn had, as an endpoint counts them that does not report which."""

    num_prompt_tokens: int
    num_sampled_tokens: int
    num_cached_tokens: int | None = None
    """Of the prompt's, those that the endpoint had in a cache; None where it does not report that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRequest:
    """What an engine that speaks in messages is asked: the next message of the assistant."""

    session_id: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    sampling: Sampling
    seed: int | None = None
    """Of this turn, for engines that heed one."""
    stop_texts: tuple[str, ...] = ()
    answer_format: AnswerFormat = AnswerFormat()
    deadline: float | None = None
    """As in SampleRequest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAnswer:
    """What such an engine answers: no ids, no log-probabilities."""

    message: Message
    stop_reason: StopReason
    usage: Usage | None = None
    """None when the engine does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One policy call, token for token.

    If `parent` is not None then `prompt_ids` starts with the parent's prompt_ids + token_ids; a turn without parent
    starts a root, and for every root after the first `branch_reason` says why the history did not extend.

    A turn of an engine that speaks in messages has no ids and no log-probabilities, and is never trained.
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
    """As the completion's."""
    stop_text: str | None = None
    """Of the stop texts that the request named, the one that ended the answer; for who asked, not in the ledger."""
    usage: Usage | None = None
    """Of a turn without ids: how many there were, where the engine says so; not in the ledger."""
    is_received: bool = True
    """Whether its answer reached who asked, or something continues it."""
    policy: str | None = None
    """Which of the episode's named policies played it; None is the main one."""
    learns: bool = True
    """Whether that policy is the one in training. The tokens of a user simulator or a frozen opponent are in no loss."""
    began: float | None = field(default=None, compare=False)
    """Seconds from the beginning of the episode until it was asked for; None where nobody knows. Not in the ledger."""
    client: str | None = field(default=None, compare=False)
    """Which program asked for it through the gateway, by its User-Agent. Not in the ledger."""

    @property
    def oldest_version(self) -> int:
        return min(version for version, _ in self.versions)

    @property
    def num_prompt_tokens(self) -> int:
        """Counted, or told by the engine; 0 when neither."""
        return len(self.prompt_ids) if self.usage is None else self.usage.num_prompt_tokens

    @property
    def num_sampled_tokens(self) -> int:
        """Counted, or told by the engine; 0 when neither."""
        return len(self.token_ids) if self.usage is None else self.usage.num_sampled_tokens

    @property
    def untrained_reason(self) -> UntrainedReason | None:
        """None for a turn that somebody received, whose tokens are known and were drawn from the whole distribution that
        the learner sees. Where a client asked for the likeliest token, or for a part of the distribution, the learner's
        ratio would compare two different ones."""
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
        """Whether its tokens are learned from when its trajectory is."""
        return self.untrained_reason is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The training signal of one trajectory.

    `per_turn` maps turn ids to their rewards and sums to `total` when given. `components` are the named parts the
    total is made of; `metrics` are further numbers to chart that do not enter it.
    """

    total: float
    per_turn: Mapping[int, float] | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    record: Mapping[str, Json] = field(default_factory=dict)
    """What it was judged by, stored with the episode: a judge's model, prompt and votes."""


@dataclass(frozen=True, slots=True)
class Score:
    """The judgement of one trajectory, which is never trained on.

    `value` is in [0, 1], and 1 is exactly what is wanted. `parts` are named sub-scores in [0, 1] that say what a value is
    made of or what came beside it (each field, completion, format, tool use, an exhausted budget); they are charted and
    shown with disagreements, and enter no number.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One played episode: its turns (a tree, nearly always a line), how it ended, what it earned."""

    id: str
    task: Task
    attempt: int
    """The member of the group that this is, from 0."""
    turns: tuple[Turn, ...]
    """Those of the policy in training, under whatever names, by id: what rewards, credit and learning are about."""
    messages: tuple[Message, ...]
    """The conversation as the agent saw it at the end."""
    outcome: Outcome
    reward: Reward | None
    score: float | None
    """The scorer's judgement in [0, 1]; never used to train."""
    score_parts: Mapping[str, float] = field(default_factory=dict)
    """The scorer's named sub-scores; empty where it has none."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    transitions: tuple[Mapping[str, Json], ...] = ()
    """The environment's own log, one entry per tool call; apart from what the agent saw."""
    final_state: Json = None
    """What the environment said its world was like at the end; None where it says nothing."""
    error: str | None = None
    began: float | None = field(default=None, compare=False)
    """When it was begun, in seconds since 1970; None where nobody knows."""
    seconds: float = 0.0
    other_turns: tuple[Turn, ...] = ()
    """Those of policies that do not learn (a user simulator, a frozen opponent). Ids are unique over both."""

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
        """Ids of the turns that answer each message of the user, in order.

        An answer ends with a turn that calls no tool. The last one may be incomplete, where the episode was cut."""
        answers: list[list[int]] = [[]]
        for turn in self.turns:
            answers[-1].append(turn.id)
            if not turn.message.get("tool_calls") and not turn.message.get("malformed_tool_calls"):
                answers.append([])
        return tuple(tuple(answer) for answer in answers if answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """The trajectories of one task that may be learned from. Lost members (`Outcome.is_lost`) are only counted."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    num_lost: int = 0
    num_client_errors: int = 0
    """Of those that were lost, the ones whose outcome is CLIENT_ERROR."""
    num_unrewarded: int = 0
    """The same for REWARD_ERROR."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Requests of all members, lost ones and repeated attempts among them, that the gateway refused, by reason."""
    not_read: Mapping[str, int] = field(default_factory=dict)
    """Requests of the same that it accepted without reading a field, by the field."""

    @property
    def rewards(self) -> list[float]:
        """Total rewards, one a trajectory. Every member has one: collectors admit no trajectory without."""
        rewards = [trajectory.reward for trajectory in self.trajectories]
        assert all(reward is not None for reward in rewards), "a trajectory without reward was admitted"
        return [reward.total for reward in rewards if reward is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSegment:
    """Tokens of one branch of the forest; they follow the tokens of `parent` and are computed once.

    `mask`, `sampled_logprobs`, `advantages` and `weights` are as long as `token_ids`. Where the mask is False the
    others are 0. `weights` carries the reduction: the loss is the sum of weight * per-token loss.
    """

    parent: int | None
    """Index of the parent in TrainingBatch.segments, always smaller than this segment's own index."""
    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    sampled_logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    temperature: float
    """Of the sampled tokens: the learner divides logits by it, so that both see the same distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One root-to-leaf path through the forest: what one rollout's line of turns looked like to the model."""

    segments: tuple[int, ...]
    trajectory_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """A forest of token segments. No caller may assume that shared segments are expanded."""

    segments: tuple[TokenSegment, ...]
    sequences: tuple[TrainingSequence, ...]

    @property
    def num_tokens(self) -> int:
        """Distinct tokens: what the model has to compute."""
        return sum(len(segment.token_ids) for segment in self.segments)

    @property
    def num_trained_tokens(self) -> int:
        return sum(sum(segment.mask) for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A published policy: tensors by name (an adapter, or the full model), opaque outside the torch doors."""

    tensors: Mapping[str, Any]
    fingerprint: str


def concatenated(parts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """All parts one after the other."""
    return tuple(item for part in parts for item in part)
