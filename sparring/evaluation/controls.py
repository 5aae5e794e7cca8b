"""The controls of a run: which there are, which are expected, and what is shown of the difference from each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sparring.evaluation.comparison import Comparison, compare
from sparring.evaluation.evaluation import Evaluation

SIGNIFICANT = 0.05
CONTINUED = "warm start continued"
WARM_START = "warm start"
BASE = "base"
ORIGIN = "the policy before training"
RANDOM = "random rewards"
"""Stands for any run that was trained with them."""
CONTROLS = (CONTINUED, WARM_START, BASE, ORIGIN)
"""Those with names of their own; equally strong ones are named in this order."""
SHOWN = {
    BASE: "the base model", WARM_START: "the warm start",
    CONTINUED: f"imitation for as long as RL ({CONTINUED})",
    RANDOM: "training with random rewards",
}  # fmt: skip


class Rise(StrEnum):
    """What a paired difference shows."""

    ROSE = "rose"
    FELL = "fell"
    NOT_SHOWN = "not shown"
    UNKNOWN = "unknown"


WORDS = {Rise.ROSE: "better than", Rise.NOT_SHOWN: "not shown to be better than", Rise.FELL: "worse than"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """How the warm start was continued, as `controls/warm_start_continued/state.json` has it."""

    steps: int
    seconds: float
    rl_seconds: float
    fingerprint: str
    """Of its weights: an evaluation with another one played an earlier control."""

    @property
    def is_too_short(self) -> bool:
        """Less than RL took, so not imitation for as long as RL."""
        return self.seconds < self.rl_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a claim takes from the run beside its evaluations. Paths stand in the commands that it proposes."""

    name: str = "RUN"
    family: str = ""
    """The family of runs, or several runs, where the claim is made of them together; `name` then stands for each."""
    recipe: str = "RECIPE"
    runs: str = "runs"
    """The folder of runs."""
    has_warm_start: bool
    continued: Continued | None = None
    """None: not made, or its files cannot be read."""
    seen_in_training: int = 0
    """How many of the held-out tasks were trained on."""

    def shown(self, control: str) -> str:
        """As a sentence names it."""
        if control != CONTINUED:
            return SHOWN.get(control, control)
        if self.continued is None:
            return f"the {CONTINUED}"
        return f"the {CONTINUED} by {self.continued.steps} steps" if self.continued.is_too_short else SHOWN[control]

    @property
    def evaluates(self) -> str:
        """The command that plays held-out tasks."""
        return f"sparring eval --across {self.family}" if self.family else f"sparring eval {self.name}"

    def missing(self, compared: Collection[str]) -> tuple[str, ...]:
        """The expected controls that were not compared."""
        if self.has_warm_start:
            return tuple(control for control in (CONTINUED, WARM_START, BASE) if control not in compared)
        # A run's folder; that it had random rewards is not checked.
        has_other_run = any(one not in CONTROLS and not one.startswith(("constant:", "script:")) for one in compared)
        return (*(() if BASE in compared else (BASE,)), *(() if has_other_run else (RANDOM,)))

    def remedy(self, missing: Collection[str]) -> str:
        """The command that plays them; what it plays is said behind it."""
        evaluate = self.evaluates
        if RANDOM in missing:
            return (
                f"`sparring train {self.recipe} reward.reward=sparring.rewards:random_reward run.name=random --no-check` "
                f"trains {'that control' if len(missing) == 1 else 'the latter'}, and "
                f"`{evaluate} --policy base --policy {self.runs}/random --policy tuned`"
            )
        if CONTINUED in missing:
            return f"`{evaluate} --policy base --policy warm_start --policy warm_start_continued --policy tuned`"
        return f"`{evaluate}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """One control, and what is shown of the difference from it."""

    control: str
    shown: str
    """As sentences name it."""
    difference: float
    """Mean of tuned - control, over the tasks that both played."""
    rise: Rise
    opposed: str = ""
    """What another temperature or seed shows where that is the opposite: "greedily worse than"."""
    by_seed: tuple[float, ...] = ()
    """The differences, over several seeds."""
    before: Evaluation | None = None
    comparison: Comparison | None = None
    """Both None over several seeds."""

    @property
    def size(self) -> str:
        """The difference with its 95 % interval, or from the least to the most over several seeds."""
        if self.by_seed:
            least, most = f"{min(self.by_seed):+.2f}", f"{max(self.by_seed):+.2f}"
            return f"{least} with every seed" if least == most else f"{least} to {most} by seed"
        if self.comparison is None:
            return f"{self.difference:+.2f}"
        difference = self.comparison.difference
        return f"{difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"


def compared(
    tuned: Evaluation, controls: Mapping[str, Sequence[Evaluation]], facts: RunFacts
) -> tuple[list[Against], list[str]]:
    """Against each control at the temperature of `tuned`, the strongest first; and why others are not compared."""
    against, limits = [], []
    for name, rows in controls.items():
        shown = facts.shown(name)
        alike = [one for one in rows if one.temperature in (None, tuned.temperature)]
        if not alike:
            how = f"sampled at temperature {tuned.temperature:g}" if tuned.temperature else "played greedily"
            limits.append(f"Not compared with {shown}: it was not {how}.")
        elif name == CONTINUED and facts.continued is not None and alike[0].fingerprint != facts.continued.fingerprint:
            limits.append(f"Not compared with {shown}: it was made again since.")
        elif _graded(alike[0]) != _graded(tuned):
            limits.append(f"Not compared with {shown}: another scorer graded it.")
        elif set(alike[0].task_ids).isdisjoint(tuned.task_ids):
            limits.append(f"Not compared with {shown}: it played other tasks.")
        else:
            comparison = compare(alike[0], tuned)
            against.append(
                Against(
                    control=name, shown=shown, difference=comparison.difference.mean, rise=rise_of(comparison),
                    before=alike[0], comparison=comparison,
                )
            )  # fmt: skip
    return strongest_first(against), limits


def _graded(one: Evaluation) -> tuple[str | None, float]:
    return one.judge.scorer, one.judge.success_threshold


def strongest_first(against: Sequence[Against]) -> list[Against]:
    places = {name: place for place, name in enumerate(CONTROLS)}
    return sorted(against, key=lambda one: (round(one.difference, 9), places.get(one.control, len(CONTROLS))))


def strongest(against: Sequence[Against]) -> list[Against]:
    """Several where they are equally strong."""
    return [one for one in against if round(one.difference, 9) == round(against[0].difference, 9)]


def rise_of(comparison: Comparison) -> Rise:
    """What is not shown if every lost episode speaks against it is not shown."""
    if comparison.p_value >= SIGNIFICANT or comparison.is_sign_open or comparison.worst_p_value >= SIGNIFICANT:
        return Rise.NOT_SHOWN
    difference = comparison.difference
    return Rise.ROSE if difference.low > 0 else Rise.FELL if difference.high < 0 else Rise.NOT_SHOWN


def listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
