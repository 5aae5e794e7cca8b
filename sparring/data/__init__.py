"""Datasets: reading files and data sets of the hub into tasks, and dividing tasks into splits."""

from sparring.data.files import read_tasks
from sparring.data.hub import SCHEME, parse_address, pin_address, read_hub_tasks
from sparring.data.splits import split_apart, split_tasks

__all__ = [
    "SCHEME",
    "parse_address",
    "pin_address",
    "read_hub_tasks",
    "read_tasks",
    "split_apart",
    "split_tasks",
]
