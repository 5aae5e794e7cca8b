"""What is wrong with a recipe, its environment, data, reward and budgets, found before anything is trained."""

# Importing a family registers its rules.
from sparring.checks import (  # noqa: F401
    budgets,
    data,
    environment,
    ground_truth,
    policies,
    production,
    prompt,
    reward,
    tools,
)
from sparring.checks.registry import CHECKS, Check, check

__all__ = ["CHECKS", "Check", "check"]
