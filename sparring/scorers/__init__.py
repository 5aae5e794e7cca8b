"""Scorers: the judgement, apart from the training signal."""

from sparring.scorers.strict import evaluate_score, json_exact

__all__ = ["evaluate_score", "json_exact"]
