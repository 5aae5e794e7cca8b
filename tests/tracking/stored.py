"""Runs that are written step by step, for the services that read them."""

import json
from dataclasses import replace
from pathlib import Path

from sparring.tracking.local import LocalTracker
from sparring.types import TrajectoryGroup
from tests.tracking.test_spans import PLAYED


def started_run(path: Path, *, status: str = "completed") -> Path:
    path.mkdir()
    content = {"created": 1000.0, "config": {"run": {"seed": 3}, "tracking": {"mlflow_uri": None}}}
    (path / "manifest.json").write_text(json.dumps(content))
    (path / "status.json").write_text(json.dumps({"status": status}))
    return path


def log_step(tracker: LocalTracker, step: int, *, episodes: int = 2) -> None:
    tracker.log_metrics(step, {"rollout/reward/mean": step / 2, "kl": float("nan"), "tool called @x": 1.0})
    played = tuple(replace(PLAYED, id=f"train/{step}/t1/{member}.0", attempt=member) for member in range(episodes))
    tracker.log_groups(step, [TrajectoryGroup(task=PLAYED.task, trajectories=played)], split="train")


def log_finding(tracker: LocalTracker, step: int, *, severity: str = "error") -> None:
    tracker.log_finding({"rule": "a.b", "severity": severity, "symptom": "Bad.", "change": "Fix it.", "step": step})
