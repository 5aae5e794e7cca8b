"""Rewards: the training signal."""

from sparring.rewards.rules import evaluate_reward, json_fields, to_reward

__all__ = ["evaluate_reward", "json_fields", "to_reward"]
