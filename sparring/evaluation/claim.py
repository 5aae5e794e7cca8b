"""What an evaluation lets one claim, and no more than that: docs/verdicts.md has a table of scenarios, each a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from sparring.evaluation.comparison import Comparison, compare
from sparring.evaluation.evaluation import Evaluation
from sparring.findings import Finding, Severity
from sparring.types import Json, Outcome

SIGNIFICANT = 0.05
FEW_TASKS = 20
"""Below, tasks do not stand for others."""
MOST_LOST = 0.01
"""Share of episodes that may be lost before a claim mentions it."""
MANY_WRONG = 0.1
"""Share of wrong episodes from which on a claim mentions how they end."""
CONTINUED = "warm start continued"
ORIGIN = "the policy before training"
CONTROLS = (CONTINUED, "warm start", "base", ORIGIN)
"""Those with names of their own; of equally strong ones the first is the strongest."""
SHOWN = {"base": "the base model", "warm start": "the warm start", CONTINUED: f"imitation for as long ({CONTINUED})"}
NOBODY = ("no trained policy",)
ENDINGS = {
    Outcome.MAX_TURNS: "It runs out of turns", Outcome.MAX_TOKENS: "It runs out of tokens",
    Outcome.POLICY_TIMEOUT: "It is not done in time", Outcome.POLICY_ERROR: "It ends with an error of its own",
}  # fmt: skip


class Rise(StrEnum):
    """What a paired difference shows."""

    ROSE = "rose"
    FELL = "fell"
    NOT_SHOWN = "not shown"
    UNKNOWN = "unknown"


WORDS = {Rise.ROSE: "better than", Rise.NOT_SHOWN: "not shown to be better than", Rise.FELL: "worse than"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """One control, and what is shown of the difference from it."""

    control: str
    difference: float
    """Mean of tuned - control, over the tasks that both played."""
    rise: Rise
    before: Evaluation | None = None
    comparison: Comparison | None = None
    """Both None over several seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """About the policy that was trained."""

    scope: tuple[str, ...]
    """What it holds for: seeds, how it was played, which tasks."""
    tuned: Evaluation | None = None
    """None where no trained policy was evaluated, and over several seeds."""
    against: tuple[Against, ...] = ()
    """The strongest control first."""
    limits: tuple[str, ...] = ()
    """Sentences that qualify it."""
    findings: tuple[Finding, ...] = ()

    @property
    def strongest(self) -> Against | None:
        return self.against[0] if self.against else None

    @property
    def rise(self) -> Rise:
        """Against the strongest control."""
        return self.against[0].rise if self.against else Rise.UNKNOWN

    @property
    def headline(self) -> str:
        if not self.scope:
            return "Nothing was evaluated, so it is not known whether it got better."
        if self.scope == NOBODY:
            return "No trained policy was evaluated, so nothing is claimed."
        told = "; ".join(self._clauses()) or "not compared with any control"
        return f"{', '.join(self.scope)}: {told}."

    def _clauses(self) -> Iterator[str]:
        for rise, words in WORDS.items():
            ones = [shown(one.control) for one in self.against if one.rise is rise]
            if ones and rise is self.rise and len(self.against) > 1:
                rest = f", and than {_listed(ones[1:])}" if ones[1:] else ""
                yield f"{words} {ones[0]}, the strongest control{rest}"
            elif ones:
                yield f"{words} {_listed(ones)}"

    def lines(self) -> list[str]:
        """For people."""
        return [self.headline, *self.limits]

    def as_json(self) -> dict[str, Json]:
        return {
            "claim": self.headline, "rise": self.rise.value, "limits": list(self.limits),
            "strongest_control": None if self.strongest is None else self.strongest.control,
            "against": [
                {"control": one.control, "difference": one.difference, "rise": one.rise.value} for one in self.against
            ],
            "findings": [one.as_json() for one in self.findings],
        }  # fmt: skip


def shown(control: str) -> str:
    return SHOWN.get(control, control)


