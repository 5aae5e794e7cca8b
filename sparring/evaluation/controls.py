"""The controls of a run: which controls exist, which are expected, and how the tuned policy differs from each."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sparring.evaluation.comparison import Comparison, compare
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.statistics import paired_episodes_p_value

SIGNIFICANT = 0.05
FEW_TASKS = 20
"""The smallest number of tasks from which a result generalizes to other tasks."""
CONTINUED = "warm start continued"
WARM_START = "warm start"
BASE = "base"
ORIGIN = "the policy before RL"
RANDOM = "random rewards"
"""The name of the control that was trained from the same recipe with random rewards."""
EXPERT = "expert"
CONTROLS = (CONTINUED, WARM_START, BASE, ORIGIN)
"""The controls with fixed names. Equally strong controls are listed in this order."""
SHOWN = {
    BASE: "the base model",
    WARM_START: "the warm start",
    CONTINUED: f"imitation for as long as RL ({CONTINUED})",
    RANDOM: "training with random rewards",
    EXPERT: "the expert",
}


class Rise(StrEnum):
    """The conclusion that a paired difference allows."""

    ROSE = "rose"
    FELL = "fell"
    NOT_SHOWN = "not shown"
    UNKNOWN = "unknown"


WORDS = {Rise.ROSE: "better than", Rise.NOT_SHOWN: "not shown to be better than", Rise.FELL: "worse than"}


def enough_steps(steps: int, seconds: float, rl_seconds: float) -> int:
    """Return a number of supervised steps that takes longer than RL, given that `steps` of them took `seconds`."""
    return math.ceil(11 * steps * rl_seconds / (10 * seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """The length of the continued warm start, from `controls/warm_start_continued/state.json`."""

    steps: int
    seconds: float
    rl_seconds: float
    fingerprint: str
    """The fingerprint of its weights. An evaluation with a different fingerprint used an earlier control."""

    @property
    def is_too_short(self) -> bool:
        """Whether this control was trained for less time than the RL run. If so, it is not a control of equal training
        time."""
        return self.seconds < self.rl_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts about a run that a claim uses in addition to the run's evaluations. Paths appear in the commands that
    the claim proposes."""

    name: str = "RUN"
    family: str = ""
    """The family of runs, or the list of runs, that share the claim. `name` is then a placeholder for each of them."""
    recipe: str = "RECIPE"
    runs: str = "runs"
    """The folder that contains the runs."""
    has_warm_start: bool
    continued: Continued | None = None
    """The length of the continued warm start. None if it does not exist or its files cannot be read."""
    seen_in_training: int = 0
    """The number of held-out tasks that were trained on."""

    def shown(self, control: str) -> str:
        """Return the name of a control for use in a sentence."""
        if control != CONTINUED:
            return SHOWN.get(control, control)
        if self.continued is None:
            return f"the {CONTINUED}"
        return f"the {CONTINUED} by {self.continued.steps} steps" if self.continued.is_too_short else SHOWN[control]

    @property
    def evaluates(self) -> str:
        """The command that runs the held-out evaluation."""
        return f"sparring eval --across {self.family}" if self.family else f"sparring eval {self.name}"

    def missing(self, against: Collection[Against]) -> tuple[str, ...]:
        """Return the expected controls that were not compared."""
        compared = {one.control for one in against}
        if self.has_warm_start:
            return tuple(control for control in (CONTINUED, WARM_START, BASE) if control not in compared)
        has_random = any(one.is_random_control for one in against)
        return (*(() if BASE in compared else (BASE,)), *(() if has_random else (RANDOM,)))

    def remedy(self, missing: Collection[str], *, random: str = "random") -> str:
        """Return the command that evaluates the missing controls. `random` names a new run with random rewards."""
        evaluate = self.evaluates
        if RANDOM in missing:
            return (
                f"`sparring train {self.recipe} reward.reward=sparring.rewards:random_reward run.name={random} "
                f"--no-check` trains {'that control' if len(missing) == 1 else 'the latter'}, and `{evaluate} --policy "
                f"base --policy {self.runs}/{random} --policy tuned`"
            )
        if CONTINUED in missing:
            return f"`{evaluate} --policy base --policy warm_start --policy warm_start_continued --policy tuned`"
        return f"`{evaluate}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """One control, and the difference between the tuned policy and the control."""

    control: str
    shown: str
    """The control's name for use in a sentence."""
    difference: float
    """The mean of tuned - control, over the tasks that both ran."""
    rise: Rise
    opposed: str = ""
    """The opposite result at another temperature or seed, if there is one, such as "greedily worse than"."""
    here: str = ""
    """A result that holds only for these tasks, such as "better on these 5 tasks". Empty if there is none."""
    where: str = ""
    """The tasks of the comparison, such as "on the 40 tasks that both ran". Empty if all controls share one set."""
    num_planned: int = 0
    """The number of tasks that both planned, including those of which every episode was lost. 0 for several seeds."""
    is_without_lost: bool = False
    """Whether episodes were lost. The difference leaves them out."""
    by_seed: tuple[float, ...] = ()
    """The differences by seed, for several seeds."""
    is_random_control: bool = False
    """Whether the control was trained with random rewards for at least as many steps as the tuned policy."""
    before: Evaluation | None = None
    comparison: Comparison | None = None
    """`before` and `comparison` are None for several seeds."""

    @property
    def size(self) -> str:
        """The difference as text, with its 95 % interval or, for several seeds, with its range."""
        if self.by_seed:
            least, most = f"{min(self.by_seed):+.2f}", f"{max(self.by_seed):+.2f}"
            text = f"{least} with each" if least == most else f"{least} to {most} by seed"
            return f"{text}, without lost episodes" if self.is_without_lost else text
        one, text = self.comparison, f"{self.difference:+.2f} {self.interval}"
        if one is None:
            return text.strip()
        is_open = one.bounds is not None and is_decided_by_lost(one)
        if self.is_without_lost and one.num_tasks < self.num_planned:
            text += f" on the {one.num_tasks} {'' if is_open else 'tasks '}that both finished"
        elif self.is_without_lost:
            text += " without lost episodes"
        if one.bounds is not None and is_open:
            text = f"{one.bounds.worst:+.2f} to {one.bounds.best:+.2f} over all {self.num_planned} tasks; {text}"
        if one.late_bounds is not None and is_decided_by_late(one):
            end = one.late_bounds.worst if one.difference.mean >= 0 else one.late_bounds.best
            text += f", but {end:+.2f} if every episode that was not finished in time counts against it"
        return text

    @property
    def interval(self) -> str:
        """The 95 % interval as text, with the p-value if that alone leaves the difference open. Empty for several
        seeds."""
        if self.comparison is None:
            return ""
        one = self.comparison.difference
        is_close = self.comparison.p_value >= SIGNIFICANT and not one.low <= 0 <= one.high
        return f"[{one.low:+.2f}, {one.high:+.2f}]" + (f", p = {self.comparison.p_value:.2f}" if is_close else "")


