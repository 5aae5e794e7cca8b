"""A rule that finds which act of the policy is rewarded instead of the task, and confirms it with edited episodes.

An alarm reports that incorrect episodes are rewarded. A trait that rewarded incorrect episodes have and others lack is
correlated with the reward. It is the mechanism only if the reward falls when the trait is removed from a rewarded
episode, and rises when it is added to an unrewarded one. Otherwise the mechanism is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from sparring.detectors.association import (
    EQUAL,
    FEWEST_PAID,
    MOST_ALIKE,
    Association,
    Evidence,
    association,
    definiteness,
    parts_of,
    typical,
    weight,
    wording,
)
from sparring.detectors.confirmation import Ground, Proof, is_amount, level_of
from sparring.detectors.contrast import Separation
from sparring.detectors.edits import can_change
from sparring.detectors.evidence import Episode, are_scored, latest, named, reward, score, shown, slope
from sparring.detectors.rewards import component_takes_over, paid_for_wrong, rises_alone
from sparring.detectors.traits import Key
from sparring.detectors.trend import LIKELY, SURE, trend
from sparring.findings import Finding, Severity
from sparring.run_folders.history import History
from sparring.types import Json

RULE = "reward.mechanism"
PAID = 0.25
"""The smallest value of a trait that is named without an alarm, as a share of the reward for a right answer."""
LEAST, LEAST_VAGUE = 0.1, 0.25
"""The smallest shares of the variance of rewards within groups that an act must explain to be tried. The second share
is for amounts, and for acts that did not raise the reward of any unpaid episode."""
MOST_CANDIDATES = 12
"""The largest number of acts that are tried after a step."""
COVERED = 0.5
"""The smallest share of the rewarded incorrect episodes of the last steps that must still have the act that was named
before."""
PAID_BY = 0.5
"""The smallest share of the reward for an act that a component must pay to be named with the act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """An act that is rewarded."""

    key: Key
    has: bool
    """True if the act is rewarded; False if its absence is rewarded."""
    what: str
    """The predicate of a sentence about an episode: `calls save with an empty text`."""
    worth: float
    """The reward, within groups, for one unit more of the act."""
    proof: Proof
    explained: float
    shares: dict[str, float]
    """The degrees, from 0 to 1, to which rewarded incorrect, other incorrect and correct episodes have it."""
    confirmed: tuple[tuple[Key, bool], ...]
    """This act and the other confirmed acts."""
    alike: tuple[str, ...]
    """The other confirmed acts in words."""
    carriers: tuple[Episode, ...]
    """The rewarded incorrect episodes with the act, latest first."""


def what_is_paid(history: History) -> Iterable[Finding]:
    """Name the act of the policy that is rewarded instead of the task.

    The rule runs if an alarm reports that something other than the task is rewarded, or if such a trait becomes more
    frequent and the score does not follow. It tries traits that are correlated with the reward of incorrect episodes:
    words, calls, arguments, outcomes and amounts. It reports a trait that trials confirm. In a trial, episodes are run
    and graded again: without the trait, they earn less, and with it, they earn more. The finding remains valid until
    trials refute it, or until trials confirm that the policy now does something else. During an alarm without a
    confirmed trait, a note reports that the mechanism is unknown. The note lists the traits that are correlated with
    the reward, and three rewarded incorrect episodes.
    """
    episodes = latest(history, len(history.steps))
    wrong = [one for one in episodes if are_scored([one]) and score(one.digest) < history.success_threshold]
    if len(wrong) < FEWEST_PAID or not are_scored(episodes):
        return
    alarms = (one for rule in (paid_for_wrong, rises_alone, component_takes_over) for one in rule(history))
    is_alarmed = next(iter(alarms), None) is not None
    if is_alarmed or _pays_for_a_growing_trait(history, episodes):
        yield from _trace(history, episodes, is_alarmed=is_alarmed)


def _pays_for_a_growing_trait(history: History, episodes: Sequence[Episode]) -> bool:
    """Return whether a trait that earns much becomes more frequent and the score does not follow."""
    seen = trend(history)
    if seen is None or seen.is_explained or (seen.scores is not None and seen.scores.exceeds(LIKELY)):
        return False
    found = association(parts_of(episodes, history.success_threshold)[:1])
    return found is not None and found.growth.exceeds(SURE) and found.worth.value >= PAID * seen.scale


