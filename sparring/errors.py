"""The errors that a user can act on: one class per exit code, and the failures that an episode may end with.

    SparringError
    ├── UsageError                 exit 2: the command line or the recipe
    │   └── ConfigError            all problems of a recipe at once
    ├── DataError                  exit 3: datasets, demonstrations, checkpoints, stored runs
    │   └── ConstraintError        an answer cannot be held to the requested form
    ├── ServiceError               exit 4: environment, model files, a missing package or server
    │   └── DiskError              a disk is full, read-only or fails
    ├── GateError                  exit 5: a gate refused (no successes at baseline, ...)
    └── EpisodeError               never leaves an episode; the collector turns it into an Outcome or a discard
        ├── InfrastructureError    retried, then kept out of learning
        ├── ClientError            the gateway refused the agent's last request; kept out of learning
        ├── OutputRefused          the gateway refused a request because of the policy's output in it
        ├── PolicyTimeout          the policy did not finish in time
        ├── ContextOverflow        the next turn would not fit the model's context
        ├── TurnLimit              the episode has used all its turns
        ├── TokenLimit             the episode has sampled all its tokens
        └── RewardError            the reward is missing, or not a number

A message has three parts: what was given, why it cannot work, what to do.
"""

from __future__ import annotations

from dataclasses import dataclass


class SparringError(Exception):
    """Base of all errors that are reported without a traceback."""

    exit_code = 1


class UsageError(SparringError):
    exit_code = 2


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing wrong with a recipe: where, what was given, and what would work."""

    key: str
    message: str


class ConfigError(UsageError):
    """All problems of a recipe at once, each with its key path."""

    def __init__(self, problems: list[ConfigProblem], source: str = "the recipe") -> None:
        self.problems = problems
        lines = "\n".join(f"  {problem.key}: {problem.message}" for problem in problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{count} in {source}:\n{lines}")


class DataError(SparringError):
    exit_code = 3


class ConstraintError(DataError):
    """An answer cannot be held to the requested form. `schema` names the JSON schema that cannot be followed, as in
    `types.Constraint.schemas`; None where no schema is the reason."""

    def __init__(self, message: str, *, schema: str | None = None) -> None:
        super().__init__(message)
        self.schema = schema


class ServiceError(SparringError):
    exit_code = 4


class DiskError(ServiceError):
    """A file could not be written; what was there before is unchanged."""


class GateError(SparringError):
    exit_code = 5


class EpisodeError(SparringError):
    """Ends one episode, never the run."""


class InfrastructureError(EpisodeError):
    """A service or the environment failed, not the policy. User code may raise it. The attempt is retried, then left out of
    learning."""


class AgentFailed(InfrastructureError):
    """The code of an agent behind a URL or in a worker failed, or gave the episode up. After the first turn this counts as the
    policy's doing, like an exception in an agent function."""


class AgentTimeout(AgentFailed):
    """An agent neither finished in time nor requested another turn. After the first turn this counts as the policy's timeout,
    because what the agent waits for follows from the policy's output."""


class WorkerLost(InfrastructureError):
    """The worker process of an episode has ended. `was_running` is whether code of this episode was running there: it may have
    ended the process, or another episode did."""

    def __init__(self, message: str, *, was_running: bool) -> None:
        super().__init__(message)
        self.was_running = was_running


class ClientError(EpisodeError):
    """The gateway refused the agent's last request because of the client's own part: a field, an item type, a body that is not
    JSON. A retry would end the same way."""


class OutputRefused(EpisodeError):
    """The gateway refused the agent's last request, and the policy's output may be the reason."""


class PolicyTimeout(EpisodeError):
    """The policy did not finish a turn before its deadline."""


class ContextOverflow(EpisodeError):
    """The next prompt leaves no tokens for an answer in the model's context."""


class TurnLimit(EpisodeError):
    """The episode has used all its turns."""


class TokenLimit(EpisodeError):
    """The episode has sampled all its tokens."""


class RewardError(EpisodeError):
    """The reward is missing, not finite, or of the wrong type."""