def compared(
    tuned: Evaluation, controls: Mapping[str, Sequence[Evaluation]], facts: RunFacts
) -> tuple[list[Against], list[str]]:
    """Compare `tuned` with each control at its temperature.

    Returns the comparisons, strongest control first, and sentences that state why other controls were not compared.
    """
    against, limits = [], []
    for name, rows in controls.items():
        shown = facts.shown(name)
        # Prefer an evaluation with the same settings, even if a newer one has different settings.
        alike = sorted(
            (one for one in rows if one.temperature in (None, tuned.temperature)),
            key=lambda one: bool(_other_settings(one, tuned)),
        )
        if not alike:
            how = f"sampled at temperature {tuned.temperature:g}" if tuned.temperature else "evaluated greedily"
            limits.append(f"Not compared with {shown}: it was not {how}.")
        elif reason := _why_unlike(name, alike[0], tuned, facts):
            limits.append(f"Not compared with {shown}: {reason}.")
        else:
            against.append(_compare_with(name, shown, alike[0], tuned))
    return strongest_first(against), limits


def _why_unlike(name: str, control: Evaluation, tuned: Evaluation, facts: RunFacts) -> str | None:
    """Return the reason why the results of the two evaluations cannot be compared, or None if they can."""
    if name == CONTINUED and facts.continued is not None and control.fingerprint != facts.continued.fingerprint:
        return "it was trained again after its evaluation"
    if settings := _other_settings(control, tuned):
        return f"{listed(settings)} differed"
    if _graded(control) != _graded(tuned):
        return "another scorer graded it"
    if set(control.task_ids).isdisjoint(tuned.task_ids):
        return "it was evaluated on other tasks"
    return None


