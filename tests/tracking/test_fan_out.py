"""Trackers are isolated from the run and from each other."""

import importlib.util
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from sparring.config import Config, EnvironmentSection, RewardSection, TrackingSection
from sparring.errors import ServiceError
from sparring.run_folders import RunFolder
from sparring.tracking import Console, FanOut, MemoryTracker, open_trackers
from sparring.tracking.worker import TrackingThread
from tests.tracking.builders import GROUP


class Broken:
    """Fails at everything."""

    def __getattr__(self, name: str):
        def fail(*_: object, **__: object) -> None:
            raise OSError("no network")

        return fail


def test_a_failing_tracker_is_warned_about_once_and_the_others_hear_everything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, after = MemoryTracker(), MemoryTracker()
    tracker = FanOut([before, Broken(), Broken(), after])
    tracker.log_metrics(1, {"a": 1.0})
    tracker.log_groups(1, [GROUP], split="train")
    tracker.log_finding({"kind": "x"})
    tracker.log_artifact("a.json", [1])
    tracker.close()
    for memory in (before, after):
        assert memory.metrics == [(1, {"a": 1.0})]
        assert memory.groups == [(1, "train", (GROUP,))]
        assert memory.findings == [{"kind": "x"}]
        assert memory.artifacts == {"a.json": [1]}
        assert memory.is_closed
    assert [record.message for record in caplog.records] == [
        "tracking: Broken failed (OSError('no network')); the run continues without that data"
    ] * 2


def test_a_worker_that_cannot_keep_up_leaves_jobs_out_and_reports_how_many(caplog: pytest.LogCaptureFixture) -> None:
    worker = TrackingThread("MLflow", capacity=2, drops_when_full=True)
    started, go, done = threading.Event(), threading.Event(), list[int]()

    def slow() -> None:
        started.set()
        go.wait(10)
        done.append(0)

    worker.submit(slow)
    assert started.wait(10)
    for number in (1, 2, 3, 4):
        worker.submit(lambda number=number: done.append(number))
    go.set()
    worker.close()
    assert done == [0, 1, 2]
    assert "too slow, so 2 entries were discarded" in caplog.text


def test_closing_does_not_wait_longer_than_its_timeout(caplog: pytest.LogCaptureFixture) -> None:
    worker, go = TrackingThread("MLflow", capacity=2), threading.Event()
    worker.submit(lambda: go.wait(10))
    worker.close(timeout=0.01)
    go.set()
    assert "did not finish within 0.01 s" in caplog.text


@pytest.mark.parametrize("service", ["mlflow", "tensorboard", "wandb"])
@pytest.mark.parametrize("found", [None, ModuleSpec("a folder of that name", None, is_package=True)])
def test_a_service_whose_library_is_not_installed_is_an_error_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: str, found: ModuleSpec | None
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found if name == service else find_spec(name))
    config = Config(
        environment=EnvironmentSection(target="a:b"),
        reward=RewardSection(reward="a:b"),
        tracking=TrackingSection.model_validate({service: True}),
    )
    (tmp_path / "run.toml").touch()
    with pytest.raises(ServiceError, match=rf"pip install 'sparring\[{service}\]'"):
        open_trackers(config, RunFolder(tmp_path), Console(quiet=True))
