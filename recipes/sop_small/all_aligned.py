"""All domains of the recipe in turn, with examples that agree with the ground truth."""

from __future__ import annotations

from environment import SHOWN, Setting

from sparring.environments.suites.sop.mixed import Desk, reward, scorer

SETTING = Setting(domains=tuple(SHOWN), example="aligned")
train_tasks, validation_tasks, held_out_tasks = SETTING.train_tasks, SETTING.validation_tasks, SETTING.held_out_tasks

__all__ = ["Desk", "held_out_tasks", "reward", "scorer", "train_tasks", "validation_tasks"]