def claim_of(
    evaluations: Sequence[Evaluation], *, run: str = "RUN", recipe: str = "RECIPE", runs: str = "runs", has_warm_start: bool,
    seen_in_training: int = 0,
) -> Claim:  # fmt: skip
    """Of one run, so of one seed. `seen_in_training`: how many of the held-out tasks were trained on. `run`, `recipe` and
    `runs` (the folder of runs) stand in the commands that it proposes."""
    if not evaluations:
        return Claim(scope=(), limits=(f"`sparring eval {run}` plays held-out tasks.",))
    name = "tuned" if any(one.name == "tuned" for one in evaluations) else evaluations[-1].name
    rows = [one for one in evaluations if one.name == name]
    if name in CONTROLS or rows[0].policy_version is None:
        return Claim(scope=NOBODY)
    # Sampled play is what is served; a greedy score is compared beside it.
    tuned = max(rows, key=lambda one: one.temperature or 0.0)
    controls = [one for one in evaluations if one.name != name and not one.name.startswith(("@", "openai:"))]
    names = [one for one in dict.fromkeys(one.name for one in controls) if one != "expert"]
    against, limits = _compared(tuned, {one: [row for row in controls if row.name == one] for one in names})
    disagreeing = [one for other in rows if other is not tuned for one in _elsewhere(other, against, controls)]
    said = [sentence for _, sentence in disagreeing]
    if not tuned.temperature and against:
        said.append(
            "A greedy score jumps where one choice passes one half, so it shows no gain by itself; `sparring eval "
            f"{run} --temperature 0 --temperature 1` samples, too."
        )
    said += [*limits, *_limits(tuned, against, run, seen_in_training)]
    said += _ending(tuned)
    if not against or against[0].rise is Rise.ROSE:
        said += _not_known(names, run, recipe, runs, has_warm_start)
    return Claim(
        scope=("One seed", *_scope(tuned, seen_in_training, bool(disagreeing))),
        tuned=tuned,
        against=tuple(against),
        limits=tuple(said),
        findings=tuple(finding for finding, _ in disagreeing),
    )


def claim_of_validations(validations: Mapping[int, Evaluation], *, run: str = "RUN") -> Claim:
    """Of a run without a held-out evaluation, by step: the last against the first."""
    if not validations:
        return claim_of((), run=run, has_warm_start=False)
    first, last = (validations[step] for step in (min(validations), max(validations)))
    against, limits = _compared(last, {} if first is last else {ORIGIN: [replace(first, name=ORIGIN)]})
    return Claim(
        scope=("One seed", *_scope(last, 0, False), "on validation tasks"), tuned=last, against=tuple(against),
        limits=(
            *limits, *_limits(last, against, run, 0), *_ending(last),
            "Choices during training may have been made by these tasks; "
            f"`sparring eval {run}` plays held-out ones, with controls.",
        ),
    )  # fmt: skip


def claim_over(seeds: Mapping[int, Claim]) -> Claim:
    """Of several runs that differ in their seed alone: what every one of them shows. Controls that not all have are left out."""
    if len(seeds) == 1:
        return next(iter(seeds.values()))
    by_seed = {seed: {one.control: one for one in claim.against} for seed, claim in seeds.items()}
    controls = dict.fromkeys(control for known in by_seed.values() for control in known)
    shared = [control for control in controls if all(control in known for known in by_seed.values())]
    against, limits = [], []
    for control in (one for one in controls if one not in shared):
        lacking = [str(seed) for seed, known in by_seed.items() if control not in known]
        limits.append(f"Not compared with {shown(control)} with {_seeds(lacking)}, so nothing is claimed about it.")
    for control in shared:
        rises = {seed: known[control].rise for seed, known in by_seed.items()}
        difference = fmean(known[control].difference for known in by_seed.values())
        is_one = len(set(rises.values())) == 1
        against.append(
            Against(
                control=control,
                difference=difference,
                rise=by_seed[min(by_seed)][control].rise if is_one else Rise.NOT_SHOWN,
            )
        )
        if not is_one:
            groups = {rise: [str(seed) for seed, its in rises.items() if its is rise] for rise in WORDS}
            told = ", ".join(f"{_verb(rise)} with {_listed(members)}" for rise, members in groups.items() if members)
            limits.append(f"The seeds disagree about {shown(control)}: {told}.")
    for limit in dict.fromkeys(limit for claim in seeds.values() for limit in claim.limits):
        having = [str(seed) for seed, claim in seeds.items() if limit in claim.limits]
        limits.append(limit if len(having) == len(seeds) else f"With {_seeds(having)}: {limit}")
    scopes = dict.fromkeys(part for claim in seeds.values() for part in claim.scope[1:])
    return Claim(
        scope=(f"{len(seeds)} seeds", *scopes), against=tuple(sorted(against, key=_weakness)), limits=tuple(limits),
        findings=tuple(finding for claim in seeds.values() for finding in claim.findings),
    )  # fmt: skip


