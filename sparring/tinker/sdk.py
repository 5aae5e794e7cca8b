"""The verbs of a Tinker service through the package `tinker`, versions 0.16 to 0.38."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import tarfile
import time
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, final

import httpx

from sparring.errors import ServiceError
from sparring.runtime.cancellable import Cancelled, raise_if_cancelled
from sparring.runtime.logs import get_logger
from sparring.tinker.service import AdamStep, Adapted, Row, Sample, align_scores

Value = TypeVar("Value")

POLL_SECONDS = 1.0
"""The longest time between two looks whether the computation was abandoned."""
CHECK_SECONDS, CONNECT_SECONDS, PATIENCE_SECONDS = 5.0, 5.0, 60.0
"""The time between two checks whether the service answers, that of a check, and that after which a wait ends."""
DOWNLOAD_SECONDS = 600.0
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")


class Connection(Protocol):
    """A connection to a service, for those who wait for its answers."""

    @property
    def name(self) -> str: ...

    def measure_silence(self) -> float:
        """Return for how many seconds nothing has answered at the service's address."""
        ...

    def failure(self, verb: str, error: BaseException) -> ServiceError:
        """Return the error for a failed request."""
        ...


@final
class SdkService:
    """A service at an address. Implements `service.Service`.

        service = SdkService("http://127.0.0.1:8000", model="Qwen/Qwen3-8B", api_key="tml-...")

    The package is used through what its versions 0.16 to 0.38 have in common.
    """

    def __init__(
        self, base_url: str, *, model: str, api_key: str | None = None, adapted: Adapted | None = None
    ) -> None:
        """Connect to a service. `adapted` are the layers of all new adapters. Raises ServiceError if the service does not
        answer, or if the package is not installed."""
        try:
            import tinker  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ServiceError(
                'a Tinker service needs its client. Install it with: pip install "sparring[tinker]"'
            ) from error
        self.name = f"the Tinker service at {base_url} ({model})"
        sdk: Any = tinker
        self._sdk, self._model, self._base_url = sdk, model, base_url.rstrip("/")
        # The package warns about waits of its blocking methods, which it also reports for a download.
        get_logger("tinker").setLevel(logging.ERROR)
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="sparring-tinker")
        self._api_key, self._adapted = api_key or "tml-none", adapted or Adapted()
        self._silent_since: float | None = None
        self._client = self._ask("connect", lambda: sdk.ServiceClient(base_url=base_url, api_key=self._api_key))

    def create(self, *, rank: int, seed: int) -> SdkTrainer:
        return self._trainer(
            "create_lora_training_client",
            lambda: self._client.create_lora_training_client(
                base_model=self._model,
                rank=rank,
                seed=seed,
                train_attn=self._adapted.attention,
                train_mlp=self._adapted.mlp,
                train_unembed=self._adapted.output,
            ),
        )

    def restore(self, path: str, *, with_optimizer: bool) -> SdkTrainer:
        create = (
            self._client.create_training_client_from_state_with_optimizer
            if with_optimizer
            else self._client.create_training_client_from_state
        )
        return self._trainer("create_training_client_from_state", lambda: create(path))

    def create_sampler(self, path: str | None) -> SdkSampler:
        source = {"base_model": self._model} if path is None else {"model_path": path}
        made = self._ask("create_sampling_client", lambda: _resolved(self._client.create_sampling_client(**source)))
        return SdkSampler(self, made)

    def download(self, path: str, folder: Path) -> None:
        run, checkpoint = _parse(path)
        rest = self._rest_client()
        answer = self._ask(
            "get_checkpoint_archive_url", lambda: rest.get_checkpoint_archive_url(run, checkpoint).result()
        )
        archive = folder / "archive"
        try:
            with (
                httpx.stream("GET", answer.url, timeout=DOWNLOAD_SECONDS, follow_redirects=True) as response,
                archive.open("wb") as file,
            ):
                response.raise_for_status()
                for piece in response.iter_bytes():
                    file.write(piece)
            _extract(archive, folder)
        except (httpx.HTTPError, tarfile.TarError, EOFError, zlib.error) as error:
            raise ServiceError(f"{self.name} sent no usable archive of {path}: {error}. Try again.") from error
        finally:
            archive.unlink(missing_ok=True)

    def close(self) -> None:
        # Versions before 0.38 have no `close` of a service; their heartbeat ends with the holder of the connections.
        with suppress(Exception):
            if hasattr(self._client, "close"):
                self._client.close("success").result(timeout=POLL_SECONDS)
            else:
                self._client.holder.close()
        self._threads.shutdown(wait=False)

    def _rest_client(self) -> Any:
        if hasattr(self._sdk, "RestClient"):
            with suppress(TypeError):
                return self._sdk.RestClient(base_url=self._base_url, api_key=self._api_key)
        return self._client.create_rest_client()

    def _trainer(self, verb: str, create: Callable[[], Any]) -> SdkTrainer:
        return SdkTrainer(self, self._ask(verb, lambda: _resolved(create())), self._sdk.types)

    def _ask(self, verb: str, run: Callable[[], Value]) -> Value:
        """Run a call of the package. Raises ServiceError if it fails."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                warnings.simplefilter("ignore", DeprecationWarning)
                # The package refuses blocking calls in a thread with an event loop.
                return Answer(self, verb, self._threads.submit(run), lambda found: found).result()
        except (ServiceError, Cancelled):
            raise
        except Exception as error:  # The package raises errors of its own, of httpx and of asyncio.
            raise self.failure(verb, error) from error

    def measure_silence(self) -> float:
        """Return for how many seconds nothing has answered at the address. The package repeats requests for a long time
        without saying so."""
        try:
            httpx.get(f"{self._base_url}/api/v1/healthz", timeout=CONNECT_SECONDS)
        except httpx.TransportError:
            self._silent_since = self._silent_since or time.monotonic()
            return time.monotonic() - self._silent_since
        self._silent_since = None
        return 0.0

    def answers(self) -> bool:
        self.measure_silence()
        return self._silent_since is None

    def failure(self, verb: str, error: BaseException) -> ServiceError:
        text = f"{type(error).__name__}: {error}".rstrip(". ")
        return ServiceError(f"{self.name} failed at {verb}: {text:.600}. Check its log, and resume the run.")


@final
class SdkTrainer:
    """An adapter in training. Implements `service.Trainer`."""

    def __init__(self, service: SdkService, client: Any, types: Any) -> None:
        self._service, self._client, self._types = service, client, types

    def forward(self, rows: Sequence[Row]) -> Answer[list[list[float]]]:
        sent = self._send("forward", lambda: self._client.forward([self._datum(row) for row in rows], "cross_entropy"))
        return Answer(self._service, "forward", sent, _read_logprobs)

    def forward_backward(
        self, rows: Sequence[Row], loss_fn: str, loss_config: Mapping[str, float] | None = None
    ) -> Answer[list[list[float]]]:
        data = [self._datum(row) for row in rows]
        config = None if loss_config is None else dict(loss_config)
        sent = self._send("forward_backward", lambda: self._client.forward_backward(data, loss_fn, config))
        return Answer(self._service, "forward_backward", sent, _read_logprobs)

    def optim_step(self, step: AdamStep) -> Answer[dict[str, float]]:
        params = self._types.AdamParams(
            learning_rate=step.learning_rate,
            beta1=step.beta1,
            beta2=step.beta2,
            eps=step.eps,
            weight_decay=step.weight_decay,
            grad_clip_norm=step.grad_clip_norm,
        )
        sent = self._send("optim_step", lambda: self._client.optim_step(params))
        return Answer(self._service, "optim_step", sent, lambda found: dict(getattr(found, "metrics", None) or {}))

    def save_state(self, name: str) -> str:
        return self._stored("save_state", lambda: self._client.save_state(name))

    def save_sampler(self, name: str) -> str:
        return self._stored("save_weights_for_sampler", lambda: self._client.save_weights_for_sampler(name))

    def close(self) -> None:
        """Unload the adapter. A service may refuse, and then unloads it when the session ends. If nothing answers, the package
        would repeat the request for as long as it may."""
        if not self._service.answers():
            return
        holder, request = self._client.holder, self._types.UnloadModelRequest(model_id=self._client.model_id)

        async def unload() -> None:
            from tinker.lib.client_connection_pool_type import (  # pyright: ignore[reportMissingImports]
                ClientConnectionPoolType,
            )

            with holder.aclient(ClientConnectionPoolType.TRAIN) as client:
                await client.models.unload(request=request)

        with suppress(Exception):
            holder.run_coroutine_threadsafe(unload()).result(timeout=30.0)

    def _stored(self, verb: str, run: Callable[[], Any]) -> str:
        return Answer(self._service, verb, self._send(verb, run), lambda found: str(found.path)).result()

    def _send(self, verb: str, run: Callable[[], Any]) -> Any:
        return self._service._ask(verb, run)

    def _datum(self, row: Row) -> Any:
        types, fields = self._types, {"target_tokens": (row.token_ids[1:], "int64")}
        for name in ("weights", "logprobs", "advantages"):
            if values := getattr(row, name):
                fields[name] = (values, "float32")
        return types.Datum(
            model_input=types.ModelInput.from_ints(list(row.token_ids[:-1])),
            loss_fn_inputs={
                name: types.TensorData(data=list(values), dtype=kind, shape=[len(values)])
                for name, (values, kind) in fields.items()
            },
        )


@final
class Answer(Generic[Value]):
    """The answer to a request that has been sent. Implements `service.Pending`."""

    def __init__(self, service: Connection, verb: str, future: Any, read: Callable[[Any], Value]) -> None:
        self._service, self._verb, self._future, self._read = service, verb, future, read

    def result(self) -> Value:
        patience = _Patience(self._service, self._verb)
        while True:
            try:
                return self._read(self._future.result(timeout=POLL_SECONDS))
            except (TimeoutError, concurrent.futures.TimeoutError) as error:
                if _is_done(self._future):
                    raise self._service.failure(self._verb, error) from error
                raise_if_cancelled()
                patience.check()
            except (ServiceError, Cancelled):
                raise
            except Exception as error:  # see `SdkService._ask`
                raise self._service.failure(self._verb, error) from error


@final
class _Patience:
    """Ends a wait if nothing answers at the service's address for too long. All waits for a service share what they find."""

    def __init__(self, service: Connection, verb: str) -> None:
        self._service, self._verb, self._checked = service, verb, time.monotonic()

    def check(self) -> None:
        """Raise ServiceError if the service has not answered for `PATIENCE_SECONDS`."""
        if time.monotonic() - self._checked < CHECK_SECONDS:
            return
        seconds = self._service.measure_silence()
        self._checked = time.monotonic()
        if seconds > PATIENCE_SECONDS:
            raise ServiceError(
                f"{self._service.name} has not answered for {seconds:.0f} s during {self._verb}. Start it again, and resume the "
                "run."
            )


