"""Reasons why a difference may mean less than it seems, as a table of small functions, each with its sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from statistics import fmean

from sparring.evaluation.comparison import Comparison
from sparring.evaluation.controls import (
    BASE,
    CONTINUED,
    ORIGIN,
    SIGNIFICANT,
    WARM_START,
    Against,
    Rise,
    RunFacts,
    rise_of,
)
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.statistics import paired_p_value
from sparring.types import Outcome

FEW_TASKS = 20
"""The smallest number of tasks from which a result generalizes to other tasks."""
MOST_LOST = 0.01
"""The share of lost episodes above which a claim mentions it."""
MANY_WRONG = 0.1
"""The share of wrong episodes from which a claim mentions how they end."""
LEAST_DIFFERING = next(
    num for num in count(1) if paired_p_value([Fraction(0)] * num, [Fraction(1)] * num) < SIGNIFICANT
)
"""The smallest number of tasks that must differ for a significant difference, if all of them become right."""
ENDINGS = {
    Outcome.MAX_TURNS: "runs out of turns",
    Outcome.MAX_TOKENS: "runs out of tokens",
    Outcome.POLICY_TIMEOUT: "does not finish in time",
    Outcome.POLICY_ERROR: "causes an error",
}
JUMPS = (
    "A small change of one probability can change a greedy answer, so the gain may be smaller or absent with sampling"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The evaluations and facts that the sentences describe."""

    tuned: Evaluation
    against: Sequence[Against]
    facts: RunFacts
    alike: str = ""
    """A result that all policies have in common, such as "no policy solved a task"."""

    @property
    def strongest(self) -> Against | None:
        """The comparison with the strongest control, or None if there is none."""
        return self.against[0] if self.against else None


def limits_of(seen: Seen) -> Iterator[str]:
    """Yield the sentences of all limits that apply."""
    for limits in _LIMITS:
        yield from limits(seen)


def planned(one: Evaluation | None) -> frozenset[str]:
    """Return the ids of the tasks that the evaluation planned."""
    return frozenset() if one is None else frozenset({*one.task_ids, *one.lost})


def common_part(tuned: Evaluation, against: Sequence[Against]) -> int | None:
    """Return how many tasks each control shares with `tuned`. Return None unless these tasks are the same for each
    control and are not all tasks of the control."""
    parts = {planned(tuned) & planned(one.before) for one in against}
    return len(*parts) if len(parts) == 1 and parts != {planned(tuned)} else None


def _unsampled(seen: Seen) -> Iterator[str]:
    if seen.tuned.temperature == 0 and seen.against:
        yield f"Not sampled. {JUMPS}; `{seen.facts.evaluates} --temperature 0 --temperature 1` evaluates both."


def _partly_shared(seen: Seen) -> Iterator[str]:
    if common_part(seen.tuned, seen.against) is not None:
        return  # the claim states it
    whole = planned(seen.tuned)
    for one in seen.against:
        if part := whole - planned(one.before):
            num = len(whole - part)
            few = ", which are too few for conclusions about other tasks" if num < FEW_TASKS else ""
            yield f"Compared with {one.shown} on the {num} tasks that both ran{few}."


def _few_tasks(seen: Seen) -> Iterator[str]:
    num, each = common_part(seen.tuned, seen.against) or len(planned(seen.tuned)), seen.tuned.group_size
    if num < FEW_TASKS:
        episodes = f": what counts is the number of tasks, not their {each} episodes each" if each > 1 else ""
        yield f"{num} tasks are too few for conclusions about other tasks{episodes}."


def _cannot_tell(seen: Seen) -> Iterator[str]:
    if seen.alike:
        yield f"These tasks cannot distinguish the policies; use {'harder' if seen.tuned.success.mean else 'easier'} tasks."


def _ceiling(seen: Seen) -> Iterator[str]:
    one = seen.strongest
    if seen.alike or one is None or one.before is None or one.rise is not Rise.NOT_SHOWN:
        return
    shared = set(seen.tuned.task_ids)
    rates = [rate for task, rate in zip(one.before.task_ids, one.before.rates, strict=True) if task in shared]
    missed = sum(rate < 1 for rate in rates)
    if missed < LEAST_DIFFERING:
        few = "none" if not missed else f"only {missed}" if missed < len(rates) else str(missed)
        others = "harder tasks, or more of them" if missed < len(rates) else "more tasks"
        yield (
            f"No gain over {one.control} could be shown here: it misses {few} of {len(rates)} tasks, and at least "
            f"{LEAST_DIFFERING} must differ; use {others}."
        )


def _decided_by_lost(seen: Seen) -> Iterator[str]:
    for one in seen.against:
        if one.comparison is None or one.comparison.bounds is None:
            continue
        if _could_turn(one.comparison):
            bounds = one.comparison.bounds
            is_open = bounds.worst <= 0 <= bounds.best
            shown = (
                f"{seen.tuned.name} is better than {one.shown}"
                if is_open
                else f"a difference from {one.shown} is shown"
            )
            num = len(planned(seen.tuned) & planned(one.before))
            yield (
                f"Lost episodes could decide whether {shown}: over all {num} tasks, the difference lies "
                f"between {bounds.worst:+.2f} and {bounds.best:+.2f}, depending on whether they were wrong or right."
            )
        elif one.rise is not Rise.NOT_SHOWN:
            yield f"The result for {one.shown} holds even if every lost episode counts against it."


