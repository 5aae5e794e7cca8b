"""Serve any learner over HTTP for `training.remote.RemoteLearner`.

    GET    /v1/learner        return the identity of the learner
    POST   /v1/jobs/JOB       start a computation; repeating the request changes nothing
    GET    /v1/jobs/JOB       return the result; wait for it up to ?seconds=
    DELETE /v1/jobs/JOB       cancel the computation between two microbatches; weights that have changed stay
    POST   /v1/files          keep a file, and return its name
    GET    /v1/files/NAME     return a file of an export

Computations run one after the other in a thread.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol, final, runtime_checkable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from sparring.engines.bodies import read_job, read_number
from sparring.engines.server import guarded, received
from sparring.errors import ServiceError, SparringError, UsageError
from sparring.models.tensor_files import TensorFile, write_weights
from sparring.protocols import Learner
from sparring.runtime.cancellable import Cancelled, run_cancellable, wait_for_abandoned
from sparring.runtime.logs import get_logger
from sparring.runtime.private_files import create_folder
from sparring.runtime.remote import PROTOCOL, dumps, error_json, from_json
from sparring.types import Json, TrainingBatch, Weights

logger = get_logger(__name__)

RANK_VERBS = (
    "open_group", "join_group", "add_up_gradients", "clear_gradients", "fingerprint", "gather_state", "identify",
)  # fmt: skip
"""The computations of a learner that can be a rank of a group."""
MOST_KEPT = 64
"""The number of results of finished computations that are kept for repeated requests."""


@runtime_checkable
class Rank(Protocol):
    """The part of `training.rank.RankLearner` that other learners lack."""

    def open_group(self, size: int, timeout_seconds: float) -> int: ...

    def join_group(self, host: str, port: int, rank: int, size: int, timeout_seconds: float) -> bool: ...

    def add_up_gradients(self) -> None: ...

    def clear_gradients(self) -> None: ...

    def fingerprint(self) -> str: ...

    def gather_state(self) -> None: ...

    def identify(self) -> str: ...


def learner_app(learner: Learner, *, api_key: str | None = None) -> Starlette:
    """Return an app with the routes of a learner. With `api_key`, requests without the key are rejected. Without
    `api_key`, bind the server only to a loopback address."""
    routes = _Routes(learner)
    return Starlette(
        routes=[
            Route("/v1/learner", guarded(routes.hello, api_key)),
            Route("/v1/jobs/{job}", guarded(routes.start, api_key), methods=["POST"]),
            Route("/v1/jobs/{job}", guarded(routes.result, api_key)),
            Route("/v1/jobs/{job}", guarded(routes.give_up, api_key), methods=["DELETE"]),
            Route("/v1/files", guarded(routes.keep, api_key), methods=["POST"]),
            Route("/v1/files/{name:path}", guarded(routes.file, api_key)),
        ]
    )


@final
class _Job:
    """One computation."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.done = asyncio.Event()
        self.result: Json = None
        self.error: dict[str, Json] | None = None


