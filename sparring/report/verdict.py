"""What a person wants to know first: did it get better where it was not trained, by how much, and what speaks against that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sparring.evaluation.claim import Claim
from sparring.evaluation.comparison import Comparison
from sparring.evaluation.controls import Against, Rise
from sparring.evaluation.evaluation import Evaluation, interval_json
from sparring.evaluation.limits import FEW_TASKS, MOST_LOST
from sparring.evaluation.of_run import claim_of_run
from sparring.findings import Finding, Severity
from sparring.report.reading import Record
from sparring.tracking import RunFolder
from sparring.tracking.refused import refused_reasons
from sparring.types import Json

MANY_PAID = 0.05
"""Share of episodes that are paid although wrong from which on a reward is not one for being right."""
MOST_REASONS = 5
"""Reasons of refused requests that are named."""
ADVICE = ("budgets.", "foothold.", "prompt.")
"""Checks before training whose warnings are about how well a recipe trains, not about what its numbers mean."""


class State(StrEnum):
    """What one look at a run says of its numbers."""

    GOOD = "good"
    UNKNOWN = "unknown"
    """Nothing was measured that could say."""
    DOUBT = "doubt"
    BAD = "bad"


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

    claim: Claim
    """What the evaluations show."""
    after: Evaluation | None
    """The policy that it is about; the last that was evaluated where none was trained."""
    is_held_out: bool
    """False: only validations are there, which every choice during training may have been made by."""
    looks: tuple[Look, ...]

    @property
    def trust(self) -> State:
        """The worst look; what is unknown is no doubt yet."""
        states = {look.state for look in self.looks}
        return State.BAD if State.BAD in states else State.DOUBT if State.DOUBT in states else State.GOOD

    @property
    def rise(self) -> Rise:
        """Against the strongest control evaluated."""
        return self.claim.rise

    @property
    def before(self) -> Evaluation | None:
        """The strongest control evaluated."""
        return None if self.claim.strongest is None else self.claim.strongest.before

    @property
    def comparison(self) -> Comparison | None:
        """Of these two."""
        return None if self.claim.strongest is None else self.claim.strongest.comparison

    @property
    def headline(self) -> str:
        """What may be claimed, and whether anything speaks against the numbers."""
        if self.after is None:
            return self.claim.headline
        num = sum(look.state in (State.DOUBT, State.BAD) for look in self.looks)
        match self.trust:
            case State.BAD:
                return f"{self.claim.headline} Do not trust these numbers: {_count(num, 'reason')} below."
            case State.DOUBT:
                return f"{self.claim.headline} Look closer, for {_count(num, 'reason')}."
        return self.claim.headline

    def as_json(self) -> dict[str, Json]:
        return {
            **self.claim.as_json(),
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
    report, is_held_out = record.held_out, record.held_out is not None
    claim = record.claim
    if seen_in_training and is_held_out:
        claim = claim_of_run(RunFolder(record.path), seen_in_training=seen_in_training)
    after = claim.tuned
    if after is None and report is not None:
        after = report.evaluations[-1]
    looks = _looks(record, claim, after, is_held_out=is_held_out, seen_in_training=seen_in_training)
    return Verdict(claim=claim, after=after, is_held_out=is_held_out, looks=tuple(looks))


def _looks(
    record: Record, claim: Claim, after: Evaluation | None, *, is_held_out: bool, seen_in_training: int
) -> Iterator[Look]:
    yield from _limits(claim)
    yield _tasks(after, claim.strongest, is_held_out=is_held_out, seen_in_training=seen_in_training)
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
    yield from _status(record)


def _limits(claim: Claim) -> Iterator[Look]:
    """What the headline leaves out; what puts it in doubt has a look of its own."""
    if claim.against or claim.tuned is not None:
        is_doubtful = any(one.severity is not Severity.NOTE for one in claim.findings)
        said = " ".join(claim.limits) or "Every control that was evaluated is in the headline."
        state = State.DOUBT if is_doubtful else State.UNKNOWN if claim.limits else State.GOOD
        yield Look(name="What the claim leaves open", state=state, said=said)


def _tasks(after: Evaluation | None, strongest: Against | None, *, is_held_out: bool, seen_in_training: int) -> Look:
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
    if strongest is not None and strongest.comparison is not None and strongest.rise is Rise.NOT_SHOWN:
        needed = strongest.comparison.tasks_needed
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
