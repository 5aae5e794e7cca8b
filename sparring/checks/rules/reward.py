"""Rules on the reward: it gives a useful signal, and agrees with the scorer on what is correct, even for answers that
cheat."""

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
from sparring.checks.evidence.accepted_answers import find_overpaid_candidates
from sparring.checks.evidence.answer_forms import get_text
from sparring.checks.evidence.candidate_answers import GradedCandidate, grade_candidates
from sparring.checks.evidence.changed_answers import Kind
from sparring.checks.evidence.changed_episodes import NUM_MUTATED, mutate_episodes
from sparring.checks.evidence.correct_calls import Verdict
from sparring.checks.evidence.model_episodes import may_fail_at_first, run_model_baseline
from sparring.checks.evidence.reference_episodes import find_references
from sparring.checks.evidence.scripted_episodes import Episode, clip, get_all_episodes, get_episodes
from sparring.checks.evidence.subject import EXPERT, GraderName, Subject
from sparring.checks.evidence.unguided_episodes import (
    UnguidedEpisode,
    find_overpaid_unguided,
    find_paid_repeats,
    run_unguided_episodes,
)
from sparring.checks.rules.chains import find_chains
from sparring.checks.running.time_budget import OutOfTimeError
from sparring.environments import tool_call
from sparring.findings import Finding, Severity
from sparring.runtime.plugins import call
from sparring.types import Json, Trajectory

BASELINE_SECONDS = 1800.0
"""The seconds that the model may use for its baseline."""
MOSTLY_FLAT = 0.9
"""Nearly nothing is learned if more than this share of the groups have equal rewards."""
NUM_SHOWN = 4
NUM_NAMED = 8
"""The maximum number of policies that are named in one line."""
FEWEST_LOST = 2
"""The number of tasks in which an episode without an answer must earn as much as the correct answer before the rule
reports this."""
WON_DRAWN_LOST = {1.0, 0.0, -1.0}
_PACKAGE = Path(sparring.__file__).parent
_OWN_GRADERS = tuple(str(_PACKAGE / room) for room in ("rewards", "scorers"))
_LIBRARIES = (str(Path(sys.prefix).resolve()), str(Path(sys.base_prefix).resolve()), str(_PACKAGE))


async def reward_range(subject: Subject) -> Iterable[Finding]:
    """Every episode gets a number in [0, 1], or in [-1, 1] if wrong answers cost something.

    Advantages, charts, thresholds and advice assume this range. A reward that raises an exception on an empty or
    unusual answer discards the episodes that most need a signal. Return 0 for them.
    """
    played = await get_all_episodes(subject)
    beyond = [one for one in played if one.reward is not None and not -1.0 <= one.reward <= 1.0]
    found = await find_failures(subject, "reward", rule="reward.range", number="a finite number")
    if beyond:
        furthest = max(beyond, key=lambda one: abs(one.reward or 0.0))
        found.append(
            Finding(
                rule="reward.range",
                severity=Severity.ERROR,
                symptom=f"The reward of {len(beyond)} of {len(played)} episodes is outside [-1, 1]: "
                f"{furthest.reward:g} for the "
                f"policy '{furthest.policy}'.",
                evidence={"episodes": [one.shown for one in beyond[:NUM_SHOWN]]},
                change="Scale the reward to [0, 1], or to [-1, 1] if wrong answers cost something.",
                confirm="All rewards of this check are in the range.",
            )
        )
    return found


async def find_failures(subject: Subject, grader: GraderName, *, rule: str, number: str) -> list[Finding]:
    """Return a finding if a grader returns no usable number for an episode or for a changed correct answer. Such a
    failure would end a training run."""
    graded: list[Episode | GradedCandidate] = [
        *await get_all_episodes(subject),
        *(one.episode for one in await mutate_episodes(subject)),
    ]
    graded += await grade_candidates(subject)
    failed = [one for one in graded if one.failed == grader]
    if not failed:
        return []
    return [
        Finding(
            rule=rule,
            severity=Severity.ERROR,
            symptom=f"The {grader} fails on {len(failed)} of {len(graded)} episodes: "
            f"{clip(str(failed[0].failure), 200)}",
            evidence={"failure": failed[0].failure, "episodes": [one.shown for one in failed[:NUM_SHOWN]]},
            change=f"Return {number} for every finished episode, and 0 for an answer that cannot be parsed.",
            confirm=f"The {grader} returns a number for every episode in the evidence.",
        )
    ]


