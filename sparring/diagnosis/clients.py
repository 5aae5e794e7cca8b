"""A symptom of the agent's client: the gateway rejects its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sparring.diagnosis.observed import LATE_STEPS, Observed
from sparring.findings import Finding, Severity
from sparring.tracking.refused import refused_reasons


def refused(observed: Observed) -> Iterable[Finding]:
    """Report that the gateway rejected requests from the agent's client in the last steps, or before the run ended
    without a step.

    Many clients hide a rejected request, which makes the policy look worse than it is. The finding is an error if at
    least a fifth of the episodes are lost.
    """
    reasons = _count_reasons(observed)
    lost, attempts = observed.attempts.refused, observed.attempts
    if not reasons and (observed.trained or not lost):
        return
    total = attempts.played + lost + sum(attempts.failed.values())
    share = observed.now("rollout/outcome/client_error") if observed.trained else lost / max(1, total)
    named = ", ".join(reason for reason, _ in reasons.most_common(3)) or attempts.refusal
    yield Finding(
        rule="clients.refused",
        severity=Severity.ERROR if share >= MANY_REFUSED else Severity.WARNING,
        symptom=f"the gateway refuses requests of the agent's client ({named}); {share:.1%} of the episodes are lost "
        "because of it.",
        evidence={
            "steps": observed.late_steps,
            "reasons": dict(reasons),
            "lost_share": round(share, 4),
            "lost": lost,
            "last": attempts.refusal,
        },
        change="Remove or change these parts of the client's requests; docs/gateway.md lists what the gateway accepts.",
        confirm="rollout/refused_requests is 0.",
        step=observed.history.last_step,
        confirm_after=LATE_STEPS,
    )


def _count_reasons(observed: Observed) -> Counter[str]:
    """Return how many requests of the last steps were rejected for each reason."""
    reasons = Counter[str]()
    for record in observed.trained[-LATE_STEPS:]:
        reasons.update({reason: int(number) for reason, number in refused_reasons(record.metrics).items()})
    return reasons


MANY_REFUSED = 0.2
"""The share of episodes lost to refusals above which the run cannot be trusted."""