def _could_turn(comparison: Comparison) -> bool:
    without = replace(comparison, bounds=None, worst_p_value=0.0)
    return rise_of(comparison) is Rise.NOT_SHOWN and rise_of(without) is not Rise.NOT_SHOWN


def _lost(seen: Seen) -> Iterator[str]:
    for row in (seen.tuned, *(one.before for one in seen.against if one.before is not None)):
        if row.lost_share > MOST_LOST:
            yield f"{_percent(row.lost_share)} of the episodes of {row.name} were lost."
        if (late := row.outcomes.get(Outcome.POLICY_TIMEOUT, 0.0)) > MOST_LOST:
            yield (
                f"{_percent(late)} of the episodes of {row.name} were not finished in time and count as wrong; on "
                "another machine, the difference may be larger or smaller."
            )


def _graded(seen: Seen) -> Iterator[str]:
    criterion = seen.tuned.criterion
    if criterion.scorer is None:
        yield (
            f"No independent scorer graded it; `sparring eval {seen.facts.name} --rescore --scorer MODULE:NAME` grades "
            "the stored episodes."
        )
    elif criterion.independence != "scorer":
        yield "A mistake in the shared code would show neither in the reward nor in the score."


def _trained_on(seen: Seen) -> Iterator[str]:
    if num := seen.facts.seen_in_training:
        yield f"Which {num} tasks were trained on is not stored, so nothing is claimed about new tasks."


def _too_short(seen: Seen) -> Iterator[str]:
    made = seen.facts.continued
    one = next((one for one in seen.against if one.control == CONTINUED), None)
    if one is None or one.rise is Rise.FELL or (made is not None and not made.is_too_short):
        return
    if made is None:
        yield (
            "It is not known for how long the warm start was continued, so nothing is known about imitation for as "
            f"long as RL; `sparring control {seen.facts.name}` trains that control."
        )
        return
    longer = f" --steps {math.ceil(11 * made.steps * made.rl_seconds / (10 * made.seconds))}" if made.seconds else ""
    yield (
        f"The warm start was continued for {made.seconds:.0f} s, but RL took {made.rl_seconds:.0f} s, so nothing is "
        f"known about imitation for as long as RL; `sparring control {seen.facts.name}{longer}` trains a longer "
        "control."
    )


def _short_random(seen: Seen) -> Iterator[str]:
    """Yield the runs with random rewards that were trained for fewer steps than the tuned policy."""
    for one in seen.against:
        if one.before is None or not one.before.is_random_control or one.is_random_control:
            continue
        steps, most = one.before.policy_version, seen.tuned.policy_version
        length = (
            "for an unknown number of steps"
            if steps is None or most is None
            else f"for {steps} {'step' if steps == 1 else 'steps'}, and {seen.tuned.name} for {most}"
        )
        yield (
            f"{one.control} was trained with random rewards {length}, so nothing is known about training with random "
            "rewards for as long."
        )


def _endings(seen: Seen) -> Iterator[str]:
    """Yield the most frequent ending of the wrong episodes: a wrong answer, or no answer. Right episodes are assumed to
    have finished."""
    tuned = seen.tuned
    played = 1 - tuned.lost_share
    right = played * sum(tuned.successes) / sum(tuned.samples)
    if played - right < MANY_WRONG:
        return
    shares = tuned.outcomes
    finished = shares.get(Outcome.FINISHED, played * fmean(tuned.completions))
    unfinished = {text: shares.get(outcome, 0.0) for outcome, text in ENDINGS.items()}
    if not shares:
        unfinished = {"does not finish": played - finished}
    endings = {"gives a wrong answer": max(0.0, finished - right)} | unfinished
    text = max(endings, key=lambda one: endings[one])
    yield f"{tuned.name[0].upper()}{tuned.name[1:]} {text} in {_percent(endings[text])} of its episodes."


def _exploited(seen: Seen) -> Iterator[str]:
    """Yield a sentence if the training reward rose on the same tasks while the success fell."""
    by_name = {one.control: one for one in seen.against}
    origin = next((by_name[name] for name in (WARM_START, BASE, ORIGIN) if name in by_name), None)
    if origin is None or origin.before is None or origin.rise is not Rise.FELL or seen.tuned.criterion.scorer is None:
        return
    before, after = (dict(zip(row.task_ids, row.rewards, strict=True)) for row in (origin.before, seen.tuned))
    shared = before.keys() & after.keys()
    first, last = (f"{fmean(rewards[task] for task in shared):.2f}" for rewards in (before, after))
    if float(last) > float(first):
        yield f"The training reward rose from {first} to {last} while the scorer's success fell: the reward may be exploited."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


_LIMITS: tuple[Callable[[Seen], Iterator[str]], ...] = (
    _unsampled, _partly_shared, _few_tasks, _cannot_tell, _ceiling, _decided_by_lost, _lost, _graded, _trained_on, _too_short,
    _short_random, _endings, _exploited,
)  # fmt: skip
