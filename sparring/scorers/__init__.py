"""Scorers: the judgement, apart from the training signal."""

from sparring.scorers.score import evaluate_score
from sparring.scorers.sql_result import sql_result
from sparring.scorers.strict import json_exact
from sparring.scorers.unit_tests import fenced_code, submitted, unit_tests

__all__ = ["evaluate_score", "fenced_code", "json_exact", "sql_result", "submitted", "unit_tests"]
