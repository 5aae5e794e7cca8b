"""Rules on changed episodes: neither the reward nor the scorer accepts a correct episode that was changed into an
incorrect one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sparring.checks.evidence.answer_forms import canonical
from sparring.checks.evidence.changed_answers import Kind, shares_elements
from sparring.checks.evidence.changed_episodes import Mutated, mutate_episodes
from sparring.checks.evidence.grading_inputs import replace_last_message
from sparring.checks.evidence.reference_episodes import ReferenceEpisode, find_references
from sparring.checks.evidence.scripted_episodes import Episode, clip, get_episodes, grade_episode
from sparring.checks.evidence.subject import EXPERT, Subject
from sparring.checks.rules.reward import find_failures, get_rewards, is_overpaid
from sparring.environments import answer
from sparring.findings import Finding, Severity
from sparring.types import Json

IN_ANOTHER_FORM = (Kind.SAME, Kind.AROUND, Kind.FORM)
"""Changes that leave the values correct."""
HALF = 0.5
"""An answer without any correct value is overpaid if it earns at least this share of what a correct answer earns."""


async def reward_mutations(subject: Subject) -> Iterable[Finding]:
    """If the scorer rejects a changed version of a correct episode, the reward does not accept it either.

    The rule changes answers in about sixty ways. For example, it drops or swaps the tag, it wraps, doubles, pads or
    truncates the answer, it changes the case, or it gives all labels or nearly correct values. If actions are graded,
    it changes calls: they are left out, doubled, made with other arguments or in a different order, or replaced by
    calls to a tool that the expert does not use. In addition, no changed episode may earn more than the correct one,
    for example because the reward favors length. A policy can discover every change that the evidence lists. The rule
    only warns if all changed answers that the reward accepts have the correct values in a different form or with text
    around them. Read the last message only once, in the format that the prompt requests, or read the final state.
    Compare whole values. The rule also warns if only the scorer accepts a correct episode.
    """
    changed = await mutate_episodes(subject)
    earned = await get_rewards(subject, EXPERT)
    over = [
        one
        for one in changed
        if is_overpaid(subject, one.episode) and (subject.scorer is not None or one.mutation.kind is Kind.WRONG)
    ]
    more = [
        one
        for one in changed
        if one not in over
        and one.episode.reward is not None
        and _may_not_earn_more(one)
        and one.episode.reward > earned.get(one.episode.reference.task.id, one.episode.reward) + 1e-6
    ]
    found = []
    if more:
        first = more[0].episode
        found.append(
            Finding(
                rule="reward.mutations",
                severity=Severity.ERROR,
                symptom=f"Changed episodes earn more than the right one ({first.reward:g} against "
                f"{earned[first.reference.task.id]:g}): {_names(more)}.",
                evidence={"changes": _each_once(more)},
                change="Do not reward length, repetition or form beyond what the right answer in its plain form earns.",
                confirm="No changed episode earns more than the right one.",
            )
        )
    if over:
        found.append(
            Finding(
                rule="reward.mutations",
                severity=Severity.WARNING
                if all(one.mutation.kind in IN_ANOTHER_FORM for one in over)
                else Severity.ERROR,
                symptom=f"The reward pays in full for what the scorer rejects: {_names(over)}.",
                evidence={"changes": _each_once(over)},
                change="Let the reward read the same place and compare with the same equality as the scorer.",
                confirm="None of these changes earns the success threshold.",
            )
        )
    missed = [
        one
        for one in changed
        if one.episode.score is not None
        and one.episode.score >= 1.0
        and one.episode.reward is not None
        and one.episode.reward < HALF * earned.get(one.episode.reference.task.id, 1.0)
    ]
    if missed:
        found.append(
            Finding(
                rule="reward.mutations",
                severity=Severity.WARNING,
                symptom=f"The scorer accepts answers that earn little: {_names(missed)}.",
                evidence={"changes": _each_once(missed)},
                change="Reward what the scorer accepts, or let the scorer reject it too.",
                confirm="Reward and scorer agree on these changes.",
            )
        )
    return found


def _may_not_earn_more(changed: Mutated) -> bool:
    """Return False if the changed calls may be a better solution of the same task."""
    return changed.mutation.calls is None or changed.mutation.kind is Kind.WRONG


async def parts(subject: Subject) -> Iterable[Finding]:
    """No part of the reward is higher than the result of a strict comparison of its field.

    The rule reports two cases. First, a component with the name of a field gives full credit although the field is not
    equal to the ground truth. Second, adding an answer without any correct value to the same calls increases the reward
    by at least half of what the correct answer earns. The grader then compares parts of texts, ignores case or types,
    or gives credit for the format.
    """
    over: list[dict[str, Json]] = []
    unsaid: dict[str, float] = {}
    for one in await mutate_episodes(subject):
        right, answered, reward = one.episode.reference.parts, one.parts, one.episode.trajectory.reward
        if right is None or answered is None or reward is None:
            continue
        differing = [
            name for name in right if name not in answered or canonical(answered[name]) != canonical(right[name])
        ]
        full = await _components(subject, one.episode.reference)
        for name in differing:
            if full.get(name, 0.0) > 0 and reward.components.get(name, 0.0) >= full[name] - 1e-9:
                answered_value = answered.get(name)
                over.append({**one.shown, "component": name, "part": answered_value, "right_part": right[name]})
                break
        else:
            earned = await _earned(subject, one.episode.reference)
            is_all_wrong = len(differing) == len(right) and one.mutation.kind is Kind.WRONG
            is_all_wrong &= not any(shares_elements(answered.get(name), right[name]) for name in differing)
            if is_all_wrong and (one.episode.score or 0.0) < HALF and 0 < HALF * earned <= reward.total:
                task = one.episode.reference.task.id
                if task not in unsaid:
                    unsaid[task] = await _earned_by_calls(subject, one.episode)
                if HALF * earned <= reward.total - unsaid[task]:
                    over.append({**one.shown, "component": None})
    if not over:
        return []
    first = over[0]
    what = (
        f"component {first['component']!r} is paid in full" if first["component"] else f"{first['reward']:g} is earned"
    )
    return [
        Finding(
            rule="reward.parts",
            severity=Severity.ERROR,
            symptom=f"The reward pays for wrong values: {what} for {first['change']} "
            f"({clip(str(first['said']), 80)!r} although {clip(str(first['right']), 80)!r} is right).",
            evidence={"changes": list({one["change"]: one for one in over}.values())[:8]},
            change="In each part of the reward, compare whole values of the same type.",
            confirm="No component is paid for a field that is not equal to the ground truth.",
        )
    ]


async def scorer(subject: Subject) -> Iterable[Finding]:
    """The scorer accepts only correct episodes.

    The rule changes one part of the episode at a time to find out what the scorer depends on: the last message, the
    final state, or the calls. Then it changes the value of that part. It reports an error if wrong values pass: parts
    of texts, texts around values, all labels at once, null-like values, or a wrong answer next to the correct one. It
    also reports an error if the scorer accepts an episode in which nothing was done, something different was done than
    the task's fields require, or the required result is gone. The measured success is then not real. A score that is
    not a number from 0 to 1 is also an error, because the first such episode ends the run.

    The rule warns if the correct values pass in a different format than the requested one, because the consumer of the
    answer may not be able to read that format. It also warns if the scorer does not compare a part of the final state
    that the expert always sets to a field of the task. The same applies if the scorer does not notice that something is
    missing that the expert leaves in place. If a different sequence of actions earns as much, the finding is a note:
    check whether this is intended.
    """
    passed = [
        one for one in await mutate_episodes(subject) if one.episode.score is not None and one.episode.score >= 1.0
    ]
    found = await find_failures(subject, "scorer", rule="reward.scorer", number="a number from 0 to 1")
    did_wrong = any(one.mutation.calls is not None and one.mutation.kind is Kind.WRONG for one in passed)
    for kind, severity, what, change in (
        (
            Kind.WRONG,
            Severity.ERROR,
            f"accepts wrong {'episodes' if did_wrong else 'answers'}",
            "Compare the whole final state with what the task requests, including what must not be removed or added."
            if did_wrong
            else "Compare whole values with their types, accept null only for null, and read exactly one answer in "
            "the last message.",
        ),
        (
            Kind.FORM,
            Severity.WARNING,
            "accepts answers that do not have the requested form",
            "Reject what the consumer of the answers cannot read, or document that the form does not matter.",
        ),
        (
            Kind.DOUBTFUL,
            Severity.WARNING,
            "accepts episodes that do not look right",
            "Compare what `why_wrong` names in the evidence, or document that it does not matter.",
        ),
        (
            Kind.OTHER,
            Severity.NOTE,
            "also accepts another way",
            "Read the calls and the final state in the evidence. If they are not a solution, let the scorer reject "
            "them.",
        ),
    ):
        these = [one for one in passed if one.mutation.kind is kind]
        if these:
            found.append(
                Finding(
                    rule="reward.scorer",
                    severity=severity,
                    symptom=f"The scorer {what}: {_names(these)}.",
                    evidence={"changes": _each_once(these)},
                    change=change,
                    confirm="The scorer gives less than 1 to each of these changes.",
                )
            )
    return found


async def _earned(subject: Subject, reference: ReferenceEpisode) -> float:
    return (await get_rewards(subject, EXPERT)).get(reference.task.id, 1.0)


async def _earned_by_calls(subject: Subject, episode: Episode) -> float:
    """Return what the calls of an episode earn without a final answer."""
    references = await find_references(subject)
    if references is None or references.form.tool is not None:
        return 0.0  # the answer is one of the calls
    silent = await grade_episode(
        subject, references, "nothing", episode.reference, replace_last_message(episode.trajectory, answer(""))
    )
    return silent.reward or 0.0


async def _components(subject: Subject, reference: ReferenceEpisode) -> Mapping[str, float]:
    for one in await get_episodes(subject, EXPERT):
        if one.reference.task.id == reference.task.id and one.trajectory.reward is not None:
            return one.trajectory.reward.components
    return {}


def _names(changed: Sequence[Mutated]) -> str:
    names = list(dict.fromkeys(one.mutation.name for one in changed))
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _each_once(changed: Sequence[Mutated]) -> list[Json]:
    """Return one example of each change."""
    return [one.shown for one in {one.mutation.name: one for one in reversed(changed)}.values()][::-1][:20]
