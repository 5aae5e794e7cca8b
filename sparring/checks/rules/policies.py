"""Rules on policies without a model, which run in the real tool loop: an expert, and guesses and exploits that must not
be rewarded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from sparring.checks.evidence.accepted_answers import find_never_accepted, find_paid_empty_answers
from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.reference_episodes import find_references
from sparring.checks.evidence.scripted_episodes import Episode, clip, get_all_episodes, get_episodes
from sparring.checks.evidence.subject import EXPERT, Subject
from sparring.checks.evidence.task_contrast import find_separating_feature
from sparring.checks.evidence.task_rows import find_common_feature
from sparring.checks.evidence.unguided_episodes import NOTHING, UnguidedEpisode, run_unguided_episodes
from sparring.environments.returns import episode_return
from sparring.findings import Finding, Severity
from sparring.types import Json, Outcome

MUCH = 0.3
"""A policy without any correct answer must not reach this share of the expert's mean score or reward."""
EASY, TOO_EASY = 0.4, 0.8
"""Mean scores of a policy that calls every tool and copies the results. From the first score on, the tools reveal the
answer in many tasks; from the second score on, in nearly all tasks."""
TOP = 0.95
"""The reward that a correct answer must earn; the highest reward is 1."""
LESS = 0.05
"""The allowed difference between the rewards of correct answers in two tasks."""
NUM_SHOWN = 3
_CHANGE_ENVIRONMENT = "Define `demonstrate(task)` on the environment: the assistant's messages of a perfect episode."
_CHANGE_OWN_AGENT = (
    "If an answer alone can be right, give the tasks a field that contains it. If the scorer reads what the agent did, there "
    "is nothing to change: an agent of your own has no scripted expert."
)


async def expert(subject: Subject) -> Iterable[Finding]:
    """The scripted expert gets 1.0 from the scorer, and the highest reward.

    If it does not, the expert, the ground truth, the answer format or the grading is wrong. Training then optimizes
    something different from what is measured. Compare the expert's last message with what the reward and the scorer
    read, and correct whichever is wrong. The rule only warns if the environment itself ends every episode, and its own
    reward is above 0 in exactly the episodes that the scorer accepts. In this case, chance may determine the outcome of
    an episode, and you can compare a policy with the expert's mean score.

    Without an expert (`Environment.demonstrate`), the rule warns if the reward accepts the correct answers of some
    tasks, but not those of other tasks, although the scorer accepts all of them. It also warns if the scorer rejects
    the reference answers of some tasks. If the rule knows no field that the scorer accepts as an answer, the other
    rules can check little, and the finding is a note.
    """
    references = await find_references(subject)
    if references is None:
        return await find_never_accepted(subject) or [_report_no_answer(subject)]
    if references.failed:
        return [_report_failed(references.failed, len(references.failed) + len(references.by_task))]
    played = await get_episodes(subject, EXPERT)
    if not references.has_expert:
        return [*_some_unpaid(played), *_some_rejected(played)]
    return [*_expert_score(played), *_expert_reward(played, await get_all_episodes(subject))]


def _report_no_answer(subject: Subject) -> Finding:
    return Finding(
        rule="policies.expert",
        severity=Severity.NOTE,
        symptom="No right answer is known: there is no scripted expert, and the scorer accepts no field of "
        "the tasks as an answer.",
        evidence={"fields": sorted(subject.sample[0].fields)},
        change=_CHANGE_OWN_AGENT if subject.config.agent.is_foreign else _CHANGE_ENVIRONMENT,
        confirm="This note is gone, and the rules on answers, prompt and reward have something to compare with.",
    )


def _report_failed(failed: Mapping[str, str], num_tasks: int) -> Finding:
    task_id, reason = next(iter(failed.items()))
    return Finding(
        rule="policies.expert",
        severity=Severity.ERROR,
        symptom=f"The scripted expert fails on {len(failed)} of {num_tasks} tasks.",
        evidence={"task": task_id, "reason": reason, "tasks": list(failed)[:10]},
        change="Fix `demonstrate`, or the row of the task that it cannot read.",
        confirm="`sparring check --only policies` runs the expert on every sampled task.",
    )


