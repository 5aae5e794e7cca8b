"""How many episodes a run may lose to infrastructure before somebody must hear of it, and before it stops."""

from __future__ import annotations

from typing import final

from sparring.errors import ServiceError
from sparring.findings import Finding, Severity

TOLD_SHARE = 0.01
"""Of the training episodes; from here on a finding says so."""
FEWEST = 50
"""Episodes before which no share is judged: MAX_LOST_IN_A_ROW stops a world that is down from the start."""


@final
class FailureBudget:
    """Counts the training episodes that were lost although they were tried again."""

    def __init__(self, max_lost_share: float) -> None:
        self._max_lost_share = max_lost_share
        self._was_told = False
        self.num_planned = 0
        self.num_lost = 0

    def count(self, num_planned: int, num_lost: int) -> None:
        """Of one group. Raises ServiceError when the budget is used up."""
        self.num_planned += num_planned
        self.num_lost += num_lost
        if self.num_planned >= FEWEST and self.num_lost > self._max_lost_share * self.num_planned:
            raise ServiceError(
                f"{self.num_lost} of {self.num_planned} training episodes were lost to infrastructure although they were tried "
                f"again, more than rollout.max_lost_share = {self._max_lost_share:g}: what is left is a choice that nobody made. "
                "`sparring runs show` and the ledger have the reasons; mend the environment, and resume the run."
            )

    def finding(self, step: int) -> Finding | None:
        """Once, from the step on after which more than TOLD_SHARE were lost."""
        if self._was_told or self.num_planned < FEWEST or self.num_lost <= TOLD_SHARE * self.num_planned:
            return None
        self._was_told = True
        return Finding(
            rule="rollouts.lost",
            severity=Severity.WARNING,
            symptom=f"{self.num_lost} of {self.num_planned} training episodes were lost to infrastructure for good.",
            evidence={"lost": self.num_lost, "planned": self.num_planned, "told_from": TOLD_SHARE},
            change="Mend what the ledger's reasons name (`detail` of what was discarded as infra_error or env_timeout).",
            confirm="rollout/lost stays at 0.",
            step=step,
        )
