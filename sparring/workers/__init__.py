"""Environments, rewards and scorers in separate processes. These processes may hang or die without affecting the
run."""

from sparring.workers.pool import Code, WorkerPool, use_separate_workers
from sparring.workers.remote import grade_in_workers, run_in_workers

__all__ = ["Code", "WorkerPool", "grade_in_workers", "run_in_workers", "use_separate_workers"]
