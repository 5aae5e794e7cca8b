"""What is wrong with a recipe, its environment, data, reward and budgets, found before anything is trained."""

from sparring.checks import data, environment, ground_truth, policies, prompt, reward  # noqa: F401 - register their rules
from sparring.checks.registry import CHECKS, Check, check

__all__ = ["CHECKS", "Check", "check"]