async def variance(subject: Subject) -> Iterable[Finding]:
    """Over about 100 episodes of policies that range from always correct to never answering, the reward takes more than
    one value.

    If all rewards are equal, every advantage is 0 and nothing is learned. The usual cause is that the reward reads a
    different tag, field or message than the one that contains the answer.
    """
    played = [one for one in await get_all_episodes(subject) if one.reward is not None]
    values = {round(one.reward or 0.0, 9) for one in played}
    if len(played) < 2 or len(values) > 1:
        return []
    if {one.policy for one in played} == {EXPERT}:
        raise OutOfTimeError("only the expert has run so far")
    return [
        Finding(
            rule="reward.variance",
            severity=Severity.ERROR,
            symptom=f"The reward is {played[0].reward:g} for all {len(played)} episodes, for the expert as well as "
            f"for the policy that never answers.",
            evidence={
                "policies": sorted({one.policy for one in played}),
                "episodes": [one.shown for one in played[:NUM_SHOWN]],
            },
            change="Print what the reward reads from the expert's last message, and correct the tag, field or message "
            "that it searches for.",
            confirm="The expert earns more than the policy that never answers.",
        )
    ]


async def agreement(subject: Subject) -> Iterable[Finding]:
    """No episode is rewarded for what the scorer rejects.

    An episode is over-credited if its reward counts as success (evaluation.success_threshold), but its strict score is
    below 1 and below the reward. Training amplifies this: the reward rises and the evaluation does not. Even if no
    correct answer is known, the rule runs episodes that do nothing, call every tool, repeat calls, or make random
    calls.
    """
    over: list[Episode | UnguidedEpisode] = [
        one for one in await get_all_episodes(subject) if is_overpaid(subject, one)
    ]
    found = [] if over else await find_overpaid_candidates(subject)
    over = over or [*find_overpaid_unguided(subject, await run_unguided_episodes(subject))]
    if not over:
        return found
    policies = sorted({one.policy for one in over})
    first = over[0].shown
    return [
        *found,
        Finding(
            rule="reward.agreement",
            severity=Severity.WARNING if _all_say_what_is_right(over) else Severity.ERROR,
            symptom=f"{len(over)} episodes earn {first['reward']:g} while the scorer gives {first['score']:g}, with "
            f"the policies {', '.join(policies[:NUM_NAMED])}.",
            evidence={"policies": policies, "episodes": [one.shown for one in over[:NUM_SHOWN]]},
            change="In the reward, compare what the scorer compares: the same message, tag, fields and equality.",
            confirm="No episode of this check earns the threshold with a score below 1.",
        ),
    ]


def _all_say_what_is_right(over: Sequence[Episode | UnguidedEpisode]) -> bool:
    """Return True if none of these episodes is known to be incorrect. An episode may be incorrect because something was
    done twice."""
    return all(isinstance(one, Episode) and one.verdict is Verdict.RIGHT for one in over)


async def baseline(subject: Subject) -> Iterable[Finding]:
    """Over 100 episodes that the model itself runs, rewards differ, even within the group of one task, and no episode
    is rewarded for what the scorer rejects.

    The model learns nothing from groups whose rewards are all equal. In this case, give partial credit, choose tasks
    that the model sometimes solves, or use a warm start. If the recipe has a warm start, or allows a baseline without
    success, the finding is a note, because training has not started. An overpaid episode shows how the model already
    exploits the reward.
    """
    played, config = await run_model_baseline(subject), subject.config
    return baseline_findings(
        played.trajectories, config.evaluation.success_threshold, may_be_flat=may_fail_at_first(config)
    )


