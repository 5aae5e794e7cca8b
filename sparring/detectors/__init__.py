"""Detectors of reward hacking: rules that examine the steps so far of a run, while it trains.

`sparring.detectors.runner` runs the detectors during training or over a stored run.
"""

from sparring.detectors import behavior, budgets, drift, exploits, mechanism, rewards
from sparring.detectors.detector import Detector
from sparring.findings import rules_by_name

DETECTORS: dict[str, Detector] = rules_by_name(
    Detector("reward.rises_alone", rewards.rises_alone),
    Detector("reward.paid_for_wrong", rewards.paid_for_wrong),
    Detector("reward.component_takes_over", rewards.component_takes_over),
    Detector("evaluation.below_training", rewards.below_training),
    Detector("reward.mechanism", mechanism.what_is_paid),
    Detector("reward.pays_for_habit", behavior.pays_for_habit),
    Detector("answers.copied_from_example", drift.copied_from_example),
    Detector("answers.same_for_all_tasks", drift.same_for_all_tasks),
    Detector("answers.length_drift", drift.length_drift),
    Detector("tools.format_drift", drift.format_drift),
    Detector("exploits.known", exploits.known_exploits),
    Detector("judge.master_key", exploits.master_keys),
    Detector("budgets.turns_cut", budgets.turns_cut),
)
"""The detectors by name, in the order in which they run and are documented."""

__all__ = ["DETECTORS", "Detector"]
