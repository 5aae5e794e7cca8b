"""What is wrong with a recipe, its environment, data, reward and budgets, found before anything is trained."""

from sparring.checks import environment, tools, production, budgets, foothold, weights  # noqa: F401, I001 - in this order
from sparring.checks.registry import CHECKS, Check, check

__all__ = ["CHECKS", "Check", "check"]
