"""Datasets: reading files into tasks, and dividing tasks into splits."""

from sparring.data.files import read_tasks
from sparring.data.splits import split_apart, split_tasks

__all__ = ["read_tasks", "split_apart", "split_tasks"]
