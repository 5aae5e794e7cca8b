"""Rewards and scorers that ask a model: announced before it is asked, and what that costs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sparring.checks.budgets import planned_episodes
from sparring.checks.registry import check
from sparring.checks.subject import Subject
from sparring.findings import Finding, Severity
from sparring.metering import current, read_usage
from sparring.prices import endpoint_cost
from sparring.types import Json

USUAL_VERDICTS = 120
"""What a check asks a judge for, about: four tasks with each scripted policy, and one right answer changed in all ways."""


def announcement(subject: Subject) -> str | None:
    """What a person reads before the first verdict is asked for; None where no model judges."""
    if not subject.model_judges:
        return None
    requests = USUAL_VERDICTS * sum(judge.num_votes for judge in subject.model_judges)
    return f"{_asked(subject)}, and so does this check: it takes some {requests} requests, equal ones once."


@check("budgets.model_judge", needs=("reward",))
async def model_judge(subject: Subject) -> Iterable[Finding]:
    """What a model that judges will cost in the run, as a note.

    An LLM judge is asked about each different episode, once a vote. Tokens of a verdict are those that this check took, and
    `tracking.prices` gives them a cost. This check plays fewer tasks where a model judges.
    """
    if not subject.model_judges:
        return []
    episodes = planned_episodes(subject)[1]
    requests = episodes * sum(judge.num_votes for judge in subject.model_judges)
    evidence: dict[str, Json] = {"models": [judge.model for judge in subject.model_judges], "episodes": episodes}
    evidence |= {"requests": requests, **_cost(requests, subject.config.tracking.prices)}
    cost = f", a cost of {evidence['cost']:.4g}" if "cost" in evidence else ""
    return [
        Finding(
            rule="budgets.model_judge",
            severity=Severity.NOTE,
            symptom=f"{_asked(subject)}: {requests} requests for the {episodes} episodes of the run, if no two are alike{cost}.",
            evidence=evidence,
            change="Nothing, if you have that; else fewer votes, fewer episodes, or rules for what rules can decide.",
            confirm="`sparring runs show RUN` counts requests and tokens of the endpoint after some steps.",
        )
    ]


def _asked(subject: Subject) -> str:
    names = ", ".join(dict.fromkeys(judge.model for judge in subject.model_judges))
    return f"reward or scorer ask the model {names}"


def _cost(requests: int, prices: dict[str, float]) -> dict[str, Json]:
    """Of so many requests, by what this check was asked for; empty where no endpoint reported tokens."""
    meter = current()
    known = [] if meter is None else [one for one in read_usage(Path(meter[0])) if one.read is not None]
    if not known:
        return {}
    # Other endpoints than the judge's (a simulated user) are asked less, and for less.
    used = max(known, key=lambda one: one.read or 0)
    answered = max(1, used.requests - used.failed - used.unreported)
    read, sampled, cached = (
        round(requests * (count or 0) / answered) for count in (used.read, used.sampled, used.cached)
    )
    cost = endpoint_cost(used.endpoint, read=read, sampled=sampled, cached=cached, prices=prices)
    return {"tokens_read": read, "tokens_sampled": sampled, **({} if cost is None else {"cost": cost})}
