"""Checkpoints outlive the server: training continues from them, and adapters are downloaded in PEFT's format."""

from __future__ import annotations

import asyncio
import io
import tarfile
import weakref
from pathlib import Path

import pytest
import torch

from tests.faults.recipe.tiny import build
from tests.serving.tinker.calls import call, create_run, datum, fetch, forward_body, open_session, post, step_body
from tests.serving.tinker.conftest import Serve, Server
from tests.serving.tinker.test_training import target_logprobs, weights_of
from tests.serving.tinker.values import IDS

Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"


async def train(server: Server, run: str, steps: range) -> None:
    for step in steps:
        await call(server.http, "forward_backward", forward_body(run, 2 * step + 1, [datum(IDS)]))
        await call(server.http, "optim_step", step_body(run, 2 * step + 2))


def test_training_continues_bit_for_bit_on_a_new_server(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)
            await train(server, model, range(5))
            whole = weights_of(server, model)
        async with serve() as server:
            model = await create_run(server.http)
            await train(server, model, range(3))
            saved = await call(server.http, "save_weights", {"model_id": model, "seq_id": 7, "path": "three"})
            assert saved["path"] == f"tinker://{model}/weights/three"
        async with serve() as server:
            gone = await server.http.post("/api/v1/optim_step", json=step_body(model, 8))
            assert gone.status_code == 404
            body = {"session_id": await open_session(server.http), "model_seq_id": 0, "path": saved["path"]}
            loaded = await call(server.http, "load_weights", body | {"optimizer": True})
            await train(server, loaded["model_id"], range(2))
            continued = weights_of(server, loaded["model_id"])
            # Without the optimizer's state, the next steps are others.
            fresh = await create_run(server.http)
            load = {"model_id": fresh, "seq_id": 1, "path": saved["path"], "optimizer": False}
            await call(server.http, "load_weights", load)
            for step in (1, 2):
                await call(server.http, "forward_backward", forward_body(fresh, 2 * step, [datum(IDS)]))
                await call(server.http, "optim_step", step_body(fresh, 2 * step + 1))
            other = weights_of(server, fresh)
        assert all(torch.equal(continued[name], whole[name]) for name in whole)
        assert not all(torch.equal(other[name], whole[name]) for name in whole)

    asyncio.run(run())


def test_a_name_is_replaced_only_on_request(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)
            body = {"model_id": model, "path": "one"}
            await call(server.http, "save_weights", body | {"seq_id": 1})
            again = await call(server.http, "save_weights", body | {"seq_id": 2})
            assert "exists already" in again["error"]
            assert "path" in await call(server.http, "save_weights", body | {"seq_id": 3, "overwrite": True})
            for number, name in enumerate(("../one", ".one", "a/b"), 4):
                refused = await server.http.post(
                    "/api/v1/save_weights", json={"model_id": model, "seq_id": number, "path": name}
                )
                assert refused.status_code == 400
            # The places of refused requests count as taken.
            assert "path" in await call(server.http, "save_weights", {"model_id": model, "seq_id": 7, "path": "two"})

    asyncio.run(run())


def test_a_checkpoint_of_another_base_model_or_a_damaged_one_is_not_loaded(serve: Serve, tmp_path: Path) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)
            saved = await call(server.http, "save_weights", {"model_id": model, "seq_id": 1, "path": "one"})
            before = weights_of(server, model)
            load = {"model_id": model, "path": saved["path"], "optimizer": True}
            server.service.base.__dict__["fingerprint"] = "another"
            assert "another base model" in (await call(server.http, "load_weights", load | {"seq_id": 2}))["error"]
            del server.service.base.__dict__["fingerprint"]
            (weights,) = (tmp_path / "checkpoints").glob("*/weights/one/weights.safetensors")
            weights.write_bytes(weights.read_bytes()[:-1] + b"x")
            damaged = await server.http.post("/api/v1/load_weights", json=load | {"seq_id": 3})
            assert damaged.status_code == 400
            assert "hash" in damaged.json()["detail"]
            after = weights_of(server, model)
            assert all(torch.equal(after[name], before[name]) for name in before)
            assert "metrics" in await call(server.http, "optim_step", step_body(model, 4))

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("kind", ["sampler_weights", "external_weights"])
def test_an_adapter_is_downloaded_in_the_format_of_peft(serve: Serve, tmp_path: Path, kind: str) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)
            await train(server, model, range(2))
            scored = await call(server.http, "forward_backward", forward_body(model, 5, [datum(IDS)]))
            path = "save_weights_for_sampler" if kind == "sampler_weights" else "save_weights_external"
            await call(server.http, path, {"model_id": model, "seq_id": 6, "path": "final"})
            address = f"/api/v1/training_runs/{model}/checkpoints/{kind}/final"
            archive = await server.http.get(f"{address}/archive")
            assert archive.status_code == 302
            link = archive.headers["location"]
            # The link works without a key, as clients fetch it.
            packed = await server.http.get(link, headers={"x-api-key": ""})
            with tarfile.open(fileobj=io.BytesIO(packed.content)) as tar:
                tar.extractall(tmp_path / "adapter", filter="data")
            urls = (await server.http.get(f"{address}/external_weights_urls")).json()["urls"]
            for name, url in urls.items():
                alone = await server.http.get(url, headers={"x-api-key": ""})
                assert alone.content == (tmp_path / "adapter" / name).read_bytes()
            forged = link.replace("/files/", "/files/x")
            assert (await server.http.get(forged, headers={"x-api-key": ""})).status_code == 404
        from peft import PeftModel

        module = PeftModel.from_pretrained(build(0)[0], tmp_path / "adapter")
        found = scored["loss_fn_outputs"][0]["logprobs"]["data"]
        assert target_logprobs(module).tolist() == pytest.approx(found, abs=1e-5)

    asyncio.run(run())