def baseline_findings(
    trajectories: Sequence[Trajectory], threshold: float, *, may_be_flat: bool = False
) -> list[Finding]:
    """Return findings on the reward in a model's own graded episodes. They report a reward that takes only one value,
    either among all episodes or within most groups (a note if it `may_be_flat`). They also report episodes that are
    rewarded for what the scorer rejects. `threshold` is the reward that counts as success."""
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
                if is_one
                else f"In {len(flat)} of {len(several)} groups of the model's episodes all rewards are equal.",
                evidence={
                    "episodes": len(rewarded),
                    "values": sorted(values)[:20],
                    "groups": len(several),
                    "flat_groups": len(flat),
                    "said": [_last_text(one) for one, _ in rewarded[:NUM_SHOWN]],
                },
                change="Inspect the rewards again after the warm start or the first steps."
                if may_be_flat
                else "Give partial credit, choose tasks that the model sometimes solves, or use a warm start.",
                confirm="In a run, `analysis/batch_valid_ratio` is above 0.3."
                if may_be_flat
                else "The rewards of most groups differ.",
            )
        )
    over = [
        (one, reward)
        for one, reward in rewarded
        if one.score is not None and reward >= threshold - 1e-9 and one.score < 1.0 and reward > one.score
    ]
    if over:
        found.append(
            Finding(
                rule="reward.baseline",
                severity=Severity.ERROR,
                symptom=f"{len(over)} of {len(rewarded)} episodes of the model earn {over[0][1]:g} while the scorer "
                f"gives "
                f"{over[0][0].score:g}.",
                evidence={
                    "episodes": [{**_last_text(one), "reward": r, "score": one.score} for one, r in over[:NUM_SHOWN]]
                },
                change="In the reward, compare what the scorer compares: the same message, tag, fields and equality.",
                confirm="No episode of the model earns the threshold with a score below 1.",
            )
        )
    return found


def _last_text(trajectory: Trajectory) -> dict[str, Json]:
    return {"task": trajectory.task.id, "said": clip(get_text(trajectory.messages[-1]))}


async def order(subject: Subject) -> Iterable[Finding]:
    """`never answered <= wrong < right`, and additional calls earn nothing.

    The order determines what is learned first. If a wrong answer costs more than no answer, policies stop answering. If
    a wrong answer earns as much as a correct one, nothing is learned. If calls are rewarded, policies make more of
    them. If only actions are graded, the incorrect episodes are those whose calls were changed so that they cannot be
    correct.

    The rule warns if calls cost too much. In that case, the correct answer after a chain of calls, in which each result
    contains what the next call needs, earns no more than an episode without an answer. It also warns if the same calls
    are rewarded again and again: calls to a tool that changes nothing, or to two tools that undo each other's changes.
    """
    right, wrong = await get_rewards(subject, EXPERT), await _wrong_rewards(subject)
    never = await get_rewards(subject, "says nothing") | await get_rewards(subject, "never answers", only_wrong=True)
    found = []

    def compare(
        lower: Mapping[str, float],
        upper: Mapping[str, float],
        *,
        strict: bool,
        claim: str,
        change: str,
        severity: Severity,
    ) -> None:
        both = sorted(lower.keys() & upper.keys())
        bad = [key for key in both if lower[key] > upper[key] + 1e-6 or (strict and lower[key] > upper[key] - 1e-6)]
        if bad and 2 * len(bad) >= len(both):
            key = max(bad, key=lambda key: lower[key] - upper[key])
            found.append(
                Finding(
                    rule="reward.order",
                    severity=severity,
                    symptom=f"{claim}: {lower[key]:g} against {upper[key]:g} on task {key}.",
                    evidence={"task": key, "this": lower[key], "that": upper[key], "tasks": len(bad), "of": len(both)},
                    change=change,
                    confirm="never answered <= wrong < right holds on every task, with any number of calls.",
                )
            )

    compare(
        wrong,
        right,
        strict=True,
        severity=Severity.ERROR,
        claim="A wrong answer earns as much as the right one",
        change="Let the outcome dominate: a right answer earns more than everything else together.",
    )
    compare(
        never,
        wrong,
        strict=False,
        severity=Severity.WARNING,
        claim="An episode without an answer earns more than a wrong answer",
        change="Give an episode without an answer at most the reward of a wrong answer.",
    )
    compare(
        await get_rewards(subject, "busy"),
        right,
        strict=False,
        severity=Severity.ERROR,
        claim="The right answer earns more if its first calls are repeated",
        change="Do not reward calls. If reading must be rewarded, limit the amount and reward each item only once.",
    )
    compare(
        await get_rewards(subject, "busy and wrong"),
        wrong,
        strict=False,
        severity=Severity.WARNING,
        claim="A wrong answer earns more if calls are repeated",
        change="Do not reward calls. If reading must be rewarded, limit the amount and reward each item only once.",
    )
    found += find_paid_repeats(await run_unguided_episodes(subject))
    return [*found, *(await _dearer_than_nothing(subject) if not found else ())]