def _seeds(names: Sequence[str]) -> str:
    return f"{'seed' if len(names) == 1 else 'seeds'} {_listed(names)}"


def _verb(rise: Rise) -> str:
    return {Rise.ROSE: "better", Rise.FELL: "worse"}.get(rise, "not shown")


def _compared(tuned: Evaluation, controls: Mapping[str, Sequence[Evaluation]]) -> tuple[list[Against], list[str]]:
    """Against each control at the temperature of `tuned`, the strongest first; and why others are not compared."""
    against, limits = [], []
    for name, rows in controls.items():
        alike = [one for one in rows if one.temperature in (None, tuned.temperature)]
        if not alike:
            how = f"sampled at temperature {tuned.temperature:g}" if tuned.temperature else "played greedily"
            limits.append(f"Not compared with {shown(name)}: it was not {how}.")
        elif _graded(alike[0]) != _graded(tuned):
            limits.append(f"Not compared with {shown(name)}: another scorer graded it.")
        elif set(alike[0].task_ids).isdisjoint(tuned.task_ids):
            limits.append(f"Not compared with {shown(name)}: it played other tasks.")
        else:
            comparison = compare(alike[0], tuned)
            against.append(
                Against(
                    control=name,
                    difference=comparison.difference.mean,
                    rise=rise_of(comparison),
                    before=alike[0],
                    comparison=comparison,
                )
            )
    return sorted(against, key=_weakness), limits


def _graded(one: Evaluation) -> tuple[str | None, float]:
    return one.judge.scorer, one.judge.success_threshold


def _weakness(one: Against) -> tuple[float, int]:
    return one.difference, CONTROLS.index(one.control) if one.control in CONTROLS else len(CONTROLS)


def rise_of(comparison: Comparison) -> Rise:
    """What lost episodes could turn round is not shown."""
    if comparison.p_value >= SIGNIFICANT or comparison.is_sign_open:
        return Rise.NOT_SHOWN
    difference = comparison.difference
    return Rise.ROSE if difference.low > 0 else Rise.FELL if difference.high < 0 else Rise.NOT_SHOWN


def _elsewhere(
    tuned: Evaluation, against: Sequence[Against], controls: Sequence[Evaluation]
) -> Iterator[tuple[Finding, str]]:
    """Where play at another temperature shows another thing about a control that was sampled there, too."""
    how = "Greedily" if tuned.temperature == 0 else f"At temperature {tuned.temperature:g}"
    for one in against:
        row = next((row for row in controls if row.name == one.control and row.temperature == tuned.temperature), None)
        other, _ = _compared(tuned, {} if row is None else {one.control: [row]})
        if other and other[0].rise is not one.rise:
            sentence = f"{how} it is {WORDS[other[0].rise]} {shown(one.control)}."
            yield _disagreement(one, other[0], sentence), sentence


def _disagreement(one: Against, other: Against, sentence: str) -> Finding:
    is_opposed = {one.rise, other.rise} == {Rise.ROSE, Rise.FELL}
    return Finding(
        rule="evaluation.settings_disagree",
        severity=Severity.WARNING if is_opposed else Severity.NOTE,
        symptom=f"Sampled it is {WORDS[one.rise]} {shown(one.control)}. {sentence}",
        evidence={"control": one.control, "sampled": one.difference, "otherwise": other.difference},
        change="Rely on play at the temperature that is served, with several episodes a task; a greedy score jumps where "
        "one choice passes one half.",
        confirm="Both settings show the same with more episodes a task (evaluation.eval_group_size).",
    )


