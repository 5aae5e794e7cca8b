"""Trackers, which receive metrics and trajectories: files, the console and, if requested, MLflow, TensorBoard, Weights &
Biases, Prometheus or a webhook."""

from sparring.tracking.console import Console
from sparring.tracking.fan_out import FanOut
from sparring.tracking.local import LocalTracker
from sparring.tracking.memory import MemoryTracker
from sparring.tracking.open_trackers import open_trackers

__all__ = ["Console", "FanOut", "LocalTracker", "MemoryTracker", "open_trackers"]