async def _dearer_than_nothing(subject: Subject) -> list[Finding]:
    """Return findings about correct answers that earn no more than no answer when the calls needed to reach them are
    counted."""
    nothing, references = await get_rewards(subject, "says nothing"), await find_references(subject)
    lost: list[dict[str, Json]] = []
    if references is None or references.has_expert:
        return []
    chains = {name: calls for name, calls in (await find_chains(subject)).items() if calls and name in nothing}
    with subject.timing.as_far_as_it_goes():
        for name, calls in chains.items():
            reference = references.by_task[name]
            script = [*(tool_call(one.tool, **one.arguments) for one in calls), reference.answer]
            if len(script) > subject.config.environment.max_turns:
                continue
            played = await subject.run_episode(reference.task, saying("finds the answer", script))
            is_right = played.score is None or played.score >= 1.0
            if is_right and played.reward is not None and played.reward.total <= nothing[name] + 1e-6:
                lost.append(
                    {
                        "task": name,
                        "calls": list(map(str, calls)),
                        "earns": played.reward.total,
                        "nothing": nothing[name],
                    }
                )
    if len(lost) < FEWEST_LOST:
        return []
    return [_report_dear(lost, len(chains))]


def _report_dear(lost: Sequence[dict[str, Json]], num_tasks: int) -> Finding:
    worst = max(lost, key=lambda one: len(one["calls"]))  # type: ignore[arg-type]
    return Finding(
        rule="reward.order",
        severity=Severity.WARNING,
        symptom=f"In {len(lost)} of {num_tasks} tasks, the right answer, after the calls that lead to it, earns no "
        f"more than an episode without an answer: {worst['earns']:g} against {worst['nothing']:g} on task {worst['task']}.",
        evidence={"tasks": lost[:NUM_SHOWN]},
        change="Let the outcome dominate: subtract less for calls than a right answer earns in the longest task.",
        confirm="never answered <= wrong < right holds on every task, with the calls that it takes.",
    )


async def _wrong_rewards(subject: Subject) -> dict[str, float]:
    """Return the reward of a wrong answer after the correct calls, keyed by task. If only actions are graded, return
    the reward of the best incorrect episode."""
    rewards = await get_rewards(subject, "wrong")
    if rewards:
        return rewards
    done: dict[str, float] = {}
    for one in await mutate_episodes(subject):
        reward, task = one.episode.reward, one.episode.reference.task.id
        if one.mutation.kind is Kind.WRONG and reward is not None:
            done[task] = max(reward, done.get(task, reward))
    return done


