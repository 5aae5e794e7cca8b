"""Rollouts of episodes. The curriculum selects tasks, the collector rolls out their episodes, and the scheduler limits
the staleness of groups."""

from sparring.rollouts.collector import Collector
from sparring.rollouts.curriculum import Curriculum, TaskKinds, TaskSelection
from sparring.rollouts.plan import (
    Agent,
    EpisodeAgent,
    Grading,
    GroupPlan,
    MainPolicy,
    NamedPolicy,
    RolloutLimits,
)
from sparring.rollouts.scheduler import Pacing, Scheduler

__all__ = [
    "Agent",
    "Collector",
    "Curriculum",
    "EpisodeAgent",
    "Grading",
    "GroupPlan",
    "MainPolicy",
    "NamedPolicy",
    "Pacing",
    "RolloutLimits",
    "Scheduler",
    "TaskKinds",
    "TaskSelection",
]
