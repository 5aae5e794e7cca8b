"""The claim that the evaluations of a run support. docs/verdicts.md has a table of tested scenarios."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sparring.evaluation.clauses import clauses_of
from sparring.evaluation.controls import (
    FEW_TASKS,
    ORIGIN,
    SHOWN,
    WORDS,
    Against,
    Rise,
    RunFacts,
    compared,
    listed,
    planned,
)
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.limits import Seen, at_temperature, common_part, limits_of
from sparring.findings import Finding, Severity
from sparring.types import Json

NO_TRAINED_POLICY = ("no trained policy",)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotKnown:
    """Expected controls that were not compared with the policy, and the commands that evaluate them."""

    controls: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    where: str = ""
    """The tasks to which this applies, such as " on held-out tasks". Empty if they are the tasks of the claim."""

    def sentences(self) -> Iterator[str]:
        """Yield the sentence about the missing controls, if there are any."""
        if self.controls:
            names = listed([SHOWN[control] for control in self.controls])
            remedies = join_remedies(self.remedies, is_one=len(self.controls) == 1)
            yield f"Not known: whether tuned is better than {names}{self.where}; {remedies}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement about the trained policy, with its scope and limits."""

    scope: tuple[str, ...]
    """The conditions of the claim: seeds, sampling and tasks."""
    tuned: Evaluation | None = None
    """The evaluation of the trained policy. None if no trained policy was evaluated, and for several seeds."""
    against: tuple[Against, ...] = ()
    """The comparisons, with the strongest control first."""
    alike: str = ""
    """A result that all policies have in common, such as "no policy solved a task"."""
    is_unranked: bool = False
    """Whether it is not known which control is the strongest: some seeds lack a control, or the controls were compared on
    different tasks."""
    caveats: tuple[str, ...] = ()
    """The sentences that qualify the claim."""
    not_known: NotKnown = NotKnown()
    findings: tuple[Finding, ...] = ()

    @property
    def strongest(self) -> Against | None:
        """The comparison with the strongest control, or None if there is none."""
        return self.against[0] if self.against else None

    @property
    def rise(self) -> Rise:
        """The result of the comparison with the strongest control that was evaluated."""
        return self.against[0].rise if self.against else Rise.UNKNOWN

    @property
    def limits(self) -> tuple[str, ...]:
        """The sentences that qualify the claim, followed by those about what is not known."""
        return (*self.caveats, *self.not_known.sentences())

    @property
    def headline(self) -> str:
        """The claim as one sentence."""
        if not self.scope:
            return "Nothing was evaluated, so it is not known whether the policy improved."
        if self.scope == NO_TRAINED_POLICY:
            return "No trained policy of this run was evaluated, so nothing is claimed."
        results = clauses_of(self.against, alike=self.alike, is_unranked=self.is_unranked)
        clauses = "; ".join(results) or "not compared with any control"
        return f"{', '.join(self.scope)}: {clauses}."

    def lines(self) -> list[str]:
        """Return the claim as lines of text for the console."""
        return [self.headline, *self.limits]

    def as_json(self) -> dict[str, Json]:
        """Return the content as JSON data."""
        return {
            "claim": self.headline,
            "rise": self.rise.value,
            "limits": list(self.limits),
            "strongest_control": None if self.strongest is None else self.strongest.control,
            "against": [
                {"control": one.control, "difference": one.difference, "rise": one.rise.value} for one in self.against
            ],
            "findings": [one.as_json() for one in self.findings],
        }


def join_remedies(remedies: Sequence[str], *, is_one: bool) -> str:
    """Join the commands into a clause that states that each of them evaluates the control, or the controls."""
    return "; ".join(f"{remedy} evaluates {'it' if is_one else 'them'}" for remedy in remedies)