async def get_rewards(subject: Subject, name: str, *, only_wrong: bool = False) -> dict[str, float]:
    """Return a policy's rewards, keyed by task. With `only_wrong`, leave out the episodes that get full marks from the
    scorer."""
    return {
        one.reference.task.id: one.reward
        for one in await get_episodes(subject, name)
        if one.reward is not None and not (only_wrong and one.score is not None and one.score >= 1.0)
    }


async def components(subject: Subject) -> Iterable[Finding]:
    """A reward with several parts gives each part a name, so that each part has its own curve.

    Return `Reward(total=..., components={...})`. When the total rises, the parts show whether the answers or only their
    format improved. The outcomes won, drawn and lost (1, 0 and -1) are one part. If the parts do not sum to the total,
    the finding is a note.
    """
    played = [one for one in await get_all_episodes(subject) if one.trajectory.reward is not None]
    rewards = [one.trajectory.reward for one in played if one.trajectory.reward is not None]
    values = {round(reward.total, 6) for reward in rewards}
    if (
        len(values) > 2
        and not values <= WON_DRAWN_LOST
        and not any(reward.components or reward.metrics for reward in rewards)
    ):
        return [_report_nameless(values)]
    for one in played:
        reward = one.trajectory.reward
        if reward is None or not reward.components:
            continue
        if not math.isclose(math.fsum(reward.components.values()), reward.total, abs_tol=1e-6):
            return [_report_wrong_sum(one, reward.components, reward.total)]
    return []


def _report_nameless(values: set[float]) -> Finding:
    return Finding(
        rule="reward.components",
        severity=Severity.WARNING,
        symptom=f"The reward takes {len(values)} values, but names no component.",
        evidence={"values": sorted(values)[:20]},
        change="Return `Reward(total=..., components={name: part, ...})`, or `(total, metrics)`.",
        confirm="Each component has its own curve.",
    )


def _report_wrong_sum(one: Episode, components: Mapping[str, float], total: float) -> Finding:
    return Finding(
        rule="reward.components",
        severity=Severity.NOTE,
        symptom=f"The components sum to {math.fsum(components.values()):g}, but the reward is {total:g}.",
        evidence={"components": dict(components), "episode": one.shown},
        change="Return components that sum to the total, including their weights, and put other numbers into metrics.",
        confirm="The sum of the components is the total.",
    )


async def deterministic(subject: Subject) -> Iterable[Finding]:
    """The reward and the scorer always give the same episode the same grade, regardless of its id.

    A grader that draws random numbers, keeps state between calls, reads a clock, or depends on the episode's id teaches
    noise. Base the grade only on the messages and the actions.
    """
    found = []
    for one in (await get_all_episodes(subject))[:NUM_MUTATED] + await get_episodes(subject, "wrong"):
        if one.failure is not None or len(found) > 0:
            continue
        for change, trajectory in (
            ("again", one.trajectory),
            ("under another id", replace(one.trajectory, id="other")),
        ):
            for _ in range(2):
                again = await subject.grade(replace(trajectory, reward=None, score=None))
                if not found:
                    found += _find_other_grade(one, again, change)
    return found


def _find_other_grade(one: Episode, again: Trajectory, change: str) -> list[Finding]:
    for judge, first, second in (
        ("reward", _reward_values(one.trajectory), _reward_values(again)),
        ("scorer", one.score, again.score),
    ):
        if first != second:
            return [
                Finding(
                    rule="reward.deterministic",
                    severity=Severity.ERROR,
                    symptom=f"The {judge} gives {first} for an episode, but {second} for the same episode {change}.",
                    evidence={"episode": one.shown, "first": first, "second": second, "judged": change},
                    change=f"Remove randomness, clocks, ids and state kept between calls from the {judge}.",
                    confirm="Grading an episode twice gives the same numbers.",
                )
            ]
    return []


def _reward_values(trajectory: Trajectory) -> Json:
    reward = trajectory.reward
    if reward is None:
        return None
    return {"total": reward.total, "components": dict(reward.components)} if reward.components else reward.total