def _scope(tuned: Evaluation, seen_in_training: int, is_disagreed: bool) -> Iterator[str]:
    if not tuned.temperature:
        yield "greedily"
    elif is_disagreed:
        yield "sampled"
    if tuned.judge.scorer is None:
        yield "by its training reward"
    if seen_in_training:
        yield "on tasks that were trained on"


def _limits(tuned: Evaluation, against: Sequence[Against], run: str, seen_in_training: int) -> Iterator[str]:
    """What makes the differences less than they seem."""
    planned = {*tuned.task_ids, *tuned.lost}
    for one in against:
        its = set() if one.before is None else {*one.before.task_ids, *one.before.lost}
        if planned - its:
            yield f"Compared with {shown(one.control)} on the {len(planned & its)} tasks that both played."
    if len(planned) < FEW_TASKS:
        yield f"{len(planned)} tasks are too few to stand for others."
    for one in against:
        if one.comparison is not None and one.comparison.bounds is not None and _is_decided_by_lost(one.comparison):
            bounds = one.comparison.bounds
            yield (
                f"Lost episodes could decide whether it is better than {shown(one.control)}: the difference lies between "
                f"{bounds.worst:+.2f} and {bounds.best:+.2f}."
            )
    for row in (tuned, *(one.before for one in against if one.before is not None)):
        if row.lost_share > MOST_LOST:
            yield f"{row.lost_share:.0%}".replace("%", " %") + f" of the episodes of {row.name} were lost."
        if (late := row.outcomes.get(Outcome.POLICY_TIMEOUT, 0.0)) > MOST_LOST:
            yield (
                f"{late:.0%}".replace("%", " %")
                + f" of the episodes of {row.name} were not done in time, which may be the "
                "machine's doing."
            )
    if tuned.judge.scorer is None:
        yield (
            f"No independent scorer graded it; `sparring eval {run} --rescore --scorer MODULE:NAME` grades the stored "
            "episodes."
        )
    elif tuned.judge.independence != "scorer":
        yield f"The scorer {tuned.judge.independence}: a mistake there shows in neither."
    if seen_in_training:
        yield f"{seen_in_training} of {len(planned)} tasks were trained on, so this is not about new tasks."


def _is_decided_by_lost(comparison: Comparison) -> bool:
    return comparison.is_sign_open and rise_of(replace(comparison, bounds=None)) is not Rise.NOT_SHOWN


def _ending(tuned: Evaluation) -> Iterator[str]:
    """How most of the wrong episodes end: with a wrong answer, or without one. Right ones are taken to have finished."""
    played = 1 - tuned.lost_share
    right = played * sum(tuned.successes) / sum(tuned.samples)
    if played - right < MANY_WRONG:
        return
    shares = tuned.outcomes
    finished = shares.get(Outcome.FINISHED, played * fmean(tuned.completions))
    unfinished = {text: shares.get(outcome, 0.0) for outcome, text in ENDINGS.items()}
    if not shares:
        unfinished = {"It does not finish": played - finished}
    told = {"It answers, but wrongly": max(0.0, finished - right)} | unfinished
    text = max(told, key=lambda one: told[one])
    yield f"{text}: {100 * told[text]:.0f} % of its episodes."


def _not_known(controls: Sequence[str], run: str, recipe: str, runs: str, has_warm_start: bool) -> Iterator[str]:
    """The control that is missing, and the command that plays it."""
    policies = f"`sparring eval {run} --policy base --policy warm_start --policy warm_start_continued --policy tuned`"
    if not controls:
        yield f"Not known: whether it is better than what it was trained from; `sparring eval {run}` plays both."
    elif has_warm_start and CONTINUED not in controls:
        if "warm start" in controls:
            yield f"Not known: whether imitation for as long does as much; {policies} plays it."
        else:
            yield f"Not known: whether the warm start, or imitation for as long, does as much; {policies} plays them."
    elif not has_warm_start and set(controls) == {"base"}:
        yield (
            f"Not known: whether random rewards do as much; `sparring train {recipe} "
            "reward.reward=sparring.rewards:random_reward run.name=random --no-check` trains that control, and `sparring eval "
            f"{run} --policy base --policy {runs}/random --policy tuned` plays it."
        )


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
