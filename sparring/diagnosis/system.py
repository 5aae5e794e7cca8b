"""Symptoms of the system, not of learning: stalls, failures, stale tokens, steps without a signal, and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from sparring.config import Config
from sparring.diagnosis.course import JUDGE_AFTER, thirds
from sparring.diagnosis.observed import LATE_STEPS, Observed, Progress
from sparring.diagnosis.proposal import possible, warmer
from sparring.findings import Finding, Severity
from sparring.ledger.attempts import INFRASTRUCTURE
from sparring.ledger.states import DiscardReason
from sparring.run_folders.history import StepRecord
from sparring.types import Json

STALLED, STALLED_SECONDS = 6.0, 60.0
"""The longest silence of a healthy run, as a multiple of its median step, and the smallest such limit in seconds."""
MOST_FAILED, BROKEN = 0.01, 0.2
"""The shares of failed attempts for a warning and for an error."""
FEWEST_ATTEMPTS = 50
MISMATCH, MOST_ROUNDED, ROUNDED_SHARE = 1e-3, 0.05, 0.05
"""The limits of the mean absolute difference of log-probabilities between sampler and learner with the same weights:
the normal limit, the limit for half precision, and the latter as a share of the entropy. Rounding affects a policy less
if it is certain."""
FEW_COUNT = 0.5
"""The effective sample size below which most tokens of a step have nearly no weight."""
LEFT_OUT, RECENT_STEPS = 0.2, 10
"""The share of the weight of tokens that the correction for their age removes, and the number of steps over which it is
averaged, because it varies."""
FRESH = 2
"""The largest age of tokens, in steps, at which few of them are left out, unless the policy moves very fast."""
MANY_DISCARDED = 0.2
GROWN = 1.3
FEWEST_STEPS = 24
"""With fewer steps, growth is no evidence of a leak: allocators keep memory of batches of other sizes, so memory can
double within 14 steps."""
MEMORY = ("system/memory_rss_bytes", "system/memory_device_bytes")


def stalled(observed: Observed) -> Iterable[Finding]:
    """Report that a run in progress has reported nothing for six times the duration of its median step and at least a
    minute, or that its process has ended."""
    progress = observed.progress
    if progress is None:
        return
    if progress.status == "interrupted":
        yield _interrupted(observed, progress)
        return
    steps = observed.series("timing_s/step")
    usual = median(steps) + median(observed.series("timing_s/eval") or [0.0]) if steps else 0.0
    allowed = max(STALLED_SECONDS, STALLED * usual)
    if progress.status != "running" or not steps or progress.seconds_since_last <= allowed:
        return
    yield Finding(
        rule="system.stalled",
        severity=Severity.ERROR,
        symptom=f"the run has reported nothing for {progress.seconds_since_last:.0f} s; its steps take {usual:.1f} s.",
        evidence={
            "seconds": round(progress.seconds_since_last, 1),
            "median_step_seconds": round(usual, 2),
            "step": observed.history.last_step,
        },
        change="Find out what the run waits for: an environment, an agent or an endpoint that does not answer. "
        "`sparring runs stop RUN` ends it with a checkpoint. A shorter rollout.rollout_timeout prevents one episode "
        "from delaying a step.",
        confirm="New steps are reported at their usual pace.",
        step=observed.history.last_step,
    )


def _interrupted(observed: Observed, progress: Progress) -> Finding:
    return Finding(
        rule="system.stalled",
        severity=Severity.ERROR,
        symptom=f"the process of the run ended unexpectedly after step {observed.history.last_step}.",
        evidence={"status": progress.status, "seconds": round(progress.seconds_since_last, 1)},
        change="Continue it from its newest checkpoint: `sparring train --resume RUN`.",
        confirm="`sparring runs show RUN` shows `running`, and new steps are reported.",
        step=observed.history.last_step,
    )


def failures(observed: Observed) -> Iterable[Finding]:
    """Report that more than 1 % of the last attempts to run an episode were lost to infrastructure failures.

    The environment, an agent or an endpoint failed or exceeded its time limit. The finding is an error from 20 % on.
    Lost attempts are not part of any mean, so no other metric shows them.
    """
    lost = _lost_attempts(observed)
    failed = sum(lost.by_reason.values())
    if lost.total < FEWEST_ATTEMPTS or failed / lost.total <= MOST_FAILED:
        return
    worst = max(lost.by_reason, key=lambda reason: lost.by_reason[reason])
    change, settings = _for_lost_attempts(observed.config, worst)
    yield Finding(
        rule="environment.failures",
        severity=Severity.ERROR if failed / lost.total >= BROKEN else Severity.WARNING,
        symptom=f"{failed / lost.total:.1%} of the last {lost.total:.0f} attempts at an episode were lost to "
        f"infrastructure, mostly as {worst}.",
        evidence={
            "steps": lost.steps,
            "attempts": lost.total,
            "failed": dict(lost.by_reason),
            "lost_episodes_a_step": round(observed.now("rollout/lost"), 2),
            "last": observed.attempts.detail,
        },
        change=change,
        confirm="Less than 1 % of the attempts fail (rollout/failed_attempts falls).",
        step=observed.history.last_step,
        settings=settings,
        confirm_after=LATE_STEPS,
    )


def _for_lost_attempts(config: Config, reason: str) -> tuple[str, Mapping[str, Json]]:
    """Return the change for attempts that are mostly lost for this reason."""
    if reason != DiscardReason.ENV_TIMEOUT:
        return (
            "Fix the environment: read the errors that it raised (they are in the ledger). `sparring check RECIPE --only "
            "environment` runs it without the model.",
            {},
        )
    timeout = config.rollout.rollout_timeout
    return (
        f"Give episodes more time than rollout.rollout_timeout = {timeout:g}, or find out what they wait for.",
        possible(config, {"rollout.rollout_timeout": 2 * timeout}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    """The attempts of some steps, and those among them that were lost to infrastructure failures."""

    steps: list[int]
    """The first and the last of the steps. Empty if no step counted its attempts."""
    total: float
    by_reason: Mapping[str, float]


def _lost_attempts(observed: Observed) -> _Lost:
    """Return the lost attempts of the last steps, and of as many earlier steps as needed for enough attempts to compute
    a share.

    If no step has counted its attempts, return all attempts in the ledger.
    """
    counted = [one for one in observed.trained if "rollout/failed_attempts" in one.metrics]
    if not counted:
        failed = observed.attempts.failed
        return _Lost(steps=[], total=float(observed.attempts.played + sum(failed.values())), by_reason=failed)
    num_steps = LATE_STEPS
    while num_steps < len(counted) and _sum(counted[-num_steps:], "rollout/attempts") < FEWEST_ATTEMPTS:
        num_steps += 1
    last = counted[-num_steps:]
    by_reason = {str(reason): _sum(last, f"rollout/discarded/{reason}") for reason in INFRASTRUCTURE}
    return _Lost(
        steps=[last[0].step, last[-1].step],
        total=_sum(last, "rollout/attempts"),
        by_reason={reason: count for reason, count in by_reason.items() if count},
    )


def _sum(records: Sequence[StepRecord], name: str) -> float:
    return sum(one.metrics.get(name, 0.0) for one in records)


def mismatch(observed: Observed) -> Iterable[Finding]:
    """Report that the sampler and the learner compute different log-probabilities with the same weights.

    Training then does not use the probabilities with which tokens were sampled. The rule applies only if no token is
    stale, because the log-probabilities of stale tokens are expected to differ.
    """
    if not observed.trained or observed.now("training/staleness_max") > 0 or observed.config.algorithm.num_passes > 1:
        return
    gap = observed.now("training/logprob_difference_mean")
    if gap <= _allowed_gap(observed):
        return
    change, settings = _for_mismatch(observed.config)
    yield Finding(
        rule="system.mismatch",
        severity=Severity.ERROR,
        symptom="the learner computes different log-probabilities for newly sampled tokens: the mean difference is "
        f"{gap:.2g}.",
        evidence={
            "logprob_difference_mean": gap,
            "logprob_difference_max": observed.now("training/logprob_difference_max"),
            "entropy": round(observed.now("training/entropy"), 4),
            "effective_sample_size": round(observed.now("training/effective_sample_size", 1.0), 4),
            "precision": observed.config.model.precision,
        },
        change=change,
        confirm="training/logprob_difference_mean falls below 1e-3 in the first step.",
        step=observed.history.last_step,
        settings=settings,
        confirm_after=1,
    )


def _allowed_gap(observed: Observed) -> float:
    """Return the largest mean difference of log-probabilities that the rounding of the precision explains."""
    if observed.config.model.precision == "fp32":
        return MISMATCH
    rounded = min(MOST_ROUNDED, ROUNDED_SHARE * observed.now("training/entropy", 1.0))
    return max(MISMATCH, rounded)


def _for_mismatch(config: Config) -> tuple[str, Mapping[str, Json]]:
    settings = possible(config, {"model.precision": "fp32"}) if config.model.precision != "fp32" else {}
    if settings:
        return "Compute in fp32.", settings
    return (
        "Find what differs between sampling and training: dropout, a layer that keeps "
        "state, a chat template that changes earlier messages. The built-in models agree to 1e-4.",
        {},
    )


def stale(observed: Observed) -> Iterable[Finding]:
    """Report tokens that are older than allowed (an error) or that are discarded because of their age. Also report
    tokens that have almost no weight because the policy has moved away from the one that sampled them."""
    rollout, staleness = observed.config.rollout, _measure_staleness(observed)
    if staleness.highest > rollout.max_steps_off_policy:
        yield _too_stale(observed, staleness)
        return
    if observed.now("training/staleness_max") < 1 or not staleness.is_costly:
        return
    bound = min(rollout.max_steps_off_policy // 2, FRESH)
    settings: dict[str, Json] = {"rollout.max_steps_off_policy": bound}
    if rollout.staleness_window > 1:
        settings["rollout.staleness_window"] = 1
    yield Finding(
        rule="system.stale",
        severity=Severity.WARNING,
        symptom=staleness.symptom,
        evidence=staleness.as_evidence(observed),
        change=f"Train on fresher tokens: lower max_steps_off_policy to {bound}.",
        confirm="training/effective_sample_size and training/correction/weight rise above 0.9.",
        step=observed.history.last_step,
        settings=possible(observed.config, settings),
        confirm_after=JUDGE_AFTER,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staleness:
    """The age of the tokens of the last steps, and how many tokens are lost because of it."""

    highest: float
    """The age of the oldest token, in steps."""
    effective: float
    """The effective sample size, as a share of the tokens."""
    left_out: float
    """The share of the weight of tokens that the correction for their age removes."""
    discarded: float
    """The share of episodes that were discarded."""

    @property
    def is_costly(self) -> bool:
        return self.effective < FEW_COUNT or self.left_out > LEFT_OUT or self.discarded > MANY_DISCARDED

    @property
    def symptom(self) -> str:
        if self.discarded > MANY_DISCARDED:
            return f"{self.discarded:.0%} of the episodes were discarded because of their age."
        counts = min(self.effective, 1 - self.left_out)
        return f"only {counts:.0%} of the tokens of a step count: " + (
            "the policy has moved away from the one that sampled them."
            if self.effective < 1 - self.left_out
            else f"the correction removes {self.left_out:.0%} of their weight, because the policy has moved out of its bounds."
        )

    def as_evidence(self, observed: Observed) -> dict[str, Json]:
        return {
            "max_steps_off_policy": observed.config.rollout.max_steps_off_policy,
            "staleness_max": self.highest,
            "effective_sample_size": round(self.effective, 4),
            "left_out_by_the_correction": round(self.left_out, 4),
            "changed_by_the_correction": round(observed.now("training/correction/changed_fraction"), 4),
            "off_policy_correction": observed.config.off_policy_correction,
            "discarded": round(self.discarded, 4),
        }


def _measure_staleness(observed: Observed) -> _Staleness:
    attempts, weights = observed.attempts, observed.series("training/correction/weight")[-RECENT_STEPS:]
    return _Staleness(
        highest=max(observed.series("training/staleness_max")[-LATE_STEPS:], default=0.0),
        effective=observed.now("training/effective_sample_size", 1.0),
        left_out=max(0.0, 1 - fmean(weights)) if weights else 0.0,
        discarded=attempts.stale / max(1, attempts.stale + attempts.played),
    )


def _too_stale(observed: Observed, staleness: _Staleness) -> Finding:
    return Finding(
        rule="system.stale",
        severity=Severity.ERROR,
        symptom=f"tokens that are {staleness.highest:.0f} steps old were trained, but rollout.max_steps_off_policy is "
        f"{observed.config.rollout.max_steps_off_policy}.",
        evidence=staleness.as_evidence(observed),
        change="Stop the run: the bound is exceeded, which is an error in the program; please report it.",
        confirm="training/staleness_max stays within the bound.",
        step=observed.history.last_step,
    )


def filtered(observed: Observed) -> Iterable[Finding]:
    """Report that nearly all episodes are filtered out while tasks are far from solved.

    Either steps have no signal or no turn that may be trained, or all replacement groups are used up."""
    if observed.is_solved or len(observed.trained) < LATE_STEPS:
        return
    without = observed.now("training/steps_without_signal")
    refill = observed.config.batch.refill_groups
    used_up = refill > 0 and observed.now("rollout/replaced_groups") >= 0.9 * refill
    valid = observed.now("analysis/batch_valid_ratio", 1.0)
    if without >= 0.5 and valid >= 0.5:
        yield _untrained(observed, without, valid)
        return
    if without < 0.5 and not (used_up and valid < 0.5):
        return
    yield _without_signal(observed, without, valid)


def _without_signal(observed: Observed, without: float, valid: float) -> Finding:
    right = _paid_share(observed)
    change, settings = _for_silent_groups(observed, right)
    return Finding(
        rule="system.filtered",
        severity=Severity.WARNING,
        symptom=f"{without:.0%} of the last steps changed nothing, because no group had a signal."
        if without >= 0.5
        else f"all {observed.config.batch.refill_groups} replacements of a step are used up, "
        "and most groups still have no signal.",
        evidence={
            "steps": observed.late_steps,
            "steps_without_signal": round(without, 4),
            "replaced_groups": round(observed.now("rollout/replaced_groups"), 2),
            "groups_with_signal": round(valid, 4),
            "success": round(right, 4),
        },
        change=change,
        confirm="training/steps_without_signal stays at 0.",
        step=observed.history.last_step,
        settings=settings,
        confirm_after=JUDGE_AFTER,
    )


def _paid_share(observed: Observed) -> float:
    """Return the share of the late episodes whose reward reaches the threshold of success."""
    threshold = observed.history.success_threshold
    return fmean(one.digest.reward >= threshold for one in observed.late) if observed.late else 0.0


def _for_silent_groups(observed: Observed, right: float) -> tuple[str, Mapping[str, Json]]:
    """Return the change for groups without a signal. `right` is the share of paid episodes."""
    config = observed.config
    settings, change = warmer(observed), "Sample at temperature 1: the episodes of a group are identical word for word."
    if not settings and not observed.silent_groups_agree:
        settings = possible(config, {"algorithm.advantage_method": "group_based"})
        change = (
            f"The episodes of a group earn different rewards, but {config.algorithm.advantage_method} "
            "computes no advantage from them: use another advantage method."
        )
    elif not settings and 0 < right < 1:
        settings = possible(config, {"batch.group_size": 2 * config.batch.group_size})
        change = "Use larger groups: some episodes do succeed."
    if not settings:
        change = "Use easier tasks, or pay for parts of an answer."
    return change, settings


def _untrained(observed: Observed, without: float, valid: float) -> Finding:
    untrained, overruled = (observed.now(f"rollout/{kind}_turns") for kind in ("untrained", "overruled"))
    change = (
        "Teach the answer format that the requests require: demonstrate it in a warm start and describe it in the "
        "prompt. Or do not require a format."
        if overruled > untrained / 2
        else "Configure the agent to request turns that can be trained: temperature above 0, and top_p = 1."
    )
    return Finding(
        rule="system.filtered",
        severity=Severity.WARNING,
        symptom=f"{without:.0%} of the last steps changed nothing: groups had a signal, but none of their turns may "
        "be trained.",
        evidence={
            "steps": observed.late_steps,
            "steps_without_signal": round(without, 4),
            "groups_with_signal": round(valid, 4),
            "untrained_turns": round(untrained, 4),
            "overruled_turns": round(overruled, 4),
        },
        change=change,
        confirm="rollout/untrained_turns falls, and training/steps_without_signal stays at 0.",
        step=observed.history.last_step,
        confirm_after=JUDGE_AFTER,
    )


def memory(observed: Observed) -> Iterable[Finding]:
    """Report that memory grows from step to step without a limit: it grew in four of five steps, and by 30 % since the
    first third of the steps."""
    for name in MEMORY:
        values = observed.series(name)
        growth = thirds(values)
        if len(values) < FEWEST_STEPS or growth is None or not growth.exceeds(3.0):
            continue
        count = len(values) // 3
        first, now = fmean(values[:count]), fmean(values[-count:])
        rises = fmean(after > before for before, after in zip(values[count:-1], values[count + 1 :], strict=True))
        if now < GROWN * first or rises < 0.8:
            continue
        yield Finding(
            rule="system.memory",
            severity=Severity.WARNING,
            symptom=f"{name} grows with every step: {first / 2**20:.0f} MiB at first, {now / 2**20:.0f} MiB now.",
            evidence={
                "metric": name,
                "at_first": first,
                "now": now,
                "bytes_a_step": round(growth.value / (len(values) - count)),
                "last_values": [round(value / 2**20, 1) for value in values[-5:]],
            },
            change="Search the environment, reward or agent for something that keeps growing: a list at module "
            "level, a cache without a bound, a file or connection that `close` does not close.",
            confirm=f"{name} stays level over {JUDGE_AFTER} steps.",
            step=observed.history.last_step,
            confirm_after=JUDGE_AFTER,
        )
        return
