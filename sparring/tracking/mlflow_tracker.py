"""The door to MLflow: the same metrics and artifacts, and one trace an episode. The only module that imports mlflow."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Self, final

import mlflow  # pyright: ignore[reportMissingImports]
from mlflow.entities import Metric, Param, SpanType  # pyright: ignore[reportMissingImports]
from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]

from sparring.config import Config
from sparring.tracking.encode import encode
from sparring.tracking.worker import Worker
from sparring.types import Json, Message, Trajectory, TrajectoryGroup

_CAPACITY = 256
"""Entries that may wait for the server; later ones are left out until it keeps up."""

_CLOSE_SECONDS = 60.0
_MAX_METRIC_NAME_LENGTH = 250
_MAX_PARAM_LENGTH = 500
_RUN_FILE = "mlflow.json"


@final
class MlflowTracker:
    """Logs into one MLflow run on a thread of its own: a slow or absent server costs a gap and a warning, no time.

    A resumed run continues its MLflow run, whose id is kept in mlflow.json of the run folder.
    """

    def __init__(self, uri: str, experiment: str, folder: Path, params: Mapping[str, str]) -> None:
        self._uri, self._experiment, self._folder, self._params = uri, experiment, folder, params
        self._worker = Worker("MLflow", capacity=_CAPACITY, drops_when_full=True)
        self._client: Any = None
        self._run_id = ""
        self._experiment_id = ""
        self._worker.submit(self._connect)

    @classmethod
    def open(cls, config: Config, folder: Path) -> Self:
        """As the recipe says: its server, else a sqlite file in the run folder."""
        section = config.tracking
        uri = section.mlflow_uri or f"sqlite:///{(folder / 'mlflow.sqlite').resolve()}"
        params = {
            f"{name}.{key}": str(value)[:_MAX_PARAM_LENGTH]
            for name, fields in config.model_dump(mode="json", exclude_none=True).items()
            for key, value in fields.items()
        }
        return cls(uri, section.mlflow_experiment_name, folder, params)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        entries = [Metric(_metric_name(name), value, now, step) for name, value in metrics.items() if isfinite(value)]
        self._submit(lambda: self._client.log_batch(self._run_id, metrics=entries))

    def log_groups(self, step: int, groups: Sequence[TrajectoryGroup], *, split: str) -> None:
        for group in groups:
            for trajectory in group.trajectories:
                self._submit(partial(self._trace, trajectory, step, split))

    def log_finding(self, finding: Mapping[str, Json]) -> None:
        self.log_artifact(f"findings/{time.time_ns()}.json", dict(finding))

    def log_artifact(self, name: str, content: Json) -> None:
        text = encode(content, indent=True).decode("utf-8")
        self._submit(lambda: self._client.log_text(self._run_id, text, name))

    def close(self) -> None:
        """Finish what waits, for at most a minute."""
        self._submit(mlflow.flush_trace_async_logging)
        self._submit(lambda: self._client.set_terminated(self._run_id))
        self._worker.close(timeout=_CLOSE_SECONDS)

    def _submit(self, job: Callable[[], object]) -> None:
        def connected() -> None:
            # Without a connection there is nothing to fail again; the worker has warned of the first failure.
            if self._run_id:
                job()

        self._worker.submit(connected)

    def _connect(self) -> None:
        # Traces follow the process-wide address; there is one run at a time in a process.
        mlflow.set_tracking_uri(self._uri)
        self._client = mlflow.MlflowClient(tracking_uri=self._uri)
        self._experiment_id = self._find_experiment()
        kept = self._folder / _RUN_FILE
        if kept.exists():
            self._run_id = json.loads(kept.read_text("utf-8"))["run_id"]
            self._client.update_run(self._run_id, status="RUNNING")
            return
        tags = {"sparring.run": str(self._folder.resolve())}
        run = self._client.create_run(self._experiment_id, run_name=self._folder.name, tags=tags)
        kept.write_text(json.dumps({"run_id": run.info.run_id, "uri": self._uri}) + "\n", "utf-8")
        self._client.log_batch(run.info.run_id, params=[Param(key, value) for key, value in self._params.items()])
        self._run_id = run.info.run_id

    def _find_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is not None:
            return found.experiment_id
        # A local database would put artifacts into the working directory; a server knows its own place.
        location = (self._folder / "mlflow_artifacts").resolve().as_uri() if self._uri.startswith("sqlite") else None
        try:
            return self._client.create_experiment(self._experiment, artifact_location=location)
        except MlflowException:
            # Another run made it in between.
            return self._client.get_experiment_by_name(self._experiment).experiment_id

    def _trace(self, trajectory: Trajectory, step: int, split: str) -> None:
        """One trace: the episode, and in it its turns one after the other, as long as each took."""
        ended = time.time_ns()
        began = ended - int(trajectory.seconds * 1e9)
        attributes: dict[str, Any] = {
            "outcome": str(trajectory.outcome),
            "reward": trajectory.reward.total if trajectory.reward else None,
            "score": trajectory.score,
            "score_parts": dict(trajectory.score_parts),
            "task_id": trajectory.task.id,
        }
        root = mlflow.start_span_no_context(
            trajectory.id,
            span_type=SpanType.AGENT,
            inputs={"messages": _plain(trajectory.task.messages)},
            attributes=attributes,
            tags={"split": split, "step": str(step), "outcome": str(trajectory.outcome)},
            metadata={"mlflow.sourceRun": self._run_id},
            experiment_id=self._experiment_id,
            start_time_ns=began,
        )
        at = began
        for turn in sorted((*trajectory.turns, *trajectory.other_turns), key=lambda turn: turn.id):
            numbers: dict[str, Any] = {
                "prompt_tokens": turn.num_prompt_tokens,
                "sampled_tokens": turn.num_sampled_tokens,
                "policy_version": turn.oldest_version,
                "stop_reason": str(turn.stop_reason),
            }
            if turn.policy is not None:
                numbers["policy"] = turn.policy
            span = mlflow.start_span_no_context(
                f"turn {turn.id}", span_type=SpanType.LLM, parent_span=root, attributes=numbers, start_time_ns=at
            )
            at += int(turn.seconds * 1e9)
            span.end(outputs=_plain([turn.message])[0], end_time_ns=at)
        last = _plain(trajectory.messages[-1:])
        root.end(outputs=last[0] if last else None, end_time_ns=ended)


def _plain(messages: Sequence[Message]) -> list[Any]:
    return json.loads(encode(messages))


def _metric_name(name: str) -> str:
    """A name that MLflow takes: it refuses a whole batch for one that it does not like. Kinds of tasks and components of
    rewards are named by users."""
    parts = re.sub(r"[^\w\-. :/]", "_", name).split("/")
    return "/".join(part.strip(".") or "_" for part in parts)[:_MAX_METRIC_NAME_LENGTH]