def _trace(history: History, episodes: Sequence[Episode], *, is_alarmed: bool) -> Iterable[Finding]:
    """Yield the finding about the act that trials confirm now, or the finding that still holds."""
    before = find_stated(history)
    if history.trials is not None:
        history.trials.begin()
    parts = parts_of(episodes, history.success_threshold)
    is_refuted = before is not None and _is_refuted(before, parts[0], history)
    if before is not None and not is_refuted and _is_in_use(before, parts[0]):
        yield before
        return
    cause = next((one for part in parts if (one := _cause(part, history)) is not None), None)
    if before is not None and cause is not None and _trait(before) in cause.confirmed:
        yield before
    elif cause is not None:
        yield _named(history, cause, withdrawn=before)
    elif before is not None and not is_refuted:
        yield before
    elif is_alarmed:
        reported = [one for one in history.findings if one.rule == RULE]
        is_known = before is None and bool(reported)
        yield reported[-1] if is_known else _unknown(history, parts, withdrawn=before)


def find_stated(history: History) -> Finding | None:
    """Return the last finding that names the mechanism, or None if there is none or it was withdrawn later."""
    reported = [
        one
        for one in history.findings
        if one.rule == RULE and ("confirmed" in one.evidence or "withdrawn" in one.evidence)
    ]
    return reported[-1] if reported and reported[-1].evidence.get("confirmed") else None


def _is_in_use(before: Finding, seen: Evidence) -> bool:
    """Return whether the rewarded incorrect episodes of the last steps still show the named act."""
    key, has = _trait(before)
    if is_amount(key) or not seen.recent:
        return True
    return fmean((level_of(key, seen.episodes[place].digest) > 0) is has for place in seen.recent) >= COVERED


def _is_refuted(before: Finding, seen: Evidence, history: History) -> bool:
    return history.trials is not None and _ground(seen, history).refutes(
        *_trait(before), float(before.evidence["worth"])
    )


def _trait(before: Finding) -> tuple[Key, bool]:
    return tuple(map(str, before.evidence["trait"])), bool(before.evidence["has"])


def _cause(seen: Evidence, history: History) -> Cause | None:
    """Return the most definite of the confirmed acts that explain the most, or None if no act is confirmed."""
    if history.trials is None or len(seen.recent) < FEWEST_PAID:
        return None
    ground, confirmed = _ground(seen, history), list[tuple[Separation, Proof, float]]()
    for one in _candidates(seen):
        if confirmed and _strength(one) < EQUAL * _strength(confirmed[0][0]):
            break
        worth = _worth(one, seen)
        proof = ground.prove(one.trait.key, one.is_paid, worth)
        if proof.is_cause and (proof.rises or one.explained >= LEAST_VAGUE):
            confirmed.append((one, proof, worth))
    if not confirmed:
        return None
    confirmed.sort(key=lambda found: definiteness(found[0]))
    (one, proof, worth), *others = confirmed
    return Cause(
        key=one.trait.key,
        has=one.is_paid,
        what=wording(one) + _paid_by(proof),
        worth=worth,
        proof=proof,
        explained=one.explained,
        shares=seen.shares(one),
        confirmed=tuple((other.trait.key, other.is_paid) for other, _, _ in confirmed),
        alike=tuple(wording(other) for other, _, _ in others)[:MOST_ALIKE],
        carriers=tuple(seen.episodes[place] for place in seen.recent if one.trait.level(place) > 0 or not one.is_paid),
    )


def _candidates(seen: Evidence) -> list[Separation]:
    """Return the acts that are correlated with the reward, with the strongest correlation first.

    If several acts occur in the same episodes, only the most definite one is kept.
    """
    found: dict[object, Separation] = {}
    acts = (
        one
        for one in seen.separations
        if can_change(one.trait.key) and one.explained >= _least(one) and seen.is_in_use(one)
    )
    for one in sorted(acts, key=definiteness):
        found.setdefault((one.trait.key[0], one.trait.levels), one)
    return sorted(found.values(), key=_strength, reverse=True)[:MOST_CANDIDATES]


def _least(one: Separation) -> float:
    return LEAST_VAGUE if one.trait.is_amount else LEAST


def _strength(one: Separation) -> float:
    return weight(one) * one.explained


def _worth(one: Separation, seen: Evidence) -> float:
    """Return the reward, within groups, for one unit more of the trait.

    If too few group members differ, return the difference in reward between rewarded and unrewarded incorrect episodes.
    """
    levels = {seen.episodes[place].digest.id: one.trait.level(place) for place in seen.compared}
    found = slope(
        [seen.episodes[place] for place in seen.compared],
        lambda digest: levels[digest.id],
        reward,
        at_equal=score if seen.is_wrong_only else None,
    )
    return (seen.gap if found is None else found.value) / one.trait.unit


def _ground(seen: Evidence, history: History) -> Ground:
    assert history.trials is not None
    paid, unpaid, right = (
        [seen.episodes[place] for place in places]
        for places in (dict.fromkeys([*seen.recent, *reversed(seen.paid)]), reversed(seen.unpaid), reversed(seen.right))
    )
    return Ground(
        history.trials,
        history.episodes,
        paid=paid,
        unpaid=unpaid,
        right=right,
        gap=seen.gap,
        success_threshold=history.success_threshold,
    )