def test_runs_and_checkpoints_are_listed_and_deleted(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            session = await open_session(server.http)
            model = await create_run(server.http, session=session)
            body = {"model_id": model, "seq_id": 1, "path": "one", "user_metadata": {"note": "first"}}
            await call(server.http, "save_weights", body)
            await call(server.http, "save_weights_for_sampler", {"model_id": model, "seq_id": 2, "path": "one"})
        async with serve() as server:
            run = (await server.http.get(f"/api/v1/training_runs/{model}")).json()
            assert run["lora_rank"] == 4
            assert run["last_checkpoint"]["user_metadata"] == {"note": "first"}
            assert (await server.http.get("/api/v1/training_runs")).json()["training_runs"] == [run]
            info = await server.http.post("/api/v1/weights_info", json={"tinker_path": f"tinker://{model}/weights/one"})
            assert info.json() == {
                "base_model": "tiny",
                "is_lora": True,
                "lora_rank": 4,
                "train_unembed": True,
                "train_mlp": True,
                "train_attn": True,
            }
            path = f"/api/v1/training_runs/{model}/checkpoints"
            listed = (await server.http.get(path)).json()["checkpoints"]
            assert [one["checkpoint_id"] for one in listed] == ["weights/one", "sampler_weights/one"]
            assert (await server.http.delete(f"{path}/weights/one")).status_code == 204
            assert (await server.http.delete(f"{path}/weights/one")).status_code == 404
            assert len((await server.http.get(path)).json()["checkpoints"]) == 1
            paged = (await server.http.get("/api/v1/checkpoints", params={"offset": 1})).json()
            assert paged == {"checkpoints": [], "cursor": {"offset": 1, "limit": 1000, "total_count": 1}}

    asyncio.run(run())


def test_the_runs_of_a_finished_session_are_unloaded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr("sparring.serving.tinker.service.MOST_RUNS", 1)
        async with serve() as server:
            session = await open_session(server.http)
            model = await create_run(server.http, session=session)
            other = {"session_id": session, "model_seq_id": 1, "base_model": "tiny", "lora_config": {"rank": 1}}
            # A live session is not ended for the sake of another one.
            assert (await server.http.post("/api/v1/create_model", json=other)).status_code == 429
            finished = await server.http.post(f"/api/v1/sessions/{session}/finish", json={"reason": {}})
            assert finished.status_code == 200
            assert (await server.http.post("/api/v1/get_info", json={"model_id": model})).status_code == 404
            assert (
                await server.http.post("/api/v1/session_heartbeat", json={"session_id": session})
            ).status_code == 410
            abandoned = await create_run(server.http)
            server.service.sessions[abandoned.split(":")[0]].last_seen -= 1000
            assert await create_run(server.http)
            assert abandoned not in server.service.runs

    asyncio.run(run())


def test_an_unloaded_run_leaves_no_adapter_in_memory(serve: Serve) -> None:
    async def run() -> None:
        async with serve() as server:
            model = await create_run(server.http)
            await train(server, model, range(2))
            # It waits for a request that never comes, and would compute with the adapter.
            waiting = (await post(server.http, "optim_step", step_body(model, 9)))["request_id"]
            adapter = weakref.ref(server.service.runs[model]._learner._policy.trained[Q_PROJ])
            assert adapter() is not None
            assert (await call(server.http, "unload_model", {"model_id": model}))["model_id"] == model
            assert "unloaded" in (await fetch(server.http, waiting))["error"]
            assert adapter() is None
            assert (await server.http.post("/api/v1/get_info", json={"model_id": model})).status_code == 404

    asyncio.run(run())
