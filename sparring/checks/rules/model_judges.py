"""Rule on rewards and scorers that call an LLM judge. The cost is announced before the first request."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sparring.checks.evidence.subject import Subject
from sparring.checks.rules.budgets import count_planned_episodes
from sparring.findings import Finding, Severity
from sparring.metering.prices import endpoint_cost
from sparring.metering.usage import current_meter, read_usage
from sparring.types import Json

USUAL_VERDICTS = 120
"""An estimate of a check's requests to a judge: four tasks with each scripted policy, and one correct answer changed in
all ways."""


def announce(subject: Subject) -> str | None:
    """Return the announcement before the first request to a judge, or None if no LLM judge grades."""
    if not subject.model_judges:
        return None
    requests = USUAL_VERDICTS * sum(judge.num_votes for judge in subject.model_judges)
    plan = f"it makes about {requests} requests. Equal requests are sent only once."
    return f"{_asked(subject)}, and so does this check: {plan}"


async def model_judge(subject: Subject) -> Iterable[Finding]:
    """The note states what an LLM judge will cost in the run.

    An LLM judge is called once per vote for each different episode. The number of tokens per grade is measured in this
    check, and `tracking.prices` gives their cost. If an LLM judge grades, this check runs fewer tasks.
    """
    if not subject.model_judges:
        return []
    episodes = count_planned_episodes(subject)[1]
    requests = episodes * sum(judge.num_votes for judge in subject.model_judges)
    evidence: dict[str, Json] = {"models": [judge.model for judge in subject.model_judges], "episodes": episodes}
    evidence |= {"requests": requests, **_cost(requests, subject.config.tracking.prices)}
    cost = f", a cost of {evidence['cost']:.4g}" if "cost" in evidence else ""
    return [
        Finding(
            rule="budgets.model_judge",
            severity=Severity.NOTE,
            symptom=f"{_asked(subject)}: {requests} requests for the {episodes} episodes of the run, if no two "
            f"episodes are equal{cost}.",
            evidence=evidence,
            change="Change nothing if you can afford this. Otherwise, use fewer votes, fewer episodes, or rules where "
            "rules can decide.",
            confirm="After some steps, `sparring runs show RUN` shows the requests and tokens of the endpoint.",
        )
    ]


def _asked(subject: Subject) -> str:
    names = ", ".join(dict.fromkeys(judge.model for judge in subject.model_judges))
    return f"reward or scorer call the model {names}"


def _cost(requests: int, prices: dict[str, float]) -> dict[str, Json]:
    """Return the tokens and the cost of this number of requests, estimated from the requests in this check. The result
    is empty if no endpoint reported tokens."""
    meter = current_meter()
    known = [] if meter is None else [one for one in read_usage(Path(meter[0])) if one.read is not None]
    if not known:
        return {}
    # Endpoints other than the judge's, such as the endpoint of a simulated user, get fewer and cheaper requests.
    used = max(known, key=lambda one: one.read or 0)
    answered = max(1, used.requests - used.failed - used.unreported)
    read, sampled, cached = (
        round(requests * (count or 0) / answered) for count in (used.read, used.sampled, used.cached)
    )
    cost = endpoint_cost(used.endpoint, read=read, sampled=sampled, cached=cached, prices=prices)
    return {"tokens_read": read, "tokens_sampled": sampled, **({} if cost is None else {"cost": cost})}