@final
class _Routes:
    """The request handlers of one learner, with its jobs and its files."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._instance = uuid.uuid4().hex
        self._folder = tempfile.TemporaryDirectory(prefix="sparring-learner-")
        self._path = Path(self._folder.name)
        self._jobs: dict[str, _Job] = {}
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._verbs: dict[str, Callable[..., Json]] = {
            "forward_backward": lambda batch, **rest: learner.forward_backward(from_json(TrainingBatch, batch), **rest),
            "logprobs": lambda batch: learner.logprobs(from_json(TrainingBatch, batch)),
            "reference_logprobs": lambda batch: learner.reference_logprobs(from_json(TrainingBatch, batch)),
            "optim_step": learner.optim_step,
            "reset_optimizer": learner.reset_optimizer,
            "export_weights": self._export_weights,
            "load_weights": self._load_weights,
            "export_state": self._export_state,
            "load_state": self._load_state,
        }
        if isinstance(learner, Rank):
            self._verbs |= {name: getattr(learner, name) for name in RANK_VERBS}

    async def hello(self, _: Request) -> Response:
        return JSONResponse(
            {
                "serves": "learner",
                "protocol": PROTOCOL,
                "instance": self._instance,
                "num_microbatches": self._learner.num_microbatches,
            }
        )

    async def start(self, request: Request) -> Response:
        name, body = request.path_params["job"], await read_job(request)
        if body.instance != self._instance:
            raise ServiceError("this learner was restarted and has lost its trained weights; resume the run.")
        if name not in self._jobs:
            if body.verb not in self._verbs:
                raise UsageError(f"a learner cannot run {body.verb!r}; it can run {', '.join(self._verbs)}.")
            for unused in (Path(one).name for one in body.unused):
                if unused not in ("", ".."):  # the folder of all files, and the one around it
                    shutil.rmtree(self._path / unused, ignore_errors=True)
            self._forget()
            job = self._jobs[name] = _Job()
            task = asyncio.create_task(self._compute(job, partial(self._verbs[body.verb], **body.arguments)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await self._answer(self._jobs[name], seconds=1.0)

    async def result(self, request: Request) -> Response:
        return await self._answer(self._job(request), seconds=min(10.0, read_number(request, "seconds")))

    async def give_up(self, request: Request) -> Response:
        self._job(request).stop.set()
        return JSONResponse({})

    async def keep(self, request: Request) -> Response:
        name = uuid.uuid4().hex
        await received(request, self._path / name)
        return JSONResponse({"file": name})

    async def file(self, request: Request) -> Response:
        path = (self._path / request.path_params["name"]).resolve()
        if not path.is_file() or not path.is_relative_to(self._path.resolve()):
            raise ServiceError(f"this learner has no file {request.path_params['name']}; resume the run.")
        return FileResponse(path)

    def _job(self, request: Request) -> _Job:
        try:
            return self._jobs[request.path_params["job"]]
        except KeyError:
            raise ServiceError(
                "this learner does not know the computation, so it was restarted and has lost its trained weights; "
                "resume the run."
            ) from None

    async def _compute(self, job: _Job, compute: Callable[[], Json]) -> None:
        async with self._turn:
            await wait_for_abandoned()
            try:
                job.result = await run_cancellable(compute, stop=job.stop, patience_seconds=0.0)
            except Exception as error:
                if not isinstance(error, SparringError | Cancelled):
                    logger.exception("a computation failed")
                job.error = error_json(error)
        job.done.set()

    async def _answer(self, job: _Job, *, seconds: float) -> Response:
        with suppress(TimeoutError):
            await asyncio.wait_for(job.done.wait(), seconds)
        if job.error is not None:
            return Response(dumps({"error": job.error}), 422, media_type="application/json")
        answer = {
            "is_done": job.done.is_set(),
            "result": job.result,
            "num_microbatches": self._learner.num_microbatches,
        }
        return Response(dumps(answer), media_type="application/json")

    def _forget(self) -> None:
        done = [name for name, job in self._jobs.items() if job.done.is_set()]
        for name in done[:-MOST_KEPT]:
            del self._jobs[name]

    def _export_weights(self) -> Json:
        weights = self._learner.export_weights()
        file = f"weights-{weights.fingerprint}.safetensors"
        if not (self._path / file).exists():
            for old in self._path.glob("weights-*.safetensors"):
                old.unlink()
            write_weights(weights, self._path / file)
        return {"file": file, "fingerprint": weights.fingerprint}

    def _load_weights(self, file: str, fingerprint: str) -> None:
        path = self._path / Path(file).name
        try:
            self._learner.load_weights(Weights(tensors=TensorFile(path), fingerprint=fingerprint))
        finally:
            path.unlink(missing_ok=True)

    def _export_state(self) -> Json:
        name = f"state-{uuid.uuid4().hex}"
        create_folder(self._path / name)
        self._learner.export_state().write(self._path / name)
        return {"state": name, "files": sorted(path.name for path in (self._path / name).iterdir())}

    def _load_state(self, files: Mapping[str, str]) -> None:
        with tempfile.TemporaryDirectory(dir=self._path) as folder:
            for name, kept in files.items():
                (self._path / Path(kept).name).rename(Path(folder) / Path(name).name)
            self._learner.load_state(Path(folder))
