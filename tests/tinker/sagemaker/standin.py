"""A stand-in for the SDK, whose classes take the recorded arguments and fields, and send what the SDK sends."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from tests.tinker.sagemaker.backend import Backend
from tests.tinker.sagemaker.shapes import SDK


def bind(name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name. Fails if the SDK does not take them."""
    recorded = SDK["methods"][name]
    assert len(args) <= len(recorded["positional"]), f"{name} takes fewer arguments by position"
    given = dict(zip(recorded["positional"], args, strict=False))
    assert not set(given) & set(named), f"{name} got an argument twice"
    accepted = {*recorded["positional"], *recorded["keywords"]}
    assert "**" in accepted or set(named) <= accepted, f"{name} does not take {set(named) - accepted}"
    assert set(recorded["required"]) <= {*given, *named}, f"{name} lacks arguments"
    return {**given, **named}


class Value(SimpleNamespace):
    """A value of one of the SDK's types, with its recorded fields only."""

    def __init__(self, **fields: Any) -> None:
        known = set(SDK["types"][type(self).__name__])
        assert set(fields) <= known, f"{type(self).__name__} has no fields {set(fields) - known}"
        super().__init__(**fields)


class AdamParams(Value): ...


class SamplingParams(Value): ...


class TensorData(Value): ...


class Datum(Value): ...


class ModelInput(Value):
    @classmethod
    def from_ints(cls, tokens: list[int]) -> ModelInput:
        return cls(chunks=[{"tokens": tokens, "type": "encoded_text"}])


class APIFuture:
    """An operation that is polled until it is finished."""

    def __init__(self, sent: Future[str], poll: Callable[[str], dict[str, Any]], read: Callable[[Any], Any]) -> None:
        self._sent, self._poll, self._read = sent, poll, read

    def result(self, timeout: float | None = None) -> Any:
        answer = self._poll(self._sent.result(timeout))
        assert answer["status"] == "Completed"
        ((_, found),) = answer["operationResult"].items()
        return self._read(found)

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.to_thread(self.result).__await__()

    def done(self) -> bool:
        return False


class Client:
    """A client of one session."""

    def __init__(self, backend: Backend, session: str, threads: ThreadPoolExecutor, path: str = "") -> None:
        self._backend, self._session, self._threads, self._path = backend, session, threads, path
        self._num_operations = 0

    def _train(self, config: dict[str, Any], read: Callable[[Any], Any]) -> APIFuture:
        self._num_operations += 1
        request = {
            "trainingSessionName": self._session,
            "sequenceNumber": self._num_operations,
            "clientToken": str(uuid.uuid4()),
            "operationConfig": config,
        }
        return self._send("Training", request, read)

    def _send(self, kind: str, request: dict[str, Any], read: Callable[[Any], Any]) -> APIFuture:
        sent = self._threads.submit(lambda: self._backend.call(f"Execute{kind}Operation", request)["operationId"])

        def poll(operation: str) -> dict[str, Any]:
            named = {"trainingSessionName": self._session, "operationId": operation}
            return self._backend.call(f"Get{kind}OperationResult", named)

        return APIFuture(sent, poll, read)

    def stop(self, *args: Any, **named: Any) -> None:
        bind(f"{type(self).__name__}.stop", args, named)
        self._backend.call("StopTrainingSession", {"TrainingSessionName": self._session})


class TrainingClient(Client):
    def forward_backward(self, *args: Any, **named: Any) -> APIFuture:
        given = bind("TrainingClient.forward_backward", args, named)
        config = {"lossFnName": given["loss_fn"], "datumList": [_datum(one) for one in given["batch"]]}
        if given.get("loss_fn_config") is not None:
            config["lossFnConfig"] = given["loss_fn_config"]
        return self._train({"forwardBackward": config}, lambda found: SimpleNamespace(metrics=found["metrics"]))

    def optim_step(self, *args: Any, **named: Any) -> APIFuture:
        adam = vars(bind("TrainingClient.optim_step", args, named)["adam_params"])
        config = {_camel(name): value for name, value in adam.items() if value is not None}
        return self._train(
            {"optimizerStep": {"adamParamsConfig": config}}, lambda found: SimpleNamespace(metrics=found["metrics"])
        )

    def save_state(self, *args: Any, **named: Any) -> APIFuture:
        given = bind("TrainingClient.save_state", args, named)
        return self._train({"saveState": {"description": given["description"]}}, _package)

    def save_weights_for_sampler(self, *args: Any, **named: Any) -> APIFuture:
        given = bind("TrainingClient.save_weights_for_sampler", args, named)
        return self._train({"saveWeights": {"description": given["description"]}}, _package)

    def create_sampling_client(self, *args: Any, **named: Any) -> SamplingClient:
        given = bind("TrainingClient.create_sampling_client", args, named)
        return SamplingClient(self._backend, self._session, self._threads, given.get("model_package_arn", ""))


