"""Rewards: the training signal."""

from sparring.rewards.composition import Component, example, hierarchical, outcome_with_shaping, with_potential
from sparring.rewards.control import random_reward
from sparring.rewards.judge import (
    MASTER_KEYS,
    Calibrated,
    Calibration,
    Judge,
    JudgeLimits,
    calibrate,
    question_and_answer,
)
from sparring.rewards.orderings import ordered
from sparring.rewards.rules import evaluate_reward, json_fields, per_user_turn, to_reward

__all__ = [
    "MASTER_KEYS",
    "Calibrated",
    "Calibration",
    "Component",
    "Judge",
    "JudgeLimits",
    "calibrate",
    "evaluate_reward",
    "example",
    "hierarchical",
    "json_fields",
    "ordered",
    "outcome_with_shaping",
    "per_user_turn",
    "question_and_answer",
    "random_reward",
    "to_reward",
    "with_potential",
]