def _compare_with(name: str, shown: str, control: Evaluation, tuned: Evaluation) -> Against:
    comparison = compare(control, tuned)
    is_random = control.is_random_control and not is_shorter(control, tuned)
    return Against(
        control=name,
        shown=f"{SHOWN[RANDOM]} ({name})" if is_random and name != RANDOM else shown,
        difference=comparison.difference.mean,
        rise=rise_of(comparison),
        is_random_control=is_random,
        before=control,
        comparison=comparison,
        here=_here(control, tuned, comparison),
        num_planned=len(planned(control) & planned(tuned)),
        is_without_lost=comparison.bounds is not None,
    )


def planned(one: Evaluation | None) -> frozenset[str]:
    """Return the ids of the tasks that the evaluation planned."""
    return frozenset() if one is None else frozenset({*one.task_ids, *one.lost})


def _here(before: Evaluation, after: Evaluation, comparison: Comparison) -> str:
    """Return the result on these tasks alone, as shown by their sampled episodes.

    The result is empty if there are enough tasks for conclusions about others, if the episodes show no difference, or
    if some were lost or not finished in time.
    """
    num, is_whole = comparison.num_tasks, comparison.bounds is None and comparison.late_bounds is None
    if num >= FEW_TASKS or rise_of(comparison) is not Rise.NOT_SHOWN or not after.temperature or not is_whole:
        return ""
    old, new = (
        {task: (c, n) for task, c, n in zip(one.task_ids, one.successes, one.samples, strict=True)}
        for one in (before, after)
    )
    shared = sorted(old.keys() & new.keys())
    if paired_episodes_p_value([old[task] for task in shared], [new[task] for task in shared]) >= SIGNIFICANT:
        return ""
    return f"{'better' if comparison.difference.mean > 0 else 'worse'} on {'this task' if num == 1 else f'these {num} tasks'}"


def is_shorter(one: Evaluation, tuned: Evaluation) -> bool:
    """Return whether a policy was trained for fewer steps than the tuned policy, or for an unknown number of steps."""
    return one.policy_version is None or tuned.policy_version is None or one.policy_version < tuned.policy_version


def _graded(one: Evaluation) -> tuple[str | None, float]:
    return one.criterion.scorer, one.criterion.success_threshold


def _other_settings(one: Evaluation, other: Evaluation) -> list[str]:
    """Return the names of the settings that affect episodes and differ between two evaluations."""
    first, second = one.plays_with, other.plays_with
    return [key for key in sorted({*first, *second}) if first.get(key) != second.get(key)]


def strongest_first(against: Sequence[Against]) -> list[Against]:
    """Return the comparisons with the strongest control first."""
    places = {name: place for place, name in enumerate(CONTROLS)}
    return sorted(against, key=lambda one: (round(one.difference, 9), places.get(one.control, len(CONTROLS))))


def strongest(against: Sequence[Against]) -> list[Against]:
    """Return the strongest control, or several if they are equally strong."""
    return [one for one in against if round(one.difference, 9) == round(against[0].difference, 9)]


def rise_of(comparison: Comparison) -> Rise:
    """Return the conclusion from a comparison. A difference counts as shown only if it remains when every episode that
    was lost or not finished in time counts against it."""
    least_certain = max(comparison.p_value, comparison.worst_p_value, comparison.late_p_value)
    if least_certain >= SIGNIFICANT or comparison.is_sign_open or comparison.is_late_sign_open:
        return Rise.NOT_SHOWN
    difference = comparison.difference
    return Rise.ROSE if difference.low > 0 else Rise.FELL if difference.high < 0 else Rise.NOT_SHOWN


def is_decided_by_lost(comparison: Comparison) -> bool:
    """Return whether lost episodes are the only reason why the difference is undecided."""
    in_time = replace(comparison, late_bounds=None, late_p_value=0.0)
    whole = replace(in_time, bounds=None, worst_p_value=0.0)
    return rise_of(in_time) is Rise.NOT_SHOWN and rise_of(whole) is not Rise.NOT_SHOWN


def is_decided_by_late(comparison: Comparison) -> bool:
    """Return whether only episodes that were not finished in time leave the difference open."""
    in_time = replace(comparison, late_bounds=None, late_p_value=0.0)
    return rise_of(comparison) is Rise.NOT_SHOWN and rise_of(in_time) is not Rise.NOT_SHOWN


def listed(names: Sequence[str]) -> str:
    """Join names into a list for use in a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
