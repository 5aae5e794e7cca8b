"""The errors that a user can act on, with one class per exit code, and the errors that end a single episode.

    SparringError
    ├── UsageError                 exit 2: the command line or the recipe
    │   └── ConfigError            all problems of a recipe at once
    ├── DataError                  exit 3: datasets, demonstrations, checkpoints, stored runs
    │   └── ConstraintError        an answer cannot be constrained to the requested form
    ├── ServiceError               exit 4: environment, model files, a missing package or server
    │   └── DiskError              a disk is full, is read-only or fails
    ├── GateError                  exit 5: a gate stopped the run (no successes at baseline, ...)
    └── EpisodeError               ends one episode, never the run
        ├── InfrastructureError    retried, then kept out of learning
        ├── ClientError            the gateway refused the agent's last request; kept out of learning
        ├── OutputRefused          the gateway refused a request because of the policy's output in it
        ├── PolicyTimeout          the policy did not finish in time
        ├── ContextOverflow        the next turn would not fit the model's context
        ├── TurnLimit              the episode has used all its turns
        ├── TokenLimit             the episode has sampled all its tokens
        └── RewardError            the reward is missing, or not a number

Each message states what was given, why it cannot work, and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_SHOWN = 20
"""The number of problems of a recipe that a message lists."""
_MOST_OF_KEY, _MOST_OF_PROBLEM = 120, 600


class SparringError(Exception):
    """Base class of all errors that are reported without a traceback."""

    exit_code = 1


def cut(text: str, most: int) -> str:
    """Return a text with at most this number of characters. What is too much is left out of its middle, because a message
    begins with what was given and ends with what to do."""
    if len(text) <= most:
        return text
    mark = f" ... ({len(text) - most:,} characters) ... "
    end = (most - len(mark)) // 3
    return text[: most - len(mark) - end] + mark + text[-end:]


class UsageError(SparringError):
    exit_code = 2


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One problem of a recipe: its position, the given value, and what would work."""

    key: str
    message: str


class ConfigError(UsageError):
    """All problems of a recipe at once, each with its key path."""

    def __init__(self, problems: list[ConfigProblem], source: str = "the recipe") -> None:
        self.problems = problems
        shown = [
            f"  {cut(one.key, _MOST_OF_KEY)}: {cut(one.message, _MOST_OF_PROBLEM)}" for one in problems[:MOST_SHOWN]
        ]
        if len(problems) > MOST_SHOWN:
            shown.append(f"  and {len(problems) - MOST_SHOWN:,} more")
        lines = "\n".join(shown)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{count} in {source}:\n{lines}")


class DataError(SparringError):
    exit_code = 3


class ConstraintError(DataError):
    """An answer cannot be constrained to the requested form.

    `schema` names the JSON schema that cannot be enforced, as in `types.Constraint.schemas`. It is None if the cause is
    not a schema."""

    def __init__(self, message: str, *, schema: str | None = None) -> None:
        super().__init__(message)
        self.schema = schema


class ServiceError(SparringError):
    exit_code = 4


class DiskError(ServiceError):
    """A file could not be written. Its previous content is unchanged."""


class GateError(SparringError):
    exit_code = 5


class EpisodeError(SparringError):
    """Ends one episode, never the run."""


class InfrastructureError(EpisodeError):
    """A service or the environment failed; the policy is not the cause. User code may raise this error. The attempt is
    retried, and if it keeps failing, it is left out of learning."""


class AgentFailed(InfrastructureError):
    """The code of an agent behind a URL or in a worker failed, or the agent gave up on the episode. After the first
    turn, the policy counts as the cause of the failure, as it does for an exception in an agent function."""


class AgentLost(InfrastructureError):
    """The worker that ran the agent disappeared after a turn of the policy. Its machine may have failed, or the policy's
    output may have ended it."""


class EnvironmentFailed(InfrastructureError):
    """The code of an environment raised an exception, but no InfrastructureError. After the first turn, the policy counts
    as the cause, because this code works on the policy's output."""


class AgentTimeout(AgentFailed):
    """An agent did not finish in time and requested no other turn. After the first turn, this counts as a timeout of
    the policy, because the policy's output determines what the agent waits for."""


class WorkerLost(InfrastructureError):
    """The worker process of an episode has ended.

    `was_running` states whether this episode's code was running in the process. If so, this code may have terminated
    the process, but so may the code of another episode. `death` is the same text for all episodes that the process had,
    and another one for each other process."""

    def __init__(self, message: str, *, was_running: bool, death: str = "") -> None:
        super().__init__(message)
        self.was_running, self.death = was_running, death


class ClientError(EpisodeError):
    """The gateway refused the agent's last request because of the client's own input: a field, an item type, or a body
    that is not JSON. A retry would fail in the same way."""


class OutputRefused(EpisodeError):
    """The gateway refused the agent's last request, possibly because of the policy's output in it."""


class PolicyTimeout(EpisodeError):
    """The policy did not finish a turn before its deadline."""


class ContextOverflow(EpisodeError):
    """The next prompt leaves no tokens for an answer in the model's context window."""


class TurnLimit(EpisodeError):
    """The episode has used all its turns."""


class TokenLimit(EpisodeError):
    """The episode has sampled all its tokens."""


class RewardError(EpisodeError):
    """The reward or another part of an agent's report is missing, not finite, or of the wrong type."""
