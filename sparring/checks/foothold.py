"""Does the policy succeed sometimes? Reinforcement learning amplifies what happens; it creates nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sparring.checks.baseline import Played, may_fail_at_first, model_baseline, reference_baseline
from sparring.checks.budgets import limits_met
from sparring.checks.registry import check
from sparring.checks.subject import Subject
from sparring.findings import Finding, Severity
from sparring.tracking.refused import refused_reasons
from sparring.types import Json

MINUTES = 30 * 60.0


@check("foothold.baseline", needs=("model", "baseline"), seconds=MINUTES)
async def baseline(subject: Subject) -> Iterable[Finding]:
    """The model succeeds in some of 100 episodes before training, and not in all.

    Success with its 95 % interval over tasks, sampled as in training. None at all is an error: nothing would be reinforced.
    Make the task easier, or begin with demonstrations ([warm_start]); where the recipe has them this is a note, since the
    first validation of the run judges what they left. Nearly all leaves nothing to learn.
    """
    played = await model_baseline(subject)
    return foothold(played, subject)


@check("foothold.limits", needs=("model", "baseline"), seconds=MINUTES)
async def limits(subject: Subject) -> Iterable[Finding]:
    """Of the baseline, under 5 % of turns end at the token cap, and under 10 % of episodes at the turn limit unanswered.

    Measured as `budgets.at_limits` measures a stored run. Raise `sampling_max_tokens` for the first, `max_turns` for the
    second. A note where the recipe has a warm start: demonstrations teach where to end.
    """
    played = await model_baseline(subject)
    stops = [turn.stop_reason.value for one in played.trajectories for turn in one.turns]
    found = limits_met(stops, [one.outcome.value for one in played.trajectories], "the baseline")
    severity = Severity.WARNING if subject.config.warm_start is None else Severity.NOTE
    return [replace(one, severity=severity, rule="foothold.limits") for one in found]


@check("foothold.refusals", needs=("model", "baseline"), seconds=MINUTES)
async def refusals(subject: Subject) -> Iterable[Finding]:
    """The gateway refuses no request of the agent's client while the baseline is played.

    Many clients swallow a refusal and end as if nothing had happened: then the policy is scored for what it was never asked.
    The reason names the field or the type that was refused; leave it out, or set the client up to send what is read.
    """
    played = await model_baseline(subject)
    refused = refused_reasons(played.evaluation.metrics)
    if not refused:
        return []
    client_errors = played.evaluation.metrics.get("check/client_errors", 0.0)
    return [
        Finding(
            rule="foothold.refusals",
            severity=Severity.WARNING,
            symptom=f"the gateway refused {sum(refused.values()):.0f} requests of the agent's client, mostly "
            f"{next(iter(refused))}.",
            evidence={"reasons": refused, "client_errors": client_errors, "episodes": played.num_episodes},
            change="Have the client leave out or change what is refused: docs/gateway.md says what is read.",
            confirm="Run `sparring check` again: nothing is refused.",
        )
    ]


@check("foothold.reference", needs=("reference",), seconds=MINUTES)
async def reference(subject: Subject) -> Iterable[Finding]:
    """What a reference endpoint scores on the same tasks, as a note; a warning when it succeeds never.

    A strong model that never succeeds says that the task, the tools or the scorer are wrong, and not that the model is too
    small. Read its episodes before anything else.
    """
    found = []
    for one in subject.given.reference:
        played = await reference_baseline(subject, one)
        found.append(
            Finding(
                rule="foothold.reference",
                severity=Severity.NOTE if played.num_successes else Severity.WARNING,
                symptom=f"{played.evaluation.name} succeeds in {played.num_successes} of {played.num_episodes} episodes.",
                evidence=_numbers(played),
                change="If it never succeeds, read what the scorer rejects; else nothing.",
                confirm="Run `sparring check` with the same --reference again.",
            )
        )
    return found


def foothold(played: Played, subject: Subject) -> list[Finding]:
    """What a model's baseline says about its chances."""
    config, success = subject.config, played.evaluation.success
    if played.num_successes:
        is_done = success.mean > 0.95
        severity = Severity.WARNING if is_done else Severity.NOTE
        change = "Choose harder tasks: groups that all succeed teach nothing." if is_done else "Nothing."
    else:
        severity = Severity.NOTE if may_fail_at_first(config) else Severity.ERROR
        change = "Make the task easier, or add a [warm_start] on demonstrations."
        if config.warm_start is not None:
            change = "Nothing yet: the first validation of the run judges what the warm start leaves."
    return [
        Finding(
            rule="foothold.baseline",
            severity=severity,
            symptom=f"the model succeeds in {played.num_successes} of {played.num_episodes} episodes "
            f"({success.mean:.2f} [{success.low:.2f}, {success.high:.2f}]).",
            evidence={**_numbers(played), "warm_start": config.warm_start is not None},
            change=change,
            confirm="The first validation of the run shows the same number.",
        )
    ]


def _numbers(played: Played) -> dict[str, Json]:
    success, score = played.evaluation.success, played.evaluation.score
    return {
        "success": [success.mean, success.low, success.high], "score": [score.mean, score.low, score.high],
        "episodes": played.num_episodes, "tasks": len(played.evaluation.task_ids),
        "seconds": round(played.evaluation.seconds, 1), **_tokens(played),
    }  # fmt: skip


def _tokens(played: Played) -> dict[str, Json]:
    """Tokens read and sampled; null where an endpoint reported none."""
    turns = [turn for one in played.trajectories for turn in one.turns]
    is_known = all(turn.token_ids or turn.usage is not None for turn in turns)
    return {
        "read_tokens": sum(turn.num_prompt_tokens for turn in turns) if is_known else None,
        "sampled_tokens": sum(turn.num_sampled_tokens for turn in turns) if is_known else None,
    }
