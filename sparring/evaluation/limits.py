"""Reasons why a difference may mean less than it seems, as a table of small functions, each with its sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from statistics import fmean

from sparring.evaluation.comparison import Comparison
from sparring.evaluation.controls import (
    BASE,
    CONTINUED,
    EXPERT,
    FEW_TASKS,
    ORIGIN,
    SIGNIFICANT,
    WARM_START,
    Against,
    Rise,
    RunFacts,
    compared,
    enough_steps,
    is_decided_by_late,
    is_decided_by_lost,
    listed,
    planned,
)
from sparring.evaluation.evaluation import Evaluation
from sparring.evaluation.statistics import paired_p_value
from sparring.types import Outcome

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
    evaluations: Sequence[Evaluation] = ()
    """All evaluations, including those of `tuned` at other temperatures, and of policies that are not controls."""
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


def at_temperature(one: Evaluation) -> str:
    """Return how episodes were sampled, for use in a sentence."""
    return f"at temperature {one.temperature:g}" if one.temperature else "greedily"


def common_part(tuned: Evaluation, against: Sequence[Against]) -> int | None:
    """Return the number of tasks that `tuned` shares with each control. Return None if not all controls share the same
    tasks with it, or if they share all of its tasks."""
    parts = {planned(tuned) & planned(one.before) for one in against}
    return len(*parts) if len(parts) == 1 and parts != {planned(tuned)} else None


def _unsampled(seen: Seen) -> Iterator[str]:
    if seen.tuned.temperature == 0 and seen.against:
        yield f"Not sampled. {JUMPS}; `{seen.facts.evaluates} --temperature 0 --temperature 1` evaluates both."


def _partly_shared(seen: Seen) -> Iterator[str]:
    parts = [one for one in seen.against if one.where]
    for one in parts:
        if one.num_planned < FEW_TASKS:
            yield (
                f"The {one.num_planned} tasks that {one.shown} and {seen.tuned.name} both ran are too few for "
                "conclusions about other tasks."
            )
    if parts:
        yield "The differences were measured on different tasks, so they do not show which control is stronger."


def _few_tasks(seen: Seen) -> Iterator[str]:
    num = common_part(seen.tuned, seen.against) or len(planned(seen.tuned))
    if num < FEW_TASKS:
        each = ", however many episodes each has" if seen.tuned.group_size > 1 else ""
        more = f": at least {LEAST_DIFFERING} must differ; use more tasks" if num < LEAST_DIFFERING else ""
        yield f"{num} {'task is' if num == 1 else 'tasks are'} too few for conclusions about other tasks{each}{more}."


def _cannot_tell(seen: Seen) -> Iterator[str]:
    if seen.alike:
        yield f"These tasks cannot distinguish the policies; use {'harder' if seen.tuned.success.mean else 'easier'} tasks."


def _ceiling(seen: Seen) -> Iterator[str]:
    one = seen.strongest
    if seen.alike or one is None or one.before is None or one.here or one.rise is not Rise.NOT_SHOWN:
        return
    shared = set(seen.tuned.task_ids)
    rates = [rate for task, rate in zip(one.before.task_ids, one.before.rates, strict=True) if task in shared]
    missed = sum(rate < 1 for rate in rates)
    if missed < LEAST_DIFFERING <= len(rates):  # else another sentence states that the tasks are too few
        few = "none" if not missed else f"only {missed}"
        yield (
            f"No gain over {one.control} could be shown here: it misses {few} of {len(rates)} tasks, and at least "
            f"{LEAST_DIFFERING} must differ; use harder tasks, or more of them."
        )


def _without_result(seen: Seen) -> Iterator[str]:
    """Yield sentences about results that depend on episodes that were lost or not finished in time."""
    for one in seen.against:
        if one.comparison is not None:
            yield from _open_results(one, one.comparison, seen.tuned.name)


def _open_results(one: Against, comparison: Comparison, name: str) -> Iterator[str]:
    result = f"whether {name} is {'better' if comparison.difference.mean >= 0 else 'worse'} than {one.shown}"
    if (bounds := comparison.bounds) is not None and is_decided_by_lost(comparison):
        is_open = bounds.worst <= 0 <= bounds.best
        yield (
            f"Lost episodes could decide {result if is_open else f'whether a difference from {one.shown} is shown'}: over "
            f"all {one.num_planned} tasks, the difference lies between {bounds.worst:+.2f}, if all of them count against "
            f"{name}, and {bounds.best:+.2f}, if all count for it."
        )
    if comparison.late_bounds is not None and is_decided_by_late(comparison):
        yield (
            f"Episodes that were not finished in time decide {result}: they depend on the speed of the machine and on "
            "rollout.rollout_timeout."
        )
    if one.rise is not Rise.NOT_SHOWN:
        kinds = {"lost episode": comparison.bounds, "episode that was not finished in time": comparison.late_bounds}
        if held := [f"every {kind}" for kind, bounds in kinds.items() if bounds is not None]:
            verb = "counts" if len(held) == 1 else "count"
            yield f"The result for {one.shown} holds even if {listed(held)} {verb} against it."


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
            f"No independent scorer graded the episodes, so exploitation of the reward would not be visible; "
            f"`sparring eval {seen.facts.name} --rescore --scorer MODULE:NAME` grades the stored episodes."
        )
    elif criterion.independence != "scorer":
        yield "A mistake in the shared code would show neither in the reward nor in the score."


def _trained_on(seen: Seen) -> Iterator[str]:
    if seen.facts.seen_in_training:
        yield "Results on tasks that were trained on are no evidence about new tasks."


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
    longer = f" --steps {enough_steps(made.steps, made.seconds, made.rl_seconds)}" if made.seconds else ""
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
    """Yield the most frequent ending of tuned's wrong episodes, for each temperature that was evaluated."""
    rows = [one for one in seen.evaluations if one.name == seen.tuned.name]
    rows.sort(key=lambda one: one.temperature or 0.0, reverse=True)
    name = f"{seen.tuned.name[0].upper()}{seen.tuned.name[1:]}"
    parts = list[str]()
    for text, share, row in ((*ending, row) for row in rows if (ending := _ending(row)) is not None):
        how = at_temperature(row) if len(rows) > 1 else ""
        what = f"{text} in {_percent(share)} of its episodes"
        if not parts:
            parts, first = [f"{how.capitalize()}, {seen.tuned.name} {what}" if how else f"{name} {what}"], text
        else:
            parts.append(f"{how}, in {_percent(share)}" if text == first else f"{how}, it {what}")
    if parts:
        yield f"{'; '.join(parts)}."