class SamplingClient(Client):
    def sample(self, *args: Any, **named: Any) -> APIFuture:
        given = bind("SamplingClient.sample", args, named)
        params = {_camel(name): value for name, value in vars(given["sampling_params"]).items() if value is not None}
        config = {"prompt": vars(given["prompt"]), "numSamples": given["num_samples"], "samplingParams": params}
        return self._sample("sample", config, _sampled)

    def compute_logprobs(self, *args: Any, **named: Any) -> APIFuture:
        config = {"prompt": vars(bind("SamplingClient.compute_logprobs", args, named)["prompt"])}
        return self._sample("computeLogprobs", config, lambda found: found["logprobs"])

    def _sample(self, kind: str, config: dict[str, Any], read: Callable[[Any], Any]) -> APIFuture:
        package = {"modelPackageArn": self._path} if self._path else {}
        request = {"trainingSessionName": self._session, "operationConfig": {kind: config | package}}
        return self._send("Sampling", request, read)


def build(backend: Backend) -> Any:
    """Return the stand-in for `sagemaker.train.training_session`."""

    class ServiceClient:
        def __init__(self, *args: Any, **named: Any) -> None:
            self._role = bind("ServiceClient.__init__", args, named)["role_arn"]
            self._threads = ThreadPoolExecutor(max_workers=1)  # operations are sent in order

        def create_lora_training_client(self, *args: Any, **named: Any) -> TrainingClient:
            given = bind("ServiceClient.create_lora_training_client", args, named)
            return TrainingClient(
                backend, self._create(given["base_model"], given["rank"], given["alpha"]), self._threads
            )

        def create_training_client_from_state(self, *args: Any, **named: Any) -> TrainingClient:
            given = bind("ServiceClient.create_training_client_from_state", args, named)
            return self._restored(given, load_optimizer=False)

        def create_training_client_from_state_with_optimizer(self, *args: Any, **named: Any) -> TrainingClient:
            given = bind("ServiceClient.create_training_client_from_state_with_optimizer", args, named)
            return self._restored(given, load_optimizer=True)

        def create_sampling_client(self, *args: Any, **named: Any) -> SamplingClient:
            given = bind("ServiceClient.create_sampling_client", args, named)
            session = self._create(given.get("base_model"), 32, 64)
            return SamplingClient(backend, session, self._threads, given.get("model_package_arn", ""))

        def _restored(self, given: dict[str, Any], *, load_optimizer: bool) -> TrainingClient:
            path = given.pop("model_package_arn")
            client = self.create_lora_training_client(**given)
            config = {"modelPackageArn": path, "loadOptimizer": load_optimizer}
            client._train({"loadState": config}, lambda found: None).result()
            return client

        def _create(self, model: str | None, rank: int, alpha: int) -> str:
            from tests.tinker.sagemaker.backend import ARN, MODEL

            name = f"session-{uuid.uuid4().hex[:8]}"
            request = {
                "TrainingSessionName": name,
                "ModelPackageGroupArn": f"{ARN}:model-package-group/sagemaker-default",
                "LoraConfig": {"Rank": rank, "Alpha": alpha},
                "RoleArn": self._role,
                "ModelConfig": {"BaseModelArn": model or MODEL},
                "OutputConfig": {"S3Location": {"Path": f"s3://bucket/{name}/output"}},
            }
            backend.call("CreateTrainingSession", request)
            backend.call("DescribeTrainingSession", {"TrainingSessionName": name})
            return name

    return SimpleNamespace(
        ServiceClient=ServiceClient,
        AdamParams=AdamParams,
        SamplingParams=SamplingParams,
        TensorData=TensorData,
        Datum=Datum,
        ModelInput=ModelInput,
    )


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(one.title() for one in rest)


def _datum(datum: Any) -> dict[str, Any]:
    inputs = {name: vars(tensor) for name, tensor in datum.loss_fn_inputs.items()}
    return {"modelInput": vars(datum.model_input), "lossFnInputs": inputs}


def _package(found: Mapping[str, Any]) -> Any:
    return SimpleNamespace(model_package_arn=found["modelPackageArn"])


def _sampled(found: Mapping[str, Any]) -> Any:
    sequences = [
        SimpleNamespace(stop_reason=one["stopReason"], tokens=one["tokens"], logprobs=one.get("logprobs"))
        for one in found["sequences"]
    ]
    return SimpleNamespace(sequences=sequences)