@final
class SdkSampler:
    """A version of the weights. Implements `service.Sampler`."""

    def __init__(self, service: SdkService, client: Any) -> None:
        self._service, self._client, self._types = service, client, service._sdk.types

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
        params = self._types.SamplingParams(
            max_tokens=max_tokens, temperature=temperature, top_p=top_p, stop=sorted(stop_ids), seed=seed % 2**31
        )
        prompt = self._types.ModelInput.from_ints(list(prompt_ids))
        return await self._wait("sample", lambda: self._client.sample(prompt, 1, params), _read_sample)

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        prompt = self._types.ModelInput.from_ints(list(token_ids))
        return await self._wait(
            "compute_logprobs",
            lambda: self._client.compute_logprobs(prompt),
            lambda found: align_scores(found, len(token_ids), self._service.name),
        )

    async def _wait(self, verb: str, send: Callable[[], Any], read: Callable[[Any], Value]) -> Value:
        sent = self._service._ask(verb, send)
        future = asyncio.wrap_future(sent.future() if hasattr(sent, "future") else sent)
        patience = _Patience(self._service, verb)
        try:
            while not (await asyncio.wait({future}, timeout=CHECK_SECONDS))[0]:
                await asyncio.to_thread(patience.check)
            return read(future.result())
        except ServiceError:
            raise
        except Exception as error:  # see `SdkService._ask`
            raise self._service.failure(verb, error) from error