def claim_of(evaluations: Sequence[Evaluation], facts: RunFacts) -> Claim:
    """Return the claim that the evaluations of one run, with one seed, support."""
    if not evaluations:
        return Claim(scope=(), not_known=_not_known((), facts))
    name = "tuned" if any(one.name == "tuned" for one in evaluations) else evaluations[-1].name
    rows = [one for one in evaluations if one.name == name]
    if name != "tuned" and not name.startswith("@"):
        return Claim(scope=NO_TRAINED_POLICY, not_known=_not_known((), facts))
    # The claim is about the highest temperature, because the probability of every choice affects its results. Greedy
    # results are compared in addition.
    tuned = max(rows, key=lambda one: one.temperature or 0.0)
    controls = [one for one in evaluations if one.name != name and not one.name.startswith(("@", "openai:"))]
    names = [one for one in dict.fromkeys(one.name for one in controls) if one != "expert"]
    against, unlike = compared(tuned, {one: [row for row in controls if row.name == one] for one in names}, facts)
    elsewhere = [one for row in rows if row is not tuned for one in _elsewhere(row, against, controls, facts)]
    opposed = {one.control: one.words for one in elsewhere if one.is_opposed}
    is_unranked = len({planned(tuned) & planned(one.before) for one in against}) > 1
    wheres = {one.control: _where(one, tuned) for one in against if is_unranked}
    against = [replace(one, opposed=opposed.get(one.control, ""), where=wheres.get(one.control, "")) for one in against]
    alike = _alike(evaluations) if against else ""
    seen = Seen(tuned=tuned, against=against, facts=facts, alike=alike, evaluations=evaluations)
    missed = {
        one: [row for row in controls if row.name == one] for one in names if one not in {x.control for x in against}
    }
    only = [sentence for row in rows if row is not tuned for sentence in _only_at(row, missed, facts)]
    caveats = [*(sentence for one in elsewhere for sentence in one.sentences), *unlike, *only, *limits_of(seen)]
    return Claim(
        scope=("One seed", *_scope(seen, is_disagreed=bool(elsewhere or only))),
        tuned=tuned,
        against=tuple(against),
        alike=seen.alike,
        is_unranked=is_unranked,
        caveats=tuple(dict.fromkeys(caveats)),
        findings=tuple(one.finding for one in elsewhere),
        not_known=_not_known(against, facts),
    )


def claim_of_validations(validations: Mapping[int, Evaluation], facts: RunFacts) -> Claim:
    """Return the claim of a run without a held-out evaluation. It compares the last validation with the first.
    `validations` is by step."""
    if not validations:
        return claim_of((), facts)
    earliest = min(validations)
    first, last = validations[earliest], validations[max(validations)]
    name = ORIGIN if earliest == 0 else f"the policy of step {earliest}"
    against, unlike = compared(last, {} if first is last else {name: [replace(first, name=name)]}, facts)
    seen = Seen(tuned=last, against=against, facts=facts, evaluations=(last,))
    chosen = "Settings or checkpoints may have been chosen on these tasks, which are not held out."
    return Claim(
        scope=("One seed", *_scope(seen, is_disagreed=False), "on validation tasks"),
        tuned=last,
        against=tuple(against),
        caveats=(*unlike, *limits_of(seen), chosen),
        not_known=replace(_not_known((), facts), where=" on held-out tasks"),
    )


def _not_known(against: Sequence[Against], facts: RunFacts) -> NotKnown:
    """Return the missing controls. The result is empty if the tuned policy is already worse than another control."""
    missing = facts.missing(against)
    if not missing or (against and against[0].rise is Rise.FELL):
        return NotKnown()
    # The usual name already belongs to a run with random rewards that was too short.
    is_taken = any(one.before is not None and one.before.is_random_control for one in against)
    return NotKnown(
        controls=missing, remedies=(facts.remedy(missing, random="random-longer" if is_taken else "random"),)
    )


def _alike(evaluations: Sequence[Evaluation]) -> str:
    if any(one.num_lost for one in evaluations):
        return ""
    success = {one.success.mean for one in evaluations}
    if success == {0.0}:
        return "no policy solved a task"
    return "every policy solved every task" if success == {1.0} else ""


