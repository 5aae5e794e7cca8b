"""`sparring runs`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sparring.cli.command import (
    Json,
    Overrides,
    Prices,
    Run,
    note,
    print_json,
    report_failures,
    resolve_run,
    runs_app,
    say,
)
from sparring.errors import DataError, ServiceError, UsageError
from sparring.metering.prices import read_prices
from sparring.metering.usage import read_usage
from sparring.run_folders import RunFolder, list_runs
from sparring.run_folders.lineage import find_parent, read_ids
from sparring.runtime.json_values import parse_json
from sparring.tracking import Console
from sparring.tracking.exporter import Exporter
from sparring.tracking.open_trackers import require_libraries
from sparring.tracking.services import requested_services
from sparring.training.checkpoint_files import find_best, list_numbered
from sparring.training.retention import describe_removed

RunsDir = Annotated[Path, typer.Option(help="The folder of the runs.")]


@runs_app.command("list")
@report_failures
def runs_list(runs_dir: RunsDir = Path("runs"), as_json: Json = False) -> None:
    """List all runs, oldest first."""
    if runs_dir.exists() and not runs_dir.is_dir():
        raise UsageError(f"--runs-dir {runs_dir} is not a folder; specify the folder of the runs.")
    folders = list_runs(runs_dir)
    statuses = {folder.path.name: _status_or_damage(folder) for folder in folders}
    origins = {folder.path.name: _origin_or_none(folder) for folder in folders}
    ids = read_ids(folders)
    parents = {name: _parent_name(origin, ids) for name, origin in origins.items()}
    if as_json:
        listed = [(folder.path.name, ids[folder.path.resolve()]) for folder in folders]
        print_json(
            [
                {"name": name, "id": run_id, **statuses[name], "parent": parents[name], "origin": origins[name]}
                for name, run_id in listed
            ]
        )
        return
    if not statuses:
        say(f"no runs in {runs_dir} yet; `sparring train RECIPE` creates one")
        return
    rows = [
        [
            f"{'  ' * max(0, depth - 1)}{'└ ' if depth else ''}{name}",
            statuses[name].get("status") or "unknown",
            statuses[name].get("step", 0),
            _came_from(origins[name], parents[name]),
            statuses[name].get("reason") or "",
        ]
        for name, depth in _as_tree(parents)
    ]
    Console().table(f"runs in {runs_dir}", ["run", "status", "step", "from", "reason"], rows)


MAIN_METRICS = (
    "rollout/reward/mean",
    "rollout/score/mean",
    "val/reward/mean",
    "val/score/mean",
    "rollout/turns/mean",
    "rollout/lost",
    "analysis/batch_valid_ratio",
    "training/loss",
    "training/kl_k3",
    "training/grad_norm",
    "training/learning_rate",
    "timing_s/step",
)
"""The metrics that `runs show` shows without `--all`."""


@runs_app.command("show")
@report_failures
def runs_show(
    run: Run,
    price: Prices = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every metric, not only the main ones.")] = False,
    as_json: Json = False,
) -> None:
    """Show a run: status, latest metrics, checkpoints, held-out evaluations and requests to endpoints."""
    folder = RunFolder(resolve_run(run))
    folder.manifest()  # refuses the run of a newer version
    status, latest = folder.status(), _latest_metrics(folder.path / "metrics.jsonl")
    kept = _checkpoints(folder)
    evaluations = sorted((folder.path / "evaluations").glob("held_out-*.json"))
    endpoints = read_usage(folder.path)
    removed = describe_removed(folder.path)
    prices = (read_prices(price or ()) or folder.config().tracking.prices) if endpoints else {}
    if as_json:
        shown = {
            "path": str(folder.path),
            "status": status,
            "metrics": latest,
            "checkpoints": kept,
            "evaluations": [str(e) for e in evaluations],
            "endpoints": [one.as_json(prices) for one in endpoints],
            "removed": removed,
        }
        print_json(shown)
        return
    say(f"{folder.path}: {status.get('status')}, step {status.get('step', 0)}")
    if status.get("reason"):
        say(f"reason: {status['reason']}")
    if latest:
        _show_metrics(latest, show_all)
    if kept:
        rows = [
            [each["step"], "none" if each["score"] is None else each["score"], "best" if each["is_best"] else ""]
            for each in kept
        ]
        Console().table("checkpoints", ["step", "validation score", ""], rows)
    for path in evaluations:
        say(f"evaluation: {path}")
    for endpoint in endpoints:
        say(f"endpoint {endpoint.summary(prices)}")
    if removed:
        say(removed)


@runs_app.command("stop")
@report_failures
def runs_stop(run: Run, as_json: Json = False) -> None:
    """Save a checkpoint of a run and stop the run."""
    folder = RunFolder(resolve_run(run))
    status = folder.status()
    if status.get("status") != "running":
        raise UsageError(f"{folder.path} is {status.get('status')}, not running, so there is nothing to stop.")
    was_sent = folder.request_stop()
    if as_json:
        print_json({"path": str(folder.path), "told": was_sent})
    else:
        say(f"{folder.path} will stop; `sparring runs show {folder.path}` shows its status")


@runs_app.command("fetch")
@report_failures
def runs_fetch(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="The copy of a run: run.copy_to and the run's name.")
    ],
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Restore a run from its copy (`run.copy_to`), for example because its machine is lost."""
    from sparring.copies.fetch import fetch

    folder = fetch(address, runs_dir, say=note)
    if as_json:
        print_json({"path": str(folder.path), "step": folder.status().get("step", 0)})
    else:
        say(f"next: sparring train --resume {shlex.quote(str(folder.path))}")