def _resolved(made: Any) -> Any:
    """Return a client. Version 0.38 returns a future of it, and earlier ones the client itself."""
    return made.result() if hasattr(made, "result") else made


def _is_done(future: Any) -> bool:
    inner = future.future() if hasattr(future, "future") else future
    return bool(inner.done()) if hasattr(inner, "done") else False


def _read_sample(found: Any) -> Sample:
    sequence = found.sequences[0]
    return Sample(
        token_ids=tuple(int(one) for one in sequence.tokens),
        logprobs=tuple(at_most_0(one) for one in sequence.logprobs or ()),
        has_stopped=str(sequence.stop_reason) == "stop",
    )


def at_most_0(logprob: float) -> float:
    """Return a log-probability that rounding made larger than 0 as 0, and NaN as NaN."""
    return 0.0 if float(logprob) > 0.0 else float(logprob)


def _read_logprobs(found: Any) -> list[list[float]]:
    return [[float(one) for one in output["logprobs"].data] for output in found.loss_fn_outputs]


def _parse(path: str) -> tuple[str, str]:
    """Return the run and the checkpoint of a path. Tinker's paths are `tinker://RUN/sampler_weights/NAME`, whose checkpoint is
    `sampler_weights/NAME`; SkyRL 0.4.0 returns `tinker://RUN/NAME`."""
    run, _, checkpoint = path.removeprefix("tinker://").partition("/")
    return run, checkpoint


def _extract(archive: Path, folder: Path) -> None:
    """Extract the files of an adapter, wherever they are in the archive. Nothing else is written."""
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            if member.isfile() and name in ADAPTER_FILES and (content := tar.extractfile(member)) is not None:
                with (folder / name).open("wb") as file:
                    while piece := content.read(2**20):
                        file.write(piece)
