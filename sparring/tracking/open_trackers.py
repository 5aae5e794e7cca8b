"""The trackers that a recipe asks for, as one."""

from __future__ import annotations

import importlib.util

from sparring.config import Config
from sparring.errors import ServiceError
from sparring.protocols import Tracker
from sparring.tracking.console import Console
from sparring.tracking.fan_out import FanOut
from sparring.tracking.local import LocalTracker
from sparring.tracking.mlflow_tracker import MlflowTracker
from sparring.tracking.run_folder import RunFolder


def open_trackers(config: Config, folder: RunFolder, console: Console) -> Tracker:
    """The run's files, the console and, if the recipe says so, MLflow. Raises ServiceError when MLflow is missing."""
    trackers: list[Tracker] = [LocalTracker(folder.path), console]
    if config.tracking.mlflow:
        # Looked for and not imported: only the process that tells it loads it, which takes seconds.
        if importlib.util.find_spec("mlflow") is None:
            raise ServiceError(
                "tracking.mlflow = true, but MLflow is not installed; install it with `pip install 'sparring[mlflow]'`, or set "
                "tracking.mlflow=false."
            )
        trackers.append(MlflowTracker.open(config, folder))
    return FanOut(trackers)
