"""`sparring runs`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sparring.cli.command import Json, Overrides, Prices, Run, print_json, reported, run_path, runs_app, say
from sparring.errors import DataError, ServiceError, UsageError
from sparring.metering import read_usage
from sparring.prices import read_prices
from sparring.tracking import Console, RunFolder, list_runs
from sparring.tracking.mlflow_tracker import MlflowTracker
from sparring.tracking.open_trackers import require_mlflow
from sparring.training.checkpoint_files import best, numbered

RunsDir = Annotated[Path, typer.Option(help="The folder that holds the runs.")]


@runs_app.command("list")
@reported
def runs_list(runs_dir: RunsDir = Path("runs"), as_json: Json = False) -> None:
    """All runs, oldest first."""
    if runs_dir.exists() and not runs_dir.is_dir():
        raise UsageError(f"--runs-dir {runs_dir} is not a folder; name the folder that holds the runs.")
    runs = [(folder.path.name, _status_or_damage(folder)) for folder in list_runs(runs_dir)]
    if as_json:
        print_json([{"name": name, **status} for name, status in runs])
        return
    if not runs:
        say(f"no runs in {runs_dir} yet; `sparring train RECIPE` makes one")
        return
    rows = [[name, status.get("status"), status.get("step", 0), status.get("reason") or ""] for name, status in runs]
    Console().table(f"runs in {runs_dir}", ["run", "status", "step", "reason"], rows)


@runs_app.command("show")
@reported
def runs_show(run: Run, price: Prices = None, as_json: Json = False) -> None:
    """One run: how it stands, its latest numbers, its checkpoints, its held-out evaluations, what endpoints were asked."""
    folder = RunFolder(run_path(run))
    status, latest = folder.status(), _latest_metrics(folder.path / "metrics.jsonl")
    kept = _checkpoints(folder)
    evaluations = sorted((folder.path / "evaluations").glob("held_out-*.json"))
    endpoints = read_usage(folder.path)
    prices = (read_prices(price or ()) or folder.config().tracking.prices) if endpoints else {}
    if as_json:
        shown = {
            "path": str(folder.path),
            "status": status,
            "metrics": latest,
            "checkpoints": kept,
            "evaluations": [str(e) for e in evaluations],
            "endpoints": [one.as_json(prices) for one in endpoints],
        }
        print_json(shown)
        return
    say(f"{folder.path}: {status.get('status')}, step {status.get('step', 0)}")
    if status.get("reason"):
        say(f"reason: {status['reason']}")
    if latest:
        Console().table("latest metrics", ["metric", "value"], sorted(latest.items()))
    if kept:
        rows = [[each["step"], each["score"], "best" if each["is_best"] else ""] for each in kept]
        Console().table("checkpoints", ["step", "validation score", ""], rows)
    for path in evaluations:
        say(f"evaluation: {path}")
    for endpoint in endpoints:
        say(f"endpoint {endpoint.summary(prices)}")


@runs_app.command("stop")
@reported
def runs_stop(run: Run, as_json: Json = False) -> None:
    """Ask a run to stop with a checkpoint."""
    folder = RunFolder(run_path(run))
    status = folder.status()
    if status.get("status") != "running":
        raise UsageError(f"{folder.path} is {status.get('status')}, not running, so there is nothing to stop.")
    was_told = folder.request_stop()
    if as_json:
        print_json({"path": str(folder.path), "told": was_told})
    else:
        say(f"{folder.path} was asked to stop; `sparring runs show {folder.path}` says when it has")


@runs_app.command("sync")
@reported
def runs_sync(
    run: Run,
    overrides: Overrides = None,
    seconds: Annotated[float, typer.Option(help="How long to try.", min=0)] = 600.0,
    as_json: Json = False,
) -> None:
    """Tell MLflow what it has not been told of a run: after an outage, or of a run that was trained without it
    (`tracking.mlflow=true tracking.mlflow_uri=ADDRESS`)."""
    folder = RunFolder(run_path(run))
    config = folder.config(overrides or ())
    if not config.tracking.mlflow:
        raise UsageError(
            f"{folder.path} was trained without MLflow; add tracking.mlflow=true, and tracking.mlflow_uri."
        )
    if folder.status().get("status") == "running":
        raise UsageError(f"{folder.path} is running, and MLflow is told of it meanwhile; wait until it has ended.")
    require_mlflow()
    all_told = MlflowTracker.open(config, folder).finish(seconds)
    if not all_told:
        raise ServiceError(
            "MLflow could not be told everything; the warnings above say why. Call this again when it can."
        )
    if as_json:
        print_json({"path": str(folder.path), "all_told": all_told})
    else:
        say(f"MLflow has been told all of {folder.path}")


def _checkpoints(folder: RunFolder) -> list[dict[str, Any]]:
    """Of the steps, newest first, each with the score of its validation where it has one."""
    scores = folder.validation_scores()
    pinned = best(folder.checkpoints, scores)
    return [
        {"step": int(path.name), "score": scores.get(int(path.name)), "is_best": path == pinned}
        for path in numbered(folder.checkpoints)
    ]


def _status_or_damage(folder: RunFolder) -> Mapping[str, Any]:
    """How a run stands, for a list that one bad run must not hide the others from."""
    try:
        return folder.status()
    except (DataError, OSError) as error:
        return {"status": "damaged", "reason": str(error)}


def _latest_metrics(path: Path) -> Mapping[str, float]:
    """The newest value of each metric. A torn last line, of a run being written, is passed over."""
    latest: dict[str, float] = {}
    # As bytes, so that a line that is no UTF-8 is one damaged line.
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            latest |= json.loads(line)["metrics"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}, line {number}: {error!r}; the line is damaged, remove it.") from error
    return latest