@runs_app.command("copy")
@report_failures
def runs_copy(run: Run, overrides: Overrides = None, as_json: Json = False) -> None:
    """Copy a run that has ended to its store (`run.copy_to=ADDRESS`), for example after an outage."""
    folder = RunFolder(resolve_run(run))
    copy_to = folder.config(overrides or ()).run.copy_to
    if copy_to is None:
        raise UsageError(f"{folder.path} has no copy; add run.copy_to=ADDRESS.")
    from sparring.copies.copier import open_copier

    with folder.lock_for_training():
        is_complete = open_copier(folder, copy_to, is_resumed=True, say=note).close()
    if not is_complete:
        raise ServiceError(
            f"{copy_to} is not complete; the warnings above give the reason. Run this command again later."
        )
    if as_json:
        print_json({"path": str(folder.path), "copy": f"{copy_to.rstrip('/')}/{folder.path.name}"})
    else:
        say(f"{copy_to.rstrip('/')}/{folder.path.name} contains all of {folder.path}")


@runs_app.command("sync")
@report_failures
def runs_sync(
    run: Run,
    overrides: Overrides = None,
    seconds: Annotated[float, typer.Option(help="Time limit in seconds.", min=0)] = 600.0,
    as_json: Json = False,
) -> None:
    """Send a run's missing data to MLflow, TensorBoard or Weights & Biases, after an outage or for a run that was
    executed without them (`tracking.mlflow=true tracking.mlflow_uri=ADDRESS`, `tracking.tensorboard=true`,
    `tracking.wandb=true`)."""
    folder = RunFolder(resolve_run(run))
    config = folder.config(overrides or ())
    services = requested_services(config.tracking, folder.path)
    if not services:
        raise UsageError(
            f"{folder.path} was trained without a service that it is sent to; add tracking.mlflow=true and "
            "tracking.mlflow_uri=ADDRESS, tracking.tensorboard=true, or tracking.wandb=true."
        )
    names = " and ".join(service.title for service in services)
    if folder.status().get("status") == "running":
        raise UsageError(f"{folder.path} is running and sends its own data to {names}; wait until the run has ended.")
    require_libraries(services)
    exporters = [Exporter(folder.path, service, steps_back=False) for service in services]
    left = [one.title for one in exporters if not one.finish(seconds)]
    if left:
        raise ServiceError(
            f"{' and '.join(left)} did not receive everything; the warnings above give the reason. Run this command "
            "again later."
        )
    if as_json:
        print_json({"path": str(folder.path), "all_told": True})
    else:
        say(f"{names} received all of {folder.path}")


def _show_metrics(latest: Mapping[str, float], show_all: bool) -> None:
    main = [name for name in MAIN_METRICS if name in latest]
    others = sorted(latest.keys() - set(main))
    # A learning rate of 5e-4 and a reward of 0.5 need the same number of digits, not the same number of decimals.
    rows = [[name, _show_number(latest[name])] for name in ([*main, *others] if show_all or not main else main)]
    Console().table("latest metrics", ["metric", "value"], rows)
    if len(rows) < len(latest):
        say(f"{len(latest) - len(rows)} more metrics: --all")


def _checkpoints(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the checkpoints, newest first, each with its step and its validation score if it has one."""
    scores = folder.validation_scores()
    pinned = find_best(folder.checkpoints, scores)
    return [
        {"step": int(path.name), "score": scores.get(int(path.name)), "is_best": path == pinned}
        for path in list_numbered(folder.checkpoints)
    ]


def _status_or_damage(folder: RunFolder) -> Mapping[str, Any]:
    """Return the status of a run, or a description of its damaged files, so that the list still shows the other
    runs."""
    try:
        return folder.status()
    except (DataError, OSError) as error:
        return {"status": "damaged", "reason": str(error)}


def _show_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _origin_or_none(folder: RunFolder) -> Mapping[str, Any] | None:
    """Return the run and the step that a run continues from, or None if there is none or its file is damaged."""
    try:
        origin = folder.origin()
        return None if origin is None else {**origin, "run": str(origin["run"]), "step": int(origin["step"])}
    except (DataError, OSError, TypeError, LookupError, ValueError):
        return None


def _parent_name(origin: Mapping[str, Any] | None, ids: Mapping[Path, str | None]) -> str | None:
    """Return the name of the run that a run continues from, or None if it is not among the listed runs."""
    parent = None if origin is None else find_parent(origin, ids)
    return None if parent is None else parent.name


def _came_from(origin: Mapping[str, Any] | None, parent: str | None) -> str:
    if origin is None:
        return ""
    kind = "weights of " if "weights" in origin else ""
    name = f"{Path(origin['run']).name} (not here)" if parent is None else parent
    return f"{kind}{name}, step {origin['step']}"


def _as_tree(parents: Mapping[str, str | None]) -> list[tuple[str, int]]:
    """Return the runs, each below the run that it continues from, and how deep each is."""
    found: list[tuple[str, int]] = []

    def add(name: str, depth: int) -> None:
        found.append((name, depth))
        for child, parent in parents.items():
            if parent == name:
                add(child, depth + 1)

    for name, parent in parents.items():
        if parent is None:
            add(name, 0)
    shown = {name for name, _ in found}
    return found + [(name, 0) for name in parents if name not in shown]


def _latest_metrics(path: Path) -> Mapping[str, float]:
    """Return the newest value of each metric. Skip an incomplete last line, because a run in progress may still be
    writing it."""
    latest: dict[str, float] = {}
    # Lines are read as bytes, so that a line that is not UTF-8 counts as one damaged line.
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            latest |= parse_json(line)["metrics"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}, line {number} is damaged: {error!r}. Remove the line.") from error
    return latest
