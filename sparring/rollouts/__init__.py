"""Rollouts of episodes. The curriculum selects tasks, the collector runs their episodes, and the scheduler limits how
stale a group can be."""

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
