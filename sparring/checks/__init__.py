"""What is wrong with a recipe, its environment, data, reward and budgets, found before anything is trained."""

# Importing a family registers its rules; this is the order in which they run and are documented.
from sparring.checks import environment, elsewhere, leaks, side_effects, repairs, tools  # noqa: F401, I001
from sparring.checks import agreement, lookups, paging, ends, ties, offers, claims, computed, described, texts  # noqa: F401
from sparring.checks import effects, identifiers, access, held_out, amounts, production, files, data  # noqa: F401
from sparring.checks import ground_truth, labels, reachable, corrections  # noqa: F401
from sparring.checks import prompt, forms, policies, reward, length  # noqa: F401
from sparring.checks.source import rules  # noqa: F401
from sparring.checks import budgets, chains, model_judges, foothold, weights  # noqa: F401
from sparring.checks.registry import CHECKS, Check, check

__all__ = ["CHECKS", "Check", "check"]
