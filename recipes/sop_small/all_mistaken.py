"""All domains of the recipe in turn, with a mistaken example, and a reward whose parser follows this example."""

from __future__ import annotations

from environment import SHOWN, Setting
from environment import mistaken_reward as reward

from sparring.environments.suites.sop.mixed import Desk, scorer

SETTING = Setting(domains=tuple(SHOWN), example="mistaken")
train_tasks, validation_tasks, held_out_tasks = SETTING.train_tasks, SETTING.validation_tasks, SETTING.held_out_tasks

__all__ = ["Desk", "held_out_tasks", "reward", "scorer", "train_tasks", "validation_tasks"]
