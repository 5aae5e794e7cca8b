"""The trackers that a recipe asks for, as one."""

from __future__ import annotations

import importlib

from sparring.config import Config
from sparring.errors import ServiceError
from sparring.protocols import Tracker
from sparring.tracking.console import Console
from sparring.tracking.fan_out import FanOut
from sparring.tracking.local import LocalTracker
from sparring.tracking.run_folder import RunFolder


def open_trackers(config: Config, folder: RunFolder, console: Console) -> Tracker:
    """The run's files, the console and, if the recipe says so, MLflow. Raises ServiceError when MLflow is missing."""
    trackers: list[Tracker] = [LocalTracker(folder.path), console]
    if config.tracking.mlflow:
        try:
            # Imported only when asked for: it is an optional dependency that takes a second to load.
            door = importlib.import_module("sparring.tracking.mlflow_tracker")
        except ImportError as error:
            raise ServiceError(
                f"tracking.mlflow = true, but MLflow cannot be imported ({error}); "
                "install it with `pip install 'sparring[mlflow]'`, or set tracking.mlflow=false."
            ) from error
        trackers.append(door.MlflowTracker.open(config, folder.path))
    return FanOut(trackers)
