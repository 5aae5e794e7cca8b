"""Environments, rewards and scorers in separate processes, on this machine or on others. These processes
may hang or die without affecting the run."""

from sparring.workers.code import Code
from sparring.workers.listener import Listening
from sparring.workers.pool import WorkerPool, use_separate_workers
from sparring.workers.remote import grade_in_workers, run_in_workers

__all__ = ["Code", "Listening", "WorkerPool", "grade_in_workers", "run_in_workers", "use_separate_workers"]
