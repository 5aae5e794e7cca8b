"""The verdict on a run: the gain on tasks that were not trained on, the size of the gain, and the evidence against
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sparring.diagnosis.diagnose import TUNING
from sparring.evaluation.claim import Claim
from sparring.evaluation.comparison import Comparison
from sparring.evaluation.controls import FEW_TASKS, Against, Rise
from sparring.evaluation.evaluation import Evaluation, interval_json
from sparring.evaluation.limits import MOST_LOST
from sparring.evaluation.of_run import claim_of_run
from sparring.findings import Finding, Severity
from sparring.report.reading import Record
from sparring.run_folders import RunFolder
from sparring.tracking.refused import refused_reasons
from sparring.types import Json

MANY_PAID = 0.05
"""The share of paid wrong episodes above which a reward does not reward right answers."""
MOST_REASONS = 5
"""The largest number of reasons for refused requests to list."""
ADVICE = ("budgets.", "baseline.", "prompt.")
"""Prefixes of checks before training. Their warnings concern how well a recipe trains, not the meaning of its
numbers."""


class State(StrEnum):
    """The result of one check of a run's numbers."""

    GOOD = "good"
    UNKNOWN = "unknown"
    """The state of a check for which no measurement is available."""
    DOUBT = "doubt"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One reason to trust a run, or not to trust it."""

    name: str
    state: State
    text: str
    """The reason as one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The content of the page's first screen."""

    claim: Claim
    """The claim that the evaluations support."""
    after: Evaluation | None
    """The evaluation that the verdict is about. It is the last evaluation if no policy was trained."""
    is_held_out: bool
    """Whether the evaluation is held out. Otherwise, there are only validation results, which may have guided choices
    during training."""
    looks: tuple[Look, ...]

    @property
    def trust(self) -> State:
        """The worst state among all reasons. An unknown state does not count as doubt."""
        states = {look.state for look in self.looks}
        return State.BAD if State.BAD in states else State.DOUBT if State.DOUBT in states else State.GOOD

    @property
    def rise(self) -> Rise:
        """The result of the comparison with the strongest control that was evaluated."""
        return self.claim.rise

    @property
    def before(self) -> Evaluation | None:
        """The evaluation of the strongest control."""
        return None if self.claim.strongest is None else self.claim.strongest.before

    @property
    def comparison(self) -> Comparison | None:
        """The comparison of `before` and `after`."""
        return None if self.claim.strongest is None else self.claim.strongest.comparison

    @property
    def headline(self) -> str:
        """The claim, and whether there is evidence against the numbers."""
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
        """Return the content as JSON data."""
        return {
            **self.claim.as_json(),
            "trust": self.trust.value,
            "headline": self.headline,
            "held_out": self.is_held_out,
            "before": None if self.before is None else _evaluation_json(self.before),
            "after": None if self.after is None else _evaluation_json(self.after),
            "difference": None if self.comparison is None else interval_json(self.comparison.difference),
            "looks": [{"name": look.name, "state": look.state.value, "said": look.text} for look in self.looks],
        }


def build_verdict(record: Record, *, seen_in_training: int) -> Verdict:
    """Return the verdict on a run. `seen_in_training` is the number of the evaluated tasks that were trained on."""
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
        yield _scorer(after)
        yield _agreement(after, "held out" if is_held_out else "validation")
    yield from _agreement_in_training(record)
    yield _findings(record)
    yield from _refused(record)
    if not record.was_checked and record.config.is_trainable:
        yield Look(
            name="Check before training",
            state=State.UNKNOWN,
            text="Environment, data and reward were not checked before training; `sparring check` checks them.",
        )
    if after is not None:
        yield from _lost(after)
        yield from _newer_policy(record, after)
    yield from _status(record)


def _limits(claim: Claim) -> Iterator[Look]:
    """Yield the limits that the headline leaves out. Limits that cast doubt on the headline are separate reasons."""
    if claim.against or claim.tuned is not None:
        is_doubtful = any(one.severity is not Severity.NOTE for one in claim.findings)
        text = " ".join(claim.limits) or "Every control that was evaluated is in the headline."
        state = State.DOUBT if is_doubtful else State.UNKNOWN if claim.limits else State.GOOD
        yield Look(name="What the claim leaves open", state=state, text=text)


def _tasks(after: Evaluation | None, strongest: Against | None, *, is_held_out: bool, seen_in_training: int) -> Look:
    name = "Tasks"
    if after is None:
        return Look(
            name=name,
            state=State.UNKNOWN,
            text="Nothing was evaluated; `sparring eval RUN` runs the held-out evaluation.",
        )
    num = len(after.task_ids)
    if not is_held_out:
        text = (
            f"{num} validation tasks: they were not trained on, but choices may have been made on them. `sparring eval "
            "RUN` runs the held-out evaluation."
        )
        return Look(name=name, state=State.DOUBT, text=text)
    if seen_in_training:
        text = f"{seen_in_training} of {num} held-out tasks were trained on, word for word."
        return Look(name=name, state=State.BAD, text=text)
    if num < FEW_TASKS:
        text = f"Only {num} held-out tasks: even a large difference may be chance."
        return Look(name=name, state=State.DOUBT, text=text)
    if strongest is not None and strongest.comparison is not None and strongest.rise is Rise.NOT_SHOWN:
        needed = strongest.comparison.tasks_needed
        more = "" if needed is None or needed <= num else f" About {needed} tasks would show a difference of this size."
        return Look(name=name, state=State.GOOD, text=f"{num} held-out tasks, none trained on.{more}")
    return Look(name=name, state=State.GOOD, text=f"{num} held-out tasks, none of them trained on.")


