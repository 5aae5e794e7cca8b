"""Rules on the model's success before training: reinforcement learning amplifies existing behavior and does not create
new behavior."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sparring.checks.evidence.model_episodes import (
    BaselineRun,
    may_fail_at_first,
    run_model_baseline,
    run_reference_baseline,
)
from sparring.checks.evidence.subject import Subject
from sparring.checks.rules.budgets import find_limits_met
from sparring.findings import Finding, Severity
from sparring.tracking.refused import refused_reasons
from sparring.types import Json

MINUTES = 30 * 60.0


async def success(subject: Subject) -> Iterable[Finding]:
    """Before training, the model succeeds in some of 100 episodes, but not in all.

    The success rate is measured with a 95 % confidence interval over tasks, and episodes are sampled as in training. No
    success at all is an error, because nothing would be reinforced. In this case, make the task easier, or begin with
    demonstrations ([warm_start]). If the recipe has a warm start, the finding is a note, because the first validation
    of the run measures the effect of the demonstrations. A model that succeeds in nearly all episodes has nothing left
    to learn.
    """
    played = await run_model_baseline(subject)
    return find_success(played, subject)


async def limits(subject: Subject) -> Iterable[Finding]:
    """In the baseline, under 5 % of turns end at the token cap, and under 10 % of episodes end at the turn limit
    without an answer.

    The shares are measured in the same way as `budgets.at_limits` measures them in a stored run. Raise
    `sampling_max_tokens` for the first problem, and `max_turns` for the second. If the recipe has a warm start, the
    finding is a note: demonstrations teach the model when to stop.
    """
    played = await run_model_baseline(subject)
    stops = [turn.stop_reason.value for one in played.trajectories for turn in one.turns]
    found = find_limits_met(stops, [one.outcome.value for one in played.trajectories], "the baseline")
    severity = Severity.WARNING if subject.config.warm_start is None else Severity.NOTE
    return [replace(one, severity=severity, rule="baseline.limits") for one in found]


async def refusals(subject: Subject) -> Iterable[Finding]:
    """During the baseline, the gateway refuses no request from the agent's client.

    Many clients ignore a refusal and end as if nothing had happened. The policy is then scored on a request that it
    never received. The finding names the refused field or type. Configure the client to leave it out and to send only
    what is supported.
    """
    played = await run_model_baseline(subject)
    refused = refused_reasons(played.evaluation.metrics)
    if not refused:
        return []
    client_errors = played.evaluation.metrics.get("check/client_errors", 0.0)
    return [
        Finding(
            rule="baseline.refusals",
            severity=Severity.WARNING,
            symptom=f"the gateway refused {sum(refused.values()):.0f} requests of the agent's client, mostly "
            f"{next(iter(refused))}.",
            evidence={"reasons": refused, "client_errors": client_errors, "episodes": played.num_episodes},
            change="Configure the client to leave out or change the refused parts: docs/gateway.md lists what is "
            "supported.",
            confirm="Run `sparring check` again: nothing is refused.",
        )
    ]


async def reference(subject: Subject) -> Iterable[Finding]:
    """The note states the score of a reference endpoint on the same tasks. The rule warns if the endpoint never
    succeeds.

    If even a strong model never succeeds, the cause is probably a defect in the task, the tools or the scorer, and not
    the size of the model. Read its episodes before you do anything else.
    """
    found = []
    for one in subject.user_inputs.reference:
        played = await run_reference_baseline(subject, one)
        found.append(
            Finding(
                rule="baseline.reference",
                severity=Severity.NOTE if played.num_successes else Severity.WARNING,
                symptom=f"{played.evaluation.name} succeeds in {played.num_successes} of {played.num_episodes} "
                f"episodes.",
                evidence=_numbers(played),
                change="If it never succeeds, read what the scorer rejects. Otherwise, change nothing.",
                confirm="Run `sparring check` with the same --reference again.",
            )
        )
    return found


def find_success(played: BaselineRun, subject: Subject) -> list[Finding]:
    """Return the findings on a model's baseline, which show whether the model is likely to learn."""
    config, rate = subject.config, played.evaluation.success
    if played.num_successes:
        is_done = rate.mean > 0.95
        severity = Severity.WARNING if is_done else Severity.NOTE
        change = "Choose harder tasks: groups that all succeed teach nothing." if is_done else "Nothing."
    else:
        severity = Severity.NOTE if may_fail_at_first(config) else Severity.ERROR
        change = "Make the task easier, or add a [warm_start] on demonstrations."
        if config.warm_start is not None:
            change = "Change nothing yet: the first validation of the run measures the effect of the warm start."
    return [
        Finding(
            rule="baseline.success",
            severity=severity,
            symptom=f"the model succeeds in {played.num_successes} of {played.num_episodes} episodes "
            f"({rate.mean:.2f} [{rate.low:.2f}, {rate.high:.2f}]).",
            evidence={**_numbers(played), "warm_start": config.warm_start is not None},
            change=change,
            confirm="The first validation of the run shows the same number.",
        )
    ]


def _numbers(played: BaselineRun) -> dict[str, Json]:
    rate, score = played.evaluation.success, played.evaluation.score
    return {
        "success": [rate.mean, rate.low, rate.high],
        "score": [score.mean, score.low, score.high],
        "episodes": played.num_episodes,
        "tasks": len(played.evaluation.task_ids),
        "seconds": round(played.evaluation.seconds, 1),
        **_tokens(played),
    }


def _tokens(played: BaselineRun) -> dict[str, Json]:
    """Return the numbers of read and sampled tokens. They are null for an endpoint that reported no token counts."""
    turns = [turn for one in played.trajectories for turn in one.turns]
    is_known = all(turn.token_ids or turn.usage is not None for turn in turns)
    return {
        "read_tokens": sum(turn.num_prompt_tokens for turn in turns) if is_known else None,
        "sampled_tokens": sum(turn.num_sampled_tokens for turn in turns) if is_known else None,
    }
