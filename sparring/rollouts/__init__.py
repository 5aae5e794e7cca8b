"""Play: the collector plays one episode or one group, the scheduler keeps groups in play within the staleness bound."""

from sparring.rollouts.collector import Agent, Collector, GroupPlan
from sparring.rollouts.scheduler import Scheduler

__all__ = ["Agent", "Collector", "GroupPlan", "Scheduler"]