def _scorer(after: Evaluation) -> Look:
    name = "Independent scorer"
    match after.criterion.independence:
        case "scorer":
            return Look(
                name=name, state=State.GOOD, text=f"{after.criterion.scorer}, which shares no code with the reward."
            )
        case "none":
            text = "The training reward graded itself. Set reward.scorer; `sparring eval --rescore` scores stored episodes."
            return Look(name=name, state=State.BAD, text=text)
    text = (
        f"{after.criterion.scorer} {after.criterion.independence}: a mistake in that code affects both, so no "
        "difference shows it."
    )
    return Look(name=name, state=State.DOUBT, text=text)


def _agreement(after: Evaluation, where: str) -> Look:
    name, found = f"Reward and scorer, {where}", after.agreement
    if not found.num or after.criterion.independence == "none":
        return Look(name=name, state=State.UNKNOWN, text="No episode has both a reward and a score.")
    text = f"{_cap(found.summary())}."
    return Look(name=name, state=_paid_state(found.paid_wrong / found.num, found.unpaid_right / found.num), text=text)


def _agreement_in_training(record: Record) -> Iterator[Look]:
    paid, unpaid = record.late("rollout/agreement/paid_wrong"), record.late("rollout/agreement/unpaid_right")
    if paid is not None and unpaid is not None:
        text = f"In the last steps, {_percent(paid)} of the episodes are wrong but paid, and {_percent(unpaid)} right but unpaid."
        yield Look(name="Reward and scorer, training", state=_paid_state(paid, unpaid), text=text)


def _paid_state(paid: float, unpaid: float) -> State:
    return State.BAD if paid > MANY_PAID else State.DOUBT if paid > 0 or unpaid > MANY_PAID else State.GOOD


def _findings(record: Record) -> Look:
    doubtful = [one for one in record.findings if _speaks_against(one) and record.holds(one)]
    doubtful += [one for one in record.symptoms if one.severity is Severity.ERROR and not one.rule.startswith(TUNING)]
    doubtful.sort(key=lambda one: one != record.first)
    errors = [one for one in doubtful if one.severity is Severity.ERROR]
    off = len(record.config.detectors.off)
    notes = f" {_count(off, 'detector')} turned off." if off else ""
    accepted = sum(one.is_accepted for one in record.findings)
    notes += f" The recipe accepts {_count(accepted, 'finding')} of the check." if accepted else ""
    if not doubtful:
        found = (*record.findings, *record.symptoms)
        text = "No finding casts doubt on the numbers; see below." if found else "No rule reported a finding."
        return Look(name="Findings", state=State.GOOD, text=text + notes)
    counts = f"{_count(len(errors), 'error')}, {_count(len(doubtful) - len(errors), 'warning')}"
    heaviest = (errors or doubtful)[0]
    when = "" if heaviest.step is None else f"after step {heaviest.step}: "
    text = f"{counts}; first, {when}{heaviest.symptom}{notes}"
    return Look(name="Findings", state=State.BAD if errors else State.DOUBT, text=text)


def _speaks_against(one: Finding) -> bool:
    """Return whether a finding casts doubt on the numbers. Other findings give advice on training."""
    if one.is_accepted:
        return False
    is_advice = one.step is None and one.rule.startswith(ADVICE)
    return one.severity is Severity.ERROR or (one.severity is Severity.WARNING and not is_advice)


def _refused(record: Record) -> Iterator[Look]:
    counts = Counter[str]()
    for metrics in record.metrics.values():
        counts.update({reason: int(number) for reason, number in refused_reasons(metrics).items()})
    if counts:
        reasons = ", ".join(f"{reason} {number}" for reason, number in counts.most_common(MOST_REASONS))
        num = _count(counts.total(), "request")
        text = f"The gateway refused {num} requests of the agent's client in training and validation: {reasons}."
        yield Look(name="Refused requests", state=State.DOUBT, text=text)


def _lost(after: Evaluation) -> Iterator[Look]:
    if after.lost_share > MOST_LOST:
        text = (
            f"{after.num_lost} of {after.num_lost + sum(after.samples)} episodes of the evaluation were lost and are "
            f"not part of any number. Success is {after.success_bounds.worst:.2f} if they count as wrong and "
            f"{after.success_bounds.best:.2f} if they count as right."
        )
        yield Look(name="Lost episodes", state=State.DOUBT, text=text)


def _newer_policy(record: Record, after: Evaluation) -> Iterator[Look]:
    if after.policy_version is not None and after.policy_version < record.last_step:
        text = f"Step {after.policy_version} was evaluated, but the run is now at step {record.last_step}."
        yield Look(name="Newest policy", state=State.DOUBT, text=text)


def _status(record: Record) -> Iterator[Look]:
    status, reason = str(record.status.get("status", "")), record.status.get("reason")
    if status not in ("completed", "", "created"):
        text = f"The run is {status} at step {record.status.get('step', record.last_step)}{f': {reason}' if reason else '.'}"
        yield Look(name="Status", state=State.UNKNOWN if status in ("running", "stopped") else State.DOUBT, text=text)
    if record.unread:
        yield Look(name="Files", state=State.DOUBT, text=" ".join(record.unread))
    if record.removed:
        yield Look(name="Removed", state=State.UNKNOWN, text=f"{record.removed} This page shows the others.")


def _evaluation_json(one: Evaluation) -> dict[str, Any]:
    return {"name": one.name, "setting": one.setting, "success": interval_json(one.success), "tasks": len(one.task_ids)}


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _cap(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def worst_first(looks: Sequence[Look]) -> list[Look]:
    """Return the reasons, with the most serious ones first."""
    order = (State.BAD, State.DOUBT, State.UNKNOWN, State.GOOD)
    return sorted(looks, key=lambda look: order.index(look.state))
