"""Play: the curriculum says what, the collector plays it, the scheduler keeps groups in play within the staleness bound."""

from sparring.rollouts.collector import Agent, Collector, GroupPlan, NamedPolicy
from sparring.rollouts.curriculum import Curriculum
from sparring.rollouts.scheduler import Scheduler

__all__ = ["Agent", "Collector", "Curriculum", "GroupPlan", "NamedPolicy", "Scheduler"]
