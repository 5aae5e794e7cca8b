"""Scorers, which measure success separately from the training signal."""

from sparring.scorers.conduct import by_behavior
from sparring.scorers.score import evaluate_score
from sparring.scorers.sql_result import sql_result
from sparring.scorers.state_difference import state_difference
from sparring.scorers.strict import exact_match, json_exact, numeric_match, set_match
from sparring.scorers.unit_tests import fenced_code, submitted, unit_tests

__all__ = [
    "by_behavior",
    "evaluate_score",
    "exact_match",
    "fenced_code",
    "json_exact",
    "numeric_match",
    "set_match",
    "sql_result",
    "state_difference",
    "submitted",
    "unit_tests",
]
