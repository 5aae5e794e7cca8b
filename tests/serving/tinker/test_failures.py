"""Whatever happens to a request, later ones get an answer, and no step is taken on a part of a batch."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import DiskError
from sparring.serving.tinker.checkpoints import Checkpoints
from sparring.serving.tinker.training_run import TrainingRun
from tests.serving.tinker.calls import (
    call,
    create_run,
    datum,
    fetch,
    forward_body,
    open_session,
    post,
    step_body,
)
from tests.serving.tinker.conftest import Serve
from tests.serving.tinker.values import ADVANTAGES, IDS

DATUM = datum(IDS, weights=ADVANTAGES)


class Slow:
    """Steps that last until they are released, and the number of those that run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started, self.released = threading.Event(), threading.Event()
        self.running, self.most = 0, 0
        step = TrainingRun.optim_step

        def slow(run: TrainingRun, adam: Any) -> Any:
            self.running += 1
            self.most = max(self.most, self.running)
            self.started.set()
            try:
                assert self.released.wait(30)
                time.sleep(0.05)
                return step(run, adam)
            finally:
                self.running -= 1

        monkeypatch.setattr(TrainingRun, "optim_step", slow)

    async def start(self) -> None:
        assert await asyncio.to_thread(self.started.wait, 30)


def test_a_run_that_was_refused_for_lack_of_space_can_be_requested_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr("sparring.serving.tinker.service.MOST_RUNS", 1)
        async with serve() as server:
            model = await create_run(server.http)
            body = {
                "session_id": await open_session(server.http),
                "model_seq_id": 0,
                "base_model": "tiny",
                "lora_config": {"rank": 4},
            }
            assert (await server.http.post("/api/v1/create_model", json=body)).status_code == 429
            await call(server.http, "unload_model", {"model_id": model})
            async with asyncio.timeout(20):
                assert (await call(server.http, "create_model", body))["type"] == "create_model"

    asyncio.run(run())


def test_a_run_that_is_being_unloaded_takes_no_requests_and_only_one_computation_runs(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        slow = Slow(monkeypatch)
        async with serve() as server:
            one, other = await create_run(server.http), await create_run(server.http)
            await post(server.http, "optim_step", step_body(one, 1))
            await slow.start()
            unload = (await post(server.http, "unload_model", {"model_id": one}))["request_id"]
            after = (await post(server.http, "optim_step", step_body(other, 1)))["request_id"]
            refused = await server.http.post("/api/v1/optim_step", json=step_body(one, 2))
            assert refused.status_code == 404, refused.text
            session = one.split(":")[0]
            finishing = asyncio.create_task(server.http.post(f"/api/v1/sessions/{session}/finish", json={}))
            await asyncio.sleep(0.2)
            slow.released.set()
            async with asyncio.timeout(20):
                assert (await finishing).status_code == 200
                assert (await fetch(server.http, unload)).get("model_id") == one
                assert "metrics" in await fetch(server.http, after)
            assert slow.most == 1

    asyncio.run(run())


def test_a_run_whose_session_ends_during_its_creation_is_not_kept(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        released, created = threading.Event(), TrainingRun.__init__

        def slow(run: TrainingRun, *args: Any) -> None:
            assert released.wait(30)
            created(run, *args)

        monkeypatch.setattr(TrainingRun, "__init__", slow)
        async with serve() as server:
            session = await open_session(server.http)
            body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4}}
            future = (await post(server.http, "create_model", body))["request_id"]
            assert (await server.http.post(f"/api/v1/sessions/{session}/finish", json={})).status_code == 200
            released.set()
            assert "has ended" in (await fetch(server.http, future))["error"]
            assert not server.service.runs

    asyncio.run(run())