def _some_unpaid(played: Sequence[Episode]) -> Iterator[Finding]:
    """Yield findings on correct answers that earn less than the correct answers of other tasks."""
    right = [one for one in played if one.score == 1.0 and one.reward is not None]
    top = max((one.reward or 0.0 for one in right), default=0.0)
    low = [one for one in right if (one.reward or 0.0) < top - LESS]
    if not low or top < TOP:
        return
    paid = [get_text(one.reference.answer) for one in right if one not in low]
    what = find_common_feature([get_text(one.reference.answer) for one in low], paid)
    yield Finding(
        rule="policies.expert",
        severity=Severity.WARNING,
        symptom=f"The reward gives {low[0].reward:g} to the right answers of {len(low)} of {len(right)} tasks, which "
        f"the scorer accepts{f', all of them with {what}' if what else ''}: "
        f"{clip(get_text(low[0].reference.answer), 80)!r}.",
        evidence={"low": _shown(low), "paid": paid[:NUM_SHOWN]},
        change="Let the reward read the whole value, in every form that right answers have.",
        confirm="The right answers of all tasks earn the same.",
    )


def _some_rejected(played: Sequence[Episode]) -> Iterator[Finding]:
    """Yield findings on reference answers that the scorer rejects, although it accepts the reference answers of other
    tasks in the same format."""
    low = [one for one in played if one.score is not None and one.score < 1.0]
    paid = [one for one in played if one.score == 1.0]
    if not low or len(paid) <= len(low):
        return
    texts = [get_text(one.reference.answer) for one in low]
    what = find_common_feature(texts, [get_text(one.reference.answer) for one in paid])
    apart = find_separating_feature([one.reference.task for one in low], [one.reference.task for one in paid])
    such = f", all of them with {what}" if what else f", those where {apart}" if apart else ""
    yield Finding(
        rule="policies.expert",
        severity=Severity.WARNING,
        symptom=f"The scorer rejects the reference answers of {len(low)} of {len(played)} tasks{such}: "
        f"{clip(texts[0], 80)!r}."
        " It accepts those of the other tasks, which are written in the same way.",
        evidence={"low": _shown(low), "paid": [get_text(one.reference.answer) for one in paid[:NUM_SHOWN]]},
        change="Let the scorer read every reference answer, or correct the answers that it cannot read.",
        confirm="The reference answer of every task scores 1.",
    )


def _expert_score(played: Sequence[Episode]) -> Iterator[Finding]:
    low = [one for one in played if one.score is not None and one.score < 1.0]
    cut = [one for one in played if one.trajectory.outcome is not Outcome.FINISHED]
    if low and len(low) < len(played) and all(_rewarded_alike(one) for one in played):
        yield Finding(
            rule="policies.expert",
            severity=Severity.WARNING,
            symptom=f"The scripted expert succeeds on {len(played) - len(low)} of {len(played)} tasks, and the "
            f"environment's own "
            "rewards agree with the scorer on all of them.",
            evidence={"mean_score": _mean([one.score for one in played]), "episodes": _shown(low)},
            change="If chance decides (cards, dice), change nothing, and compare policies with the expert's score, "
            "not with 1.0. Otherwise, correct `demonstrate`.",
            confirm="`sparring eval RUN --policy expert` scores the expert on the held-out tasks.",
        )
    elif low:
        yield _report_low_scores(played, low, cut)
    elif cut:
        yield Finding(
            rule="policies.expert",
            severity=Severity.ERROR,
            symptom=f"{len(cut)} of {len(played)} episodes of the scripted expert do not finish.",
            evidence={"outcome": cut[0].trajectory.outcome.value, "episodes": _shown(cut)},
            change="Raise environment.max_turns to what a right episode needs, or end the expert's script with its "
            "answer.",
            confirm="Every episode of the expert ends as finished.",
        )