def _ending(one: Evaluation) -> tuple[str, float] | None:
    """Return the most frequent ending of the wrong episodes (a wrong answer, or the reason why there is no answer) with
    its share. Return None if few episodes are wrong. Right episodes are assumed to have finished."""
    played = 1 - one.lost_share
    right = played * sum(one.successes) / sum(one.samples)
    if round(played - right, 9) < MANY_WRONG:
        return None
    shares = one.outcomes
    finished = shares.get(Outcome.FINISHED, played * fmean(one.completions))
    unfinished = {text: shares.get(outcome, 0.0) for outcome, text in ENDINGS.items()}
    if not shares:
        unfinished = {"does not finish": played - finished}
    endings = {"gives a wrong answer": max(0.0, finished - right)} | unfinished
    text = max(endings, key=lambda key: endings[key])
    return text, endings[text]


def _references(seen: Seen) -> Iterator[str]:
    """Yield the differences from the expert and from other models, which show what could be reached."""
    rows = [one for one in seen.evaluations if one.name == EXPERT or one.name.startswith("openai:")]
    names = dict.fromkeys(one.name for one in rows)
    against, unlike = compared(
        seen.tuned, {name: [one for one in rows if one.name == name] for name in names}, seen.facts
    )
    yield from unlike
    for one in against:
        if one.before is not None:
            before, after = (dict(zip(row.task_ids, row.rates, strict=True)) for row in (one.before, seen.tuned))
            shared = before.keys() & after.keys()
            first, last = (f"{float(fmean(rates[task] for task in shared)):.2f}" for rates in (before, after))
            is_part = one.num_planned < len(planned(seen.tuned))
            tasks = f"the {one.num_planned} tasks that both ran" if is_part else "these tasks"
            name = f"{one.shown[0].upper()}{one.shown[1:]}" if one.control == EXPERT else one.shown
            yield f"{name} solves {first} of {tasks}, and {seen.tuned.name} {last} ({one.size})."


def _chosen(seen: Seen) -> Iterator[str]:
    """Yield a sentence if the claim is about the best of several checkpoints that were evaluated on the same tasks."""
    tuned = seen.tuned
    ones = {
        one.name: one
        for one in seen.evaluations
        if one.name.startswith("@") and one.temperature == tuned.temperature and planned(one) & planned(tuned)
    }
    if tuned.name in ones and len(ones) > 1 and tuned.success.mean >= max(one.success.mean for one in ones.values()):
        yield (
            f"{tuned.name} is the best of {len(ones)} checkpoints that were evaluated on these tasks. If it was chosen "
            "by these results, its success rate is overestimated; evaluate it on tasks that were not used to choose it."
        )


def _exploited(seen: Seen) -> Iterator[str]:
    """Yield a sentence if the training reward rose on the same tasks while the success rate fell."""
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
    _unsampled, _partly_shared, _few_tasks, _cannot_tell, _ceiling, _without_result, _lost, _graded, _trained_on, _too_short,
    _short_random, _endings, _references, _chosen, _exploited,
)  # fmt: skip
