"""Send a run's data to MLflow as metrics, tags, artifacts and traces. No other module imports mlflow.

All names are derived from the content. Metrics carry the time of their measurement, and the ids of traces, spans and
assessments are derived from the episode's id. MLflow treats data with the same names as the same data, so sending it
twice changes nothing.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, final

from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
from mlflow.entities import (  # pyright: ignore[reportMissingImports]
    AssessmentSource,
    AssessmentSourceType,
    Feedback,
    Metric,
    Param,
    RunTag,
    TraceInfo,
    TraceLocation,
    TraceState,
)
from mlflow.entities import Span as MlflowSpan  # pyright: ignore[reportMissingImports]
from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]
from mlflow.tracing.client import TracingClient  # pyright: ignore[reportMissingImports]

from sparring.run_folders.encode import encode
from sparring.runtime.redaction import build_masker
from sparring.tracking.delivery import Refused
from sparring.tracking.journal import Document, Episodes, Findings, Metrics, Piece
from sparring.tracking.spans import Assessment, Span, SpanKind, Trace, build_trace
from sparring.types import Json, Trajectory

_MAX_METRIC_NAME_LENGTH = 250
_MAX_PARAM_LENGTH = 500
_MAX_TAG_LENGTH = 5000
_MAX_METRICS = 1000
"""Number of metrics that MLflow accepts in one request."""
_MAX_PREVIEW_LENGTH = 1000
_TRACE_PREFIX = "tr-"
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE"})
"""Error codes of MLflow that concern the piece rather than the state of the server."""
_STATUSES = {"completed": "FINISHED", "failed": "FAILED"}


@final
class MlflowReceiver:
    """Sends one run folder to one MLflow run, which a resumed run continues."""

    def __init__(self, folder: Path, *, uri: str, experiment: str) -> None:
        self._folder, self._uri, self._experiment = folder.resolve(), uri, experiment

    def open(self, kept: dict[str, Any]) -> bool:
        """Find the MLflow run that `kept` names, or create one and store its id in `kept`."""
        self._mask = build_masker()
        self._client = MlflowClient(tracking_uri=self._uri)
        self._traces = TracingClient(self._uri)
        if "run_id" in kept:
            self._client.update_run(kept["run_id"], status="RUNNING")
        else:
            experiment = self._find_experiment()
            # The key is stored before the run is created, because a request may create the run although its response is
            # lost.
            key = kept.setdefault("key", uuid.uuid4().hex)
            kept |= {"run_id": self._find_run(experiment, key), "experiment_id": experiment}
        self._run_id, self._experiment_id = kept["run_id"], kept["experiment_id"]
        return True

    def take(self, piece: Piece) -> None:
        try:
            match piece:
                case Metrics():
                    self._take_metrics(piece)
                case Findings():
                    self._take_findings(piece)
                case Episodes():
                    self._take_episodes(piece)
                case Document():
                    self._take_document(piece)
        except MlflowException as error:
            if error.error_code in _REFUSALS:
                raise Refused(self._mask(str(error))) from error
            raise

    def finish(self) -> None:
        """Set the status of the MLflow run to the status of the run."""
        status = json.loads((self._folder / "status.json").read_text("utf-8"))["status"]
        self._client.set_terminated(self._run_id, status=_STATUSES.get(status, "KILLED"))

    def _find_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is not None:
            return found.experiment_id
        # With a local database, artifacts would go into the working directory. A server has its own location.
        location = (self._folder / "mlflow_artifacts").as_uri() if self._uri.startswith("sqlite") else None
        try:
            return self._client.create_experiment(self._experiment, artifact_location=location)
        except MlflowException:
            # Another run created it in the meantime.
            found = self._client.get_experiment_by_name(self._experiment)
            if found is None:
                raise
            return found.experiment_id

    def _find_run(self, experiment: str, key: str) -> str:
        for run in self._client.search_runs([experiment], f"tags.`sparring.key` = '{key}'", max_results=1):
            return run.info.run_id
        content = json.loads((self._folder / "manifest.json").read_text("utf-8"))
        tags = {"sparring.run": str(self._folder), "sparring.key": key}
        created = self._client.create_run(
            experiment, start_time=_ms(content["created"]), run_name=self._folder.name, tags=tags
        )
        return created.info.run_id

    def _take_metrics(self, piece: Metrics) -> None:
        entries = [
            Metric(_name(name), value, _ms(time), step)
            for step, time, numbers in piece.lines
            for name, value in numbers.items()
            if value is not None and isfinite(value)
        ]
        for start in range(0, len(entries), _MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=entries[start : start + _MAX_METRICS])

    def _take_findings(self, piece: Findings) -> None:
        """Store the latest finding of each rule as a tag, which the list of runs shows. The file itself is an
        artifact."""
        tags = {
            f"finding.{_name(str(row['rule']))}": f"{row['severity']}"
            + (f" after step {row['step']}" if row.get("step") is not None else "")
            + f": {row['symptom']} {row['change']}"
            for row in piece.findings
        }
        self._client.log_batch(
            self._run_id, tags=[RunTag(key, self._mask(text)[:_MAX_TAG_LENGTH]) for key, text in tags.items()]
        )

    def _take_document(self, piece: Document) -> None:
        text = self._mask(piece.path.read_text("utf-8"))
        self._client.log_text(self._run_id, text, piece.file)
        if piece.file == "manifest.json":
            self._log_params(json.loads(text)["config"])

    def _log_params(self, config: Mapping[str, Json]) -> None:
        params = [
            Param(f"{section}.{key}", str(value)[:_MAX_PARAM_LENGTH])
            for section, fields in config.items()
            for key, value in (fields or {}).items()
            if value is not None
        ]
        self._client.log_batch(self._run_id, params=params)

    def _take_episodes(self, piece: Episodes) -> None:
        spans: list[MlflowSpan] = []
        for trajectory in piece.trajectories:
            trace = build_trace(trajectory, run=self._run_id, stored=piece.stored)
            self._traces.start_trace(self._trace_info(trajectory, trace, piece))
            spans += [self._span(span, trace.id) for span in trace.spans]
        if spans:
            self._traces.log_spans(self._experiment_id, spans)

    def _trace_info(self, trajectory: Trajectory, trace: Trace, piece: Episodes) -> TraceInfo:
        root, id = trace.spans[0], _TRACE_PREFIX + trace.id
        duration = (root.ended_ns - root.began_ns) // 1_000_000
        usage = {"input_tokens": sum(turn.num_prompt_tokens for turn in trajectory.turns)}
        usage["output_tokens"] = trajectory.num_sampled_tokens
        usage["total_tokens"] = sum(usage.values())
        return TraceInfo(
            trace_id=id,
            trace_location=TraceLocation.from_experiment_id(self._experiment_id),
            request_time=root.began_ns // 1_000_000,
            state=TraceState.OK if trajectory.error is None else TraceState.ERROR,
            request_preview=self._json(root.inputs)[:_MAX_PREVIEW_LENGTH],
            response_preview=self._json(root.outputs)[:_MAX_PREVIEW_LENGTH],
            client_request_id=trajectory.id,
            execution_duration=duration,
            trace_metadata={
                "mlflow.sourceRun": self._run_id,
                # MLflow shows the episodes of one task in one step together.
                "mlflow.trace.session": trajectory.id.rpartition("/")[0] or trajectory.id,
                "mlflow.trace.tokenUsage": json.dumps(usage),
            },
            tags={
                "mlflow.traceName": f"{piece.split} {piece.step}: {trajectory.task.id}",
                "split": piece.split,
                "step": str(piece.step),
                "task": trajectory.task.id,
                "outcome": str(trajectory.outcome),
            },
            assessments=[
                _feedback(place, one, id, _ms(root.ended_ns / 1e9)) for place, one in enumerate(trace.assessments)
            ],
        )

    def _span(self, span: Span, trace: str) -> MlflowSpan:
        """Convert a span to MLflow's format, in which each attribute is JSON text."""
        attributes: dict[str, Json] = {
            "mlflow.traceRequestId": _TRACE_PREFIX + trace,
            "mlflow.spanType": span.kind,
            "mlflow.spanInputs": span.inputs,
            "mlflow.spanOutputs": span.outputs,
            **span.attributes,
        }
        if span.kind is SpanKind.MODEL_CALL:
            prompt, sampled = span.attributes["prompt_tokens"], span.attributes["sampled_tokens"]
            attributes |= {
                "mlflow.message.format": "openai",
                "mlflow.chat.tokenUsage": {
                    "input_tokens": prompt,
                    "output_tokens": sampled,
                    "total_tokens": prompt + sampled,
                },
            }
        return MlflowSpan.from_dict(
            {
                "trace_id": _TRACE_PREFIX + trace,
                "span_id": span.id,
                "parent_span_id": span.parent,
                "name": span.name,
                "start_time_unix_nano": span.began_ns,
                "end_time_unix_nano": span.ended_ns,
                "attributes": {key: self._json(value) for key, value in attributes.items() if value is not None},
                "status": {"code": "OK" if span.error is None else "ERROR", "message": self._mask(span.error or "")},
            }
        )

    def _json(self, value: Json) -> str:
        return self._mask(encode(value).decode("utf-8"))


def _feedback(place: int, assessment: Assessment, trace: str, at: int) -> Feedback:
    feedback = Feedback(
        name=assessment.name,
        value=assessment.value,
        source=AssessmentSource(source_type=AssessmentSourceType.CODE, source_id=assessment.source),
        trace_id=trace,
        span_id=assessment.span,
        create_time_ms=at,
        last_update_time_ms=at,
    )
    feedback.assessment_id = f"a-{trace.removeprefix(_TRACE_PREFIX)[:24]}{place:08x}"
    return feedback


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _name(name: str) -> str:
    """Return a name that MLflow accepts.

    One invalid name makes MLflow reject a whole batch, and users choose the names of task kinds and reward components.
    """
    parts = re.sub(r"[^\w\-. :/]", "_", name).split("/")
    return "/".join(part.strip(".") or "_" for part in parts)[:_MAX_METRIC_NAME_LENGTH]