def _scope(seen: Seen, *, is_disagreed: bool) -> Iterator[str]:
    tuned, facts = seen.tuned, seen.facts
    if tuned.name.startswith("@"):
        yield f"checkpoint {tuned.name}"
    if not tuned.temperature:
        yield "greedily"
    elif is_disagreed:
        yield f"at temperature {tuned.temperature:g}"
    if changed := tuned.differs_with:
        yield f"with {listed([f'{key}={_value(value)}' for key, value in changed.items()])}"
    if tuned.criterion.scorer is None:
        yield "graded by its training reward"
    elif tuned.criterion.independence != "scorer":
        yield f"graded by a scorer that {tuned.criterion.independence}"
    if facts.seen_in_training:
        yield f"on {len(planned(tuned))} tasks, {facts.seen_in_training} of which were trained on"
    if (num := common_part(tuned, seen.against)) is not None:
        yield f"on the {num} tasks that {'both' if len(seen.against) == 1 else 'all'} ran"
    elif any(not one.here for one in seen.against) and not seen.alike and (num := len(planned(tuned))) < FEW_TASKS:
        yield f"on {num} {'task' if num == 1 else 'tasks'}"


def _where(one: Against, tuned: Evaluation) -> str:
    """Return the tasks of a comparison, if they are not all tasks of `tuned`."""
    return f"on the {one.num_planned} tasks that both ran" if one.num_planned < len(planned(tuned)) else ""


def _value(value: Json) -> str:
    """Return the value of a setting as it is written in a command."""
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Elsewhere:
    """A different result against a control at another temperature."""

    control: str
    words: str
    """The setting and the result, such as "greedily worse than"."""
    is_opposed: bool
    sentences: tuple[str, ...]
    finding: Finding


def _elsewhere(
    tuned: Evaluation, against: Sequence[Against], controls: Sequence[Evaluation], facts: RunFacts
) -> Iterator[_Elsewhere]:
    """Yield the controls whose comparison at the temperature of `tuned` has a different result."""
    how = at_temperature(tuned)
    for one in against:
        row = next((row for row in controls if row.name == one.control and row.temperature == tuned.temperature), None)
        others, _ = compared(tuned, {} if row is None else {one.control: [row]}, facts)
        for other in others:
            if other.rise is not one.rise:
                sentences = tuple(_sentences(how, one, other, tuned))
                yield _Elsewhere(
                    control=one.control,
                    words=f"{how} {WORDS[other.rise]}",
                    sentences=sentences,
                    is_opposed={one.rise, other.rise} == {Rise.ROSE, Rise.FELL},
                    finding=_disagreement(one, other, sentences[0]),
                )


def _only_at(tuned: Evaluation, missed: Mapping[str, Sequence[Evaluation]], facts: RunFacts) -> Iterator[str]:
    """Yield sentences about controls that were evaluated at this temperature, but not at that of the claim."""
    for one in compared(tuned, missed, facts)[0]:
        yield f"{at_temperature(tuned).capitalize()}, tuned is {WORDS[one.rise]} {one.shown} ({one.size})."


def _sentences(how: str, one: Against, other: Against, tuned: Evaluation) -> Iterator[str]:
    how = how.capitalize()
    if one.rise is Rise.ROSE and other.rise is Rise.NOT_SHOWN and other.before is not None:
        yield (
            f"{how}, tuned is not shown to be better: it has {tuned.success.mean:.2f}, and {one.control} has "
            f"{other.before.success.mean:.2f}, so the gain may only come from fewer random choices."
        )
        return
    if {one.rise, other.rise} == {Rise.ROSE, Rise.FELL} and other.before is not None:  # the headline names the control
        yield f"{how}, tuned has {tuned.success.mean:.2f}, and {one.control} has {other.before.success.mean:.2f}."
    elif other.rise is Rise.ROSE and other.before is not None:
        yield (
            f"{how}, tuned is better than {one.shown}: {tuned.success.mean:.2f} against {other.before.success.mean:.2f}. "
            "The other evaluation does not confirm this."
        )
    else:
        yield f"{how}, tuned is {WORDS[other.rise]} {one.shown}."


def _disagreement(one: Against, other: Against, sentence: str) -> Finding:
    is_opposed = {one.rise, other.rise} == {Rise.ROSE, Rise.FELL}
    return Finding(
        rule="evaluation.settings_disagree",
        severity=Severity.WARNING if is_opposed else Severity.NOTE,
        symptom=f"Sampled, tuned is {WORDS[one.rise]} {one.shown}. {sentence}",
        evidence={"control": one.control, "sampled": one.difference, "otherwise": other.difference},
        change="Rely on results at the temperature that is served, with several episodes per task; a small change of "
        "one probability can change a greedy answer.",
        confirm="Both settings show the same result with more episodes per task (evaluation.eval_group_size).",
    )
