"""What is wrong with a recipe, its environment, data, reward and budgets, found before anything is trained."""

# Importing a family registers its rules.
from sparring.checks import data, environment, ground_truth, policies, prompt, reward, tools  # noqa: F401
from sparring.checks.registry import CHECKS, Check, check

__all__ = ["CHECKS", "Check", "check"]
