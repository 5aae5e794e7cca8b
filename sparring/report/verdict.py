"""What a person wants to know first: did it get better where it was not trained, by how much, and what speaks against that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sparring.evaluation.comparison import Comparison, compare
from sparring.evaluation.evaluation import Evaluation, interval_json
from sparring.findings import Finding, Severity
from sparring.report.reading import Record
from sparring.tracking.refused import refused_reasons
from sparring.types import Json

MOST_LOST = 0.01
"""Share of episodes that may be lost before a number is in doubt."""
MANY_PAID = 0.05
"""Share of episodes that are paid although wrong from which on a reward is not one for being right."""
MOST_REASONS = 5
"""Reasons of refused requests that are named."""
FEW_TASKS = 20
"""Below, an interval says little."""
SIGNIFICANT = 0.05
ADVICE = ("budgets.", "foothold.", "prompt.")
"""Checks before training whose warnings are about how well a recipe trains, not about what its numbers mean."""


class State(StrEnum):
    """What one look at a run says of its numbers."""

    GOOD = "good"
    UNKNOWN = "unknown"
    """Nothing was measured that could say."""
    DOUBT = "doubt"
    BAD = "bad"


class Rise(StrEnum):
    """Whether held-out success rose."""

    ROSE = "rose"
    FELL = "fell"
    NOT_SHOWN = "not shown"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One reason to trust a run, or not to."""

    name: str
    state: State
    said: str
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The first screen."""

    rise: Rise
    before: Evaluation | None
    after: Evaluation | None
    comparison: Comparison | None
    """Of these two."""
    is_held_out: bool
    """False: only validations are there, which every choice during training may have been made by."""
    looks: tuple[Look, ...]

    @property
    def trust(self) -> State:
        """The worst look; what is unknown is no doubt yet."""
        states = {look.state for look in self.looks}
        return State.BAD if State.BAD in states else State.DOUBT if State.DOUBT in states else State.GOOD

    @property
    def headline(self) -> str:
        """Both answers in one sentence."""
        num = sum(look.state in (State.DOUBT, State.BAD) for look in self.looks)
        reasons = _count(num, "reason")
        match self.rise, self.trust:
            case Rise.UNKNOWN, _:
                return "Whether it got better is not known yet."
            case Rise.NOT_SHOWN, State.GOOD:
                return "No improvement is shown."
            case Rise.NOT_SHOWN, _:
                return f"No improvement is shown, with {reasons} to look closer."
            case Rise.FELL, State.GOOD:
                return "It got worse."
            case Rise.FELL, _:
                return f"It got worse, with {reasons} to look closer."
            case _, State.GOOD:
                return "It got better, and nothing found speaks against the numbers."
            case _, State.DOUBT:
                return f"The numbers got better; {reasons} to look before you trust them."
        return f"The numbers got better, but do not trust them: {reasons} below."

    def as_json(self) -> dict[str, Json]:
        return {
            "rise": self.rise.value,
            "trust": self.trust.value,
            "headline": self.headline,
            "held_out": self.is_held_out,
            "before": None if self.before is None else _evaluation_json(self.before),
            "after": None if self.after is None else _evaluation_json(self.after),
            "difference": None if self.comparison is None else interval_json(self.comparison.difference),
            "looks": [{"name": look.name, "state": look.state.value, "said": look.said} for look in self.looks],
        }


def verdict(record: Record, *, seen_in_training: int) -> Verdict:
    """`seen_in_training`: how many of the tasks that the verdict is about were trained on."""
    before, after, comparison, is_held_out = _compared(record)
    return Verdict(
        rise=_rise(comparison),
        before=before,
        after=after,
        comparison=comparison,
        is_held_out=is_held_out,
        looks=tuple(_looks(record, after, comparison, is_held_out=is_held_out, seen_in_training=seen_in_training)),
    )


def _compared(record: Record) -> tuple[Evaluation | None, Evaluation | None, Comparison | None, bool]:
    """What the verdict is about: the policy that RL began from and the tuned one, greedy where both were played so."""
    report = record.held_out
    if report is not None:
        by_label = {one.label: one for one in report.evaluations}
        pairs = [
            (by_label[one.before], by_label[one.after], one) for one in report.comparisons if one.before in by_label
        ]
        if pairs:
            before, after, comparison = min(pairs, key=lambda pair: (_origin(pair[0]), pair[1].temperature or 0.0))
            return before, after, comparison, True
        return None, report.evaluations[-1], None, True
    steps = list(record.validations)
    if len(steps) < 2:
        return None, next(iter(record.validations.values()), None), None, False
    before, after = record.validations[steps[0]], record.validations[steps[-1]]
    shared = not set(before.task_ids).isdisjoint(after.task_ids)
    return before, after, compare(before, after) if shared else None, False


def _origin(one: Evaluation) -> int:
    """The nearer to where RL began, the smaller."""
    names = ("warm start", "base")
    return names.index(one.name) if one.name in names else len(names)


def _rise(comparison: Comparison | None) -> Rise:
    if comparison is None:
        return Rise.UNKNOWN
    if comparison.p_value < SIGNIFICANT and comparison.difference.low > 0:
        return Rise.ROSE
    if comparison.p_value < SIGNIFICANT and comparison.difference.high < 0:
        return Rise.FELL
    return Rise.NOT_SHOWN


def _looks(
    record: Record, after: Evaluation | None, comparison: Comparison | None, *, is_held_out: bool, seen_in_training: int
) -> Iterator[Look]:
    yield _tasks(after, comparison, is_held_out=is_held_out, seen_in_training=seen_in_training)
    if after is not None:
        yield _judge(after)
        yield _agreement(after, "held out" if is_held_out else "validation")
    yield from _agreement_in_training(record)
    yield _findings(record)
    yield from _refused(record)
    if not record.was_checked and record.config.is_trainable:
        yield Look(
            name="Check before training", state=State.UNKNOWN,
            said="Environment, data and reward were not checked before training; `sparring check` does it.",
        )  # fmt: skip
    if after is not None:
        yield from _lost(after)
        yield from _newer_policy(record, after)
    yield from _settings(record, comparison)
    yield from _status(record)


def _tasks(
    after: Evaluation | None, comparison: Comparison | None, *, is_held_out: bool, seen_in_training: int
) -> Look:
    name = "Tasks"
    if after is None:
        return Look(
            name=name, state=State.UNKNOWN, said="Nothing was evaluated; `sparring eval RUN` plays held-out tasks."
        )
    num = len(after.task_ids)
    if not is_held_out:
        said = (
            f"{num} validation tasks: not trained on, but choices may have been made by them. `sparring eval RUN` plays "
            "held-out ones."
        )
        return Look(name=name, state=State.DOUBT, said=said)
    if seen_in_training:
        said = f"{seen_in_training} of {num} held-out tasks were trained on, word for word."
        return Look(name=name, state=State.BAD, said=said)
    if num < FEW_TASKS:
        said = f"Only {num} held-out tasks: even a large difference may be chance."
        return Look(name=name, state=State.DOUBT, said=said)
    if comparison is not None and _rise(comparison) is Rise.NOT_SHOWN:
        needed = comparison.tasks_needed
        more = "" if needed is None or needed <= num else f" About {needed} tasks would tell a difference of this size."
        return Look(name=name, state=State.GOOD, said=f"{num} held-out tasks, none trained on.{more}")
    return Look(name=name, state=State.GOOD, said=f"{num} held-out tasks, none of them trained on.")


def _judge(after: Evaluation) -> Look:
    name = "Who judges"
    match after.judge.independence:
        case "scorer":
            return Look(
                name=name, state=State.GOOD, said=f"{after.judge.scorer}, which shares no code with the reward."
            )
        case "none":
            said = "The training reward judged itself. Set reward.scorer; `sparring eval --rescore` judges stored episodes."
            return Look(name=name, state=State.BAD, said=said)
    said = f"{after.judge.scorer} {after.judge.independence}: a mistake there shows in neither."
    return Look(name=name, state=State.DOUBT, said=said)


def _agreement(after: Evaluation, where: str) -> Look:
    name, found = f"Reward and scorer, {where}", after.agreement
    if not found.num or after.judge.independence == "none":
        return Look(name=name, state=State.UNKNOWN, said="No episode has both a reward and a score.")
    said = f"{_cap(found.summary())}."
    return Look(name=name, state=_paid_state(found.paid_wrong / found.num, found.unpaid_right / found.num), said=said)


def _agreement_in_training(record: Record) -> Iterator[Look]:
    paid, unpaid = record.late("rollout/agreement/paid_wrong"), record.late("rollout/agreement/unpaid_right")
    if paid is not None and unpaid is not None:
        said = f"In the last steps {_percent(paid)} of episodes are paid although wrong, {_percent(unpaid)} right and not paid."
        yield Look(name="Reward and scorer, training", state=_paid_state(paid, unpaid), said=said)


def _paid_state(paid: float, unpaid: float) -> State:
    return State.BAD if paid > MANY_PAID else State.DOUBT if paid > 0 or unpaid > MANY_PAID else State.GOOD


def _findings(record: Record) -> Look:
    doubtful = [one for one in record.findings if _speaks_against(one) and record.holds(one)]
    errors = [one for one in doubtful if one.severity is Severity.ERROR]
    off = len(record.config.detectors.off)
    notes = f" {_count(off, 'detector')} off." if off else ""
    if not doubtful:
        said = "Nothing found speaks against the numbers; see below." if record.findings else "No rule found anything."
        return Look(name="Findings", state=State.GOOD, said=said + notes)
    counts = f"{_count(len(errors), 'error')}, {_count(len(doubtful) - len(errors), 'warning')}"
    heaviest = (errors or doubtful)[0]
    when = "" if heaviest.step is None else f"after step {heaviest.step}: "
    said = f"{counts}; first, {when}{heaviest.symptom}{notes}"
    return Look(name="Findings", state=State.BAD if errors else State.DOUBT, said=said)


def _speaks_against(one: Finding) -> bool:
    """Whether a finding puts the numbers in doubt, rather than advising how to train."""
    is_advice = one.step is None and one.rule.startswith(ADVICE)
    return one.severity is Severity.ERROR or (one.severity is Severity.WARNING and not is_advice)


def _refused(record: Record) -> Iterator[Look]:
    counts = Counter[str]()
    for metrics in record.metrics.values():
        counts.update({reason: int(number) for reason, number in refused_reasons(metrics).items()})
    if counts:
        reasons = ", ".join(f"{reason} {number}" for reason, number in counts.most_common(MOST_REASONS))
        num = _count(counts.total(), "request")
        said = f"The gateway refused {num} of the agent's client in training and validation: {reasons}."
        yield Look(name="Refused requests", state=State.DOUBT, said=said)


def _lost(after: Evaluation) -> Iterator[Look]:
    if after.lost_share > MOST_LOST:
        said = (
            f"{after.num_lost} of {after.num_lost + sum(after.samples)} episodes of the evaluation were lost, and are in no "
            f"number. Counted as wrong they would make the success {after.success_bounds.worst:.2f}, as right "
            f"{after.success_bounds.best:.2f}."
        )
        yield Look(name="Lost episodes", state=State.DOUBT, said=said)


def _newer_policy(record: Record, after: Evaluation) -> Iterator[Look]:
    if after.policy_version is not None and after.policy_version < record.last_step:
        said = f"Step {after.policy_version} was evaluated; the run is at step {record.last_step} since."
        yield Look(name="Newest policy", state=State.DOUBT, said=said)


def _settings(record: Record, comparison: Comparison | None) -> Iterator[Look]:
    """Whether it got better greedily and sampled alike."""
    report = record.held_out
    if report is None or comparison is None:
        return
    by_label = {one.label: one for one in report.evaluations}
    name = by_label[comparison.before].name
    others = [one for one in report.comparisons if one is not comparison and one.before in by_label]
    for other in others:
        if by_label[other.before].name == name and {_rise(other), _rise(comparison)} >= {Rise.ROSE, Rise.FELL}:
            setting = by_label[other.after].setting
            said = f"Sampled at {setting} success {_rise(other).value}, against what the first numbers say."
            yield Look(name="Other settings", state=State.DOUBT, said=said)


def _status(record: Record) -> Iterator[Look]:
    status, reason = str(record.status.get("status", "")), record.status.get("reason")
    if status not in ("completed", "", "created"):
        said = f"The run is {status} at step {record.status.get('step', record.last_step)}{f': {reason}' if reason else '.'}"
        yield Look(name="Status", state=State.UNKNOWN if status in ("running", "stopped") else State.DOUBT, said=said)
    if record.unread:
        yield Look(name="Files", state=State.DOUBT, said=" ".join(record.unread))


def _evaluation_json(one: Evaluation) -> dict[str, Any]:
    return {"name": one.name, "setting": one.setting, "success": interval_json(one.success), "tasks": len(one.task_ids)}


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _cap(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def worst_first(looks: Sequence[Look]) -> list[Look]:
    """What a person must see before anything else, first."""
    order = (State.BAD, State.DOUBT, State.UNKNOWN, State.GOOD)
    return sorted(looks, key=lambda look: order.index(look.state))
