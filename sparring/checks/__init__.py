"""What is wrong with a recipe, its environment, data, reward and budgets, found before anything is trained."""

from sparring.checks import budgets, environment, production, tools  # noqa: F401 - registers its rules
from sparring.checks.registry import CHECKS, Check, check

__all__ = ["CHECKS", "Check", "check"]