def test_a_gradient_that_fails_for_any_reason_takes_no_step(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)
            await call(server.http, "forward_backward", forward_body(model, 1, [DATUM]))
            learner = server.service.runs[model]._learner

            def fail(*_: Any) -> None:
                raise RuntimeError("out of memory")

            with monkeypatch.context() as patch:
                patch.setattr(learner, "add_gradient", fail)
                assert (
                    "out of memory"
                    in (await call(server.http, "forward_backward", forward_body(model, 2, [DATUM])))["error"]
                )
            assert "no step was taken" in (await call(server.http, "optim_step", step_body(model, 3)))["error"]
            assert "metrics" in await call(server.http, "optim_step", step_body(model, 4))

    asyncio.run(run())


@pytest.mark.parametrize("path", ["save_weights_for_sampler", "save_weights", "optim_step"])
def test_later_requests_do_not_wait_for_a_refused_one(serve: Serve, path: str) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)
            refused = await server.http.post(f"/api/v1/{path}", json={"model_id": model, "seq_id": 1, "path": ""})
            assert refused.status_code == 400
            refused = await server.http.post("/api/v1/save_weights_for_sampler", json={"model_id": model, "seq_id": 2})
            assert refused.status_code == 400
            async with asyncio.timeout(10):
                assert "metrics" in await call(server.http, "optim_step", step_body(model, 3))

    asyncio.run(run())


@pytest.mark.parametrize("way", ["replaced", "deleted"])
def test_a_checkpoint_that_was_replaced_is_sampled_with_its_new_weights(serve: Serve, way: str) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)

            async def save(seq: int) -> str:
                body = {"model_id": model, "seq_id": seq, "path": "w", "overwrite": True}
                return (await call(server.http, "save_weights", body))["path"]

            async def score(path: str) -> list[float]:
                body = {
                    "prompt": {"chunks": [{"tokens": IDS}]},
                    "sampling_params": {"max_tokens": 1},
                    "model_path": path,
                    "prompt_logprobs": True,
                }
                return (await call(server.http, "asample", body))["prompt_logprobs"][1:]

            path = await save(1)
            before = await score(path)
            for seq in (2, 4, 6):
                await call(server.http, "forward_backward", forward_body(model, seq, [DATUM]))
                await call(server.http, "optim_step", step_body(model, seq + 1, learning_rate=0.1))
            if way == "deleted":
                address = path.removeprefix("tinker://").replace("/weights/", "/checkpoints/weights/")
                assert (await server.http.delete(f"/api/v1/training_runs/{address}")).status_code == 204
                gone = await server.http.post(
                    "/api/v1/asample",
                    json={
                        "prompt": {"chunks": [{"tokens": IDS}]},
                        "sampling_params": {"max_tokens": 1},
                        "model_path": path,
                    },
                )
                assert gone.status_code == 404
            assert await save(8) == path
            assert await score(path) != pytest.approx(before, abs=1e-4)

    asyncio.run(run())


def test_a_folder_that_cannot_be_written_is_named_and_training_goes_on(serve: Serve, tmp_path: Path) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)
            (tmp_path / "checkpoints" / model.replace(":", "_")).write_text("not a folder")
            found = await call(server.http, "save_weights", {"model_id": model, "seq_id": 1})
            assert "could not be written" in found["error"]
            assert "Free up space" in found["error"]
            await call(server.http, "forward_backward", forward_body(model, 2, [DATUM]))
            assert "metrics" in await call(server.http, "optim_step", step_body(model, 3))

    asyncio.run(run())


def test_rows_of_weight_zero_change_nothing(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)
            zeros = datum(IDS, weights=[0.0] * len(ADVANTAGES))
            found = await call(server.http, "forward_backward", forward_body(model, 1, [zeros]))
            assert found["metrics"]["loss:sum"] == 0.0
            stepped = await call(server.http, "optim_step", step_body(model, 2))
            assert stepped["metrics"]["grad_norm"] == 0.0

    asyncio.run(run())


def test_a_name_with_a_tilde_is_not_served(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            body = {
                "session_id": await open_session(server.http),
                "sampling_session_seq_id": 0,
                "base_model": "~absent-x/m",
            }
            assert (await server.http.post("/api/v1/create_sampling_session", json=body)).status_code == 400

    asyncio.run(run())


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(DiskError, match=f"cannot be written to {folder}"):
            Checkpoints(folder)
