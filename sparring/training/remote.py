"""Use a learner in another process or on another machine over HTTP. `training.server` is the other side."""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import httpx

from sparring.errors import ServiceError
from sparring.models.tensor_files import TensorFile, write_weights
from sparring.protocols import LossConfig
from sparring.runtime.cancellable import Cancelled, guard_change, raise_if_cancelled
from sparring.runtime.private_files import open_private
from sparring.runtime.remote import (
    CONNECT_SECONDS,
    SILENCE_SECONDS,
    check_protocol,
    decode,
    dumps,
    headers_of,
    to_json,
    unreachable,
)
from sparring.types import Json, TrainingBatch, Weights

WAIT_SECONDS = 1.0
"""The longest time that the server holds a request while the result is not ready. A cancelled computation ends within
this time."""
PATIENCE_SECONDS = 60.0
"""The longest time that a server may be unreachable while it computes."""
RESTART_ADVICE = " Start it again, and resume the run."
LOST_RANK = "has lost another rank"
"""The words of the error of a rank whose group has failed because of another rank."""
_PIECE_BYTES = 2**20


@final
class RemoteLearner:
    """Trains with a learner that another process serves. Implements `protocols.Learner`.

        learner = RemoteLearner("http://127.0.0.1:8200")

    Batches, metrics and log-probabilities are sent as JSON. Weights and states are sent as safetensors files. A
    computation is a job on the server. A job is sent once, and the client requests its result until the result is
    ready. A broken connection therefore never causes a computation to run twice.
    """

    def __init__(
        self, base_url: str, *, api_key: str | None = None, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Connect to a running server. It may later be unreachable for at most `patience_seconds`. Raises ServiceError if it
        does not answer or is not a learner."""
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._where, self._patience_seconds = f"the learner at {self.base_url}", patience_seconds
        self._client = httpx.Client(
            headers=headers_of(api_key), timeout=httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS, pool=None)
        )
        try:
            hello = self._request("GET", "/v1/learner", patience_seconds=0.0)
            check_protocol(hello, self._where, "learner")
        except BaseException:
            self._client.close()
            raise
        self._instance = str(hello["instance"])
        self._num_microbatches = int(hello["num_microbatches"])
        self._files = tempfile.TemporaryDirectory(prefix="sparring-learner-")
        self._exported: Weights | None = None
        self._unused: list[str] = []
        """States on the server that this process no longer uses."""

    def forward_backward(
        self,
        batch: TrainingBatch,
        loss_fn: str,
        loss_config: LossConfig,
        old_logprobs: Sequence[float] | None = None,
    ) -> dict[str, float]:
        return self.run(
            "forward_backward",
            batch=to_json(batch),
            loss_fn=loss_fn,
            loss_config=dict(loss_config),
            old_logprobs=None if old_logprobs is None else list(old_logprobs),
        )

    def logprobs(self, batch: TrainingBatch) -> list[float]:
        return self.run("logprobs", batch=to_json(batch))

    def reference_logprobs(self, batch: TrainingBatch) -> list[float]:
        return self.run("reference_logprobs", batch=to_json(batch))

    def optim_step(self, learning_rate: float) -> dict[str, float]:
        with guard_change():
            self._exported = None
            return self.run("optim_step", learning_rate=learning_rate)

    def reset_optimizer(self) -> None:
        self.run("reset_optimizer")

    def export_weights(self) -> Weights:
        """Return the current weights as a file on this machine. The object is the same until the weights change."""
        if self._exported is None:
            made = self.run("export_weights")
            path = Path(self._files.name) / f"{uuid.uuid4().hex}.safetensors"
            self._download(made["file"], path)
            self._exported = Weights(tensors=TensorFile(path, is_temporary=True), fingerprint=made["fingerprint"])
        return self._exported

    def load_weights(self, weights: Weights) -> None:
        path = Path(self._files.name) / f"{uuid.uuid4().hex}.safetensors"
        try:
            write_weights(weights, path)
            name = self._upload(path)
        finally:
            path.unlink(missing_ok=True)
        self._exported = None
        self.run("load_weights", file=name, fingerprint=weights.fingerprint)

    def export_state(self) -> RemoteState:
        """Return a state that stays on the server until it is written to this machine."""
        made = self.run("export_state")
        state = RemoteState(self, made["state"], made["files"])
        weakref.finalize(state, self._unused.append, made["state"])
        return state

    def load_state(self, directory: Path) -> None:
        files = [path for path in sorted(directory.iterdir()) if path.suffix in (".safetensors", ".json")]
        names = {path.name: self._upload(path) for path in files}
        self._exported = None
        self.run("load_state", files=names)

    @property
    def num_microbatches(self) -> int:
        return self._num_microbatches

    def is_alive(self) -> bool:
        """Return whether the server answers, and has not been started again."""
        try:
            hello = self._request("GET", "/v1/learner", patience_seconds=0.0, timeout=CONNECT_SECONDS)
        except ServiceError:
            return False
        return hello.get("instance") == self._instance

    def close(self) -> None:
        """Close the connections and delete the local files. The server continues to run."""
        self._client.close()
        self._exported = None
        self._files.cleanup()

    def run(self, verb: str, **arguments: Json) -> Any:
        """Run one of the server's computations by its name, and return its result."""
        job, unused = uuid.uuid4().hex, self._unused[:]
        del self._unused[: len(unused)]
        answer = self._request(
            "POST",
            f"/v1/jobs/{job}",
            content=dumps({"verb": verb, "arguments": arguments, "unused": unused, "instance": self._instance}),
        )
        try:
            while not answer["is_done"]:
                raise_if_cancelled()
                answer = self._request("GET", f"/v1/jobs/{job}", params={"seconds": WAIT_SECONDS})
                self._num_microbatches = int(answer["num_microbatches"])
        except (Cancelled, KeyboardInterrupt):
            with suppress(ServiceError):
                self._request("DELETE", f"/v1/jobs/{job}", patience_seconds=0.0)
            raise
        self._num_microbatches = int(answer["num_microbatches"])
        return answer["result"]

    def _request(self, method: str, path: str, *, patience_seconds: float | None = None, **options: Any) -> Any:
        """Make one request. If the connection breaks, requests are retried for a limited time. Every request may safely
        be repeated."""
        start_time = time.monotonic()
        patience_seconds = self._patience_seconds if patience_seconds is None else patience_seconds
        while True:
            try:
                answer = self._client.request(method, self.base_url + path, **options)
                return decode(answer, self._where, otherwise=ServiceError)
            except httpx.HTTPError as error:
                if time.monotonic() - start_time >= patience_seconds:
                    advice = " Start it, and check the address." if patience_seconds == 0 else RESTART_ADVICE
                    raise ServiceError(f"{unreachable(self._where, error)}.{advice}") from error
                threading.Event().wait(0.5)

    def _upload(self, path: Path) -> str:
        def pieces() -> Iterator[bytes]:
            with path.open("rb") as file:
                while piece := file.read(_PIECE_BYTES):
                    yield piece

        try:
            answer = self._client.post(f"{self.base_url}/v1/files", content=pieces())
        except httpx.HTTPError as error:
            raise ServiceError(f"{unreachable(self._where, error)}.{RESTART_ADVICE}") from error
        return decode(answer, self._where, otherwise=ServiceError)["file"]

    def _download(self, name: str, path: Path) -> None:
        """Download a file from the server. Raises OSError if the file cannot be written, and ServiceError if it is
        incomplete."""
        try:
            with self._client.stream("GET", f"{self.base_url}/v1/files/{name}") as answer:
                if answer.status_code != 200:
                    answer.read()
                    decode(answer, self._where, otherwise=ServiceError)
                with open_private(path, "wb") as file:
                    for piece in answer.iter_bytes():
                        file.write(piece)
        except httpx.HTTPError as error:
            raise ServiceError(f"{unreachable(self._where, error)}.{RESTART_ADVICE}") from error


@final
class RemoteState:
    """A state of a learner that is stored on the learner's server. Implements `protocols.LearnerState`."""

    def __init__(self, learner: RemoteLearner, name: str, files: Sequence[str]) -> None:
        self._learner, self._name, self._files = learner, name, tuple(files)

    def write(self, directory: Path) -> None:
        for file in self._files:
            self._learner._download(f"{self._name}/{file}", directory / file)
