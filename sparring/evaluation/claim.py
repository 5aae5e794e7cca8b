"""The claim that the evaluations of a run support, and no more. docs/verdicts.md has a table of tested scenarios."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType

from sparring.evaluation.controls import (
    ORIGIN,
    SHOWN,
    WORDS,
    Against,
    Rise,
    RunFacts,
    compared,
    listed,
    strongest,
    strongest_first,
)
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.limits import FEW_TASKS, Seen, common_part, limits_of, planned
from sparring.findings import Finding, Severity
from sparring.types import Json

NO_TRAINED_POLICY = ("no trained policy",)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotKnown:
    """Expected controls that were not compared with the policy, and the commands that evaluate them."""

    controls: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    where: str = ""
    """The tasks for which it is not known, if others were evaluated."""

    def sentences(self) -> Iterator[str]:
        """Yield the sentence about the missing controls, if there are any."""
        if self.controls:
            names = listed([SHOWN[control] for control in self.controls])
            remedies = _plays(self.remedies, is_one=len(self.controls) == 1)
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
        clauses = "; ".join(self._clauses()) or "not compared with any control"
        return f"{', '.join(self.scope)}: {clauses}."

    def _clauses(self) -> Iterator[str]:
        if self.alike and self.strongest is not None:
            names = "any control" if len(self.against) > 1 else self.strongest.shown
            yield f"{WORDS[Rise.NOT_SHOWN]} {names}: {self.alike}"
            return
        top = strongest(self.against) if len(self.against) > 1 and not self.is_unranked else []
        for rise, words in WORDS.items():
            ones = [one for one in self.against if one.rise is rise]
            first = [one.shown for one in ones if one in top]
            sizes = {one.control: f" ({one.size})" if self.is_unranked else "" for one in ones}
            rest = listed([f"{one.shown}{sizes[one.control]}" for one in ones if one not in top])
            leads = self.strongest is not None and self.strongest in ones and not self.is_unranked
            size = f" ({self.strongest.size})" if leads and self.strongest is not None else ""
            if first:
                rest = f", and than {rest}" if rest else ""
                rest = f"{listed(first)}, the strongest {'control' if len(first) == 1 else 'controls'} evaluated{size}{rest}"
            else:
                rest += size
            opposed = [f"{one.opposed} {'it' if len(ones) == 1 else one.shown}" for one in ones if one.opposed]
            if ones:
                yield f"{words} {rest}" + (f", but {listed(opposed)}" if opposed else "")

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


def _plays(remedies: Sequence[str], *, is_one: bool) -> str:
    return "; ".join(f"{remedy} evaluates {'it' if is_one else 'them'}" for remedy in remedies)


def claim_of(evaluations: Sequence[Evaluation], facts: RunFacts) -> Claim:
    """Return the claim that the evaluations of one run, with one seed, support."""
    if not evaluations:
        return Claim(scope=(), not_known=_not_known((), facts))
    name = "tuned" if any(one.name == "tuned" for one in evaluations) else evaluations[-1].name
    rows = [one for one in evaluations if one.name == name]
    if name != "tuned" and not name.startswith("@"):
        return Claim(scope=NO_TRAINED_POLICY)
    # The claim is about the highest temperature, because choices count there; greedy results are compared in addition.
    tuned = max(rows, key=lambda one: one.temperature or 0.0)
    controls = [one for one in evaluations if one.name != name and not one.name.startswith(("@", "openai:"))]
    names = [one for one in dict.fromkeys(one.name for one in controls) if one != "expert"]
    against, unlike = compared(tuned, {one: [row for row in controls if row.name == one] for one in names}, facts)
    elsewhere = [one for row in rows if row is not tuned for one in _elsewhere(row, against, controls, facts)]
    opposed = {one.control: one.words for one in elsewhere if one.is_opposed}
    against = [replace(one, opposed=opposed.get(one.control, "")) for one in against]
    seen = Seen(tuned=tuned, against=against, facts=facts, alike=_alike(evaluations) if against else "")
    missed = {
        one: [row for row in controls if row.name == one] for one in names if one not in {x.control for x in against}
    }
    only = [sentence for row in rows if row is not tuned for sentence in _only_at(row, missed, facts)]
    caveats = [*(sentence for one in elsewhere for sentence in one.sentences), *unlike, *only, *limits_of(seen)]
    return Claim(
        scope=("One seed", *_scope(seen, is_disagreed=bool(elsewhere))),
        tuned=tuned,
        against=tuple(against),
        alike=seen.alike,
        is_unranked=len({planned(tuned) & planned(one.before) for one in against}) > 1,
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
    seen = Seen(tuned=last, against=against, facts=facts)
    chosen = "Settings or checkpoints may have been chosen on these tasks, which are not held out."
    return Claim(
        scope=("One seed", *_scope(seen, is_disagreed=False), "on validation tasks"),
        tuned=last,
        against=tuple(against),
        caveats=(*unlike, *limits_of(seen), chosen),
        not_known=replace(_not_known((), facts), where=" on held-out tasks"),
    )


def _not_known(against: Sequence[Against], facts: RunFacts) -> NotKnown:
    """Return the missing controls. Return none if the tuned policy is already worse than another control."""
    missing = facts.missing(against)
    if not missing or (against and against[0].rise is Rise.FELL):
        return NotKnown()
    # A run with random rewards that was too short has taken the usual name.
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
        yield f"on tasks of which {facts.seen_in_training} of {len(planned(tuned))} were trained on"
    if (num := common_part(tuned, seen.against)) is not None:
        yield f"on the {num} tasks that {'both' if len(seen.against) == 1 else 'all'} ran"
    elif seen.against and not seen.alike and (num := len(planned(tuned))) < FEW_TASKS:
        yield f"on {num} {'task' if num == 1 else 'tasks'}"


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
    how = _how(tuned)
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
    """Yield sentences about controls that were evaluated only at this temperature, and not at that of the claim."""
    for one in compared(tuned, missed, facts)[0]:
        yield f"{_how(tuned).capitalize()}, tuned is {WORDS[one.rise]} {one.shown}."


def _how(tuned: Evaluation) -> str:
    return f"at temperature {tuned.temperature:g}" if tuned.temperature else "greedily"


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


def claim_over(seeds: Mapping[int, Claim], *, without: Mapping[int, str] = MappingProxyType({})) -> Claim:
    """Return the claim that is supported by each of several runs that differ only in their seed.

    Controls that are missing for some seeds are left out. `without` maps each seed without a result to the reason.
    """
    left_out = tuple(_left_out(without))
    if len(seeds) < 2:
        claim = next(iter(seeds.values()), Claim(scope=()))
        scope = (f"1 of {1 + len(without)} seeds", *claim.scope[1:]) if without and claim.tuned else claim.scope
        return replace(claim, scope=scope, caveats=(*left_out, *claim.caveats))
    by_seed = {seed: {one.control: one for one in claim.against} for seed, claim in seeds.items()}
    controls = dict.fromkeys(control for known in by_seed.values() for control in known)
    against, caveats = [], [*left_out]
    is_unranked = any(claim.is_unranked for claim in seeds.values())
    for control in controls:
        ones = {seed: known[control] for seed, known in by_seed.items() if control in known}
        if len(ones) < len(seeds):
            is_unranked = True
            caveats += _lacking(ones, {seed: claim for seed, claim in seeds.items() if seed not in ones})
            continue
        against.append(_over(ones))
        if len({one.rise for one in ones.values()}) > 1:
            clauses = ", ".join(f"{_verb(rise)} with {listed(members)}" for rise, members in _by_rise(ones).items())
            caveats.append(f"The seeds disagree about {against[-1].shown}: {clauses}.")
    for caveat in dict.fromkeys(caveat for claim in seeds.values() for caveat in claim.caveats):
        having = [str(seed) for seed, claim in seeds.items() if caveat in claim.caveats]
        caveats.append(caveat if len(having) == len(seeds) else f"With {_seeds(having)}: {caveat}")
    settings = {frozenset(part for part in claim.scope if part.startswith("with ")) for claim in seeds.values()}
    if len(settings) > 1:
        caveats.append("The seeds were evaluated with different settings.")
    missing = dict.fromkeys(one for claim in seeds.values() for one in claim.not_known.controls if one not in controls)
    lacking = [claim for claim in seeds.values() if not missing.keys().isdisjoint(claim.not_known.controls)]
    alike = {claim.alike for claim in seeds.values()}
    num = f"{len(seeds)} of {len(seeds) + len(without)}" if without else f"{len(seeds)}"
    return Claim(
        scope=(f"{num} seeds", *_scope_over(seeds)),
        against=tuple(strongest_first(against)),
        alike=alike.pop() if len(alike) == 1 else "",
        is_unranked=is_unranked,
        caveats=tuple(caveats),
        not_known=NotKnown(
            controls=tuple(missing),
            remedies=tuple(dict.fromkeys(one for claim in lacking for one in claim.not_known.remedies)),
        ),
        findings=tuple(finding for claim in seeds.values() for finding in claim.findings),
    )


def _scope_over(seeds: Mapping[int, Claim]) -> Iterator[str]:
    """Yield the conditions of all claims. A condition that only some seeds have names these seeds.

    Only claims of which a result at another temperature disagrees name their temperature, so it is the temperature of
    all."""
    for part in dict.fromkeys(part for claim in seeds.values() for part in claim.scope[1:]):
        having = [str(seed) for seed, claim in seeds.items() if part in claim.scope]
        is_general = len(having) == len(seeds) or part.startswith("at temperature")
        yield part if is_general else f"{_seeds(having)} {part}"


def _left_out(without: Mapping[int, str]) -> Iterator[str]:
    """Yield a sentence about the seeds without a result, because a seed that did not finish may have learned
    nothing."""
    if without:
        names = listed([f"seed {seed} ({why})" for seed, why in without.items()])
        yield f"The claim leaves out {names}: what {'it' if len(without) == 1 else 'they'} would show is not known."


def _over(by_seed: Mapping[int, Against]) -> Against:
    """Combine the comparisons with one control, of all seeds."""
    ones, rises = list(by_seed.values()), _by_rise(by_seed)
    names = {one.shown for one in ones}
    return Against(
        control=ones[0].control,
        # A control that was long enough only for some seeds is not imitation for as long as RL.
        shown=ones[0].shown if len(names) == 1 else f"the {ones[0].control}",
        difference=fmean(one.difference for one in ones),
        by_seed=tuple(one.difference for one in ones),
        rise=ones[0].rise if len(rises) == 1 else Rise.NOT_SHOWN,
        opposed=f"with {_seeds(rises[Rise.FELL])} worse than" if len(rises) > 1 and Rise.FELL in rises else "",
    )


def _lacking(ones: Mapping[int, Against], lacking: Mapping[int, Claim]) -> Iterator[str]:
    """Yield sentences about a control that only some seeds have, and the command that evaluates it for the others."""
    shown = next(iter(ones.values())).shown
    clauses = ", ".join(
        f"with {_seeds(members)}, tuned is {WORDS[rise]} it" for rise, members in _by_rise(ones).items()
    )
    yield f"Not compared with {shown} with {_seeds([str(seed) for seed in lacking])}; {clauses}."
    control = next(iter(ones.values())).control
    unknown = [claim.not_known for claim in lacking.values() if control in claim.not_known.controls]
    remedies = dict.fromkeys(one for known in unknown for one in known.remedies)
    if remedies:
        yield f"{_plays(list(remedies), is_one=True)}."


def _by_rise(ones: Mapping[int, Against]) -> dict[Rise, list[str]]:
    groups = {rise: [str(seed) for seed, one in ones.items() if one.rise is rise] for rise in WORDS}
    return {rise: members for rise, members in groups.items() if members}


def _seeds(names: Sequence[str]) -> str:
    return f"{'seed' if len(names) == 1 else 'seeds'} {listed(names)}"


def _verb(rise: Rise) -> str:
    return {Rise.ROSE: "better", Rise.FELL: "worse"}.get(rise, "not shown")
