"""Environments, rewards and scorers in processes of their own, which may hang or die without taking the run along."""

from sparring.workers.pool import Code, WorkerPool, in_worker_of_its_own
from sparring.workers.remote import in_workers, judged_in

__all__ = ["Code", "WorkerPool", "in_worker_of_its_own", "in_workers", "judged_in"]
