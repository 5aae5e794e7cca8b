"""The budget of lost episodes, with the share at which a finding reports them and the share at which the run stops."""

from __future__ import annotations

from typing import final

from sparring.errors import ServiceError
from sparring.findings import Finding, Severity

REPORTED_SHARE = 0.01
"""The share of lost training episodes above which a finding reports them."""
FEWEST = 50
"""The minimum number of episodes before the share is checked. MAX_LOST_IN_A_ROW stops a run whose environment is down
from the start."""


@final
class FailureBudget:
    """Counts the training episodes that were permanently lost, and those that broke their environment or agent again and
    again. Stops the run if there are too many, because then the cause is more likely a defect than the policy."""

    def __init__(self, max_lost_share: float) -> None:
        self._max_lost_share = max_lost_share
        self._is_reported = False
        self.num_planned = 0
        self.num_lost = 0
        self.num_client_errors = 0
        self.num_unrewarded = 0
        self.num_broken = 0

    @property
    def causes(self) -> str:
        """The number of lost episodes for each cause, with advice on how to correct it."""
        num_failed = self.num_lost - self.num_client_errors - self.num_unrewarded
        causes = []
        if num_failed:
            causes.append(
                f"{num_failed} because of infrastructure failures, despite retries: the environment, the engine or the "
                "agent's server failed"
            )
        if self.num_client_errors:
            causes.append(
                f"{self.num_client_errors} because the gateway refused their client's last request: the agent's "
                "client sends requests that are not supported"
            )
        if self.num_unrewarded:
            causes.append(
                f"{self.num_unrewarded} because the agent reported no reward and the recipe names none: report "
                "a reward, or set reward.reward"
            )
        if self.num_broken:
            causes.append(
                f"{self.num_broken} failed because the environment's code or the agent's worker ended in several attempts; they "
                "were scored as failures of the policy"
            )
        return "; ".join(causes)

    def count(
        self, num_planned: int, num_lost: int, num_client_errors: int = 0, num_unrewarded: int = 0, num_broken: int = 0
    ) -> None:
        """Add the counts of one group. Raises ServiceError if the budget is used up."""
        self.num_planned += num_planned
        self.num_lost += num_lost
        self.num_client_errors += num_client_errors
        self.num_unrewarded += num_unrewarded
        self.num_broken += num_broken
        num_bad = self.num_lost + self.num_broken
        if self.num_planned >= FEWEST and num_bad > self._max_lost_share * self.num_planned:
            raise ServiceError(
                f"{num_bad} of {self.num_planned} training episodes were lost. This exceeds "
                f"rollout.max_lost_share = {self._max_lost_share:g}, so the remaining episodes are a biased sample of the tasks "
                f"({self.causes}). `sparring runs show` and the ledger list the reasons. Correct the cause, and resume the run."
            )

    def finding(self, step: int) -> Finding | None:
        """Return a finding at the first step at which more than REPORTED_SHARE of the episodes are lost. Return None at
        all other steps."""
        if self._is_reported or self.num_planned < FEWEST or self.num_lost <= REPORTED_SHARE * self.num_planned:
            return None
        self._is_reported = True
        return Finding(
            rule="rollouts.lost",
            severity=Severity.WARNING,
            symptom=f"{self.num_lost} of {self.num_planned} training episodes were permanently lost: {self.causes}.",
            evidence={
                "lost": self.num_lost,
                "client_errors": self.num_client_errors,
                "unrewarded": self.num_unrewarded,
                "planned": self.num_planned,
                "told_from": REPORTED_SHARE,
            },
            change="Correct the causes that the ledger names (`detail` of rollouts discarded as infra_error, env_timeout, "
            "client_error or reward_error).",
            confirm="rollout/lost stays at 0.",
            step=step,
        )
