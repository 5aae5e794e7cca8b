"""A symptom of the agents' clients: they send back changed conversation histories."""

from __future__ import annotations

from collections.abc import Iterable

from sparring.diagnosis.observed import LATE_STEPS, Observed
from sparring.findings import Finding, Severity

COSTLY = 0.1
"""The largest share of the episodes' tokens that may be computed twice."""
CHANGES = {
    "edited_history": "Send each message back unchanged: the answers with their text and calls.",
    "dropped_text": "Send an answer's text back together with its tool calls.",
    "system_changed": "Keep the system message the same for the whole conversation: put what changes into the newest message.",
    "tools_changed": "Offer the same tools, in the same order and wording, in every request of a conversation. If they change "
    "on purpose (`available_tools`), change them rarely.",
    "splice_refused": "Use a chat template that renders an answer in the same way when messages follow it; the turns of the "
    "trajectories state what the template changes.",
}


def changed(observed: Observed) -> Iterable[Finding]:
    """Report that clients send back changed histories, so that training computes a tenth of the episodes' tokens a
    second time."""
    again, tokens = observed.now("rollout/tokens/played_again"), observed.now("rollout/tokens/of_episodes")
    if not tokens or again / tokens < COSTLY:
        return
    reasons = {reason: observed.now(f"rollout/breaks/{reason}") for reason in CHANGES}
    worst = max(reasons, key=lambda reason: reasons[reason])
    clients = _clients_that_change(observed, worst)
    client = max(clients, key=lambda one: clients[one], default=None)
    yield Finding(
        rule="histories.changed",
        severity=Severity.WARNING,
        symptom=f"{client or 'the agent'} sends changed histories back ({worst}: {reasons[worst]:.0%} of the "
        f"turns), so that {again / tokens:.0%} of the episodes' tokens are rendered and trained on as context a second time.",
        evidence={
            "steps": observed.late_steps,
            "played_again": round(again),
            "of_episodes": round(tokens),
            "breaks": {reason: round(share, 4) for reason, share in reasons.items() if share},
            "clients": clients,
        },
        change=CHANGES[worst],
        confirm=f"rollout/breaks/{worst} falls to 0, and so does rollout/tokens/played_again.",
        step=observed.history.last_step,
        confirm_after=1,
    )


def _clients_that_change(observed: Observed, reason: str) -> dict[str, float]:
    """Return the share of each client's turns whose history was changed in this way."""
    prefix, suffix = "rollout/clients/", f"/breaks/{reason}"
    names = {name for one in observed.trained[-LATE_STEPS:] for name in one.metrics if name.startswith(prefix)}
    return {
        name.removeprefix(prefix).removesuffix(suffix): round(observed.now(name), 4)
        for name in sorted(names)
        if name.endswith(suffix)
    }