def _report_low_scores(played: Sequence[Episode], low: Sequence[Episode], cut: Sequence[Episode]) -> Finding:
    reason = ""
    if cut:
        reason = f" Its episodes end as {cut[0].trajectory.outcome.value}."
    elif any(one.trajectory.metrics.get("tool_errors", 0) > 0 for one in played):
        reason = " Some of its tool calls are refused."
    return Finding(
        rule="policies.expert",
        severity=Severity.ERROR,
        symptom=f"The scorer gives the scripted expert less than 1.0 on {len(low)} of {len(played)} tasks.{reason}",
        evidence={"mean_score": _mean([one.score for one in played]), "episodes": _shown(low)},
        change="Let the expert, the ground truth and the scorer agree: compare `said` with what the scorer reads "
        "(place, tag, fields, types).",
        confirm="The expert's mean score is 1.0.",
    )


def _rewarded_alike(one: Episode) -> bool:
    """Return True if the environment ended the episode, and the environment's own reward is above 0 if and only if the
    scorer gives 1.0."""
    has_ended = one.trajectory.outcome is Outcome.FINISHED and one.trajectory.messages[-1]["role"] == "tool"
    return has_ended and (episode_return(one.trajectory) > 0) == (one.score == 1.0)


def _expert_reward(played: Sequence[Episode], everybody: Sequence[Episode]) -> Iterator[Finding]:
    earned = {one.reference.task.id: one.reward for one in played if one.reward is not None}
    if not earned:
        return
    better = [
        one
        for one in everybody
        if one.reward is not None and one.is_wrong and one.reward > earned.get(one.reference.task.id, one.reward) + 1e-6
    ]
    if better:
        yield _report_better(better, earned)
        return
    right = [one for one in played if one.score in (None, 1.0)]
    rewards = [one.reward for one in right if one.reward is not None]
    if rewards and _mean(rewards) < TOP:
        yield Finding(
            rule="policies.expert",
            severity=Severity.WARNING,
            symptom=f"The scripted expert earns {_mean(rewards):.3g} on average, but a right episode should earn the "
            f"highest reward, 1.",
            evidence={"lowest": min(rewards), "highest": max(rewards), "episodes": _shown(right)},
            change="Find what the reward subtracts from a perfect episode, and scale the reward so that a right answer "
            "earns 1.",
            confirm="The expert's mean reward is 1.",
        )


def _report_better(better: Sequence[Episode], earned: Mapping[str, float]) -> Finding:
    worst = max(better, key=lambda one: one.reward or 0.0)
    return Finding(
        rule="policies.expert",
        severity=Severity.ERROR,
        symptom=f"The policy '{worst.policy}' earns more than the scripted expert: {worst.reward:g} against "
        f"{earned[worst.reference.task.id]:g} on task {worst.reference.task.id}.",
        evidence={"episodes": _shown(better), "expert": earned[worst.reference.task.id]},
        change="Find the part of the reward that rewards this policy. Remove it, or limit it to less than a right "
        "answer earns.",
        confirm="No policy of this check earns more than the expert on any task.",
    )


async def null(subject: Subject) -> Iterable[Finding]:
    """An empty message, or no answer at all, has a score of 0 and a small reward.

    A reward for an empty answer is the first thing that a policy finds. Give a reward of 0 (or less) if there is no
    answer: an empty message, no assistant message at the end, or no turns left.
    """
    played = [*await get_episodes(subject, "says nothing"), *await get_episodes(subject, "never answers")]
    if not played:
        return _scored_for_nothing(await run_unguided_episodes(subject))
    return _paid_for_nothing(subject, "policies.null", "no answer", played)


def _scored_for_nothing(played: Sequence[UnguidedEpisode]) -> list[Finding]:
    """Return a finding if no correct answer is known and the scorer accepts an episode that does nothing in every
    task."""
    idle = [one for one in played if one.policy in NOTHING]
    paid = [one for one in idle if (one.trajectory.score or 0.0) >= 1.0]
    if not paid or len({one.trajectory.task.id for one in paid}) < len({one.trajectory.task.id for one in idle}):
        return []
    return [
        Finding(
            rule="policies.null",
            severity=Severity.ERROR,
            symptom=f"The scorer accepts episodes in which nothing is done: those of the policy '{paid[0].policy}'.",
            evidence={"episodes": [one.shown for one in paid[:NUM_SHOWN]]},
            change="Let the scorer require what the task requests, and give 0 if there is nothing to grade.",
            confirm="The scorer gives 0 to an episode without any call or answer.",
        )
    ]


