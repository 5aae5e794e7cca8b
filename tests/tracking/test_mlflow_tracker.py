"""MLflow gets metrics, artifacts and one trace an episode; an absent server costs a warning and no time."""

import json
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="the full mlflow is not installed")
mlflow = pytest.importorskip("mlflow")

from sparring.tracking.mlflow_tracker import MlflowTracker  # noqa: E402
from tests.tracking.builders import GROUP  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")


def test_a_resumed_run_continues_its_mlflow_run_with_metrics_artifacts_and_traces(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.sqlite'}"
    for step in (1, 2):
        tracker = MlflowTracker(uri, "exp", tmp_path, {"run.seed": "0"})
        tracker.log_metrics(step, {"rollout/reward/mean": step / 2, "kl": float("nan")})
        tracker.log_groups(step, [GROUP], split="train")
        tracker.log_artifact("evaluations/validation-1.json", {"score": 1})
        tracker.close()
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("exp").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.run_id == json.loads((tmp_path / "mlflow.json").read_text())["run_id"]
    assert run.info.status == "FINISHED"
    assert run.data.metrics == {"rollout/reward/mean": 1.0}
    assert run.data.params == {"run.seed": "0"}
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["evaluations"]
    traces = client.search_traces(locations=[experiment])
    assert sorted(trace.info.tags["step"] for trace in traces) == ["1", "2"]
    assert all(trace.info.trace_metadata["mlflow.sourceRun"] == run.info.run_id for trace in traces)
    assert [span.name for span in traces[0].data.spans] == ["train/0/t1/0.0", "turn 0"]


def test_a_server_that_cannot_be_reached_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    tracker = MlflowTracker(f"sqlite:///{tmp_path}/file/mlflow.sqlite", "exp", tmp_path, {})
    tracker.log_metrics(1, {"a": 1.0})
    tracker.close()
    assert [record.message for record in caplog.records if "tracking: MLflow failed" in record.message]
    assert sum(record.name == "sparring.tracking.worker" for record in caplog.records) == 1
