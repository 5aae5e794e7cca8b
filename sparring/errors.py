"""What a user can act on: one class per exit code, and the failures that an episode may end with.

    SparringError
    ├── UsageError                 exit 2: the command line or the recipe
    │   └── ConfigError            all problems of a recipe at once
    ├── DataError                  exit 3: datasets, demonstrations, checkpoints, stored runs
    │   └── ConstraintError        an answer cannot be held to the form that was asked for
    ├── ServiceError               exit 4: environment, model files, a missing package or server
    │   └── DiskError              a disk is full, read-only or fails
    ├── GateError                  exit 5: a gate said no (no successes at baseline, ...)
    └── EpisodeError               never leaves an episode; the collector turns it into an Outcome or a discard
        ├── InfrastructureError    retried, then kept out of learning
        ├── ClientError            the gateway refused the agent's last request; kept out of learning
        ├── OutputRefused          the gateway refused a request for what the policy had said in it
        ├── PolicyTimeout          the policy did not finish in time
        ├── ContextOverflow        the next turn would not fit the model's context
        ├── TurnLimit              the episode has played all its turns
        ├── TokenLimit             the episode has sampled all its tokens
        └── RewardError            the reward never came, or is not a number

A message has three parts: what was given, why it cannot work, what to do.
"""

from __future__ import annotations

from dataclasses import dataclass


class SparringError(Exception):
    """Base of everything that is reported without a traceback."""

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
    """An answer cannot be held to the form that was asked for. `schema` names the JSON schema that is to blame, as in
    `types.Constraint.schemas`; None blames none of them."""

    def __init__(self, message: str, *, schema: str | None = None) -> None:
        super().__init__(message)
        self.schema = schema


class ServiceError(SparringError):
    exit_code = 4


class DiskError(ServiceError):
    """What was to be written is not; what was there is as it was."""


class GateError(SparringError):
    exit_code = 5


class EpisodeError(SparringError):
    """Ends one episode, never the run."""


class InfrastructureError(EpisodeError):
    """The world failed, not the policy. User code may raise it; the attempt is retried, then left out of learning."""


class AgentFailed(InfrastructureError):
    """The code of an agent behind a URL or of a worker failed, or gave the episode up. Once the policy has played a turn this is
    its doing, as where a function raises."""


class AgentTimeout(AgentFailed):
    """An agent was not done in time, nor did it ask for a further turn. Once the policy has played a turn it is the policy that
    was late: what the agent waits for follows from what the policy said."""


class WorkerLost(InfrastructureError):
    """The worker process that an episode was in is gone. `was_running` says whether code of this episode was under way there: it
    may be what ended the process, or have been beside that."""

    def __init__(self, message: str, *, was_running: bool) -> None:
        super().__init__(message)
        self.was_running = was_running


class ClientError(EpisodeError):
    """The gateway refused the agent's last request, and what it refused is the client's own: a field, an item type, a body
    that is no JSON. To play again would end alike."""


class OutputRefused(EpisodeError):
    """The gateway refused the agent's last request, and the policy's output may be what it refused."""


class PolicyTimeout(EpisodeError):
    """The policy did not finish a turn before its deadline."""


class ContextOverflow(EpisodeError):
    """The next prompt leaves no room for an answer in the model's context."""


class TurnLimit(EpisodeError):
    """The episode has played as many turns as it may."""


class TokenLimit(EpisodeError):
    """The episode has sampled as many tokens as it may."""


class RewardError(EpisodeError):
    """The reward is missing, not finite, or of the wrong type."""
