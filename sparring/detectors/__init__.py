"""Reward hacking, told while it happens: rules over what a run has done up to a step."""

# Importing a family registers its rules; this is the order in which they speak and are documented.
from sparring.detectors import rewards, mechanism, behavior, drift, exploits, budgets  # noqa: F401, I001
from sparring.detectors.exploits import user_scanner
from sparring.detectors.registry import DETECTORS, Detector, detector
from sparring.detectors.watch import Watch, watched

__all__ = ["DETECTORS", "Detector", "Watch", "detector", "user_scanner", "watched"]