async def empty(subject: Subject) -> Iterable[Finding]:
    """An answer that has the correct format but no content has a score of 0 and a small reward.

    If blank fields are rewarded, the comparison treats null-like values as equal, or counts fields that it does not
    compare. The rule warns if no correct answer is known and a blank, `nan` or `infinity` is rewarded in the format
    that the prompt requests, while a plain "Done." is not.
    """
    found = _paid_for_nothing(subject, "policies.empty", "a blank answer", await get_episodes(subject, "empty answer"))
    return found or await find_paid_empty_answers(subject)


async def constant(subject: Subject) -> Iterable[Finding]:
    """The most frequent correct answer scores 0 on the other tasks.

    If it is rewarded on tasks where it is wrong, the scorer is too lenient: it accepts parts of the answer, ignores
    case, or accepts any answer.
    """
    return _paid_for_wrong(subject, "policies.constant", await get_episodes(subject, "most frequent answer"))


async def random_policy(subject: Subject) -> Iterable[Finding]:
    """A random answer after random calls scores 0 wherever it is wrong."""
    return _paid_for_wrong(subject, "policies.random", await get_episodes(subject, "random"))


async def example(subject: Subject) -> Iterable[Finding]:
    """Copying the example from the prompt has a score of 0 and a small reward.

    Small models start by copying the example. If copying is rewarded, compare values and not just fields, or remove
    real values from the example.
    """
    played = await get_episodes(subject, "example")
    return _paid_for_nothing(subject, "policies.example", "a copy of the prompt's example", played)


async def every_tool(subject: Subject) -> Iterable[Finding]:
    """Calling every tool and copying the results, without reasoning, solves few tasks.

    If it solves many tasks, the tools return the scored fields themselves. Training then measures whether the policy
    covers all tools and keeps the format, and not whether it follows the procedure. Let tools return facts and leave
    the decision to the policy. This rule is skipped if there are no tools.
    """
    played = [one for one in await get_episodes(subject, "every tool") if one.score is not None]
    mean = _mean([one.score for one in played])
    if not subject.tools or not played or mean <= EASY:
        return []
    return [
        Finding(
            rule="policies.every_tool",
            severity=Severity.ERROR if mean >= TOO_EASY else Severity.WARNING,
            symptom=f"A script that calls every tool and copies the results scores {mean:.2f} over {len(played)} "
            f"tasks.",
            evidence={"mean_score": mean, "episodes": _shown([one for one in played if one.score])},
            change="Let tools return facts from which the answer follows, not the scored fields. Check arguments, so "
            "that a wrong call does not return the right record.",
            confirm=f"The score of this script is at most {EASY}.",
        )
    ]


async def at_once(subject: Subject) -> Iterable[Finding]:
    """A wrong answer in the first turn, without any tool call, is not rewarded, and earns no more than a wrong answer
    after tool calls.

    A reward that penalizes turns or calls teaches the policy to give up immediately. Reward the outcome. Keep penalties
    for length small, and apply them only to correct answers.
    """
    guessed = await get_episodes(subject, "most frequent values")
    found = _paid_for_wrong(subject, "policies.at_once", guessed)
    by_task = {
        one.reference.task.id: one.reward
        for one in await get_episodes(subject, "wrong")
        if len(one.reference.script) > 1
    }
    hasty = [
        one
        for one in await get_episodes(subject, "wrong at once")
        if one.reward is not None
        and (worked := by_task.get(one.reference.task.id)) is not None
        and one.reward > worked + 0.01
    ]
    if hasty and len(hasty) * 2 >= len(by_task):
        found.append(_report_hasty(hasty, by_task))
    return found


