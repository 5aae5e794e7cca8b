"""One domain, with an example that agrees with the ground truth."""

from __future__ import annotations

from environment import Setting

from sparring.environments.suites.sop.referral_abuse import Desk, reward, scorer

SETTING = Setting(domains=("referral_abuse",), example="aligned")
train_tasks, validation_tasks, held_out_tasks = SETTING.train_tasks, SETTING.validation_tasks, SETTING.held_out_tasks

__all__ = ["Desk", "held_out_tasks", "reward", "scorer", "train_tasks", "validation_tasks"]
