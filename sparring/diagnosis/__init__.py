"""Rules that find why a run does not improve, and what to change first.

`sparring.diagnosis.diagnose` applies the rules; `sparring.diagnosis.reading` reads a run for them.
"""

from sparring.diagnosis import (
    clients,
    episodes,
    formats,
    histories,
    lineage,
    optimizer,
    rewards,
    sampling,
    stall,
    system,
    unexplained,
    waiting,
)
from sparring.diagnosis.observed import Symptom
from sparring.findings import rules_by_name

SYMPTOMS: dict[str, Symptom] = rules_by_name(
    Symptom("system.stalled", system.stalled),
    Symptom("environment.failures", system.failures),
    Symptom("system.mismatch", system.mismatch),
    Symptom("system.stale", system.stale),
    Symptom("system.filtered", system.filtered),
    Symptom("system.stragglers", waiting.stragglers),
    Symptom("system.starved", waiting.starved),
    Symptom("system.window", waiting.window),
    Symptom("system.memory", system.memory),
    Symptom("histories.changed", histories.changed),
    Symptom("clients.refused", clients.refused),
    Symptom("optimizer.updates_too_large", optimizer.updates_too_large),
    Symptom("stall.nothing_moves", optimizer.nothing_moves),
    Symptom("reward.constant", rewards.constant),
    Symptom("reward.disagrees", rewards.disagrees),
    Symptom("tasks.labels", rewards.labels),
    Symptom("batch.too_small", sampling.too_small),
    Symptom("sampling.temperature", sampling.temperature),
    Symptom("format.template", formats.template),
    Symptom("tools.failing", episodes.failing_tools),
    Symptom("episodes.looping", episodes.looping),
    Symptom("budgets.turn_tokens_in_training", episodes.cut_turns),
    Symptom("budgets.turns_in_training", episodes.out_of_turns),
    Symptom("budgets.context_in_training", episodes.out_of_context),
    Symptom("evaluation.all_zero", episodes.all_zero),
    Symptom("evaluation.uneven_turns", episodes.uneven_turns),
    Symptom("evaluation.confidently_wrong", episodes.confidently_wrong),
    Symptom("evaluation.completion", episodes.completion),
    Symptom("difficulty.calibration", episodes.calibration),
    Symptom("stall.flat_from_start", stall.flat_from_start),
    Symptom("stall.groups_agree", stall.groups_agree),
    Symptom("stall.validation_flat", stall.validation_flat),
    Symptom("stall.collapse", stall.collapse),
    Symptom("signal.valid_below_mean", stall.valid_below_mean),
    Symptom("tasks.surer_not_right", unexplained.surer_not_right),
    Symptom("stall.capacity", unexplained.capacity),
    Symptom("stall.no_progress", unexplained.no_progress),
    Symptom("change.judged", lineage.evaluate_change),
)
"""The rules by name, in the order in which they run and are documented. The last four read the findings of the
others."""

__all__ = ["SYMPTOMS", "Symptom"]