def _report_hasty(hasty: Sequence[Episode], by_task: Mapping[str, float | None]) -> Finding:
    first = hasty[0]
    wrong = by_task[first.reference.task.id]
    return Finding(
        rule="policies.at_once",
        severity=Severity.WARNING,
        symptom=f"A wrong answer in the first turn earns more ({first.reward:g}) than the same answer after "
        f"the expert's calls ({wrong:g}).",
        evidence={"episodes": _shown(hasty), "after_the_calls": wrong},
        change="Do not penalize turns or calls in wrong episodes, and limit what is subtracted in right episodes.",
        confirm="A wrong answer earns the same with and without the expert's calls before it.",
    )


async def everything(subject: Subject) -> Iterable[Finding]:
    """An answer that names every label has a score of 0 and a small reward.

    A grader that searches for the correct value anywhere in the answer accepts such an answer. Compare whole values.
    """
    played = await get_episodes(subject, "every label")
    return _paid_for_nothing(subject, "policies.everything", "an answer that names every label", played)


def _paid_for_wrong(subject: Subject, rule: str, played: Sequence[Episode]) -> list[Finding]:
    """Return findings on wrong answers that the scorer accepts, or that earn what counts as success."""
    wrong = [one for one in played if one.is_wrong]
    scored = [one for one in wrong if one.score is not None and one.score >= 1.0]
    if scored:
        return [_scored(rule, f"the policy '{scored[0].policy}'", scored, len(wrong))]
    threshold = subject.config.evaluation.success_threshold
    paid = [one for one in wrong if one.reward is not None and one.reward >= threshold and (one.score or 0.0) < 1.0]
    return [_rewarded(rule, f"the policy '{paid[0].policy}'", paid, threshold)] if paid else []


def _paid_for_nothing(subject: Subject, rule: str, what: str, played: Sequence[Episode]) -> list[Finding]:
    found = _paid_for_wrong(subject, rule, played)
    wrong = [one for one in played if one.is_wrong]
    if found or not wrong:
        return found
    scores = [one.score for one in wrong if one.score is not None]
    rewards = [one.reward for one in wrong if one.reward is not None]
    if scores and fmean(scores) >= MUCH:
        return [_scored(rule, what, sorted(wrong, key=lambda one: -(one.score or 0.0)), len(wrong))]
    if rewards and fmean(rewards) >= MUCH:
        return [
            Finding(
                rule=rule,
                severity=Severity.WARNING,
                symptom=f"{what[0].upper()}{what[1:]} earns {fmean(rewards):.2g} on average.",
                evidence={"mean_reward": fmean(rewards), "episodes": _shown(wrong)},
                change="Reward the right content of the answer, and give little (0.1) for its form.",
                confirm=f"{what[0].upper()}{what[1:]} earns less than {MUCH}.",
            )
        ]
    return []


def _scored(rule: str, who: str, scored: Sequence[Episode], num: int) -> Finding:
    return Finding(
        rule=rule,
        severity=Severity.ERROR,
        symptom=f"The scorer gives {who} {scored[0].score:g} for {clip(str(scored[0].shown['said']), 60)!r} although "
        f"{clip(str(scored[0].shown['right']), 60)!r} is right.",
        evidence={"episodes": _shown(scored), "of": num},
        change="Let the scorer compare the last message with the ground truth: whole values, in every scored field "
        "(as `sparring.scorers.json_exact` does).",
        confirm="The scorer gives 0 to every episode in the evidence.",
    )


def _rewarded(rule: str, who: str, paid: Sequence[Episode], threshold: float) -> Finding:
    return Finding(
        rule=rule,
        severity=Severity.ERROR,
        symptom=f"The reward gives {who} {paid[0].reward:g}, which counts as success (evaluation.success_threshold = "
        f"{threshold:g}), but the scorer rejects these episodes.",
        evidence={"episodes": _shown(paid)},
        change="Find what the reward accepts as right in `said`, and compare as the scorer does.",
        confirm="No episode in the evidence earns the threshold.",
    )


def _shown(episodes: Sequence[Episode]) -> list[Json]:
    return [one.shown for one in episodes[:NUM_SHOWN]]


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else 0.0