async def shared_code(subject: Subject) -> Iterable[Finding]:
    """The reward and the scorer apply the same rule with separate code, so that each can reveal a mistake in the other.

    The rule warns if the reward and the scorer share the code that reads or grades the answer, because no check and no
    evaluation can then detect its mistakes. If they only share the code that computes the ground truth, the finding is
    a note.
    """
    played = await get_episodes(subject, EXPERT) + await get_episodes(subject, "wrong")
    assert subject.reward is not None and subject.scorer is not None, "the rule needs both"  # noqa: PT018
    reached: dict[str, dict[CodeType, bool]] = {"reward": {}, "scorer": {}}
    for one in played[:NUM_MUTATED] + played[-1:]:
        for name, grader in (("reward", subject.reward), ("scorer", subject.scorer)):
            for code, reads_answer in (await _reached(grader, one.trajectory)).items():
                reached[name][code] = reached[name].get(code, False) or reads_answer
    shared = {code: reads for code, reads in reached["reward"].items() if code in reached["scorer"]}
    if not shared:
        return []
    return [_report_shared(shared)]


async def scorer_missing(subject: Subject) -> Iterable[Finding]:
    """The recipe has a scorer.

    Without one, the reward that the policy is trained on also grades it, so a policy that learns to exploit the reward
    looks better in every evaluation. Write a scorer that checks the final result with separate code.
    """
    if subject.scorer is not None or not subject.config.is_trainable:
        return []
    return [
        Finding(
            rule="reward.scorer_missing",
            severity=Severity.WARNING,
            symptom="the recipe has no reward.scorer, so evaluations grade the policy with the reward that it is trained on.",
            evidence={"reward.reward": subject.config.reward.reward, "reward.scorer": None},
            change="Write a scorer that checks the final result with separate code (sparring.scorers has strict ones), and "
            "set reward.scorer.",
            confirm="`sparring eval` no longer reports that the reward grades itself.",
        )
    ]


def _report_shared(shared: Mapping[CodeType, bool]) -> Finding:
    grading = [code for code, reads_answer in shared.items() if reads_answer]
    names = [f"{code.co_qualname} ({Path(code.co_filename).name}:{code.co_firstlineno})" for code in grading or shared]
    return Finding(
        rule="reward.shared_code",
        severity=Severity.WARNING if grading else Severity.NOTE,
        symptom=f"Reward and scorer {'grade the answer' if grading else 'compute the ground truth'} with the same "
        f"code: "
        f"{', '.join(names[:3])}.",
        evidence={"functions": names},
        change="Write the scorer separately (`sparring.scorers.json_exact` reads tagged JSON), or document why "
        "one piece of code must serve both.",
        confirm="The reward and the scorer share none of your functions.",
    )


async def _reached(grader: Callable[..., Any], trajectory: Trajectory) -> dict[CodeType, bool]:
    """Return the functions that a grader calls, except those of libraries, and whether each of them received the
    episode or its answer."""
    found: dict[CodeType, bool] = {}
    text = get_text(trajectory.messages[-1]).strip()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        file = code.co_filename
        is_grader = file.startswith(_OWN_GRADERS)
        if event != "call" or file.startswith("<") or "site-packages" in file:
            return
        if not is_grader and file.startswith(_LIBRARIES):
            return
        values = frame.f_locals.values()
        reads = any(isinstance(value, Trajectory) or (text and value == text) for value in values)
        found[code] = found.get(code, False) or reads

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        await call(grader, trajectory)
    except Exception:  # noqa: BLE001 (reward.range reports it)
        pass
    finally:
        sys.setprofile(before)
    return found


def is_overpaid(subject: Subject, episode: Episode) -> bool:
    """Return True if the reward counts as success while the strict score is below 1 and below the reward."""
    score = episode.score if episode.score is not None else 0.0
    threshold = subject.config.evaluation.success_threshold
    return episode.reward is not None and episode.reward >= threshold - 1e-9 and score < 1.0 and episode.reward > score
