"""Is the reward a number to learn from, and does it agree with the scorer on what is right, also on answers that cheat?"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import sparring
from sparring.agents.scripted import saying
from sparring.checks.answers import canonical, text_of
from sparring.checks.baseline import may_fail_at_first, model_baseline
from sparring.checks.episodes import Episode, all_episodes, clipped, episodes_of, judged
from sparring.checks.golds import Gold, golds_of
from sparring.checks.graded import with_last
from sparring.checks.mutated import NUM_MUTATED, Mutated, mutated
from sparring.checks.mutations import Kind, shares_elements
from sparring.checks.registry import check
from sparring.checks.subject import EXPERT, JudgeName, Subject
from sparring.checks.timing import OutOfTimeError
from sparring.checks.unguided import Unguided, overpaid_unguided, paid_repeats, unguided
from sparring.environments import answer, tool_call
from sparring.findings import Finding, Severity
from sparring.plugins import call
from sparring.types import Json, Trajectory

BASELINE_SECONDS = 1800.0
"""What the model may take to play its baseline."""


IN_ANOTHER_FORM = (Kind.SAME, Kind.AROUND, Kind.FORM)
"""Changes that leave the values right."""
HALF = 0.5
"""Share of what a right answer earns, from which an answer without any right value is overpaid."""


MOSTLY_FLAT = 0.9
"""Share of groups with equal rewards from which nearly nothing is learned."""


NUM_SHOWN = 4
NUM_NAMED = 8
"""Policies that are named in one line."""


FEWEST_LOST = 2
"""Tasks in which silence earns as much as what is right."""


WON_DRAWN_LOST = {1.0, 0.0, -1.0}


_PACKAGE = Path(sparring.__file__).parent


_OWN_JUDGES = tuple(str(_PACKAGE / room) for room in ("rewards", "scorers"))


_LIBRARIES = (str(Path(sys.prefix).resolve()), str(Path(sys.base_prefix).resolve()), str(_PACKAGE))


@check("reward.range", needs=("reward",))
async def reward_range(subject: Subject) -> Iterable[Finding]:
    """Every episode gets a number in [0, 1], or in [-1, 1] where being wrong costs something.

    Advantages, charts, thresholds and advice go by this range. A reward that raises on an empty or odd answer discards the
    episodes that most need a signal: return 0 there.
    """
    played = await all_episodes(subject)
    beyond = [one for one in played if one.reward is not None and not -1.0 <= one.reward <= 1.0]
    found = await _failures(subject, "reward", rule="reward.range", number="a finite number")
    if beyond:
        furthest = max(beyond, key=lambda one: abs(one.reward or 0.0))
        found.append(
            Finding(
                rule="reward.range", severity=Severity.ERROR,
                symptom=f"The reward of {len(beyond)} of {len(played)} episodes is outside [-1, 1]: "
                f"{furthest.reward:g} for the "
                f"policy '{furthest.policy}'.",
                evidence={"episodes": [one.shown for one in beyond[:NUM_SHOWN]]},
                change="Scale the reward to [0, 1], or to [-1, 1] where it takes off for being wrong.",
                confirm="All rewards of this check are in the range.",
            )
        )  # fmt: skip
    return found


async def _failures(subject: Subject, judge: JudgeName, *, rule: str, number: str) -> list[Finding]:
    """A finding when a judge gives no usable number, also for right answers that were changed: such an episode ends a run."""
    judged_ones = [*await all_episodes(subject), *(one.episode for one in await mutated(subject))]
    failed = [one for one in judged_ones if one.failed == judge]
    if not failed:
        return []
    return [
        Finding(
            rule=rule, severity=Severity.ERROR,
            symptom=f"The {judge} fails on {len(failed)} of {len(judged_ones)} episodes: "
            f"{clipped(str(failed[0].failure), 200)}",
            evidence={"failure": failed[0].failure, "episodes": [one.shown for one in failed[:NUM_SHOWN]]},
            change=f"Return {number} for every finished episode; 0 for an answer that cannot be read.",
            confirm=f"The {judge} of every episode in the evidence is a number.",
        )
    ]  # fmt: skip


@check("reward.variance", needs=("reward",))
async def variance(subject: Subject) -> Iterable[Finding]:
    """Over some 100 episodes of policies from perfect to silent, the reward takes more than one value.

    Where all rewards are equal, every advantage is 0 and nothing is learned. Usually the reward reads another tag, field or
    message than the answer has.
    """
    played = [one for one in await all_episodes(subject) if one.reward is not None]
    values = {round(one.reward or 0.0, 9) for one in played}
    if len(played) < 2 or len(values) > 1:
        return []
    if {one.policy for one in played} == {EXPERT}:
        raise OutOfTimeError("no other policy than the expert has played")
    return [
        Finding(
            rule="reward.variance", severity=Severity.ERROR,
            symptom=f"The reward is {played[0].reward:g} for all {len(played)} episodes, the expert's and the silent "
            f"policy's alike.",
            evidence={"policies": sorted({one.policy for one in played}), "episodes": [one.shown for one in played[:NUM_SHOWN]]},
            change="Print what the reward reads out of the expert's last message, and correct the tag, field or "
            "message it looks for.",
            confirm="The expert earns more than the silent policy.",
        )
    ]  # fmt: skip


@check("reward.agreement", needs=("reward", "scorer"))
async def agreement(subject: Subject) -> Iterable[Finding]:
    """No episode is paid for what the scorer rejects.

    An episode whose reward counts as success (evaluation.success_threshold) while its strict score is below 1 and below the
    reward is over-credited, and training amplifies it: the reward rises and the evaluation does not. Also where no right answer
    is known, episodes are played in which nothing is done, in which every tool is called, in which calls are repeated, and in
    which they are drawn by chance.
    """
    over: list[Episode | Unguided] = [one for one in await all_episodes(subject) if is_overpaid(subject, one)]
    over = over or [*overpaid_unguided(subject, await unguided(subject))]
    if not over:
        return []
    policies = sorted({one.policy for one in over})
    first = over[0].shown
    return [
        Finding(
            rule="reward.agreement", severity=Severity.ERROR,
            symptom=f"{len(over)} episodes earn {first['reward']:g} while the scorer gives {first['score']:g}: of "
            f"{', '.join(policies[:NUM_NAMED])}.",
            evidence={"policies": policies, "episodes": [one.shown for one in over[:NUM_SHOWN]]},
            change="Compare in the reward what the scorer compares: the same message, tag, fields and equality.",
            confirm="No episode of this check earns the threshold with a score below 1.",
        )
    ]  # fmt: skip


@check("reward.baseline", needs=("model", "baseline", "reward"), seconds=BASELINE_SECONDS)
async def baseline(subject: Subject) -> Iterable[Finding]:
    """Over 100 episodes that the model itself plays, rewards differ, also within the groups of a task, and none is paid for
    what the scorer rejects.

    Groups whose rewards are all equal teach nothing: pay in parts for what is nearly right, choose tasks that the model
    sometimes solves, or warm-start it; where the recipe has a warm start, or allows a baseline without success, this is a note,
    since the model has not begun. An overpaid episode shows what the model already does to please the reward.
    """
    played, config = await model_baseline(subject), subject.config
    return baseline_findings(
        played.trajectories, config.evaluation.success_threshold, may_be_flat=may_fail_at_first(config)
    )


def baseline_findings(
    trajectories: Sequence[Trajectory], threshold: float, *, may_be_flat: bool = False
) -> list[Finding]:
    """What a model's own judged episodes say of the reward: whether it takes more than one value, among all and within the
    groups of a task (a note where it `may_be_flat`), and whether it pays for what the scorer rejects. `threshold`: the reward
    that counts as success."""
    rewarded = [(one, one.reward.total) for one in trajectories if one.reward is not None]
    if len(rewarded) < 2:
        return []
    found = []
    groups: dict[str, list[float]] = defaultdict(list)
    for one, reward in rewarded:
        groups[one.task.id].append(reward)
    several = [group for group in groups.values() if len(group) > 1]
    flat = [group for group in several if max(group) - min(group) < 1e-9]
    values = {round(reward, 9) for _, reward in rewarded}
    if len(values) == 1 or (several and len(flat) >= MOSTLY_FLAT * len(several)):
        is_one = len(values) == 1
        found.append(
            Finding(
                rule="reward.baseline",
                severity=Severity.NOTE if may_be_flat else Severity.ERROR if is_one else Severity.WARNING,
                symptom=f"The reward is {rewarded[0][1]:g} for all {len(rewarded)} episodes of the model."
                if is_one else f"In {len(flat)} of {len(several)} groups of the model's episodes all rewards are equal.",
                evidence={
                    "episodes": len(rewarded), "values": sorted(values)[:20], "groups": len(several), "flat_groups": len(flat),
                    "said": [_said_by(one) for one, _ in rewarded[:NUM_SHOWN]],
                },
                change="Look at the rewards again after the warm start or the first steps."
                if may_be_flat else "Pay in parts for what is nearly right, choose tasks that the model sometimes solves, or "
                "warm-start it.",
                confirm="In a run `analysis/batch_valid_ratio` is above 0.3." if may_be_flat
                else "The rewards of most groups differ.",
            )
        )  # fmt: skip
    over = [
        (one, reward) for one, reward in rewarded
        if one.score is not None and reward >= threshold - 1e-9 and one.score < 1.0 and reward > one.score
    ]  # fmt: skip
    if over:
        found.append(
            Finding(
                rule="reward.baseline", severity=Severity.ERROR,
                symptom=f"{len(over)} of {len(rewarded)} episodes of the model earn {over[0][1]:g} while the scorer gives "
                f"{over[0][0].score:g}.",
                evidence={"episodes": [{**_said_by(one), "reward": r, "score": one.score} for one, r in over[:NUM_SHOWN]]},
                change="Compare in the reward what the scorer compares: the same message, tag, fields and equality.",
                confirm="No episode of the model earns the threshold with a score below 1.",
            )
        )  # fmt: skip
    return found


def _said_by(trajectory: Trajectory) -> dict[str, Json]:
    return {"task": trajectory.task.id, "said": clipped(text_of(trajectory.messages[-1]))}


@check("reward.order", needs=("reward",))
async def order(subject: Subject) -> Iterable[Finding]:
    """`never answered <= wrong < right`, and more calls earn nothing.

    The order decides what is learned first. Where a wrong answer costs more than none, policies fall silent; where a wrong one
    earns as much as a right one, nothing is learned; where calls are paid, they multiply. Where only what was done is graded, a
    wrong episode is one whose calls were changed so that it cannot be right. A warning where calls cost so much that silence
    earns as much as the right answer, after a chain of calls in which each result names what the next call asks for; and where
    the same calls are paid again and again, of a tool that changes nothing, or of two of which one undoes what the other does.
    """
    right, wrong = await _rewards(subject, EXPERT), await _wrong_rewards(subject)
    never = await _rewards(subject, "says nothing") | await _rewards(subject, "never answers", only_wrong=True)
    found = []

    def compare(
        lower: Mapping[str, float],
        upper: Mapping[str, float],
        *,
        strict: bool,
        says: str,
        change: str,
        severity: Severity,
    ) -> None:
        both = sorted(lower.keys() & upper.keys())
        bad = [key for key in both if lower[key] > upper[key] + 1e-6 or (strict and lower[key] > upper[key] - 1e-6)]
        if bad and 2 * len(bad) >= len(both):
            key = max(bad, key=lambda key: lower[key] - upper[key])
            found.append(
                Finding(
                    rule="reward.order", severity=severity,
                    symptom=f"{says}: {lower[key]:g} against {upper[key]:g} on task {key}.",
                    evidence={"task": key, "this": lower[key], "that": upper[key], "tasks": len(bad), "of": len(both)},
                    change=change,
                    confirm="never answered <= wrong < right holds on every task, with any number of calls.",
                )
            )  # fmt: skip

    compare(
        wrong, right, strict=True, severity=Severity.ERROR, says="A wrong answer earns as much as the right one",
        change="Have the outcome dominate: what is right earns more than everything else together.",
    )  # fmt: skip
    compare(
        never, wrong, strict=False, severity=Severity.WARNING, says="No answer earns more than a wrong one",
        change="Give an episode without an answer at most what a wrong answer gets.",
    )  # fmt: skip
    compare(
        await _rewards(subject, "busy"), right, strict=False, severity=Severity.ERROR,
        says="The right answer with its first calls repeated earns more than without",
        change="Do not pay for calls; if looking must be paid, bound it and pay each thing once.",
    )  # fmt: skip
    compare(
        await _rewards(subject, "busy and wrong"), wrong, strict=False, severity=Severity.WARNING,
        says="A wrong answer with calls repeated earns more than without",
        change="Do not pay for calls; if looking must be paid, bound it and pay each thing once.",
    )  # fmt: skip
    found += paid_repeats(await unguided(subject))
    return [*found, *(await _dearer_than_nothing(subject) if not found else ())]


async def _dearer_than_nothing(subject: Subject) -> list[Finding]:
    """Right answers that earn no more than silence, after the calls by which they are found."""
    from sparring.checks.chains import chains_of  # its rule comes later

    nothing, golds = await _rewards(subject, "says nothing"), await golds_of(subject)
    lost: list[dict[str, Json]] = []
    if golds is None or golds.has_expert:
        return []
    chains = {name: calls for name, calls in (await chains_of(subject)).items() if calls and name in nothing}
    with subject.timing.as_far_as_it_goes():
        for name, calls in chains.items():
            gold = golds.by_task[name]
            script = [*(tool_call(one.tool, **one.arguments) for one in calls), gold.answer]
            if len(script) > subject.config.environment.max_turns:
                continue
            played = await subject.play(gold.task, saying("finds the answer", script))
            is_right = played.score is None or played.score >= 1.0
            if is_right and played.reward is not None and played.reward.total <= nothing[name] + 1e-6:
                lost.append({
                    "task": name, "calls": list(map(str, calls)), "earns": played.reward.total, "nothing": nothing[name],
                })  # fmt: skip
    if len(lost) < FEWEST_LOST:
        return []
    worst = max(lost, key=lambda one: len(one["calls"]))  # type: ignore[arg-type]
    return [
        Finding(
            rule="reward.order", severity=Severity.WARNING,
            symptom=f"In {len(lost)} of {len(chains)} tasks the right answer earns no more than silence, after the calls by "
            f"which it is found: {worst['earns']:g} against {worst['nothing']:g} on task {worst['task']}.",
            evidence={"tasks": lost[:NUM_SHOWN]},
            change="Have the outcome dominate: take off less for calls than a right answer earns in the longest task.",
            confirm="never answered <= wrong < right holds on every task, with the calls that it takes.",
        )
    ]  # fmt: skip


async def _wrong_rewards(subject: Subject) -> dict[str, float]:
    """What a wrong answer after the right calls earns; where only what was done is graded, the best of the wrong episodes."""
    said = await _rewards(subject, "wrong")
    if said:
        return said
    done: dict[str, float] = {}
    for one in await mutated(subject):
        reward, task = one.episode.reward, one.episode.gold.task.id
        if one.mutation.kind is Kind.WRONG and reward is not None:
            done[task] = max(reward, done.get(task, reward))
    return done


async def _rewards(subject: Subject, name: str, *, only_wrong: bool = False) -> dict[str, float]:
    """By task; with `only_wrong` without the episodes that the scorer pays in full, for what was done in them say."""
    return {
        one.gold.task.id: one.reward
        for one in await episodes_of(subject, name)
        if one.reward is not None and not (only_wrong and one.score is not None and one.score >= 1.0)
    }


@check("reward.components", needs=("reward",))
async def components(subject: Subject) -> Iterable[Finding]:
    """A reward of several parts names them, so that each has a curve of its own.

    Return `Reward(total=..., components={...})`: when the total rises, the parts say whether the answers got better or only
    their form. Won, drawn and lost (1, 0 and -1) are one part. Parts that do not sum to the total are a note.
    """
    played = [one for one in await all_episodes(subject) if one.trajectory.reward is not None]
    rewards = [one.trajectory.reward for one in played if one.trajectory.reward is not None]
    values = {round(reward.total, 6) for reward in rewards}
    if (
        len(values) > 2
        and not values <= WON_DRAWN_LOST
        and not any(reward.components or reward.metrics for reward in rewards)
    ):
        return [
            Finding(
                rule="reward.components", severity=Severity.WARNING,
                symptom=f"The reward takes {len(values)} values and names no component.",
                evidence={"values": sorted(values)[:20]},
                change="Return `Reward(total=..., components={name: part, ...})`, or `(total, metrics)`.",
                confirm="The components have curves of their own.",
            )
        ]  # fmt: skip
    for one in played:
        reward = one.trajectory.reward
        if reward is not None and reward.components:
            total = math.fsum(reward.components.values())
            if not math.isclose(total, reward.total, abs_tol=1e-6):
                return [
                    Finding(
                        rule="reward.components", severity=Severity.NOTE,
                        symptom=f"The components sum to {total:g}, the reward is {reward.total:g}.",
                        evidence={"components": dict(reward.components), "episode": one.shown},
                        change="Give components that sum to the total, weights included; put other numbers into metrics.",
                        confirm="The sum of the components is the total.",
                    )
                ]  # fmt: skip
    return []


@check("reward.deterministic", needs=("reward",))
async def deterministic(subject: Subject) -> Iterable[Finding]:
    """Reward and scorer say the same of the same episode, always, whatever its name is.

    A judge that draws, keeps state between calls, reads a clock, or goes by the episode's id teaches noise. Judge what was said
    and done, alone.
    """
    found = []
    for one in (await all_episodes(subject))[:NUM_MUTATED] + await episodes_of(subject, "wrong"):
        if one.failure is not None or len(found) > 0:
            continue
        for change, trajectory in (
            ("again", one.trajectory),
            ("under another id", replace(one.trajectory, id="other")),
        ):
            for _ in range(2):
                again = await subject.judge(replace(trajectory, reward=None, score=None))
                for judge, first, second in (
                    ("reward", _reward_said(one.trajectory), _reward_said(again)),
                    ("scorer", one.score, again.score),
                ):
                    if first != second and not found:
                        found.append(
                            Finding(
                                rule="reward.deterministic", severity=Severity.ERROR,
                                symptom=f"The {judge} says {first} of an episode, and {second} of the same episode {change}.",
                                evidence={"episode": one.shown, "first": first, "second": second, "judged": change},
                                change=f"Take randomness, clocks, ids and state kept between calls out of the {judge}.",
                                confirm="Judging an episode twice gives the same numbers.",
                            )
                        )  # fmt: skip
    return found


def _reward_said(trajectory: Trajectory) -> Json:
    reward = trajectory.reward
    if reward is None:
        return None
    return {"total": reward.total, "components": dict(reward.components)} if reward.components else reward.total


@check("reward.shared_code", needs=("reward", "scorer"))
async def shared_code(subject: Subject) -> Iterable[Finding]:
    """Reward and scorer apply the same rule by separate code, so that a mistake in one shows against the other.

    A warning where the code that reads or judges the answer is the same: no check and no evaluation can see its mistakes. A
    note where only the ground truth is computed by the same code.
    """
    played = await episodes_of(subject, EXPERT) + await episodes_of(subject, "wrong")
    assert subject.reward is not None and subject.scorer is not None, "the rule needs both"  # noqa: PT018
    reached: dict[str, dict[CodeType, bool]] = {"reward": {}, "scorer": {}}
    for one in played[:NUM_MUTATED] + played[-1:]:
        for name, judge in (("reward", subject.reward), ("scorer", subject.scorer)):
            for code, reads_answer in (await _reached(judge, one.trajectory)).items():
                reached[name][code] = reached[name].get(code, False) or reads_answer
    shared = {code: reads for code, reads in reached["reward"].items() if code in reached["scorer"]}
    if not shared:
        return []
    judging = [code for code, reads_answer in shared.items() if reads_answer]
    names = [f"{code.co_qualname} ({Path(code.co_filename).name}:{code.co_firstlineno})" for code in judging or shared]
    return [
        Finding(
            rule="reward.shared_code", severity=Severity.WARNING if judging else Severity.NOTE,
            symptom=f"Reward and scorer {'judge the answer' if judging else 'find the ground truth'} by the same code: "
            f"{', '.join(names[:3])}.",
            evidence={"functions": names},
            change="Write the scorer on its own (`sparring.scorers.json_exact` reads tagged JSON), or write down why "
            "one piece of "
            "code must serve both.",
            confirm="Reward and scorer reach no function of yours in common.",
        )
    ]  # fmt: skip


async def _reached(judge: Callable[..., Any], trajectory: Trajectory) -> dict[CodeType, bool]:
    """The functions outside libraries that a judge reaches, and whether each was given the episode or its answer."""
    found: dict[CodeType, bool] = {}
    said = text_of(trajectory.messages[-1]).strip()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        file = code.co_filename
        is_judge = file.startswith(_OWN_JUDGES)
        if event != "call" or file.startswith("<") or "site-packages" in file:
            return
        if not is_judge and file.startswith(_LIBRARIES):
            return
        values = frame.f_locals.values()
        reads = any(isinstance(value, Trajectory) or (said and value == said) for value in values)
        found[code] = found.get(code, False) or reads

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        await call(judge, trajectory)
    except Exception:  # noqa: BLE001 (reward.range tells)
        pass
    finally:
        sys.setprofile(before)
    return found


@check("reward.mutations", needs=("reward",))
async def reward_mutations(subject: Subject) -> Iterable[Finding]:
    """Right episodes are changed, and the reward pays for none that the scorer rejects: answers in some sixty ways (tag dropped
    or swapped, wrapped, doubled, padded, cut, other case, all labels, values nearly right, ...), and calls, where what was done
    is graded (left out, doubled, with other arguments, in another order, a tool that the expert does not use in their place).

    None earns more than the right one either, as where length is paid. Every change in the evidence is one that a policy can
    find. A warning where all of them have the right values, in another form or with something around them. Read the last
    message, once, in the form that the prompt asks for, or the final state, and compare whole values. The
    other way round, a right episode that only the scorer pays for, is a warning.
    """
    changed = await mutated(subject)
    earned = await _rewards(subject, EXPERT)
    over = [
        one for one in changed
        if is_overpaid(subject, one.episode) and (subject.scorer is not None or one.mutation.kind is Kind.WRONG)
    ]  # fmt: skip
    more = [
        one for one in changed
        if one not in over and one.episode.reward is not None and _may_not_earn_more(one)
        and one.episode.reward > earned.get(one.episode.gold.task.id, one.episode.reward) + 1e-6
    ]  # fmt: skip
    found = []
    if more:
        first = more[0].episode
        found.append(
            Finding(
                rule="reward.mutations", severity=Severity.ERROR,
                symptom=f"Changed episodes earn more than the right one ({first.reward:g} against "
                f"{earned[first.gold.task.id]:g}): {_names(more)}.",
                evidence={"changes": _each_once(more)},
                change="Do not pay for length, repetition or form beyond what the right answer in its plain form earns.",
                confirm="No changed episode earns more than the right one.",
            )
        )  # fmt: skip
    if over:
        found.append(
            Finding(
                rule="reward.mutations",
                severity=Severity.WARNING if all(one.mutation.kind in IN_ANOTHER_FORM for one in over) else Severity.ERROR,
                symptom=f"The reward pays in full for what the scorer rejects: {_names(over)}.",
                evidence={"changes": _each_once(over)},
                change="Have the reward read the same place and compare with the same equality as the scorer.",
                confirm="None of these changes earns the success threshold.",
            )
        )  # fmt: skip
    missed = [
        one for one in changed
        if one.episode.score is not None and one.episode.score >= 1.0
        and one.episode.reward is not None and one.episode.reward < HALF * earned.get(one.episode.gold.task.id, 1.0)
    ]  # fmt: skip
    if missed:
        found.append(
            Finding(
                rule="reward.mutations", severity=Severity.WARNING,
                symptom=f"The scorer takes answers for right that earn little: {_names(missed)}.",
                evidence={"changes": _each_once(missed)},
                change="Pay for what the scorer takes for right, or have the scorer refuse it too.",
                confirm="Reward and scorer agree on these changes.",
            )
        )  # fmt: skip
    return found


def _may_not_earn_more(changed: Mutated) -> bool:
    """Other calls may be a better way to the same."""
    return changed.mutation.calls is None or changed.mutation.kind is Kind.WRONG


@check("reward.parts", needs=("reward",))
async def parts(subject: Subject) -> Iterable[Finding]:
    """No part of the reward is above what a strict comparison of that field gives.

    A component with the name of a field is paid in full although the field is not equal to the ground truth; or an answer
    without one right value adds half of what the right one earns to what the same calls earn without any answer. The judge
    compares parts of texts, ignores case or types, or pays for form.
    """
    over: list[dict[str, Json]] = []
    unsaid: dict[str, float] = {}
    for one in await mutated(subject):
        right, said, reward = one.episode.gold.parts, one.parts, one.episode.trajectory.reward
        if right is None or said is None or reward is None:
            continue
        differing = [name for name in right if name not in said or canonical(said[name]) != canonical(right[name])]
        full = await _components(subject, one.episode.gold)
        for name in differing:
            if full.get(name, 0.0) > 0 and reward.components.get(name, 0.0) >= full[name] - 1e-9:
                said_value = said.get(name)
                over.append({**one.shown, "component": name, "part": said_value, "right_part": right[name]})
                break
        else:
            earned = await _earned(subject, one.episode.gold)
            is_all_wrong = len(differing) == len(right) and one.mutation.kind is Kind.WRONG
            is_all_wrong &= not any(shares_elements(said.get(name), right[name]) for name in differing)
            if is_all_wrong and (one.episode.score or 0.0) < HALF and 0 < HALF * earned <= reward.total:
                task = one.episode.gold.task.id
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
            rule="reward.parts", severity=Severity.ERROR,
            symptom=f"The reward pays for wrong values: {what} for {first['change']} "
            f"({clipped(str(first['said']), 80)!r} where "
            f"{clipped(str(first['right']), 80)!r} is right).",
            evidence={"changes": list({one["change"]: one for one in over}.values())[:8]},
            change="Compare whole values of the same type in each part of the reward.",
            confirm="No component is paid for a field that is not equal to the ground truth.",
        )
    ]  # fmt: skip


@check("reward.scorer", needs=("scorer",))
async def scorer(subject: Subject) -> Iterable[Finding]:
    """The scorer pays for nothing but what is right.

    What it depends on is found by changing one thing at a time: the last message, the final state, the calls. Then that is
    changed. An error where other values pass (parts of texts, texts around values, all labels at once, null-likes, a wrong
    answer beside the right one), and where nothing was done, something else than the task's fields hold, or where what was to be
    done is gone: the measured success is not success. An error, too, where it gives no number from 0 to 1, for the first such
    episode ends the run. A warning where the right values pass in another form than was asked for, which the consumer of the
    answer may not read, and where a field of the task that the expert always carries out is not compared, or something is gone
    that the expert leaves. A note where another way earns as much: look whether it is meant.
    """
    passed = [one for one in await mutated(subject) if one.episode.score is not None and one.episode.score >= 1.0]
    found = await _failures(subject, "scorer", rule="reward.scorer", number="a number from 0 to 1")
    did_wrong = any(one.mutation.calls is not None and one.mutation.kind is Kind.WRONG for one in passed)
    for kind, severity, what, change in (
        (
            Kind.WRONG, Severity.ERROR, f"takes wrong {'episodes' if did_wrong else 'answers'} for right",
            "Compare all of the final state with what the task asks for, also what must not be gone or added."
            if did_wrong else "Compare whole values, canonically equal by type, null only for null, in exactly one answer in "
            "the last message.",
        ),
        (
            Kind.FORM, Severity.WARNING, "takes answers for right that are not in the asked form",
            "Refuse what whoever reads the answers cannot read, or write down that the form does not matter.",
        ),
        (
            Kind.DOUBTFUL, Severity.WARNING, "takes for right what does not look right",
            "Compare what `why_wrong` names in the evidence, or write down that it does not matter.",
        ),
        (
            Kind.OTHER, Severity.NOTE, "takes something else for right, too",
            "Look at the calls and the final state in the evidence; if they are no solution, have the scorer refuse them.",
        ),
    ):  # fmt: skip
        these = [one for one in passed if one.mutation.kind is kind]
        if these:
            found.append(
                Finding(
                    rule="reward.scorer", severity=severity, symptom=f"The scorer {what}: {_names(these)}.",
                    evidence={"changes": _each_once(these)}, change=change,
                    confirm="The scorer gives less than 1 to each of these changes.",
                )
            )  # fmt: skip
    return found


def is_overpaid(subject: Subject, episode: Episode) -> bool:
    """Whether the reward counts as success while the strict score is below 1, and below the reward."""
    score = episode.score if episode.score is not None else 0.0
    threshold = subject.config.evaluation.success_threshold
    return episode.reward is not None and episode.reward >= threshold - 1e-9 and score < 1.0 and episode.reward > score


async def _earned(subject: Subject, gold: Gold) -> float:
    return (await _rewards(subject, EXPERT)).get(gold.task.id, 1.0)


async def _earned_by_calls(subject: Subject, episode: Episode) -> float:
    """What the calls of an episode earn when nothing is answered in the end."""
    golds = await golds_of(subject)
    if golds is None or golds.form.tool is not None:
        return 0.0  # the answer is one of the calls
    silent = await judged(subject, golds, "nothing", episode.gold, with_last(episode.trajectory, answer("")))
    return silent.reward or 0.0


async def _components(subject: Subject, gold: Gold) -> Mapping[str, float]:
    for one in await episodes_of(subject, EXPERT):
        if one.gold.task.id == gold.task.id and one.trajectory.reward is not None:
            return one.trajectory.reward.components
    return {}


def _names(changed: Sequence[Mutated]) -> str:
    names = list(dict.fromkeys(one.mutation.name for one in changed))
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _each_once(changed: Sequence[Mutated]) -> list[Json]:
    """One example of each change."""
    return [one.shown for one in {one.mutation.name: one for one in reversed(changed)}.values()][::-1][:20]
