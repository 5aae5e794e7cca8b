"""Run folders, and where numbers and trajectories go: files always, the console, MLflow if wanted."""

from sparring.tracking.console import Console
from sparring.tracking.fan_out import FanOut
from sparring.tracking.local import LocalTracker
from sparring.tracking.memory import MemoryTracker
from sparring.tracking.open_trackers import open_trackers
from sparring.tracking.run_folder import RunFolder, list_runs

__all__ = ["Console", "FanOut", "LocalTracker", "MemoryTracker", "RunFolder", "list_runs", "open_trackers"]