def _paid_by(proof: Proof) -> str:
    """Return the components that reward the act, if the reward has several components."""
    edits = [one for one in (*proof.without, *proof.added) if one.counts]
    changes = {name: fmean(one.components.get(name, 0.0) for one in edits) for name in edits[0].components}
    names = [name for name, change in changes.items() if change >= PAID_BY * sum(changes.values())]
    return f" (paid by the component {', '.join(map(repr, sorted(names)))})" if names and len(changes) > 1 else ""


def _named(history: History, found: Cause, withdrawn: Finding | None) -> Finding:
    without, added = found.proof.without, found.proof.added
    alike = f" (trials confirm the same for: {'; '.join(found.alike)})" if found.alike else ""
    return Finding(
        rule=RULE,
        severity=Severity.WARNING,
        symptom=f"the reward pays an episode that {found.what}{alike}. {_trials(found.proof)}{_withdrawal(withdrawn)}",
        evidence={
            "subject": found.what,
            "confirmed": True,
            "what": found.what,
            "alike": list(found.alike),
            "trait": list(found.key),
            "has": found.has,
            "worth": found.worth,
            "explained": round(found.explained, 3),
            "shares": {name: round(share, 3) for name, share in found.shares.items()},
            "without": [[one.id, one.before, one.after] for one in without],
            "added": [[one.id, one.before, one.after] for one in added],
            "components": _components(found.carriers),
            "examples": shown(found.carriers),
            **_withdrawn(withdrawn),
        },
        change=f"Find the part of the reward that pays an episode that {found.what}, and make it pay for the task "
        "itself.",
        confirm="When stored episodes are graded with the new reward, this act earns no more than other episodes of "
        "equal score.",
        step=history.last_step,
        trajectories=named(found.carriers),
    )


def _trials(proof: Proof) -> str:
    without, added = proof.without, proof.added
    text = f"Without it, {proof.falls} of {len(without)} such episodes earn less: {_shown(without)}."
    if added:
        text += f" With it, {proof.rises} of {len(added)} others earn more: {_shown(added)}."
    return text


def _shown(edits: Sequence[object]) -> str:
    first = next((one for one in edits if one.counts), edits[0])  # pyright: ignore[reportAttributeAccessIssue]
    return f"{first.id} {first.after:.2f} instead of {first.before:.2f}"  # pyright: ignore[reportAttributeAccessIssue]


def _unknown(history: History, parts: Sequence[Evidence], withdrawn: Finding | None) -> Finding:
    examples = typical(parts[0])
    steps = sorted({one.group[0] for one in examples})
    found = association(parts)
    return Finding(
        rule=RULE,
        severity=Severity.NOTE,
        symptom=f"the mechanism is unknown: {_goes_with(found)} Read these three episodes of steps {steps[0]} to "
        f"{steps[-1]}: {', '.join(named(examples))}.{_withdrawal(withdrawn)}",
        evidence={
            "subject": "unknown",
            "confirmed": False,
            "steps": [steps[0], steps[-1]],
            "goes_with": [] if found is None else [found.what, *found.alike],
            **_association(found),
            "components": _components(examples),
            "examples": shown(examples),
            **_withdrawn(withdrawn),
        },
        change="Read the three episodes, and change the reward so that it no longer pays for what they do.",
        confirm="When graded with the new reward, these episodes earn the same as other wrong episodes.",
        step=history.last_step,
        trajectories=named(examples),
    )


def _goes_with(found: Association | None) -> str:
    if found is None:
        return (
            "no word, call, argument, result, state or amount reliably separates the paid wrong episodes from the "
            "others, and no change of one of these changes their reward."
        )
    low, high = found.worth.interval()
    return (
        f"the reward is higher for an episode that {'; that '.join([found.what, *found.alike])} "
        f"({found.worth.value:.2f} [{low:.2f}, {high:.2f}] more), but no trial confirms that this is the cause."
    )


def _association(found: Association | None) -> dict[str, Json]:
    if found is None:
        return {}
    return {
        "explained": round(found.explained, 3),
        "shares": {name: round(share, 3) for name, share in found.shares.items()},
        "worth": [round(one, 4) for one in (found.worth.value, *found.worth.interval())],
        "traits_tried": found.num_tried,
        "chance": found.chance,
    }


def _withdrawal(before: Finding | None) -> str:
    if before is None:
        return ""
    return f" The mechanism that was named after step {before.step} ({before.evidence['what']}) no longer applies."


def _withdrawn(before: Finding | None) -> dict[str, Json]:
    return {} if before is None else {"withdrawn": before.evidence["what"]}


def _components(episodes: Sequence[Episode]) -> dict[str, Json]:
    """Return the mean of each component over these episodes."""
    names = sorted({name for one in episodes for name in one.digest.components})
    return {name: round(fmean(one.digest.components.get(name, 0.0) for one in episodes), 4) for name in names}
