"""The verbs of Amazon SageMaker's training sessions through their SDK, the package `sagemaker-train` from version 1.25 on.

A session trains one adapter, and runs on GPUs from its creation until it is stopped. Stored weights and states are model
packages, whose ARN is their path.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar, final
from urllib.parse import urlsplit

from sparring.errors import ServiceError
from sparring.models.adapter_files import AdapterShape
from sparring.runtime.cancellable import Cancelled
from sparring.tinker.sdk import ADAPTER_FILES, Answer, at_most_0
from sparring.tinker.service import AdamStep, Row, Sample, align_scores

Value = TypeVar("Value")

LEAST_SAMPLED = 512
"""The smallest number of tokens that a request for a sample may allow. What exceeds the wanted number is cut off here."""
LARGEST_EPS = 0.01
BOUNDS: Mapping[str, tuple[float, float]] = {
    "learning_rate": (0.0, 0.01),
    "beta1": (0.0, 0.999999),
    "beta2": (0.0, 0.999999),
    "eps": (1e-16, LARGEST_EPS),
    "weight_decay": (0.0, 1.0),
    "grad_clip_norm": (0.0, 100.0),
}
"""The parameters of AdamW that the service accepts."""


@final
class SageMakerService:
    """Training sessions of one base model and one shape of adapters. Implements `service.Service`.

        service = SageMakerService(model="openai/gpt-oss-20b", role_arn="arn:aws:iam::...", shape=AdapterShape(rank=32, alpha=64))

    Credentials and region are those of the AWS configuration. Samplers use the newest session in training, so that sampling needs
    no session of its own while a run trains.
    """

    def __init__(self, *, model: str, role_arn: str, shape: AdapterShape) -> None:
        """Raises ServiceError if the package is not installed or has no configuration."""
        try:
            from sagemaker.train import training_session  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ServiceError(
                "SageMaker's training sessions need their SDK, which is not installed. Install it with: pip install "
                '"sagemaker-train>=1.25"'
            ) from error
        self.name = f"SageMaker's training sessions ({model})"
        self.sdk: Any = training_session
        self._model, self._shape = model, shape
        self.settings = {"model": model, "role_arn": role_arn, "shape": shape}
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="sparring-sagemaker")
        self._lock = threading.Lock()
        self._trainers: list[SageMakerTrainer] = []
        """Those whose session runs, oldest first."""
        self._sampling: dict[str | None, Any] = {}
        """Clients with a session of their own by their path, from the time without a session in training."""
        self._num_users = 1
        self._client: Any = self.ask("connect", lambda: self.sdk.ServiceClient(role_arn=role_arn))

    def create(self, *, rank: int, seed: int) -> SageMakerTrainer:
        """Create a session. The service chooses the seed of its adapter, so `seed` has no effect."""
        assert rank == self._shape.rank, "all adapters of a service have one shape"
        settings = self._settings()
        client = self.ask("create_lora_training_client", lambda: self._client.create_lora_training_client(**settings))
        return self._opened(client, is_new=True)

    def restore(self, path: str, *, with_optimizer: bool) -> SageMakerTrainer:
        verb = f"create_training_client_from_state{'_with_optimizer' if with_optimizer else ''}"
        settings = self._settings()
        client = self.ask(verb, lambda: getattr(self._client, verb)(path, **settings))
        return self._opened(client, is_new=False)

    def create_sampler(self, path: str | None) -> SageMakerSampler:
        return SageMakerSampler(self, path)

    def download(self, path: str, folder: Path) -> None:
        """Copy the files of an adapter from the address of its model package in S3."""
        import boto3  # pyright: ignore[reportMissingImports]

        def copy() -> None:
            package = boto3.client("sagemaker").describe_model_package(ModelPackageName=path)
            containers = package.get("InferenceSpecification", {}).get("Containers") or [{}]
            address = containers[0].get("ModelDataSource", {}).get("S3DataSource", {}).get("S3Uri")
            if address is None:
                raise ServiceError(
                    f"{self.name}: the model package {path} has no address in S3, so it cannot be downloaded."
                )
            parts, s3 = urlsplit(address), boto3.client("s3")
            for page in s3.get_paginator("list_objects_v2").paginate(
                Bucket=parts.netloc, Prefix=parts.path.lstrip("/")
            ):
                for key in (one["Key"] for one in page.get("Contents", ())):
                    if (name := PurePosixPath(key).name) in ADAPTER_FILES:
                        s3.download_file(parts.netloc, key, str(folder / name))

        self.ask("download", copy)

    def share(self) -> SageMakerService:
        """Return this service for one more user. Its sessions are stopped when all users have closed it."""
        self._num_users += 1
        return self

    def close(self) -> None:
        """Stop all sessions, if this is the last user."""
        self._num_users -= 1
        if self._num_users > 0:
            return
        for trainer in list(self._trainers):
            trainer.close()
        for client in self._sampling.values():
            with suppress(Exception):
                client.stop()
        self._sampling.clear()
        self._threads.shutdown(wait=False)

    def find_sampling_client(self, path: str | None) -> Any:
        """Return a client of the SDK that samples with stored weights, or with the base model if `path` is None."""
        with self._lock:
            if self._trainers:
                client = self._trainers[-1].client
                return self.ask("create_sampling_client", lambda: client.create_sampling_client(path or ""))
            if path not in self._sampling:
                source = {"base_model": self._model} if path is None else {"model_package_arn": path}
                self._sampling[path] = self.ask(
                    "create_sampling_client", lambda: self._client.create_sampling_client(**source)
                )
            return self._sampling[path]

    @property
    def is_open(self) -> bool:
        return self._num_users > 0

    def ask(self, verb: str, run: Callable[[], Value]) -> Value:
        """Run a call of the package. Raises ServiceError if it fails."""
        return Answer(self, verb, self._threads.submit(run), lambda found: found).result()

    def measure_silence(self) -> float:
        """Return 0: the package itself ends requests that are not answered."""
        return 0.0

    def failure(self, verb: str, error: BaseException) -> ServiceError:
        text = f"{type(error).__name__}: {error}".rstrip(". ")
        return ServiceError(
            f"{self.name} failed at {verb}: {text:.600}. Look at the session in SageMaker, and resume the run."
        )

    def forget(self, trainer: SageMakerTrainer) -> None:
        with self._lock:
            self._trainers = [one for one in self._trainers if one is not trainer]

    def _settings(self) -> dict[str, Any]:
        return {"base_model": self._model, "rank": self._shape.rank, "alpha": self._shape.alpha}

    def _opened(self, client: Any, *, is_new: bool) -> SageMakerTrainer:
        trainer = SageMakerTrainer(self, client, is_new=is_new)
        with self._lock:
            self._trainers.append(trainer)
        return trainer


@final
class SageMakerTrainer:
    """An adapter in training, with a session of its own. Implements `service.Trainer`."""

    def __init__(self, service: SageMakerService, client: Any, *, is_new: bool) -> None:
        self.client = client
        self._service, self._sdk = service, service.sdk
        self._path: str | None = None
        """The path of the present weights; None is the base model."""
        self._is_stored = is_new

    def forward(self, rows: Sequence[Row]) -> _Scores:
        """Score the rows with the present weights, which are stored first. The service does not document that its `forward`
        returns log-probabilities."""
        if not self._is_stored:
            self.save_sampler("for log-probabilities")
        sampler, sdk = self._service.find_sampling_client(self._path), self._sdk
        return _Scores(
            [
                self._send(
                    "compute_logprobs",
                    partial(sampler.compute_logprobs, sdk.ModelInput.from_ints(list(row.token_ids))),
                    partial(align_scores, num_ids=len(row.token_ids), name=self._service.name),
                )
                for row in rows
            ]
        )

    def forward_backward(
        self, rows: Sequence[Row], loss_fn: str, loss_config: Mapping[str, float] | None = None
    ) -> Answer[list[list[float]]]:
        """Add a gradient. The result has no log-probabilities, because the service documents none."""
        data = [self._datum(row, loss_fn) for row in rows]
        config = None if loss_config is None else dict(loss_config)
        return self._send(
            "forward_backward",
            lambda: self.client.forward_backward(data, loss_fn=loss_fn, loss_fn_config=config),
            lambda found: [],
        )

    def optim_step(self, step: AdamStep) -> Answer[dict[str, float]]:
        """Take a step. Raises ServiceError if the service does not accept one of its parameters."""
        for name, (least, most) in BOUNDS.items():
            if not least <= getattr(step, name) <= most:
                raise ServiceError(
                    f"{self._service.name}: {name} of AdamW is {getattr(step, name):g}, but the service accepts {least:g} to "
                    f"{most:g}. Change it in [optimizer]."
                )
        params = self._sdk.AdamParams(
            learning_rate=step.learning_rate,
            beta1=step.beta1,
            beta2=step.beta2,
            eps=step.eps,
            weight_decay=step.weight_decay,
            grad_clip_norm=step.grad_clip_norm or None,
        )
        self._is_stored = False
        return self._send(
            "optim_step",
            lambda: self.client.optim_step(params),
            lambda found: {k: float(v) for k, v in found.metrics.items()},
        )

    def save_state(self, name: str) -> str:
        return self._stored("save_state", lambda: self.client.save_state(description=name))

    def save_sampler(self, name: str) -> str:
        """Store the weights, unless they are stored already."""
        if self._is_stored and self._path is not None:
            return self._path
        path = self._stored("save_weights_for_sampler", lambda: self.client.save_weights_for_sampler(description=name))
        self._path, self._is_stored = path, True
        return path

    def close(self) -> None:
        """Stop the session. What it has stored stays."""
        self._service.forget(self)
        with suppress(Exception):
            self.client.stop()

    def _stored(self, verb: str, run: Callable[[], Any]) -> str:
        path = self._send(verb, run, lambda found: found.model_package_arn).result()
        if not path:
            raise ServiceError(f"{self._service.name} returned no model package after {verb}. Resume the run.")
        return str(path)

    def _send(self, verb: str, run: Callable[[], Any], read: Callable[[Any], Value]) -> Answer[Value]:
        return Answer(self._service, verb, self._service.ask(verb, run), read)

    def _datum(self, row: Row, loss_fn: str) -> Any:
        """Return a row as the SDK takes it. All losses but cross_entropy need weights and log-probabilities, too."""
        ones = (1.0,) * row.num_targets
        fields = {"weights": row.weights or ones}
        if loss_fn != "cross_entropy":
            fields |= {"logprobs": row.logprobs, "advantages": row.advantages}
        tensors = {name: self._tensor(values, "float32") for name, values in fields.items()}
        return self._sdk.Datum(
            model_input=self._sdk.ModelInput.from_ints(list(row.token_ids[:-1])),
            loss_fn_inputs={"target_tokens": self._tensor(row.token_ids[1:], "int64"), **tensors},
        )

    def _tensor(self, values: Sequence[float], dtype: str) -> Any:
        return self._sdk.TensorData(data=list(values), dtype=dtype, shape=[len(values)])


@final
class _Scores:
    """The log-probabilities of rows. Implements `service.Pending`."""

    def __init__(self, answers: Sequence[Answer[list[float]]]) -> None:
        self._answers = answers

    def result(self) -> list[list[float]]:
        return [one.result() for one in self._answers]


@final
class SageMakerSampler:
    """A version of the weights. Implements `service.Sampler`."""

    def __init__(self, service: SageMakerService, path: str | None) -> None:
        self._service, self._path = service, path

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        stop_ids: Sequence[int],
        seed: int,
    ) -> Sample:
        """Continue a prompt. The service takes no stop ids: it ends answers at the model's own end, and the engine cuts them."""
        sdk = self._service.sdk
        params = sdk.SamplingParams(
            max_tokens=max(LEAST_SAMPLED, max_tokens), temperature=temperature, top_p=top_p, seed=seed % 2**31
        )
        prompt = sdk.ModelInput.from_ints(list(prompt_ids))

        def read(found: Any) -> Sample:
            sequence = found.sequences[0]
            is_cut = len(sequence.tokens) > max_tokens
            return Sample(
                token_ids=tuple(int(one) for one in sequence.tokens[:max_tokens]),
                logprobs=tuple(at_most_0(one) for one in (sequence.logprobs or ())[:max_tokens]),
                has_stopped=not is_cut and sequence.stop_reason == "stop",
                num_dropped=max(0, len(sequence.tokens) - max_tokens),
            )

        return await self._wait("sample", lambda client: client.sample(prompt, 1, params), read)

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        prompt = self._service.sdk.ModelInput.from_ints(list(token_ids))
        return await self._wait(
            "compute_logprobs",
            lambda client: client.compute_logprobs(prompt),
            lambda found: align_scores(found, len(token_ids), self._service.name),
        )

    async def _wait(self, verb: str, send: Callable[[Any], Any], read: Callable[[Any], Value]) -> Value:
        try:
            client = await asyncio.to_thread(self._service.find_sampling_client, self._path)
            return read(await send(client))
        except (ServiceError, Cancelled):
            raise
        except Exception as error:  # The package raises errors of its own, of botocore and of pydantic.
            raise self._service.failure(verb, error) from error
